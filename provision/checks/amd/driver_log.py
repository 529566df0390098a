"""What the driver amdgpu writes to the kernel log when something is wrong: its lines, and what they mean.

The forms, of AMD's own list of kernel errors (amd/node-scraper), of the driver's sources and of public
reports; {1} is the number of an event:

amdgpu 0000:08:00.0: {1}1 uncorrectable hardware errors detected in umc block
amdgpu 0000:c3:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block
amdgpu 0000:c3:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block   all is well
amdgpu 0000:05:00.0: {2}poison is consumed by client 27, kick off gpu reset flow
amdgpu: GPU reset begin!                                                             of older drivers
amdgpu 0000:05:00.0: amdgpu: GPU reset(2) failed
amdgpu 0000:c6:00.0: amdgpu: ring comp_1.0.1 timeout, but soft recovered             the driver helped itself
amdgpu 0000:09:00.0: amdgpu: SMU: I'm not done with your previous command: SMN_C2PMSG_66:0x00000012 …
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from provision.node.burnin.kernel_lines import amdgpu_words

KIND = "amdgpu"  # of a kernel event, and in each of its lines
RESET = "reset_done"  # after which a GPU answers again


@dataclass(frozen=True)
class Meaning:
    """`level` (fail, warn, program, info), `action` and `words` of a kind of line. `after`: the kinds on the
    same GPU that bring it along, so that it is told with them."""

    pattern: re.Pattern[str]
    level: str
    action: str
    words: str
    after: frozenset[str] = frozenset()


_BROKEN = frozenset(
    {"uncorrectable", "poison_consumed", "firmware_stuck", "queue_stuck", "ring_timeout", "lost"}
)


def _row(pattern: str, level: str, action: str, words: str, after: frozenset[str] = frozenset()) -> Meaning:
    return Meaning(re.compile(pattern), level, action, words, after)


# The first that fits is it. Levels: AMD's list calls all of these errors but correctable ones and throttling;
# what the driver has mended by itself, and what programs do wrong, is our own reading.
MEANINGS: Mapping[str, Meaning] = {
    "lost": _row(r"device lost from bus", "fail", "power-cycle", "the GPU fell off the bus"),
    "init_failed": _row(
        r"Fatal error during GPU init", "fail", "power-cycle", "the driver could not start the GPU"
    ),
    "block_failed": _row(
        r"hw_init of IP block .{1,40} failed",
        "fail",
        "power-cycle",
        "a block of the GPU could not be started",
    ),
    "uncorrectable": _row(
        r"[1-9]\d* uncorrectable hardware errors detected in \w+ block",
        "fail",
        "reset GPU",
        "uncorrectable hardware errors",
        frozenset({"poison_consumed"}),
    ),
    "poison_consumed": _row(
        r"poison is consumed by (?:client|source) \d+",
        "fail",
        "reset GPU",
        "a program read memory with an uncorrectable error",
        frozenset({"uncorrectable"}),
    ),
    "deferred": _row(
        r"[1-9]\d* deferred hardware errors detected in \w+ block",
        "warn",
        "watch",
        "deferred hardware errors: bad data that nothing has read yet",
        frozenset({"uncorrectable", "poison_consumed"}),
    ),
    "pages_full": _row(
        r"Saved bad pages \d+ reaches threshold value \d+",
        "fail",
        "replace part",
        "as many bad pages of memory as AMD allows",
        frozenset({"uncorrectable", "deferred", "poison_consumed"}),
    ),
    "pages_many": _row(
        r"RAS records:\d+ exceeds 90% of threshold",
        "warn",
        "watch",
        "nearly as many bad pages of memory as AMD allows",
        frozenset({"uncorrectable", "deferred", "poison_consumed"}),
    ),
    "firmware_stuck": _row(
        r"SMU: I'm not done with your previous command",
        "fail",
        "reset GPU",
        "the GPU's power management firmware does not answer",
        frozenset({"lost", "reset_failed"}),
    ),
    "queue_stuck": _row(
        r"qcm fence wait loop timeout expired|The cp might be in an unrecoverable state",
        "fail",
        "reset GPU",
        "the GPU does not give up a program's queue",
        frozenset({"lost", "uncorrectable", "firmware_stuck", "poison_consumed"}),
    ),
    "ring_recovered": _row(
        r"ring \S{1,40} timeout, but soft recovered", "info", "none", "a hang that was mended"
    ),
    "ring_timeout": _row(
        r"ring \S{1,40} timeout,",
        "warn",
        "investigate",
        "the GPU hung, or a program never ended",
        frozenset({"lost", "uncorrectable", "firmware_stuck", "poison_consumed", "queue_stuck"}),
    ),
    "reset_failed": _row(
        r"(?:GPU reset(?:\(\d+\))?|(?:GPU )?[Mm]ode ?[012] reset) failed",
        "fail",
        "power-cycle",
        "a reset of the GPU failed",
        _BROKEN,
    ),
    RESET: _row(r"GPU reset(?:\(\d+\))? succeeded", "info", "none", "the GPU was reset"),
    "reset": _row(
        r"GPU reset begin", "warn", "watch", "the driver reset the GPU", _BROKEN | {"reset_failed"}
    ),
    "page_fault": _row(
        r"\[\w{1,20}\] (?:no-retry |retry )?page fault",
        "program",
        "restart job",
        "memory page fault of a program",
    ),
    "throttled": _row(r"WARN: GPU is throttled", "warn", "investigate", "the clocks were held down"),
}


# Those after which a GPU is of no use until its reset, or worse.
FATAL = tuple(meaning.pattern.pattern for meaning in MEANINGS.values() if meaning.level == "fail")

# What a reset does not mend.
_LASTING = frozenset({"pages_full", "pages_many", "init_failed", "block_failed"})


def mended(kind: int | str) -> bool:
    """Whether what the driver did since, a reset, can have mended it."""
    return kind not in _LASTING


def of_gpu(kind: int | str, address: str, gpus: Collection[str]) -> bool:
    """Whether a line is of one of these GPUs (PCI addresses): a processor's own graphics have the same
    driver, and do not fall off the bus. A line without an address may be of any."""
    return not address or address in gpus or kind == "lost"


def event(text: str) -> tuple[str, str] | None:
    """(kind of line, PCI address) of one of these lines; the address is empty where the driver gives none."""
    address, words = amdgpu_words(text)
    name = next((name for name, row in MEANINGS.items() if row.pattern.match(words)), None)
    return (name, address) if name else None
