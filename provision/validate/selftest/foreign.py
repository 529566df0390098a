"""Stand-ins for foreign programs: on one GPU, in their own session, always ended."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from provision.errors import GpuprovError
from provision.validate.selftest.machine import PATH, Tool

MOST = 300  # seconds after which a stand-in ends by itself, in case the selftest is killed
_READY = 30.0  # seconds for it to become busy
_SETTLE = 1.0  # further seconds until its memory and load show
_GONE = 5.0  # seconds to end after SIGTERM, and again after SIGKILL
_TAKEN = 2048  # MiB


class ForeignError(GpuprovError):
    """The program could not be started on the GPU."""


@dataclass(frozen=True)
class Foreign:
    """A running stand-in: a description, its session ID, and the memory it holds at least."""

    what: str
    session: int
    mib: int

    @property
    def pids(self) -> set[int]:
        """The IDs of its live processes."""
        return _living(self.session)


@contextlib.contextmanager
def memory(gpu: int, burn: Tool, folder: str, mib: int = _TAKEN) -> Iterator[Foreign]:
    """Hold memory of this GPU, with gpu_burn if CUDA's library cannot be used directly."""
    program = Path(__file__).with_name("hold_memory.py")
    argv = [sys.executable, "-I", "-S", str(program), str(gpu), str(mib), str(MOST)]
    with held(argv, mib, "libcuda.so.1", load(gpu, burn, folder), "CUDA") as other:
        yield other


@contextlib.contextmanager
def held(
    argv: Sequence[str],
    mib: int,
    library: str,
    instead: contextlib.AbstractContextManager[Foreign],
    runtime: str,
) -> Iterator[Foreign]:
    """Run a program that prints `holding` once it has memory; fall back to the load `instead`."""
    with _started(argv, "/", heard=True) as process:
        line = _first_line(process)
        if line == "holding":
            what = f"a program holding {mib} MiB through {library}"
            yield Foreign(what, process.pid, mib)
            _refuse_ended(process, what)
            return
        ended = "" if process.poll() is None else f"the program ended without a word, {_status(process)}"
    with instead as other:
        why = line or ended or f"{runtime} was not ready within {_READY:.0f} s"
        yield Foreign(f"{other.what}, for memory could not be taken directly: {why}", other.session, mib)


@contextlib.contextmanager
def load(gpu: int, burn: Tool, folder: str) -> Iterator[Foreign]:
    """Run gpu_burn on this GPU alone with half of its memory, as the load of a foreign program."""
    if not burn.path:
        raise ForeignError("no gpu_burn to load the GPU with", burn.how)
    argv = [burn.path, "-m", "50%", "-i", str(gpu), "-tc", str(MOST)]
    what = f"gpu_burn on gpu{gpu} alone"
    with at_work(argv, folder, what, lambda: _seen(gpu), "nvidia-smi") as other:
        yield other


@contextlib.contextmanager
def at_work(
    argv: Sequence[str], folder: str, what: str, seen: Callable[[], bool], smi: str
) -> Iterator[Foreign]:
    """Run a program and wait until it is `seen` to be busy; `smi` names the tool that shows it."""
    with _started(argv, folder) as process:
        _until_seen(process, what, seen, smi)
        yield Foreign(what, process.pid, 0)
        _refuse_ended(process, what)


@contextlib.contextmanager
def _started(argv: Sequence[str], folder: str, *, heard: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in its own session and end the whole session afterwards."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if heard else subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, "PATH": PATH, "LC_ALL": "C", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
            start_new_session=True,
        )
    except OSError as error:
        raise ForeignError(f"{argv[0]} could not be started: {error}") from error
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM, wait, send SIGKILL, wait, then give up: a process stuck in the driver cannot die."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GONE)
            break
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # children that ignored TERM
    until = time.monotonic() + _GONE
    while _living(process.pid) and time.monotonic() < until:  # they hold the GPU until they are gone
        time.sleep(0.02)
    if process.stdout is not None:
        process.stdout.close()


def _living(session: int) -> set[int]:
    """Return the live processes of a session, without zombies."""
    pids = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                # 4242 (a name) S <parent> <group> <session> …: proc(5)
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if fields[3] == str(session) and fields[0] not in "ZX":
                    pids.add(int(entry.name))
    return pids


def _first_line(process: subprocess.Popen[bytes]) -> str:
    """Return the first line the process prints; "" if it prints nothing in time."""
    if process.stdout is None:
        return ""
    received, until = b"", time.monotonic() + _READY
    while b"\n" not in received and len(received) < 400:
        left = max(0.0, until - time.monotonic())
        if not select.select([process.stdout], [], [], left)[0]:
            break
        if not (more := os.read(process.stdout.fileno(), 400)):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
            break
        received += more
    return received.partition(b"\n")[0].decode("utf-8", "replace").strip()


def _until_seen(process: subprocess.Popen[bytes], what: str, seen: Callable[[], bool], smi: str) -> None:
    until = time.monotonic() + _READY
    while time.monotonic() < until:
        _refuse_ended(process, what)
        if seen():
            time.sleep(_SETTLE)
            return
        time.sleep(0.5)
    raise ForeignError(
        f"{what} was not at work within {_READY:.0f} s", f"look at it with {smi}, and at dmesg"
    )


def _seen(gpu: int) -> bool:
    """Return whether nvidia-smi shows a process on the GPU or, as in a container, only its load."""
    for query in ("--query-compute-apps=pid", "--query-gpu=utilization.gpu"):
        argv = ["nvidia-smi", "-i", str(gpu), query, "--format=csv,noheader,nounits"]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            printed = subprocess.run(argv, stdout=subprocess.PIPE, timeout=10, check=False).stdout
            if any(line.strip().isdigit() and int(line) for line in printed.splitlines()):
                return True
    return False


def _refuse_ended(process: subprocess.Popen[bytes], what: str) -> None:
    """Raise if the program has ended, since findings of a check would then prove nothing."""
    if process.poll() is not None:
        raise ForeignError(f"{what} ended by itself, {_status(process)}")


def _status(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    return f"killed by signal {-code}" if code < 0 else f"with exit status {code}"
