"""What `gpuprov up` costs on nodes that need two roles, against bare ansible-playbook with the same roles.

Nodes are light ones with roots of their own (light_nodes.py: needs root), fresh for each contender. They lack
what host_settings (kernel parameters) and package_lock (pins of apt) declare. Bare is one ansible-playbook
with the same playbook, roles, variables and settings, and is given what gpuprov finds out itself
(gpuprov_node). It looks neither before nor afterwards, so `up` is compared with the same by hand as well:
`gpuprov drift`, bare, `gpuprov drift`. The last one shows that bare came to what was declared.

`up` is asked for one wave without canaries: that is what bare does. What the usual waves add stands beside
it. Node CPU is in no figure of the controller, but on this machine nodes and controller share the cores.

    sudo python -m benchmarks.bench_roles [--nodes 100] [--rounds 5]
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.costs import Cost, cost_of  # noqa: E402
from benchmarks.light_nodes import LightFleet, light_nodes  # noqa: E402
from benchmarks.results import Finding, Options, Result, Rounds, Table, alone, number  # noqa: E402
from benchmarks.tree_watch import ANSIBLE, OURS, WORKER, Seen, watched  # noqa: E402
from provision import paths  # noqa: E402
from provision.desired import inventory  # noqa: E402
from provision.drift import assess  # noqa: E402
from provision.errors import ExitCode  # noqa: E402
from provision.remote.ansible import handover  # noqa: E402
from provision.runs.store import RunFolder, latest  # noqa: E402

ROLES = ("host_settings", "package_lock")
FORKS = 50  # of `up`, where nothing else is asked for
PARTS = (10, 4, 1)  # so many times fewer nodes: in rounds with the fewest, once with the others
ROUNDS = 3  # each is minutes
_PINNED = ("bash", "coreutils", "dpkg", "openssh-server", "util-linux")  # at the version that is installed
_LIMIT = 7200.0  # seconds
_PATIENT = ("--connections", "16", "--timeout", "600")  # all nodes share the cores of this machine
_ONE_WAVE = ("--no-canary", "--wave", "100%")


def declared() -> dict[str, Any]:
    """What the nodes promise: as this machine has it, but written nowhere yet."""
    command = ["dpkg-query", "--show", "--showformat", "${Package} ${Version}\n", *_PINNED]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"nodes are measured on Debian and Ubuntu: {error}") from None
    return {
        "gpuprov_roles": list(ROLES),
        "host_settings_sysctls": {"vm.swappiness": Path("/proc/sys/vm/swappiness").read_text().strip()},
        "host_settings_cpu_governor": None,
        "host_settings_numa_balancing": None,
        "host_settings_time_sync": "none",
        "package_lock_versions": dict(line.split() for line in said.splitlines()),
    }


@dataclass(frozen=True)
class Phases:
    """Seconds of one `up`: until its first wave began (start, look, locks), Ansible with its hooks, the looks
    afterwards, and what came after the last wave. `events`: how many were written down."""

    look: float
    play: float
    again: float
    end: float
    events: int

    @classmethod
    def of(cls, run: RunFolder, wall: float) -> Phases:
        """From the times in the run folder."""
        started = _moment(str(run.meta()["started"]))
        events = sorted(_moment(event["time"]) for event in run.read("events"))
        look = play = again = 0.0
        begins, last = started, started
        for wave in run.read("waves"):
            if wave["what"] == "begins":
                begins = _moment(wave["time"])
                look += begins - last
            elif wave["what"] == "ends":
                last = _moment(wave["time"])
                played = max((at for at in events if begins <= at <= last), default=begins)
                play += played - begins
                again += last - played
        return cls(look, play, again, wall - (last - started), len(events))


def _moment(text: str) -> float:
    return datetime.datetime.fromisoformat(text).timestamp()


@dataclass(frozen=True)
class Played:
    """One contender on one fleet."""

    cost: Cost
    seen: Seen
    phases: Phases | None = None
    looks: float = 0.0  # controller CPU of both drifts around bare


class Course:
    """Runs contenders, each on a fleet of its own."""

    def __init__(self, options: Options) -> None:
        self._folder = options.folder
        self._variables = declared()
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "GPUPROV_RUNS": str(options.folder / "runs"),
        }
        with light_nodes(1, variables=self._variables, own_root=True) as fleet:
            known = assess.assess(inventory.load(fleet.inventory), {})
            if known.unreachable or not all(known.drifts.values()):
                raise SystemExit(f"a fresh node is not as expected: {known.unreachable or 'nothing differs'}")
            (self._node,) = known.described.values()

    def up(self, count: int, *words: str) -> Played:
        with self._fresh(count) as fleet, watched(fleet.pid) as seen:
            cost = self._gpuprov(ExitCode.OK, "up", fleet, "--yes", *words)
            phases = Phases.of(latest("up", self._folder / "runs"), cost.wall)
        return Played(cost, seen, phases)

    def bare(self, count: int) -> Played:
        with self._fresh(count) as fleet:
            before = self._gpuprov(ExitCode.DRIFT, "drift", fleet)
            with watched(fleet.pid) as seen, handover.private_folder() as folder:
                cost = cost_of(
                    self._playbook(fleet),
                    environment=handover.environment(folder, FORKS),
                    timeout=_LIMIT,
                )
            _expect(cost, 0, "ansible-playbook")
            after = self._gpuprov(ExitCode.OK, "drift", fleet)
        return Played(cost, seen, looks=before.controller + after.controller)

    def _fresh(self, count: int) -> contextlib.AbstractContextManager[LightFleet]:
        return light_nodes(count, variables=self._variables, own_root=True)

    def _playbook(self, fleet: LightFleet) -> Sequence[str]:
        document = json.loads(fleet.inventory.read_text())
        document["all"]["vars"]["gpuprov_node"] = self._node
        inventory_file = fleet.folder / "bare.json"
        inventory_file.write_text(json.dumps(document))
        command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(inventory_file)]
        return [*command, "--forks", str(FORKS), "--tags", ",".join(ROLES), str(paths.PLAYBOOKS / "up.yml")]

    def _gpuprov(self, code: int, verb: str, fleet: LightFleet, *words: str) -> Cost:
        line = [sys.executable, "-m", "provision.cli", verb, str(fleet.inventory), *_PATIENT, *words]
        cost = cost_of(line, environment=self._environment, timeout=_LIMIT)
        _expect(cost, code, f"gpuprov {verb}")
        return cost


def _expect(cost: Cost, code: int, command: str) -> None:
    if cost.code != code:
        raise SystemExit(f"{command} ended with {cost.code}:\n{(cost.output + cost.trouble)[-3000:]}")


def measure(options: Options) -> Iterator[Finding]:
    """Rounds on few nodes, then once with more and with all of them, and in the usual waves."""
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    course = Course(options)
    sizes = sorted({max(2, options.nodes // part) for part in PARTS[-1:] * options.quick or PARTS})
    played: dict[int, tuple[Played, Played]] = {}
    rounds = Rounds()
    for _ in range(min(options.rounds, ROUNDS)):
        bare, ours = played[sizes[0]] = course.bare(sizes[0]), course.up(sizes[0], *_ONE_WAVE)
        rounds.add("bare", bare.cost.controller)
        rounds.add("by hand", bare.cost.controller + bare.looks)
        rounds.add("up", ours.cost.controller)
        rounds.add("bare, wall", bare.cost.wall)
        rounds.add("up, wall", ours.cost.wall)
    what = f"up, {sizes[0]} nodes that need two roles, in one wave"
    cpu = f"bare: {number(rounds.median('bare'))} s of CPU"
    by_hand = "`gpuprov drift`, bare ansible-playbook, `gpuprov drift`"
    yield Result("", f"{what}, controller CPU", "bare ansible-playbook", rounds.ratios("up", "bare"), cpu)
    yield Result("", f"{what}, controller CPU", by_hand, rounds.ratios("up", "by hand"))
    yield Result("", f"{what}, wall time", "bare ansible-playbook", rounds.ratios("up, wall", "bare, wall"))
    for size in sizes[1:]:
        played[size] = course.bare(size), course.up(size, *_ONE_WAVE)
    yield _growth(played)
    if len(sizes) > 1:
        yield _memory({size: ours for size, (_, ours) in played.items()})
    some = sizes[len(sizes) // 2]  # waves are one more run
    yield _time({"in one wave": played[some][1], "in waves, canary first": course.up(some)}, some)


def _growth(played: Mapping[int, tuple[Played, Played]]) -> Table:
    head = (
        "nodes",
        "up: CPU s",
        "its own process",
        "ansible-playbook's",
        "bare: CPU s",
        "up: wall s",
        "bare: wall s",
    )
    head += ("gpuprov: peak MB", "its ansible-playbook", "bare ansible-playbook")
    rows = []
    for size, (bare, ours) in sorted(played.items()):
        spent = (ours.cost.controller, ours.seen.cpu.get(OURS, 0.0), ours.seen.cpu.get(ANSIBLE, 0.0))
        walls = (bare.cost.controller, ours.cost.wall, bare.cost.wall)
        peaks = (ours.seen.memory.get(OURS, 0.0), _ansible(ours.seen), _ansible(bare.seen))
        rows.append((str(size), *map(number, (*spent, *walls, *peaks))))
    notes = (
        "`its own process` and `ansible-playbook's` are parts of `up: CPU s`: the one process of gpuprov, "
        "and the main ones of Ansible, without its workers and ssh.",
        "Peaks are of the largest process of that kind, Ansible's workers among them.",
    )
    return Table("Two roles: controller, one run each", head, tuple(rows), notes)


def _ansible(seen: Seen) -> float:
    return max(seen.memory.get(ANSIBLE, 0.0), seen.memory.get(WORKER, 0.0))


def _memory(played: Mapping[int, Played]) -> Result:
    few, many = (played[size] for size in (min(played), max(played)))
    peaks = [one.seen.memory.get(OURS, 0.0) for one in (few, many)]
    events = [one.phases.events if one.phases else 0 for one in (few, many)]
    what = f"peak memory of gpuprov's own process, {max(played)} nodes"
    note = f"{number(peaks[0])} MB with {events[0]:,} events, {number(peaks[1])} MB with {events[1]:,}"
    return Result("", what, f"{min(played)} nodes", (peaks[1] / peaks[0],), note)


def _time(played: Mapping[str, Played], size: int) -> Table:
    head = ("up", "wall s", "CPU s", "look, lock", "play", "look again", "rest", "nodes at work", "at once")
    rows = []
    for name, one in played.items():
        if one.phases is not None:
            shares = (one.phases.look, one.phases.play, one.phases.again, one.phases.end)
            parts = [f"{share / one.cost.wall:.0%}" for share in shares]
            busy = (f"{one.seen.share:.0%}", number(one.seen.at_once))
            rows.append((name, number(one.cost.wall), number(one.cost.controller), *parts, *busy))
    notes = (
        "`nodes at work`: part of the wall time in which at least one node ran a program; `at once`: how "
        "many did, then.",
    )
    return Table(f"Where the time of `up` goes, {size} nodes that need two roles", head, tuple(rows), notes)


if __name__ == "__main__":
    sys.exit(alone(measure, __doc__))
