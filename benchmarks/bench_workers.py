"""What workers take off the controller: `gpuprov drift` of the same nodes with two workers and without.

Workers are SSH servers of this machine with this gpuprov, each for every second node. Both inventories are
asked in turns, first about a few nodes and then about all of them: between the two lies what each node more
costs, apart from the start of Python on the controller and on the workers. Both must read the same facts.
Controller and workers share one machine here: wall time says nothing of a fleet's, and is not shown.

    python -m benchmarks.bench_workers [--nodes 100] [--rounds 5]
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.costs import cost_of
from benchmarks.nodes import FailedError, Nodes, fleet, loopback
from benchmarks.results import Finding, Options, Result, Rounds, Table, alone, ratios, spread

ROOT = Path(__file__).resolve().parent.parent
_TIME = re.compile(r"(\d+)m([\d.]+)s")
_FEW = 2  # nodes, one for each worker: little more than the start of everything
# sshd does not wait for a session that its client has left: what a worker cost it says itself. Each `times`
# is two lines, of the shell and of what it ran.
_PYTHON = """\
#!/bin/sh
trap '' HUP
echo begun >> {spent}
PYTHONPATH={root} {python} "$@"
times >> {spent}
"""
_PATIENT = ("--connections", "16", "--timeout", "600")  # all nodes share the cores of this machine
ALONE, WORKERS = "the controller alone", "two workers"


def measure(options: Options) -> Iterator[Finding]:
    """Ask both inventories about a few nodes and about all, in turns."""
    if options.nodes <= _FEW:
        raise FailedError(f"--nodes {options.nodes}: what a node more costs needs more than {_FEW} of them")
    spent = options.folder / "spent"
    with fleet(options.nodes) as nodes, loopback(2) as workers:
        asked = {
            ALONE: nodes.inventory(_new(options.folder, "alone"), gpuprov_roles=[]),
            WORKERS: with_workers(nodes, workers, _new(options.folder, "workers"), spent),
        }
        few, runs = nodes.names[:_FEW], options.folder / "runs"
        controller, away = Rounds(), Rounds()
        for _ in range(options.rounds):
            for names in (few, nodes.names):
                found = {}
                for who, inventory in asked.items():
                    mine, theirs = drift(inventory, names, workers, runs, spent)
                    found[who] = observed(max(runs.glob("*-drift")), names)
                    controller.add(f"{who} {len(names)}", mine)
                    away.add(f"{who} {len(names)}", theirs)
                if found[ALONE] != found[WORKERS]:
                    raise FailedError(f"workers found something else: {_difference(found)}")
        if max(away.costs[f"{ALONE} {options.nodes}"]) > 0.0:
            raise FailedError("the workers did something where there are none")
        yield from _findings(options.nodes, nodes.kind, controller, away)


def _new(folder: Path, name: str) -> Path:
    place = folder / name
    place.mkdir()
    return place


def with_workers(nodes: Nodes, workers: Nodes, folder: Path, spent: Path) -> Path:
    """The inventory of the same nodes, dealt like cards to the workers, who write into `spent` what it cost
    them."""
    path = nodes.inventory(folder, gpuprov_roles=[])
    inventory = json.loads(path.read_text())
    python = folder / "python"
    python.write_text(_PYTHON.format(root=ROOT, python=sys.executable, spent=spent))
    python.chmod(0o755)
    ways = {f"worker-{at}": {"ansible_host": there} for at, there in enumerate(workers.addresses.values())}
    for host, worker in zip(inventory["all"]["hosts"].values(), itertools.cycle(ways), strict=False):
        host["gpuprov_worker"] = worker
    common = "-F none -o IdentitiesOnly=yes -o IdentityAgent=none -o GlobalKnownHostsFile=/dev/null"
    shared = {
        "ansible_user": workers.user,
        "ansible_port": workers.port,
        "ansible_ssh_private_key_file": str(workers.key),
        "ansible_ssh_common_args": f"{common} -o UserKnownHostsFile={workers.known_hosts}",
        "gpuprov_worker_python": str(python),
    }
    inventory["all"]["children"] = {"gpuprov_workers": {"hosts": ways, "vars": shared}}
    path.write_text(json.dumps(inventory, indent=1))
    return path


def drift(inventory: Path, names: list[str], workers: Nodes, runs: Path, spent: Path) -> tuple[float, float]:
    """The real command line: CPU seconds of the controller, and of the workers with their SSH servers. Raises
    FailedError when it fails."""
    line = [sys.executable, "-m", "provision.cli", "drift", str(inventory), "--json", *_PATIENT]
    chosen = ["--nodes", ",".join(names)] if len(names) == _FEW else []
    spent.write_text("")
    environment = {"PYTHONPATH": str(ROOT), "GPUPROV_RUNS": str(runs)}
    cost = cost_of([*line, *chosen], nodes=workers, environment=environment)
    if cost.code:
        raise FailedError(f"gpuprov drift ended with {cost.code}: {cost.last_words}")
    return cost.controller, cost.node + _said_by_workers(spent)


def _said_by_workers(spent: Path) -> float:
    """The CPU seconds of all that began, once they have ended. Raises FailedError when one does not."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        lines = spent.read_text().splitlines()
        times = [line for line in lines if line != "begun"]
        if len(times) == 2 * lines.count("begun"):
            found = [_TIME.fullmatch(word) for line in times for word in line.split()]
            return sum(int(each[1]) * 60 + float(each[2]) for each in found if each)
        time.sleep(0.05)
    raise FailedError(f"a worker does not end: {spent.read_text()!r}")


