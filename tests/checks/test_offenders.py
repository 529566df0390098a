"""A device that is bad again is asked for more than the last time, with the runs that say so."""

from __future__ import annotations

import pytest

from provision.checks import offenders
from provision.checks.health import CheckResult, GpuIdentity, NodeHealth
from provision.checks.judge import Finding, Verdict
from provision.checks.offenders import Past, escalate


def node(
    device: str = "gpu3",
    verdict: Verdict = Verdict.WARN,
    action: str = "watch",
    uuid: str = "GPU-3",
    name: str = "gpu-01",
) -> NodeHealth:
    finding = Finding("gpu_burn", verdict, device, "slow", "rate", 1.0, action=action, evidence=("a line",))
    gpus = tuple(GpuIdentity(i, "H100", "", uuid if i == 3 else f"GPU-{i}", "") for i in range(8))
    return NodeHealth(name, verdict, (CheckResult("gpu_burn", verdict, (finding,), (), 1.0),), gpus)


def runs(*bad: bool, of: str = "GPU-3") -> dict[str, list[Past]]:
    return {"gpu-01": [Past(f"run{i}", {of} if each else ()) for i, each in enumerate(bad)]}


def judged(one: NodeHealth, past: dict[str, list[Past]]) -> Finding:
    return escalate([one], past)[0].checks[0].findings[0]


@pytest.mark.parametrize(
    ("past", "action"),
    [
        ((), "watch"),
        ((False, False, False, False), "watch"),
        ((True,), "investigate"),
        ((False, True, False), "investigate"),
        ((True, False, True), "replace part"),
        ((True, True, True, True), "replace part"),
        ((True, True, False, False, False, False), "watch"),  # longer ago than what is looked at
    ],
)
def test_watch_becomes_investigate_becomes_replace(past: tuple[bool, ...], action: str) -> None:
    finding = judged(node(), runs(*past))
    assert finding.action == action
    assert finding.verdict is Verdict.WARN, "what was before does not change what was measured"
    if action == "watch":
        assert finding.evidence == ("a line",)


def test_the_earlier_runs_are_the_evidence() -> None:
    finding = judged(node(), runs(True, False, True))
    assert finding.evidence == ("a line", "bad in 3 of the last 4 runs: also in run0, run2")
    assert finding.message == "slow; bad in 3 of the last 4 runs"


def test_a_new_gpu_in_the_same_slot_starts_clean() -> None:
    assert judged(node(uuid="GPU-new"), runs(True, True, True)).action == "watch"
    pair = node("gpu2-gpu3")
    assert judged(pair, runs(True, of="GPU-2-GPU-3")).action == "investigate"
    assert judged(node("mlx5_2"), runs(True, True, of="mlx5_2")).action == "replace part"


def test_a_stronger_action_is_never_weakened_and_a_node_is_no_part() -> None:
    assert judged(node(action="replace part"), runs(True)).action == "replace part"
    assert judged(node(action="reset GPU", verdict=Verdict.FAIL), runs(True)).action == "reset GPU"
    assert judged(node(action="reset GPU", verdict=Verdict.FAIL), runs(True, True)).action == "replace part"
    assert judged(node("node"), runs(True, True, True, of="node")).action == "investigate"


@pytest.mark.parametrize(
    ("verdict", "action"),
    [
        (Verdict.WARN, "fix configuration"),
        (Verdict.ERROR, "run again"),
        (Verdict.FAIL, "restart job"),
        (Verdict.PASS, "none"),
    ],
)
def test_what_is_no_matter_of_hardware_is_neither_counted_nor_raised(verdict: Verdict, action: str) -> None:
    one = node(verdict=verdict, action=action)
    assert offenders.bad(one) == []
    assert judged(one, runs(True, True, True, True)).action == action


def test_the_rules_are_in_order() -> None:
    use = offenders.rules()
    assert 1 < use.investigate < use.replace <= use.runs
