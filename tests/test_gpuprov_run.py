"""The module that runs programs on a node, with real processes: hangs, floods, programs that do not exist."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from provision.paths import MODULES

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpuprov_run", MODULES / "gpuprov_run.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    monkeypatch.setattr(loaded, "GRACE", 0.3)
    monkeypatch.setattr(loaded, "DRAIN", 0.3)
    return loaded


@pytest.fixture
def run(module: ModuleType) -> Run:
    def call(*argv: str, deadline: float = 20.0, cap: int = 65536, **more: Any) -> dict[str, Any]:
        result: dict[str, Any] = module.run_one(
            {"name": "it", "argv": list(argv), "deadline": deadline, **more}, cap
        )
        return result

    return call


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", code)


def alive(pid: int) -> bool:
    """Whether a process runs: a zombie nobody waits for does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123 - /proc
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def gone(pid: int) -> bool:
    """Wait a moment for a killed process to disappear."""
    for _ in range(100):
        if not alive(pid):
            return True
        time.sleep(0.02)
    return False


def test_what_is_printed_comes_back_with_the_status(run: Run) -> None:
    result = run(*python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"))
    assert (result["rc"], result["stdout"], result["stderr"]) == (3, "out\n", "err\n")
    assert not result["timed_out"]
    assert not result["truncated"]
    assert not result["not_started"]


def test_no_shell_reads_the_arguments(run: Run) -> None:
    assert run("echo", "$HOME; `id`")["stdout"] == "$HOME; `id`\n"


def test_environment_and_folder(run: Run, tmp_path: Any) -> None:
    code = "import os; print(os.getcwd(), os.environ['CUDA_DEVICE_ORDER'], os.environ['LC_ALL'])"
    result = run(*python(code), cwd=str(tmp_path), env={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert result["stdout"] == f"{tmp_path} PCI_BUS_ID C\n"


def test_nothing_is_read_from_stdin(run: Run) -> None:
    assert run("cat")["rc"] == 0


@pytest.mark.parametrize(
    ("argv", "more", "said"),
    [
        (("no-such-tool",), {}, "no-such-tool is not installed"),
        (("/etc",), {}, "Permission denied"),
        (("true",), {"cwd": "/no/such/folder"}, "the folder /no/such/folder does not exist"),
        (("tr\0ue",), {}, "null byte"),
    ],
)
def test_what_cannot_start_says_why(argv: tuple[str, ...], more: dict[str, str], said: str, run: Run) -> None:
    result = run(*argv, **more)
    assert said in result["not_started"]
    assert result["rc"] is None


def test_a_hang_is_ended_and_what_it_said_is_kept(run: Run) -> None:
    result = run(*python("import time; print('begun', flush=True); time.sleep(600)"), deadline=0.5)
    assert (result["timed_out"], result["rc"], result["stdout"]) == (True, None, "begun\n")


def test_a_program_that_ignores_term_is_killed_with_its_children(run: Run) -> None:
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = os.fork()\n"
        "print(os.getpid(), flush=True)\n"
        "time.sleep(600)\n"
    )
    result = run(*python(code), deadline=0.7)
    assert result["timed_out"]
    pids = [int(word) for word in result["stdout"].split()]
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)


def test_a_child_left_behind_does_not_hold_us(run: Run) -> None:
    """A background child keeps the pipe open: its parent's end is the end."""
    code = "import os, time\nif os.fork() == 0: time.sleep(600)\nprint(os.getpid(), flush=True)"
    result = run(*python(code), deadline=20.0)
    assert result["rc"] == 0
    assert not result["timed_out"]
    assert result["seconds"] < 15


def test_a_child_in_a_session_of_its_own_does_not_hold_us_either(run: Run) -> None:
    code = (
        "import os, time\nif os.fork() == 0:\n os.setsid(); print(os.getpid(), flush=True); time.sleep(600)"
    )
    result = run(*python(code), deadline=20.0)
    os.kill(int(result["stdout"]), signal.SIGKILL)
    assert result["rc"] == 0


def test_a_child_that_cannot_be_killed_is_left(
    run: Run, module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process in D state takes no signal: we must answer all the same."""
    pids: list[int] = []
    monkeypatch.setattr(module, "signal_group", lambda process, _number: pids.append(process.pid))
    started = []
    real = module.start
    monkeypatch.setattr(module, "start", lambda command: started.append(real(command)) or started[0])
    try:
        result = run("sleep", "600", deadline=0.2)
        assert result["timed_out"]
        assert pids
    finally:
        started[0].kill()
        started[0].wait()


def test_a_flood_keeps_its_beginning_and_its_end(run: Run) -> None:
    code = "print('BEGIN'); [print('x' * 100) for _ in range(20000)]; print('END')"
    result = run(*python(code), cap=10_000)
    assert result["truncated"]
    assert result["stdout"].startswith("BEGIN\n")
    assert result["stdout"].endswith("END\n")
    assert len(result["stdout"]) < 10_200
    assert "bytes left out" in result["stdout"]


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 25])
def test_the_cap_is_exact(size: int, module: ModuleType) -> None:
    kept = module.Capped(10)
    data = bytes(range(65, 65 + size))
    for byte in data:
        kept.add(bytes([byte]))
    text = kept.text()
    if size <= 10:
        assert text == data.decode()
        assert kept.dropped == 0
    else:
        assert kept.dropped == size - 10
        assert text.startswith(data[:5].decode())
        assert text.endswith(data[-5:].decode())


def test_bytes_that_are_no_text_do_not_break_the_answer(run: Run) -> None:
    result = run(*python("import sys; sys.stdout.buffer.write(b'\\xff\\xfe ok\\n')"))
    assert result["stdout"].endswith(" ok\n")


def test_carriage_returns_stay(run: Run) -> None:
    assert run(*python("print('10%\\r20%')"))["stdout"] == "10%\r20%\n"


def test_the_fields_are_those_of_output(run: Run) -> None:
    from provision.checks.check import Output

    assert set(run("true")) == set(Output.__dataclass_fields__)
