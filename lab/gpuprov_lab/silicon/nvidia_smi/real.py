"""NVIDIA's own nvidia-smi, reading a table of this node's values (nvml_table.py).

It runs if the lab put the program of the node's driver branch into the state folder
(lab/gpuprov_lab/real_smi.py). Its pauses are shortened by the speed of the node's tools, and it rereads the
table after each. Output that the values cannot provide remains the simulator's:
- what changes something (-pm, -pl, -lgc, -c, -e, -mig, -r, mig …): the node's state, which the table follows;
- topo: which bridges are between two GPUs.
"""

import contextlib
import os
import socket
import subprocess
import sys

from state import Node

from nvidia_smi import nvml_table
from nvidia_smi.options import ACTIONS, SETTERS
from nvidia_smi.settings import ACTIONS as CHANGES

_SIMULATED = {"mig", "topo", "-pm", "--persistence-mode", *SETTERS}
_SIMULATED.update(word for word, action in ACTIONS.items() if action in CHANGES)
_OTHERS = (["dmon"], ["nvlink"])  # where -c and -e have other meanings


def program(node, arguments: list) -> str:
    """Return the path of the real program for these arguments; empty if the simulator answers them."""
    named = {word.partition("=")[0] for word in arguments}
    if arguments[:1] not in _OTHERS and named & _SIMULATED:
        return ""
    path = node.folder / "real" / node.library().partition(".")[0] / "nvidia-smi"
    return str(path) if node.library() and path.is_file() else ""


def run(node, path: str, arguments: list) -> int:
    """Become the program; returns its exit status if its output does not go to stdout."""
    table = os.memfd_create("nvml", 0)  # Python 3.8: the lab's nodes have 3.11
    _write(node, table)
    ours, theirs = socket.socketpair()
    library = str(node.folder / "real")
    values = {
        "GPUPROV_NVML_TABLE": f"/proc/self/fd/{table}",
        "GPUPROV_NVML_REFRESH": str(theirs.fileno()),
        "GPUPROV_NVML_SPEED": str(node.speed),
        "LD_LIBRARY_PATH": library,
        "LD_PRELOAD": library + "/libnvidia-ml.so.1",
    }
    environment, words = dict(os.environ, **values), ["nvidia-smi", *arguments]
    if sys.stdout is not sys.__stdout__:  # a fault truncates its output
        done = subprocess.run(
            words, executable=path, env=environment, stdout=subprocess.PIPE, pass_fds=[table]
        )
        print(done.stdout.decode("utf-8", "replace"), end="")
        return done.returncode
    if _loops(arguments) and os.fork() == 0:
        theirs.close()
        _refresh(node, table, ours)
    ours.close()
    theirs.set_inheritable(True)
    return os.execve(path, words, environment)  # noqa: S606


def _loops(arguments: list) -> bool:
    return any(word.partition("=")[0] in ("dmon", "-l", "-lms", "--loop", "--loop-ms") for word in arguments)


def _write(node, table: int) -> None:
    rows = nvml_table.table(node)
    text = "".join(f"{key}\t{path}\t{value}\n" for key, path, value in rows)
    os.ftruncate(table, 0)
    os.pwrite(table, text.encode(), 0)


def _refresh(node, table: int, asked: socket.socket) -> None:
    """Rewrite the table on each request of the program, until it has ended."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    with contextlib.suppress(Exception):
        while asked.recv(1):
            node = Node(node.folder)
            node.count_run()
            _write(node, table)
            asked.send(b"1")
    os._exit(0)
