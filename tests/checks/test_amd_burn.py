"""Tests of gpu_burn on AMD GPUs, with output in the forms of RVS and amd-smi.

RVS: gst.so/src/gst_worker.cpp, src/rvsliblogger.cpp (the time), src/rvs_util.cpp (the list) and
rvs/src/rvsexec_do_yaml.cpp (the table) of ROCm/ROCmValidationSuite at 21584e1; the list and the lines of an
MI300X with ROCm 6.2.2 are in AMD's guide to system validation.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from provision.checks.check import Output, Raw
from provision.checks.judge import Finding, Verdict
from provision.checks.judging import node_judge
from provision.checks.vendors.amd import gpu_burn, smi, telemetry
from tests.checks.amd_node import ADDRESSES, Said, documents, facts, node_of, output, said

NUMBERS = (28851, 23018, 29122, 22683, 53458, 63883, 53667, 2080)
INVESTIGATE, REPLACE, RESET, CYCLE = "investigate", "replace part", "reset GPU", "power-cycle"
CONFIGURE, AGAIN, RESEAT = "fix configuration", "run again", "reseat or check cable"
BATCHES = 14
# Summary that RVS prints at its end since 1.5, with coloured verdicts.
TABLE = (
    "+=====================================================================+\n"
    "|                 ROCm Validation Suite (RVS) Summary                 |\n"
    "\r| GPU Name - GPU ID                |                                  |\n"
    "| gpuprov-burn                     | gst            | \x1b[32mPASS          \x1b[0m  |\n"
)


def line(moment: float, number: int, words: str) -> str:
    seconds, rest = int(moment), round(moment % 1 * 1e6)
    return f"[RESULT] [{seconds:6d}.{rest:<6d}] [gpuprov-burn] [GPU:: {number:5d}] {words}\n"


def burned(
    rates: Mapping[int, float] | None = None,
    wrong: Sequence[int] = (),
    ended: Mapping[int, str] | None = None,
    silent: Sequence[int] = (),
    seconds: float = 60.0,
    batches: int = BATCHES,
    numbers: Sequence[int] = NUMBERS,
) -> str:
    """Return RVS's output for a burn. `rates`: by GPU, in Gflop/s; `wrong`: GPUs with wrong results;
    `ended`: GPUs with a dead worker, and the reason; `silent`: GPUs without a line."""
    text = "[RESULT] [ 54433.732433] Action name :gpuprov-burn\n[RESULT] [ 54433.733858] Module name :gst\n"
    for index, number in enumerate(numbers):
        if index in silent:
            continue
        rate = (rates or {}).get(index, 690_000 + 1000 * (index % 3))
        text += line(54434.05, number, "Start of GPU ramp up")
        text += line(54437.000123, number, "GFLOPS 121000")  # a rate of the ramp, to be ignored
        text += line(54441.2, number, "End of GPU ramp up")
        if ended and index in ended:
            text += f"[ERROR ] [ 54450.5     ] [gpuprov-burn] gst {number} {ended[index]}\n"
            continue
        for batch in range(batches):
            moment = 54441.2 + seconds * (batch + 1) / batches
            text += line(moment, number, f"GFLOPS {int(rate + batch % 2 * 500)}")
            if index in wrong and batch:
                text += line(moment + 0.3, number, "self-check error 0.0000131072")
        words = f"GFLOPS {int(rate + 500)} Target GFLOPS: 0 met: TRUE"
        text += line(54441.2 + seconds + 0.5, number, words)
    return text


def listed(addresses: Sequence[str] = ADDRESSES, version: str = "1.1.0") -> str:
    rows = [
        f"{at} - GPU[{index + 2:2d} - {NUMBERS[index]:5d}] AMD Instinct MI300X (Device 29857)\n"
        for index, at in enumerate(addresses)
    ]
    return f"\nROCm Validation Suite (version {version})\n\nSupported GPUs available:\n\n{''.join(rows)}"


Change = Callable[[list[dict[str, Any]], int], None]  # the GPUs of a sample, and its number


def nothing(gpus: list[dict[str, Any]], number: int) -> None:
    """Leave the sample unchanged."""


def sampled(change: Change = nothing, samples: int = 20) -> str:
    """Return the sampler's output: amd-smi's document of busy GPUs, one line per sample with its time."""
    text = ""
    for number in range(samples):
        gpus = copy.deepcopy(documents()["metric"]["gpu_data"])
        for index, gpu in enumerate(gpus):
            gpu["usage"]["gfx_activity"]["value"] = 100
            gpu["temperature"]["hotspot"]["value"] = 74 + index % 3
            gpu["power"] = {"socket_power": {"value": 748, "unit": "W"}}
            gpu["clock"] = {f"gfx_{n}": {"clk": {"value": 1420 + n, "unit": "MHz"}} for n in range(8)}
            gpu["ecc"] = {"total_uncorrectable_count": 0}
            gpu["throttle"]["ppt_violation_status"] = "ACTIVE"  # a busy GPU is at its power limit
        change(gpus, number)
        text += f"{1732600000 + 3 * number} {' '.join(json.dumps({'gpu_data': gpus}, indent=4).split())}\n"
    return text


def static(addresses: Sequence[str] = ADDRESSES, watts: int = 750) -> str:
    bus = {"max_pcie_width": 16, "max_pcie_speed": {"value": 32, "unit": "GT/s"}}
    names = {"socket_power_limit": watts, "max_power_limit": 750}
    limit = {"ppt0": {name: {"value": value, "unit": "W"} for name, value in names.items()}}
    gpus = [{"gpu": index, "bus": {"bdf": at, **bus}, "limit": limit} for index, at in enumerate(addresses)]
    return json.dumps({"gpu_data": gpus}, indent=4)


def judged(
    text: str | None = None,
    *,
    known: Mapping[str, Any] | None = None,
    declared: Mapping[str, Any] | None = None,
    seconds: int = 60,
    **others: str | Output,
) -> list[Finding]:
    """Return gpu_burn's findings on RVS's `text`; `others`: texts of other commands, by name."""
    node = node_of(known or facts(), **(declared or {}))
    commands = node_judge.commands_for("gpu_burn", node.check_node, {"burn_seconds": seconds})
    texts: dict[str, str | Output] = {
        "rvs_gpus": listed(), "amd_smi_before": static(), "rvs_config": "", "telemetry": sampled(),
        "gpu_burn": burned() if text is None else text, "amd_smi_after": static(), **others,
    }  # fmt: skip
    outputs = []
    for command in commands:
        given = texts[command.name]
        if isinstance(given, str):
            given = Output(command.name, command.argv, 0, given, "", 75.0, beside=command.beside)
        outputs.append(replace(given, name=command.name, argv=command.argv))
    raw = Raw("gpu-01", "gpu_burn", tuple(outputs))
    return list(node_judge.judge_check(node, raw, node.limits()).findings)


def test_healthy_gpus_pass() -> None:
    findings = judged()
    assert [finding.verdict for finding in findings] == [Verdict.PASS]
    assert findings[0].message == "8 GPUs computed correctly for 60.5 s at 691500 Gflop/s (median)"


def test_the_tables_of_newer_releases_say_nothing() -> None:
    assert [finding.verdict for finding in judged(burned() + TABLE)] == [Verdict.PASS]


SHORT = burned(seconds=30.0)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (burned(wrong=[3]), {("fail", "gpu3", "errors", REPLACE)}),
        (burned(wrong=[3], rates={3: 400_000}), {("fail", "gpu3", "errors", REPLACE)}),
        (burned(rates={3: 590_000}), {("warn", "gpu3", "rate", INVESTIGATE)}),
        (burned(rates={3: 480_000}), {("fail", "gpu3", "peak", INVESTIGATE)}),
        (burned(ended={3: "blas error !!!"}), {("error", "gpu3", "", INVESTIGATE)}),
        (burned(silent=[3]), {("error", "gpu3", "", INVESTIGATE)}),
        (SHORT, {("error", "node", "", INVESTIGATE)}),
        (burned(batches=1), {("warn", "node", "rate", AGAIN)}),
        ("[RESULT] [ 54433.732433] Action name :gpuprov-burn\n", {("error", "node", "", AGAIN)}),
        (burned()[:-60], {("error", "node", "", AGAIN)}),
        (burned().replace("GFLOPS 6", "TFLOPS 6"), {("error", "node", "", AGAIN)}),
        (burned(numbers=(*NUMBERS[:7], 999)), {("error", "node", "", AGAIN)}),
    ],
)
def test_what_rvs_says(text: str, found: Said) -> None:
    assert said(judged(text)) == found


def test_wrong_results_say_how_many() -> None:
    (finding,) = [one for one in judged(burned(wrong=[3])) if one.verdict is Verdict.FAIL]
    assert "13 differed from the one before" in finding.message


def test_a_gpu_that_rvs_does_not_list_was_not_tested() -> None:
    findings = judged(burned(numbers=NUMBERS[:7]), rvs_gpus=listed(ADDRESSES[:7]))
    assert said(findings) == {("error", "node", "", INVESTIGATE)}
    assert findings[0].message == "RVS tested 7 GPUs, the node has 8"


def test_amds_own_limit_is_of_the_best_batch_of_each() -> None:
    slow = dict.fromkeys(range(8), 545_000)
    found = said(judged(burned(rates=slow)))
    assert found == {("fail", f"gpu{index}", "peak", INVESTIGATE) for index in range(8)}
    finding = judged(burned(rates=slow))[0]
    assert finding.limit == "≥ 551950 Gflop/s"
    assert "MI300X/gst_single.conf" in finding.source


def test_amds_own_limit_is_not_for_gpus_whose_power_was_lowered() -> None:
    slow = dict.fromkeys(range(8), 470_000)
    findings = judged(burned(rates=slow), amd_smi_before=static(watts=400))
    assert said(findings) == set()
    assert [one.verdict for one in findings] == [Verdict.PASS, Verdict.SKIP]
    assert findings[1].message == ("8 GPUs may draw 400 W: AMD's limit of ≥ 551950 Gflop/s is for full power")
    found = judged(burned(rates={**slow, 3: 360_000}), amd_smi_before=static(watts=400))
    assert said(found) == {("fail", "gpu3", "rate", INVESTIGATE)}, "the others are compared with"


@pytest.mark.parametrize(
    ("version", "compares"),
    [("1.1.0", True), ("1.3.0", True), ("0.0.60202", True), ("0.0.60105", False), ("1.0.0", False)],
)
def test_an_rvs_that_does_not_compare_results_is_said_to_be_one(version: str, compares: bool) -> None:
    found = said(judged(rvs_gpus=listed(version=version)))
    assert found == (set() if compares else {("warn", "node", "compared", CONFIGURE)})


def test_programs_that_are_not_there_or_hang() -> None:
    absent = output("rvs", "", rc=None, not_started="/opt/rocm/bin/rvs is not installed")
    findings = judged(rvs_gpus=absent, gpu_burn=absent)
    assert said(findings) == {("error", "node", "", CONFIGURE)}
    assert "rvs did not start" in findings[0].message
    hung = output("rvs", "", rc=None, timed_out=True)
    assert said(judged(gpu_burn=hung)) == {("error", "node", "", INVESTIGATE)}
    no_smi = output("amd-smi", "", rc=None, not_started="amd-smi is not installed")
    findings = judged(
        amd_smi_before=no_smi, amd_smi_after=no_smi, telemetry="1732600000 sh: amd-smi: not found\n"
    )
    assert {verdict for verdict, *_ in said(findings)} == {"error"}


# --- what amd-smi sampled during the burn


def on_gpu3(path: str, value: Any, since: int = 0, until: int = 99) -> Change:
    def change(gpus: list[dict[str, Any]], number: int) -> None:
        place: Any = gpus[3]
        *folders, name = path.split(".")
        for folder in folders:
            place = place[folder]
        if since <= number < until:
            place[name] = value(number) if callable(value) else value

    return change


PROCHOT, THERMAL = "throttle.prochot_violation_status", "throttle.socket_thermal_violation_status"


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (on_gpu3(PROCHOT, "ACTIVE", since=6), {("fail", "gpu3", "throttled", INVESTIGATE)}),
        (on_gpu3(THERMAL, "ACTIVE", since=6), {("warn", "gpu3", "throttled", INVESTIGATE)}),
        (on_gpu3(PROCHOT, "ACTIVE", until=2), set()),  # only briefly, at the start
        (on_gpu3("temperature.hotspot.value", 95), {("warn", "gpu3", "load_temperature", INVESTIGATE)}),
        (on_gpu3("temperature.hotspot.value", 82), set()),
        (on_gpu3("pcie.replay_count", lambda n: 5 + 40 * n), {("fail", "gpu3", "load_replays", RESEAT)}),
        (on_gpu3("pcie.replay_count", 40_000), set()),  # since manufacture
        (on_gpu3("pcie.width", 8, since=1), {("fail", "gpu3", "load_pcie_width", RESEAT)}),
        (on_gpu3("pcie.speed.value", 8), {("fail", "gpu3", "load_pcie_gen", RESEAT)}),
        (
            on_gpu3("ecc.total_uncorrectable_count", 2, since=12),
            {("fail", "gpu3", "load_ecc_uncorrectable", RESET)},
        ),
        (on_gpu3("ecc.total_uncorrectable_count", 2), set()),  # earlier errors are gpu_inventory's business
    ],
)
def test_what_is_sampled_beside_the_load(change: Change, found: Said) -> None:
    assert said(judged(telemetry=sampled(change))) == found


def test_a_gpu_that_is_lost_under_load_is_named_with_its_serial_number() -> None:
    def gone(gpus: list[dict[str, Any]], number: int) -> None:
        if number > 8:  # the GPUs behind it move up
            del gpus[2]
            for index, gpu in enumerate(gpus):
                gpu["gpu"] = index
                gpu["pcie"]["replay_count"] += 100_000 * (index > 1)

    others = [at for at in ADDRESSES if at != ADDRESSES[2]]
    findings = judged(
        burned(ended={2: "blas error !!!"}), telemetry=sampled(gone), amd_smi_after=static(others)
    )
    assert said(findings) == {("error", "gpu2", "", INVESTIGATE), ("fail", "gpu2", "lost", CYCLE)}
    (lost,) = [finding for finding in findings if finding.metric == "lost"]
    assert "serial 692, PCI 0000:46:00" in lost.message


@pytest.mark.parametrize(("samples", "words"), [((9, 10, 11), "in 3 samples"), ((9,), "in 1 sample under")])
def test_a_gpu_that_is_listed_again_after_the_load_was_lost_for_a_while(
    samples: tuple[int, ...], words: str
) -> None:
    def gone(gpus: list[dict[str, Any]], number: int) -> None:
        if number in samples:
            del gpus[2]
            for index, gpu in enumerate(gpus):
                gpu["gpu"] = index

    findings = judged(telemetry=sampled(gone))
    assert said(findings) == {("fail", "node", "lost", INVESTIGATE)}
    assert any(words in finding.message for finding in findings)


def test_a_burn_without_a_result_names_the_gpu_that_is_gone() -> None:
    others = [at for at in ADDRESSES if at != ADDRESSES[2]]
    findings = judged("", amd_smi_after=static(others))
    assert "rvs printed no result" in findings[0].message
    assert "gpu2 no longer answers" in findings[0].message


@pytest.mark.parametrize(
    "after", [static().replace('"bdf"', '"pci_bdf"'), static(ADDRESSES[:3]), json.dumps({"gpu_data": []})]
)
def test_an_answer_that_is_not_understood_blames_no_gpu(after: str) -> None:
    assert said(judged(amd_smi_after=after)) == {("error", "node", "", INVESTIGATE)}
    findings = judged(amd_smi_before=static().replace('"bdf"', '"pci_bdf"'), amd_smi_after=after)
    assert {(finding.verdict, finding.device) for finding in findings} == {(Verdict.ERROR, "node")}


def test_a_sampler_that_ended_early_has_not_seen_the_load() -> None:
    findings = judged(telemetry=sampled(samples=5))
    assert said(findings) == {("error", "node", "", INVESTIGATE)}
    assert "sampled the GPUs for 12 s of 75 s" in findings[0].message


def test_lines_that_are_cut_are_left_out() -> None:
    text = sampled()
    cut = text[:30_000] + "\n[gpuprov: 40000 bytes left out here]\n" + text[70_000:-900]
    assert said(judged(telemetry=cut)) == set()


# --- the command


def test_the_configuration_is_one_that_rvs_understands() -> None:
    node = node_of(facts(), amd_validation_tools_rvs_path="/opt/rocm-7.2.3/bin/rvs")
    by_name = {one.name: one for one in gpu_burn.commands(node.check_node, {"burn_seconds": 90})}
    *_, config, path = by_name["rvs_config"].argv
    (action,) = yaml.safe_load(config)["actions"]
    assert by_name["gpu_burn"].argv == ("/opt/rocm-7.2.3/bin/rvs", "-c", path)
    assert (action["module"], action["duration"], action["hot_calls"]) == ("gst", 90_000, 7000)
    assert action["parallel"] is action["self_check"] is True
    assert "blas_source" not in action, "its comparison reads what it never set with another than rocBLAS"
    assert by_name["telemetry"].beside == "gpu_burn"
    assert by_name["gpu_burn"].load == 90 < by_name["gpu_burn"].deadline


def test_the_sampler_prints_a_line_for_each_document(tmp_path: Path) -> None:
    program = tmp_path / "amd-smi"
    program.write_text(
        "#!/bin/sh\ncat <<'END'\n" + json.dumps({"gpu_data": [{"gpu": 0, "x": "a\nb"}]}, indent=4) + "\nEND\n"
    )
    program.chmod(0o755)
    argv = telemetry.command("gpu_burn", 60, 90.0).argv
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with subprocess.Popen(
        [*argv[:-1], "0.05"], env=environment, stdout=subprocess.PIPE, text=True
    ) as sampler:
        assert sampler.stdout is not None
        lines = [sampler.stdout.readline() for _ in range(3)]
        sampler.terminate()
    for one in lines:
        moment, _, document = one.partition(" ")
        assert moment.isdigit()
        assert smi.sampled(document) == [{"gpu": 0, "x": "a\nb"}]


def test_partitioned_gpus_are_not_burned() -> None:
    known = facts()
    for device in known["amdgpu.devices"]:
        device["compute_partition"] = "CPX"
    findings = judged(known=known)
    assert [(one.verdict, one.metric) for one in findings] == [(Verdict.SKIP, "partition")]
    assert "(CPX/NPS1)" in findings[0].message


def test_no_damage_to_what_was_printed_breaks_the_check_or_acquits_a_gpu() -> None:
    random = Random(20261126)  # noqa: S311 - nothing here is a secret
    wrong = burned(wrong=[3])

    def damaged(text: str) -> str:
        at, what = random.randrange(len(text)), random.choice(("cut", "drop", "double", "change"))
        end = min(len(text), at + random.choice((1, 40, 400)))
        if what == "cut":
            return text[:at]
        if what == "drop":
            return text[:at] + text[end:]
        return (
            text[:end] + text[at:]
            if what == "double"
            else text[:at] + random.choice('9x"]{ \n') + text[at + 1 :]
        )

    for _ in range(80):
        texts = {
            "rvs_gpus": listed(), "amd_smi_before": static(), "amd_smi_after": static(),
            "telemetry": sampled(samples=6),
        }  # fmt: skip
        name = random.choice([*texts, "gpu_burn"])
        shown: dict[str, Any] = {one: damaged(text) if one == name else text for one, text in texts.items()}
        findings = judged(damaged(wrong) if name == "gpu_burn" else wrong, **shown)
        assert not [finding for finding in findings if "gpuprov failed" in finding.message], (name, findings)
        assert {finding.verdict for finding in findings} & {Verdict.FAIL, Verdict.ERROR}, (name, findings)
