"""Samples of nvidia-smi under load: throttling with its duration, PCIe, heat, growing counters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.checks.check import CheckNode, Measurement, Output
from provision.checks.gpu import gpu_burn, telemetry, telemetry_rules
from provision.checks.judge import Finding, Verdict
from provision.errors import ParseError
from tests.support.checks import flagged, make_node, sample

HEADER = ", ".join(
    name + {"utilization.gpu": " [%]", "power.draw": " [W]", "clocks.current.sm": " [MHz]"}.get(name, "")
    for name in telemetry.FIELDS
)
BUSES = [f"0000:{bus}:00.0" for bus in ("1b", "43", "52", "61", "9d", "c3", "d1", "df")]
ARGV = telemetry.command("gpu_burn", 60, 150).argv


def row(second: int, gpu: int, **other: Any) -> str:
    cells = {
        "timestamp": f"2025/11/21 06:{second // 60:02d}:{second % 60:02d}.250",
        "index": gpu,
        "utilization.gpu": 100,
        "temperature.gpu": 62 + gpu % 3,
        "power.draw": "682.40",
        "clocks.current.sm": 1830,
        "pcie.link.gen.current": 5,
        "pcie.link.gen.max": 5,
        "pcie.link.width.current": 16,
        "pcie.link.width.max": 16,
        "clocks_event_reasons.active": "0x0000000000000004",
    }
    cells.update({name.replace("__", "."): value for name, value in other.items()})
    return ", ".join(str(cells[name]) for name in telemetry.FIELDS)


Change = Callable[[int, int], dict[str, Any] | None]


def sampled(change: Change = lambda _second, _gpu: {}, *, gpus: int = 8, seconds: int = 60) -> str:
    """Return the samples of a burn; `change`: values of one GPU at one second, None if it is missing."""
    rows = [
        row(second, gpu, **different)
        for second in range(0, seconds, 2)
        for gpu in range(gpus)
        if (different := change(second, gpu)) is not None
    ]
    return "\n".join([HEADER, *rows]) + "\n"


def output(text: str, **more: Any) -> Output:
    return Output(telemetry.NAME, ARGV, -15, text, "", 61.0, beside="gpu_burn", **more)


def burned(*beside: Output, **more: Any) -> list[Finding]:
    """Return the findings of a healthy gpu_burn with these samples."""

    node = make_node(gpuprov_pci_addresses=BUSES, **more)
    argv = ("/usr/bin/gpu_burn", "-tc", "60")
    burn = Output("gpu_burn", argv, 0, sample("gpu_burn/healthy.txt"), "", 61.0)
    measurements = gpu_burn.parse(node, {one.name: one for one in (burn, *beside)})
    return gpu_burn.judge(node, measurements, {})


def told(findings: Sequence[Finding]) -> set[tuple[Any, ...]]:
    return set(flagged(findings))


def values(found: Sequence[Measurement], device: str) -> dict[str, Any]:
    return {m.metric: m.value for m in found if m.device == device}


def test_it_runs_beside_the_burn_and_a_long_one_is_sampled_less() -> None:
    burn, sampler, counters = gpu_burn.commands(CheckNode("n", {"gpu": {"count": 8, "sku": None}}, {}), {})
    assert (burn.beside, sampler.beside, counters.beside) == ("", "gpu_burn", "gpu_burn")
    assert sampler.argv[-2:] == ("-lms", "2000")
    hours = telemetry.command("gpu_burn", 6 * 3600, 6 * 3600 + 90)
    assert 8 * 130 * 6 * 3600 / (int(hours.argv[-1]) / 1000) < 2 * 1024 * 1024, "all of it is kept"


def test_measurements() -> None:
    found = telemetry.parse(output(sampled()), {})
    assert values(found, "gpu3") == {
        "samples": 30,
        "load_temperature": 62,
        "load_power": 682.4,
        "load_clock": 1830,
        "load_pcie_gen": 5,
        "load_pcie_gen_max": 5,
        "load_pcie_width": 16,
        "load_pcie_width_max": 16,
        "load_reasons": 30,
    }


def test_healthy_gpus_pass_with_their_rate() -> None:
    findings = burned(output(sampled()))
    assert [f.verdict for f in findings] == [Verdict.PASS]
    assert findings[0].metric == "rate"


@pytest.mark.parametrize(
    ("bits", "verdict", "words"),
    [
        (0x48, "fail", "hardware thermal slowdown"),
        (0x88, "fail", "power brake"),
        (0x8, "fail", "hardware slowdown"),
        (0x20, "warn", "software thermal slowdown"),
    ],
)
def test_lasting_throttling_names_its_reason_and_share(bits: int, verdict: str, words: str) -> None:
    findings = burned(
        output(
            sampled(
                lambda s, g: {"clocks_event_reasons__active": f"0x{bits:016X}"} if g == 2 and s >= 30 else {}
            )
        )
    )
    assert told(findings) == {(verdict, "gpu2", "throttled", "investigate")}
    assert f"{words} in 50% of the samples" in findings[0].message


def test_another_reason_beside_a_hardware_slowdown_makes_it_no_warning() -> None:
    both = sampled(lambda _s, g: {"clocks_event_reasons__active": "0x28"} if g == 2 else {})
    assert told(burned(output(both))) == {("fail", "gpu2", "throttled", "investigate")}


def test_a_lost_gpu_is_lost_whatever_it_prints_afterwards() -> None:
    def dead(second: int, gpu: int) -> dict[str, Any]:
        error = "[GPU is lost]" if second == 40 else "[GPU requires reset]"
        readings = ("utilization__gpu", "temperature__gpu", "power__draw", "clocks__current__sm")
        return dict.fromkeys(readings, error) if gpu == 2 and second >= 38 else {}

    assert told(burned(output(sampled(dead)))) == {("fail", "gpu2", "lost", "power-cycle")}


def test_a_reading_that_is_not_permitted_is_not_measured_whatever_follows() -> None:
    errors = {10: "[Insufficient Permissions]", 20: "[Unknown Error]"}
    refused = sampled(lambda s, g: {"temperature__gpu": errors[s]} if g == 2 and s in errors else {})
    assert told(burned(output(refused))) == {("error", "gpu2", "", "fix configuration")}


@pytest.mark.parametrize(
    "healthy",
    [
        lambda _s, _g: {"clocks_event_reasons__active": "0x0000000000000004"},  # the power cap, throughout
        lambda s, g: {"clocks_event_reasons__active": "0x0000000000000088"} if g == 2 and s < 4 else {},
        lambda _s, _g: {"clocks_event_reasons__active": "[N/A]"},
        lambda s, _g: {"pcie__link__gen__current": 1, "utilization__gpu": 0} if s > 50 else {},  # at the end
        lambda _s, _g: {"pcie__link__width__current": 8, "pcie__link__width__max": 8},  # wired with 8 lanes
        lambda _s, g: {"temperature__gpu": 60 + g},  # the warm end of the airflow
        lambda _s, _g: {"power__draw": "[N/A]", "temperature__gpu": "[N/A]"},
        lambda _s, _g: {"utilization__gpu": "[N/A]", "clocks_event_reasons__active": "0x88"},  # MIG
    ],
    ids=["power cap", "brief", "no reasons", "idle at the end", "wired x8", "airflow", "no sensors", "MIG"],
)
def test_healthy_look_alikes(healthy: Change) -> None:
    assert told(burned(output(sampled(healthy)))) == set()


def test_throttling_that_comes_and_goes() -> None:
    on_and_off = sampled(
        lambda s, g: {"clocks_event_reasons__active": "0x48"} if g == 2 and s % 6 == 0 else {}
    )
    assert told(burned(output(on_and_off))) == {("fail", "gpu2", "throttled", "investigate")}


def test_pcie_under_load() -> None:
    slow = sampled(lambda _s, g: {"pcie__link__gen__current": 3} if g == 6 else {})
    assert told(burned(output(slow))) == {("fail", "gpu6", "load_pcie_gen", "reseat or check cable")}
    narrow = sampled(lambda _s, g: {"pcie__link__width__current": 4} if g == 6 else {})
    assert told(burned(output(narrow))) == {("fail", "gpu6", "load_pcie_width", "reseat or check cable")}
    everywhere = sampled(lambda _s, _g: {"pcie__link__gen__current": 4})
    assert told(burned(output(everywhere))) == {("warn", "node", "load_pcie_gen", "fix configuration")}


def test_a_gpu_hotter_than_its_peers() -> None:
    hot = sampled(lambda _s, g: {"temperature__gpu": 84} if g == 4 else {})
    assert told(burned(output(hot))) == {("warn", "gpu4", "load_temperature", "investigate")}


def test_a_gpu_that_goes_silent_is_named() -> None:
    gone = sampled(lambda s, g: None if g == 5 and s > 30 else {})
    assert told(burned(output(gone))) == {("fail", "gpu5", "silent", "power-cycle")}


LOST = (
    "Unable to determine the device handle for GPU0000:61:00.0: GPU is lost.  "
    "Reboot the system to recover this GPU\n"
)


def test_a_gpu_lost_in_the_middle_is_named() -> None:
    assert told(burned(output(sampled(seconds=30) + LOST))) == {("fail", "gpu3", "lost", "power-cycle")}
    # The burn itself then fails, and its error names the GPU as well.
    node = make_node(gpuprov_pci_addresses=BUSES)
    dead = Output("gpu_burn", ("gpu_burn", "-tc", "60"), 123, "No clients are alive!  Aborting\n", "", 31.0)
    with pytest.raises(ParseError, match=r"\(gpu3 stopped answering meanwhile\)"):
        gpu_burn.parse(node, {"gpu_burn": dead, telemetry.NAME: output(sampled(seconds=30) + LOST)})


ERRORS = ("utilization.gpu", "temperature.gpu", "power.draw", "clocks.current.sm", telemetry.FIELDS[-1])


def silent(error: str, *names: str) -> dict[str, str]:
    return {name.replace(".", "__"): f"[{error}]" for name in names or ERRORS}


@pytest.mark.parametrize(
    ("error", "action"),
    [("GPU is lost", "power-cycle"), ("GPU requires reset", "reset GPU"), ("Unknown Error", "power-cycle")],
)
@pytest.mark.parametrize("since", [0, 30])
def test_a_gpu_whose_samples_become_errors_is_named_and_the_others_stand(
    error: str, action: str, since: int
) -> None:
    text = sampled(lambda s, g: silent(error) if g == 3 and s >= since else {})
    found = told(burned(output(text)))
    assert found == {("fail", "gpu3", "lost", action)}
    assert values(telemetry.parse(output(text), {}), "gpu7")["load_clock"] == 1830


def test_a_gpu_that_loses_even_its_index_is_named_by_its_address() -> None:
    head, *lines = sampled().splitlines()
    lines = [f"{line}, {'00000000:' + BUSES[int(line.split(', ')[1])][5:].upper()}" for line in lines]
    gone = ", [GPU is lost], [GPU is lost], "
    late = [line.replace(", 3, 100, ", gone, 1) for line in lines[160:]]
    assert gone in late[3]
    text = "\n".join([f"{head}, pci.bus_id", *lines[:160], *late]) + "\n"
    assert told(burned(output(text))) == {("fail", "gpu3", "lost", "power-cycle")}


def test_one_reading_that_is_an_error_once_is_a_warning() -> None:
    text = sampled(lambda s, g: silent("Unknown Error", "power.draw") if (g, s) == (2, 20) else {})
    assert told(burned(output(text))) == {("warn", "gpu2", "unread", "investigate")}


@pytest.mark.parametrize("words", ["GPU is lost", "Unknown Error"])
@pytest.mark.parametrize("where", ["GPU3: 0000:61:00.0", "GPU0000:61:00.0", "gpu 0000:61:00.0"])
def test_a_line_about_a_device_handle_names_its_gpu(words: str, where: str) -> None:
    line = f"Unable to determine the device handle for {where}: {words}.  Reboot the system to recover\n"
    assert told(burned(output(sampled(seconds=30) + line))) == {("fail", "gpu3", "lost", "power-cycle")}


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("470.256.02", "clocks_throttle_reasons.active"),
        ("535.43.02", "clocks_throttle_reasons.active"),
        ("535.54.03", "clocks_event_reasons.active"),
        ("580.126.09", "clocks_event_reasons.active"),
        (None, "clocks_event_reasons.active"),
    ],
)
def test_throttle_reasons_are_asked_by_the_name_the_driver_knows(driver: str | None, name: str) -> None:
    fields = telemetry.command("gpu_burn", 60, 150, driver).argv[1].partition("=")[2].split(",")
    assert [field for field in fields if field.endswith("reasons.active")] == [name]
    text = sampled().replace("clocks_event_reasons.active", name)
    assert values(telemetry.parse(output(text), {}), "gpu0")["samples"] == 30


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        ("", {"not_started": "nvidia-smi is not installed"}, "not installed"),
        ("", {}, "did not sample"),
        ('Field "clocks_event_reasons.active" is not a valid field to query.\n', {}, "gave no"),
        (HEADER + "\n", {}, "sampled no GPU"),
        (sampled().replace("1830", "fast"), {}, "not a number"),
        (sampled().replace("2025/11/21", "21.11.2025"), {}, "timestamp"),
        (sampled().replace("0x0000000000000004", "Active"), {}, "clocks_event_reasons"),
    ],
)
def test_what_cannot_be_read_is_an_error_and_the_burn_still_counts(
    text: str, more: dict[str, Any], said: str
) -> None:
    findings = burned(output(text, **more))
    assert [f.verdict for f in findings] == [Verdict.ERROR]
    assert said in findings[0].message


def test_what_was_left_out_of_a_long_series_is_no_trouble() -> None:
    whole = sampled()
    cut = whole[:1500] + "\n[gpuprov: 9999 bytes left out here]\n" + whole[-1500:]
    found = telemetry.parse(output(cut), {})
    assert values(found, "gpu0")["load_clock"] == 1830


def test_columns_in_another_order_are_read_by_name() -> None:
    order = [*telemetry.FIELDS[::-1]]
    lines = [", ".join(dict(zip(telemetry.FIELDS, line.split(", "), strict=True))[name] for name in order)
             for line in sampled().splitlines()]  # fmt: skip
    lines[0] = ", ".join(order)
    turned = telemetry.parse(output("\n".join(lines) + "\n"), {})
    assert turned == telemetry.parse(output(sampled()), {})


@given(st.integers(0, len(sampled())))
def test_cut_anywhere_it_is_read_or_refused(end: int) -> None:
    text = sampled(lambda _s, g: {"clocks_event_reasons__active": "0x48"} if g == 2 else {})
    try:
        found = telemetry.parse(output(text[:end]), {})
    except ParseError:
        return
    assert values(found, "gpu0").get("load_clock", 1830) == 1830


def test_a_sampler_that_ended_early_is_no_clean_load() -> None:
    assert told(burned(output(sampled(seconds=40)))) == set()
    (finding,) = [one for one in burned(output(sampled(seconds=10))) if one.verdict is not Verdict.PASS]
    assert (finding.verdict, finding.device) == (Verdict.ERROR, "node")
    assert "for 8 s of 61 s" in finding.message


@pytest.mark.parametrize(
    "name", ["clocks_event_reasons.active", "pcie.link.gen.current", "pcie.link.width.current"]
)
def test_a_reading_that_only_one_gpu_does_not_give_is_an_error_of_it(name: str) -> None:
    field = name.replace(".", "__")
    one = sampled(lambda _, gpu: {field: "[N/A]"} if gpu == 3 else {})
    assert told(burned(output(one))) == {("error", "gpu3", "", "investigate")}
    assert told(burned(output(sampled(lambda _second, _gpu: {field: "[N/A]"})))) == set(), "the model's"


# --- counters ---


def counted(first: Sequence[int], last: Sequence[int], *, column: str = "pci") -> Output:
    rows = ["# gpu  sbecc  dbecc    pci ", "# Idx   errs   errs   errs "]
    for numbers in (first, *[last] * 11):
        for gpu, number in enumerate(numbers):
            cells = {"sbecc": 0, "dbecc": 0, "pci": 0, column: number}
            rows.append(f"{gpu:5d} " + " ".join(f"{cells[name]:>6}" for name in ("sbecc", "dbecc", "pci")))
    argv = telemetry.counters_command("gpu_burn", 60, 150).argv
    return Output(telemetry.COUNTERS, argv, -15, "\n".join(rows) + "\n", "", 61.0, beside="gpu_burn")


def test_replays_that_go_on_are_a_fault_and_old_ones_are_none() -> None:
    old = [0, 7, 52341, 0, 0, 0, 0, 0]
    assert told(burned(counted(old, old))) == set()
    grown = [0, 7, 52341, 900, 0, 0, 0, 5]
    assert told(burned(counted(old, grown))) == {("fail", "gpu3", "load_replays", "reseat or check cable")}


@pytest.mark.parametrize("text", ["9" * 60_000, "9" * 400, "²", "-1"])
def test_a_count_that_is_no_number_is_not_understood(text: str) -> None:
    with pytest.raises(ParseError):
        telemetry.parse_counters(counted([0] * 8, [text] * 8))  # type: ignore[list-item]


def test_memory_errors_under_load() -> None:
    zero, one = [0] * 8, [0, 0, 0, 0, 1, 0, 0, 0]
    assert told(burned(counted(zero, one, column="dbecc"))) == {
        ("fail", "gpu4", "load_ecc_uncorrectable", "reset GPU")
    }
    assert told(burned(counted(one, one, column="dbecc"))) == set()


def test_replays_that_dmon_does_not_read_of_one_gpu_are_an_error_of_it() -> None:
    """`nvidia-smi dmon` prints `-` for unreadable values."""
    silent = [0, 0, "-", 0, 0, 0, 0, 0]
    assert told(burned(counted(silent, silent))) == {("error", "gpu2", "", "investigate")}  # type: ignore[arg-type]


def test_memory_errors_that_dmon_does_not_read_of_one_gpu_are_an_error_of_it() -> None:
    silent = [0, 0, 0, 0, 0, "-", 0, 0]
    found = told(burned(counted(silent, silent, column="dbecc")))  # type: ignore[arg-type]
    assert found == {("error", "gpu5", "", "investigate")}
    off = ["-"] * 8  # ECC is off on all of them
    assert told(burned(counted(off, off, column="dbecc"))) == set()  # type: ignore[arg-type]


def test_a_gpu_or_a_time_in_which_dmon_did_not_look_is_an_error() -> None:
    whole = counted([0] * 8, [0, 0, 0, 0, 0, 0, 0, 900])
    lines = whole.stdout.splitlines(keepends=True)
    slow = ("fail", "gpu7", "load_replays", "reseat or check cable")

    def without(rows: list[str]) -> set[tuple[str, str, str, str]]:
        return told(burned(replace(whole, stdout="".join(rows))))

    numbers = [at for at, line in enumerate(lines) if line.startswith("    2 ")]
    for missing in (numbers, numbers[4:]):
        kept = [line for at, line in enumerate(lines) if at not in missing]
        assert without(kept) == {("error", "gpu2", "", "investigate"), slow}
    assert without(lines[:-1]) == {slow}, "the end of the load cuts the last sample"
    assert without(lines[: 2 + 8 * 3]) == {("error", "node", "", "investigate"), slow}
    lost = "Unable to determine the device handle for GPU3: 0000:61:00.0: GPU is lost.  Reboot the system\n"
    assert without([*lines, lost]) == {("error", "node", "", "investigate"), slow}


def test_a_count_that_fills_its_column_is_read() -> None:
    """Format of nvidia-smi 470.256.02."""
    rows = (
        "# gpu sbecc dbecc   pci\n# Idx  errs  errs  errs\n    3     0     0    90\n    3     0     0100000\n"
    )
    dmon = Output(telemetry.COUNTERS, ("nvidia-smi", "dmon"), -15, rows, "", 61.0, beside="gpu_burn")
    found = {one.metric: one.value for one in telemetry.parse_counters(dmon)}
    assert found["load_replays"] == 99_910


def test_counters_nobody_can_read() -> None:
    silent = Output(
        telemetry.COUNTERS, ("nvidia-smi",), 2, "Invalid combination of input arguments.\n", "", 1.0
    )
    findings = burned(silent)
    assert [f.verdict for f in findings] == [Verdict.ERROR]
    assert told(burned(counted(["-"] * 8, ["-"] * 8))) == set()  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("error", "finding"),
    [
        ("[GPU is lost]", ("fail", "gpu3", "lost", "power-cycle")),
        ("GPU requires reset", ("fail", "gpu3", "lost", "reset GPU")),
        ("[Unknown Error]", ("error", "gpu3", "", "investigate")),
        ("ERR!", ("error", "gpu3", "", "investigate")),
        ("Insufficient Permissions", ("error", "gpu3", "", "investigate")),
    ],
)
def test_an_nvml_error_in_place_of_counts_leaves_those_of_the_others(
    error: str, finding: tuple[str, ...]
) -> None:
    zero, grown = [0] * 8, [0, 0, 0, 7777, 0, 0, 900, 0]
    text = counted(zero, grown).stdout
    text = text.replace("    3      0      0   7777", f"    3 {error} {error} {error}")
    dmon = Output(telemetry.COUNTERS, ("nvidia-smi", "dmon"), -15, text, "", 61.0, beside="gpu_burn")
    assert told(burned(dmon)) == {finding, ("fail", "gpu6", "load_replays", "reseat or check cable")}


@pytest.mark.parametrize("error", ["GPU is lost", "Unknown Error", "GPU requires reset"])
def test_a_line_about_a_device_handle_leaves_the_counts_before_it(error: str) -> None:
    text = counted([0] * 8, [0, 0, 0, 0, 0, 0, 900, 0]).stdout
    text += f"Unable to determine the device handle for GPU3: 0000:61:00.0: {error}\n"
    dmon = Output(telemetry.COUNTERS, ("nvidia-smi", "dmon"), 15, text, "", 61.0, beside="gpu_burn")
    ended = ("error", "node", "", "investigate")  # telemetry, which names the GPU, is healthy here
    assert told(burned(dmon)) == {("fail", "gpu6", "load_replays", "reseat or check cable"), ended}


def test_a_gpu_whose_readings_are_for_root_alone_was_not_sampled() -> None:
    asked = ("utilization__gpu", "temperature__gpu", "power__draw", "clocks__current__sm")
    forbidden = dict.fromkeys(asked, "[Insufficient Permissions]")
    text = sampled(lambda _second, gpu: forbidden if gpu == 3 else {})
    assert told(burned(output(text))) == {("error", "gpu3", "", "fix configuration")}


def named(text: str, *more: tuple[str, str]) -> str:
    """Append columns to the samples, as (header, cell)."""
    head, *rows = text.splitlines()
    cells = "".join(f", {cell}" for _, cell in more)
    return "\n".join([head + "".join(f", {name}" for name, _ in more), *(row + cells for row in rows)]) + "\n"


@pytest.mark.parametrize("error", ["[GPU is lost]", "[Unknown Error]"])
def test_a_gpu_that_loses_index_and_address_leaves_the_samples_of_the_others(error: str) -> None:
    def change(second: int, gpu: int) -> dict[str, Any]:
        if gpu == 6:
            return {"pcie__link__gen__current": 1}
        asked = ("index", "utilization__gpu", "temperature__gpu", "power__draw", "clocks__current__sm")
        return dict.fromkeys(asked, error) if gpu == 3 and second >= 20 else {}

    head, *rows = sampled(change).splitlines()
    rows = [f"{row}, {error if error in row else '00000000:1B:00.0'}" for row in rows]
    findings = told(burned(output("\n".join([f"{head}, pci.bus_id", *rows]) + "\n")))
    assert ("fail", "gpu6", "load_pcie_gen", "reseat or check cable") in findings
    assert [one for one in findings if one[2] == "lost"] == [("fail", "node", "lost", "power-cycle")]


@pytest.mark.parametrize(
    ("model", "width", "slow"),
    [("Tesla T4", 8, False), ("NVIDIA A10G", 8, False), ("NVIDIA A10G", 4, True), ("NVIDIA A10", 8, True)],
)
def test_a_single_gpu_wired_with_half_its_lanes_is_whole(model: str, width: int, slow: bool) -> None:
    head, *rows = sampled(lambda _s, _g: {"pcie__link__width__current": width}, gpus=1).splitlines()
    text = "\n".join([f"{head}, name", *(f"{row}, {model}" for row in rows)]) + "\n"
    found = telemetry.parse(output(text), {})
    by_gpu = {"gpu0": values(found, "gpu0")}
    findings = telemetry_rules.judge("gpu_burn", by_gpu, values(found, "node"), {})
    assert bool(told(findings)) is slow
