"""Limits of this machine are reported in one line before a node is blamed for them."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from provision.remote.ssh.connection import Hop, Route
from provision.remote.ssh.fanout import fitting, neighbours, room

ROUTES = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0100010A\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t0000010A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
eth1\t0000020A\t0100010A\t0003\t0\t0\t0\t0000FFFF\t0\t0\t0
"""


class Files:
    """The limit on open files of a simulated process."""

    def __init__(self, soft: int, hard: int, refuses: bool = False) -> None:
        self.limits, self.refuses = (soft, hard), refuses

    def get(self, _what: int) -> tuple[int, int]:
        return self.limits

    def set(self, _what: int, limits: tuple[int, int]) -> None:
        if self.refuses:
            raise ValueError("not allowed to raise maximum limit")
        assert limits[0] <= self.limits[1]
        self.limits = limits


def room_for(wanted: int, files: Files, programs: bool = False) -> tuple[int, str]:
    found = room(wanted, programs=programs, limits=files.get, raise_to=files.set)
    return found.connections, found.note


def test_with_enough_files_nothing_is_changed_or_said() -> None:
    files = Files(4096, 4096)
    assert room_for(512, files) == (512, "")
    assert files.limits == (4096, 4096)


def test_the_soft_limit_is_raised_as_far_as_needed() -> None:
    files = Files(256, 1_000_000)
    assert room_for(512, files) == (512, "")
    assert 512 * 2 < files.limits[0] < 2000
    assert files.limits[1] == 1_000_000


@pytest.mark.parametrize("files", [Files(256, 256), Files(256, 4096, refuses=True), Files(128, 256)])
def test_where_it_cannot_be_raised_fewer_are_asked_and_it_is_said(files: Files) -> None:
    count, note = room_for(512, files)
    assert count == (256 - 64) // 2
    assert "at most 96 SSH connections" in note
    assert "instead of 512" in note
    assert "ulimit -n 1088" in note
    assert "\n" not in note


def test_one_node_at_a_time_is_always_asked() -> None:
    assert room_for(512, Files(20, 20))[0] == 1


def test_without_a_limit_there_is_room() -> None:
    assert room_for(512, Files(resource.RLIM_INFINITY, resource.RLIM_INFINITY)) == (512, "")


def test_a_program_for_each_connection_needs_more_files() -> None:
    assert room_for(64, Files(256, 256), programs=True)[0] < room_for(64, Files(256, 256))[0]


@pytest.fixture
def proc(tmp_path: Path) -> Callable[..., Path]:
    def make(limit: str = "100", routes: str = ROUTES) -> Path:
        for name, text in (("sys/net/ipv4/neigh/default/gc_thresh3", limit), ("net/route", routes)):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return make


def hosts(count: int, network: str = "10.1") -> list[str]:
    return [f"{network}.{number // 250}.{number % 250}" for number in range(count)]


def test_more_neighbours_than_the_kernel_remembers_are_explained(proc: Callable[..., Path]) -> None:
    said = neighbours(hosts(100), proc())
    assert said.startswith("100 nodes are on this machine's own networks, and its kernel remembers 100")
    assert "net.ipv4.neigh.default.gc_thresh3=400" in said
    assert "\n" not in said


@pytest.mark.parametrize(
    "near",
    [
        hosts(99),  # they fit
        hosts(500, "10.2"),  # behind a gateway
        hosts(500, "192.168"),  # behind the default gateway
        [*hosts(50), *hosts(500, "10.2"), *(f"gpu-{number}" for number in range(500))],
    ],
)
def test_nodes_that_are_no_neighbours_need_no_place(proc: Callable[..., Path], near: list[str]) -> None:
    assert neighbours(near, proc()) == ""


def test_a_kernel_that_does_not_say_is_not_judged(tmp_path: Path, proc: Callable[..., Path]) -> None:
    assert neighbours(hosts(500), tmp_path / "nothing") == ""
    assert neighbours(hosts(500), proc(limit="many")) == ""


def test_connections_that_start_programs_are_not_many_at_once() -> None:
    """Such connections usually share one jump host, and its sshd rejects connections beyond a limit."""
    plain = [Route(Hop(f"192.0.2.{number}", 22, "ops")) for number in range(200)]
    through = [Route(Hop(f"192.0.2.{number}", 22, "ops", proxy_command=("nc",))) for number in range(200)]
    messages: list[str] = []
    assert fitting(plain, 512, messages.append) == 200
    assert fitting(through, 512, messages.append) == 64
    assert messages == []
