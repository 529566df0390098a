"""Disks made once per test session: labs that begin where an `up` ended boot overlays of them.

A disk belongs to a node, off for good, of a separate lab; that lab goes with the last worker that used it.
Identity, GPUs and cards are not on the disk: every node has its own (gpuprov_lab.node.prepare).
"""

from __future__ import annotations

import fcntl
import itertools
import json
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Self

import pytest

from gpuprov_lab import fleet
from gpuprov_lab.command import waiting_lock
from gpuprov_lab.places import LOCKS
from gpuprov_lab.spec import DEFAULT_NODES, NodeSpec
from provision.errors import ExitCode
from tests.lab import slurm_cluster
from tests.lab.gpuprov_up import Operator, said
from tests.lab.lab_nodes import SPEED, Image, Lab, boot
from tests.support.seed import Selected

# `up` of a bare node takes over a minute of CPU time: without the long tests, one kind must suffice.
KINDS = DEFAULT_NODES[: 2 if Selected.long else 1]
FLEET = DEFAULT_NODES if Selected.long else tuple(replace(KINDS[0], name=node.name) for node in DEFAULT_NODES)
# A node that checks itself, exports its metrics and sets its GPUs at each boot.
IN_SERVICE: dict[str, Any] = {
    "node_health_enabled": True,
    "gpu_metrics_enabled": True,
    "gpu_settings_power_limit": 600,
    "amd_gpu_settings_power_limit": 700,
    "host_settings_shm_size": "2G",
}
# Commands run on the bare nodes, in this order.
STEPS = {"drift before": "drift", "plan": "plan", "up": "up", "drift after": "drift"}


