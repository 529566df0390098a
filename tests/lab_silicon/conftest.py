"""A simulated node in a temporary folder, whose tools run as they do on a lab node: one process each."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

import provision.lab
from provision.lab.elf import kernel_module
from tests.lab_silicon.surfaces import Surface

RUN = Path(provision.lab.__file__).with_name("silicon") / "run.py"
MODULES = ("nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm")
DRIVER = "580.126.09"


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


def _new(
    folder: Path,
    sku: str = "h100-sxm",
    name: str = "gpu-01",
    seed: int = 7,
    speed: float = 2000,
    network: str = "ib",
) -> Silicon:
    """A node without a driver, in this folder."""
    node = Silicon(folder / name / "state", folder / name / "root")
    (node.root / "usr/share/gpu-burn").mkdir(parents=True)
    (node.root / "usr/share/gpu-burn/compare.ptx").touch()
    words = ["--sku", sku, "--name", name, "--seed", str(seed), "--speed", str(speed)]
    words += ["--network", network]
    done = node.run("new", "--dir", str(node.state), *words)
    assert done.returncode == 0, done.stderr
    return node


def _start(node: Silicon, driver: str, fabric: bool = True) -> None:
    """Install and load a driver and, unless told otherwise, mark the fabric as running."""
    node.install(driver)
    node.blacklist()
    assert node.run("boot").returncode == 0
    if fabric:
        # Fabric manager itself is a daemon; its mark with a living process is what the tools look at.
        (node.state / "run/fabricmanager.ready").write_text(f"{os.getpid()}\n")


@contextmanager
def _server(node: Silicon, words: tuple[str, ...]) -> Iterator[None]:
    """Run the other side, if there is one, from when it listens until the block ends."""
    if not words:
        yield
        return
    with subprocess.Popen(node.command(*words), env=node.environment(), stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout
            while b"Waiting" not in server.stdout.readline():
                assert server.poll() is None
            yield
        finally:
            server.kill()


def _of_file(node: Silicon, name: str) -> str:
    """What is in a file, or in all files of a folder, `path<TAB>text` for each."""
    if not name:
        return ""
    path = node.root.parent / name
    if path.is_file():
        return path.read_text()
    files = sorted(one for one in path.rglob("*") if one.is_file())
    return "".join(f"{path.name}/{one.relative_to(path)}\t{one.read_text().strip()}\n" for one in files)


def _stop(node: Silicon) -> None:
    for marker in (node.state / "run").glob("persistenced*"):
        if marker.exists():
            os.kill(int(marker.read_text()), 15)


@pytest.fixture
def bare(tmp_path: Path) -> Callable[..., Silicon]:
    """Makes nodes without a driver."""
    return partial(_new, tmp_path)


@pytest.fixture
def node(bare: Callable[..., Silicon]) -> Iterator[Callable[..., Silicon]]:
    """Makes nodes with a loaded driver and, where there is one, a running fabric; stops what they started."""
    made = []

    def make(sku: str = "h100-sxm", driver: str = DRIVER, fabric: bool = True, **more: Any) -> Silicon:
        one = bare(sku, **more)
        made.append(one)
        _start(one, driver, fabric)
        return one

    yield make
    for one in made:
        _stop(one)


def _printed(one: Silicon, surface: Surface) -> tuple[str, int]:
    done = subprocess.run(
        one.command(*surface.words),
        env=one.environment(**dict(surface.environment)),
        cwd=one.root / "usr/share/gpu-burn",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if surface.stderr else subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    return _of_file(one, surface.file) or done.stdout.decode(), done.returncode


@pytest.fixture(scope="session")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Surface], tuple[str, int]]]:
    """What the simulator prints for a surface, and its exit status; each asked for once a session."""
    nodes: dict[tuple[Any, ...], Silicon] = {}

    def node_of(surface: Surface) -> Silicon:
        if surface.node not in nodes:
            one = nodes[surface.node] = _new(tmp_path_factory.mktemp("surface"), surface.sku)
            _start(one, surface.driver)
            assert one.run("nvidia-smi", "-pm", "1").returncode == 0
            for fault in surface.faults:
                one.fault("set", *fault.split(" "))
        return nodes[surface.node]

    @cache
    def run(surface: Surface) -> tuple[str, int]:
        one = node_of(surface)
        with _server(one, surface.server):
            return _printed(one, surface)

    yield run
    for one in nodes.values():
        _stop(one)
