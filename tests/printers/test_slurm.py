"""MIG devices in slurmctld and slurmd of Slurm 24.11, as gpuprov reads them: in the long set."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from provision.desired.expectations import renderer_for
from provision.desired.role import all_roles
from tests.node.machine import Tree
from tests.printers import root
from tests.printers.root import Root
from tests.support.described import machine

pytestmark = pytest.mark.long
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge", "dash", "coreutils", "grep")
HOST = socket.gethostname().partition(".")[0]
CONFIGURATION = f"""\
ClusterName=t
SlurmctldHost={HOST}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
StateSaveLocation=/var/spool/controller
SlurmdSpoolDir=/var/spool/node
SlurmctldPidFile=/run/controller.pid
SlurmdPidFile=/run/node.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
GresTypes=gpu
PartitionName=gpu Nodes={HOST} Default=YES State=UP
NodeName={HOST} NodeAddr=127.0.0.1 State=UNKNOWN"""
# /tmp/asked holds the answers of scontrol after slurmd has registered.
RUN = """\
mkdir -p /dev/nvidia-caps /var/spool/controller /var/spool/node /run/munge /etc/munge /var/log/munge /run/bin
# They load other plugins by their names, and Debian's have the distribution's added.
for name in slurmctld slurmd; do ln -s /usr/sbin/$name-wlm /run/bin/$name; done
for gpu in 0 1 2 3 4 5 6 7; do
    mknod /dev/nvidia$gpu c 1 3
    for half in 1 2; do mknod /dev/nvidia-caps/nvidia-cap$gpu$half c 1 3; done
done
head -c 128 /dev/urandom > /etc/munge/munge.key; chmod 400 /etc/munge/munge.key
munged --force --socket=/run/munge/munge.socket.2 --pid-file=/run/munge.pid --log-file=/tmp/munge.log \\
    --seed-file=/tmp/seed > /dev/null 2>&1
/run/bin/slurmctld -D < /dev/null > /tmp/controller.log 2>&1 & controller=$!
/run/bin/slurmd -D -d /usr/sbin/slurmstepd-wlm < /dev/null > /tmp/node.log 2>&1 & node=$!
for i in $(seq 1 100); do
    timeout 5 scontrol show node > /tmp/asked 2>&1
    grep -q 'SlurmdStartTime=[0-9]' /tmp/asked && break; sleep 0.2
done
kill $controller $node $(cat /run/munge.pid)
"""


def mig(gpu: int) -> str:
    """Return gres.conf's lines for the two halves of a GPU."""
    line = "Name=gpu Type=h100_3g.40gb MultipleFiles=/dev/nvidia{0},/dev/nvidia-caps/nvidia-cap{0}{1}\n"
    return "".join(line.format(gpu, half) for half in (1, 2))


HALVES = ["3g.40gb", "3g.40gb"]
# Gres of slurm.conf and lines of gres.conf → the matching gpu_settings_mig, and the number of GPUs.
CASES: list[tuple[str, str, dict[str, object], int]] = [
    ("gpu:8", "Name=gpu File=/dev/nvidia[0-7]", {}, 8),
    ("gpu:h100:8", "Name=gpu Type=h100 File=/dev/nvidia[0-7]", {}, 8),
    (
        "gpu:h100_3g.40gb:16",
        "".join(map(mig, range(8))),
        {"enabled": True, "profiles": {"all": HALVES}},
        16,
    ),
    (
        "gpu:h100_3g.40gb:4,gpu:h100:6",
        mig(0) + mig(1) + "Name=gpu Type=h100 File=/dev/nvidia[2-7]",
        {"enabled": True, "profiles": {0: HALVES, 1: HALVES}},
        10,
    ),
    # Slurm truncates a gres.conf with more GPUs, and rejects the node if it has fewer.
    ("gpu:8", "".join(map(mig, range(8))), {}, 8),
    ("gpu:16", "Name=gpu File=/dev/nvidia[0-7]", {}, 8),
]


@pytest.fixture
def slurm(tmp_path: Path) -> Root:
    if os.geteuid() != 0:
        pytest.skip("slurmd wants to be root, and device files")
    programs = root.make(tmp_path / "own", "slurm", "trixie", *PACKAGES)
    (programs.own / "etc/slurm").mkdir(exist_ok=True)
    (programs.own / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (programs.own / "etc/group").write_text("root:x:0:\n")
    (programs.own / "etc/hosts").write_text(f"127.0.0.1 localhost {HOST}\n")
    (programs.own / "etc/slurm/cgroup.conf").write_text("CgroupPlugin=disabled\n")
    return programs


@pytest.mark.parametrize(("gres", "lines", "declared", "gpus"), CASES)
def test_the_gpus_and_mig_devices_that_slurm_hands_out_are_counted(
    slurm: Root, tmp_path: Path, gres: str, lines: str, declared: dict[str, object], gpus: int
) -> None:
    (slurm.own / "etc/slurm/slurm.conf").write_text(f"{CONFIGURATION} Gres={gres}\n")
    (slurm.own / "etc/slurm/gres.conf").write_text(f"{lines}\n")
    slurm.run("sh", "-c", RUN, network=True, timeout=120)
    asked = (slurm.own / "tmp/asked").read_text()
    assert f"Gres={gres}" in asked, asked + (slurm.own / "tmp/node.log").read_text()
    look = Tree(tmp_path / "tree")
    look.file("/asked", asked)
    look.tool("scontrol", f"cat {look.root}/asked")
    assert look.value("slurm.gpus") == gpus, asked
    described = machine("debian 13", "x86_64", count=8)
    renderer = renderer_for(all_roles()["slurm_health"], {"gpu_settings_mig": declared}, described)
    assert int(renderer.value("{{ __slurm_health_gpus }}")) == gpus
