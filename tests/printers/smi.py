"""NVIDIA's own nvidia-smi, run on top of a table of values."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from gpuprov_lab import nvml_library, real_smi
from gpuprov_lab.real_smi import RELEASES as RELEASES
from gpuprov_lab.silicon.nvidia_smi.nvml_values import Machine
from provision.checks.check import Command, Output
from provision.checks.judging.registry import CHECKS
from tests.printers.in_service import Printed
from tests.support.checks import make_node, make_output

_QUIET_LOG = "[    0.000000] Linux version 6.8.0\n"


@dataclass(frozen=True)
class NvidiaSmi:
    """One release of the program, the folder of the library below it, and the path of its table."""

    program: Path
    library: Path
    table: Path
    healthy: dict[str, Printed] = field(default_factory=dict)  # SKU → the output of a healthy machine

    def run(self, machine: Machine, *arguments: str) -> Output:
        """Run the program on a machine; the timeout is 20 s."""
        nvml_library.write_table(self.table, machine)
        return self._run(*arguments)

    def _run(self, *arguments: str) -> Output:
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
        """Return a line of shell script that runs the program on a machine with the script's arguments."""
        nvml_library.write_table(self.table, machine)
        values = f"GPUPROV_NVML_TABLE={self.table} LD_LIBRARY_PATH={self.library}"
        return f'exec env {values} {self.program} "$@"'

    def inventory(self, machine: Machine) -> tuple[Output, ...]:
        """Run every nvidia-smi command of gpu_inventory, and add a kernel log without errors."""
        nvml_library.write_table(self.table, machine)
        found = []
        for command in _commands(
            machine.count, machine.name, machine.sku["fabric"], machine.sku["architecture"]
        ):
            if command.argv[0] == "nvidia-smi":
                output = self._run(*command.argv[1:])
                found.append(
                    make_output(
                        command.name, output.stdout, argv=command.argv, rc=output.rc, stderr=output.stderr
                    )
                )
            elif command.name == "dmesg":
                found.append(make_output("dmesg", _QUIET_LOG, argv=command.argv))
        return tuple(found)


@cache
def _commands(*kind: Any) -> tuple[Command, ...]:
    """Return gpu_inventory's commands on a node of this kind, which are the same for all its faults."""
    return tuple(CHECKS["gpu_inventory"].commands(make_node(*kind), {}))


Printers = Callable[[str], NvidiaSmi]  # by the version of the driver


def release(driver: str, folder: Path) -> NvidiaSmi:
    """Return the program of one release, with its tables in this folder. Raises LabError."""
    return NvidiaSmi(real_smi.program(driver), real_smi.library(), folder / f"values-{driver}")
