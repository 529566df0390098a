"""NVIDIA's own nvidia-smi, run above a table of values."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from provision.checks.check import Output
from provision.checks.judging.registry import CHECKS
from tests.printers import debian, nvml_library
from tests.printers.in_service import Printed
from tests.printers.nvml_values import Machine
from tests.support.checks import make_node, make_output

# Driver → Debian's package, its suite, and the folder of the program in it.
_CURRENT = "usr/lib/nvidia/current"
RELEASES = {
    "470.256.02": ("nvidia-tesla-470-smi", "bookworm", "usr/lib/nvidia/tesla-470"),
    "535.261.03": ("nvidia-smi", "bookworm", _CURRENT),
    "550.163.01": ("nvidia-smi", "trixie", _CURRENT),
    "555.58.02": ("nvidia-smi", "experimental", _CURRENT),
}
HEADER = ("libnvidia-ml-dev", "trixie", "non-free")  # package, suite and component of nvml.h
_QUIET_LOG = "[    0.000000] Linux version 6.8.0\n"


@dataclass(frozen=True)
class NvidiaSmi:
    """One release of the program, the folder of the library below it, and where its table goes."""

    program: Path
    library: Path
    table: Path
    healthy: dict[str, Printed] = field(default_factory=dict)  # SKU → what a healthy machine prints

    def run(self, machine: Machine, *arguments: str) -> Output:
        """Run it on a machine; the time limit is 20 s."""
        nvml_library.write_table(self.table, machine)
        values = {"GPUPROV_NVML_TABLE": str(self.table), "LD_LIBRARY_PATH": str(self.library)}
        begun = time.monotonic()
        done = subprocess.run(
            [str(self.program), *arguments],
            env={**os.environ, **values},
            capture_output=True,
            timeout=20,
            check=False,
        )
        out, err = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
        seconds = time.monotonic() - begun
        return make_output(
            "nvidia_smi",
            out,
            argv=("nvidia-smi", *arguments),
            rc=done.returncode,
            stderr=err,
            seconds=seconds,
        )

    def script(self, machine: Machine) -> str:
        """The lines of a shell script that runs it on a machine with its own arguments."""
        nvml_library.write_table(self.table, machine)
        values = f"GPUPROV_NVML_TABLE={self.table} LD_LIBRARY_PATH={self.library}"
        return f'exec env {values} {self.program} "$@"'

    def inventory(self, machine: Machine) -> tuple[Output, ...]:
        """Run every nvidia-smi command of gpu_inventory, and add a kernel log without errors."""
        node = make_node(machine.count, machine.name, machine.sku["fabric"], machine.sku["architecture"])
        found = []
        for command in CHECKS["gpu_inventory"].commands(node, {}):
            if command.argv[0] == "nvidia-smi":
                output = self.run(machine, *command.argv[1:])
                found.append(
                    make_output(
                        command.name, output.stdout, argv=command.argv, rc=output.rc, stderr=output.stderr
                    )
                )
            elif command.name == "dmesg":
                found.append(make_output("dmesg", _QUIET_LOG, argv=command.argv))
        return tuple(found)


Printers = Callable[[str], NvidiaSmi]  # by the version of the driver


def release(driver: str, library: Path) -> NvidiaSmi:
    """The program of one release, above the library in this folder. Raises LabError."""
    package, suite, place = RELEASES[driver]
    files = debian.unpacked(package, suite, "non-free")
    return NvidiaSmi(files / Path(place) / "nvidia-smi", library, library / f"values-{driver}")
