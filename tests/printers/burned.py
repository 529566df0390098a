"""A burn-in with samples from a vendor's own program: first of a healthy machine, then of a fault."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from provision.burnin.watch import SIGNS
from provision.checks.judging.node_facts import NodeFacts
from provision.node.burnin.sampler import safe
from provision.runs.store import RunFolder
from tests.support.burnin import Made
from tests.support.spools import BOOT, T0

Rows = Iterable[tuple[str, str, Mapping[str, str]]]  # (source, device, metrics) of each sample
_BEGINS, _ENDS, _EVERY = 100, 300, 5  # seconds: start of the fault, end, sampling interval
_LAST = "gpu3"  # the GPU that has the fault
# Findings proved by the samples alone; other signs only date the fault that a check finds.
PROVED = ("throttled", "load_temperature", "load_replays", "load_ecc_uncorrectable", "lost", "silent")
_ALL = " of all"


def wrong(node: NodeFacts, healthy: Rows, faulty: Rows, seen: Iterable[str], folder: Path) -> list[str]:
    """Describe faults that the burn-in's judge misses or invents.

    `seen`: the findings (PROVED) and other signs of the fault, on one GPU or, with ` of all`, on all GPUs.
    """
    made = Made(RunFolder.create("burnin", {}, folder))
    made.node = node
    made.steps({})
    made.now = float(_ENDS)
    made.finish()
    lines = []
    for up in range(_EVERY, _ENDS + 1, _EVERY):
        for source, device, metrics in healthy if up < _BEGINS else faulty:
            words = ";".join(f"{safe(name)}={safe(value)}" for name, value in metrics.items())
            lines.append(f"{T0 + up:.1f},{up:.1f},{source},{safe(device)},{words}\n")
    assert made.put(f"telemetry/{BOOT}.csv", "".join(lines).encode()) == ""
    signs: set[tuple[str, str]] = set()
    found = []
    for (_, device), one in made.sampled().devices.items():
        signs |= {(device, sign) for sign in one.onset}
        late = {name: when - T0 for name, when in one.onset.items() if not _BEGINS - 10 <= when - T0 <= _ENDS}
        found += [f"{device}: {name} began after {when:.0f} s" for name, when in late.items()]
    gpus = [device for _, device, _ in healthy if device != _LAST]
    told = {
        (device, name.removesuffix(_ALL))
        for name in seen
        for device in (_LAST, *(gpus if name.endswith(_ALL) else ()))
    }
    if signs != (wanted := {(device, SIGNS.get(name, name)) for device, name in told}):
        found.append(f"the signs are {sorted(signs)}, not {sorted(wanted)}")
    # The load itself is missing, so its missing measurement is also reported.
    own = [one.finding for one in made.judged(0).reported if one.finding.verdict.value in ("warn", "fail")]
    findings = {(one.device, one.metric) for one in own}
    if findings != (proved := {one for one in told if one[1] in PROVED}):
        found.append(f"the findings are {sorted(findings)}, not {sorted(proved)}")
    return found


def unseen(rows: Rows) -> bool:
    """Whether no GPU has a sample."""
    return not [source for source, _, _ in rows if source == "gpu"]
