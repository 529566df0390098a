"""A simulated machine in a folder, for one tool at a time.

Its tools run as `silicon/run.py TOOL …`, with the environment that `make` returns.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from gpuprov_lab.elf import kernel_module
from gpuprov_lab.places import SILICON

_MODULES = ("nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm")
_SPEED = "2000"
_MAKE = 60.0  # seconds for each step of making it
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_NCCL = "2.27.7"


def make(folder: Path, sku: str, driver: str, rocm: str = "") -> Mapping[str, str]:
    """Make a healthy machine with a loaded driver, AMD's if `rocm` is set; returns its environment.
    Raises CalledProcessError with the simulator's error for unknown arguments."""
    state, root = folder / "state", folder / "root"
    environment = {"SILICON_STATE": str(state), "SILICON_ROOT": str(root), "TZ": "UTC"}
    if rocm:
        _files_of_amd(root, driver, rocm)
    else:
        _files(root, driver)
    words = ["--dir", str(state), "--sku", sku, "--name", "simulated", "--seed", "1", "--speed", _SPEED]
    _run(["new", *words], environment)
    _run(["boot"], environment)
    # The tools check fabric manager's marker file, which holds the PID of a living process.
    (state / "run/fabricmanager.ready").write_text("1\n", encoding="utf-8")
    return environment


def _files(root: Path, driver: str) -> None:
    """Write the files that the packages of the driver and of the tools install."""
    modules = root / "lib/modules" / platform.release() / "updates/dkms"
    for place in (root / _LIBRARIES, root / "usr/share/gpu-burn", root / "etc/modprobe.d", modules):
        place.mkdir(parents=True)
    (root / "usr/share/gpu-burn/compare.ptx").touch()
    (root / "etc/modprobe.d/nouveau.conf").write_text("blacklist nouveau\noptions nouveau modeset=0\n")
    for name, version in (("nvidia-ml.so.1", driver), ("cuda.so.1", driver), ("nccl.so.2", _NCCL)):
        file = f"lib{name.partition('.so.')[0]}.so.{version}"
        (root / _LIBRARIES / file).write_bytes(b"\x7fELF\x02")
        (root / _LIBRARIES / f"lib{name}").symlink_to(file)
    for name in _MODULES:
        depends = [] if name == "nvidia" else ["nvidia"]
        module = kernel_module(name, driver, "open", platform.release(), depends)
        (modules / f"{name}.ko").write_bytes(module)


def _files_of_amd(root: Path, driver: str, rocm: str) -> None:
    """Write the files that the packages of AMD's driver and of ROCm install."""
    release = platform.release()
    places = [root / "lib/modules" / release / "updates/dkms", root / "opt/rocm/.info"]
    for place in (*places, root / "usr/share/gpu-burn"):
        place.mkdir(parents=True)
    (places[0] / "amdgpu.ko").write_bytes(kernel_module("amdgpu", driver, "open", release, []))
    (places[1] / "version").write_text(f"{rocm}\n", encoding="utf-8")


def _run(words: list[str], environment: Mapping[str, str]) -> None:
    argv = [sys.executable, "-I", "-S", str(SILICON / "run.py"), *words]
    subprocess.run(
        argv, env={**os.environ, **environment}, capture_output=True, text=True, timeout=_MAKE, check=True
    )
