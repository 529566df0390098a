"""gpuprov-node-health: runs the passive checks on this node and reports its health.

    gpuprov-node-health             run the checks and print the result as JSON
    gpuprov-node-health write       the same for the timer: write health.json and metrics, and print nothing
    gpuprov-node-health age         print the age of the last result in seconds; exit status 1: stale
    gpuprov-node-health nagios      a line and a status for Nagios, Icinga, Checkmk (0, 1, 2, 3)
    gpuprov-node-health nhc         the reason to drain the node, for LBNL NHC or Slurm (0 or 1)
    gpuprov-node-health npd         a message and a status for Kubernetes' node-problem-detector (0, 1, 2)
    gpuprov-node-health slurm check|prolog|epilog
                                    drain the node in Slurm, or refuse a job, by the timer's last result

With --last, json (the default), nagios, nhc and npd use the timer's last result if it is fresh.
Exit status: 0 healthy (also with warnings), 3 unhealthy, 5 could not be measured, 1 another error, 2 wrong
options.
"""

from __future__ import annotations

import argparse
import datetime
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
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
from provision.node.burnin.processes import locked
from provision.node.burnin.spool import since_boot
from provision.node.modules import gpuprov_run
from provision.remote.schedulers.slurm_breaker import LEAST, SHARE

SETTINGS = Path("/etc/gpuprov/node-health.json")
RUN = Path("/run/gpuprov")
RESULT = "health.json"
EARLY = "early"  # marker file: the next run was triggered by an event, not by the timer
STATE = Path("/var/lib/gpuprov/node-health")
TEXTFILE = "gpuprov.prom"
_LOOK = "systemctl status gpuprov-node-health.timer"
_STATUS = {"fail": ExitCode.UNHEALTHY, "error": ExitCode.INCOMPLETE}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status."""
    bug_file.keep_in(STATE)
    try:
        chosen = _options(sys.argv[1:] if argv is None else argv)
        return int(chosen.run(chosen))
    except GpuprovError as error:
        return _stopped(f"{error.what} → {error.fix}" if error.fix else error.what)
    except OSError as error:
        return _stopped(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _stopped(why: str) -> int:
    sys.stderr.write(f"gpuprov-node-health: {why}\n")
    return int(ExitCode.ERROR)


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gpuprov-node-health",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gpuprov-node-health {__version__}")
    words = parser.add_subparsers(dest="word", metavar="WORD")
    for command, run_word in _WORDS.items():
        one = words.add_parser(command, allow_abbrev=False)
        one.set_defaults(run=run_word)
        if command not in ("write", "age", "slurm"):
            one.add_argument("--last", action="store_true", help="take the timer's last result")
        if command not in ("age", "slurm"):
            one.add_argument("--settings", type=Path, default=SETTINGS, metavar="FILE")
    slurms = words.choices["slurm"]
    slurms.add_argument("program", choices=slurm.WORDS, help="3: the job or the epilog is to fail")
    slurms.add_argument("--refuse-unknown", action="store_true", help="refuse jobs where nothing is known")
    slurms.add_argument("--share", type=float, default=SHARE, help="percent drained within an hour")
    slurms.add_argument("--least", type=int, default=LEAST, help="nodes that may be, at least")
    chosen = parser.parse_args(_worded(argv))
    if chosen.word == "slurm" and chosen.refuse_unknown and chosen.program != "prolog":
        parser.error("--refuse-unknown is for slurm prolog")
    return chosen


def _worded(argv: Sequence[str]) -> list[str]:
    """Move the subcommand, a flag (`--last --nhc`) in older configurations of other programs, first."""
    given = [part for one in argv for part in (one.split("=", 1) if one.startswith("--slurm=") else [one])]
    behind = zip(given, ["", *given])
    words = [one for one in given if one[:2] == "--" and one[2:] in _WORDS]
    words = words or [one for one, before in behind if one in _WORDS and before != "--settings"][:1]
    ordered = [*(one.lstrip("-") for one in words), *(one for one in given if one not in words)]
    named = ordered and (ordered[0][0] != "-" or ordered[0] in ("-h", "--help", "--version"))
    return ordered if named else ["json", *ordered]


def _write_files(chosen: argparse.Namespace) -> int:
    fresh(settings.read(chosen.settings), write=True)
    return 0  # a failing unit would raise a second alarm for the same fault


def _age(_: argparse.Namespace) -> int:
    newest, age = _with_age(RUN / RESULT)
    return _say("another boot" if age is None else f"{age:.0f}", int(_late(newest, age)))


def _json(chosen: argparse.Namespace) -> int:
    result = _told(chosen)
    return _say(document.text(result).rstrip("\n"), int(_STATUS.get(result["verdict"], 0)))


def _nagios(chosen: argparse.Namespace) -> int:
    return _say(*styles.nagios(_told(chosen)))


def _nhc(chosen: argparse.Namespace) -> int:
    return _say(*styles.nhc(_told(chosen)))


def _slurm(chosen: argparse.Namespace) -> int:
    return slurm.main(
        chosen.program,
        lambda: last(RUN / RESULT),
        refuse_unknown=chosen.refuse_unknown,
        share=chosen.share,
        least=chosen.least,
    )


def _told(chosen: argparse.Namespace) -> Mapping[str, Any]:
    return last(RUN / RESULT) if chosen.last else fresh(settings.read(chosen.settings), write=False)


def _say(text: str, status: int) -> int:
    if text:
        sys.stdout.write(f"{text}\n")
    return status


def _npd(chosen: argparse.Namespace) -> int:
    """Print the result for node-problem-detector, which takes exit status 1 as a GPU problem.

    Any failure of this program therefore exits with 2 (unknown) and prints its reason to stdout."""
    try:
        text, status = styles.npd(_told(chosen))
    except Exception as error:
        expected = isinstance(error, (GpuprovError, OSError))
        message = str(error) if expected else f"{type(error).__name__}: {bug_file.report(error)}"
        text, status = styles.npd_text(message or type(error).__name__), 2
    return _say(text, status)


_WORDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "json": _json,
    "write": _write_files,
    "age": _age,
    "nagios": _nagios,
    "nhc": _nhc,
    "npd": _npd,
    "slurm": _slurm,
}


def last(path: Path) -> Mapping[str, Any]:
    """Return the result of the timer's last run, as an `error` if it is too old. Raises GpuprovError."""
    result, age = _with_age(path)
    if not _late(result, age):
        return result
    late = (
        "the last result is of another boot" if age is None else f"the last result is {age / 60:.0f} min old"
    )
    return {**result, "verdict": "error", "error": f"{late}: {_LOOK}"}


