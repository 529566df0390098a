"""Real Slurm on lab nodes: the distribution's packages, one munge key, the first node as controller.

Tried on Debian 13 (Slurm 24.11, OpenMPI 5.0, both with PMIx 5):

* `srun --mpi=list` lists none, pmix (pmix_v5), cray_shasta and pmi2. No package beyond slurm-wlm is needed:
  the plugins are in slurm-wlm-basic-plugins.
* `srun -N2 -n2 --mpi=pmix PROGRAM` makes one MPI program of its tasks, and so does `--mpi=pmix_v5`.
* Without `--mpi` (MpiDefault=none), with `--mpi=none` and with `--mpi=pmi2` each task is a separate program:
  OpenMPI 5 no longer supports PMI-2.
* `salloc -N2 -n2 mpirun -np 2 PROGRAM` works as well, without ssh: OpenMPI starts its daemons with srun.

The nodes' kernel offers no cgroup controllers, so nothing is confined: a job can access all devices, and only
CUDA_VISIBLE_DEVICES lists the GPUs assigned to it.
"""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.lab.lab_nodes import LabNode

PACKAGES = ("slurm-wlm", "munge")
CONFIGURATION = """\
ClusterName=lab
SlurmctldHost={controller}
SlurmUser=slurm
AuthType=auth/munge
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
{gpu_types}NodeName={names} CPUs={cpus}{gpus} State=UNKNOWN
PartitionName=gpu Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""
# The key comes on standard input: it is a secret of the cluster, and any user can read a command line.
CONFIGURE = """\
set -e
install -d /etc/slurm /var/spool/slurmd
install -d -o slurm -g slurm /var/spool/slurmctld
base64 -d > /etc/munge/munge.key
chown munge:munge /etc/munge/munge.key
chmod 0400 /etc/munge/munge.key
cat > /etc/slurm/slurm.conf <<'END'
{configuration}END
echo '{gpus}' > /etc/slurm/gres.conf
echo 'CgroupPlugin=disabled' > /etc/slurm/cgroup.conf
systemctl restart munge
systemctl restart {services}
"""


def start(
    nodes: Sequence[LabNode], gpus: int = 8, patience: float = 30, files: str = "/dev/nvidia[0-{last}]"
) -> LabNode:
    """Make one cluster of these nodes; returns the controller, on which `srun` is called.

    Every node has `gpus` GPUs with these `files` (so its GPU driver must run), and is idle on return;
    otherwise the test fails within `patience` seconds.
    """
    controller = nodes[0]
    install(nodes, *PACKAGES)
    key = base64.b64encode(secrets.token_bytes(128)).decode()
    cpus = controller.run("nproc").stdout.strip()
    text = CONFIGURATION.format(
        controller=controller.name,
        names=",".join(node.name for node in nodes),
        cpus=cpus,
        gpu_types="GresTypes=gpu\n" if gpus else "",
        gpus=f" Gres=gpu:{gpus}" if gpus else "",
    )
    devices = f"Name=gpu File={files.format(last=gpus - 1)}" if gpus else ""
    for node in nodes:
        services = "slurmctld slurmd" if node is controller else "slurmd"
        node.as_root(CONFIGURE.format(configuration=text, gpus=devices, services=services), said=key)
    until = time.monotonic() + patience
    while True:
        states = controller.run("sinfo --noheader --Node --format=%T", check=False).stdout.split()
        if states == ["idle"] * len(nodes):
            return controller
        if time.monotonic() > until:
            pytest.fail(f"after {patience:.0f} s the nodes of the Slurm cluster are {states}, not idle")
        time.sleep(0.3)


def install(nodes: Sequence[LabNode], *packages: str) -> None:
    """Install packages on all nodes at once."""
    command = (
        f"DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends {' '.join(packages)}"
    )
    with ThreadPoolExecutor(len(nodes)) as threads:
        list(threads.map(lambda node: node.as_root(command, timeout=300), nodes))
