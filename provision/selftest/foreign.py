"""Programs that stand for somebody else's: on one GPU, in a session of their own, ended whatever happens."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from provision.errors import GpuprovError
from provision.selftest.tools import PATH, Tool

MOST = 300  # seconds after which one ends by itself, should we be killed
_READY = 30.0  # seconds until it is at work
_SETTLE = 1.0  # seconds after that: its memory and its load show
_TAKEN = 2048  # MiB


class ForeignError(GpuprovError):
    """The program could not be started on the GPU."""


@dataclass(frozen=True)
class Foreign:
    """A running program: `what` it is for a reader, its session, and the memory it has taken at least."""

    what: str
    session: int
    mib: int

    @property
    def pids(self) -> set[int]:
        """The processes of it that live now."""
        found = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if os.getsid(int(entry.name)) == self.session:
                        found.add(int(entry.name))
        return found


@contextlib.contextmanager
def memory(gpu: int, burn: Tool, folder: str, mib: int = _TAKEN) -> Iterator[Foreign]:
    """Memory of this GPU is held; by gpu_burn where CUDA's library cannot be used directly."""
    program = Path(__file__).with_name("hold_memory.py")
    argv = [sys.executable, "-I", "-S", str(program), str(gpu), str(mib), str(MOST)]
    with _started(argv, "/", heard=True) as process:
        said = _first_line(process)
        if said == "holding":
            yield Foreign(f"a program holding {mib} MiB through libcuda.so.1", process.pid, mib)
            return
    with load(gpu, burn, folder) as other:
        why = said or "CUDA was not ready in time"
        yield Foreign(f"{other.what}, for memory could not be taken directly: {why}", other.session, mib)


@contextlib.contextmanager
def load(gpu: int, burn: Tool, folder: str) -> Iterator[Foreign]:
    """This GPU works for somebody else: gpu_burn on it alone, with half of its memory."""
    if not burn.path:
        raise ForeignError("no gpu_burn to load the GPU with", burn.how)
    argv = [burn.path, "-m", "50%", "-i", str(gpu), "-tc", str(MOST)]
    with _started(argv, folder) as process:
        _until_seen(process, gpu)
        yield Foreign(f"gpu_burn on gpu{gpu} alone", process.pid, 0)


@contextlib.contextmanager
def _started(argv: Sequence[str], folder: str, *, heard: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a session of its own; all of it is gone at the end."""
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if heard else subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env={**os.environ, "PATH": PATH, "LC_ALL": "C", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """TERM, five seconds, KILL, five seconds; then it is left, for no one can end what sits in the driver."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5.0)
            break
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # children that ignored TERM
    if process.stdout is not None:
        process.stdout.close()


def _first_line(process: subprocess.Popen[bytes]) -> str:
    """What it says first; empty when it says nothing in time."""
    if process.stdout is None or not select.select([process.stdout], [], [], _READY)[0]:
        return ""
    return process.stdout.readline(400).decode("utf-8", "replace").strip()


def _until_seen(process: subprocess.Popen[bytes], gpu: int) -> None:
    """Wait until nvidia-smi shows a process on the GPU: in a container it may show none, so not for ever."""
    until = time.monotonic() + _READY
    query = ["nvidia-smi", "-i", str(gpu), "--query-compute-apps=pid", "--format=csv,noheader"]
    while time.monotonic() < until:
        if process.poll() is not None:
            raise ForeignError(f"a program on gpu{gpu} ended at once, with {process.returncode}")
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            if subprocess.run(query, stdout=subprocess.PIPE, timeout=10, check=False).stdout.strip():
                break
        time.sleep(0.5)
    time.sleep(_SETTLE)
