"""What running a playbook through our runner costs, as a ratio to bare ansible-playbook in the same run.

Hosts are names on this machine (connection `local`), so the nodes' own CPU is in both sides. Goals: CPU at
most 1.05x bare ansible-playbook, 1.2x with results of 20 KB, and memory of our own process flat per event.

    python benchmarks/bench_up.py [--hosts 20] [--tasks 10] [--repeats 5]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from provision import ansible_handover as handover  # noqa: E402
from provision.runner import run_playbook  # noqa: E402
from provision.store import RunFolder  # noqa: E402


def playbook(folder: Path, tasks: int, size: int) -> Path:
    path = folder / f"play-{tasks}-{size}.yml"
    task = {"name": "Say", "ansible.builtin.command": {"argv": ["head", "-c", str(size), "/dev/zero"]}}
    task["changed_when"] = False
    path.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [task] * tasks}]))
    return path


def local_hosts(number: int) -> dict[str, dict[str, str]]:
    variables = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    return {f"n{i:04}": variables for i in range(number)}


def cpu_of(work: Callable[..., None], *arguments: object) -> tuple[float, float]:
    """(wall, CPU) seconds of this process and all its children."""
    before, started = os.times(), time.perf_counter()
    work(*arguments)
    after = os.times()
    return time.perf_counter() - started, sum(after[:4]) - sum(before[:4])


def bare(play: Path, hosts: dict[str, dict[str, str]]) -> None:
    """ansible-playbook alone, with the settings our runner gives it."""
    with handover.private_folder() as folder:
        inventory = handover.write_inventory(folder, hosts)
        subprocess.run(
            ["ansible-playbook", "-i", str(inventory), "--forks", "25", str(play)],
            env=handover.environment(folder, 25),
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=600,
        )


def ours(play: Path, hosts: dict[str, dict[str, str]], runs: Path) -> None:
    run = RunFolder.create("up", {}, runs)

    def note(event: object) -> None:
        run.append("events", {"event": str(event)[:200]})

    outcomes = run_playbook(play, hosts, on_event=note)
    assert all(outcome.status == "ok" for outcome in outcomes.values())


def memory(play: Path, hosts: dict[str, dict[str, str]]) -> int:
    """Peak memory in KiB of a fresh process that runs `play` through our runner."""
    script = (
        "import json, resource, sys; from pathlib import Path; from provision.runner import run_playbook;"
        "run_playbook(Path(sys.argv[1]), json.loads(sys.argv[2]), on_event=lambda event: None);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    command = [sys.executable, "-c", script, str(play), json.dumps(hosts)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=600)
    return int(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=20)
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    hosts = local_hosts(options.hosts)
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for size, goal in ((100, 1.05), (20_000, 1.2)):
            play = playbook(folder, options.tasks, size)
            pairs = []
            for _ in range(options.repeats):  # taken in turns, so that both see the same machine
                pairs.append((cpu_of(bare, play, hosts), cpu_of(ours, play, hosts, folder)))
            wall = statistics.median(ours_[0] / bare_[0] for bare_, ours_ in pairs)
            cpu = statistics.median(ours_[1] / bare_[1] for bare_, ours_ in pairs)
            floor = statistics.median(bare_[1] for bare_, _ in pairs)
            what = f"{options.hosts} hosts x {options.tasks} tasks, {size} B results"
            print(
                f"{what:44} bare {floor:6.2f} s CPU · ours {cpu:5.2f}x CPU {wall:5.2f}x wall (goal {goal}x)"
            )
        few = memory(playbook(folder, 1, 20_000), hosts)
        many = memory(playbook(folder, options.tasks * 2, 20_000), hosts)
        events = options.hosts * (options.tasks * 2 - 1) * 2
        print(f"memory: {few} KiB after few events, {(many - few) * 1024 / events:.0f} B for each one more")


if __name__ == "__main__":
    main()
