"""Findings from hours of burn-in: each fault once, with its first time; unmeasured is never healthy."""

from __future__ import annotations

from typing import Any

import pytest

from provision.burnin import judge
from provision.burnin.judge import Burned
from provision.burnin.own_findings import Reported
from provision.burnin.timeline import Contact
from provision.checks.health import CheckResult
from provision.checks.judge import Finding, Verdict
from tests.support.burnin import Made
from tests.support.spools import AGAIN, BOOT, T0, burned, event, raw


def healthy(count: int) -> dict[int, Any]:
    return {number: burned() for number in range(1, count + 1)}


def bad(found: Burned) -> list[Reported]:
    quiet = (Verdict.PASS, Verdict.SKIP)
    return [reported for reported in found.reported if reported.finding.verdict not in quiet]


def only(found: Burned, metric: str) -> Reported:
    (reported,) = [one for one in bad(found) if one.finding.metric == metric]
    return reported


def test_a_healthy_node_passes_and_its_load_is_what_the_tool_says(made: Made) -> None:
    found = made.soak({n: burned(seconds=63.0) for n in (1, 2, 3, 4)}).judged()
    assert bad(found) == []
    assert found.health.verdict is Verdict.PASS
    assert found.load == {"heat": {"gpu_burn": 240.0}}  # 4 times 60 s of burning; each process ran 63 s
    assert (found.done, found.planned, found.missing) == (4, 4, ())


def test_a_fault_of_the_third_run_is_told_once_with_its_first_time(made: Made) -> None:
    faulty = {n: burned("faulty-gpu3") for n in (3, 4)}
    found = made.soak({1: burned(), 2: burned(), **faulty}).judged()
    reported = only(found, "errors")
    assert (reported.finding.verdict, reported.finding.device) == (Verdict.FAIL, "gpu3")
    assert reported.since == T0 + 10 + 2 * 70
    assert reported.during == "heat"
    assert reported.finding.message.endswith("; in 2 of 4 runs")
    assert "since 2026-11-18" in next(
        f.message for c in found.health.checks for f in c.findings if f.metric == "errors"
    )


def test_clocks_held_down_from_the_end_of_a_run_on_are_so_since_then(made: Made) -> None:
    def held(up: float, gpu: int) -> dict[str, Any]:
        idle = {"util_pct": 0} if (up - 10) % 70 > 60 else {}
        return {**idle, "throttle": "0x40"} if gpu == 5 and up >= 65 and not idle else idle

    made.soak(healthy(3), change=held)
    assert (
        made.sampled().gpus["gpu5"].onset["throttle"] == T0 + 65
    )  # two samples before the pause, the others after it


def test_clocks_held_down_for_a_moment_of_each_run_are_no_sign(made: Made) -> None:
    def brief(up: float, gpu: int) -> dict[str, Any]:
        idle = {"util_pct": 0} if (up - 10) % 70 > 60 else {}
        return {"throttle": "0x40"} if gpu == 5 and 0 <= (up - 10) % 70 < 10 else idle

    made.soak(healthy(3), change=brief)
    assert "throttle" not in made.sampled().gpus["gpu5"].onset


def test_the_telemetry_says_when_within_a_run_a_gpu_became_slow(made: Made) -> None:
    def slow(up: float, gpu: int) -> dict[str, Any]:
        return {"sm_mhz": 1100} if gpu == 5 and up >= 110 else {}

    made.soak({1: burned(), 2: burned("very-slow-gpu5"), 3: burned("very-slow-gpu5")}, change=slow)
    reported = only(made.judged(3), "rate")
    assert reported.finding.device == "gpu5"
    assert reported.since == pytest.approx(T0 + 110, abs=6)  # not 80, when its run began


def test_a_sign_long_before_the_fault_is_not_taken_for_its_beginning(made: Made) -> None:
    def slow(up: float, gpu: int) -> dict[str, Any]:
        return {"sm_mhz": 1100} if gpu == 5 and 20 <= up <= 60 else {}

    made.soak({**healthy(3), 4: burned("very-slow-gpu5")}, change=slow)
    assert only(made.judged(), "rate").since == T0 + 10 + 3 * 70


