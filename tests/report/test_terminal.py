"""The summary at 3 a.m.: culprit, number, limit, action, unknown nodes and the next command."""

from __future__ import annotations

import dataclasses
import html as html_module
import re
import shlex
from pathlib import Path

import pytest

from provision import report
from provision.checks.check import Measurement
from provision.checks.health import CheckResult
from provision.checks.judge import Finding, Verdict, by_threshold
from provision.errors import ExitCode
from provision.report.causes import causes, overall
from provision.report.context import Context
from provision.report.diff import diff
from provision.report.diff_text import verdict_lines
from provision.report.terminal import summary
from provision.validate.validation import exit_code
from tests.support import samples

ANSI = re.compile(r"\x1b\[[\d;]*m")


def flat(text: str) -> str:
    """Return the text without line breaks, because wrapping is tested elsewhere."""
    return re.sub(r"\s+", " ", text)


def test_the_demos_two_faults_are_named_with_serial_number_limit_and_action() -> None:
    told = summary(samples.demo())
    assert told.splitlines()[0] == "1 of 3 nodes unhealthy, 2 healthy"
    assert (
        "✗ FAIL gpu_burn: gpu5 computed 12843 wrong results in 60 s → replace part "
        f"gpu-03 gpu5 (serial {samples.BAD_GPU_SERIAL}, 00000000:68:00.0): measured 12843, limit = 0"
    ) in flat(told)
    assert (
        "between gpu2 and gpu6 is 61.3 GB/s (limit ≥ 335 GB/s) → investigate "
        "gpu-03 gpu2-gpu6 (gpu2 serial 1652823055002, 00000000:38:00.0; gpu6 serial 1652823055006,"
    ) in flat(told)
    assert "12 of 12 checks measured" in told
    assert "next: gpuprov validate /srv/fleet/inventory.yml --nodes gpu-03\n" in told
    assert "gpu-01" not in told
    assert "\x1b" not in told


def test_a_healthy_fleet_is_told_in_a_few_lines() -> None:
    told = summary(samples.healthy())
    assert told.startswith("all 3 nodes healthy\n")
    assert "next: gpuprov drift /srv/fleet/inventory.yml\n" in told
    assert len(told.splitlines()) < 8
    assert not any(word in told for word in ("FAIL", "ERROR", "WARN", "SKIP"))


def test_metrics_without_a_limit_are_one_line_for_a_node() -> None:
    def unlimited(check: str, *metrics: str) -> CheckResult:
        found = [Measurement(metric, 48.5, "GB/s") for metric in metrics]
        return samples.result(
            check, [by_threshold(check, m.metric, m, None, action="none") for m in found], found, 1.0
        )

    checks = (unlimited("p2p_bandwidth", "h2d", "d2h"), unlimited("nccl_alltoall", "busbw_8gpu"))
    told = flat(summary(samples.fleet(samples.node("gpu-01", checks), samples.node("gpu-02", checks))))
    line = (
        "! WARN 2 nodes: no limits are known for this GPU, give them with --thresholds FILE: 3 metrics, "
        "p2p_bandwidth h2d d2h, nccl_alltoall busbw_8gpu → fix configuration gpu-[01-02]"
    )
    assert line in told
    assert told.count("WARN") == 1
    alone = flat(summary(samples.fleet(samples.node("gpu-01", checks[1:]))))
    assert "nccl_alltoall: busbw_8gpu is 48.5 GB/s, but no limit is known for this GPU" in alone


def test_what_does_not_apply_to_a_node_is_no_warning() -> None:
    skipped, warned = (
        samples.result("disk_speed", [Finding("disk_speed", verdict, "node", "as it is")], [], 1.0)
        for verdict in (Verdict.SKIP, Verdict.WARN)
    )
    some, other = samples.node("gpu-01", (skipped,)), samples.node("gpu-02", (warned,))
    assert "next: gpuprov drift /srv/fleet/inventory.yml\n" in summary(
        samples.fleet(some, asked=("disk_speed",))
    )
    told = flat(summary(samples.fleet(some, other, asked=("disk_speed",))))
    assert (
        "next: gpuprov validate /srv/fleet/inventory.yml --nodes gpu-02 after looking at the warnings" in told
    )


