"""Slurm's HealthCheckProgram, Prolog and Epilog: drain a failed node for its cause, or refuse a job.

Only the verdict `fail` does so: a fault of this node's hardware or settings, seen as often as the rules of
docs/health.md require. A result that is old or missing, or that could not be measured, drains nothing, since
a stopped timer, an upgrade or a tool's new output format would then drain a whole fleet at once. Nothing here
resumes a node, and a node already out of service keeps its reason. A drain needs a permit of the breaker
shared by all drains (provision/remote/schedulers/slurm_breaker.py), so that one cause does not drain a fleet.
Without a permit the node stays in service and no program fails, since Slurm would then drain the node.

Slurm (prolog_epilog.html) advises against Slurm commands in a Prolog or Epilog, since each one queries
slurmctld. A healthy node runs none; scontrol runs only on a failed node.
"""

from __future__ import annotations

import math
import os
import re
import socket
import sys
import syslog
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision.checks.on_node import styles
from provision.errors import ExitCode, GpuprovError
from provision.node import scheduler_programs
from provision.remote.schedulers import slurm_breaker
from provision.remote.schedulers.slurm_breaker import LEAST, SHARE, UnknownError
from provision.text import one_line

WORDS = ("check", "prolog", "epilog")
REFUSED = int(ExitCode.UNHEALTHY)  # the only exit status that the Slurm scripts pass on as a failure
REASON = 200  # characters of a reason, as in provision.remote.schedulers
_SECONDS = 4.0  # for one scontrol call
_IN_ALL = 9.0  # for all calls: a Prolog must end within Slurm's MessageTimeout, 10 s
_PERMIT = 6.0  # for calls before the drain: runs cut off before it would use up permits for nothing
_NOT_RUN = 127  # exit status of a scontrol that did not run to its end
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
# `State=IDLE+DRAIN`, in lines of `Name=value` words: src/api/node_info.c of Slurm. `DOWN*`: up to 20.02.
_STATE = re.compile(r"^ *State=([^\s*]{1,200})", re.MULTILINE)
_PARTITIONS = re.compile(r"^ *Partitions=(\S{1,2000})", re.MULTILINE)
_OUT_OF_SERVICE = frozenset({"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING"})
_HEALTHY = frozenset({"pass", "skip", "warn"})

Run = Callable[[Sequence[str]], "tuple[int, str]"]


@dataclass(frozen=True)
class Answer:
    """Outcome of a Slurm program."""

    status: int  # exit status of Slurm's script
    line: str = ""  # action and reason for the log; empty: nothing to log


def answer(
    word: str,
    last: Callable[[], Mapping[str, Any]],
    name: str,
    run: Run,
    *,
    refuse_unknown: bool = False,
    share: float = SHARE,
    least: int = LEAST,
) -> Answer:
    """Answer Slurm's program `word` on the node that Slurm calls `name`. Never raises for bad results.

    `last` reads the last result; `run` runs scontrol: (exit status, output). `share` percent of a partition,
    and at least `least` nodes, may be drained per hour."""
    try:
        result = last()
        verdict, unknown = (
            result["verdict"],
            one_line(str(result["error"] or "not all could be measured"), REASON),
        )
        reason = one_line(styles.nhc(result)[0], REASON) if verdict == "fail" else ""
    except (GpuprovError, OSError) as error:
        verdict, unknown = "", one_line(str(error), REASON)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        verdict, unknown = "", f"the last result is damaged: {error!r:.80}"
    if verdict in _HEALTHY:
        return Answer(0)
    if verdict != "fail":
        if word == "prolog" and refuse_unknown:
            return Answer(REFUSED, f"job refused: {unknown}")
        return Answer(0, f"nothing is drained: {unknown}")
    try:
        done = drain(name, reason, run, share, least)
    except UnknownError as error:
        # Slurm only logs a failed health check; after a failed Prolog or Epilog it would drain the node.
        notice = f"{name} is left in service, since {one_line(str(error), 400)}; it fails: {reason}"
        return Answer(REFUSED if word == "check" else 0, notice)
    except _HeldError as error:
        return Answer(0, f"{name} is left in service: {one_line(str(error), 400)}; it fails: {reason}")
    except _DrainError as error:
        if word == "check":  # a failed check is retried, and each retry would take more permits
            slurm_breaker.give_back(run, error.permits)
        # After a failed epilog Slurm drains the node itself; a failed check is logged and retried.
        refused = (
            f"job refused: {reason}; {error}" if word == "prolog" else f"{error}; the reason was: {reason}"
        )
        return Answer(REFUSED, refused)
    if word == "prolog":
        return Answer(REFUSED, f"job refused: {reason}")
    return Answer(0, f"{name} is drained: {reason}" if done else "")


