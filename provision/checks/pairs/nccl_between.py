"""NCCL all-reduce over GPUs of several nodes: commands, expected bandwidth, parsed result (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from provision.checks.check import BUS_ORDER, CheckNode, Output, last_words
from provision.checks.nccl import nccl_table
from provision.checks.nccl.nccl_collective import Collective
from provision.checks.nccl.nccl_table import Suite
from provision.checks.pairs import perftest_ends
from provision.checks.pairs.judge import Metric
from provision.checks.pairs.pairing import Outcome, Result
from provision.checks.thresholds import Threshold, limits
from provision.errors import ParseError
from provision.text import many, one_line

FACTS = perftest_ends.FACTS
UNIT = "GB/s"
NO_GPU = "it has no GPU"

NET = "gpuprov_nccl_net"  # the inventory variable
COLLECTIVE = Collective("nccl_group", "all_reduce_perf", "all-reduce between nodes", share=2.0)
_ITERATIONS = "5"  # at the usual tenth of the rate inside a node, twenty iterations would take minutes
_DEADLINE = 180.0  # seconds for MPI and NCCL to start, and two sizes of up to 16 GiB at a tenth of the rate
_A_NODE = 0.25  # extra seconds for each node of a group, to start its daemon and its connections

_BEGAN = "# Using devices"  # printed by rank 0 once all ranks have connected
_NO_SSH = re.compile(r"^gpuprov: ssh to (\S{1,200}) ended with status", re.MULTILINE)
# Messages of ssh when it exits with 255. mpirun prints a harmless warning with "Permission denied".
_SSH_SAYS = re.compile(
    r"Permission denied \(|Host key verification failed|^ssh: |^Connection (?:closed|reset|to .* timed out)"
)
# mpirun 5.0 (PRRTE) for a missing or non-executable program: two lines, in either order, in a box.
_NOT_LAUNCHED = re.compile(
    r"^ *(?:Executable: +(?P<program>\S{1,200})\s+Node: +(?P<node>\S{1,200})"
    r"|Node: +(?P<node2>\S{1,200})\s+Executable: +(?P<program2>\S{1,200}))$",
    re.MULTILINE,
)
_CUDA = re.compile(r"^[ \t]*(\S{1,80}): Test CUDA failure", re.MULTILINE)


@dataclass(frozen=True)
class Between:
    """A check between nodes: over pairs of nodes or, as a `group`, over all nodes at once."""

    ID: str
    SUMMARY: str
    FINDS: str
    COLLECTIVE: Collective = COLLECTIVE
    group: bool = False
    FACTS: tuple[str, ...] = FACTS

    @property
    def METRIC(self) -> Metric:  # noqa: N802 - the contract
        variable = self.COLLECTIVE.suite.variable
        installs = f"{variable.removesuffix('_')}, with {variable}mpi: true,"
        return Metric(self.ID, "busbw", UNIT, self.COLLECTIVE.program, installs, NO_GPU, group=self.group)


NCCL_PAIR = Between(
    "nccl_pair",
    "NCCL all-reduce over pairs of nodes: names the bad nodes, links and switches",
    "the same with NCCL's all-reduce over all GPUs of two nodes",
)
NCCL_GROUP = Between(
    "nccl_group",
    "NCCL all-reduce over all nodes at once, and over pairs of them to find the bad node",
    "NCCL's all-reduce over all the nodes at once; when the result is bad, over pairs of nodes, to name the "
    "culprit",
    group=True,
)


def program(node: CheckNode, others_have_ports: bool, collective: Collective = COLLECTIVE) -> Program:
    """Return all_reduce_perf over a node's GPUs; each process of the launch has its own node's GPUs.

    If all nodes have RDMA ports, NCCL must use them instead of falling back to slow TCP."""
    (command,) = collective.commands(node, {})
    argv = list(command.argv)
    argv[argv.index("-n") + 1] = _ITERATIONS
    env = {**BUS_ORDER, "NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/dev/stderr"}
    net = node.variables.get(NET) or ("IB" if others_have_ports else "")
    return Program(tuple(argv), {**env, **({"NCCL_NET": str(net)} if net else {})})


def deadline(nodes: int) -> float:
    """Return the seconds after which a run on so many nodes counts as hung."""
    return _DEADLINE + _A_NODE * nodes


def carries(node: CheckNode, known: Mapping[str, Threshold]) -> float | None:
    """Return the bus bandwidth in GB/s that this node should reach with others; None if unknown.

    It is a share of the combined rate of the node's network cards, and at most the rate among its GPUs. An
    all-reduce sends each byte out of the node about twice, as inside it, so the bus bandwidth equals the
    combined rate of the cards. Raises ParseError.
    """
    gbits = sum(float(port.rate or 0) for port in perftest_ends.rails(node))
    if not gbits:
        return None
    fraction = float(limits("port_limits")["nccl_share"]["limit"]) / 100
    count = node.gpu_count
    if count < 2:
        return fraction * gbits / 8
    inside = [
        float(found.limit)
        for name in (f"nccl_all_reduce.busbw_ring_{count}gpu", f"nccl_all_reduce.busbw_{count}gpu")
        if (found := known.get(name)) is not None
    ]
    return min(fraction * gbits / 8, fraction * inside[0]) if inside else None


def result(
    nodes: Sequence[str],
    number: int,
    expected: float | None,
    output: Output | None,
    gpus: int,
    names: Mapping[str, str],
    suite: Suite = COLLECTIVE.suite,
) -> Result:
    """Parse the output of `suite`'s program, which was started on the first node, in round `number`.

    `gpus`: of all nodes; `names`: address or host name, as the launcher and nodes print it → node."""

    def ended(outcome: Outcome, said: str, end: str = "") -> Result:
        return Result(tuple(nodes), number, outcome, None, "", UNIT, expected, end, said=one_line(said, 300))

    if output is None:
        return ended(Outcome.ERROR, "no answer", nodes[0])
    if output.not_started:
        return ended(Outcome.ERROR, output.not_started, nodes[0])
    # mpirun prints a NUL when it ends a job early.
    output = replace(output, stdout=output.stdout.replace("\0", ""), stderr=output.stderr.replace("\0", ""))
    text = output.stdout
    if output.timed_out:
        said = f"no end after {output.seconds:.0f} s"
        if _BEGAN not in text:
            said += ", and NCCL had not started: MPI's daemons may not reach one another over TCP"
        return ended(Outcome.HANG, said)
    if text.count(_BEGAN) > 1:
        said = "each node measured itself: all_reduce_perf was built without MPI"
        return ended(Outcome.NOT_RUN, f"{said} ({suite.variable}mpi: true builds it with MPI)")
    if _BEGAN not in text:
        return _never_began(ended, output, names)
    try:
        return _measured(ended, nodes, number, expected, output, gpus, suite)
    except ParseError as error:
        cuda = _CUDA.search(text)
        return ended(Outcome.ERROR, error.what, names.get(cuda[1], "") if cuda else "")


def _never_began(ended: Any, output: Output, names: Mapping[str, str]) -> Result:
    """Return the result of a failed start: nothing between the nodes was measured."""
    # mpirun then stops its daemons, so that ssh to healthy nodes fails, too.
    if missing := _NOT_LAUNCHED.search(output.stderr):
        program, host = missing["program"] or missing["program2"], missing["node"] or missing["node2"]
        reason = f"mpirun could not start {program}: it is not installed there, or not executable"
        not_launched: Result = ended(Outcome.ERROR, reason, names.get(host, ""))
        return not_launched
    unreached = {names.get(address, "") for address in _NO_SSH.findall(output.stderr)} - {""}
    lines = [line for line in output.stderr.splitlines() if line.startswith("gpuprov: ")]
    message = "; ".join(lines[:3]) or last_words(output)
    why = [line.strip() for line in output.stderr.splitlines() if _SSH_SAYS.search(line)]
    if len(unreached) == 1:
        failed: Result = ended(Outcome.ERROR, "; ".join([*why[:1], message]), unreached.pop())
        return failed
    not_run: Result = ended(Outcome.NOT_RUN, message)
    return not_run


def _measured(
    ended: Any,
    nodes: Sequence[str],
    number: int,
    expected: float | None,
    output: Output,
    gpus: int,
    suite: Suite,
) -> Result:
    if output.truncated:
        raise ParseError(f"{suite.name}: the output was cut at its size limit", "run it again")
    table = nccl_table.parse(output.stdout, suite=suite)
    if table.ranks != gpus:
        message = f"all_reduce_perf ran on {many(table.ranks, 'GPU')}, not on the {gpus} of all nodes"
        not_run: Result = ended(Outcome.NOT_RUN, message)
        return not_run
    largest = max(table.rows, key=lambda row: row.size)
    wrong = sum(row.wrong or 0 for row in table.rows)
    if wrong:
        bad: Result = ended(Outcome.ERROR, f"{many(wrong, 'wrong element')}: silent data corruption")
        return bad
    if any(row.wrong is None for row in table.rows):
        raise ParseError("all_reduce_perf did not check its results", "run it again")
    return Result(tuple(nodes), number, Outcome.MEASURED, largest.busbw, "", UNIT, expected, size=len(nodes))


# --- Command lines that start one process of an MPI program on each of several nodes. OpenMPI reaches the
# other nodes over their own ssh, with the key and the scripts that the module gpuprov_launch installs; Slurm
# needs none of it. No inventory value becomes shell text.


# Transport of MPI's few own messages, since NCCL carries the data. Faster transports than TCP have failures
# of their own kind, which would be blamed on the fabric.
_MPI = {
    "pml": "ob1",
    "btl": "tcp,self",
    "coll_hcoll_enable": "0",
    "plm_rsh_no_tree_spawn": "1",  # only the first node has the others' host keys
}
# Slurm's default fence (tree) releases some nodes well before others, and OpenMPI 5 crashes in MPI_Init when
# a released peer contacts a waiting node (open-mpi/ompi issue 12495): one in eight launches on six busy nodes
# crashed, and none of 144 with this fence.
_FENCE = {"SLURM_PMIX_FENCE": "ring"}
# One process per node. OpenMPI 5 miscounts the slots of nodes named by address, and reports too few unless
# oversubscription is allowed.
_ONE_EACH = "ppr:1:node:OVERSUBSCRIBE"


@dataclass(frozen=True)
class Member:
    """One node of a launch."""

    node: str
    address: str  # reachable from the other nodes
    port: int  # of ssh
    host_keys: tuple[str, ...]
    slurm_node: str = ""  # Slurm's name of the node


@dataclass(frozen=True)
class Program:
    """A program to start, with its environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


