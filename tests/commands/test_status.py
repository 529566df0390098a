"""`gpuprov status` over a real sshd: one connection per node; text for people, JSON for programs."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from provision import cli, paths
from provision.commands import status as command
from provision.desired import inventory as inventories
from provision.errors import ExitCode
from provision.fleet import Node
from provision.remote import node_program
from provision.up.watch import incidents
from tests.support.health_results import failed, result
from tests.support.processes import until
from tests.support.sshd import Sshd

VALIDATOR = jsonschema.Draft202012Validator(
    json.loads((paths.DATA / "schemas/status.schema.json").read_text())
)
BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@pytest.fixture
def health(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The health result of every node: a file below `tmp_path`; its owner stands in for root."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    original = node_program.health_result_program
    there = {"folder": str(folder), "owner": os.geteuid()}
    monkeypatch.setattr(node_program, "health_result_program", lambda request: original({**request, **there}))
    file = folder / "health.json"
    write(file, result())
    return file


def write(file: Path, document: dict[str, Any]) -> None:
    """Write the result atomically and timestamped now, as the health program does."""
    beside = file.with_suffix(".new")
    clock = time.clock_gettime(time.CLOCK_BOOTTIME)
    beside.write_text(json.dumps({**document, "boot_id": BOOT, "uptime": clock}))
    beside.chmod(0o644)
    beside.replace(file)


@pytest.fixture
def inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Write inventory.yml with these nodes and enter its folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("GPUPROV_RUNS", str(tmp_path / "runs"))

    def of(*nodes: Node) -> None:
        hosts = {node.name: dict(node.variables) for node in nodes}
        (tmp_path / "inventory.yml").write_text(json.dumps({"all": {"hosts": hosts}}))

    return of


def healthy(sshd: Sshd, count: int) -> list[Node]:
    return [sshd.node(f"gpu-{number:02}", ansible_become=False) for number in range(1, count + 1)]


@pytest.mark.usefixtures("health")
def test_a_healthy_fleet(
    own_sshd: Sshd, inventory: Callable[..., None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    inventory(*healthy(own_sshd, 3))
    assert cli.main(["status"]) == ExitCode.OK
    head, verdict, oldest, nodes = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"inventory\.yml · 3 nodes · \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", head)
    assert verdict == "all 3 nodes healthy"
    assert re.fullmatch(r"oldest health result: \d+ s \(gpu-0\d\)", oldest)
    assert nodes == "✓ PASS       3  gpu-[01-03]"
    assert own_sshd.logins() == 3
    assert not (tmp_path / "runs").exists(), "it only looks"


def test_the_worst_decides_the_exit_code(
    sshd: Sshd,
    health: Path,
    inventory: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    inventory(*healthy(sshd, 1))
    write(health, result(verdict="warn"))
    assert cli.main(["status"]) == ExitCode.OK
    write(health, failed())
    assert cli.main(["status", "inventory.yml", "--nodes", "gpu-01"]) == ExitCode.UNHEALTHY
    health.unlink()
    assert cli.main(["status"]) == ExitCode.INCOMPLETE
    text = capsys.readouterr().out
    assert "no health result: the role node_health is not applied" in text
    assert "next: gpuprov up inventory.yml\n" in text
    write(health, failed())
    inventory(*healthy(sshd, 1), *sshd.troubled(tmp_path).values())
    assert cli.main(["status", "--json"]) == ExitCode.UNHEALTHY
    document = json.loads(capsys.readouterr().out)
    VALIDATOR.validate(document)
    assert document["counts"] == {"pass": 0, "skip": 0, "warn": 0, "error": 4, "fail": 1}
    states = {node["node"]: node["state"] for node in document["nodes"]}
    assert states == {
        "gpu-01": "answered",
        "refused": "unreachable",
        "stranger": "unreachable",
        "locked-out": "unreachable",
        "no-python": "unreadable",
    }


def test_a_node_that_the_watch_took_out_is_to_return_and_not_to_be_validated(
    sshd: Sshd,
    health: Path,
    inventory: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    inventory(*healthy(sshd, 2))
    write(health, failed())
    store = incidents.Store(incidents.place_of(inventories.load(tmp_path / "inventory.yml")))
    one = incidents.moved(incidents.new("gpu-01", 1.8e9, "Xid 79"), incidents.Step.REPAIR)
    store.write(replace(one, spare="gpu-02", placed=1.8e9))
    assert cli.main(["status", "--nodes", "gpu-*"]) == ExitCode.UNHEALTHY
    text = capsys.readouterr().out
    assert f"in repair: gpu-01, gpu-02 took its place ({one.id})" in " ".join(text.split())
    assert "next: gpuprov return gpu-01 inventory.yml --nodes 'gpu-*'\n" in text
    assert "next: gpuprov validate inventory.yml --nodes gpu-02 --stage quick\n" in text
    (store.path / "incidents" / f"{one.id}.json").write_text('{"format": 99}')
    assert cli.main(["status"]) == ExitCode.UNHEALTHY
    said = capsys.readouterr()
    assert "written by a newer gpuprov" in said.err
    assert "gpuprov return" not in said.out


@pytest.mark.usefixtures("health")
def test_a_node_that_only_ansible_reaches_is_asked_through_it(
    sshd: Sshd, inventory: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    here = Node(
        "here",
        (),
        {
            "ansible_connection": "local",
            "ansible_become": False,
            "ansible_python_interpreter": sys.executable,
        },
    )
    inventory(*healthy(sshd, 1), here)
    code = cli.main(["status"])
    shown = capsys.readouterr()
    assert code == ExitCode.OK, shown
    assert "all 2 nodes healthy" in shown.out


@pytest.mark.usefixtures("health")
def test_the_inventory_last_used_is_taken(
    sshd: Sshd,
    inventory: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # wide enough for the whole path in the second run
    inventory(*healthy(sshd, 1))
    (tmp_path / "inventory.yml").rename(tmp_path / "fleet.yml")
    assert cli.main(["status", "fleet.yml"]) == ExitCode.OK
    assert cli.main(["status"]) == ExitCode.OK
    assert capsys.readouterr().out.count("fleet.yml · 1 node") == 2


# --- watch


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Actions that run after each round of a watch; Ctrl-C follows the last one."""
    steps: list[Callable[[], None]] = []

    def sleep(seconds: float) -> None:
        assert 0 <= seconds <= 10
        if not steps:
            raise KeyboardInterrupt
        steps.pop(0)()

    monkeypatch.setattr(command, "_pause", sleep)
    return steps


