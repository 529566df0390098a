"""GPU errors in the kernel log of this boot: Xids of GPUs, SXids of NVSwitches, what the driver amdgpu says
(provision/checks/amd/driver_log.py), PCIe errors. Text → events.

Samples of every form met in the field:

NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s of waiting for RPC response
NVRM: Xid (0000:03:00): 14, Channel 00000001
NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 ...)
NVRM: Xid (PCI:0000:01:00 GPU-I:05): 95, pid=…            of a MIG instance; also "GPU-I:01 GPU-CI:02"
NVRM: Xid (PCI:0000:9b:00): 45, pid=4711, name=python, Ch 00000008 caused by previous Xid 94   since 570.124
NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.
NVRM: The NVIDIA GPU 0000:b3:00.0                         before the driver was loaded: three lines, no Xid
NVRM: (PCI ID: 10de:26b5) installed in this system has
NVRM: fallen off the bus and is not responding to commands.
nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)
nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Severity 0 Engine instance 32 Sub-engine instance 00
nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Data {0x00000000, 0x00000000, …}    one event
nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
nvidia 0000:9b:00.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)
pcieport 0000:64:01.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Receiver ID) of its port
pci 0000:64:01.0: PCI bridge to [bus 65]                  at boot: what is below that port
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from provision import shipped
from provision.checks.amd import driver_log
from provision.checks.check import Output
from provision.errors import ParseError
from provision.node.burnin.kernel_lines import FOLDED, PCI_ADDRESS, XID, whole_messages, without_stamp

# An SXid's second and third line have its severity and its data.
_SXID = re.compile(
    rf"nvidia-nvswitch\d{{1,3}}: SXid \((?:PCI:)?({PCI_ADDRESS})\): *(\d{{1,6}})\b"
    r"(?!, (?:Severity \d|Data \{))"
)
_FATAL = re.compile(r"(?<![Nn]on-)\bFatal\b")
_NONFATAL = re.compile(r"\bNon-?fatal\b", re.IGNORECASE)
_DEVICE = r"([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])"
_BRIDGE = re.compile(rf"pci {_DEVICE}: PCI bridge to \[bus ([0-9a-f]{{2}})(?:-([0-9a-f]{{2}}))?\]")
_OFF_THE_BUS = re.compile(rf"NVRM: GPU ({PCI_ADDRESS}): GPU has fallen off the bus")
_LOST_GPU = re.compile(rf"NVRM: The NVIDIA GPU ({PCI_ADDRESS})\b")
_FALLEN = re.compile(r"(?:NVRM: The NVIDIA GPU .*\\x0a *)?NVRM: fallen off the bus")
_AER = re.compile(rf"[\w-]{{1,32}} {_DEVICE}: PCIe Bus Error: severity=(\w+)")
# The kernel keeps 15 characters of a name; it may have line feeds.
_PROGRAM = re.compile(rf", name=(?:{re.escape(FOLDED)}|(?!{re.escape(FOLDED)}).){{0,15}}(?:, |$)")
_ADDRESS = re.compile(r"^(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-9a-f])?$")
# What stands between two boots: the journal's separators, and the kernel's own first words.
_BOOT = re.compile(r"^-- (?:Boot [0-9a-f]+|Reboot) --$|^Linux version \d+\.")

_MINUTE = 60.0
RECOVERY_ACTION = 154  # the Xid with which the driver says itself what is to be done
AER_CORRECTED, AER_UNCORRECTED = 0, 1  # the codes of an `aer` event


@dataclass(frozen=True)
class KernelEvent:
    """One kind of error of one device: how often, and the first line of it. `kind`: xid, sxid, amdgpu or aer.

    `first` and `last`: seconds, of whatever clock the log has; where it has none, the line's number stands
    in. `burst`: the most of them within a minute. Of the driver's own verdict (Xid 154) only the latest
    counts. The line is the first, or the first fatal one. `below`: of a bridge, the buses behind it.
    """

    kind: str
    code: int | str
    address: str
    count: int
    line: str
    first: float = 0.0
    last: float = 0.0
    burst: int = 1
    below: tuple[int, int] | None = None


def bus_address(text: str) -> str:
    """One form for the many: `00000000:9B:00.0`, `PCI:0000:9b:00` and `0000:9b:00.0` are all `0000:9b:00`."""
    match = _ADDRESS.match(text.removeprefix("PCI:").lower())
    return f"{int(match[1] or '0', 16):04x}:{match[2]}:{match[3]}" if match else text.lower()


def read(journal: Output | None, dmesg: Output | None) -> tuple[list[KernelEvent], ParseError | None]:
    """The events of this boot, from both logs, and an error when neither could be read whole: what a broken
    log shows has happened, and it cannot prove that nothing else did.

    Each knows what the other has forgotten: the ring buffer that dmesg shows loses its beginning, and the
    journal is thrown away when it grows too large. So an event that either shows has happened, and is counted
    as often as the log that shows more of it. A container's journal has no kernel lines ("-- No entries --"):
    then dmesg is enough. A journal that was cut is not.
    """
    problems: list[str] = []
    whole = False
    seen: dict[tuple[str, int | str, str], KernelEvent] = {}
    for output in (journal, dmesg):
        if output is None:
            continue
        problem, lines = _lines(output)
        for event in events(lines):
            known = seen.get((event.kind, event.code, event.address))
            if known is not None:  # the clocks of the two differ: the first one's is kept
                line = event.line if fatal(event) and not fatal(known) else known.line
                below = known.below or event.below
                event = replace(known, count=max(known.count, event.count), line=line, below=below)
            seen[event.kind, event.code, event.address] = event
        whole = whole or not problem
        if problem:
            problems.append(problem)
        if problem and lines:
            break  # cut: the other log cannot say that nothing was in the part that is missing
    found = [event for _, event in sorted(seen.items())]
    if not whole:
        what = f"the kernel log could not be read: {'; '.join(problems) or 'nobody was asked'}"
        return found, ParseError(what, "run it as root")
    return found, None


def _lines(output: Output) -> tuple[str, list[str]]:
    """What is wrong with a log ("" if nothing), and the lines it has all the same."""
    lines = [line for line in output.stdout.split("\n") if line.strip()]  # a name may hold other separators
    if output.not_started or output.timed_out:
        return f"{output.name}: {output.not_started or 'did not answer in time'}", lines
    if output.truncated:
        return f"{output.name}: the kernel log is too long to be read whole", lines
    if not any(not line.startswith("-- ") for line in lines):
        return f"{output.name}: no kernel messages ({output.stderr.strip()[:120] or 'empty'})", []
    if output.rc != 0:
        return f"{output.name}: ended with status {output.rc} ({output.stderr.strip()[:120]})", lines
    return "", lines


# What `events` looks at: every pattern above has one of these words.
_CONCERNS = ("NVRM:", "SXid", "PCIe Bus Error", "PCI bridge to", "fallen off the bus", driver_log.KIND)


def concerns_gpus(line: str) -> bool:
    """Whether `events` may find anything in this message; all others can be left out of a log."""
    if not any(word in line for word in _CONCERNS):
        return False
    _, text = without_stamp(line)
    return _event(text) is not None or any(form.match(text) for form in (_BRIDGE, _LOST_GPU, _FALLEN))


def events(lines: Iterable[str]) -> list[KernelEvent]:
    """The GPU errors among kernel log lines, since the last boot among them; the same error of the same
    device counted once.
    """
    found: dict[tuple[str, int | str, str], list[tuple[float, str]]] = {}
    below: dict[str, tuple[int, int]] = {}
    lost = ""
    for number, line in enumerate(whole_messages(lines)):
        clock, text = without_stamp(line.rstrip())
        if _BOOT.match(text):
            found.clear()
        if bridge := _BRIDGE.match(text):
            below[bus_address(bridge[1])] = int(bridge[2], 16), int(bridge[3] or bridge[2], 16)
        if match := _LOST_GPU.match(text):
            lost = bus_address(match[1])
        event = _event(text)
        if event is None and lost and _FALLEN.match(text):  # others may write between the three lines
            event, lost = ("xid", 79, lost), ""
        if event is not None:
            found.setdefault(event, []).append((float(clock) if clock else float(number), text))
    counted = [_counted(*key, seen) for key, seen in sorted(found.items())]
    return [replace(event, below=below.get(event.address)) for event in counted]


def instance(line: str) -> str:
    """The MIG instance that an Xid line names, `GPU-I:05`; empty for a whole GPU."""
    match = XID.match(line)
    return match[2].strip() if match else ""


def fatal(event: KernelEvent) -> bool:
    """Whether the driver itself calls the event fatal."""
    return event.kind != driver_log.KIND and bool(_FATAL.search(_own(event.line)))


def _own(line: str) -> str:
    """The driver's own words in its line: without the name of the user's program."""
    return _PROGRAM.sub(", ", line, count=1)


def _counted(kind: str, code: int | str, address: str, seen: list[tuple[float, str]]) -> KernelEvent:
    if (kind, code) == ("xid", RECOVERY_ACTION):
        seen = seen[-1:]
    times = [moment for moment, _ in seen]
    burst = begin = 0
    for end, moment in enumerate(times):
        while moment - times[begin] > _MINUTE:
            begin += 1
        burst = max(burst, end - begin + 1)
    line = next((text for _, text in seen if _FATAL.search(_own(text))), seen[0][1])
    return KernelEvent(kind, code, address, len(seen), line[:300], times[0], times[-1], burst)


def _event(text: str) -> tuple[str, int | str, str] | None:
    if match := XID.match(text):
        return "xid", int(match[3]), bus_address(match[1])
    if match := _SXID.match(text):
        return "sxid", int(match[2]), bus_address(match[1])
    if match := _OFF_THE_BUS.match(text):
        return "xid", 79, bus_address(match[1])
    if match := _AER.match(text):
        code = AER_CORRECTED if match[2].startswith("Correct") else AER_UNCORRECTED
        return "aer", code, bus_address(match[1])
    if found := driver_log.event(text):
        return driver_log.KIND, found[0], bus_address(found[1])
    return None


_RECOVERY = {"None": "none", "GPU Reset Required": "reset GPU", "Node Reboot Required": "reboot"}


def meaning(kind: str, code: int | str, line: str) -> tuple[str, str, str]:
    """What an event means: (level: fail, warn, program or info; the action to take; words). `program`: what a
    user's program does wrong.
    """
    if kind == "sxid":
        level = "warn" if _NONFATAL.search(line) else "fail"
        return level, "investigate", "NVSwitch error"
    if kind == "aer":
        return ("warn" if code == AER_CORRECTED else "fail"), "reseat or check cable", "PCIe bus error"
    if kind == driver_log.KIND:
        known = driver_log.MEANINGS[str(code)]
        return known.level, known.action, known.words
    row = _catalogue().get(int(code))
    if row is None:
        return "warn", "investigate", "an Xid that is not in the catalogue"
    level, action, words = str(row["level"]), str(row["action"]), str(row["meaning"])
    if level == "by severity":
        level = "warn" if _NONFATAL.search(_own(line)) else "fail"
    elif level == "by text":
        wanted = re.search(r"to 0x[0-9a-f]{1,16} \(([^()]*)\)", _own(line))
        action = _RECOVERY.get(wanted[1], "reset GPU") if wanted else "investigate"
        level = "info" if action == "none" else "fail"
        words += f" to {wanted[1]}" if wanted else ""
    return level, action, words


def brings(root: int, code: int) -> bool:
    """Whether the Xid `root` brings the Xid `code` of the same GPU along (the catalogue: sympathetic)."""
    after = _catalogue().get(code, {}).get("after", ())
    if after == "any":
        return root != RECOVERY_ACTION and _catalogue().get(root, {}).get("after") != "any"
    if after == "hardware":
        return _catalogue().get(root, {}).get("level") in ("fail", "warn", "by severity")
    return root in after


@cache
def _catalogue() -> dict[int, dict[str, Any]]:
    # JSON has no numbers for keys.
    return {int(code): row for code, row in shipped.load("xid").items()}
