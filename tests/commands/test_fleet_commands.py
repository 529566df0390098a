"""Output, files and exit status of init, plan and drift on the command line."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from provision import cli, terminal
from provision.desired import expectations, inventory, stack, variables
from provision.errors import ExitCode, UsageError
from provision.fleet import Node
from provision.remote.reach import observe
from provision.remote.reach.observe import Observation
from provision.runs import store
from tests.support.observed import Facts, debian, fleet_here, gpuprov, promised, unknown, vault

ROOT = Path(cli.__file__).resolve().parent.parent
BASE = debian("12", "bookworm", "6.1.0")
CONFIG = "file./etc/modprobe.d/blacklist-nouveau.conf.content"


@pytest.fixture
def trouble(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Facts:
    """Set up three nodes as declared, except for the facts put into the returned dict (node → facts)."""
    different: Facts = {}

    def answer(node: Node, asked: Collection[str]) -> Observation:
        mine = dict(different.get(node.name, {}))
        error, problems = mine.pop("error", None), mine.pop("problems", {})
        expected = promised(stack.declared(node, {}), BASE)
        whole = {**unknown(asked, "6.1.0"), **expected, **BASE, **mine}
        facts = {} if error else {name: whole[name] for name in whole if name not in problems}
        return Observation(node.name, facts, problems, error, bool(error))

    fleet_here(monkeypatch, tmp_path, ("gpu-01", "gpu-02", "gpu-03"), answer)
    return different


@pytest.mark.usefixtures("trouble")
def test_a_fleet_as_declared(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = gpuprov(capsys, "drift")
    assert code == ExitCode.OK
    assert "3 of 3 nodes as declared" in out
    code, out, _ = gpuprov(capsys, "plan")
    assert code == ExitCode.OK
    assert "3 nodes as declared: gpu-[01-03]" in out
    assert "would change" not in out


def test_drift_names_node_fact_expected_found_and_role(
    trouble: Facts, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = expectations.of_node(stack.declared(Node("", (), {}), {}), stack.describe_node(BASE))
    text = next(each.value for each in wanted if each.fact == CONFIG)
    edited = text.replace("blacklist nouveau\n", "# edited\n")
    assert edited != text
    trouble["gpu-02"] = {"driver.loaded_version": "570.1", CONFIG: edited}
    trouble["gpu-03"] = {"driver.loaded_version": "570.1"}
    code, out, _ = gpuprov(capsys, "drift")
    assert code == ExitCode.DRIFT
    differs = "NVIDIA driver: 570.1 is loaded, 580.126.09 is declared  [driver.loaded_version]\n"
    assert f"gpu-[02-03]  (2 nodes)\n  {differs}      nvidia_driver: " in out
    assert "gpu-02  (1 node)\n  file /etc/modprobe.d/blacklist-nouveau.conf: line " in out
    assert f' is "# edited", must be "blacklist nouveau"  [{CONFIG}]\n' in out
    assert "1 of 3 nodes as declared" in out

    run = store.latest("drift")
    assert run.meta()["exit_code"] == ExitCode.DRIFT
    kept = list(run.read("drifts"))
    assert {(each["node"], each["fact"], each["found"]) for each in kept} >= {
        ("gpu-02", "driver.loaded_version", "570.1"),
        ("gpu-03", "driver.loaded_version", "570.1"),
    }
    assert {each["node"] for each in run.read("facts")} == {"gpu-01", "gpu-02", "gpu-03"}


def test_not_knowing_is_5_and_real_drift_beside_it_is_4(
    trouble: Facts, capsys: pytest.CaptureFixture[str]
) -> None:
    trouble["gpu-02"] = {"problems": {"driver": "timed out"}}
    code, out, _ = gpuprov(capsys, "drift")
    assert code == ExitCode.INCOMPLETE
    assert "NVIDIA driver could not be read: timed out  [driver.loaded_version]\n" in out
    trouble["gpu-03"] = {"error": "no route to host"}
    code, out, _ = gpuprov(capsys, "drift")
    assert code == ExitCode.INCOMPLETE
    assert "gpu-03  unreachable: no route to host" in out
    trouble["gpu-01"] = {"module.nouveau.loaded": True}
    assert gpuprov(capsys, "drift")[0] == ExitCode.DRIFT


def test_json_is_one_document(trouble: Facts, capsys: pytest.CaptureFixture[str]) -> None:
    trouble["gpu-02"] = {"driver.loaded_version": None}
    trouble["gpu-03"] = {"gpu.count": 0, "gpu.pci": []}
    code, out, _ = gpuprov(capsys, "drift", "--json")
    document = json.loads(out)
    assert code == document["exit_code"] == ExitCode.DRIFT
    assert [(each["node"], each["expected"], each["found"]) for each in document["drifts"]] == [
        ("gpu-02", "580.126.09", None)
    ]
    assert document["refused"]["gpu-03"][0]["rule"] == "no-gpu"

    code, out, _ = gpuprov(capsys, "plan", "--json")
    document = json.loads(out)
    assert code == ExitCode.UNHEALTHY
    assert document["nodes"]["gpu-02"]["roles"] == ["nvidia_driver"]
    assert document["nodes"]["gpu-02"]["reboot"] == "may", "no driver is loaded: modprobe may do"
    assert [wave["nodes"] for wave in document["waves"]] == [["gpu-02"]]


def test_junit_has_a_case_for_each_node(
    trouble: Facts, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trouble["gpu-02"] = {"driver.loaded_version": "\x1b[31m<&\x00"}
    trouble["gpu-03"] = {"error": "no route"}
    gpuprov(capsys, "drift", "--format", "junit=drift.xml")
    suite = ElementTree.fromstring((tmp_path / "drift.xml").read_text())  # noqa: S314 - our own file
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "1")
    cases = {case.get("name"): [child.tag for child in case] for case in suite}
    # A node without validation is only mentioned.
    assert cases == {"gpu-01": ["system-out"], "gpu-02": ["failure", "system-out"], "gpu-03": ["error"]}


def test_nodes_cannot_move_the_cursor(trouble: Facts, capsys: pytest.CaptureFixture[str]) -> None:
    trouble["gpu-02"] = {"driver.loaded_version": "\x1b[2J\x07\n\nfake: all is well"}
    _, out, err = gpuprov(capsys, "drift")
    assert "\x1b" not in out + err
    assert "\nfake" not in out


def test_the_plan_groups_equal_nodes_and_gives_reasons(
    trouble: Facts, capsys: pytest.CaptureFixture[str]
) -> None:
    trouble["gpu-01"] = trouble["gpu-02"] = {"service.nvidia-persistenced.active": "inactive"}
    code, out, _ = gpuprov(capsys, "plan")
    assert code == ExitCode.OK
    assert "gpu-[01-02]  (2 nodes)  1 to change, less than 1 min (estimate)\n  nvidia_driver\n" in out
    assert "    ~ service nvidia-persistenced is inactive, must be active\n" in out
    assert "1 node as declared: gpu-03" in out
    assert "gpuprov up inventory.yml would change 2 nodes in 2 waves: " in out
    assert ", less than 1 min (estimate)\n" in out


@pytest.mark.parametrize("verb", ["plan", "drift"])
def test_the_cause_and_the_next_step_are_named(
    verb: str, trouble: Facts, capsys: pytest.CaptureFixture[str]
) -> None:
    trouble["gpu-01"] = trouble["gpu-03"] = {"module.nouveau.loaded": True}
    _, out, _ = gpuprov(capsys, verb)
    assert "cause and next step\n  gpu-[01,03]  nouveau is loaded and holds the GPUs" in out
    assert "; next: gpuprov up inventory.yml --nodes gpu-01,gpu-03 (" in out


@pytest.mark.usefixtures("trouble")
def test_nodes_are_chosen_by_pattern_and_the_inventory_is_remembered(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "fleet.yml").touch()
    _, out, _ = gpuprov(capsys, "drift", "fleet.yml", "--nodes", "gpu-03")
    assert "1 of 1 node as declared" in out
    (tmp_path / "inventory.yml").unlink()
    _, out, _ = gpuprov(capsys, "drift", "--json")
    assert json.loads(out)["inventory"] == str(tmp_path / "fleet.yml")


@pytest.mark.usefixtures("trouble")
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--nodes", "gpu-99"], ExitCode.ERROR, "did you mean gpu-0"),
        (["--set", "gpuprov_stack=r999"], ExitCode.ERROR, "no stack called 'r999'"),
        (["--set", "nvidia_driver_versoin=1"], ExitCode.ERROR, "did you mean nvidia_driver_version"),
        (["--set", "nvidia_driver_version=new"], ExitCode.ERROR, "'new' is not a version"),
        (["--set", "x"], ExitCode.USAGE, "must be KEY=VALUE"),
        (["--set", "x="], ExitCode.USAGE, "no value"),
        (["--set", "x=[1"], ExitCode.USAGE, "not valid YAML"),
        (["nowhere.yml"], ExitCode.ERROR, "no such inventory"),
        (["--timeout", "0"], ExitCode.USAGE, "above 0"),
    ],
)
@pytest.mark.parametrize("verb", ["plan", "drift"])
def test_a_mistake_is_one_line_and_touches_nothing(
    verb: str, words: list[str], code: ExitCode, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        ended = cli.main([verb, *words])
    except SystemExit as stopped:  # raised by argparse
        ended = int(str(stopped.code))
    shown = capsys.readouterr()
    assert ended == code
    assert message in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""


def test_set_takes_versions_as_they_stand(trouble: Facts, capsys: pytest.CaptureFixture[str]) -> None:
    """As a number, 12.10 would become 12.1."""
    trouble["gpu-02"] = {"driver.loaded_version": None}
    code, _, err = gpuprov(capsys, "plan", "--set", "cuda_toolkit_version=12.10")
    assert "there is no release 12.10" in err or code == ExitCode.OK, err


def test_secrets_of_set_and_vault_are_not_kept(
    trouble: Facts, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    vault(monkeypatch, "hidden-word")
    trouble["gpu-02"] = {"driver.loaded_version": "hidden-word"}
    _, out, err = gpuprov(capsys, "drift", "--set", "site_token=very-secret-too", "--format", "junit=j.xml")
    everything = out + err + "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert "hidden-word" not in everything
    assert "very-secret-too" not in everything


def test_init_writes_the_example(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert gpuprov(capsys, "init")[0] == ExitCode.OK
    written = (tmp_path / "inventory.yml").read_text()
    assert written == (ROOT / "inventory" / "example.yml").read_text()
    assert f"gpuprov_stack: {stack.DEFAULT}\n" in written
    code, _, err = gpuprov(capsys, "init")
    assert code == ExitCode.USAGE
    assert "exists already" in err
    assert gpuprov(capsys, "init", "--force", "--host", "node-7")[0] == ExitCode.OK
    assert "    node-7:\n" in (tmp_path / "inventory.yml").read_text()
    assert gpuprov(capsys, "init", "none/x.yml")[0] == ExitCode.USAGE


def test_what_init_writes_is_an_inventory_without_mistakes(tmp_path: Path) -> None:
    file = tmp_path / "inventory.yml"
    file.write_text(inventory.starter(["gpu-[01:03]", "10.0.0.9", "1e5", "yes"]))
    fleet = inventory.load(file)
    assert list(fleet.nodes) == ["gpu-01", "gpu-02", "gpu-03", "10.0.0.9", "1e5", "yes"]
    variables.check(fleet, {})


@pytest.mark.parametrize("host", ["a b", "a:\n  x", "{{ x }}", ""])
def test_init_refuses_what_is_no_host_name(host: str) -> None:
    with pytest.raises(UsageError, match="not a host name"):
        inventory.starter([host])


def test_the_variables_the_starter_shows_exist() -> None:
    from provision.desired import variables

    shown = [
        line.strip("# ").split(":")[0]
        for line in inventory.starter().splitlines()
        if line.startswith("    # ")
    ]
    ours = [name for name in shown if name.startswith(("gpuprov_", "nvidia_", "container_"))]
    assert len(ours) >= 5
    assert set(ours) <= variables.known()


def test_an_interrupted_drift_leaves_what_it_saw_and_says_where(
    monkeypatch: pytest.MonkeyPatch, trouble: Facts, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C after two of three nodes leaves the same lines as a complete run, with secrets masked."""
    secret = "correct-horse"
    trouble["gpu-02"] = {"driver.loaded_version": f"570.1-{secret}"}
    vault(monkeypatch, secret)
    code, _, _ = gpuprov(capsys, "drift")
    assert code == ExitCode.DRIFT
    whole = store.latest("drift")
    before = observe.observe

    def interrupted(nodes: Any, ask: Any, *, on_done: Any, **options: Any) -> Any:
        observed = before(nodes, ask, on_done=None, **options)
        for name in ("gpu-03", "gpu-02"):
            on_done(observed[name])
        at_that_time = store.latest("drift")
        assert [each["node"] for each in at_that_time.read("facts")] == ["gpu-03", "gpu-02"]
        raise KeyboardInterrupt

    monkeypatch.setattr(observe, "observe", interrupted)
    code, _, err = gpuprov(capsys, "drift")
    assert code == ExitCode.INTERRUPTED
    cut = store.latest("drift")
    assert cut.path != whole.path
    assert f"2 nodes observed: {cut.path}\n" in err
    assert cut.meta()["exit_code"] == ExitCode.INTERRUPTED
    for name in ("facts", "drifts"):
        kept = {str(each["node"]): each for each in whole.read(name) if each["node"] != "gpu-01"}
        assert {str(each["node"]): each for each in cut.read(name)} == kept
        assert kept
        assert secret not in (cut.path / f"{name}.jsonl").read_text()
    assert "********" in (cut.path / "facts.jsonl").read_text()


