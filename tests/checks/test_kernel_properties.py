"""Properties of any kernel log: an added line never improves a node.
Order, repetition, timestamps and user texts change no finding."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest
import yaml

from provision.checks.judge import Finding
from provision.checks.kernel import kernel_incidents, kernel_log, kernel_meaning
from provision.paths import DATA
from tests.support.seed import SEED, times

pytestmark = pytest.mark.timeout(3600)

CASES = times(300, 20_000)
GPUS = {f"0000:{0x10 + i:02x}:00": f"gpu{i}" for i in range(4)}
BRIDGE = "pci 0000:00:02.0: PCI bridge to [bus 10]"
XIDS = sorted(yaml.safe_load((DATA / "xid.yml").read_text()))
SXIDS = sorted(yaml.safe_load((DATA / "sxid.yml").read_text()))
SHEET = yaml.safe_load((DATA / "nvlink.yml").read_text())["rows"]
CLEARING = [
    re.compile(row["pattern"]) for row in yaml.safe_load((DATA / "kernel_log.yml").read_text())["clearing"]
]
COMMON = [13, 31, 43, 45, 48, 63, 64, 74, 79, 94, 95, 119, 120, 137, 140, *range(144, 151), 154]
LINE_DECIDES = [45, 74, 145, 149, 154]
ACTIONS = (
    *("None", "GPU Reset Required", "OS Reboot", "Drain P2P", "Drain and Reset", "Recover IMEX Domain"),
    *("Bus Reset", "System Reboot"),
)


class Line(NamedTuple):
    """A message with its time in seconds and the component that wrote it."""

    second: float
    text: str
    part: str


def registers(draw: random.Random, code: int) -> str:
    row = draw.choice([row for row in SHEET if row["xid"] == code])
    if draw.random() < 0.2:
        return f"{row['unit'][0]} {draw.choice(('Fatal', 'Nonfatal'))} XC0 i0 Link 01"
    first = row["detail"] << 20 | (row["v1"] if draw.random() < 0.5 else row["v2"])
    status = draw.choice((row["status"] or 0, draw.randrange(1 << 32)))
    said = draw.choice(("Fatal", "Nonfatal"))
    return f"{row['unit'][0]} {said} XC0 i0 Link 01 ({first:#010x} {status:#010x} 0x0)"


def words(draw: random.Random, code: int, name: str) -> str:
    if code in range(144, 151):
        return f"{draw.choice(('', f'pid=1, name={name}, '))}{registers(draw, code)}"
    if code == 154:
        number = draw.randrange(9)
        said = ACTIONS[number] if number < 8 else "Something New"
        program = draw.choice(("", f"pid=1, name={name}, "))
        return f"{program}GPU recovery action changed from 0x0 (None) to {number:#x} ({said})"
    if code == 74:
        bits = ", ".join(f"{draw.choice((0, 1 << draw.randrange(32))):#x}" for _ in range(7))
        return f"pid=1, name={name}, NVLink: fatal error detected on link 6({bits})"
    if code == 45 and draw.random() < 0.5:
        return f"pid=1, name={name}, Ch 00000008 caused by previous Xid {draw.choice(COMMON)}"
    return f"pid=1, name={name}, Ch 00000008"


def messages(draw: random.Random, name: str) -> tuple[list[str], str]:
    """Draw the messages of one event, and the component that writes them."""
    address, gpu = draw.choice(list(GPUS.items()))
    kind = draw.choices(("xid", "common", "switch", "pcie", "firmware", "words"), (1, 6, 1, 1, 0.5, 0.5))[0]
    if kind in ("xid", "common"):
        code = draw.choice(XIDS if kind == "xid" else draw.choice((COMMON, LINE_DECIDES)))
        return [f"NVRM: Xid (PCI:{address}): {code}, {words(draw, code, name)}"], gpu
    if kind == "switch":
        said = draw.choice(("Fatal", "Non-fatal"))
        number = draw.randrange(2)
        head = f"nvidia-nvswitch{number}: SXid (PCI:0000:0{number}:00.0): {draw.choice(SXIDS)}"
        return [f"{head}, {said}, Link 30 text"], f"switch{number}"
    if kind == "pcie":
        said = draw.choice(("Corrected", "Uncorrected (Fatal)", "Uncorrectable (Non-Fatal)"))
        source = draw.choice((f"nvidia {address}.0", "pcieport 0000:00:02.0"))
        return [
            f"{source}: {draw.choice(('', 'AER: '))}PCIe Bus Error: severity={said}, type=Data Link Layer"
        ], gpu
    if kind == "firmware":
        said = draw.choice(("corrected", "recoverable", "fatal"))
        record = (f" Error 0, type: {said}", "  section_type: PCIe error", f"  device_id: {address}.0")
        repeated = f"nvidia {address}.0: AER: aer_status: 0x00100000, aer_mask: 0x00000000"
        number = draw.randrange(10**6)
        return [*(f"{{{number}}}[Hardware Error]: {line}" for line in record), repeated], "firmware"
    return [
        draw.choice(
            (
                f"NVRM: GPU {address}.0: GPU has fallen off the bus.",
                f"NVRM: GPU {address}.0: RmInitAdapter failed! (0x62:0x40:1784)",
                "NVRM: _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting gsp",
                "NVRM: uvm encountered global fatal error 0x60, requiring os reboot to recover.",
                f"nvidia {address}.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0013]",
            )
        )
    ], gpu


def drawn(draw: random.Random, bursts: int, name: str = "python") -> list[list[Line]]:
    """Draw bursts of lines that are minutes apart."""
    drawn_bursts = []
    for number in range(bursts):
        burst: list[Line] = []
        for _ in range(draw.randrange(1, 6)):
            texts, part = messages(draw, name)
            burst += [Line(100.0 + 1000.0 * number, text, part) for text in texts]
        drawn_bursts.append(burst)
    return drawn_bursts


def stamped(lines: Sequence[Line]) -> list[str]:
    return [f"[{line.second:12.6f}] {line.text}" for line in (Line(0.1, BRIDGE, ""), *lines)]


def judged(lines: Sequence[str], own_test: bool, domain: bool = False) -> list[Finding]:
    events = kernel_incidents.named(kernel_log.events(lines), GPUS)
    through: dict[str, dict[str, Any]] = {}
    for measurement in kernel_incidents.measured(events):
        through.setdefault(measurement.metric, {})[measurement.device] = measurement.value
    again = kernel_incidents.remembered(through)
    return kernel_incidents.judge("gpu_inventory", again, own_test=own_test, domain=domain)


def worst(findings: Sequence[Finding]) -> tuple[int, int]:
    """Return the node's worst verdict and worst action."""
    order = kernel_meaning.ACTIONS
    verdicts = [finding.verdict.badness for finding in findings]
    return max(verdicts, default=0), max((order.index(finding.action) for finding in findings), default=0)


