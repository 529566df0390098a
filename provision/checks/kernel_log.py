"""GPU errors in the kernel log of this boot: Xids of GPUs, SXids of NVSwitches. Text in, events out.

Samples of every form met in the field:

NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s of waiting for RPC response
... NVRM: Xid (0000:03:00): 14, Channel 00000001 NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT  Fatal   XC0
i0 Link 01 (0x021425c6 0x00000000 ...) NVRM: GPU 0000:18:00.0: GPU has fallen off the bus. nvidia-nvswitch0:
SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from provision.checks.check import Output
from provision.errors import ParseError
from provision.paths import DATA

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\)[^:]*: *(\d+)\b")
_SXID = re.compile(r"SXid \((?:PCI:)?([0-9a-fA-F:.]+)\): *(\d+)\b")
_OFF_THE_BUS = re.compile(r"NVRM: GPU ([0-9a-fA-F:.]+): GPU has fallen off the bus")
_LOST_GPU = re.compile(r"NVRM: The NVIDIA GPU ([0-9a-fA-F:.]+)")
_ADDRESS = re.compile(r"^(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-9a-f])?$")
_LINE = re.compile(r"^(?:\d+\.\d+ \S+ kernel: |\[[^\]]*\] ?)?")


@dataclass(frozen=True)
class KernelEvent:
    """One kind of error of one device: how often, and the first line of it. `kind`: xid or sxid."""

    kind: str
    code: int
    address: str
    count: int
    line: str


def bus_address(text: str) -> str:
    """One form for the many: `00000000:9B:00.0`, `PCI:0000:9b:00` and `0000:9b:00.0` are all `0000:9b:00`."""
    match = _ADDRESS.match(text.removeprefix("PCI:").lower())
    return f"{int(match[1] or '0', 16):04x}:{match[2]}:{match[3]}" if match else text.lower()


def read(journal: Output | None, dmesg: Output | None) -> list[KernelEvent]:
    """The events of this boot. Raises ParseError when neither log could be read, or one was cut.

    The journal is preferred: the ring buffer that dmesg shows forgets the beginning. A container's journal
    has no kernel lines ("-- No entries --"): then dmesg is asked.
    """
    problems = []
    for output in (journal, dmesg):
        if output is None:
            continue
        problem, lines = _lines(output)
        if problem:
            problems.append(problem)
        elif output.truncated:
            raise ParseError(
                f"{output.name}: the kernel log is too long to be read whole", "look at it on the node"
            )
        else:
            return events(lines)
    raise ParseError(
        f"the kernel log could not be read: {'; '.join(problems) or 'nobody was asked'}", "run it as root"
    )


def _lines(output: Output) -> tuple[str, list[str]]:
    if output.not_started or output.timed_out:
        return f"{output.name}: {output.not_started or 'did not answer in time'}", []
    lines = [line for line in output.stdout.splitlines() if line.strip() and not line.startswith("-- ")]
    if not lines:
        return f"{output.name}: no kernel messages ({output.stderr.strip()[:120] or 'empty'})", []
    return "", lines


def events(lines: Iterable[str]) -> list[KernelEvent]:
    """The GPU errors among kernel log lines, the same error of the same device counted once."""
    found: dict[tuple[str, int, str], list[str]] = {}
    lost = ""
    for line in lines:
        text = _LINE.sub("", line.rstrip(), count=1)
        event = _event(text)
        if event is None and "fallen off the bus" in text and lost:
            event = ("xid", 79, lost)
        if event is not None:
            found.setdefault(event, []).append(text)
        match = _LOST_GPU.search(text)
        lost = bus_address(match[1]) if match else (lost if "NVRM:" in text else "")
    return [KernelEvent(*key, count=len(texts), line=texts[0][:300]) for key, texts in sorted(found.items())]


def _event(text: str) -> tuple[str, int, str] | None:
    if match := _XID.search(text):
        return "xid", int(match[2]), bus_address(match[1])
    if match := _SXID.search(text):
        return "sxid", int(match[2]), bus_address(match[1])
    if match := _OFF_THE_BUS.search(text):
        return "xid", 79, bus_address(match[1])
    return None


_RECOVERY = {"None": "none", "GPU Reset Required": "reset GPU", "Node Reboot Required": "reboot"}


def meaning(kind: str, code: int, line: str) -> tuple[str, str, str]:
    """What an event means: (level: fail, warn or info; the action to take; words)."""
    if kind == "sxid":
        level = "warn" if re.search(r"\bNon-?fatal\b", line, re.IGNORECASE) else "fail"
        return level, "investigate", "NVSwitch error"
    row = _catalogue().get(code)
    if row is None:
        return "warn", "investigate", "an Xid that is not in the catalogue"
    level, action, words = str(row["level"]), str(row["action"]), str(row["meaning"])
    if level == "by severity":
        level = "warn" if re.search(r"\bNon-?fatal\b", line, re.IGNORECASE) else "fail"
    elif level == "by text":
        wanted = re.search(r"to 0x[0-9a-f]+ \(([^)]*)\)", line)
        action = _RECOVERY.get(wanted[1], "reset GPU") if wanted else "investigate"
        level = "info" if action == "none" else "fail"
        words += f" to {wanted[1]}" if wanted else ""
    return level, action, words


@cache
def _catalogue() -> dict[int, dict[str, Any]]:
    import yaml

    catalogue: dict[int, dict[str, Any]] = yaml.safe_load((DATA / "xid.yml").read_text("utf-8"))
    return catalogue
