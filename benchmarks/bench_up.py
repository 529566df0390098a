"""The cost of running a playbook through our runner, compared with bare ansible-playbook.

Hosts are names on this machine (connection `local`), so the nodes' own CPU counts on both sides. Memory is
that of our own process, with ten times the tasks. Several processes are held to their goal only if one leaves
cores idle, since more processes cannot speed up a fully used machine.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.costs import ROOT
from benchmarks.results import Options, Result, Rounds, number
from provision.remote.ansible import handover
from provision.remote.ansible.runner import run_playbook
from provision.remote.reach.partitions import run_sharded
from provision.runs.store import RunFolder

MOST = 20  # hosts: each of their tasks takes 0.1 s of two cores
TASKS = 10
MANY = 600  # hosts for the comparison of several processes
IDLE = 0.2  # share of the cores: below it another process cannot help

Hosts = dict[str, dict[str, str]]


def playbook(folder: Path, tasks: int, size: int) -> Path:
    """Write a play of `tasks` tasks that print `size` bytes each, or debug tasks if size is 0."""
    path = folder / f"play-{tasks}-{size}.yml"
    say = {"ansible.builtin.command": {"argv": ["head", "-c", str(size), "/dev/zero"]}, "changed_when": False}
    task = {"name": "Say", **(say if size else {"ansible.builtin.debug": {"msg": "said"}})}
    path.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [task] * tasks}]))
    return path


def local_hosts(count: int) -> Hosts:
    variables = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    return {f"n{i:04}": variables for i in range(count)}


def cost_of(work: Callable[[], None]) -> float:
    """Return the CPU seconds of this process and all its children."""
    before = sum(os.times()[:4])
    work()
    return sum(os.times()[:4]) - before


def bare(play: Path, hosts: Hosts) -> None:
    """Run plain ansible-playbook with our runner's environment and Ansible's default waiting."""
    with handover.private_folder() as folder:
        inventory = handover.write_inventory(folder, hosts)
        environment = handover.environment(folder, 25)
        (folder / "ansible.cfg").write_text("")
        subprocess.run(
            ["ansible-playbook", "-i", str(inventory), "--forks", "25", str(play)],
            env=environment,
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=1800,
        )


def ours(play: Path, hosts: Hosts, runs: Path) -> None:
    run = RunFolder.create("up", {}, runs)

    def note(event: object) -> None:
        run.append("events", {"event": str(event)[:200]})

    outcomes = run_playbook(play, hosts, on_event=note)
    assert all(outcome.status == "ok" for outcome in outcomes.values())


def at_once(play: Path, hosts: Hosts, processes: int) -> None:
    places = [None] * processes
    outcomes = run_sharded(play, hosts, on_event=lambda _event: None, forks=50, places=places)
    assert all(outcome.status == "ok" for outcome in outcomes.values())


def memory(play: Path, hosts: Hosts) -> int:
    """Return the peak memory in KiB of a fresh process that runs `play` through our runner."""
    script = (
        "import json, sys; from pathlib import Path;"
        "from provision.remote.ansible.runner import run_playbook;"
        "run_playbook(Path(sys.argv[1]), json.loads(sys.argv[2]), on_event=lambda event: None);"
        "print(Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])"
    )
    command = [sys.executable, "-c", script, str(play), json.dumps(hosts)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=1800)
    return int(done.stdout)


def measure(options: Options) -> Iterator[Result]:
    """Measure CPU with small and large results, memory of ten times the tasks, and several processes."""
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    tasks = 2 if options.quick else TASKS
    hosts = local_hosts(min(options.nodes, MOST))
    for size, goal in ((100, "up.ansible"), (20_000, "up.large")):
        yield from _against_bare(options, goal, hosts, tasks, size)
    yield _memory(options, hosts, tasks)
    yield from _processes(options)


def _against_bare(options: Options, goal: str, hosts: Hosts, tasks: int, size: int) -> Iterator[Result]:
    play = playbook(options.folder, tasks, size)
    cpu = Rounds()
    for _ in range(options.rounds):
        for name, work in (
            ("bare", lambda: bare(play, hosts)),
            ("ours", lambda: ours(play, hosts, options.folder)),
        ):
            cpu.add(name, cost_of(work))
    what = f"{len(hosts)} hosts x {tasks} tasks with results of {size:,} B"
    note = f"bare: {number(cpu.median('bare'))} s of CPU"
    yield Result(goal, f"{what}, CPU", "bare ansible-playbook", cpu.ratios("ours", "bare"), note)


def _memory(options: Options, hosts: Hosts, tasks: int) -> Result:
    few = memory(playbook(options.folder, tasks, 20_000), hosts)
    many = memory(playbook(options.folder, tasks * 10, 20_000), hosts)
    events = len(hosts) * tasks * 9 * 2
    what = f"memory for each further event, {tasks} and {tasks * 10} tasks of 20 KB on {len(hosts)} hosts"
    note = f"{number(few / 1024)} and {number(many / 1024)} MB"
    return Result("up.memory", what, "", (max(0.0, (many - few) * 1024 / events),), note)


def idle_while(work: Callable[[], None]) -> tuple[float, float]:
    """Return (seconds that `work` took, share of all cores that stayed idle meanwhile)."""
    before, started = _jiffies(), time.perf_counter()
    work()
    wall, after = time.perf_counter() - started, _jiffies()
    return wall, (after[1] - before[1]) / max(1, after[0] - before[0])


def _jiffies() -> tuple[int, int]:
    """Return the (total, idle) jiffies of all cores since boot."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(fields), fields[3] + fields[4]


def _processes(options: Options) -> Iterator[Result]:
    """Compare the task rate of each of several processes with that of a single process."""
    hosts = local_hosts(8 if options.quick else max(options.nodes, MANY))
    play = playbook(options.folder, 1, 0)
    cores = len(os.sched_getaffinity(0))
    _, idle = idle_while(lambda: at_once(play, hosts, 1))
    many = max(2, min(cores, int(1 / max(1 - idle, 1 / cores))))
    rates, idles = Rounds(), list[float]()
    for _ in range(1 if options.quick else max(1, options.rounds // 2)):
        for count in (1, many):
            wall, idle = idle_while(partial(at_once, play, hosts, count))
            rates.add(str(count), len(hosts) / wall)
            idles += [idle] if count == 1 else []
    full = statistics.median(idles) < IDLE
    what = f"{len(hosts)} hosts, {many} processes: task-hosts a second, divided by {many}"
    ratios = tuple(value / many for value in rates.ratios(str(many), "1"))
    why = "one fills the cores" if full else "there are too few hosts" if options.quick else ""
    yield Result("up.processes", what, "one process", ratios, unproven=why)
