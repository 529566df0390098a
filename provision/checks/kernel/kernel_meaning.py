"""Meaning of a kernel event by the vendors' catalogues: level, action and words (pure).

The catalogues are in provision/data. Codes and registers take precedence, as drivers change their words:

NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)    r610
NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)
NVRM: Xid (PCI:0000:1b:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 ...)
NVRM: Xid (PCI:0000:1b:00): 74, pid=…, NVLink: fatal error detected on link 6(0x10000, 0x0, 0x0, ...)
NVRM: Xid (PCI:0000:1b:00): 45, pid=4711, name=python, Ch 00000008 caused by previous Xid 94   since 570.124
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from provision import shipped
from provision.checks.kernel.vendors import driver_log

CLEANUP = 45  # the Xid of a channel that is cleaned up after another error
RECOVERY_ACTION = 154  # the Xid with which the driver requests an action
AER_CORRECTED, AER_UNCORRECTED = 0, 1  # the codes of an `aer` event
NVRM = "nvrm"  # kind of the lines that NVIDIA's driver writes without a number

FATAL = re.compile(r"(?<![Nn]on-)\bFatal\b")
_NONFATAL = re.compile(r"\bNon-?fatal\b", re.IGNORECASE)
# The kernel keeps 15 bytes of a name. /dev/kmsg and dmesg print non-text bytes as \xNN.
_PROGRAM = re.compile(r", name=(?:\\x[0-9a-f]{2}|(?!\\x[0-9a-f]{2}).){0,15}(?:, |$)")
_REQUESTED = re.compile(r"to (0x[0-9a-f]{1,16}) \(([^()]*)\)")
_CAUSED_BY = re.compile(r"caused by previous Xid (\d{1,6})$")
_REGISTERS = re.compile(r"\((0x[0-9a-fA-F]{1,8}(?:,? 0x[0-9a-fA-F]{1,8})*)\)")

_ECHO = 0  # rank of errors that a GPU logs because another GPU lost a link
_LEVELS = ("info", "program", "warn", "fail")
# From least to most: a later action is needed whether or not an earlier one is taken.
ACTIONS = (
    "none",
    "watch",
    "run again",
    "investigate",
    "restart job",
    "reset GPU",
    "reboot",
    "power-cycle",
    "fix configuration",
    "reseat or check cable",
    "replace part",
)
NEEDS_RESET = frozenset({"reset GPU", "reboot", "power-cycle", "replace part"})
_OF_HARDWARE = ("fail", "warn", "by severity")
_OF_SHEET = "by severity"


class Meaning(NamedTuple):
    """Level (fail, warn, info; program: a user's fault), action of judge.ACTIONS and words of an event."""

    level: str
    action: str
    words: str


def worst(meanings: Iterable[Meaning]) -> tuple[str, str]:
    """Return the worst level and the worst action, each independently."""
    candidates = list(meanings)
    level = max((one.level for one in candidates), key=_LEVELS.index)
    return level, max((one.action for one in candidates), key=ACTIONS.index)


def weight(kind: str, code: int | str, line: str) -> tuple[int, int, int]:
    """Return the sort key for lines of one kind of event: level, action, then rank as a cause."""
    level, action, _ = meaning(kind, code, line)
    return _LEVELS.index(level), ACTIONS.index(action), rank(kind, code, line)


def meaning(kind: str, code: int | str, line: str) -> Meaning:
    """Return the meaning of an event with this line."""
    if kind == "sxid":
        return _of_switch(int(code), line)
    if kind == "aer":
        level = "warn" if code == AER_CORRECTED else "fail"
        return Meaning(level, "reseat or check cable", "PCIe bus error")
    if kind == driver_log.KIND:
        amdgpu_row = driver_log.MEANINGS[str(code)]
        return Meaning(amdgpu_row.level, amdgpu_row.action, amdgpu_row.words)
    if kind == NVRM:
        row = lines()[str(code)]
        return Meaning(row["level"], row["action"], row["meaning"])
    return _of_xid(int(code), own_words(line))


def own_words(line: str) -> str:
    """Return the driver's own words in its line, without the name of the user's program."""
    return _PROGRAM.sub(", ", line, count=1)


def rank(kind: str, code: int | str, line: str) -> int:
    """Return an event's likelihood of being the cause of simultaneous ones (data/kernel_log.yml)."""
    ranks = _data()["ranks"]
    for row in ranks if kind == "xid" else ():
        if code in row["xids"] and re.search(row.get("with", ""), own_words(line)):
            return int(row["rank"])
    return 1


def is_echo(kind: str, code: int | str, line: str) -> bool:
    """Return whether a GPU logs such an error because another GPU lost a link."""
    return rank(kind, code, line) == _ECHO


def cause_named(line: str) -> int | None:
    """Return the Xid that an Xid 45 names as its cause."""
    match = _CAUSED_BY.search(own_words(line))
    return int(match[1]) if match else None


def names_lost_cause(code: int | str, line: str) -> bool:
    """Return whether an Xid 45 names a cause that breaks a GPU."""
    cause = cause_named(line) if code == CLEANUP else None
    return cause is not None and _catalogue().get(cause, {}).get("level") in ("fail", _OF_SHEET)


def of_domain(kind: str, code: int | str, line: str) -> bool:
    """Return whether a request concerns the whole NVLink domain rather than a single GPU."""
    if (kind, code) != ("xid", RECOVERY_ACTION):
        return False
    return bool(_requested(own_words(line)).get("domain"))


def brings(root: int, code: int) -> bool:
    """Return whether the Xid `root` causes the Xid `code` on the same GPU (catalogue: sympathetic)."""
    after = _catalogue().get(code, {}).get("after", ())
    if after == "any":
        return root != RECOVERY_ACTION and _catalogue().get(root, {}).get("after") != "any"
    if after == "hardware":
        return _catalogue().get(root, {}).get("level") in _OF_HARDWARE
    return root in after


def _of_xid(code: int, words: str) -> Meaning:
    row = _catalogue().get(code)
    if row is None:
        return Meaning("warn", "investigate", "an Xid that is not in the catalogue")
    documented = Meaning(row["level"], row["action"], row["meaning"])
    if code == RECOVERY_ACTION:
        return _of_request(documented, words)
    if code == CLEANUP and names_lost_cause(code, words):
        cause_text = f"{documented.words}; it names Xid {cause_named(words)} as its cause"
        return documented._replace(level="warn", action="investigate", words=cause_text)
    if documented.level == _OF_SHEET:
        return _of_nvlink5(code, documented, words)
    if "registers" in row:
        return _of_registers(documented, words)
    return documented


def _requested(words: str) -> Mapping[str, Any]:
    """Look up the requested action by its number, or by its words if the number is unknown."""
    matches = _REQUESTED.findall(words)
    if not matches:
        return {}
    number, text = matches[-1]
    actions = _data()["recovery_actions"]
    rows: dict[int, Mapping[str, Any]] = {int(one): row for one, row in actions.items()}
    return rows.get(int(number, 16)) or _named(text)


def _named(text: str) -> Mapping[str, Any]:
    """Look up a requested action by its name; empty if unknown."""
    rows: Iterable[Mapping[str, Any]] = _data()["recovery_actions"].values()
    return next((row for row in rows if text in row["words"]), {})


def requested_action(text: str) -> Meaning:
    """Return the meaning of a recovery action as nvidia-smi prints it."""
    return _demand(_named(text), f"the driver requests: {text}")


def _of_request(known: Meaning, words: str) -> Meaning:
    row, matches = _requested(words), _REQUESTED.findall(words)
    text = f"{known.words} to {matches[-1][1] if row else 'an unknown action'}" if matches else known.words
    return _demand(row, text)


def _demand(row: Mapping[str, Any], said: str) -> Meaning:
    if not row:  # an unknown request must not pass
        return Meaning("fail", "investigate", said)
    more = row.get("meaning")
    return Meaning(row["level"], row["action"], f"{said}: {more}" if more else said)


def _registers(words: str) -> list[int]:
    match = _REGISTERS.search(words)
    return [int(one, 16) for one in re.findall(r"0x[0-9a-fA-F]+", match[1])] if match else []


def _of_nvlink5(code: int, known: Meaning, words: str) -> Meaning:
    """Decode Xids 144 to 150 by NVIDIA's sheet; if no row fits, by the severity that the line names."""
    rows = sheet_rows(code, _registers(words))
    # Some rows have no fixed severity: an error that the driver calls fatal stays fatal.
    if not rows or (FATAL.search(words) and all("Non-fatal" in row["severity"] for row in rows)):
        if _NONFATAL.search(words):
            return known._replace(level="warn", action="investigate")
        return known._replace(level="fail")
    return max((_of_row(known, row) for row in rows), key=lambda one: _LEVELS.index(one.level))


def _of_row(known: Meaning, row: Mapping[str, Any]) -> Meaning:
    immediate, then = row["nvidia"]
    words = f"{known.words}, {row['unit'][0]}"
    if then.startswith("INVESTIGATE"):
        words += f"; NVIDIA: {then.replace('_', ' ').lower()}"
    if immediate == "RESET_GPU":
        return Meaning("fail", known.action, words)
    action = "none" if (immediate, then) == ("IGNORE", "IGNORE") else "investigate"
    return Meaning("warn", action, words)


def sheet_rows(code: int, registers: Sequence[int]) -> list[Mapping[str, Any]]:
    """Return the rows of the decode sheet that fit an Xid's first two registers.

    Drivers before 575 encode the unit in the low ten bits of the first register, later ones in the low seven;
    its bits 20 to 25 are the detail. The second register has one bit for each error, or is a number (149).
    """
    if len(registers) < 2:
        return []
    first, status = registers[:2]
    fitting = []
    for row in _sheet()["rows"]:
        if row["xid"] != code or row["detail"] != (first >> 20) & 0x3F:
            continue
        if first & 0x3FF != row["v1"] and first & 0x7F != row["v2"]:
            continue
        of_bits = code < 149 and row["status"] and status & row["status"]
        if row["status"] is None or row["status"] == status or of_bits:
            fitting.append(row)
    return fitting


def _of_registers(known: Meaning, words: str) -> Meaning:
    """Decode Xid 74 by the bits of its seven registers, as far as NVIDIA documents them."""
    registers = _registers(words)
    bits = {(at, bit) for at, value in enumerate(registers[:7]) for bit in range(32) if value >> bit & 1}
    groups = []
    for group in _sheet()["xid_74"]:
        of_group = {(group["register"], bit) for bit in group["bits"]}
        groups += [group] if bits & of_group else []
        bits -= of_group
    if not groups or bits:  # a bit that NVIDIA does not document
        return known
    top = max(groups, key=lambda one: (_LEVELS.index(one["level"]), ACTIONS.index(one["action"])))
    return Meaning(top["level"], top["action"], f"{known.words}: {top['meaning']}")


def _of_switch(code: int, line: str) -> Meaning:
    """Decode an SXid by the Fabric Manager guide; the line's severity selects fail or warn."""
    row = _switch_errors().get(code)
    words = f"NVSwitch error: {row['meaning']}" if row else "NVSwitch error"
    level = "warn" if _NONFATAL.search(line) else "fail"
    if row is None:
        return Meaning(level, "investigate", words)
    if row["level"] == "info":
        return Meaning(*(("info", "none") if level == "warn" else ("fail", "investigate")), words)
    if row["nvidia"] == "always fatal":
        level = "fail"
    return Meaning(level, row["action"], words)


def kept_lines() -> tuple[str, ...]:
    """Return patterns of the driver's lines without a number; numbered lines are stored by number."""
    return tuple(row["pattern"] for row in lines().values())


def stopping_lines(domain: bool = False) -> tuple[str, ...]:
    """Return patterns of lines that mean a GPU needs a reset, for Xids that alone do not show it.

    These are a request of the driver (154), and NVLink errors that it calls fatal and NVIDIA's sheet does not
    ignore. `domain`: GPUs of other nodes are in the NVLink domain, so errors that may come from a link lost
    by another GPU are excluded. A program's name has 15 characters, too few for the words that follow it
    here.
    """
    actions = _data()["recovery_actions"].items()
    numbers = [f"{int(one):x}" for one, row in actions if row["action"] in NEEDS_RESET]
    fatal = [row for row in _sheet()["rows"] if "Non-fatal" not in row["severity"]]
    # Bits 20 to 25 of the first register: the low two bits of its second digit, and its third.
    details = sorted({row["detail"] for row in fatal if row["nvidia"][0] != "RESET_GPU"})
    ignored = "|".join(
        f"[{''.join(f'{4 * high + (one >> 4):x}' for high in range(4))}]{one & 15:x}" for one in details
    )
    by_sheet = (code for code, row in _catalogue().items() if row["level"] == _OF_SHEET)
    codes = "|".join(str(code) for code in by_sheet if not (domain and is_echo("xid", code, "")))
    program = r"\b(?:, pid=[^,]*, name=.{0,15})?, "
    head = r"NVRM: Xid \([^()]*\)[^:]*: *"
    requested = rf"GPU recovery action changed from \S+ \([^()]*\) to 0x(?:{'|'.join(numbers)}) \("
    return (
        rf"{head}{RECOVERY_ACTION}{program}{requested}",
        rf"{head}(?:{codes}){program}\w+ +Fatal +XC\d i\d Link -?\d+\b(?! *\(0x[0-9a-f](?:{ignored}))",
    )


@cache
def lines() -> Mapping[str, Mapping[str, Any]]:
    """Return the lines of NVIDIA's driver that have no number: name → row."""
    rows: Mapping[str, Mapping[str, Any]] = _data()["lines"]
    return rows


@cache
def _data() -> Mapping[str, Any]:
    return shipped.load_mapping("kernel_log")


@cache
def _sheet() -> Mapping[str, Any]:
    return shipped.load_mapping("nvlink")


@cache
def _catalogue() -> dict[int, dict[str, Any]]:
    # JSON keys are strings.
    return {int(code): row for code, row in shipped.load("xid").items()}


@cache
def _switch_errors() -> dict[int, dict[str, Any]]:
    return {int(code): row for code, row in shipped.load("sxid").items()}
