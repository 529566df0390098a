"""NVIDIA's own nvidia-smi in place of the simulated one, above a table of this node's values (nvml_table.py).

It runs where the lab put the program of the node's driver branch into the state folder
(lab/gpuprov_lab/real_smi.py). Its pauses are as much shorter as the node's tools run faster, and it reads the
table again after each.

What the values do not have stays the simulator's:
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
    """The program that prints this; empty where the simulator does."""
    named = {word.partition("=")[0] for word in arguments}
    if arguments[:1] not in _OTHERS and named & _SIMULATED:
        return ""
    path = node.folder / "real" / node.library().partition(".")[0] / "nvidia-smi"
    return str(path) if node.library() and path.is_file() else ""


def run(node, path: str, arguments: list) -> int:
    """Become the program; returns its exit status where its output goes elsewhere than to stdout."""
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
    if sys.stdout is not sys.__stdout__:  # a fault cuts what it prints
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
    """Write the table anew whenever the program asks, until it has ended."""
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