class Images:
    """The images of one session; the first user of an image makes it, and the other workers wait for it.

    `shared`: a folder that all workers share.
    """

    def __init__(self, shared: Path) -> None:
        self._shared = shared
        self._used: dict[str, tuple[str, IO[str]]] = {}  # image -> its lab, and the lock that keeps the lab

    def up(self) -> Mapping[str, subprocess.CompletedProcess[str]]:
        """Return the finished commands of STEPS on initially bare nodes, one of each of KINDS."""
        done = self.made("declared", KINDS, {}, _up)["done"]
        return {step: subprocess.CompletedProcess(*done[step]) for step in STEPS}

    def declared(self) -> Mapping[str, Image]:
        """Return images of FLEET after that `up`; fails the test if `up` failed."""
        done = self.up()["up"]
        assert done.returncode == ExitCode.OK, said(done)
        made = self.made("declared", KINDS, {}, _up)["images"]
        kinds = {(node.sku, node.release): made[node.name] for node in KINDS}
        return {node.name: kinds[node.sku, node.release] for node in FLEET}

    def h100(self) -> Image:
        """Return an H100 node on Debian 13 after `up`."""
        return self.declared()["gpu-01"]

    def mi300x(self) -> Image:
        """Return an MI300X node on Ubuntu 24.04 after `up`, which checks itself and exports its metrics."""
        nodes = (NodeSpec("gpu-01", "mi300x", "ubuntu2404"),)
        image: Image = self.made("mi300x", nodes, {}, _in_service)["images"]["gpu-01"]
        return image

    def with_slurm(self) -> Image:
        """Return the H100 image with OpenMPI and Slurm, which is off at boot because there is no cluster."""
        nodes, below = (NodeSpec("gpu-01", "h100-sxm"),), {"gpu-01": self.h100()}
        image: Image = self.made("slurm", nodes, below, _slurm)["images"]["gpu-01"]
        return image

    def slurm_alone(self) -> Image:
        """A node without GPUs that has nothing but Slurm, which does not start at boot."""
        nodes = (NodeSpec("gpu-01", "none"),)
        image: Image = self.made("slurm-alone", nodes, {}, _slurm_alone)["images"]["gpu-01"]
        return image

    def made(
        self,
        name: str,
        nodes: tuple[NodeSpec, ...],
        below: Mapping[str, Image],
        work: Callable[[Lab, Path], dict[str, Any]],
    ) -> dict[str, Any]:
        """Return the result of `work` on a lab of these nodes, run once per session, and their images."""
        file = self._shared / f"image-{name}.json"
        with waiting_lock(file.with_suffix(".lock")):
            if not file.exists():
                file.write_text(json.dumps(self._make(name, nodes, below, work)))
            made: dict[str, Any] = json.loads(file.read_text())
            if name not in self._used:
                self._used[name] = (made["lab"], _shared_lock(made["lab"]))
        if "trouble" in made:
            pytest.fail(made["trouble"])
        images = {
            node: Image(tuple(Path(disk) for disk in disks), made["server"])
            for node, disks in made["disks"].items()
        }
        return {**made, "images": images}

    def _make(
        self,
        name: str,
        nodes: tuple[NodeSpec, ...],
        below: Mapping[str, Image],
        work: Callable[[Lab, Path], dict[str, Any]],
    ) -> dict[str, Any]:
        chosen = self._claim(name)
        try:
            lab = boot(chosen, nodes, self._shared / f"image-{name}.yml", SPEED, below)
            made = work(lab, self._shared)
            for node in lab.nodes:
                node.power_off()
        except (Exception, pytest.fail.Exception) as error:
            return {"lab": chosen, "trouble": f"the image {name} could not be made: {error}"}
        disks = {
            node.name: [str(node.place.disk), *map(str, below[node.name].disks if node.name in below else ())]
            for node in lab.nodes
        }
        return {**made, "lab": chosen, "disks": disks, "server": lab.record.bridge_address}

    def _claim(self, name: str) -> str:
        """Claim an unused lab name for the rest of this session, and return it."""
        with waiting_lock(LOCKS / "session-images.lock"):  # prevents two sessions from claiming the same one
            for number in itertools.count(1):
                lab = f"image{number}"
                file = (LOCKS / f"session-{lab}.lock").open("a")
                with suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    fcntl.flock(file, fcntl.LOCK_SH)
                    self._used[name] = (lab, file)
                    return lab
                file.close()
        raise AssertionError("not reached")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the labs that no other worker of this session uses."""
        for name, (lab, file) in reversed(self._used.items()):
            made = self._shared / f"image-{name}.json"
            with file, waiting_lock(made.with_suffix(".lock")), suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                made.unlink(missing_ok=True)
                fleet.down(lab, lambda _: None)


def _shared_lock(lab: str) -> IO[str]:
    file = (LOCKS / f"session-{lab}.lock").open("a")
    fcntl.flock(file, fcntl.LOCK_SH)
    return file


def _up(lab: Lab, folder: Path) -> dict[str, Any]:
    operator = Operator(lab.inventory, folder / "image-runs")
    done = {step: operator.call(verb, timeout=1500) for step, verb in STEPS.items()}
    return {"done": {step: (one.args, one.returncode, one.stdout, one.stderr) for step, one in done.items()}}


def _in_service(lab: Lab, folder: Path) -> dict[str, Any]:
    operator = Operator(lab.inventory, folder / "image-runs")
    done = operator.call("up", "--yes", timeout=1500, **IN_SERVICE)
    assert done.returncode == ExitCode.OK, said(done)
    return {}


def _slurm(lab: Lab, _: Path) -> dict[str, Any]:
    slurm_cluster.install(lab.nodes, "openmpi-bin", *slurm_cluster.PACKAGES)
    lab.node("gpu-01").as_root("systemctl disable slurmd slurmctld")  # would search for a cluster at boot
    return {}


def _slurm_alone(lab: Lab, _: Path) -> dict[str, Any]:
    lab.node("gpu-01").as_root("apt-get update -q", timeout=300)
    slurm_cluster.install(lab.nodes, *slurm_cluster.PACKAGES)
    lab.node("gpu-01").as_root("systemctl disable slurmd slurmctld")
    return {}
