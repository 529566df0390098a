"""What the next run knows of this one: the right run is compared with, and a damaged one costs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision import verdict_history
from provision.checks.check import Measurement
from provision.health import CheckResult, FleetHealth, NodeHealth
from provision.judge import Finding, Verdict
from provision.store import RunFolder

PASS, WARN, FAIL, ERROR = Verdict.PASS, Verdict.WARN, Verdict.FAIL, Verdict.ERROR
NAMES = "20260501T100000.000Z", "20260502T100000.000Z", "20260503T100000.000Z", "20260504T100000.000Z"


def node(name: str, verdict: Verdict) -> NodeHealth:
    finding = Finding("gpu_burn", verdict, "gpu5", "burns slowly", "rate", 4.0, evidence=("a line",))
    rows = (Measurement("rate", 4.0, "Gflop/s", "gpu5"),)
    return NodeHealth(name, verdict, (CheckResult("gpu_burn", verdict, (finding,), rows, 1.0),), (), {"a": 1})


def fleet(day: int, asked: tuple[str, ...] = ("gpu_burn",), **verdicts: Verdict) -> FleetHealth:
    nodes = tuple(node(name, verdict) for name, verdict in verdicts.items())
    run, started = f"{NAMES[day - 1]}-validate", f"2026-05-0{day}T10:00:00Z"
    return FleetHealth(run, "0.1.0", "/srv/inventory.yml", started, started, asked, nodes)


def stored(runs: Path, health: FleetHealth, *, keep: bool = True) -> RunFolder:
    folder = RunFolder(runs / health.run_id)
    folder.path.mkdir(parents=True)
    folder.write_json("run.json", {"format": 1, "inventory": health.inventory, "asked": list(health.asked)})
    if keep:
        verdict_history.keep(folder, health)
    return folder


def found(folder: RunFolder, health: FleetHealth) -> verdict_history.Earlier:
    earlier = verdict_history.earlier(folder, health)
    assert earlier is not None
    return earlier


def test_the_first_run_has_nothing_to_compare_with(tmp_path: Path) -> None:
    health = fleet(1, n1=PASS)
    assert verdict_history.earlier(stored(tmp_path, health), health) is None


def test_the_last_run_is_told_with_what_was_wrong_and_nothing_more(tmp_path: Path) -> None:
    stored(tmp_path, fleet(1, n1=PASS, n2=PASS))
    stored(tmp_path, fleet(2, n1=PASS, n2=FAIL))
    now = fleet(3, n1=PASS, n2=PASS)
    earlier = found(stored(tmp_path, now), now)
    assert earlier.fleet.run_id == f"{NAMES[1]}-validate"
    good, bad = earlier.fleet.nodes
    assert (good.verdict, good.checks) == (PASS, ())
    assert bad.verdict is FAIL
    assert bad.checks[0].findings[0].message == "burns slowly"
    assert (bad.checks[0].measurements, bad.checks[0].findings[0].evidence, bad.facts) == ((), (), {})
    assert earlier.since == {"n2": "2026-05-02T10:00:00Z"}


def test_a_node_is_bad_since_the_first_run_of_an_unbroken_row(tmp_path: Path) -> None:
    stored(tmp_path, fleet(1, n1=FAIL, n2=FAIL))
    stored(tmp_path, fleet(2, n1=ERROR, n2=WARN))
    stored(tmp_path, fleet(3, n1=FAIL, n2=FAIL))
    now = fleet(4, n1=FAIL, n2=FAIL)
    assert found(stored(tmp_path, now), now).since == {
        "n1": "2026-05-01T10:00:00Z",
        "n2": "2026-05-03T10:00:00Z",
    }


def test_a_run_of_one_node_does_not_hide_what_is_known_of_the_others(tmp_path: Path) -> None:
    stored(tmp_path, fleet(1, n1=FAIL, n2=FAIL))
    stored(tmp_path, fleet(2, n2=PASS))
    now = fleet(3, n1=FAIL, n2=PASS)
    earlier = found(stored(tmp_path, now), now)
    assert {each.node: each.verdict for each in earlier.fleet.nodes} == {"n1": FAIL, "n2": PASS}
    assert earlier.names == {"n2"}
    assert earlier.since == {"n1": "2026-05-01T10:00:00Z"}


def test_only_the_same_checks_on_the_same_inventory_are_compared(tmp_path: Path) -> None:
    stored(tmp_path, fleet(1, n1=FAIL))
    stored(tmp_path, fleet(2, asked=("gpu_inventory",), n1=PASS))
    other = fleet(3, n1=PASS)
    other_inventory = FleetHealth(**{**vars(other), "inventory": "/srv/another.yml"})
    stored(tmp_path, other_inventory)
    now = fleet(4, n1=FAIL)
    assert found(stored(tmp_path, now), now).fleet.run_id == f"{NAMES[0]}-validate"


def test_an_interrupted_run_is_no_measure(tmp_path: Path) -> None:
    stored(tmp_path, fleet(1, n1=PASS))
    cut = FleetHealth(**{**vars(fleet(2, n1=ERROR)), "interrupted": True})
    stored(tmp_path, cut)
    now = fleet(3, n1=PASS)
    assert found(stored(tmp_path, now), now).fleet.run_id == f"{NAMES[0]}-validate"


def test_a_later_run_is_not_earlier(tmp_path: Path) -> None:
    first = fleet(1, n1=PASS)
    folder = stored(tmp_path, first)
    stored(tmp_path, fleet(2, n1=FAIL))
    assert verdict_history.earlier(folder, first) is None


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "null", '{"format": 2}', '{"format": 1}', "[" * 100_000,
        '{"format": 1, "since": [], "report": {}}', '{"format": 1, "since": {}, "report": {"nodes": 3}}',
    ],
)  # fmt: skip
def test_a_damaged_or_newer_history_is_passed_over(tmp_path: Path, text: str) -> None:
    stored(tmp_path, fleet(1, n1=FAIL))
    stored(tmp_path, fleet(2, n1=PASS), keep=False).write(verdict_history.FILE, text)
    (tmp_path / f"{NAMES[2]}-validate").mkdir()
    now = fleet(4, n1=FAIL)
    assert found(stored(tmp_path, now), now).fleet.run_id == f"{NAMES[0]}-validate"
