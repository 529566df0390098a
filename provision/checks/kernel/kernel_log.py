"""Parser of GPU errors in the kernel log of this boot: text → events.

Events are Xids of GPUs, SXids of NVSwitches, PCIe errors and messages of the driver amdgpu
(provision/checks/kernel/vendors/driver_log.py). Samples of every form met in the field:

NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s of waiting for RPC response
NVRM: Xid (0000:03:00): 14, Channel 00000001
NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 ...)
NVRM: Xid (PCI:0000:01:00 GPU-I:05): 95, pid=…            of a MIG instance; also "GPU-I:01 GPU-CI:02"
NVRM: Xid (PCI:0000:9b:00): 45, pid=4711, name=python, Ch 00000008 caused by previous Xid 94   since 570.124
NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.
NVRM: The NVIDIA GPU 0000:b3:00.0                         before the driver was loaded: three lines, no Xid
NVRM: (PCI ID: 10de:26b5) installed in this system has
NVRM: fallen off the bus and is not responding to commands.
NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x62:0x40:1784)     lines without a number: kernel_log.yml
nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)
nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Severity 0 Engine instance 32 Sub-engine instance 00
nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Data {0x00000000, 0x00000000, …}    one event
nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
nvidia 0000:9b:00.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)
pcieport 0000:64:01.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Receiver ID) of its port
nvidia 0000:09:00.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), …     Linux 5.3 to 5.7
nvidia 0000:01:00.0: AER: can't recover (no error_detected callback)
{1}[Hardware Error]:  Error 0, type: recoverable          firmware first: one error, a line for each field
{1}[Hardware Error]:   section_type: PCIe error
{1}[Hardware Error]:   device_id: 0000:0a:00.0
nvidia 0000:0a:00.0: AER: aer_status: 0x00100000, aer_mask: 0x00000000
pci 0000:64:01.0: PCI bridge to [bus 65]                  at boot: the buses below that port
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from provision import foreign_json
from provision.checks.check import Output
from provision.checks.kernel.kernel_meaning import AER_CORRECTED as AER_CORRECTED
from provision.checks.kernel.kernel_meaning import (
    AER_UNCORRECTED,
    FATAL,
    NVRM,
    RECOVERY_ACTION,
    own_words,
    weight,
)
from provision.checks.kernel.kernel_meaning import brings as brings
from provision.checks.kernel.kernel_meaning import lines as nvrm_lines
from provision.checks.kernel.kernel_meaning import meaning as meaning
from provision.checks.kernel.vendors import driver_log
from provision.errors import ParseError
from provision.node.burnin.kernel_lines import FOLDED, PCI_ADDRESS, XID, whole_messages, without_stamp

# Without --all, journalctl prints a message with a non-text name as "[81B blob data]" (systemd 257).
JOURNAL = ("journalctl", "-k", "-b", "-o", "short-unix", "--all", "--no-pager")

# An SXid's second and third line have its severity and its data.
_SXID = re.compile(
    rf"nvidia-nvswitch\d{{1,3}}: SXid \((?:PCI:)?({PCI_ADDRESS})\): *(\d{{1,6}})\b"
    r"(?!, (?:Severity \d|Data \{))"
)
_DEVICE = r"([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])"
_BRIDGE = re.compile(rf"pci {_DEVICE}: PCI bridge to \[bus ([0-9a-f]{{2}})(?:-([0-9a-f]{{2}}))?\]")
_OFF_THE_BUS = re.compile(rf"NVRM: GPU ({PCI_ADDRESS}): GPU has fallen off the bus")
_LOST_GPU = re.compile(rf"NVRM: The NVIDIA GPU ({PCI_ADDRESS})\b")
_FALLEN = re.compile(r"(?:NVRM: The NVIDIA GPU .*\\x0a *)?NVRM: fallen off the bus")
_AER = re.compile(
    rf"[\w-]{{1,32}} {_DEVICE}: (?:AER: )?"
    r"(?:PCIe Bus Error: severity=(\w+)|(can't recover \(|aer_uncor_severity: 0x)|aer_status: 0x)"
)
# A record of the firmware: its type, its section, the device. The number before it is the record's.
_FIRMWARE = re.compile(
    r"\{(\d{1,10})\}\[Hardware Error\]: +(?:Error \d+, type: (\w+)|section_type: (.{1,40})|device_id: (\S+))"
)
_ADDRESS = re.compile(r"^(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-9a-f])?$")
# Lines between two boots: the journal's separators, and the kernel's own first line.
_BOOT = re.compile(r"^-- (?:Boot [0-9a-f]+|Reboot) --$|^Linux version \d+\.")

_MINUTE = 60.0


@dataclass(frozen=True)
class KernelEvent:
    """One kind of error of one device, with its count and the first of its worst lines.

    `kind`: xid, sxid, amdgpu, nvrm or aer. `first`, `last`: seconds on the log's clock, or line numbers if it
    has none. `burst`: the most events within a minute. Events of the driver's own verdict (Xid 154) count
    unless the driver withdrew them. `below`: for a bridge, the buses behind it.
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
    """Normalise an address: `00000000:9B:00.0`, `PCI:0000:9b:00` and `0000:9b:00.0` → `0000:9b:00`."""
    match = _ADDRESS.match(text.removeprefix("PCI:").lower())
    return f"{int(match[1] or '0', 16):04x}:{match[2]}:{match[3]}" if match else text.lower()


