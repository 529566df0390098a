"""Twelve machines in waves: where faults stop, the state after a killed controller, reboots in order.

The tests run in the order written: each continues where the previous one stopped, as in an operator's day.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.lab_nodes import running_lab

if TYPE_CHECKING:
    from tests.lab.lab_nodes import Lab, LabNode

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

NODES = tuple(NodeSpec(f"gpu-{number:02d}", "h100-sxm" if number <= 8 else "l40s") for number in range(1, 13))
# One small role: these tests are about order, not about software.
ROLE = [
    *("--set", "gpuprov_roles=[host_settings]"),
    *("--set", "host_settings_time_sync=none"),
    *("--set", "host_settings_cpu_governor=null"),
]
# The role writes a file there, which fails if this is not a folder.
BREAK = "sudo mv /etc/sysctl.d /etc/sysctl.away && sudo touch /etc/sysctl.d"
MEND = "sudo rm /etc/sysctl.d && sudo mv /etc/sysctl.away /etc/sysctl.d"
MADE = "ls /etc/sysctl.d/*gpuprov* 2>/dev/null"
BOOTED = 'date -d "$(systemctl show --value -p UserspaceTimestamp)" +%s'


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab("waves", NODES, tmp_path_factory.mktemp("lab") / "lab.yml") as running:
        on_all(running, lambda node: node.run("sudo touch /run/reboot-required"))
        yield running


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def on_all(lab: Lab, action: Callable[[LabNode], Any]) -> dict[str, Any]:
    with ThreadPoolExecutor(4) as pool:
        return dict(zip([node.name for node in lab.nodes], pool.map(action, lab.nodes), strict=True))


def start(runs: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "provision.cli", "up", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "GPUPROV_RUNS": str(runs)},
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=600)
    return process.returncode, said


def newest(runs: Path) -> Path:
    return max(runs.glob("*-up"))


def records(run: Path, name: str) -> list[dict[str, Any]]:
    path = run / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def ends(runs: Path) -> dict[str, str]:
    return {record["node"]: record["status"] for record in records(newest(runs), "outcomes")}


def begun(run: Path) -> list[tuple[str, list[str]]]:
    return [(each["kind"], each["nodes"]) for each in records(run, "waves") if each["what"] == "begins"]


def names(*numbers: int) -> list[str]:
    return [f"gpu-{number:02d}" for number in numbers]


def test_a_fault_on_the_canary_stops_after_the_canaries(lab: Lab, runs: Path) -> None:
    lab.node("gpu-01").run(BREAK)
    code, said = finish(start(runs, str(lab.inventory), "--wave", "7", *ROLE))
    assert code == ExitCode.UNHEALTHY, said
    assert begun(newest(runs)) == [("canary", names(1, 9))], said
    assert ends(runs) == {
        "gpu-01": "failed",
        "gpu-09": "done",
        **dict.fromkeys(names(2, 3, 4, 5, 6, 7, 8, 10, 11, 12), "not attempted"),
    }, said
    assert "NOT ATTEMPTED: gpu-[02-08,10-12]" in said
    assert "the canary gpu-01 failed: no other wave was started" in said
    assert f"gpuprov up --resume {newest(runs)}" in said
    made = on_all(lab, lambda node: node.run(MADE, check=False).stdout.strip())
    assert [name for name, file in made.items() if file] == ["gpu-09"], made
    locks = on_all(lab, lambda node: node.run("sudo ls /run/gpuprov/private/lock", check=False).returncode)
    assert 0 not in locks.values(), locks


def test_a_fault_on_node_seven_of_the_second_wave_stops_there(lab: Lab, runs: Path) -> None:
    lab.node("gpu-01").run(MEND)
    lab.node("gpu-08").run(BREAK)
    code, said = finish(start(runs, "--resume"))
    assert code == ExitCode.UNHEALTHY, said
    # The other kind had its canary in the previous run.
    assert begun(newest(runs)) == [("canary", names(1)), ("batch", names(2, 3, 4, 5, 6, 7, 8))], said
    assert ends(runs) == {
        "gpu-09": "as declared",
        **dict.fromkeys(names(1, 2, 3, 4, 5, 6, 7), "done"),
        "gpu-08": "failed",
        **dict.fromkeys(names(10, 11, 12), "not attempted"),
    }, said
    made = on_all(lab, lambda node: node.run(MADE, check=False).stdout.strip())
    assert [name for name, file in made.items() if not file] == names(8, 10, 11, 12), made


def test_a_killed_controller_is_resumed_and_nobody_else_gets_in_between(lab: Lab, runs: Path) -> None:
    lab.node("gpu-08").run(MEND)
    before = set(runs.glob("*-up"))
    process = start(runs, "--resume")
    end = time.monotonic() + 300
    while not (new := set(runs.glob("*-up")) - before) or not records(new.pop(), "events"):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    killed = newest(runs)
    assert begun(killed) == [("batch", names(8, 10, 11, 12))]
    assert len(records(killed, "outcomes")) == 8  # nodes that were as declared; none of the four had finished

    code, said = finish(start(runs, str(lab.inventory), "--nodes", "gpu-08,gpu-10", *ROLE))
    assert code == ExitCode.ERROR, said
    assert f"(process {process.pid})" in said
    assert killed.name in said

    code, said = finish(start(runs, "--resume", str(killed)))
    assert code == ExitCode.OK, said
    assert set(ends(runs).values()) <= {"done", "as declared"}, said
    made = on_all(lab, lambda node: node.run(MADE, check=False).stdout.strip())
    assert all(made.values()), made


def test_nobody_reboots_outside_its_wave_and_nobody_twice(lab: Lab, runs: Path) -> None:
    """Check boot ids and times in the run folders, and the machines' own clocks."""
    windows: dict[str, list[tuple[float, float, int]]] = {}
    seen: dict[str, list[str]] = {name: [] for name in names(*range(1, 13))}
    count = 0
    for run in sorted(runs.glob("*-up")):
        for fact in records(run, "facts"):
            boot = fact["facts"].get("boot.id")
            if boot and boot not in seen[fact["node"]]:
                seen[fact["node"]].append(boot)
        noted = records(run, "waves")
        for begins in (each for each in noted if each["what"] == "begins"):
            count += 1
            over = [e for e in noted if e["what"] == "ends" and e["wave"] == begins["wave"]]
            stop = seconds(over[0]["time"]) if over else (run / "events.jsonl").stat().st_mtime + 60
            for node in begins["nodes"]:
                windows.setdefault(node, []).append((seconds(begins["time"]), stop, count))
    for mine in windows.values():  # a killed wave wrote no end: it ends when the node's next one begins
        mine.sort()
        later = [begins for begins, _, _ in mine[1:]] + [math.inf]
        mine[:] = [(a, min(stop, b), n) for (a, stop, n), b in zip(mine, later, strict=True)]
    booted = on_all(lab, lambda node: float(node.run(BOOTED).stdout.strip()))
    now = on_all(lab, lambda node: node.boot_id())
    told = []
    for name, boots in seen.items():
        assert len(boots) == 2, f"{name} was seen in the boots {boots}: once rebooted"
        assert boots[-1] == now[name], name
        during = [number for begins, stop, number in windows[name] if begins - 1 <= booted[name] <= stop + 1]
        assert len(during) == 1, (name, booted[name], windows[name])
        told.append((booted[name], during[0], name))
    order = [number for _, number, _ in sorted(told)]
    assert order == sorted(order), f"reboots of two waves are mixed: {sorted(told)}"


def seconds(when: str) -> float:
    return datetime.datetime.fromisoformat(when).timestamp()
