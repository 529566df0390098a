"""Comparison of two runs: regressions are reported, noise and a warm room are not."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from provision import cli, report
from provision.checks.check import Measurement
from provision.checks.health import CheckResult, FleetHealth, NodeHealth, from_json
from provision.checks.judge import Verdict
from provision.errors import ExitCode
from provision.report import diff_text
from provision.report import json as json_report
from provision.report.diff import Diff, diff, direction
from provision.runs.store import RunFolder
from tests.support import samples

BEFORE, AFTER = "20260504T100000.000Z-validate", "20260511T100000.000Z-validate"


def burnt(name: str, number: int, rates: list[float]) -> NodeHealth:
    rows = tuple(Measurement("rate", rate, "Gflop/s", f"gpu{i}") for i, rate in enumerate(rates))
    rows += tuple(Measurement("temperature", 60.0 + number, "C", f"gpu{i}") for i in range(len(rates)))
    result = CheckResult("gpu_burn", Verdict.PASS, (), rows, 60.0)
    return replace(samples.node(name, (result,), number), verdict=Verdict.PASS)


def fleets(
    scale: Callable[[int, int], float], nodes: int = 4, noise: float = 0.003
) -> tuple[FleetHealth, FleetHealth]:
    """Return a fleet before and after. `scale`: factor of the burn rate by (node, GPU), besides noise."""
    chance = random.Random(7)  # noqa: S311 - the same noise in each run
    first, second = [], []
    for number in range(1, nodes + 1):
        rates = [chance.gauss(51900, 300) for _ in range(8)]
        later = [rate * scale(number, gpu) * chance.gauss(1, noise) for gpu, rate in enumerate(rates)]
        first.append(burnt(f"gpu-{number:02d}", number, rates))
        second.append(burnt(f"gpu-{number:02d}", number, later))
    before = replace(samples.fleet(*first, asked=("gpu_burn",)), run_id=BEFORE)
    return before, replace(samples.fleet(*second, asked=("gpu_burn",)), run_id=AFTER)


def same(_node: int, _gpu: int) -> float:
    return 1.0


def told(found: Diff) -> str:
    return "\n".join(diff_text.comparison(found))


def test_noise_is_told_to_nobody() -> None:
    for noise in (0.001, 0.006, 0.02):
        found = diff(*fleets(same, noise=noise))
        assert (found.moved, found.shifts, found.worse, found.less_known) == ((), (), False, False)


def test_one_gpu_that_slowed_is_named_with_its_numbers() -> None:
    found = diff(*fleets(lambda node, gpu: 0.94 if (node, gpu) == (3, 5) else 1.0))
    (one,) = found.moved
    assert (one.node, one.check, one.metric, one.device, one.worse) == (
        "gpu-03", "gpu_burn", "rate", "gpu5", True,
    )  # fmt: skip
    assert one.change == pytest.approx(-0.06, abs=0.012)
    assert found.worse
    text = told(found)
    assert "worse than before:\n  gpu-03 gpu_burn rate gpu5: " in text


def test_what_scatters_much_needs_more_to_be_told() -> None:
    slower = diff(*fleets(lambda n, g: 0.94 if (n, g) == (3, 5) else 1.0, noise=0.03))
    assert slower.moved == ()


def test_a_small_change_is_not_told_however_quiet_the_fleet_is() -> None:
    def scale(by: float) -> Callable[[int, int], float]:
        return lambda node, gpu: by if (node, gpu) == (1, 0) else 1.0

    assert diff(*fleets(scale(0.979), noise=0)).moved == ()
    assert len(diff(*fleets(scale(0.975), noise=0)).moved) == 1


def test_a_fleet_that_moved_as_a_whole_is_told_once_and_names_who_moved_more() -> None:
    found = diff(*fleets(lambda n, g: 0.87 if (n, g) == (2, 1) else 0.95))
    (shift,) = found.shifts
    assert (shift.sku, shift.nodes, shift.values, shift.worse) == ("h100-sxm", 4, 32, True)
    assert [(one.node, one.device) for one in found.moved] == [("gpu-02", "gpu1")]
    gained = diff(*fleets(lambda n, g: 1.0 if (n, g) == (2, 1) else 1.06))
    assert gained.moved == ()  # its rate is unchanged while the others' rose
    assert not gained.worse
    assert "better than before" in told(gained)


def test_what_got_better_is_quiet() -> None:
    found = diff(*fleets(lambda n, g: 1.08 if n == 1 and g < 2 else 1.0))
    assert len(found.moved) == 2
    assert not found.worse
    assert "worse" not in told(found)
    assert "better than before:\n  2 measurements on gpu-01" in told(found)


def test_few_devices_need_a_larger_change() -> None:
    def pair(by: float) -> Diff:
        before, after = fleets(lambda _, g: by if g == 0 else 1.0, nodes=1, noise=0)
        few = [
            replace(
                fleet, nodes=(replace(node, checks=(replace(check, measurements=check.measurements[:4]),)),)
            )
            for fleet in (before, after)
            for node in fleet.nodes
            for check in node.checks
        ]
        return diff(*few)

    assert pair(0.96).moved == ()
    assert len(pair(0.94).moved) == 1


def test_temperatures_and_counters_from_zero_have_no_direction() -> None:
    before, after = fleets(same)
    hot = burnt("gpu-01", 30, [51900.0] * 8)
    after = replace(after, nodes=(replace(hot, checks=hot.checks), *after.nodes[1:]))
    assert {one.metric for one in diff(before, after).moved} <= {"rate"}
    assert direction("gpu_burn", "temperature", "C") == ""
    assert direction("p2p_bandwidth", "h2d", "GB/s") == "at_least"
    assert direction("nccl_all_reduce", "busbw", "GB/s") == "at_least"
    assert direction("a_check_of_ones_own", "speed", "MB/s") == "at_least"
    assert direction("pair_latency", "latency", "us") == "at_most"


def test_verdicts_nodes_and_checks_that_changed() -> None:
    good = [samples.node(f"gpu-{i:02d}", samples.checks(i), i) for i in (1, 2, 3)]
    bad = samples.node("gpu-03", samples.checks(3, burn=5), 3)
    fresh = samples.node("gpu-04", samples.checks(4), 4)
    before = samples.fleet(*good, asked=(*samples.CHECKS, "dcgm_diag"))
    after = samples.fleet(good[0], bad, fresh, asked=(*samples.CHECKS, "disk_speed"))
    found = diff(before, after)
    assert [(one.node, one.was, one.now) for one in found.changed] == [("gpu-03", "pass", "fail")]
    assert (found.new, found.gone) == ([("gpu-04", "pass")], [("gpu-02", "pass")])
    assert (found.only_before, found.only_after) == (("dcgm_diag",), ("disk_speed",))
    text = told(found)
    assert "gpu-03: pass → fail" in text
    assert "not compared:\n  1 check only in the earlier run: dcgm_diag\n  1 check only in the later" in text
    assert "gpu_burn errors gpu5" in text
    assert found.worse
    assert not diff(after, before).worse
    assert diff(after, before).less_known  # gpu-04 is gone
    assert diff(before, replace(before, nodes=(*good[:2], samples.silent("gpu-03")))).less_known


def test_a_full_run_and_a_quick_one_of_a_healthy_fleet_are_two_sections_at_most() -> None:
    before, after = fleets(same)
    asked = [f"check_{number}" for number in range(12)]
    lines = told(diff(replace(before, asked=("gpu_burn", *asked)), after)).splitlines()
    assert lines[2:] == ["", "not compared:", f"  12 checks only in the earlier run: {', '.join(asked)}"]


def test_a_node_that_fails_by_more_than_before_is_worse() -> None:
    slow, both = (samples.node("gpu-03", samples.checks(3, slow=(2, 6), burn=b), 3) for b in (None, 5))
    found = diff(samples.fleet(slow), samples.fleet(both))
    assert found.changed == []
    assert found.worse
    assert [one.device for change in found.failing_anew for one in change.findings] == ["gpu5"]
    assert "and now by these too:\n    gpu-03 gpu_burn errors gpu5" in told(found)
    assert diff(samples.fleet(both), samples.fleet(slow)).failing_anew == ()


def test_another_gpu_is_told_by_its_serial_and_where_it_was() -> None:
    one, two = (samples.node(f"gpu-{i:02d}", samples.checks(i), i) for i in (1, 2))
    spare = replace(one.gpus[3], serial="1652899999999", uuid="GPU-new")
    swapped = replace(one.gpus[5], serial=two.gpus[7].serial, uuid=two.gpus[7].uuid)
    gpus = (*one.gpus[:3], spare, one.gpus[4], swapped, one.gpus[6], one.gpus[7])
    later = replace(one, gpus=gpus)
    less = replace(two, gpus=two.gpus[:-1])
    found = diff(samples.fleet(one, two), samples.fleet(later, less))
    assert [(p.node, p.device, p.was, p.now, p.moved_from) for p in found.parts] == [
        ("gpu-01", "gpu3", one.gpus[3].serial, "1652899999999", ""),
        ("gpu-01", "gpu5", one.gpus[5].serial, two.gpus[7].serial, "gpu-02 gpu7"),
        ("gpu-02", "gpu7", two.gpus[7].serial, "", ""),
    ]
    assert "gpu-01 gpu5 (00000000:68:00.0)" in told(found)


def test_a_lost_gpu_renumbers_the_others_and_replaces_none() -> None:
    node = samples.node("gpu-01", samples.checks(1), 1)
    left = [gpu for gpu in node.gpus if gpu.index != 2]
    later = replace(node, gpus=tuple(replace(gpu, index=i) for i, gpu in enumerate(left)))
    found = diff(samples.fleet(node), samples.fleet(later))
    assert [(p.slot, p.now) for p in found.parts] == [(node.gpus[2].pci_address, "")]


@pytest.mark.parametrize("nothing", ["", "N/A", "[N/A]", "0", "[Not Supported]"])
def test_boards_without_serials_are_known_by_uuid(nothing: str) -> None:
    node = samples.node("gpu-01", samples.checks(1), 1)
    plain = replace(node, gpus=tuple(replace(gpu, serial=nothing) for gpu in node.gpus))
    assert diff(samples.fleet(node), samples.fleet(plain)).parts == ()
    other = replace(plain, gpus=(replace(plain.gpus[0], uuid="GPU-other"), *plain.gpus[1:]))
    (part,) = diff(samples.fleet(plain), samples.fleet(other)).parts
    assert part.now == "GPU-other"


def test_a_metric_with_another_name_is_told_not_compared() -> None:
    before, after = fleets(same)
    renamed = json.loads("".join(json_report.render(after)).replace('"rate"', '"rate_fp16"'))
    found = diff(before, from_json(renamed))
    assert found.unpaired == ("gpu_burn.rate", "gpu_burn.rate_fp16")
    assert found.moved == ()
    assert "gpu_burn.rate_fp16" in told(found)


def test_hostile_fleets_are_told_in_clean_lines() -> None:
    fleet = samples.hostile()
    turned = replace(
        fleet, nodes=tuple(replace(n, verdict=Verdict.PASS, gpus=n.gpus[::-1]) for n in fleet.nodes)
    )
    for pair in ((fleet, turned), (turned, fleet), (fleet, samples.nothing()), (samples.nothing(), fleet)):
        found = diff(*pair)
        for line in diff_text.comparison(found):
            assert "\n" not in line
            assert "\x1b" not in line
        json.dumps(diff_text.comparison_document(found))


# --- the command ---


def keep(fleet: FleetHealth, runs: Path) -> str:
    folder = RunFolder.create("validate", {}, runs=runs)
    report.write_all(replace(fleet, run_id=folder.path.name), folder, ["json"])
    return folder.path.name


def test_the_command_prints_text_and_json_and_its_exit_code_says_which_way(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = fleets(lambda node, gpu: 0.9 if (node, gpu) == (3, 5) else 1.0)
    one, two = keep(before, runs), keep(after, runs)
    assert cli.main(["report", "compare", one, two]) == ExitCode.UNHEALTHY
    assert "gpu-03 gpu_burn rate gpu5" in capsys.readouterr().out
    assert cli.main(["report", "compare", one, str(runs / two), "--json"]) == ExitCode.UNHEALTHY
    said = json.loads(capsys.readouterr().out)
    assert (said["before"]["run"], said["after"]["run"], said["worse"]) == (one, two, True)
    assert [moved["device"] for moved in said["moved"]] == ["gpu5"]
    assert cli.main(["report", "compare", two, one]) == ExitCode.OK
    gone = keep(replace(before, nodes=before.nodes[1:]), runs)
    assert cli.main(["report", "compare", one, gone]) == ExitCode.INCOMPLETE


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (["{one}", "{one}"], ExitCode.USAGE),
        (["{one}", "{two}", "--thresholds", "ours.yml"], ExitCode.USAGE),
        (["{one}", "nowhere"], ExitCode.ERROR),
    ],
)
def test_what_cannot_be_compared_is_one_clear_line(
    runs: Path, more: list[str], code: ExitCode, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = keep(samples.healthy(), runs), keep(samples.demo(), runs)
    assert cli.main(["report", "compare", *(word.format(one=one, two=two) for word in more)]) == code
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 2
    assert "\n  → " in complaint
