"""What running a playbook through our runner costs, as a ratio to bare ansible-playbook in the same run.

Hosts are names on this machine (connection `local`), so the nodes' own CPU is in both sides. Goals: CPU at
most 1.05x bare ansible-playbook, 1.2x with results of 20 KB, and memory of our own process flat per event.

    python -m benchmarks.bench_up [--nodes 20] [--rounds 5]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.results import Finding, Options, Result, Rounds, alone  # noqa: E402
from provision import ansible_handover as handover  # noqa: E402
from provision.runner import run_playbook  # noqa: E402
from provision.store import RunFolder  # noqa: E402

MOST = 20  # hosts: in Ansible, each costs seconds
TASKS = 10


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


def measure(options: Options) -> Iterator[Finding]:
    hosts = local_hosts(2 if options.quick else min(options.nodes, MOST))
    tasks = 2 if options.quick else TASKS
    # ansible-playbook is looked up on PATH, by both.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for goal, size in (("up.ansible", 100), ("up.large", 20_000)):
        play = playbook(options.folder, tasks, size)
        costs = Rounds()
        for _ in range(options.rounds):
            costs.add("bare", cpu_of(bare, play, hosts)[1])
            costs.add("ours", cpu_of(ours, play, hosts, options.folder)[1])
        what = f"{len(hosts)} local hosts, {tasks} tasks, results of {size} B"
        yield Result(goal, what, "bare `ansible-playbook`", costs.ratios("ours", "bare"))
    few = memory(playbook(options.folder, 1, 20_000), hosts)
    many = memory(playbook(options.folder, tasks * 2, 20_000), hosts)
    events = len(hosts) * (tasks * 2 - 1) * 2
    what = f"peak after {events} events more than after the first few"
    yield Result("up.memory", what, "", (max(0, many - few) * 1024 / events,))


if __name__ == "__main__":
    sys.exit(alone(measure, __doc__ or ""))