def _late(told: Mapping[str, Any], age: float | None) -> bool:
    return age is None or document.stale(age, told["interval"])


def _with_age(path: Path) -> tuple[dict[str, Any], float | None]:
    """Return the last result and its age in seconds (None after a reboot). Raises GpuprovError."""
    try:
        result: dict[str, Any] = foreign_json.read(path.read_bytes()[: document.LARGEST + 1])
        age = since_boot() - result["uptime"]
        return result, age if age >= 0 and result["boot_id"] == gpuprov_run.boot_id() else None
    except FileNotFoundError:
        raise GpuprovError(f"{path}: there is no result yet", _LOOK) from None
    except (ValueError, KeyError, TypeError) as error:
        raise GpuprovError(f"{path}: not a result of this program: {error!r:.80}", _LOOK) from None


def fresh(known: Settings, *, write: bool) -> Mapping[str, Any]:
    """Run the checks and return this run's document; `write`: count it as a timer run and write its files.

    Raises GpuprovError if another run is active, OSError if a file cannot be written."""
    if os.geteuid() != 0:
        raise GpuprovError("only root can run the checks", "run it as root; without root: --last")
    try:
        # Any user who can open the lock file could lock it and so block all later runs.
        private = Path(lock.private_folder(str(RUN)))
    except lock.LockError as error:
        raise GpuprovError(str(error), f"find out who made it, then remove {RUN}") from None
    with (private / "node-health.lock").open("w") as file:
        if not locked(file.fileno(), 0.0 if write else 60.0):
            raise GpuprovError("another run is under way", "wait for it, or take --last")
        return _fresh(known, write=write)


def _fresh(known: Settings, *, write: bool) -> Mapping[str, Any]:
    began, started, boot_id, name = time.monotonic(), _now(), gpuprov_run.boot_id(), socket.gethostname()
    processes.adopt_children()
    before = state.read(STATE, boot_id)
    hung = processes.still(before.hung)
    measured = run.measure(name, known, before.kernel, hung, since_boot())
    hung += processes.named(processes.left(since_boot()), measured.silent)
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
        "uptime": round(since_boot(), 2),
        "started": started,
        "finished": _now(),
        "seconds": round(time.monotonic() - began, 3),
    }
    result = document.document(health, tracked, about, known.interval, before.gpus)
    if write:
        _write(result, after, known, measured.facts)
    return result


def _early() -> bool:
    """Return whether gpuprov-node-health-kernel started this run, and remove its marker file."""
    try:
        (RUN / EARLY).unlink()
    except OSError:
        return False
    return True


def _own(before: State) -> list[Finding]:
    """Findings about the health program itself."""
    if not before.trouble:
        return []
    return [Finding(run.ID, Verdict.WARN, "node", before.trouble, "state", action="investigate")]


def _write(told: Mapping[str, Any], after: State, known: Settings, facts: Mapping[str, Any]) -> None:
    """Write the files of a run. Failing to save state must not suppress this run's result."""
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
        # The folder usually belongs to the node exporter's unprivileged account.
        with atomic_file.held(Path(known.textfile)) as folder:
            atomic_file.write(folder / TEXTFILE, exposition.render(families), private=False, sync=False)
    if troubles:
        raise GpuprovError(
            f"what the next run has to know could not be kept: {troubles[0]}", "make room there"
        )


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
