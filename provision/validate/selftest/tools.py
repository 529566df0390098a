"""The programs that checks need: their paths on this machine, and how to install a missing one."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Where the checks' own runner looks (provision/node/modules/gpuprov_run.py).
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/cuda/bin"
_BUILT = "`gpuprov up` installs it, role validation_tools; `gpuprov selftest --build` builds it from source"
_COLLECTIVES = ("all_reduce_perf", "all_gather_perf", "reduce_scatter_perf", "alltoall_perf")
_HOW = {
    "nvidia-smi": "it comes with the driver: `gpuprov up`, role nvidia_driver",
    "gpu_burn": _BUILT,
    "nvbandwidth": _BUILT,
    **dict.fromkeys(_COLLECTIVES, _BUILT),
    "ib_write_bw": "install the distribution's package perftest",
    "dcgmi": "install NVIDIA's package datacenter-gpu-manager-4-cuda12 (or -cuda13)",
    "fio": "install the distribution's package fio",
}
_ALSO = {"gpu_burn": ("gpu-burn",)}  # as a distribution calls it
_KERNELS = ("compare.ptx", "compare.fatbin")  # gpu_burn's, until May 2026 and since


@dataclass(frozen=True)
class Tool:
    """One program. `path` is empty when it is not here; then `how` says how to get it."""

    name: str
    path: str
    how: str = ""


def variable(tool: str) -> str:
    """The variable with which an inventory says where the tool is."""
    return f"validation_tools_{tool}_path"


def find(declared: Mapping[str, Any]) -> dict[str, Tool]:
    """Every tool by name: where the variables say, else on the path."""
    return {
        tool: Tool(tool, path, "" if path else how)
        for tool, how in _HOW.items()
        for path in [_place(tool, declared)]
    }


def _place(tool: str, declared: Mapping[str, Any]) -> str:
    stated = declared.get(variable(tool))
    if isinstance(stated, str) and stated:
        return shutil.which(stated) or ""
    return next(filter(None, (shutil.which(name, path=PATH) for name in (tool, *_ALSO.get(tool, ())))), "")


def variables(found: Iterable[Tool], declared: Mapping[str, Any]) -> dict[str, Any]:
    """What an inventory would say of these tools; what is declared already stays."""
    stated: dict[str, Any] = {variable(tool.name): tool.path for tool in found if tool.path}
    burn = next((tool.path for tool in found if tool.name == "gpu_burn"), "")
    if burn:
        folders = [Path("/usr/share/gpu-burn"), Path(burn).resolve().parent]
        stated["validation_tools_gpu_burn_dir"] = str(
            next((one for one in folders if any((one / name).exists() for name in _KERNELS)), folders[0])
        )
    if any(tool.path for tool in found if tool.name == "dcgmi"):
        stated["validation_tools_dcgm_level"] = 1  # its deployment checks: seconds
    return {**stated, **declared}