def test_forty_nodes_with_one_cause_are_one_line_and_one_range() -> None:
    fabric = Finding(
        "gpu_inventory", Verdict.FAIL, "node", "fabric manager is not running", action="fix configuration"
    )
    nodes = [
        samples.node(f"gpu-{i:02d}", (samples.result("gpu_inventory", [fabric], [], 1.0),))
        for i in range(1, 41)
    ]
    told = summary(samples.fleet(*nodes, asked=("gpu_inventory",)))
    assert "40 nodes: gpu_inventory: fabric manager is not running → fix configuration" in told
    assert "      gpu-[01-40]\n" in told
    assert (
        f"next: gpuprov plan /srv/fleet/inventory.yml --nodes {','.join(node.node for node in nodes)}\n"
        in told
    )
    assert len(told.splitlines()) < 14


def test_many_culprits_with_their_own_numbers_are_folded_with_examples() -> None:
    nodes = [
        samples.node(
            f"gpu-{i:02d}",
            (
                samples.result(
                    "gpu_burn",
                    [dataclasses.replace(samples.BURN, message=f"gpu5 computed {i} wrong results", value=i)],
                    [],
                    1.0,
                ),
            ),
            i,
        )
        for i in range(1, 10)
    ]
    told = flat(summary(samples.fleet(*nodes, asked=("gpu_burn",))))
    assert "9 nodes: gpu_burn: errors (limit = 0) → replace part gpu-[01-09]" in told
    assert told.count("for example") == 3
    assert "for example gpu-01 gpu5 (serial " in told
    assert "gpu5 computed 1 wrong results" in told


def test_what_was_not_measured_is_as_loud_as_a_failure() -> None:
    told = summary(samples.unmeasured())
    assert told.startswith("5 of 7 nodes not proven (could not be measured), 1 with warnings, 1 healthy\n")
    assert "16 of 27 checks measured, 1 skipped (not applicable) · 2 nodes unreachable" in told
    assert "\nNot measured\n" in told
    assert "? ERROR 2 nodes: unreachable: ssh: connect to 10.0.3.44 port 22: timed out" in flat(told)
    assert "? ERROR gpu_burn: gpu_burn did not end within 180 s and was killed → reboot gpu-01" in flat(told)
    assert "? ERROR did not run: nccl_all_reduce → run again gpu-03" in flat(told)
    assert "- SKIP nccl_all_reduce: one GPU: there is nobody to reduce with gpu-04" in flat(told)
    assert "then: gpuprov drift /srv/fleet/inventory.yml --nodes gpu-07,gpu-08" in told


def test_worst_comes_first() -> None:
    fleet = samples.fleet(*samples.unmeasured().nodes, *samples.demo().nodes[2:])
    told = summary(fleet)
    places = [told.index(f"\n{heading}") for heading in ("Failed", "Not measured", "Warnings", "Skipped")]
    assert places == sorted(places)
    badness = [cause.verdict.badness for cause in causes(fleet)]
    assert badness == sorted(badness, reverse=True)


def test_an_interrupted_run_says_so_and_how_to_go_on() -> None:
    told = summary(samples.interrupted())
    assert told.splitlines()[0].endswith("the run was interrupted")
    assert "next: gpuprov validate --resume 20260504T100000Z-validate\n" in told


def test_an_empty_report_is_not_healthy() -> None:
    told = summary(samples.nothing())
    assert told.startswith("nothing was measured")
    assert "healthy" not in told


def test_colour_changes_nothing_but_colour() -> None:
    for name in ("demo", "unmeasured", "interrupted"):
        fleet = getattr(samples, name)()
        coloured = summary(fleet, color=True)
        assert "\x1b[" in coloured
        assert ANSI.sub("", coloured) == summary(fleet)


@pytest.mark.parametrize("width", [60, 100, 160])
def test_lines_keep_to_the_width(width: int) -> None:
    for name in ("demo", "unmeasured", "large"):
        # The headline stays one line for grep, and a command stays one line for copying.
        for line in summary(getattr(samples, name)(), width=width).splitlines()[1:]:
            assert len(line) <= width or line.startswith(("next: ", "then: ")), line


def test_a_nodes_text_cannot_reach_the_terminal() -> None:
    told = summary(samples.hostile())
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", told)
    assert len(told) < 20_000
    assert "next: gpuprov validate /srv/fleet/inventory.yml --nodes all" in told


def test_a_command_to_type_is_quoted() -> None:
    bad = dataclasses.replace(samples.demo().nodes[2], node="gpu 3;reboot")
    assert "next: gpuprov validate /srv/fleet/inventory.yml --nodes 'gpu 3;reboot'\n" in summary(
        samples.fleet(bad)
    )


