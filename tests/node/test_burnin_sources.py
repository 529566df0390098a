"""Telemetry sources with real processes: hangs, exits, floods, and a child that cannot be killed."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest

from provision.node.burnin import sources
from provision.node.burnin.sources import Forked, Source, ib_metrics, ib_ports, program, read_ports
from provision.node.burnin.spool import ClockWatch
from provision.node.burnin.tool_output import without_field


class Loop:
    """Event loop over the sources, as in the sampler."""

    def __init__(self) -> None:
        self.told: list[str | None] = []
        self.lines: list[str] = []
        self.all: list[Source] = []

    def source(self, code: str, every: float = 0.2, once: bool = False, **more: Any) -> Source:
        begin = more.pop("begin", None) or program([sys.executable, "-I", "-S", "-c", code])
        one = Source("gpu", "gpu0", every, begin, more.pop("take", self.take), self.told.append, once)
        one.patience = more.pop("patience", 20.0)
        self.all.append(one)
        return one

    def take(self, line: str) -> bool:
        self.lines.append(line)
        return line.startswith("ok")

    def turn(self, one: Source, enough: Any, seconds: float = 30) -> None:
        until = time.monotonic() + seconds
        while not enough() and time.monotonic() < until:
            one.tick(time.monotonic())
            if one.handle is not None and select.select([one.handle], [], [], 0.05)[0]:
                one.readable(time.monotonic())
            elif one.handle is None:
                time.sleep(0.02)
        assert enough(), (self.told, self.lines)

    def end(self) -> None:
        for one in self.all:
            one.due = float("inf")
            one.end()
            self.turn(one, lambda one=one: one.child is None)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    monkeypatch.setattr(sources, "AGAIN", 0.3)
    monkeypatch.setattr(sources, "KILL_AFTER", 0.5)
    one = Loop()
    yield one
    one.end()


def test_lines_are_taken_as_they_come(loop: Loop) -> None:
    one = loop.source("import time\nfor n in range(99): print('ok', n, flush=True); time.sleep(0.1)")
    loop.turn(one, lambda: len(loop.lines) >= 3)
    assert loop.lines[:3] == ["ok 0", "ok 1", "ok 2"]
    assert loop.told == []


def test_one_that_ends_is_said_once_and_started_again(loop: Loop) -> None:
    one = loop.source("print('GPU is lost.')")
    loop.turn(one, lambda: loop.lines.count("GPU is lost.") >= 3)
    assert loop.told == ["GPU is lost."]


@pytest.mark.parametrize("once", [False, True])
def test_one_that_ends_a_moment_before_all_are_ended_is_not_said(loop: Loop, once: bool) -> None:
    """systemd kills the processes of a unit in any order."""
    one = loop.source("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", once=once, every=20)
    loop.turn(one, lambda: one.due > 0 and one.child is None)
    assert one.tick(time.monotonic()) < time.monotonic() + 1
    one.end()
    one.due = float("inf")
    assert one.tick(time.monotonic() + 10) == one.due
    assert loop.told == []


def test_one_that_ends_is_said_a_moment_later_though_it_is_not_started_again_yet(loop: Loop) -> None:
    one = loop.source("print('GPU is lost.')", once=True, every=20, take=lambda _: False)
    loop.turn(one, lambda: loop.told == ["GPU is lost."])
    assert one.due > time.monotonic() + 10


def test_one_that_answers_again_is_said(loop: Loop, tmp_path: Path) -> None:
    code = f"import os, sys; print('ok' if os.path.exists({str(tmp_path / 'well')!r}) else 'bad')"
    one = loop.source(code)
    loop.turn(one, lambda: loop.told == ["bad"])
    (tmp_path / "well").touch()
    loop.turn(one, lambda: None in loop.told)
    assert loop.told[:2] == ["bad", None]


def test_one_that_hangs_is_ended_and_started_again(loop: Loop, tmp_path: Path) -> None:
    code = (
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"open({str(tmp_path / 'starts')!r}, 'a').write('x')\ntime.sleep(100)"
    )
    one = loop.source(code, patience=1.5)
    starts = tmp_path / "starts"
    loop.turn(one, lambda: starts.exists() and len(starts.read_text()) >= 2)
    assert len(loop.told) == 1
    assert str(loop.told[0]).startswith("no answer for")


def test_one_that_cannot_be_killed_is_not_waited_for_nor_doubled(loop: Loop) -> None:
    class Stuck:
        """A child in state D."""

        def __init__(self) -> None:
            reader, self.writer = os.pipe()
            self.stdout = os.fdopen(reader, "rb", 0)
            self.pid = 2**22 + 12345  # an unused pid
            started.append(self)

        def poll(self) -> int | None:
            return 9 if thawed else None

    started: list[Stuck] = []
    thawed: list[bool] = []
    one = loop.source("", begin=Stuck, patience=0.1)
    began = time.monotonic()
    for _ in range(60):
        one.tick(time.monotonic())
        time.sleep(0.02)
    assert time.monotonic() - began < 5, "no tick waits"
    assert len(started) == 1
    thawed.append(True)
    loop.turn(one, lambda: len(started) == 2)
    for stuck in started:
        os.close(stuck.writer)


def test_one_that_cannot_start_is_said(loop: Loop) -> None:
    one = loop.source("", begin=program(["no-such-tool"]))
    loop.turn(one, lambda: bool(loop.told))
    assert loop.told == ["No such file or directory"]
    assert one.tick(time.monotonic()) > time.monotonic() + 1


def test_an_answer_in_one_piece_is_asked_again_and_again(loop: Loop) -> None:
    take = Mock(return_value=True)
    one = loop.source("print('a\\nb')", once=True, take=take)
    loop.turn(one, lambda: take.call_count >= 3)
    assert take.call_args_list[0] == call("a\nb\n")
    assert loop.told == []


def test_a_flood_without_a_newline_is_not_kept(loop: Loop) -> None:
    one = loop.source("import sys\nwhile True: sys.stdout.write('x' * 65536)", patience=1.0)
    loop.turn(one, lambda: bool(loop.told))
    assert len(one.pending) <= sources.LINE_MOST


def test_a_field_an_older_driver_does_not_know_is_asked_by_its_older_name() -> None:
    fields = [["index", ["index"]], ["throttle", ["new", "old"]], ["sm_mhz", ["only"]]]
    assert without_field(fields, "new")
    assert fields[1] == ["throttle", ["old"]]
    assert without_field(fields, "only")
    assert [name for name, _ in fields] == ["index", "throttle"]
    assert not without_field(fields, "index")
    assert not without_field(fields, "another")


def ports(root: Path) -> Path:
    for card in ("mlx5_0", "mlx5_1"):
        port = root / card / "ports/1"
        (port / "counters").mkdir(parents=True)
        (port / "state").write_text("4: ACTIVE\n")
        (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
        (port / "counters/symbol_error").write_text("7\n")
    return root


def test_ports_are_read_by_name(tmp_path: Path) -> None:
    (first, folder), second = ib_ports(str(ports(tmp_path)))
    assert (first, second[0]) == ("mlx5_0/1", "mlx5_1/1")
    assert ib_metrics(folder) == {"state": "ACTIVE", "rate": "400", "symbol_error": "7"}
    assert ib_ports(str(tmp_path / "none")) == []


def test_the_reader_says_which_port_it_is_at_before_it_reads(loop: Loop, tmp_path: Path) -> None:
    ports(tmp_path)
    (tmp_path / "mlx5_1/ports/1/state").unlink()
    os.mkfifo(tmp_path / "mlx5_1/ports/1/state")  # opening it blocks
    one = loop.source("", begin=lambda: Forked(read_ports(0.1, set(), str(tmp_path))), patience=1.5)
    loop.turn(one, lambda: len(loop.told) == 1)
    assert loop.lines[:3] == ["?mlx5_0/1", "=mlx5_0/1,state=ACTIVE;rate=400;symbol_error=7", "?mlx5_1/1"]
    skipping = Loop()
    one = skipping.source("", begin=lambda: Forked(read_ports(0.1, {"mlx5_1/1"}, str(tmp_path))))
    skipping.turn(one, lambda: "." in skipping.lines)
    skipping.end()


def test_a_clock_that_is_set_is_told_apart_from_one_that_is_slewed() -> None:
    offsets = iter([100.0, 100.1, 100.2, 3700.2, 3700.3, 3600.0])
    watch = ClockWatch(lambda: next(offsets))
    assert [watch.jump() for _ in range(5)] == [0.0, 0.0, 3600.0, 0.0, -100.3]