class _HeldError(Exception):
    """The breaker keeps the node in service."""


class _DrainError(Exception):
    """Why draining failed. `permits`: the unused ones."""

    def __init__(self, why: str, permits: Sequence[str] = ()) -> None:
        super().__init__(why)
        self.permits = permits


def drain(name: str, reason: str, run: Run, share: float, least: int) -> bool:
    """Drain the node. False if it is already out of service.

    Raises UnknownError if Slurm does not report whether it may be drained."""
    if not _NAME.fullmatch(name):
        raise UnknownError(f"{name!r:.80} is no name of a node")
    status, text = run(("show", "node", name))
    state = _STATE.search(text)
    if status or state is None:
        raise UnknownError(f"scontrol show node {name}: {_last_line(text, status)}")
    if _OUT_OF_SERVICE & set(state[1].split("+")):
        return False
    partitions = _PARTITIONS.search(text)
    mine: list[str] = []
    if why := slurm_breaker.permit(run, partitions[1].split(",") if partitions else (), share, least, mine):
        raise _HeldError(why)
    status, text = run(("update", f"NodeName={name}", "State=DRAIN", f"Reason={reason}"))
    if status:
        why = f"scontrol update NodeName={name} State=DRAIN: {_last_line(text, status)}"
        # If scontrol was cut off, the update may still take effect.
        raise _DrainError(why, () if status == _NOT_RUN else mine)
    return True


def _last_line(text: str, status: int) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return one_line(lines[-1], REASON) if lines else f"it ended with {status} and printed nothing"


def scontrol(arguments: Sequence[str], until: float = math.inf) -> tuple[int, str]:
    """Run scontrol and return its exit status and output, or _NOT_RUN and why it did not finish.

    `until`: deadline on the clock time.monotonic."""
    seconds = min(_SECONDS, until - time.monotonic())
    if seconds <= 0:
        return _NOT_RUN, "Slurm is slow: not run, as the answers before took too long"
    path = os.environ.get("PATH")  # Slurm runs its scripts without PATH
    folders = path.split(":") if path else scheduler_programs.FOLDERS
    done = scheduler_programs.run(["scontrol", *arguments], folders, seconds)
    if done["problem"]:
        return _NOT_RUN, str(done["problem"])
    if len(done["out"].encode()) >= scheduler_programs.LIMIT:
        return _NOT_RUN, "scontrol printed more than can be read"
    return int(done["status"]), str(done["out"] + done["err"])


def timed(run: Callable[[Sequence[str], float], tuple[int, str]], clock: Callable[[], float]) -> Run:
    """Add a deadline to `run`, for one Slurm program that starts now."""
    began = clock()

    def within(words: Sequence[str]) -> tuple[int, str]:
        return run(words, began + (_IN_ALL if words[0] in ("update", "delete") else _PERMIT))

    return within


def node_name() -> str:
    """Return Slurm's name of this node: $SLURMD_NODENAME in Slurm's scripts, else the short host name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]


def main(
    word: str, last: Callable[[], Mapping[str, Any]], *, refuse_unknown: bool, share: float, least: int
) -> int:
    """Run the program and log to syslog, since Slurm keeps a script's output only if it failed."""
    run = timed(scontrol, time.monotonic)
    outcome = answer(word, last, node_name(), run, refuse_unknown=refuse_unknown, share=share, least=least)
    if outcome.line:
        sys.stderr.write(f"gpuprov: {outcome.line}\n")
        # The health check repeats, and its no-op would be logged each time.
        if outcome.status or word == "prolog" or "nothing is drained" not in outcome.line:
            syslog.openlog(f"gpuprov-slurm-{word}")
            syslog.syslog(syslog.LOG_WARNING, outcome.line)
    return outcome.status