def test_a_reboot_is_a_finding_and_what_came_before_it_is_kept(made: Made) -> None:
    made.steps({1: burned(), 2: burned("faulty-gpu3"), 3: None})
    zero = T0 + 500  # the next boot
    about = {"check": "gpu_burn", "segment": "heat", "round": 3, "n": 4}
    made.put("raw/000004-gpu_burn.json.gz", raw(burned()))
    made.events += [
        event(20, "booted", AGAIN, zero, during={"segment": "heat", "check": "gpu_burn", "n": 3}),
        event(21, "step", AGAIN, zero, **about),
        event(83, "step_end", AGAIN, zero, raw="raw/000004-gpu_burn.json.gz", load_seconds=60.0, **about),
        event(84, "segment_end", AGAIN, zero, name="heat", outcome="done"),
        event(85, "finished", AGAIN, zero, ended="done"),
    ]
    made.telemetry(150)
    found = made.judged()
    reboot = only(found, "reboot")
    assert reboot.finding.verdict is Verdict.FAIL
    assert reboot.since == T0 + 150
    assert "down for 6 min 10 s" in reboot.finding.message
    assert only(found, "errors").finding.device == "gpu3"  # from before the reboot
    assert found.missing == ("heat: gpu_burn ran 3 of 4 times",)
    assert any(
        "the node rebooted" in one.finding.message for one in bad(found) if one.finding.check == "gpu_burn"
    )
    assert found.health.verdict is Verdict.FAIL


def test_a_node_that_gives_nothing_is_never_healthy(made: Made) -> None:
    for silence, over in (("timed out", False), ("", True), ("", False)):
        found = made.judged(over=over, silence=silence)
        assert found.health.verdict is Verdict.ERROR
        assert silence in " ".join(one.finding.message for one in bad(found))


def test_one_that_still_burns_is_not_healthy_yet(made: Made) -> None:
    made.steps({1: burned(), 2: burned()})
    made.telemetry(made.now)
    found = made.judged(over=False)
    assert found.health.verdict is Verdict.ERROR
    assert any("it is not done: it is still running, in heat" in one.finding.message for one in bad(found))


@pytest.mark.parametrize(
    ("name", "fields", "verdict", "said"),
    [
        ("abort", {"rule": "gpu_celsius", "value": 93, "device": "gpu2"}, Verdict.FAIL, "gpu_celsius: 93"),
        ("foreign", {"pid": 7, "name": "python3", "segment": "heat"}, Verdict.ERROR, "python3 (process 7)"),
        ("killed", {"program": "gpu_burn", "signal": 9, "out_of_memory": True, "line": "Out of memory"},
         Verdict.ERROR, "because memory ran out: Out of memory"),
        ("space", {"what": "telemetry", "stopped": True, "room": "3 MiB"}, Verdict.ERROR, "telemetry st"),
        ("clock_jump", {"seconds": 3600}, Verdict.WARN, "its clock jumped by 3600 s"),
        ("left", {"pid": 9, "name": "nvidia-smi", "state": "D"}, Verdict.FAIL, "nvidia-smi (process 9"),
        ("error", {"text": "boom"}, Verdict.ERROR, "its runner failed: boom"),
    ],
)  # fmt: skip
def test_what_happens_to_a_burn_in_is_told(
    made: Made, name: str, fields: dict[str, Any], verdict: Verdict, said: str
) -> None:
    found = made.soak(healthy(4), event(100, name, **fields)).judged()
    (reported,) = bad(found)
    assert reported.finding.verdict is verdict
    assert said in reported.finding.message
    assert (reported.since, reported.during) == (T0 + 100, "heat")
    assert found.health.verdict is verdict


def test_an_xid_between_the_tests_is_told_with_its_gpu(made: Made) -> None:
    line = "NVRM: Xid (PCI:0000:5d:00): 79, pid=1, GPU has fallen off the bus."
    made.soak(healthy(4), event(75, "xid", code=79, address="0000:5d:00", line=line))
    reported = only(made.judged(), "xid.79")
    assert (reported.finding.device, reported.since) == ("gpu3", T0 + 75)
    assert reported.finding.verdict is Verdict.FAIL


@pytest.mark.parametrize(("metric", "code"), [("xid.48", 48), ("lost", 79)])
@pytest.mark.parametrize(("at", "since"), [(75, 72), (68, 68), (95, 10)])
def test_a_sign_read_just_after_a_run_is_of_that_run(
    made: Made, at: int, since: int, metric: str, code: int
) -> None:
    """At the end of a run, its kernel log has lines that the watcher has not reported yet."""
    made.soak(healthy(2), event(at, "xid", code=code, address="0000:5d:00", line="NVRM: Xid …"))
    timeline, watch, _ = made.reported()
    found = Finding("gpu_burn", Verdict.FAIL, "gpu3", "bad", metric)
    first = judge._Judged(timeline.steps[0], CheckResult("gpu_burn", Verdict.FAIL, (found,), (), 60.0))
    assert (first.step.begin, first.step.end) == (T0 + 10, T0 + 72)
    assert judge._since(found, first, [first], timeline, watch) == T0 + since