@pytest.mark.parametrize(("verb", "shown"), [("plan", "\x1b[33m~ service "), ("drift", "\x1b[2m  [service.")])
def test_a_terminal_gets_colours_and_nothing_else_does(
    verb: str,
    shown: str,
    trouble: Facts,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trouble["gpu-01"] = {"service.nvidia-persistenced.active": "\x1b[31minactive"}
    assert "\x1b" not in gpuprov(capsys, verb)[1]
    monkeypatch.setattr(terminal, "coloured", lambda _stream: True)
    out = gpuprov(capsys, verb)[1]
    assert shown in out
    assert "\x1b[31m" not in out, "a node chooses no colour"
    assert "\x1b" not in gpuprov(capsys, verb, "--json")[1]


def test_the_plan_shows_what_would_become_of_a_file(
    trouble: Facts, capsys: pytest.CaptureFixture[str]
) -> None:
    trouble["gpu-01"] = {CONFIG: "options nouveau modeset=1\n"}
    code, out, _ = gpuprov(capsys, "plan", "--diff")
    assert code == ExitCode.OK
    assert "        -options nouveau modeset=1\n" in out
    assert "        +blacklist nouveau\n" in out
    assert "+blacklist nouveau\n" in gpuprov(capsys, "plan", "--diff", "--format", "markdown")[1]
    assert "+blacklist nouveau\n" not in gpuprov(capsys, "plan")[1]
