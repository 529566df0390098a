"""gpuprov-node-health: runs the passive checks on the node it is on, and says how the node is.

    gpuprov-node-health             look, judge, and print the result as JSON
    gpuprov-node-health --write     the same for the timer: writes health.json and metrics, and prints nothing
    gpuprov-node-health --last      print the result of the timer's last run, if it is fresh
    gpuprov-node-health --nagios    a line and a status for Nagios, Icinga, Checkmk (0, 1, 2, 3)
    gpuprov-node-health --nhc       the reason to drain the node, for LBNL NHC or Slurm (0 or 1)
    gpuprov-node-health --npd       a message and a status for Kubernetes' node-problem-detector (0, 1, 2)
    gpuprov-node-health --slurm check|prolog|epilog
                                    drain the node in Slurm, or refuse a job, by the timer's last run

Exit status: 0 healthy (with warnings, too), 3 unhealthy, 5 not to be measured, 1 another error, 2 wrong
options.
"""

from __future__ import annotations

import argparse
import datetime
import fcntl
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from provision import __version__, atomic_file, bug_file, foreign_json
from provision.checks import exposition
from provision.checks.judge import Finding, Verdict
from provision.checks.on_node import (
    burnin,
    debounce,
    document,
    metrics,
    ports,
    processes,
    run,
    settings,
    slurm,
    state,
    styles,
)
from provision.checks.on_node.settings import Settings
from provision.checks.on_node.state import State
from provision.errors import ExitCode, GpuprovError
from provision.node import lock
from provision.node.modules import gpuprov_run

SETTINGS = Path("/etc/gpuprov/node-health.json")
RUN = Path("/run/gpuprov")
RESULT = "health.json"
EARLY = "early"  # there: the next run is out of turn
STATE = Path("/var/lib/gpuprov/node-health")
TEXTFILE = "gpuprov.prom"
_LOOK = "systemctl status gpuprov-node-health.timer"
_STATUS = {"fail": ExitCode.UNHEALTHY, "error": ExitCode.INCOMPLETE}


def main(argv: Sequence[str] | None = None) -> int:
    """The program; its exit status."""
    bug_file.keep_in(STATE)
    try:
        return _main(_options(argv))
    except GpuprovError as error:
        return _stopped(f"{error.what} → {error.fix}" if error.fix else error.what)
    except OSError as error:
        return _stopped(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _stopped(why: str) -> int:
    sys.stderr.write(f"gpuprov-node-health: {why}\n")
    return int(ExitCode.ERROR)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gpuprov-node-health",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--write", action="store_true", help="write the result and metrics, print nothing")
    parser.add_argument(
        "--age", action="store_true", help="print how many seconds old the last result is; 1: stale"
    )
    parser.add_argument("--last", action="store_true", help="take the last run's result instead of a new one")
    style = parser.add_mutually_exclusive_group()
    style.add_argument("--nagios", action="store_true", help="answer as a plugin of Nagios")
    style.add_argument("--nhc", action="store_true", help="answer as a check of NHC")
    style.add_argument("--npd", action="store_true", help="answer as a plugin of node-problem-detector")
    style.add_argument(
        "--slurm",
        choices=slurm.WORDS,
        help="act as this program of Slurm, by the last result; 3: the job or the epilog fails",
    )
    parser.add_argument(
        "--refuse-unknown",
        action="store_true",
        help="with --slurm prolog: refuse jobs, too, where nothing is known of the node",
    )
    parser.add_argument(
        "--settings", type=Path, default=SETTINGS, metavar="FILE", help="default: %(default)s"
    )
    parser.add_argument("--version", action="version", version=f"gpuprov-node-health {__version__}")
    chosen = parser.parse_args(argv)
    if chosen.write and (chosen.last or chosen.nagios or chosen.nhc or chosen.npd or chosen.slurm):
        parser.error("--write prints nothing: give it alone")
    if chosen.refuse_unknown and chosen.slurm != "prolog":
        parser.error("--refuse-unknown is for --slurm prolog")
    return chosen


def _main(chosen: argparse.Namespace) -> int:
    if chosen.write:
        fresh(settings.read(chosen.settings), write=True)
        return 0  # a unit that fails for what its node is would be a second alarm for the same thing
    if chosen.age:
        newest, age = _with_age(RUN / RESULT)
        sys.stdout.write("another boot\n" if age is None else f"{age:.0f}\n")
        return int(_late(newest, age))
    if chosen.npd:
        return _npd(chosen)
    if chosen.slurm:
        return slurm.main(
            chosen.slurm, lambda: last(RUN / RESULT), refuse_unknown=bool(chosen.refuse_unknown)
        )
    told = last(RUN / RESULT) if chosen.last else fresh(settings.read(chosen.settings), write=False)
    if chosen.nagios:
        text, status = styles.nagios(told)
    elif chosen.nhc:
        text, status = styles.nhc(told)
    else:
        text, status = document.text(told).rstrip("\n"), int(_STATUS.get(told["verdict"], 0))
    if text:
        sys.stdout.write(f"{text}\n")
    return status