@pytest.mark.parametrize(
    ("value", "limit", "message", "said"),
    [
        (172.105, "≥ 335 GB/s", "write is 172.105 GB/s (limit ≥ 335 GB/s)", "gpu-01 gpu0"),
        (23, "≤ 10", "23 remapped rows", "gpu-01 gpu0: measured 23, limit ≤ 10"),
        (2, "", "Xid 119, 2 times", "gpu-01 gpu0"),
        ("Yes", "", "a row remap failed", "gpu-01 gpu0"),
        (7, "", "too hot", "gpu-01 gpu0: measured 7"),
    ],
)
def test_no_number_is_said_twice_and_none_is_left_out(
    value: float | str, limit: str, message: str, said: str
) -> None:
    finding = Finding("gpu_burn", Verdict.FAIL, "gpu0", message, "metric", value, limit=limit)
    node = dataclasses.replace(
        samples.node("gpu-01", (samples.result("gpu_burn", [finding], [], 1.0),)), gpus=()
    )
    assert f"      {said}\n" in summary(samples.fleet(node, asked=("gpu_burn",)))


def test_changes_names_nodes_whose_verdict_moved() -> None:
    before, after = samples.healthy(), samples.demo()
    assert verdict_lines(diff(before, after).verdicts) == ["gpu-03: pass → fail"]
    assert verdict_lines(diff(after, after).verdicts) == []
    assert verdict_lines(diff(samples.nothing(), before).verdicts) == [
        "gpu-[01-03]: not in the report → pass"
    ]


def test_what_lies_between_nodes_is_told_and_proved_by_measuring_pairs_again() -> None:
    fleet = samples.between()
    told = summary(fleet)
    assert told.splitlines()[0] == "2 of 3 nodes with warnings, 1 healthy; 1 failure between nodes"
    assert "✗ FAIL pair_bandwidth: link gpu-01-gpu-03/rail mlx5_2 is slow" in flat(told)
    assert "! WARN 2 nodes: pair_bandwidth: it is at link gpu-01-gpu-03/rail mlx5_2" in flat(told)
    assert "\n      gpu-[01,03]\n" in told
    assert "next: gpuprov validate /srv/fleet/inventory.yml --checks pair_bandwidth\n" in told
    assert "then:" not in told
    assert "--nodes" not in told
    assert overall(fleet) is Verdict.FAIL
    assert exit_code(fleet) is ExitCode.UNHEALTHY
    alone = dataclasses.replace(samples.healthy(), fabric=(samples.LINK,))
    assert summary(alone).startswith("all 3 nodes healthy; 1 failure between nodes\n")
    assert "--nodes" not in summary(alone)


def test_a_node_called_fabric_is_a_node() -> None:
    burnt = samples.node("fabric", samples.checks(3, burn=5))
    told = summary(dataclasses.replace(samples.fleet(burnt), fabric=(samples.LINK,)))
    assert "next: gpuprov validate /srv/fleet/inventory.yml --nodes fabric\n" in told


def test_commands_for_many_nodes_name_a_file_that_the_run_wrote(tmp_path: Path) -> None:
    """Of 1,000 nodes 40 are bad; the other 960 are in use and stay so."""
    fabric = Finding("gpu_inventory", Verdict.FAIL, "node", "stopped", action="fix configuration")
    bad = [f"gpu-{i:04d}" for i in range(1, 1001, 25)]
    fleet = samples.fleet(
        *(
            samples.node(
                f"gpu-{i:04d}",
                (samples.result("gpu_inventory", [fabric] if f"gpu-{i:04d}" in bad else [], [], 1.0),),
            )
            for i in range(1, 1001)
        ),
        asked=("gpu_inventory",),
    )
    folder = tmp_path / "it's here"
    report.write_all(fleet, folder, ["html", "md"], Context())
    terminal = summary(fleet, context=Context(folder=str(folder)))
    texts = [
        terminal,
        (folder / "report.md").read_text(),
        html_module.unescape((folder / "report.html").read_text()),
    ]
    for command, name in (("plan", "nodes.misconfigured"), ("validate", "nodes.fail")):
        typed = f"gpuprov {command} /srv/fleet/inventory.yml --nodes {shlex.quote(f'@{folder / name}')}"
        assert all(typed in text for text in texts)
        assert shlex.split(typed)[-1] == f"@{folder}/{name}"
        assert (folder / name).read_text().splitlines() == bad
    assert not any("--nodes all" in text for text in texts)
