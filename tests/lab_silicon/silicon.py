"""A simulated node in a temporary folder, with tools that run as on a lab node: one process each."""

from __future__ import annotations

import atexit
import io
import json
import os
import platform
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gpuprov_lab
from gpuprov_lab.elf import kernel_module

RUN = Path(gpuprov_lab.__file__).with_name("silicon") / "run.py"
MODULES = ("nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm")


@cache
def tool_server() -> socket.socket:
    """Return the socket of the tool server, which ends once no client is left."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program = Path(__file__).with_name("tool_server.py")
    server = subprocess.Popen(
        [sys.executable, "-I", "-S", str(program), str(RUN), str(theirs.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"]},
        pass_fds=[theirs.fileno()],
    )
    theirs.close()

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


@dataclass
class Silicon:
    """One node: its state folder, and the tree of its libraries and modules."""

    state: Path
    root: Path

    def run(
        self, tool: str, *words: str, timeout: float = 60, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a tool to its end, in a folder with gpu_burn's compare.ptx."""
        stdout, stderr, rc = self._run([tool, *words], timeout, environment)
        texts = (io.TextIOWrapper(io.BytesIO(one), "utf-8", "replace").read() for one in (stdout, stderr))
        return subprocess.CompletedProcess([tool, *words], rc, *texts)

    def raw(self, tool: str, *words: str, **environment: str) -> bytes:
        """Return a tool's raw standard output."""
        return self._run([tool, *words], 60, environment)[0]

    def _run(self, words: list[str], timeout: float, environment: dict[str, str]) -> tuple[bytes, bytes, int]:
        request = {
            "words": words,
            "environment": self.environment(**environment),
            "cwd": str(self.root / "usr/share/gpu-burn"),
        }
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            told, tell = os.pipe()
            files = [stdout.fileno(), stderr.fileno(), tell]
            socket.send_fds(tool_server(), [json.dumps(request).encode()], files)
            os.close(tell)
            with open(told, "rb") as answer:  # noqa: PTH123 - a handle
                pid = int(answer.readline())
                if not select.select([told], [], [], timeout)[0]:
                    os.kill(pid, signal.SIGKILL)
                    raise subprocess.TimeoutExpired(words, timeout)
                rc = int(answer.readline())
            stdout.seek(0)
            stderr.seek(0)
            return stdout.read(), stderr.read(), rc

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
        """Run `fault set …` or `fault clear …`, which must succeed."""
        done = self.run("fault", "--dir", str(self.state), *words)
        assert done.returncode == 0, done.stderr

    def break_(self, *faults: str) -> None:
        """Set these faults, such as `gpu_slow gpu=1 factor=0.5`."""
        for fault in faults:
            self.fault("set", *fault.split(" "))

    def printed(self, tool: str, *words: str, status: int = 0, **environment: str) -> str:
        """Return the output of a tool that must end with this status."""
        done = self.run(tool, *words, timeout=60, **environment)
        assert done.returncode == status, done.stdout + done.stderr
        return str(done.stdout)

    def smi(self, *words: str, status: int = 0) -> str:
        return self.printed("nvidia-smi", *words, status=status)

    def column(self, fields: str, *more: str) -> list[str]:
        """Return these fields of each GPU."""
        return self.smi(f"--query-gpu={fields}", "--format=csv,noheader,nounits", *more).splitlines()

    def loaded(self, *slots: int) -> None:
        """Leave the mark of a load tool that has been running for an hour."""
        mark = {"tool": "gpu_burn", "pid": os.getpid(), "since": time.time() - 3600, "slots": list(slots)}
        (self.state / f"run/load.{os.getpid()}").write_text(json.dumps(mark))

    def boot(self, driver: str = "", flavour: str = "open") -> Silicon:
        """Boot; if a driver is named, first install it and blacklist nouveau."""
        if driver:
            self.install(driver, flavour)
            self.blacklist()
        assert self.run("boot").returncode == 0
        return self

    def served(self, tool: str, *words: str, **environment: str) -> tuple[Any, str]:
        """Run the tool against itself; return the completed client and the server's output."""
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        known = self.environment(**environment)
        with subprocess.Popen(self.command(tool, *words), env=known, **pipes) as server:
            try:
                client = self.run(tool, *words, "localhost", timeout=60, **environment)
                return client, server.communicate(timeout=30)[0]
            finally:
                server.kill()

    def install(self, driver: str, flavour: str = "open") -> None:
        """Put a driver's modules and libraries on disk, as its packages do."""
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
        """Blacklist nouveau, as every driver installation does."""
        self.file("etc/modprobe.d/blacklist-nouveau.conf", "blacklist nouveau\noptions nouveau modeset=0\n")

    def file(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def json(self, name: str) -> Any:
        return json.loads((self.state / name).read_text())


def made(
    folder: Path,
    sku: str = "h100-sxm",
    name: str = "gpu-01",
    seed: int = 7,
    speed: float = 2000,
    network: str = "ib",
) -> Silicon:
    """Make a node without a driver in this folder."""
    node = Silicon(folder / name / "state", folder / name / "root")
    (node.root / "usr/share/gpu-burn").mkdir(parents=True)
    (node.root / "usr/share/gpu-burn/compare.ptx").touch()
    words = ["--sku", sku, "--name", name, "--seed", str(seed), "--speed", str(speed)]
    words += ["--network", network]
    done = node.run("new", "--dir", str(node.state), *words)
    assert done.returncode == 0, done.stderr
    return node


def start(node: Silicon, driver: str, fabric: bool = True) -> None:
    """Install and load a driver and, by default, mark the fabric as running."""
    node.boot(driver)
    if fabric:
        # Fabric manager is a daemon; the tools only check its mark, which names a live process.
        (node.state / "run/fabricmanager.ready").write_text(f"{os.getpid()}\n")