def function_address(text: str) -> str:
    """Normalise an address with its function unless 0, since functions may be separate root ports."""
    function = text.rpartition(".")[2]
    return bus_address(text) + ("" if function in ("0", text) else f".{function}")


def read(
    journal: Output | None, dmesg: Output | None, more: Iterable[KernelEvent] = ()
) -> tuple[list[KernelEvent], ParseError | None]:
    """Return the events of this boot from both logs, and an error if neither could be read whole.

    An event in a broken log did happen, but the log cannot prove that nothing else did. `more`: events of
    another log. Either log may have lost events: the ring buffer that dmesg prints loses its beginning, and
    the journal is rotated when it grows too large. So an event in either log counts, with the larger of its
    two counts. A container's journal has no kernel lines ("-- No entries --"): then dmesg suffices. A
    truncated journal is an error.
    """
    problems: list[str] = []
    whole = False
    seen: dict[tuple[str, int | str, str], KernelEvent] = {}
    for output in (journal, dmesg):
        if output is None:
            continue
        problem, lines = _lines(output)
        _merge(seen, events(lines))
        whole = whole or not problem
        if problem:
            problems.append(problem)
        if problem and lines:
            break  # cut: the other log may lack the same part
    _merge(seen, more)
    sorted_events = [event for _, event in sorted(seen.items())]
    if not whole:
        what = f"the kernel log could not be read: {'; '.join(problems) or 'nobody was asked'}"
        cut = any(output is not None and output.truncated for output in (journal, dmesg))
        fix = "look at it on the node: journalctl -k -b" if cut else "run it as root"
        return sorted_events, ParseError(what, fix)
    return sorted_events, None


def _merge(seen: dict[tuple[str, int | str, str], KernelEvent], found: Iterable[KernelEvent]) -> None:
    """Merge the events of another log: keep the worse line and the larger count.

    The clocks of two logs differ, so the times of the first log are kept."""
    for event in found:
        key = event.kind, event.code, event.address
        if (previous := seen.get(key)) is not None:
            line, below = max((previous, event), key=gravity).line, previous.below or event.below
            event = replace(previous, count=max(previous.count, event.count), line=line, below=below)
        seen[key] = event


def _lines(output: Output) -> tuple[str, list[str]]:
    """Return a log's problem ("" if none) and the lines it has nevertheless."""
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


def messages(output: Output) -> tuple[str, list[str]]:
    """Return a log's problem ("" if none) and its messages since the last boot, without stamps."""
    problem, lines = _lines(output)
    return problem, texts(lines)


def texts(lines: Iterable[str]) -> list[str]:
    """Return the messages among these lines since the last boot, without stamps."""
    texts_of_boot: list[str] = []
    for line in whole_messages(_plain(lines)):
        text = text_of(line)
        if _BOOT.match(text):
            texts_of_boot.clear()
        texts_of_boot.append(text)
    return texts_of_boot


def text_of(message: str) -> str:
    """Remove a message's stamp."""
    return without_stamp(message.rstrip())[1]


# Words of the lines that `events` parses: every pattern above contains one of them.
_CONCERNS = (
    *("NVRM:", "SXid", "PCIe Bus Error", "PCI bridge to", "fallen off the bus"),
    *("[Hardware Error]", "aer_status", "aer_uncor_severity", "can't recover", "IO_PAGE_FAULT"),
    *driver_log.WORDS,
)
# Words of the journal lines that nodes return: weeks of firewall or container lines would be too long.
KEPT = (*_CONCERNS, "Linux version ")


def concerns_gpus(line: str) -> bool:
    """Return whether `events` may parse this message; all other messages may be removed from a log."""
    if not any(word in line for word in _CONCERNS):
        return False
    _, text = without_stamp(line)
    return _event(text) is not None or any(
        form.match(text) for form in (_BRIDGE, _LOST_GPU, _FALLEN, _FIRMWARE)
    )


def events(lines: Iterable[str]) -> list[KernelEvent]:
    """Parse the GPU errors among kernel log lines since their last boot.

    The same error of the same device is counted, not repeated.
    """
    occurrences: dict[tuple[str, int | str, str], list[tuple[float, str]]] = {}
    below: dict[str, tuple[int, int]] = {}
    lost = ""
    firmware = _Firmware()
    for number, line in enumerate(whole_messages(_plain(lines))):
        clock, text = without_stamp(line.rstrip())
        if _BOOT.match(text):
            occurrences.clear()
        if bridge := _BRIDGE.match(text):
            below[function_address(bridge[1])] = int(bridge[2], 16), int(bridge[3] or bridge[2], 16)
        if match := _LOST_GPU.match(text):
            lost = bus_address(match[1])
        event = firmware.event(text) if firmware.concerns(text) else _event(text)
        if event is None and lost and _FALLEN.match(text):  # others may write between the three lines
            event, lost = ("xid", 79, lost), ""
        if event is not None:
            occurrences.setdefault(event, []).append((float(clock) if clock else float(number), text))
    counted = [_counted(*key, seen) for key, seen in sorted(occurrences.items())]
    return [replace(event, below=below.get(event.address)) for event in counted]


