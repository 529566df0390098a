"""Faults that recur after a repair: a stronger action, with the runs that show it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provision.checks.health import CheckResult, GpuIdentity, NodeHealth
from provision.checks.judge import Finding, Verdict
from provision.checks.judging import offenders
from provision.checks.judging.offenders import Past, escalate


def node(
    device: str = "gpu3",
    verdict: Verdict = Verdict.WARN,
    action: str = "watch",
    uuid: str = "GPU-3",
    name: str = "gpu-01",
    metric: str = "rate",
    boot: str = "now",
) -> NodeHealth:
    finding = Finding("gpu_burn", verdict, device, "slow", metric, 1.0, action=action, evidence=("a line",))
    gpus = tuple(GpuIdentity(i, "H100", "", uuid if i == 3 else f"GPU-{i}", "") for i in range(8))
    checks = (CheckResult("gpu_burn", verdict, (finding,), (), 1.0),)
    return NodeHealth(name, verdict, checks, gpus, {"boot": boot})


def runs(*bad: bool, of: str = "GPU-3", kind: str = "gpu_burn.rate", boot: str = "") -> dict[str, list[Past]]:
    """Return runs of one node, each after a reboot unless `boot` is given."""
    past = [
        Past(f"run{i}", {f"{of} {kind}"} if each else (), boot or f"boot{i}", {"gpu_burn"})
        for i, each in enumerate(bad)
    ]
    return {"gpu-01": past}


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
        ((True, True, False, False, False, False), "watch"),  # outside the window
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
    said = "came back 2 times after a reboot or a run without it"
    assert finding.evidence == ("a line", f"{said}: first found in run0, run2")
    assert finding.message == f"slow; {said}"


@pytest.mark.parametrize("action", ["watch", "reset GPU", "power-cycle", "investigate"])
def test_one_fault_is_one_however_often_it_is_looked_at(action: str) -> None:
    for looks in (1, 2, 3, 10):
        same_boot = runs(*[True] * looks, boot="now")
        assert judged(node(action=action), same_boot).action == action
        unknown = {"gpu-01": [replace(past, boot="") for past in same_boot["gpu-01"]]}
        assert judged(node(action=action), unknown).action == action, "of a boot that nobody knows"


def test_what_a_repair_did_not_mend_counts_whenever_it_was_looked_at() -> None:
    """With three boots and ten runs in each there are three faults, and runs in between do not hide them."""
    past = [replace(one, run=f"{one.run}-{look}") for one in runs(True, True)["gpu-01"] for look in range(10)]
    finding = judged(node(action="reset GPU"), {"gpu-01": past})
    assert finding.action == "replace part"
    assert finding.evidence[-1].endswith("first found in run0-0, run1-0")


def test_a_run_without_the_fault_is_a_repair_only_if_it_measured() -> None:
    found = runs(True, False, boot="now")["gpu-01"]
    assert judged(node(), {"gpu-01": found}).action == "investigate"
    found[1] = replace(found[1], measured={"gpu_inventory"})
    assert judged(node(), {"gpu-01": found}).action == "watch"


def test_a_fault_is_the_same_only_of_one_device_and_one_kind() -> None:
    for other in (runs(True, True, kind="gpu_inventory.ecc"), runs(True, True, of="GPU-4")):
        assert judged(node(action="reset GPU"), other).action == "reset GPU"
    mixed = [*runs(True, True)["gpu-01"], *runs(True, True, kind="gpu_inventory.ecc")["gpu-01"]]
    assert judged(node(metric="temperature"), {"gpu-01": mixed}).action == "watch"


def test_the_kernel_log_is_one_source_whichever_check_read_it() -> None:
    past = runs(True, True, kind="gpu_inventory.xid.48")
    assert judged(node(metric="xid.48", action="reset GPU"), past).action == "replace part"
    unnumbered = runs(True, True, kind="gpu_inventory.nvrm.init_failed")
    assert judged(node(metric="nvrm.init_failed", action="reset GPU"), unnumbered).action == "replace part"


def test_a_run_keeps_what_the_next_ones_count_by() -> None:
    kept = offenders.past_from("run0", node(metric="two words"), ["gpu_burn", "versions"])
    assert kept == Past("run0", frozenset({"GPU-3 gpu_burn.two_words"}), "now", {"gpu_burn", "versions"})
    assert offenders.past_of(kept.record()) == kept
    unmeasured = offenders.past_from("run0", node(verdict=Verdict.ERROR, action="run again"), ["gpu_burn"])
    assert unmeasured.measured == frozenset()
    assert offenders.past_from("r", replace(node(), error="stopped answering"), ["gpu_burn"]).measured == ()
    assert offenders.past_of({"run": "old", "bad": ["GPU-3"]}) == Past(
        "old", frozenset({"GPU-3"}), "", frozenset()
    )


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
        (Verdict.FAIL, "reboot"),  # the versions of the driver's module and library differ
        (Verdict.FAIL, "reseat or check cable"),
        (Verdict.WARN, "fix configuration"),
        (Verdict.ERROR, "run again"),
        (Verdict.FAIL, "restart job"),
        (Verdict.PASS, "none"),
    ],
)
def test_what_is_no_matter_of_hardware_is_neither_counted_nor_raised(verdict: Verdict, action: str) -> None:
    one = node(verdict=verdict, action=action)
    assert not offenders.past_from("run0", one, ["gpu_burn"]).bad
    assert judged(one, runs(True, True, True, True)).action == action


def test_a_program_that_holds_a_gpu_wears_out_none() -> None:
    finding = Finding("gpu_inventory", Verdict.WARN, "gpu3", "in use", "processes", action="investigate")
    one = replace(node(), checks=(CheckResult("gpu_inventory", Verdict.WARN, (finding,), (), 1.0),))
    assert judged(one, runs(True, True, True, kind="gpu_inventory.processes")).action == "investigate"


def test_the_rules_are_in_order() -> None:
    use = offenders.rules()
    assert 1 < use.investigate < use.replace <= use.runs