def told(findings: Sequence[Finding]) -> set[tuple[str, str, str, str]]:
    return {(f.verdict.value, f.device, f.metric, f.action) for f in findings}


def cases(name: str) -> Iterator[random.Random]:
    for number in range(CASES):
        yield random.Random(f"{SEED} {name} {number}")  # noqa: S311 - drawn cases


def flat(bursts: Sequence[Sequence[Line]]) -> list[Line]:
    return [line for burst in bursts for line in burst]


# --- the properties


def test_a_line_more_never_makes_a_node_look_better() -> None:
    for draw in cases("more"):
        lines, own_test = flat(drawn(draw, draw.randrange(1, 5))), draw.random() < 0.3
        texts, part = messages(draw, "python")
        if draw.random() < 0.5:  # few lines of one kind, so that one more decides
            address, gpu = draw.choice(list(GPUS.items()))
            code = draw.choice(LINE_DECIDES)
            head = f"NVRM: Xid (PCI:{address}): {code}, "
            texts, *few = ([head + words(draw, code, "python")] for _ in range(draw.randrange(2, 4)))
            lines = [Line(100.0 + at, text, gpu) for at, (text,) in enumerate(few)]
        if any(pattern.match(text) for pattern in CLEARING for text in texts):
            continue
        at = draw.randrange(len(lines) + 1)
        second = lines[at - 1].second if at else 50.0
        more = [*lines[:at], *(Line(second, text, part) for text in texts), *lines[at:]]
        domain = draw.random() < 0.3  # on an NVL72 tray an echo does not condemn the GPU
        before, after = (judged(stamped(log), own_test, domain) for log in (lines, more))
        assert all(now >= was for was, now in zip(worst(before), worst(after), strict=True)), (
            f"{stamped(lines)}\n+ {texts} at {at}\n{told(before)}\n{told(after)}"
        )


def shuffled(draw: random.Random, burst: Sequence[Line]) -> list[Line]:
    """Interleave the lines of the components differently, keeping the order within each."""
    parts: dict[str, list[Line]] = {}
    for line in burst:
        parts.setdefault(line.part, []).append(line)
    lines = []
    while parts:
        part = draw.choice(sorted(parts))
        if part == "firmware":  # firmware writes a record at once
            lines += parts.pop(part)
            continue
        lines.append(parts[part].pop(0))
        if not parts[part]:
            del parts[part]
    return lines


