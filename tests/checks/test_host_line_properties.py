"""Properties of any log with lines about the machine around the GPUs.
An added line never improves the node's verdict or action; order, repetition, timestamps, a second log,
reading in parts and user texts change no finding."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gpuprov_lab.places import SILICON
from provision.checks.check import CheckNode, Output
from provision.checks.judge import Finding
from provision.checks.kernel import host_lines, kernel_meaning
from provision.checks.on_node import kernel_since
from tests.support.checks import make_node, make_output
from tests.support.seed import SEED, times

pytestmark = pytest.mark.timeout(3600)

CASES = times(300, 20_000)
# Messages of the simulated kernel, which shares no text with the catalogue.
PRINTED = json.loads((SILICON / "host_lines.json").read_text(encoding="utf-8"))
# Messages that the simulated kernel lacks, from the sources that the catalogue names.
RARER = (
    "{1}[Hardware Error]: event severity: recoverable",
    "Internal error: Oops: 0000000096000004 [#1] SMP",
    "NMI watchdog: Watchdog detected hard LOCKUP on cpu 12",
    "timeout error, dev nvme0n1, sector 5 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2",
    "print_req_error: critical medium error, dev sda, sector 5 flags 0",
    "Buffer I/O error on dev md0p1, logical block 7, lost sync page write",
    "XFS (sda2): Corruption of in-memory data (0x8) detected at xfs_defer_finish+0x1/0x2",
    "mlx5_core 0000:5e:00.0: poll_health:851:(pid 0): Fatal error 3 detected",
)
TEXTS: list[str] = [*(text for lines in PRINTED["trouble"].values() for text in lines), *RARER]
HARMLESS: list[str] = [text for lines in PRINTED["harmless"].values() for text in lines]
COMM = "python3"  # the program name, chosen by a user, in the texts
# Devices in the texts → other devices of that kind.
DEVICES: Sequence[tuple[re.Pattern[str], Sequence[str]]] = (
    (re.compile(r"(?<=nvme)\d"), ("0", "1", "12")),
    (re.compile(r"\bsda(?=\d?\b)"), ("sda", "sdb", "sdaa")),
    (re.compile(r"(?<=\bmd)\d(?=\b|p)"), ("0", "127")),
    (re.compile(r"(?<= 0000:)(?:5e:00\.0|00:1c\.0)"), ("5e:00.0", "5e:00.1", "00:1c.0")),
    (re.compile(r"(?<=EDAC MC)\d"), ("0", "3")),
    (re.compile(r"(?<=CPU)\d+(?=: (?:Core|Package))"), ("7", "191")),
    (re.compile(r"(?<=^\{)\d+(?=\}\[Hardware Error\])"), ("1", "94710")),
)
# Messages with user text: {comm}, at most 15 bytes of a program's name; {name}, of a file or a group.
POSITIONS = (
    "{comm}[11176]: segfault at 0 ip 0000 sp 0000 error 6 in {name}[1132,55867fe64000+1000] likely on CPU 0",
    "{comm}[4711] general protection ip:400 sp:7ff error:0 in {name}[400000+1000]",
    "{comm}: page allocation failure: order:4, mode:0x0(GFP), nodemask=(null),cpuset={name},mems_allowed=0",
    "{comm} invoked oom-killer: gfp_mask=0x0(GFP), order=0, oom_score_adj=0",
    "{comm} (4711): drop_caches: 3",
    "process '{name}' started with executable stack",
    "oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/user.slice/{name},task={comm},pid=4711,uid=1000",
    "NVRM: Xid (PCI:0000:0a:00): 43, pid=4711, name={comm}",
    "overlayfs: failed to resolve '{name}': -2",
)
PIECES = ("\\x0a", "[    1.000000] ", "<3>", "\\x1b", "é", ": ", "]", "'", "node kernel: ", ":4711 blocked")
Told = set[tuple[str, str, str, str]]  # verdict, device, metric, action


def texts(draw: random.Random) -> list[str]:
    """Draw messages of faults and of a healthy machine, about a few devices of each kind."""
    return [message(draw) for _ in range(draw.randint(1, 10))]


def message(draw: random.Random, *, of_one: str = "") -> str:
    """Draw a message; `of_one`: about the single device with this in its name."""
    if of_one:
        text = draw.choice([text for text in TEXTS if of_one in text])
        return text.replace("nvme1", "nvme0")
    text = draw.choice(HARMLESS if draw.random() < 0.2 else TEXTS)
    for device, others in DEVICES:
        text = device.sub(draw.choice(others), text)
    return text


def stamped(messages: Sequence[str], stamp: str = "[{at:12.6f}] ") -> list[str]:
    """Return the lines of a log, with multi-line messages indented as by journalctl and dmesg."""
    lines = []
    for number, text in enumerate(messages):
        seconds = 10.0 + number
        when = datetime.fromtimestamp(1.77e9 + seconds, UTC)
        head = stamp.format(at=seconds, unix=1.77e9 + seconds, when=when)
        lines += (head + text.replace("\\x0a", "\n" + " " * len(head))).split("\n")
    return lines


def as_json(messages: Sequence[str]) -> list[str]:
    return [
        json.dumps({"MESSAGE": text.replace("\\x0a", "\n"), "__REALTIME_TIMESTAMP": str(10**15 + number)})
        for number, text in enumerate(messages)
    ]


def log(name: str, lines: Sequence[str]) -> Output:
    return make_output(name, "\n".join([*lines, ""]) if lines else "-- No entries --\n")


@dataclass(frozen=True)
class Case:
    """A drawn log; `seen` reproduces it."""

    draw: random.Random
    node: CheckNode
    seen: str

    def judged(self, *logs: Output) -> list[Finding]:
        """Return the findings on one or two logs of this boot, judged as by the checks."""
        measurements = host_lines.measured({one.name: one for one in logs})
        return host_lines.judge_log("host_health", self.node, measurements, ())

    def told(self, lines: Sequence[str]) -> Told:
        return told(self.judged(log("dmesg", lines)))


def cases(name: str) -> Iterator[Case]:
    for number in range(CASES):
        draw = random.Random(f"{SEED} {name} {number}")  # noqa: S311 - drawn cases
        facts: Mapping[str, Any] = draw.choice(({}, *({"module.nvidia_peermem.loaded": x} for x in (0, 1))))
        facts = {fact: bool(value) for fact, value in facts.items()}
        yield Case(draw, replace(make_node(), facts=facts), f"case {number} of seed {SEED}")


def told(findings: Sequence[Finding]) -> Told:
    return {(one.verdict.value, one.device, one.metric, one.action) for one in findings}


def worst(findings: Sequence[Finding]) -> Mapping[str, tuple[int, int]]:
    """Return the worst verdict and action of each device, and of the node ("")."""
    levels: dict[str, tuple[int, int]] = {"": (0, 0)}
    for finding in findings:
        own = finding.verdict.badness, kernel_meaning.ACTIONS.index(finding.action)
        for device in ("", finding.device):
            verdict, action = levels.get(device, (0, 0))
            levels[device] = max(verdict, own[0]), max(action, own[1])
    return levels


def test_each_kind_of_line_is_drawn() -> None:
    kinds = {kind[0] for text in (*TEXTS, *HARMLESS) if (kind := host_lines.kind_of(text))}
    assert kinds == host_lines.catalogue().keys()
    draw = random.Random(SEED)  # noqa: S311
    drawn = [message(draw) for _ in range(2000)]
    devices = {kind[1] for text in drawn if (kind := host_lines.kind_of(text))}
    assert {"node", "nvme12", "sdaa", "md127", "0000:5e:00.1", "mc3"} <= devices


def test_a_line_more_never_improves_the_verdict_or_the_action() -> None:
    for case in cases("more"):
        # Few lines about one device, so that one more line decides.
        one = case.draw.choice(("", "", "nvme", "mlx5_core"))
        some = [message(case.draw, of_one=one) for _ in range(case.draw.randint(1, 2 if one else 10))]
        at = case.draw.randint(0, len(some))
        more = [*some[:at], message(case.draw, of_one=one), *some[at:]]
        before, after = (case.judged(log("dmesg", stamped(messages))) for messages in (some, more))
        now = worst(after)
        for device, was in worst(before).items():
            assert device in now, f"{case.seen}, {device}: {some} + {more[at]}"
            assert all(now[device][which] >= was[which] for which in (0, 1)), (
                f"{case.seen}, {device}: {some} + {more[at]}\n{told(before)}\n{told(after)}"
            )


def test_neither_order_nor_repetition_changes_anything() -> None:
    for case in cases("order"):
        some = texts(case.draw)
        other = [text for text in some for _ in range(case.draw.randint(1, 3))]
        case.draw.shuffle(other)
        assert case.told(stamped(other)) == case.told(stamped(some)), f"{case.seen}: {some}\n{other}"


STAMPS = {
    "none": "",
    "level": "<3>[{at:12.6f}] ",
    "caller": "[{at:12.6f}][ T1234] ",
    "decoded": "kern  :err   : [{at:12.6f}] ",
    "unix": "{unix:.6f} gpu-01 kernel: ",
    "rsyslog": "Feb 23 16:24:18 gpu-01 kernel: [{at:12.6f}] ",
    "iso": "{when:%Y-%m-%dT%H:%M:%S}+00:00 gpu-01 kernel: ",
    "human": "[{when:%a %b %d %H:%M:%S %Y}] ",
}


def test_no_stamp_changes_anything() -> None:
    for case in cases("stamps"):
        some = texts(case.draw)
        expected = case.told(stamped(some))
        name = case.draw.choice(list(STAMPS))
        plain = [text for text in some if "\\x0a" not in text] if name == "none" else some
        forms = {name: stamped(plain, STAMPS[name]), "journal": as_json(some)}
        for form, lines in forms.items():
            was = case.told(stamped(plain)) if form == "none" else expected
            assert case.told(lines) == was, f"{case.seen}, {form}: {lines}"


def test_two_logs_and_a_log_read_in_parts_show_the_same() -> None:
    """The ring buffer lacks lines that the journal has, and vice versa.
    The health program reads the journal from where its last run ended."""
    for case in cases("parts"):
        some = texts(case.draw)
        expected = case.told(stamped(some))
        one, two = sorted(case.draw.randint(0, len(some)) for _ in range(2))
        both = log("journal", stamped(some[:two])), log("dmesg", stamped(some[one:]))
        assert told(case.judged(*both)) == expected, f"{case.seen}: {some}, {one}, {two}"
        boot = "[    0.000001] Linux version 6.12.107+deb13-amd64"
        known: kernel_since.Remembered | None = None
        for part in ([boot, *stamped(some[:one])], stamped(some[one:two]), stamped(some[two:])):
            cursor = "-- cursor: s=2f5aab;i=4b1;b=4c9e;m=1;t=1;x=1"
            output, known = kernel_since.joined(log("journal", [*part, cursor]), known, "boot")
            assert known is not None
        assert told(case.judged(output)) == expected, f"{case.seen}: {some}, {one}, {two}"


def test_no_text_of_a_user_changes_anything() -> None:
    for case in cases("names"):
        some = texts(case.draw)
        expected = case.told(stamped(some))
        named = [text.replace(COMM, _comm(case.draw, "".join(_pieces(case.draw)))) for text in some]
        for _ in range(case.draw.randint(1, 3)):
            line, before = case.draw.choice(TEXTS), "".join(_pieces(case.draw)[: case.draw.randint(0, 2)])
            name = f"{before}{line[case.draw.choice((0, 0, 11, 15)) :]}"
            forged = case.draw.choice(POSITIONS).format(comm=_comm(case.draw, line), name=name)
            named.insert(case.draw.randint(0, len(named)), forged)
        assert case.told(stamped(named)) == expected, f"{case.seen}: {named}"


def _pieces(draw: random.Random) -> list[str]:
    return [draw.choice((*PIECES, draw.choice(TEXTS)[:9])) for _ in range(4)]


def _comm(draw: random.Random, text: str) -> str:
    r"""Cut a name to 15 bytes.
    The kernel and dmesg write an unprintable byte as \x and two hexadecimal digits."""
    units = re.findall(r"\\x[0-9a-f]{2}|.", text)[: draw.randint(1, 15)]
    return "".join(units)
