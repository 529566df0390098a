"""A node's simulated hardware in the tools' view: state.json, loaded modules, running programs.

The folder is /var/lib/silicon on a node (SILICON_STATE elsewhere). Files of the node itself, such as
libraries and kernel modules, lie under SILICON_ROOT (default /).
"""

import json
import os
import re
from pathlib import Path

import noise
from skus import SKUS

SCHEMA = 1
VERSION_LINE = re.compile(r"(Open Kernel Module for \S+|\S+ Kernel Module)\s+(\S+)")


class StateError(Exception):
    """The state cannot be used; the text is a one-line message."""


def write_atomically(path: Path, text: str) -> None:
    """Replace the file in one step, so that readers never see a partial file."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text)
    fresh.chmod(0o644)  # every user of a node runs the tools
    fresh.replace(path)


def folder_from_environment() -> Path:
    """Return the folder of this node's state."""
    return Path(os.environ.get("SILICON_STATE", "/var/lib/silicon"))


class Node:
    """One node. `sku`: its entry in SKUS; `vendor`: its GPUs' vendor, `nvidia` or `amd`.
    `faults`: the active faults; `run_number`: differs for each run of a tool."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.data = json.loads((folder / "state.json").read_text())
            schema = self.data["schema"]
            if schema != SCHEMA:
                raise StateError(f"{folder}/state.json has schema {schema}; this program knows {SCHEMA}")
            self.sku_name = self.data["sku"]
            self.sku = SKUS[self.sku_name]
            self.vendor = self.sku.get("vendor", "nvidia")
            self.name, self.seed = self.data["name"], self.data["seed"]
            self.speed = float(self.data["speed"])
            self.faults = self.data["faults"]
            if self.fault("guest"):
                self.sku = dict(self.sku, **self.sku["guest"])
            self.gpus = [self._fitted(gpu) for gpu in self.data["gpus"]]
        except FileNotFoundError:
            raise StateError(f"{folder}/state.json is missing: this node has no simulated GPUs") from None
        except (ValueError, KeyError, TypeError) as error:
            raise StateError(f"{folder}/state.json cannot be read: {error!r}") from None
        self.root = Path(os.environ.get("SILICON_ROOT", "/"))
        self.run_number = 0
        self.loaded_since = None  # when this process began its load

    def _fitted(self, gpu: dict) -> dict:
        """Return the GPU in this slot, which may have been swapped, with its flashed firmware."""
        if self.fault("gpu_swapped", gpu=gpu["slot"]):
            words = (self.seed, self.name, gpu["slot"])
            identity = noise.identity("swapped", *words)
            serial = self.sku["serial"] + noise.digits(10, "swapped", *words)
            gpu = dict(gpu, uuid=f"GPU-{identity}", serial=serial)
        return dict(gpu, vbios=self.given("vbios", "version", self.sku["vbios"], gpu=gpu["slot"]))

    def save(self) -> None:
        """Write state.json atomically."""
        self.data["faults"] = self.faults
        write_atomically(self.folder / "state.json", json.dumps(self.data, indent=1) + "\n")

    def count_run(self) -> None:
        """Take the next run number, the seed of this run's noise; without write access use the pid."""
        try:
            with (self.folder / "counter").open("r+") as stream:
                self.run_number = int(stream.read() or 0) + 1
                stream.seek(0)
                stream.write(f"{self.run_number}\n")
                stream.truncate()
        except (OSError, ValueError):
            self.run_number = os.getpid()

    # -- faults

    def fault(self, name: str, **match):
        """Return the first active fault of this id whose parameters are `match`, or None."""
        for fault in self.faults:
            if fault.get("onset") and not fault.get("struck"):
                continue  # it appears once a load has run for a while
            if fault["id"] == name and all(fault.get(key) == value for key, value in match.items()):
                return fault
        return None

    def given(self, name: str, key: str, otherwise, **match):
        """Return a parameter of the fault that `fault` finds, or `otherwise` without one."""
        fault = self.fault(name, **match)
        return fault[key] if fault else otherwise

    def factor(self, name: str, **match) -> float:
        """Return the fraction of a healthy rate that the fault found by `fault` leaves."""
        return self.given(name, "factor", 1.0, **match)

    # -- devices

    def on_bus(self) -> list:
        """Return the GPUs on the PCI bus in index order, each as its dict of state.json."""
        return [gpu for gpu in self.gpus if not self.fault("gpu_missing", gpu=gpu["slot"])]

    def present(self) -> list:
        """Return the GPUs on the bus that responded when the driver was loaded."""
        return [gpu for gpu in self.on_bus() if not self.fault("gpu_off_bus_at_boot", gpu=gpu["slot"])]

    def lost(self, gpu) -> bool:
        """Whether the GPU was present at boot and no longer responds."""
        return self.fault("gpu_off_bus", gpu=gpu["slot"]) is not None

    def silent(self, gpu) -> str:
        """Return the driver's error for every query of this GPU; empty if it responds."""
        return self.given("gpu_silent", "error", "", gpu=gpu["slot"])

    def usable(self) -> list:
        """Return the GPUs that CUDA offers."""
        return [gpu for gpu in self.present() if not self.lost(gpu) and not self.silent(gpu)]

    def linked(self, a: int, b: int) -> int:
        """Return the number of NVLinks between two GPUs, by slot; a switch connects all with all links."""
        if not self.sku["links"] or a == b:
            return 0
        if self.fault("pair_disabled", a=min(a, b), b=max(a, b)):
            return 0
        pairs = self.sku.get("pairs")
        if pairs and sorted([a, b]) not in pairs:
            return 0
        return min(self.active_links(a), self.active_links(b))

    def active_links(self, slot: int) -> int:
        """Return the number of a GPU's active NVLinks."""
        down = {
            fault["link"] for fault in self.faults if fault["id"] == "nvlink_down" and fault["gpu"] == slot
        }
        return self.sku["links"] - len(down)

    # -- driver

    def driver(self):
        """Return (version, flavour) of NVIDIA's loaded module, or None."""
        try:
            text = (self.folder / "proc_driver/nvidia/version").read_text()
        except OSError:
            return None
        found = VERSION_LINE.search(text)
        if not found:
            return None
        return found.group(2), "open" if "Open" in found.group(1) else "proprietary"

    def privileged(self) -> bool:
        """Whether the caller is this node's administrator, who may write its state."""
        return os.access(str(self.folder / "state.json"), os.W_OK)

    def library(self) -> str:
        """Return the version of NVIDIA's user space, from the link libnvidia-ml.so.1; empty if missing."""
        for place in ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64"):
            link = self.root / place / "libnvidia-ml.so.1"
            if link.is_symlink():
                target = os.readlink(str(link))  # noqa: PTH115 (Path.readlink came with 3.9)
                return target.rpartition("libnvidia-ml.so.")[2]
        return ""

    def loaded(self, module: str) -> bool:
        """Whether the simulated kernel has loaded the module."""
        return (self.folder / "sys_module" / module.replace("-", "_") / "initstate").exists()

    # -- running programs

    def fabric_ready(self) -> bool:
        """Whether CUDA programs find an initialised NVLink fabric, or need none."""
        if not self.sku["fabric"]:
            return True
        managed = self.sku["fabric"] == "imex" or self.running("fabricmanager.ready")
        return managed and not self.fault("fabric_down")

    def running(self, marker: str) -> bool:
        """Whether the process that left run/<marker> (which contains its pid) is alive."""
        try:
            pid = int((self.folder / "run" / marker).read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return False
        return Path(f"/proc/{pid}").exists()

    def loads(self) -> dict:
        """Return slot -> {tool, pid, since} of the running load tools, from their markers."""
        found = {}
        for marker in sorted((self.folder / "run").glob("load.*")):
            try:
                load = json.loads(marker.read_text())
            except (OSError, ValueError):
                continue
            if Path("/proc/{}".format(load["pid"])).exists():
                found.update(dict.fromkeys(load["slots"], load))
        return found