def test_the_interleaving_of_gpus_changes_nothing() -> None:
    for draw in cases("interleaved"):
        bursts, own_test = drawn(draw, draw.randrange(1, 4)), draw.random() < 0.3
        other = [shuffled(draw, burst) for burst in bursts]
        one, two = (judged(stamped(flat(log)), own_test) for log in (bursts, other))
        assert told(one) == told(two), f"{stamped(flat(bursts))}\n{stamped(flat(other))}"


def test_repetition_changes_nothing() -> None:
    """Corrected PCIe errors are excluded, since their number counts."""
    for draw in cases("repeated"):
        lines = [one for one in flat(drawn(draw, 3)) if "orrected" not in one.text or "Uncor" in one.text]
        lines = [one for one in lines if one.part != "firmware"]
        twice = [line for line in lines for _ in range(draw.randrange(1, 4))]
        assert told(judged(stamped(lines), False)) == told(judged(stamped(twice), False)), stamped(lines)


def as_journal(lines: Sequence[Line]) -> list[str]:
    found = []
    for line in lines:
        at = str(int(1.77e15 + line.second * 1e6))
        found.append(json.dumps({"MESSAGE": line.text, "__REALTIME_TIMESTAMP": at, "_HOSTNAME": "n1"}))
    return found


def test_no_stamp_changes_anything() -> None:
    for draw in cases("stamps"):
        burst = drawn(draw, 1)[0][:25]
        lines = [
            Line(0.1, BRIDGE, ""),
            *(line._replace(second=10.0 + at) for at, line in enumerate(burst)),
        ]
        expected = told(judged([f"[{line.second:12.6f}] {line.text}" for line in lines], False))
        forms = {
            "none": [line.text for line in lines],
            "level": [f"<3>[{line.second:12.6f}] {line.text}" for line in lines],
            "caller": [f"[{line.second:12.6f}][ T1234] {line.text}" for line in lines],
            "decoded": [f"kern  :err   : [{line.second:12.6f}] {line.text}" for line in lines],
            "unix": [f"{1.77e9 + line.second:.6f} gpu-01 kernel: {line.text}" for line in lines],
            "rsyslog": [
                f"Feb 23 16:24:18 gpu-01 kernel: [{line.second:12.6f}] {line.text}" for line in lines
            ],
            "journal": as_journal(lines),
        }
        when = [datetime.fromtimestamp(1.77e9 + line.second, UTC) for line in lines]
        forms["iso"] = [
            f"{at.isoformat()} gpu-01 kernel: {one.text}" for at, one in zip(when, lines, strict=True)
        ]
        forms["human"] = [
            f"[{at:%a %b %d %H:%M:%S %Y}] {one.text}" for at, one in zip(when, lines, strict=True)
        ]
        for name, form in forms.items():
            assert told(judged(form, False)) == expected, f"{name}: {form}"


PIECES = [
    *("NVRM: Xid (PCI:", "Fatal", "Nonfatal", ", name=", ", ", " to 0x2 (", "0x0 (None)", "\\x0a"),
    *("previous Xid 79", "(0x1 0x2)", "[ 1.0] ", "{1}[", "XC0 ", "aé"),
]


def test_no_text_of_a_user_changes_anything() -> None:
    for draw in cases("names"):
        name = "".join(draw.choice(PIECES) for _ in range(3))[: draw.randrange(1, 16)]
        state = draw.getstate()
        plain = stamped(flat(drawn(draw, 2)))
        draw.setstate(state)
        forged = stamped(flat(drawn(draw, 2, name)))
        crash = (
            f"[{50.0:12.6f}] {name}[4711]: segfault at 0 ip 0000 sp 0000 error 6 in {draw.choice(plain)[15:]}"
        )
        assert told(judged([*forged, crash], False)) == told(judged(plain, False)), forged


@pytest.mark.parametrize("pattern", CLEARING)
def test_each_clearing_line_is_one(pattern: re.Pattern[str]) -> None:
    samples = (
        "NVRM: Xid (PCI:0000:10:00): 154, GPU recovery action changed from 0x1 (PF FLR) to 0x0 (None)",
        "Linux version 6.12.107+deb13-amd64",
    )
    (sample,) = (one for one in samples if pattern.match(one))
    lines = [f"[{100:12.6f}] NVRM: Xid (PCI:0000:10:00): 48, DBE"]
    before, after = (worst(judged(log, False)) for log in (lines, [*lines, f"[{200:12.6f}] {sample}"]))
    assert after < before
