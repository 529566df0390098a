"""Rules that decide after how many runs a finding counts and when it is gone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from provision.checks.judge import Finding, Verdict
from provision.checks.on_node import debounce
from provision.checks.on_node.debounce import Rule, Tracked, followed
from provision.errors import GpuprovError

RULES = [
    Rule("at-once", 1, 1, 2, metrics=("xid.*",)),
    Rule("sometimes", 3, 5, 2, checks=("network_ports",)),
    Rule("rest", 2, 3, 1),
]
LOST = Finding("gpu_inventory", Verdict.FAIL, "gpu3", "Xid 79", "xid.79", action="power-cycle")
FLAP = Finding("network_ports", Verdict.FAIL, "mlx5_0", "down", "state", action="reseat or check cable")
SLOW = Finding("gpu_inventory", Verdict.WARN, "gpu1", "PCIe runs x8 of x16", "pcie_width", action="watch")


def after(*runs: Sequence[Finding], first: Sequence[Tracked] | None = ()) -> list[Tracked]:
    """Return the tracked findings after these runs."""
    tracked: Sequence[Tracked] | None = first
    for number, found in enumerate(runs):
        tracked = followed(tracked, found, RULES, f"run {number}")
    return list(tracked or ())


def states(*runs: Sequence[Finding]) -> list[str]:
    return [one.state for one in after(*runs)]


def test_a_fatal_finding_counts_at_once_and_is_gone_after_clean_runs() -> None:
    assert states([LOST]) == ["active"]
    assert states([LOST], []) == ["clearing"]
    assert states([LOST], [], []) == []
    assert states([LOST], [], [LOST], []) == ["clearing"], "a run with it begins the count anew"


def test_what_flaps_counts_once_it_was_seen_often_enough() -> None:
    assert states([FLAP]) == states([FLAP], [], [FLAP]) == ["pending"]
    assert states([FLAP], [], [FLAP], [], [FLAP]) == ["active"]
    assert states([FLAP], [], [], [FLAP], [], []) == ["pending"], "two of the last five"
    assert states([FLAP], [], [], [], [], []) == [], "forgotten once it is out of sight"


def test_a_pending_finding_is_not_in_the_verdict() -> None:
    assert debounce.verdict(after([FLAP]), Verdict.PASS) is Verdict.PASS
    assert debounce.verdict(after([FLAP, LOST]), Verdict.PASS) is Verdict.FAIL
    assert debounce.verdict(after([FLAP, LOST], []), Verdict.PASS) is Verdict.FAIL, "clearing still counts"


def test_what_a_new_boot_does_not_show_is_gone() -> None:
    before = after([LOST, SLOW], [SLOW])
    assert [one.state for one in before] == ["clearing", "active"], "the worst first"
    (one,) = followed(before, [SLOW], RULES, "run 2", rebooted=True)
    assert (one.finding, one.state, one.since) == (SLOW, "active", "run 0")


def test_a_run_out_of_turn_is_one_with_the_run_before() -> None:
    """A burst in the kernel log triggers several runs, and three of them do not make three minutes."""

    def early(before: Sequence[Tracked], found: Sequence[Finding]) -> list[Tracked]:
        return followed(before, found, RULES, "early", early=True)

    (one,) = flapping = early(early(early(after([FLAP]), [FLAP]), [FLAP]), [FLAP])
    assert (one.state, one.seen) == ("pending", (True,))
    assert [one.state for one in after([FLAP], [FLAP], first=flapping)] == ["active"]
    assert [one.state for one in early(early(after([LOST]), []), [])] == ["active"], "nor are they clean runs"
    assert [one.state for one in early([], [LOST])] == ["active"], "what counts at once does"
    (one,) = early(after([FLAP], []), [FLAP])
    assert one.seen == (True, True)


def test_without_knowledge_of_earlier_runs_everything_counts() -> None:
    assert [one.state for one in after([FLAP, SLOW], first=None)] == ["active", "active"]


def test_it_is_the_same_finding_however_bad_and_however_it_is_worded() -> None:
    worse = Finding(
        "gpu_inventory", Verdict.FAIL, "gpu1", "PCIe runs x4 of x16", "pcie_width", action="watch"
    )
    (one,) = after([SLOW], [SLOW], [worse])
    assert (one.finding, one.state, one.since) == (worse, "active", "run 0")


def test_two_findings_of_one_kind_are_two() -> None:
    other = Finding("gpu_inventory", Verdict.ERROR, "node", "no answer of dmesg", action="investigate")
    another = Finding("gpu_inventory", Verdict.ERROR, "node", "no answer of nvidia-smi", action="investigate")
    tracked = after([other, another], [other, another])
    assert [one.state for one in tracked] == ["active", "active"]
    assert {one.finding.message for one in tracked} == {other.message, another.message}
    assert [one.state for one in after([other, another], [other, another], [other])] == ["active"]


def test_the_worst_is_told_first() -> None:
    assert [one.finding for one in after([SLOW, FLAP, LOST], first=None)] == [LOST, FLAP, SLOW]


def test_the_last_shipped_rule_fits_everything_and_each_has_its_source() -> None:
    rules = debounce.shipped_rules()
    assert all(rule.why and rule.source for rule in rules)
    assert (rules[-1].checks, rules[-1].metrics, rules[-1].verdicts) == ((), (), ())


@pytest.mark.parametrize(
    ("metric", "verdict", "needs"),
    [
        ("driver_gpus", Verdict.FAIL, 1),
        ("unanswered", Verdict.FAIL, 1),
        ("xid.79", Verdict.FAIL, 1),
        ("xid.48", Verdict.FAIL, 1),
        ("xid.94", Verdict.WARN, 1),
        ("ecc_uncorrectable", Verdict.FAIL, 1),
        ("remap_failure", Verdict.FAIL, 1),
        ("throttle", Verdict.FAIL, 3),
        ("aer.0", Verdict.WARN, 2),
        ("", Verdict.ERROR, 2),
    ],
)
def test_what_is_fatal_counts_at_once_and_what_passes_does_not(
    metric: str, verdict: Verdict, needs: int
) -> None:
    finding = Finding("gpu_inventory", verdict, "gpu0", "", metric, action="investigate")
    assert next(rule for rule in debounce.shipped_rules() if rule.fits(finding)).needs == needs


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"name": "a"}, "must have name, needs, of and clear_after"),
        ({"name": "a", "needs": 3, "of": 2, "clear_after": 1}, "needs 3 of 2 runs can never be"),
        ({"name": "a", "needs": 0, "of": 2, "clear_after": 1}, "needs must be a whole number from 1 to 60"),
        ({"name": "a", "needs": True, "of": 2, "clear_after": 1}, "needs must be a whole number"),
        (
            {"name": "a", "needs": 1, "of": 2, "clear_after": 1, "verdicts": ["bad"]},
            "verdicts are fail, warn, error",
        ),
        (
            {"name": "a", "needs": 1, "of": 2, "clear_after": 1, "checks": "gpu"},
            "checks must be a list of names",
        ),
        ({"name": "a", "needs": 1, "of": 2, "clear_after": 1, "foo": 1}, "no unknown key"),
        ("a", "must have name"),
    ],
)
def test_a_rule_that_cannot_be_used_is_refused_by_name(row: object, words: str) -> None:
    with pytest.raises(GpuprovError, match="here: debounce rule 1: ") as refused:
        debounce.rules([row], "here")
    assert words in refused.value.what


def test_a_pending_row_remap_is_a_warning_in_service_and_stays_one_rule() -> None:
    pending = Finding("gpu_inventory", Verdict.FAIL, "gpu3", "a row remap waits", "remap_pending")
    rules = debounce.shipped_rules()
    first = followed((), [pending], rules, "t1")
    assert [(one.finding.verdict, one.state, one.rule.name) for one in first] == [
        (Verdict.WARN, "active", "row-remap-pending")
    ]
    assert debounce.verdict(followed(first, [pending], rules, "t2"), Verdict.PASS) is Verdict.WARN
    assert followed(first, [], rules, "t2") == []


def test_a_verdict_that_a_rule_cannot_give_is_refused() -> None:
    row = {"name": "mine", "needs": 1, "of": 1, "clear_after": 1, "counts_as": "pass"}
    with pytest.raises(GpuprovError, match="counts_as must be one of"):
        debounce.rules([row], "settings")