def _npd(chosen: argparse.Namespace) -> int:
    """As node-problem-detector wants it: to it any status 1 is a problem of the GPUs, so whatever stops this
    program is 2, not known, and is said where it reads."""
    try:
        told = last(RUN / RESULT) if chosen.last else fresh(settings.read(chosen.settings), write=False)
        text, status = styles.npd(told)
    except Exception as error:
        known = isinstance(error, (GpuprovError, OSError))
        said = str(error) if known else f"{type(error).__name__}: {bug_file.report(error)}"
        text, status = styles.npd_text(said or type(error).__name__), 2
    sys.stdout.write(f"{text}\n")
    return status


def last(path: Path) -> Mapping[str, Any]:
    """The result of the timer's last run; of one that is too old, that it is. Raises GpuprovError."""
    told, age = _with_age(path)
    if not _late(told, age):
        return told
    late = (
        "the last result is of another boot" if age is None else f"the last result is {age / 60:.0f} min old"
    )
    return {**told, "verdict": "error", "error": f"{late}: {_LOOK}"}


def _late(told: Mapping[str, Any], age: float | None) -> bool:
    return age is None or document.stale(age, told["interval"])


def _with_age(path: Path) -> tuple[dict[str, Any], float | None]:
    """The last result and its age in seconds; None when it is of another boot. Raises GpuprovError."""
    try:
        told: dict[str, Any] = foreign_json.read(path.read_bytes()[: document.LARGEST + 1])
        age = run.uptime() - told["uptime"]
        return told, age if age >= 0 and told["boot_id"] == gpuprov_run.boot_id() else None
    except FileNotFoundError:
        raise GpuprovError(f"{path}: there is no result yet", _LOOK) from None
    except (ValueError, KeyError, TypeError) as error:
        raise GpuprovError(f"{path}: not a result of this program: {error!r:.80}", _LOOK) from None


def fresh(known: Settings, *, write: bool) -> Mapping[str, Any]:
    """Look at the node and judge it; the document of this run. `write`: it counts as a run of the timer,
    and its files are written. Raises GpuprovError when another run is under way, OSError when a file cannot
    be written."""
    if os.geteuid() != 0:
        raise GpuprovError("only root can run the checks", "run it as root; without root: --last")
    try:
        # A user who can open a file can lock it, and so keep every later run from starting.
        private = Path(lock.private_folder(str(RUN)))
    except lock.LockError as error:
        raise GpuprovError(str(error), f"find out who made it, then remove {RUN}") from None
    with (private / "node-health.lock").open("w") as file:
        _alone(file.fileno(), 0.0 if write else 60.0)
        return _fresh(known, write=write)


def _alone(file: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                raise GpuprovError("another run is under way", "wait for it, or take --last") from None
            time.sleep(0.2)


def _fresh(known: Settings, *, write: bool) -> Mapping[str, Any]:
    began, started, boot_id, name = time.monotonic(), _now(), gpuprov_run.boot_id(), socket.gethostname()
    processes.adopt_children()
    before = state.read(STATE, boot_id)
    hung = processes.still(before.hung)
    measured = run.measure(name, known, before.kernel, hung, run.uptime())
    hung += processes.named(processes.left(run.uptime()), measured.silent)
    own = _own(before)
    health = run.judged(name, measured, known, own)
    findings = [finding for check in health.checks for finding in check.findings]
    tracked = debounce.followed(
        before.tracked, findings, known.rules, started, rebooted=before.rebooted, early=write and _early()
    )
    gpus = tuple(document.identified(health, before.gpus))
    after = State(tuple(tracked), measured.kernel, tuple(hung), gpus=gpus)
    about = {
        "boot_id": boot_id,
        "uptime": round(run.uptime(), 2),
        "started": started,
        "finished": _now(),
        "seconds": round(time.monotonic() - began, 3),
    }
    told = document.document(health, tracked, about, known.interval, before.gpus)
    if write:
        _write(told, after, known, measured.facts)
    return told


def _early() -> bool:
    """Whether gpuprov-node-health-kernel started this run, out of the timer's turn; asked once a run."""
    try:
        (RUN / EARLY).unlink()
    except OSError:
        return False
    return True


def _own(before: State) -> list[Finding]:
    """What the program has to say of itself."""
    if not before.trouble:
        return []
    return [Finding(run.ID, Verdict.WARN, "node", before.trouble, "state", action="investigate")]


def _write(told: Mapping[str, Any], after: State, known: Settings, facts: Mapping[str, Any]) -> None:
    """The files of a run. What cannot be kept for the next run is no reason not to tell of this one."""
    os.umask(0o022)
    troubles = []
    try:
        state.write(STATE, after, told["boot_id"])
        ports.keep(STATE, facts, told["boot_id"], told["uptime"])
        state.note(STATE, told["verdict"], told["finished"], styles.causes(told))
    except OSError as error:
        troubles.append(f"{error.filename or STATE}: {error.strerror}")
    atomic_file.write(RUN / RESULT, document.text(told), private=False, sync=False)
    if known.textfile:
        families = metrics.families(told, time.time(), burnin.progress())
        # As a rule the folder is the node exporter's, an account without privileges.
        with atomic_file.held(Path(known.textfile)) as folder:
            atomic_file.write(folder / TEXTFILE, exposition.render(families), private=False, sync=False)
    if troubles:
        raise GpuprovError(
            f"what the next run has to know could not be kept: {troubles[0]}", "make room there"
        )


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
