"""Command lines that start one process of an MPI program on each of several nodes (pure).

OpenMPI reaches the other nodes over their own ssh, with the key and the scripts that the module
gpuprov_launch puts on each; Slurm needs nothing of it. Nothing of the inventory becomes shell text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# What carries MPI's own few messages: NCCL carries the data. Anything cleverer than TCP has its own ways to
# fail, and would be blamed on the fabric.
_MPI = {
    "pml": "ob1",
    "btl": "tcp,self",
    "coll_hcoll_enable": "0",
    "plm_rsh_no_tree_spawn": "1",  # only the first node has the others' host keys
}
# Slurm's other fence (tree, its default) lets some nodes go well before others, and OpenMPI 5 crashes in
# MPI_Init when a peer that was let go speaks to it (open-mpi/ompi issue 12495): of launches on six busy nodes
# one in eight did, of 144 with this one none.
_FENCE = {"SLURM_PMIX_FENCE": "ring"}
# One process on each node. OpenMPI 5 miscounts the slots of nodes that are named by an address, and calls
# their number too small unless it need not heed it.
_ONE_EACH = "ppr:1:node:OVERSUBSCRIBE"


@dataclass(frozen=True)
class Member:
    """One node of a launch: where the others reach it, at which port of ssh, with which host keys, and what
    Slurm calls it."""

    node: str
    address: str
    port: int
    host_keys: tuple[str, ...]
    slurm_node: str = ""


@dataclass(frozen=True)
class Program:
    """What to start: its words, and its environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


def known_hosts(members: Sequence[Member]) -> str:
    """The lines of a known_hosts file for these nodes, one key of each: Ed25519 where there is one."""
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
    """mpirun on the first of the members. `folder`: the launch's, on each node; `mark`: a variable that all
    it starts has; `networks`: where MPI's daemons talk (10.1.0.0/16,…); "" leaves it to OpenMPI."""
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
        # OpenMPI 5 has its daemons from PRRTE, whose settings have other names.
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
    """srun on any node of the cluster. `kind`: of MPI (pmix); `options`: of the site (a partition, an
    account)."""
    count = str(len(members))
    words = (
        *("srun", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"),
        f"--nodelist={','.join(member.slurm_node for member in members)}",
        *("--exclusive", "--immediate=60", f"--time={max(1, round(seconds / 60 + 0.5))}"),
        *(f"--job-name={job}", f"--mpi={kind}", "--kill-on-bad-exit=1", "--chdir=/", *options),
    )
    settings = {f"OMPI_MCA_{name}": value for name, value in _MPI.items() if not name.startswith("plm")}
    return Program((*words, *program.argv), {**program.env, **settings, **_FENCE})