def known_hosts(members: Sequence[Member]) -> str:
    """Return known_hosts lines for these nodes, one key each: Ed25519 if available."""
    lines = []
    for member in members:
        key = min(member.host_keys, key=lambda one: (not one.startswith("ssh-ed25519"), len(one)))
        host = member.address if member.port == 22 else f"[{member.address}]:{member.port}"
        lines.append(f"{host} {key}")
    return "\n".join(lines)


def openmpi(
    program: Program,
    members: Sequence[Member],
    mpirun: str,
    folder: str,
    mark: tuple[str, str],
    networks: str,
) -> Program:
    """Return the mpirun command, to be run on the first of the members.

    `folder`: of the launch, on each node; `mark`: a variable that all its processes have; `networks`: for the
    connections of MPI (10.1.0.0/16,…); "" leaves the choice to OpenMPI."""
    inherited = {**program.env, mark[0]: mark[1]}
    settings = {
        **_MPI,
        **({"btl_tcp_if_include": networks, "oob_tcp_if_include": networks} if networks else {}),
    }
    agent = f"/bin/sh {folder}/reach"
    others = members[1:]
    env = {
        **inherited,
        **{f"OMPI_MCA_{name}": value for name, value in settings.items()},
        "OMPI_MCA_plm_rsh_agent": agent,
        # OpenMPI 5 has PRRTE's daemons, and their settings have other names.
        "PRTE_MCA_plm_ssh_agent": agent,
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        **({"PRTE_MCA_prte_if_include": networks} if networks else {}),
        "GPUPROV_HOST_KEYS": known_hosts(others),
        "GPUPROV_SSH_PORTS": "\n".join(f"{one.address} {one.port}" for one in others),
    }
    count = str(len(members))
    hosts = ",".join(f"{member.address}:1" for member in members)
    words = (mpirun, "--allow-run-as-root", "-np", count, "--host", hosts, "--map-by", _ONE_EACH)
    exported = [word for name in inherited for word in ("-x", name)]
    return Program((*words, "--bind-to", "none", *exported, *program.argv), env)


def slurm(
    program: Program, members: Sequence[Member], job: str, seconds: float, kind: str, options: Sequence[str]
) -> Program:
    """Return the srun command. `kind`: of MPI (pmix); `options`: of the site (a partition, an account)."""
    count = str(len(members))
    words = (
        *("srun", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"),
        f"--nodelist={','.join(member.slurm_node for member in members)}",
        *("--exclusive", "--immediate=60", f"--time={max(1, round(seconds / 60 + 0.5))}"),
        *(f"--job-name={job}", f"--mpi={kind}", "--kill-on-bad-exit=1", "--chdir=/", *options),
    )
    settings = {f"OMPI_MCA_{name}": value for name, value in _MPI.items() if not name.startswith("plm")}
    return Program((*words, *program.argv), {**program.env, **settings, **_FENCE})