def observed(run: Path, names: list[str]) -> dict[str, Any]:
    """Node → which facts were read of it. Raises FailedError when a node is missing."""
    rows = [json.loads(line) for line in (run / "facts.jsonl").read_text().splitlines()]
    found = {row["node"]: sorted(row["facts"]) for row in rows if not row["error"]}
    if sorted(found) != sorted(names):
        raise FailedError(f"{len(found)} of {len(names)} nodes answered")
    return found


def _difference(found: dict[str, dict[str, Any]]) -> str:
    node = next(name for name, facts in found[ALONE].items() if found[WORKERS].get(name) != facts)
    return f"of {node}: {found[WORKERS].get(node)}, and the controller {found[ALONE][node]}"


def _findings(count: int, kind: str, controller: Rounds, away: Rounds) -> Iterator[Finding]:
    def more(of: Rounds, who: str) -> tuple[float, ...]:
        """Milliseconds of CPU that each node more costs, a value for each round."""
        pairs = zip(of.costs[f"{who} {count}"], of.costs[f"{who} {_FEW}"], strict=True)
        return tuple((all_of_them - few) / (count - _FEW) * 1000 for all_of_them, few in pairs)

    what = f"`drift` of {count} nodes by {WORKERS}, controller CPU"
    whole = controller.ratios(f"{WORKERS} {count}", f"{ALONE} {count}")
    yield Result("", what, f"`drift` by {ALONE}", whole, f"Nodes: {kind}.")
    mine, theirs = (more(controller, who) for who in (ALONE, WORKERS))
    least = min(mine)
    note = f"Beyond {_FEW} nodes: the start of Python is on neither side."
    if least > 0:  # with a few nodes and one round, noise may be more than what they cost
        yield Result("", "the same, of each node more", f"`drift` by {ALONE}", ratios(theirs, mine), note)
    rows = []
    for who, costs in ((ALONE, mine), (WORKERS, theirs)):
        start = (spread(tuple(of.costs[f"{who} {_FEW}"])) for of in (controller, away))
        rows.append((who, *start, spread(costs), spread(more(away, who))))
    head = (
        "`drift` by",
        *(f"controller s, {_FEW} nodes", f"workers s, {_FEW} nodes"),
        *("controller ms, a node more", "workers ms, a node more"),
    )
    notes = ("With a handful of nodes, what a node more costs is lost in the noise of the start.",)
    yield Table(f"CPU of `drift` with workers and without, {count} nodes", head, tuple(rows), notes)


if __name__ == "__main__":
    sys.exit(alone(measure, __doc__ or ""))
