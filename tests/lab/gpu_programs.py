"""Lab nodes with a driver and programs, but without roles, which saves time in tests of programs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import yaml

from tests.lab import slurm_cluster
from tests.lab.lab_nodes import Lab

PACKAGES = ("nvidia-kernel-open-dkms", "nvidia-driver-cuda", "libnccl2", "nccl-tests")


def bring(lab: Lab, *more: str) -> None:
    """Install the newest driver, NCCL, nccl-tests and `more` on all nodes, so that their GPUs answer."""
    hosts = yaml.safe_load(lab.inventory.read_text())["gpu_nodes"]["hosts"]
    for node in lab.nodes:
        urls = (hosts[node.name][f"nvidia_repository_{kind}_url"] for kind in ("cuda", "tools"))
        sources = "".join(f"deb [trusted=yes] {url} /\n" for url in urls)
        node.as_root("cat > /etc/apt/sources.list.d/lab.list && apt-get update", said=sources)
    slurm_cluster.install(lab.nodes, *PACKAGES, *more)
    for node in lab.nodes:
        node.as_root("echo blacklist nouveau > /etc/modprobe.d/blacklist-nouveau.conf")
    with ThreadPoolExecutor(len(lab.nodes)) as threads:
        list(threads.map(lambda node: node.reboot(), lab.nodes))
    for node in lab.nodes:
        node.as_root("modprobe nvidia")
