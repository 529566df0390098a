"""Programs that stand in for another user's: running when the check begins, gone when it has ended."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from provision.validate.selftest import foreign
from provision.validate.selftest.foreign import Foreign, ForeignError
from provision.validate.selftest.machine import Tool
from tests.support.processes import until

SLEEP = "sleep 300 & wait"
HOLD = "import sys, time; print('holding'); sys.stdout.flush(); time.sleep(300)"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "_SETTLE", 0.0)
    monkeypatch.setattr(foreign, "_READY", 1.0)


Make = Callable[[str, str], Tool]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a function that installs a gpu_burn of these lines and an nvidia-smi that prints `printed`."""

    def make(lines: str, printed: str = "4242") -> Tool:
        for name, text in (("gpu_burn", lines), ("nvidia-smi", f"echo '{printed}'")):
            (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / name).chmod(0o755)
        return Tool("gpu_burn", str(tmp_path / "gpu_burn"), "build it")

    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return make


@pytest.fixture
def cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that replaces the program that takes GPU memory by this text."""

    def make(text: str) -> None:
        (tmp_path / "hold_memory.py").write_text(text)

    monkeypatch.setattr(foreign, "__file__", str(tmp_path / "foreign.py"))
    return make


def gone(other: Foreign) -> bool:
    return not other.pids


def refused(other: contextlib.AbstractContextManager[Foreign], match: str) -> ForeignError:
    """Assert that the check refuses to run next to `other`, and return the error."""
    with pytest.raises(ForeignError, match=match) as error, other:
        pytest.fail("the check ran")
    return error.value


def test_a_load_runs_meanwhile_and_is_gone_with_all_its_processes(program: Make) -> None:
    with foreign.load(3, program(SLEEP, "4242"), "/") as other:
        until(lambda: len(other.pids) == 2)
        assert (other.what, other.mib) == ("gpu_burn on gpu3 alone", 0)
    assert gone(other)


@pytest.mark.parametrize(
    ("lines", "processes"),
    [
        ("trap '' TERM\nsleep 300 & sleep 300 & wait", 3),
        ("sh -c 'trap \"\" TERM; sleep 300; sleep 1' & wait", 3),
    ],
    ids=["all of it", "its children"],
)
def test_a_load_that_ignores_term_is_gone_too(
    program: Make, monkeypatch: pytest.MonkeyPatch, lines: str, processes: int
) -> None:
    monkeypatch.setattr(foreign, "_GONE", 0.5)
    with foreign.load(3, program(lines, "4242"), "/") as other:
        until(lambda: len(other.pids) == processes)
    assert gone(other)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_it_is_gone_when_the_check_breaks(
    program: Make, cuda: Callable[[str], None], error: type[BaseException]
) -> None:
    burn = program(SLEEP, "4242")
    with pytest.raises(error), foreign.load(3, burn, "/") as other:
        raise error
    assert gone(other)
    cuda(HOLD)
    with pytest.raises(error), foreign.memory(3, burn, "/") as holder:
        raise error
    assert gone(holder)


def test_one_that_never_comes_to_work_is_said_in_one_line(program: Make) -> None:
    refused(foreign.load(3, program(SLEEP, "0"), "/"), r"^gpu_burn on gpu3 alone was not at work within 1 s$")


def test_its_work_is_enough_where_a_container_hides_its_process(program: Make, tmp_path: Path) -> None:
    burn = program(SLEEP, "")
    (tmp_path / "nvidia-smi").write_text('#!/bin/sh\ncase "$*" in *utilization*) echo 100;; esac\n')
    with foreign.load(3, burn, "/") as other:
        assert other.pids


@pytest.mark.parametrize(
    ("lines", "said"), [("exit 3", "with exit status 3"), ("kill -9 $$", "killed by signal 9")]
)
def test_one_that_ends_before_it_is_at_work(program: Make, lines: str, said: str) -> None:
    refused(foreign.load(3, program(lines, "0"), "/"), f"^gpu_burn on gpu3 alone ended by itself, {said}$")


def test_one_that_ends_while_the_check_runs(
    program: Make, cuda: Callable[[str], None], tmp_path: Path
) -> None:
    over = tmp_path / "over"
    wait = f"while ! test -e {over}; do sleep 0.02; done"
    with (
        pytest.raises(ForeignError, match=r"^gpu_burn on gpu3 alone ended by itself, with exit status 5$"),
        foreign.load(3, program(f"{wait}; exit 5", "4242"), "/") as other,
    ):
        _end(over, other)
    over.unlink()
    waiting = f"while not os.path.exists({str(over)!r}): time.sleep(0.02)"
    cuda(f"import os, time\nprint('holding', flush=True)\n{waiting}")
    with (
        pytest.raises(ForeignError, match=r"^a program holding 64 MiB .* ended by itself, with .* 0$"),
        foreign.memory(3, program(SLEEP, "4242"), "/", 64) as holder,
    ):
        _end(over, holder)


def _end(over: Path, other: Foreign) -> None:
    over.touch()
    os.waitid(os.P_PID, other.session, os.WEXITED | os.WNOWAIT)


def test_one_that_cannot_be_started(program: Make, tmp_path: Path) -> None:
    burn = program(SLEEP, "4242")
    (tmp_path / "gpu_burn").write_text("no program")
    refused(foreign.load(3, burn, "/"), r"could not be started: .*Exec format error")
    error = refused(foreign.load(3, Tool("gpu_burn", "", "build it"), "/"), "no gpu_burn")
    assert error.fix == "build it"


def test_memory_is_held(program: Make, cuda: Callable[[str], None]) -> None:
    cuda(HOLD)
    with foreign.memory(3, program(SLEEP, "4242"), "/", 64) as other:
        assert (other.what, other.mib) == ("a program holding 64 MiB through libcuda.so.1", 64)
    assert gone(other)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("raise SystemExit('cuInit returned 100')", "cuInit returned 100"),
        ("raise SystemExit(3)", "the program ended without a word, with exit status 3"),
        ("import time; time.sleep(300)", "CUDA was not ready within 1 s"),
        ("import time; print('hol', end='', flush=True); time.sleep(300)", "hol"),
    ],
)
def test_memory_that_cannot_be_held_directly_is_gpu_burns(
    program: Make, cuda: Callable[[str], None], text: str, why: str
) -> None:
    cuda(text)
    with foreign.memory(3, program(SLEEP, "4242"), "/", 64) as other:
        assert other.what == f"gpu_burn on gpu3 alone, for memory could not be taken directly: {why}"
    assert gone(other)


def test_the_program_that_takes_memory_says_why_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine has no CUDA driver library, or one that cannot be loaded."""
    from provision.validate.selftest import hold_memory

    def none(_name: str) -> None:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr("ctypes.CDLL", none)
    said = hold_memory.hold(0, 1, 0)
    assert said == "CUDA's driver library cannot be used: libcuda.so.1: cannot open shared object file"
