"""A node's programs after the run that started them is interrupted, killed or disconnected: real
processes, started by the real module over a real sshd."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provision import paths
from provision.checks.check import Command
from provision.remote import held_locks
from provision.remote.reach import partitions
from provision.validate.plays import node_commands
from tests.support import modules
from tests.support.processes import alive, line_of, until
from tests.support.sshd import Sshd

CONTROLLER = """\
import json, sys
from provision import paths
from provision.validate.plays import node_commands
hosts = json.loads(sys.argv[1])
try:
    node_commands.played(paths.PLAYBOOKS / sys.argv[2], hosts, print, forks=5)
except KeyboardInterrupt:
    sys.exit(130)
"""
SECONDS = 10.0  # by then everything on the node has ended


def commands(folder: Path, *, stubborn: bool = False) -> list[dict[str, Any]]:
    """Return a program with a child, one that runs next to it, and one that must never start."""
    ignored = "trap '' TERM; " if stubborn else ""
    tree = f"{ignored}sleep 300 & echo $$ $! > {folder}/began; wait; wait"
    return [
        {"name": "first", "argv": ["sh", "-c", tree], "deadline": 300.0},
        {"name": "beside", "argv": ["sleep", "301"], "deadline": 300.0, "beside": "first"},
        {"name": "second", "argv": ["touch", f"{folder}/second"], "deadline": 300.0},
    ]


def pids(folder: Path) -> list[int]:
    return [int(word) for word in (folder / "began").read_text().split()]


@pytest.fixture(params=["validate.yml", "checks.yml"])
def controller(
    own_sshd: Sshd, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a controller process working on this node, in a single step or in the first of two checks."""
    variables = dict(own_sshd.node("gpu-01", ansible_become=False).variables)
    variables |= {"gpuprov_commands": commands(tmp_path), "gpuprov_task_timeout": 300}
    *first, second = [Command(**{**one, "argv": tuple(one["argv"])}) for one in commands(tmp_path)]
    both = {"first": node_commands.programs(first), "second": node_commands.programs([second])}
    variables["gpuprov_checks"] = node_commands.checks(both)
    words = [CONTROLLER, json.dumps({"gpu-01": variables}), request.param]
    with subprocess.Popen([sys.executable, "-c", *words]) as process:
        try:
            line_of(tmp_path / "began", process)
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_programs_end_and_no_other_starts_when_the_controller_is_interrupted_or_killed(
    controller: subprocess.Popen[bytes], tmp_path: Path, number: signal.Signals
) -> None:
    assert all(map(alive, pids(tmp_path)))
    controller.send_signal(number)
    until(lambda: not any(map(alive, pids(tmp_path))), SECONDS)
    assert controller.wait(SECONDS) == (-number if number == signal.SIGKILL else 130)
    time.sleep(1.5)
    assert not (tmp_path / "second").exists()


def lock_of(path: Path, run: str) -> None:
    path.write_text(json.dumps({"run": run}))


@pytest.mark.parametrize(
    ("after", "stubborn", "ours"),
    [
        ("", False, "run-1"),
        ("", True, "run-1"),
        ("run-2", False, "run-1"),
        ("run-1", False, "run-1"),
        ("run-2", False, "run-3"),
    ],
    ids=["free", "free and stubborn", "taken", "kept", "of another run, whose lock was broken"],
)
def test_a_node_that_the_run_gave_up_is_left_alone(
    tmp_path: Path, after: str, stubborn: bool, ours: str
) -> None:
    lock = tmp_path / "lock"
    lock_of(lock, "run-1")
    first, beside, second = commands(tmp_path, stubborn=stubborn)
    give_up = f"; sleep 1.5; echo '{json.dumps({'run': after})}' > {lock}; sleep 4" if after else ""
    script = first["argv"][2].replace("; wait; wait", give_up or f"; sleep 1.5; rm {lock}; sleep 60")
    before = f"module.LOCK = {str(lock)!r}; module.GRACE = 0.5"
    began = time.monotonic()
    answer = modules.Host(tmp_path / "host").module(
        "gpuprov_run",
        before=before,
        lock=ours,
        commands=[{**first, "argv": ["sh", "-c", script]}, beside, second],
    )
    until(lambda: not any(map(alive, pids(tmp_path))), SECONDS)
    assert time.monotonic() - began < 2 * SECONDS
    kept = after == "run-1" or ours != "run-1"
    assert (tmp_path / "second").exists() is kept
    assert answer.get("failed", False) is not kept
    assert kept or "the run no longer holds this node" in answer["msg"]


def test_the_module_is_given_the_run_that_holds_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    played: dict[str, Any] = {}
    monkeypatch.setattr(partitions, "run_sharded", lambda _book, hosts, **_: played.update(hosts) or {})
    with held_locks.lent(lambda nodes: {"run": "run-1", "nodes": [n for n in nodes if n == "gpu-01"]}):
        node_commands.play(Path("x.yml"), {"gpu-01": {}, "gpu-02": {}}, lambda *_: None)
    assert {name: one["gpuprov_lock_run"] for name, one in played.items()} == {
        "gpu-01": "run-1",
        "gpu-02": "",
    }


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_module_that_is_ended_takes_its_programs_with_it(tmp_path: Path, number: signal.Signals) -> None:
    asked = json.dumps({"commands": commands(tmp_path)})
    words = [sys.executable, "-c", modules._PROGRAM, str(paths.MODULES / "gpuprov_run.py"), asked, ""]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as module:
        line_of(tmp_path / "began", module)
        module.send_signal(number)
        until(lambda: not any(map(alive, pids(tmp_path))), SECONDS)
        assert module.wait(SECONDS) == 1
    assert not (tmp_path / "second").exists()