def nothing() -> None: ...


@pytest.mark.usefixtures("health")
def test_watch_logs_in_once_to_each_node(
    own_sshd: Sshd,
    inventory: Callable[..., None],
    between: list[Callable[[], None]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    inventory(*healthy(own_sshd, 4))
    between += [nothing] * 4
    assert cli.main(["status", "--watch", "--json"]) == ExitCode.INTERRUPTED
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    for line in lines:
        VALIDATOR.validate(json.loads(line))
        assert json.loads(line)["verdict"] == "pass"
    assert own_sshd.logins() == 4


def test_without_a_terminal_only_a_change_is_printed(
    sshd: Sshd,
    health: Path,
    inventory: Callable[..., None],
    between: list[Callable[[], None]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    inventory(*healthy(sshd, 2))
    between += [nothing, lambda: write(health, failed()), nothing, lambda: write(health, result()), nothing]
    assert cli.main(["status", "--watch", "5"]) == ExitCode.INTERRUPTED
    shown = capsys.readouterr()
    blocks = shown.out.split("\n\ninventory.yml")
    verdicts = [block.splitlines()[1] for block in blocks]
    assert verdicts == ["all 2 nodes healthy", "2 of 2 nodes unhealthy", "all 2 nodes healthy"]
    assert shown.err == "\ngpuprov: interrupted\n"


def test_on_a_terminal_it_is_redrawn_and_ctrl_c_ends_it(
    sshd: Sshd, inventory: Callable[..., None], tmp_path: Path
) -> None:
    """Uses a real terminal and a real Ctrl-C."""
    inventory(sshd.node("gpu-01", ansible_become=False, ansible_port=1))
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "provision.cli", "status", "--watch", "0.2"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(cli.__file__).parent.parent),
            "TERM": "xterm",
            "COLUMNS": "100",
        },
        start_new_session=True,
        preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
    )
    os.close(theirs)
    text = bytearray()

    def read() -> None:
        try:
            while data := os.read(ours, 65536):
                text.extend(data)
        except OSError:  # the other end is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    deadline = time.monotonic() + 60
    while text.count(b"1 of 1 nodes") + text.count(b"not proven") < 3:
        assert time.monotonic() < deadline, bytes(text)
        time.sleep(0.05)
    os.write(ours, b"\x03")
    assert process.wait(timeout=30) == ExitCode.INTERRUPTED
    reader.join(timeout=60)
    os.close(ours)
    shown = bytes(text).decode()
    assert re.search(r"\x1b\[\d*A", shown), "the cursor goes up to where the last round began"
    assert shown.rstrip().endswith("gpuprov: interrupted")
    assert "Traceback" not in shown
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l"), "the cursor is shown again"


def test_ctrl_c_leaves_no_process(sshd: Sshd, inventory: Callable[..., None], tmp_path: Path) -> None:
    inventory(*healthy(sshd, 4))
    process = subprocess.Popen(
        [sys.executable, "-m", "provision.cli", "status", "--watch", "0.2", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(cli.__file__).parent.parent)},
        start_new_session=True,
    )
    assert process.stdout is not None
    for _ in range(2):
        VALIDATOR.validate(json.loads(process.stdout.readline()))
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == ExitCode.INTERRUPTED
    assert errors.strip() == "gpuprov: interrupted"
    until(lambda: not in_group(process.pid))


def in_group(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_where_nothing_answers_it_goes_on(
    inventory: Callable[..., None],
    between: list[Callable[[], None]],
    sshd: Sshd,
    capsys: pytest.CaptureFixture[str],
) -> None:
    inventory(sshd.node("gpu-01", ansible_port=1))
    between += [nothing, nothing]
    assert cli.main(["status", "--watch"]) == ExitCode.INTERRUPTED
    assert capsys.readouterr().out.count("unreachable: 127.0.0.1:1 refused the connection") == 1


@pytest.mark.parametrize("seconds", ["0", "-1", "soon", "1e9"])
def test_a_wrong_number_of_seconds_is_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["status", f"--watch={seconds}"])
    assert ended.value.code == ExitCode.USAGE
    assert "must be a number of seconds above 0" in capsys.readouterr().err