def test_clocks_apart_are_told_and_the_times_are_the_controllers(made: Made) -> None:
    made.soak({1: burned(), 2: burned("faulty-gpu3"), 3: burned("faulty-gpu3")})
    made.contacts = [Contact(T0 - 7200 + up, T0 + up, up, BOOT) for up in (20.0, 90.0)]  # two hours ahead
    found = made.judged(3)
    apart = only(found, "clock_skew")
    assert apart.finding.verdict is Verdict.WARN
    assert "its clock is 2 h 0 min ahead of the controller's" in apart.finding.message
    assert only(found, "errors").since == T0 - 7200 + 10 + 70


def test_clocks_a_little_apart_are_not(made: Made) -> None:
    made.soak(healthy(4))
    made.contacts = [Contact(T0 - 20 + 20, T0 + 20, 20.0, BOOT)]
    assert bad(made.judged()) == []


def test_a_gap_in_the_telemetry_is_told_and_none_at_all_is_an_error(made: Made) -> None:
    made.soak(healthy(4), change=lambda up, gpu: None if gpu == 2 and 100 < up < 190 else {})
    reported = only(made.judged(), "telemetry_gap")
    assert reported.finding.message.startswith("no samples of gpu2")
    assert reported.finding.verdict is Verdict.WARN


def test_without_telemetry_nobody_knows_what_the_gpus_did(made: Made) -> None:
    made.steps(healthy(4))
    made.finish()
    assert made.judged().health.verdict is Verdict.ERROR


def test_a_clock_that_falls_over_the_hours_against_its_peers_is_told(made: Made) -> None:
    made.soak(healthy(4), change=lambda up, gpu: {"sm_mhz": 1700 - up / 4 + (100 if gpu != 6 else -up / 3)})
    reported = only(made.judged(), "clock_drift")
    assert reported.finding.device == "gpu6"  # the others fall as well, all together


def test_an_output_that_is_missing_or_damaged_is_an_error_of_that_run(made: Made) -> None:
    made.steps(healthy(4))
    (made.spool.path / "raw" / "000002-gpu_burn.json.gz").write_bytes(b"rubbish")
    (made.spool.path / "raw" / "000003-gpu_burn.json.gz").unlink()
    made.finish()
    made.telemetry(made.now)
    found = made.judged()
    assert found.health.verdict is Verdict.ERROR
    said = [one.finding.message for one in bad(found)]
    assert any("its output is missing" in line for line in said)
    assert any("raw/000002-gpu_burn.json.gz cannot be read" in line for line in said)


def test_counters_that_stand_still_are_no_gap(made: Made) -> None:
    made.soak(healthy(4))
    rows = "".join(f"{T0 + up:.1f},{up:.1f},ib,mlx5_0/1,symbol_error=3\n" for up in range(5, 290, 60))
    have = made.spool.have()[f"telemetry/{BOOT}.csv"]
    made.put(f"telemetry/{BOOT}.csv", rows.encode(), offset=have)
    devices = made.sampled().devices
    assert devices["ib", "mlx5_0/1"].samples == 5
    assert [one.gaps for one in devices.values() if one.gaps] == []


@pytest.mark.parametrize(("code", "action"), [(15, "power-cycle"), (16, "reset GPU"), (999, "power-cycle")])
def test_a_gpu_that_answers_with_errors_is_named_with_its_first_time(
    made: Made, code: int, action: str
) -> None:
    dead = {"nvml_error": str(code), "temperature_c": "", "power_w": "", "sm_mhz": "", "util_pct": ""}
    made.soak(healthy(4), change=lambda up, gpu: dead if gpu == 5 and up >= 65 else {})
    reported = only(made.judged(), "lost")
    finding = reported.finding
    assert (finding.verdict, finding.device, finding.action) == (Verdict.FAIL, "gpu5", action)
    assert reported.since == pytest.approx(T0 + 65, abs=15)
    assert [one.finding.device for one in bad(made.judged())] == ["gpu5"]


def test_a_gpu_that_is_lost_is_not_reset_for_what_it_prints_before_or_afterwards(made: Made) -> None:
    def dead(up: float, gpu: int) -> dict[str, Any]:
        codes = {65.0: "16", 70.0: "15"}
        error = {"nvml_error": codes.get(up, "16"), "temperature_c": "", "sm_mhz": "", "util_pct": ""}
        return error if gpu == 5 and up >= 65 else {}

    reported = only(made.soak(healthy(4), change=dead).judged(), "lost")
    assert (reported.finding.device, reported.finding.action) == ("gpu5", "power-cycle")
    assert reported.since == pytest.approx(T0 + 65, abs=15)
