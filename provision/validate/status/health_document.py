"""Parser of a node's health result, /run/gpuprov/health.json (pure).

The node is untrusted: each field read has a type and bounds, and text with control characters is refused.
Anything unexpected raises DocumentError and never counts as a healthy node."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from provision import foreign_json
from provision.checks.health import GpuIdentity
from provision.checks.judge import ACTIONS, Finding, Verdict
from provision.checks.on_node.document import FORMAT, LARGEST
from provision.text import clean, one_line

_TEXT = 4000  # characters per text
_MOST = 4096  # entries per list
_HOUR, _YEAR = 3600, 366 * 86400

STATES = ("active", "pending", "clearing")  # of a finding; a pending one does not count yet


class DocumentError(Exception):
    """Reason why the text is no health result; one line that completes `the health result …`."""


@dataclass(frozen=True)
class HeldFinding:
    """A finding with its debouncing; `active` and `clearing` count, `pending` was seen too rarely.

    `seen` of the last `of` runs, `needs` of them make it active; `clean` runs since, `clear_after` clear it.
    """

    finding: Finding
    state: str
    since: str
    seen: int
    of: int
    needs: int
    clean: int
    clear_after: int


@dataclass(frozen=True)
class HealthDocument:
    """One health result.

    `uptime`: seconds since boot when written; `interval`: seconds between two results. `verdict`: the
    debounced one; `measured`: of the last run alone; `error`: why nothing could be judged; `checks`: their
    number in the last run."""

    gpuprov: str
    boot_id: str
    uptime: float
    interval: float
    seconds: float
    finished: str
    verdict: Verdict
    measured: Verdict
    error: str
    gpus: tuple[GpuIdentity, ...]
    facts: Mapping[str, Any]
    checks: int
    findings: tuple[HeldFinding, ...]


def read(raw: bytes) -> HealthDocument:
    """Parse a health result. Raises DocumentError."""
    if len(raw) > LARGEST:
        raise DocumentError(f"is larger than {LARGEST // 1024} KiB")
    try:
        document = foreign_json.read(raw)
    except foreign_json.JsonError as error:
        raise DocumentError(f"is not JSON as expected: {error}") from None
    if not isinstance(document, dict):
        raise DocumentError("is not a JSON object")
    made = _whole(document, "format", 0, 1 << 30)
    if made > FORMAT:
        raise DocumentError(
            f"has format {made}, and this gpuprov reads {FORMAT}: update gpuprov on this machine"
        )
    if made < 1:
        raise DocumentError(f"has no format that exists: {made}")
    return HealthDocument(
        gpuprov=_text(document, "gpuprov", 40),
        boot_id=_text(document, "boot_id", 64),
        uptime=_number(document, "uptime", 100 * _YEAR),
        interval=_number(document, "interval", 24 * _HOUR),
        seconds=_number(document, "seconds", _YEAR),
        finished=_text(document, "finished", 40),
        verdict=_verdict(document, "verdict"),
        measured=_verdict(document, "measured"),
        error=_sentence(document, "error"),
        gpus=_each(document, "gpus", _gpu),
        facts=_facts(document),
        checks=len(_each(document, "checks", _check)),
        findings=_each(document, "findings", _finding),
    )


def _wrong(name: str, wanted: str) -> DocumentError:
    return DocumentError(f"is not of the form expected: {name} must be {wanted}")


def _text(entry: Mapping[str, Any], name: str, most: int = _TEXT) -> str:
    value = entry.get(name)
    if not isinstance(value, str) or len(value) > most:
        raise _wrong(name, f"a text of at most {most} characters")
    return _printable(value, name)


def _sentence(entry: Mapping[str, Any], name: str) -> str:
    """Return a text for people, truncated if it is too long."""
    return one_line(_text(entry, name, LARGEST), _TEXT)


def _printable(value: str, name: str) -> str:
    if clean(value) != value:
        raise DocumentError(f"has control characters, in {name}")
    return value


def _number(entry: Mapping[str, Any], name: str, most: float) -> float:
    value = entry.get(name)
    # A number too large for a float would raise an arithmetic error later.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise _wrong(name, f"a number from 0 to {most:,.0f}")
    return float(value)


def _whole(entry: Mapping[str, Any], name: str, least: int, most: int) -> int:
    value = entry.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _wrong(name, f"a whole number from {least} to {most:,}")
    return value


def _verdict(entry: Mapping[str, Any], name: str) -> Verdict:
    try:
        return Verdict(str(entry.get(name)))
    except ValueError:
        raise _wrong(name, "one of " + ", ".join(Verdict)) from None


Entry = TypeVar("Entry")


def _each(
    document: Mapping[str, Any], name: str, read_one: Callable[[Mapping[str, Any]], Entry]
) -> tuple[Entry, ...]:
    entries = document.get(name)
    if not isinstance(entries, list) or len(entries) > _MOST:
        raise _wrong(name, "a list")
    if not all(isinstance(entry, dict) for entry in entries):
        raise _wrong(name, "a list of objects")
    return tuple(map(read_one, entries))


def _gpu(entry: Mapping[str, Any]) -> GpuIdentity:
    return GpuIdentity(
        _whole(entry, "index", 0, 1023),
        *(_text(entry, name, 200) for name in ("name", "serial", "uuid", "pci_address")),
    )


def _check(entry: Mapping[str, Any]) -> str:
    _verdict(entry, "verdict")
    return _text(entry, "check", 100)


def _facts(document: Mapping[str, Any]) -> dict[str, Any]:
    facts = document.get("facts")
    if not isinstance(facts, dict) or len(facts) > 100:
        raise _wrong("facts", "an object")
    return {_printable(name, "facts"): _scalar(value, "facts") for name, value in facts.items()}


def _scalar(value: Any, name: str) -> Any:
    if isinstance(value, str) and len(value) <= _TEXT:
        return _printable(value, name)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float) and abs(value) < 2**63 and math.isfinite(value):
        return value
    raise _wrong(name, "texts and numbers")


def _finding(entry: Mapping[str, Any]) -> HeldFinding:
    state = entry.get("state")
    if state not in STATES:
        raise _wrong("state", "one of " + ", ".join(STATES))
    verdict = _verdict(entry, "verdict")
    if verdict is Verdict.PASS:
        raise _wrong("findings", "findings that are no pass")
    action = _text(entry, "action", 80)
    finding = Finding(
        check=_text(entry, "check", 100),
        verdict=verdict,
        device=_text(entry, "device", 100),
        message=_sentence(entry, "message"),
        metric=_text(entry, "metric", 200),
        value=_scalar(entry.get("value"), "value"),
        unit=_text(entry, "unit", 100),
        limit=_sentence(entry, "limit"),
        source=_sentence(entry, "source"),
        # A newer program may name an unknown action; its finding must not be lost because of that.
        action=action if action in ACTIONS else "investigate",
        evidence=_lines(entry),
    )
    counts = (_whole(entry, name, 0, 1 << 30) for name in ("seen", "of", "needs", "clean", "clear_after"))
    return HeldFinding(finding, state, _text(entry, "since", 40), *counts)


def _lines(entry: Mapping[str, Any]) -> tuple[str, ...]:
    lines: Sequence[Any] = entry.get("evidence")  # type: ignore[assignment]
    if not isinstance(lines, list) or len(lines) > _MOST or not all(isinstance(line, str) for line in lines):
        raise _wrong("evidence", "a list of texts")
    return tuple(one_line(_printable(line, "evidence"), _TEXT) for line in lines)
