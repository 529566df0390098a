"""A simulated node in a temporary folder, with tools that run as on a lab node: one process each."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from tests.lab_silicon.silicon import Silicon, made, start
from tests.lab_silicon.surfaces import Surface

DRIVER = "580.126.09"


@contextmanager
def _server(node: Silicon, words: tuple[str, ...]) -> Iterator[None]:
    """Run the server side, if there is one, from when it listens until the block ends."""
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
    """Return a file's text, or `path<TAB>text` for each file of a folder."""
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
    """Return a function that makes nodes without a driver."""
    return partial(made, tmp_path)


@pytest.fixture
def node(bare: Callable[..., Silicon]) -> Iterator[Callable[..., Silicon]]:
    """Yield a function that makes nodes with a loaded driver and, if possible, a running fabric."""
    running = []

    def make(sku: str = "h100-sxm", driver: str = DRIVER, fabric: bool = True, **more: Any) -> Silicon:
        one = bare(sku, **more)
        running.append(one)
        start(one, driver, fabric)
        return one

    yield make
    for one in running:
        _stop(one)


@pytest.fixture
def pair(node: Callable[..., Silicon]) -> list[Silicon]:
    return [node(name="gpu-01", seed=1), node(name="gpu-02", seed=2)]


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
    """Yield a function: surface → the simulator's output and exit status, produced once per session."""
    nodes: dict[tuple[Any, ...], Silicon] = {}

    def node_of(surface: Surface) -> Silicon:
        if surface.node not in nodes:
            one = nodes[surface.node] = made(tmp_path_factory.mktemp("surface"), surface.sku)
            start(one, surface.driver)
            assert one.run("nvidia-smi", "-pm", "1").returncode == 0
            for fault in surface.faults:
                one.break_(fault)
        return nodes[surface.node]

    @cache
    def run(surface: Surface) -> tuple[str, int]:
        one = node_of(surface)
        with _server(one, surface.server):
            return _printed(one, surface)

    yield run
    for one in nodes.values():
        _stop(one)
