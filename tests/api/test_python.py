"""Using gpuprov from Python: the example of docs/python.md over a real sshd, without a terminal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gpuprov
from provision import cli
from provision.api import fleets
from provision.runs.store import RunFolder
from tests.support.sshd import Sshd

ROOT = Path(cli.__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
EXAMPLE, _CHANGES, ON_EVENT = re.findall(r"```python\n(.*?)```", PAGE, re.S)


@pytest.fixture
def folder(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a folder with an inventory of a reachable node and one with a closed port."""
    nodes = {"gpu-01": sshd.node("gpu-01"), "gpu-02": sshd.node("gpu-02", ansible_port=1)}
    hosts = {
        name: {**node.variables, "ansible_become": False, "gpuprov_roles": ["host_settings"]}
        for name, node in nodes.items()
    }
    (tmp_path / "inventory.yml").write_text(json.dumps({"all": {"hosts": hosts}}))
    monkeypatch.setenv("GPUPROV_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def in_python(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a new session, so without a terminal, from a folder with hostile modules."""
    for name in ("json.py", "yaml.py", "provision/__init__.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("raise SystemExit('a module of this folder was run')\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=environment,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_the_example_of_the_page_plans_drifts_and_reads_the_state(folder: Path) -> None:
    done = in_python(folder, EXAMPLE)
    assert (done.returncode, done.stderr) == (0, "")
    changes, *lines = done.stdout.splitlines()
    assert changes == "('gpu-01',)"
    assert lines[0].startswith("gpu-02 127.0.0.1:1 refused the connection")
    assert any(line.startswith("error host_settings/") and "'gpu-01'" in line for line in lines)
    assert lines[-2:] == ["gpu-01 error", "gpu-02 error"]


@pytest.mark.usefixtures("folder")
def test_events_are_typed_and_name_each_node_and_the_run_folder(capfd: pytest.CaptureFixture[str]) -> None:
    events: list[gpuprov.Event] = []
    fleet = gpuprov.load(gpuprov.Source(inventories=("inventory.yml",)), on_event=events.append)
    result = gpuprov.drift(fleet, arguments={"by": "a test"}, on_event=events.append)
    answered = {event.node: event.trouble for event in events if isinstance(event, gpuprov.NodeAnswered)}
    assert answered["gpu-01"] == ""
    assert answered["gpu-02"].startswith("unreachable")
    (began,) = [event for event in events if isinstance(event, gpuprov.RunBegan)]
    assert RunFolder.open(began.folder).meta()["arguments"] == {"by": "a test"}
    assert any(finding.level == "error" for finding in result.findings)
    assert capfd.readouterr() == ("", "")
    namespace: dict[str, Any] = {"gpuprov": gpuprov}
    exec(ON_EVENT, namespace)  # noqa: S102
    namespace["on_event"](gpuprov.NodeAnswered("gpu-02", "unreachable"))
    assert capfd.readouterr().out == "gpu-02 unreachable\n"


@pytest.mark.usefixtures("folder")
def test_documents_are_those_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = gpuprov.load(gpuprov.Source(inventories="inventory.yml", nodes="gpu-01"))  # a name, not a list
    changing = {"run_folder": "", "written": ""}
    ours = gpuprov.plan(fleet).document()
    cli.main(["plan", "inventory.yml", "--nodes", "gpu-01", "--json"])
    ours = json.loads(json.dumps(ours, default=str))
    assert {**ours, **changing} == {**json.loads(capsys.readouterr().out), **changing}
    ours = gpuprov.drift(fleet).document()
    cli.main(["drift", "inventory.yml", "--nodes", "gpu-01", "--json"])
    assert {**ours, **changing} == {**json.loads(capsys.readouterr().out), **changing}


@pytest.mark.usefixtures("folder")
def test_mistakes_are_errors_of_gpuprov() -> None:
    with pytest.raises(gpuprov.GpuprovError, match="no such inventory") as raised:
        gpuprov.load(gpuprov.Source(inventories=("absent.yml",)))
    assert raised.value.fix
    with pytest.raises(gpuprov.GpuprovError, match="must be"):
        gpuprov.load(
            gpuprov.Source(inventories=("inventory.yml",), variables={"node_health_enabled": "perhaps"})
        )


@pytest.mark.usefixtures("folder")
def test_passwords_are_given_or_refused_and_never_printed() -> None:
    source = gpuprov.Source(inventories=("inventory.yml",), ask_become_password=True)
    with pytest.raises(gpuprov.GpuprovError, match="nobody to ask"):
        gpuprov.load(source)

    def ask(prompt: str, wanted_by: str, variable: str, *, may_be_empty: bool = False) -> str:
        assert (prompt, wanted_by, may_be_empty) == ("sudo password: ", "-K", False)
        return f"typed for {variable}"

    asked: fleets.AskPassword = ask
    fleet = gpuprov.load(source, ask=asked)
    variables = fleet.fleet.nodes["gpu-01"].variables
    assert variables["ansible_become_password"] == "typed for ansible_become_password"
    given = gpuprov.Source(inventories=("inventory.yml",), password="sesame", become_password="open")
    variables = gpuprov.load(given).fleet.nodes["gpu-01"].variables
    assert (variables["ansible_password"], variables["ansible_become_password"]) == ("sesame", "open")
    assert "sesame" not in repr(given) + repr(gpuprov.load(given))


@pytest.mark.usefixtures("folder")
def test_no_result_prints_the_passwords_it_was_made_with() -> None:
    given = gpuprov.Source(inventories=("inventory.yml",), nodes="gpu-02", become_password="sesame")
    fleet = gpuprov.load(given)
    results = gpuprov.plan(fleet), gpuprov.drift(fleet), gpuprov.status(fleet)
    assert [repr(one) for one in results if "sesame" in repr(one)] == []
