"""Measurement of pairs and groups with NCCL, started by the first node of each on all its members."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from provision.checks.check import Command
from provision.checks.judging.node_facts import NodeFacts
from provision.checks.pairs import nccl_between, perftest_ends
from provision.checks.pairs.pairing import Outcome, Result, Topology, exhaustive_rounds
from provision.errors import InventoryError
from provision.text import many, one_line
from provision.validate.plays import launch
from provision.validate.plays.pair_plays import Outputs, Plays

LAUNCHERS = ("auto", "openmpi", "slurm")
LAUNCHER = "gpuprov_launcher"  # inventory variables
NETWORKS = "gpuprov_mpi_networks"
SLURM_OPTIONS = "gpuprov_slurm_options"

_STEP = "launch"  # name of the program's output
_MOST = 1000  # largest number of nodes for one mpirun, which needs a host key of each
_SPARE = 1800  # seconds for startup and cleanup
_HOST = re.compile(r"[0-9A-Za-z_][0-9A-Za-z._-]{0,252}")  # host names that `--host a:1,b:1` can express
_ALLOCATED = ("idle", "mixed", "allocated", "completing", "planned", "reserved")  # sinfo states
_PMI = ("pmix",)  # supported by OpenMPI; with any other PMI each node would run on its own


class NcclPairs:
    """Tool for NCCL measurements of one vendor's GPUs. `check`: nccl_pair or nccl_group."""

    def __init__(self, check: nccl_between.Between, plays: Plays, able: Mapping[str, NodeFacts]) -> None:
        self.metric = check.METRIC
        self._collective = check.COLLECTIVE
        self._plays, self._able = plays, able
        self._nodes = {name: node.check_node for name, node in able.items()}
        rounds = exhaustive_rounds(len(able)) + 2 if plays.settings.every_pair else 4
        seconds = _SPARE + int((rounds + 1) * (nccl_between.deadline(len(able)) + 120))
        self._launch = launch.Launch(plays, launch.new_name(plays.folder.path.name, check.ID), seconds)
        self._ready: dict[str, launch.Ready] = {}
        self._slurm = False

    def takes_part(self, node: str) -> bool:
        """Return whether a node has GPUs. Raises ParseError if its ports are unknown."""
        perftest_ends.rails(self._nodes[node])
        return self._nodes[node].gpu_count > 0

    def prepare(self, members: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
        """Open the launch; return each node's MPI version, and the reason for each excluded node."""
        chosen = launcher(self._plays.variables, members)
        mpirun = f"{self._collective.suite.variable}mpirun_path"
        paths = {node: str(self._plays.variables[node].get(mpirun) or "") for node in members}
        ready, missing = self._launch.open(paths)
        in_slurm = {node for node, one in ready.items() if one.slurm_node and _kind(one)}
        free = {node for node in in_slurm if _allocates(ready[node])}
        # If Slurm schedules none of the nodes, no job can be in the way.
        self._slurm = chosen == "slurm" or (chosen == "auto" and bool(free) and in_slurm == set(ready))
        for node, one in ready.items():
            if self._slurm and node not in in_slurm:
                missing[node] = "Slurm does not know it, or its srun has no PMIx"
            elif self._slurm and node not in free:
                missing[node] = (
                    f"Slurm has it as {one.slurm_state}: gpuprov_launcher: openmpi does without Slurm"
                )
            elif not self._slurm and not one.mpirun:
                missing[node] = (
                    f"{one.mpirun_missing or 'no mpirun'}: the role {self.metric.installs} installs it"
                )
            elif not self._slurm and not _HOST.fullmatch(self._plays.address(node)):
                missing[node] = (
                    f"mpirun does not accept the address {one_line(self._plays.address(node), 60)}: "
                    "set gpuprov_address to its host name or IPv4 address"
                )
        self._ready = {node: one for node, one in ready.items() if node not in missing}
        if not self._slurm:
            missing |= self._launch.admit(self._ready)
        self._ready = {node: one for node, one in self._ready.items() if node not in missing}
        return {node: self._version(one) for node, one in self._ready.items()}, missing

    def _version(self, one: launch.Ready) -> str:
        return f"srun --mpi={_kind(one)}" if self._slurm else one.version

    def expected(self, fleet: Topology, nodes: Sequence[str]) -> list[tuple[str, float | None]]:
        """Return the GB/s expected over all rails: the weakest node's rate, reduced across racks."""
        override = self._plays.settings.override
        rates = [nccl_between.carries(self._nodes[node], self._able[node].limits(override)) for node in nodes]
        stated = [rate for rate in rates if rate is not None]
        if len(stated) < len(rates):
            return [("", None)]
        over = max(perftest_ends.oversubscription(self._plays.variables[node]) for node in nodes)
        return [("", min(stated) / over if fleet.spans(nodes) is not False else min(stated))]

    def programs(self, nodes: Sequence[str]) -> dict[str, list[Command]]:
        """Return the launch command of the first node. Raises InventoryError for too many nodes."""
        if len(nodes) > _MOST and not self._slurm:
            raise InventoryError(
                f"{many(len(nodes), 'node')} are too many for one start over ssh, {_MOST} at most",
                "choose fewer with --nodes, or set gpuprov_launcher: slurm",
            )
        return {nodes[0]: [self._start(nodes)]}

    def _start(self, nodes: Sequence[str]) -> Command:
        ports = all(perftest_ends.rails(self._nodes[node]) for node in nodes)
        program = nccl_between.program(self._nodes[nodes[0]], ports, self._collective)
        members = [self._member(node) for node in nodes]
        head, variables = self._ready[nodes[0]], self._plays.variables[nodes[0]]
        seconds = nccl_between.deadline(len(nodes))
        mark = (launch.MARK, self._launch.name)
        if self._slurm:
            options = [str(word) for word in variables.get(SLURM_OPTIONS) or ()]
            # srun passes its environment on; `close` finds and ends orphaned jobs by this variable.
            marked = nccl_between.Program(program.argv, {**program.env, mark[0]: mark[1]})
            started = nccl_between.slurm(marked, members, self._job(nodes), seconds, _kind(head), options)
        else:
            networks = str(variables.get(NETWORKS) or "")
            started = nccl_between.openmpi(program, members, head.mpirun, self._launch.folder, mark, networks)
            if head.user != "root":  # the user the other nodes accept
                argv = ("runuser", "-u", head.user, "--preserve-environment", "--", *started.argv)
                started = nccl_between.Program(argv, started.env)
        return Command(_STEP, started.argv, seconds, cwd="/", env=started.env)

    def _job(self, nodes: Sequence[str]) -> str:
        return f"gpuprov-{self._launch.name}-{self._ready[nodes[0]].slurm_node}"

    def _member(self, node: str) -> nccl_between.Member:
        one, variables = self._ready[node], self._plays.variables[node]
        port = 22 if variables.get("gpuprov_address") else _port(variables)
        return nccl_between.Member(node, self._plays.address(node), port, one.host_keys, one.slurm_node)

    def results(
        self, nodes: Sequence[str], number: int, asked: perftest_ends.Asked, outputs: Outputs
    ) -> list[Result]:
        """Parse the output of the first of these nodes."""
        ((_, expected),) = asked
        names = {self._plays.address(node): node for node in nodes}
        names |= {self._ready[node].hostname: node for node in nodes}
        gpus = sum(self._nodes[node].gpu_count for node in nodes)
        output = outputs.get(nodes[0], {}).get(_STEP)
        suite = self._collective.suite
        return [nccl_between.result(nodes, number, expected, output, gpus, names, suite)]

    def after(self, found: Sequence[Result]) -> None:
        """End, on all its nodes, whatever a hung or failed launch left running."""
        bad = [one for one in found if one.outcome is not Outcome.MEASURED]
        if self._slurm:
            cancel = {
                one.nodes[0]: [Command("cancel", ("scancel", f"--jobname={self._job(one.nodes)}"), 30.0)]
                for one in bad
            }
            self._plays.run("cancel", cancel)
        else:
            self._launch.end(sorted({node for one in bad for node in one.nodes}))

    def close(self) -> None:
        """Remove the launch keys from all nodes."""
        self._launch.close()


def launcher(variables: Mapping[str, Mapping[str, Any]], nodes: Sequence[str]) -> str:
    """Return the launcher these nodes declare, one of LAUNCHERS. Raises InventoryError."""
    stated = {str(variables[node].get(LAUNCHER, "auto")): node for node in nodes}
    for value, node in stated.items():
        if value not in LAUNCHERS:
            raise InventoryError(
                f"{one_line(node, 80)}: {LAUNCHER} is {one_line(value, 40)!r}",
                f"it is one of {', '.join(LAUNCHERS)}",
            )
    if len(stated) > 1:
        raise InventoryError(
            f"nodes that are measured together have more than one {LAUNCHER}: {', '.join(sorted(stated))}",
            "state one for all of them, or choose nodes with --nodes",
        )
    return next(iter(stated), "auto")


def _kind(one: launch.Ready) -> str:
    """Return the MPI type to request from srun, or "" if it offers none that OpenMPI supports."""
    return next((kind for kind in _PMI if kind in one.slurm_mpi), "")


def _allocates(one: launch.Ready) -> bool:
    """Return whether Slurm gives this node to a job, now or later."""
    return one.slurm_state.rstrip("*~#!%$@^+-") in _ALLOCATED


def _port(variables: Mapping[str, Any]) -> int:
    stated = str(variables.get("ansible_port") or variables.get("ansible_ssh_port") or 22)
    return int(stated) if stated.isdecimal() else 22
