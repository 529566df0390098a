"""A trial of a fleet: its pairs are measured on a simulated fabric and judged by `validate --pairs`.

Only the bandwidth that ib_write_bw reports is simulated (tests/support/fabric.py), not its output, which is
tried on lab nodes. All culprits, and no other part, must be named within the product's four rounds.
"""

from __future__ import annotations

from random import Random

from benchmarks.detection.cases import FLAGGED, Expected, FleetCase
from provision.checks.judge import Finding, Verdict
from provision.checks.pairs import groups, write_bw
from provision.checks.pairs.pairing import across
from tests.support.fabric import RATE, Fabric, racked

SHARE = 0.9  # least expected share of a pair's rate (data/port_limits.yml)
RAILS = ("mlx5_0", "mlx5_1")
RACK = 8


def run(case: FleetCase, rng: Random) -> list[tuple[str, Finding]]:
    """Run one trial and return (node or "fabric", finding) for each finding except passes."""
    fleet = racked(case.nodes, RACK)
    faults = {
        (place if place != ("link", "first") else ("link", *sorted(rng.choice(across(fleet))))): factor
        for place, factor in case.faults.items()
    }
    fabric = Fabric(
        fleet,
        faults,
        noise=rng.uniform(0.001, 0.02),
        seed=rng.randrange(2**31),
        rails=RAILS,
        expected=RATE * SHARE,
        oversubscription=case.oversubscription,
        disturbed=case.disturbed,
    )
    fabric.run()
    checks, between, _ = groups.judged_pairs(fleet, fabric.results, write_bw.METRIC)
    found = [("fabric", finding) for finding in between]
    found += [(node, finding) for node, check in checks.items() for finding in check.findings]
    return [(place, finding) for place, finding in found if finding.verdict.value in FLAGGED]


def score(said: list[tuple[str, Finding]], expected: Expected) -> tuple[bool, bool]:
    """Return (all culprits were caught, and only culprits failed, with helpful actions).
    An error on nodes behind a bad leaf, which could not be measured, is acceptable."""
    failed = [(place, f) for place, f in said if f.verdict is Verdict.FAIL]
    named = {f.device if place == "fabric" else place for place, f in failed}
    caught = all(any(_is(name, one) for one in named) for name in expected.devices)
    innocent = [one for one in named if not any(_is(name, one) for name in expected.devices)]
    helps = all(f.action in expected.actions for _, f in failed)
    return caught, caught and not innocent and helps


def _is(name: str, one: str) -> bool:
    return one.startswith(name[:-1]) if name.endswith("*") else one == name
