"""One-line causes and next steps of worker failures, from Receptor's messages and workers' output (pure).

Receptor's messages were observed with 1.5.5 of Debian 13; messages about certificates come from Go's
crypto/tls and crypto/x509.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from provision.errors import GpuprovError
from provision.remote.protocol import NodeError, one_line
from provision.remote.workers import PYTHON, SOCKET_VARIABLE, TLS_VARIABLE, VARIABLE
from provision.text import iso

_RUNNING = "is its Receptor running, and are its peers?"
_RENEW = "renew it: gpuprov up --nodes gpuprov_workers (docs/mesh.md)"
_OTHER = "install this gpuprov there, then renew its work-command: gpuprov up --nodes gpuprov_workers"
_LOOK_THERE = "look at that machine (memory, disk, its log)"
_NO_DISK = "exit status 74"  # exit status of worker_entry if it cannot write its answers
# Substring of a Receptor message: kind, cause, next step.
_KNOWN: tuple[tuple[str, str, str, str], ...] = (
    ("no space left on device", "ansible", "its disk is full", "free space in its Receptor's data folder"),
    (
        "unknown work type",
        "auth",
        "its Receptor does not allow the work type gpuprov-worker",
        "give its Receptor that work-command (docs/workers.md)",
    ),
    (
        "signing key is empty",
        "auth",
        "the Receptor of this machine has no key to sign work with",
        "give it a work-signing key (docs/workers.md)",
    ),
    (
        "did not expect a signature",  # also printed for a work type that is missing there
        "auth",
        "its Receptor does not have the work type gpuprov-worker, or takes it unsigned",
        "give it that work-command, with verifysignature: true (docs/workers.md)",
    ),
    (
        "could not verify signature",
        "auth",
        "its Receptor does not accept the signature of our work",
        "give it the public half of this controller's work-signing key, and compare the clocks of both",
    ),
    (
        "unknown TLS config",
        "auth",
        "the Receptor of this machine has no such tls-client",
        f"correct {TLS_VARIABLE}",
    ),
    (
        "insecure connection to secure service",
        "auth",
        "its Receptor wants TLS, and ours has none for it",
        f"correct {TLS_VARIABLE}",
    ),
    ("certificate has expired", "auth", "a certificate has expired", _RENEW),
    ("expired certificate", "auth", "a certificate has expired", _RENEW),
    (
        "CRYPTO_ERROR",
        "auth",
        "its certificate, or ours there, is not accepted",
        "give both certificates of one authority, with their node ids",
    ),
    (
        "no route to node",
        "unreachable",
        "the mesh has no way to it",
        _RUNNING,
    ),
    (
        "Work unit expired",
        "unreachable",
        "it did not answer in time",
        _RUNNING,
    ),
)


def of_refusal(worker: str, said: str) -> NodeError:
    """Explain why Receptor did not start a unit, from its message."""
    for pattern, kind, cause, fix in _KNOWN:
        if pattern in said:
            return _error(kind, worker, f"{cause} ({_short(said)})", fix)
    return _error(
        "unreachable", worker, f"its unit was not begun: {_short(said) or 'no reason was given'}", _LOOK_THERE
    )


def _short(said: str) -> str:
    return one_line(said.rpartition("ERROR: ")[2], 160)


def no_route(worker: str) -> NodeError:
    return of_refusal(worker, "no route to node")


def of_words(worker: str, noise: bytes, detail: str = "") -> NodeError:
    """Explain why the worker's program did not start, from its output and Receptor's detail."""
    last = _last(noise, detail)
    if "No module named" in last:
        if re.search(r"No module named '?provision\.", last):  # its gpuprov is installed but incomplete
            what = f"its Receptor starts what its gpuprov does not have ({last})"
            return _error("python", worker, what, _OTHER)
        return _error(
            "python", worker, f"its Python has no gpuprov ({last})", f"install it there, or correct {PYTHON}"
        )
    if "no such file or directory" in last or "not found" in last or "permission denied" in last:
        return _error("python", worker, f"its interpreter cannot be started ({last})", f"correct {PYTHON}")
    if "No space left" in noise.decode("utf-8", "replace") or _NO_DISK in detail:
        return of_refusal(worker, "no space left on device")
    return _error("cut", worker, f"it ended before it began{': ' + last if last else ''}", _LOOK_THERE)


def refused(worker: str, refusal: Mapping[str, Any]) -> NodeError:
    """Return the error for a worker's own refusal to start a unit."""
    kind = "python" if refusal.get("kind") == "python" else "garbage"
    return _error(kind, worker, one_line(str(refusal.get("what"))), one_line(str(refusal.get("fix") or "")))


def no_socket(worker: str, why: str) -> NodeError:
    return _error(
        "ansible",
        worker,
        f"gpuprov there cannot use its Receptor's control socket ({one_line(why, 160)})",
        f"correct {SOCKET_VARIABLE} of {worker}, or run its work as a user who may use it",
    )


def no_receptor(worker: str, error: GpuprovError) -> NodeError:
    """Return the error for an unreachable Receptor on the controller itself."""
    return _error("unreachable", worker, error.what, error.fix)


def cut(worker: str, detail: str, noise: bytes) -> NodeError:
    """Return the error for a worker's program that ended prematurely."""
    last = _last(noise, detail)
    if "No space left" in last or _NO_DISK in detail:
        return _error("cut", worker, f"its work ended too early: its disk is full ({last})", _LOOK_THERE)
    return _error("cut", worker, f"its work ended too early{': ' + last if last else ''}", _LOOK_THERE)


def _last(noise: bytes, detail: str) -> str:
    """Return the last line that the program printed, or Receptor's detail if it printed nothing."""
    lines = [line for line in noise.decode("utf-8", "replace").splitlines() if line.strip()]
    return one_line(lines[-1] if lines else detail, 200)


def left(worker: str, silent: float, deadline: float) -> NodeError:
    """Return the error for an unreachable worker that no other worker can stand in for."""
    what = f"it was not heard from for {silent:.0f} s, and may be at work until {iso(deadline)}"
    return _error(
        "unreachable", worker, what, "mend the way to it: up --resume collects what it did meanwhile"
    )


def bad(worker: str, what: str) -> NodeError:
    fix = "its further output is ignored; check that this is the right machine"
    return _error("garbage", worker, f"its answer is not understood: {what}", fix)


def failed(worker: str, what: str) -> NodeError:
    return _error("ansible", worker, what, _LOOK_THERE)


def stopped(worker: str, what: str) -> NodeError:
    """Return the error for a unit ended deliberately: by a person, a timeout, a lease or a lost lock."""
    return _error("hung", worker, what, "")


def hung(worker: str, what: str) -> NodeError:
    return _error("hung", worker, what, _LOOK_THERE)


def next_step(trouble: NodeError) -> str:
    """Return advice for a lost worker: how to fix it, and what to do if it stays lost."""
    first = f"{trouble.fix}{' ' if trouble.fix.endswith('?') else ', '}then " if trouble.fix else ""
    again = "run again, up and validate with --resume"
    return f"{first}{again}; if it stays lost, name others in its nodes' {VARIABLE}"


def _error(kind: str, worker: str, what: str, fix: str) -> NodeError:
    return NodeError(kind, f"worker {worker}: {what}", fix)