def _plain(lines: Iterable[str]) -> list[str]:
    """Convert lines of `journalctl -o json` to the form of `-o short-unix`; return other lines as is.

    The first line decides: a later one may be the rest of a message, and so a user's text.
    """
    raw_lines = list(lines)
    if not raw_lines or not raw_lines[0].startswith('{"'):
        return raw_lines
    plain = []
    for line in raw_lines:
        try:
            row = foreign_json.read(line)
            seconds, message = int(row["__REALTIME_TIMESTAMP"]) / 1e6, row["MESSAGE"]
        except (ValueError, KeyError, TypeError):
            continue
        if isinstance(message, str):
            folded = message.replace("\n", FOLDED)
            plain.append(f"{seconds:.6f} {row.get('_HOSTNAME') or 'node'} kernel: {folded}")
    return plain


def instance(line: str) -> str:
    """Return the MIG instance that an Xid line names, such as `GPU-I:05`; empty for a whole GPU."""
    match = XID.match(line)
    return match[2].strip() if match else ""


def fatal(event: KernelEvent) -> bool:
    """Return whether the driver itself calls the event fatal."""
    return event.kind != driver_log.KIND and bool(FATAL.search(own_words(event.line)))


def gravity(event: KernelEvent) -> tuple[int, int, int]:
    """Return the sort key of an event by severity."""
    return weight(event.kind, event.code, event.line)


def _counted(kind: str, code: int | str, address: str, seen: list[tuple[float, str]]) -> KernelEvent:
    if (kind, code) == ("xid", RECOVERY_ACTION):
        back = [at for at, (_, text) in enumerate(seen) if meaning(kind, code, text).action == "none"]
        seen = seen[back[-1] + 1 :] or seen[-1:] if back else seen
    # The driver writes Xid 79 with the number, and once more without it.
    seen = [one for one in seen if XID.match(one[1])] or seen
    times = [moment for moment, _ in seen]
    burst = begin = 0
    for end, moment in enumerate(times):
        while moment - times[begin] > _MINUTE:
            begin += 1
        burst = max(burst, end - begin + 1)
    line = max((text for _, text in seen), key=lambda text: weight(kind, code, text))
    return KernelEvent(kind, code, address, len(seen), line[:300], times[0], times[-1], burst)


def _event(text: str) -> tuple[str, int | str, str] | None:
    if match := XID.match(text):
        return "xid", int(match[3]), bus_address(match[1])
    if match := _SXID.match(text):
        return "sxid", int(match[2]), bus_address(match[1])
    if match := _OFF_THE_BUS.match(text):
        return "xid", 79, bus_address(match[1])
    if match := _AER.match(text):
        code = (
            AER_UNCORRECTED
            if match[3] or not (match[2] or "Correct").startswith("Correct")
            else AER_CORRECTED
        )
        return "aer", code, function_address(match[1])
    if unnumbered := _nvrm(text):
        return unnumbered
    if amdgpu_event := driver_log.event(text):
        address = function_address if driver_log.of_port(amdgpu_event[0]) else bus_address
        return driver_log.KIND, amdgpu_event[0], address(amdgpu_event[1])
    return None


def _nvrm(text: str) -> tuple[str, str, str] | None:
    """Parse a line of NVIDIA's driver without a number; the address is empty if the line has none."""
    for name, row in nvrm_lines().items():
        if match := re.match(row["pattern"], text):
            return NVRM, name, bus_address(match["device"]) if "device" in match.re.groupindex else ""
    return None


class _Firmware:
    """Parser of PCIe errors that the firmware handles first: their type and device.

    The kernel repeats the registers under the device's name; both are one error. Other lines, including other
    records', may come between the lines of a record.
    """

    def __init__(self) -> None:
        self.records: dict[str, tuple[int, bool]] = {}  # record → error code, whether it is PCIe's
        self.devices: dict[str, int] = {}  # devices with PCIe errors, before their registers

    def concerns(self, text: str) -> bool:
        return bool(_FIRMWARE.match(text)) or (bool(self.records) and ": aer_" in text)

    def event(self, text: str) -> tuple[str, int, str] | None:
        if not (match := _FIRMWARE.match(text)):
            match = _AER.match(text)
            device = function_address(match[1]) if match else ""
            return None if not device or device in self.devices else ("aer", self._latest(), device)
        number, kind, section, device = match.groups()
        code, pcie = self.records.get(number, (AER_UNCORRECTED, False))
        if kind:
            self.records[number] = AER_CORRECTED if kind == "corrected" else AER_UNCORRECTED, False
        elif section:
            self.records[number] = code, section.strip() == "PCIe error"
        elif pcie:
            self.devices[function_address(device)] = code
            return "aer", code, function_address(device)
        return None

    def _latest(self) -> int:
        return next((code for code, pcie in reversed(self.records.values()) if pcie), AER_UNCORRECTED)
