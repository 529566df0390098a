"""A simulated node in a temporary folder, whose tools run as they do on a lab node: one process each."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import provision.lab
from provision.lab.elf import kernel_module

RUN = Path(provision.lab.__file__).with_name("silicon") / "run.py"
MODULES = ("nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm")


@dataclass
class Silicon:
    """One node: its state folder, and the tree where its libraries and modules are."""

    state: Path
    root: Path

    def run(
        self, tool: str, *words: str, timeout: float = 60, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a tool to its end; the folder it runs in holds gpu_burn's compare.ptx."""
        return subprocess.run(
            self.command(tool, *words),
            env=self.environment(**environment),
            cwd=self.root / "usr/share/gpu-burn",
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout,
            check=False,
        )

    def raw(self, tool: str, *words: str, **environment: str) -> bytes:
        """A tool's stdout, byte for byte."""
        done = subprocess.run(
            self.command(tool, *words),
            env=self.environment(**environment),
            cwd=self.root / "usr/share/gpu-burn",
            stdout=subprocess.PIPE,
            timeout=60,
            check=False,
        )
        return done.stdout

    def command(self, tool: str, *words: str) -> list[str]:
        return [sys.executable, "-I", "-S", str(RUN), tool, *words]

    def environment(self, **more: str) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "TZ": "UTC",
            "SILICON_STATE": str(self.state),
            "SILICON_ROOT": str(self.root),
            **more,
        }

    def fault(self, *words: str) -> None:
        """`set …` or `clear …`, which must be accepted."""
        done = self.run("fault", "--dir", str(self.state), *words)
        assert done.returncode == 0, done.stderr

    def install(self, driver: str, flavour: str = "open") -> None:
        """Put a driver's modules and libraries on the disk, as its packages do."""
        libraries = self.root / "usr/lib/x86_64-linux-gnu"
        libraries.mkdir(parents=True, exist_ok=True)
        for name, version in (
            ("libnvidia-ml.so.1", driver),
            ("libcuda.so.1", driver),
            ("libnccl.so.2", "2.27.7"),
        ):
            (libraries / name).unlink(missing_ok=True)
            stem = name.partition(".so.")[0]
            (libraries / name).symlink_to(f"{stem}.so.{version}")
            (libraries / f"{stem}.so.{version}").write_bytes(b"\x7fELF\x02")
        place = self.root / "lib/modules" / platform.release() / "updates/dkms"
        place.mkdir(parents=True, exist_ok=True)
        for module in MODULES:
            depends = [] if module == "nvidia" else ["nvidia"]
            (place / f"{module}.ko").write_bytes(
                kernel_module(module, driver, flavour, platform.release(), depends)
            )

    def blacklist(self) -> None:
        """What every driver installation does to nouveau."""
        self.file("etc/modprobe.d/blacklist-nouveau.conf", "blacklist nouveau\noptions nouveau modeset=0\n")

    def file(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def json(self, name: str) -> Any:
        return json.loads((self.state / name).read_text())
