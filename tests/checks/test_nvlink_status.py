"""Output of nvidia-smi nvlink -s: the links of each GPU, and the messages printed instead of links."""

from __future__ import annotations

from typing import Any

import pytest

from provision.checks.check import Output
from provision.checks.gpu import nvlink_errors
from provision.checks.gpu.gpu_answers import LOST, NOT_PERMITTED, REQUIRES_RESET, UNKNOWN, error_text, worst
from provision.checks.gpu.inventory_links import judge_links
from provision.checks.judge import Finding, Verdict
from provision.checks.thresholds import for_sku
from provision.errors import ParseError
from tests.support.checks import flagged, make_output

UP = "".join(f"\t Link {link}: 26.562 GB/s\n" for link in range(18))
# Public reports: drivers 535 to 610, an RTX A4000 and an L40S on 595, an H100 on 590.
INACTIVE = "NVML: Unable to retrieve NVLink information as all links are inActive\n"
UNSUPPORTED = "Device does not have or support Nvlink\n"
PARTITIONED = "Nvlink queries are not supported for Devices in MIG mode\n"


def status(*gpus: str, name: str = "NVIDIA H100 80GB HBM3") -> Output:
    text = "".join(f"GPU {index}: {name} (UUID: GPU-{index})\n{lines}" for index, lines in enumerate(gpus))
    return Output("nvlink", ("nvidia-smi", "nvlink", "-s"), 0, text, "", 0.1)


def judged(output: Output, sku: str = "h100-sxm", *, gpus: int = 0, off: bool = False) -> list[Finding]:
    measured = nvlink_errors.parse_links(output)
    count = gpus or output.stdout.count("GPU-")
    values: dict[str, dict[str, Any]] = {"name": {f"gpu{index}": "a GPU" for index in range(count)}}
    for one in measured:
        values.setdefault(one.metric, {})[one.device] = one.value
    return judge_links(values, for_sku(sku), nvlink_off=off)


def unhealthy(findings: list[Finding]) -> list[tuple[Any, ...]]:
    return flagged(findings, "verdict", "device", "metric")


@pytest.mark.parametrize("sentence", [INACTIVE, INACTIVE.replace("inActive", "inactive"), UNSUPPORTED])
def test_a_gpu_whose_links_are_all_down_fails_where_its_sku_has_links(sentence: str) -> None:
    assert unhealthy(judged(status(UP, sentence, UP, UP))) == [(Verdict.FAIL, "gpu1", "nvlink_links")]


@pytest.mark.parametrize("sentence", [INACTIVE, UP.replace("26.562 GB/s", "<inactive>")])
def test_a_slow_link_is_told_of_beside_a_gpu_whose_links_are_all_down(sentence: str) -> None:
    slow = UP.replace("26.562", "6.640", 1)
    assert unhealthy(judged(status(UP, sentence, slow, UP))) == [
        (Verdict.FAIL, "gpu1", "nvlink_links"),
        (Verdict.FAIL, "gpu2", "nvlink_speed"),
    ]


@pytest.mark.parametrize("said", ["", INACTIVE])
def test_links_that_are_switched_off_are_missed_by_several_gpus_alone(said: str) -> None:
    def found(gpus: int, **more: Any) -> list[tuple[Any, ...]]:
        output = (
            status(*[said] * gpus)
            if said
            else Output("nvlink", ("nvidia-smi", "nvlink", "-s"), 0, "", "", 0.1)
        )
        return unhealthy(judged(output, gpus=gpus, **more))

    assert found(1, off=True) == [(Verdict.SKIP, "node", "nvlink_links")]
    assert found(8, off=True) == [(Verdict.FAIL, "node", "nvlink_links")]
    assert {verdict for verdict, *_ in found(8)} <= {Verdict.FAIL, Verdict.ERROR}
    up = judged(status(*[UP] * 8), off=True)
    assert unhealthy(up) == unhealthy(judged(status(*[UP] * 8))), "links that are there are judged"


def test_one_inactive_link_in_a_sentence_of_its_own() -> None:
    sentence = "NVML: Unable to retrieve NVLink information for link 3 - inActive"
    output = status(UP, UP.replace("\t Link 3: 26.562 GB/s", sentence))
    assert unhealthy(judged(output)) == [(Verdict.FAIL, "gpu1", "nvlink_links")]


def test_a_card_without_nvlink_passes() -> None:
    output = status(UNSUPPORTED, UNSUPPORTED, name="NVIDIA L40S")
    assert unhealthy(judged(output, "l40s")) == []


def test_links_of_partitioned_gpus_are_skipped_with_the_reason() -> None:
    (finding,) = judged(status(PARTITIONED, PARTITIONED))
    assert (finding.verdict, finding.device) == (Verdict.SKIP, "node")
    assert "MIG" in finding.message


def test_the_other_gpus_are_judged_beside_a_partitioned_one() -> None:
    findings = judged(status(UP, PARTITIONED, UP.replace("Link 3: 26.562 GB/s", "Link 3: <inactive>"), UP))
    assert unhealthy(findings) == [
        (Verdict.SKIP, "gpu1", "nvlink_links"),
        (Verdict.FAIL, "gpu2", "nvlink_links"),
    ]


def test_links_beside_a_sentence_that_denies_them_are_refused() -> None:
    with pytest.raises(ParseError, match="lists links of GPU 0 and reports that it has none"):
        nvlink_errors.parse_links(status(UP + INACTIVE))


@pytest.mark.parametrize("sentence", [INACTIVE, UNSUPPORTED, PARTITIONED])
def test_the_error_counters_know_the_same_sentences(sentence: str) -> None:
    counters = "\t Link 0: Replay Errors: 0\n\t Link 0: Recovery Errors: 0\n\t Link 0: CRC Errors: 0\n"
    measured = nvlink_errors.parse(status(counters, sentence, counters), linked=True)
    assert {one.device for one in measured} == {"gpu0", "gpu2"}


def test_a_counter_that_one_link_does_not_give_is_missed() -> None:
    counters = "\t Link 0: Replay Errors: 0\n\t Link 0: CRC Errors: 0\n"
    silent = counters.replace("CRC Errors: 0", "CRC Errors: N/A")
    with pytest.raises(ParseError, match="fewer counters of GPU 1"):
        nvlink_errors.parse(status(counters, silent, counters), linked=True)
    assert nvlink_errors.parse(status(silent, silent), linked=True), "a model without this counter"


@pytest.mark.parametrize(
    ("error", "verdict"),
    [("[GPU is lost]", "fail"), ("Unknown Error", "fail"), ("Insufficient Permissions", "error")],
)
def test_an_nvml_error_in_place_of_a_link_or_a_counter_names_the_gpu(error: str, verdict: str) -> None:
    """The texts are those of nvmlErrorString (provision/checks/gpu/gpu_answers.py).
    No capture of these two outputs has them."""
    links = "".join(f"\t Link {link}: 26.562 GB/s\n" for link in range(18))
    lost = links.replace("Link 5: 26.562 GB/s", f"Link 5: {error}")
    measured = {
        m.device: m.value
        for m in nvlink_errors.parse_links(status(links, lost))
        if m.metric == "nvlink_unread"
    }
    assert list(measured) == ["gpu1"]
    counters = "\t Link 0: Replay Errors: 0\n\t Link 0: CRC Errors: 0\n"
    found = nvlink_errors.parse(status(counters, counters.replace("CRC Errors: 0", f"CRC Errors: {error}")))
    values: dict[str, dict[str, Any]] = {
        "nvlink_unread": {m.device: m.value for m in found if m.metric == "nvlink_unread"}
    }
    (finding,) = nvlink_errors.judge("gpu_inventory", values)
    assert (finding.verdict.value, finding.device) == (verdict, "gpu1")


ERRORS = ["GPU is lost", "[GPU is lost]", "Unknown Error", "ERR!", "GPU requires reset"]


@pytest.mark.parametrize(
    "form", ["\t Link 0: {0}\n", "\t {0}\n", "NVML: Unable to retrieve NVLink information for link 0 - {0}\n"]
)
@pytest.mark.parametrize("error", [*ERRORS, "Insufficient Permissions"])
def test_the_links_of_a_gpu_that_does_not_answer_are_not_counted_and_its_peers_are(
    error: str, form: str
) -> None:
    """Its links need not be down, a reset may not help, and a missing permission is not the GPU's fault."""
    silent = "".join(form.format(error).replace("Link 0", f"Link {link}") for link in range(18))
    output = status(
        UP, silent if "\t Link" in form else form.format(error), UP.replace("26.562 GB/s", "<inactive>", 1)
    )
    assert unhealthy(judged(output)) == [(Verdict.FAIL, "gpu2", "nvlink_links")]
    assert [m.device for m in nvlink_errors.parse_links(output) if m.metric == "nvlink_unread"] == ["gpu1"]


def test_a_line_about_a_device_handle_is_not_of_the_gpu_above_it() -> None:
    line = "Unable to determine the device handle for GPU1: 0000:2a:00.0: Unknown Error\n"
    output = Output(
        "nvlink", ("nvidia-smi",), 0, status(UP, UP).stdout.replace("GPU 1:", f"{line}GPU 2:"), "", 0.1
    )
    assert {m.device for m in nvlink_errors.parse_links(output)} == {"gpu0", "gpu2"}
    counters = "\t Link 0: Replay Errors: 0\n"
    text = status(counters).stdout + line
    found = nvlink_errors.parse(Output("nvlink_errors", ("nvidia-smi",), 0, text, "", 0.1))
    assert {m.metric for m in found} == {"nvlink_errors", "nvlink_recoveries", "nvlink_worst"}


@pytest.mark.parametrize(
    ("cell", "error"),
    [
        ("GPU is lost", LOST),  # -q -x, 550.163.01
        ("[GPU is lost]", LOST),  # --query-gpu, 550.163.01
        (" [Unknown Error]\n", UNKNOWN),
        ("[GPU requires reset]", REQUIRES_RESET),
        ("Insufficient Permissions", NOT_PERMITTED),
        ("ERR!", "ERR!"),
    ],
)
def test_an_error_in_place_of_a_reading_is_recognised(cell: str, error: str) -> None:
    assert error_text(cell) == error


@pytest.mark.parametrize("cell", ["N/A", "[N/A]", "[Not Supported]", "", "None", "0", "Success", "31 C"])
def test_a_reading_or_its_absence_is_no_error(cell: str) -> None:
    assert error_text(cell) is None


def test_a_lost_gpu_outranks_the_other_errors_of_its_cells() -> None:
    assert worst({UNKNOWN, LOST, NOT_PERMITTED}) == LOST


def counted(*lines: str) -> list[Finding]:
    """Return the NVLink findings for these counters of a GPU with 18 NVLinks of the newest generation."""
    text = "GPU 0: NVIDIA B300 SXM6 AC (UUID: GPU-0)\n" + "".join(f"\t {line}\n" for line in lines)
    measurements = nvlink_errors.parse(make_output("nvlink_errors", text))
    values: dict[str, dict[str, Any]] = {}
    for measurement in measurements:
        values.setdefault(measurement.metric, {})[measurement.device] = measurement.value
    return nvlink_errors.judge("gpu_inventory", values)


QUIET = ("Link 0: Rx Errors: 0", "Link 0: Link recovery failed events: 0", "Link 7: Rx Errors: 0")


def test_a_link_that_recovered_is_a_warning_that_names_it() -> None:
    (found,) = counted(*QUIET, "Link 7: Link recovery successful events: 1")
    assert (found.verdict, found.action) == (Verdict.WARN, "watch")
    assert found.message == "its NVLinks counted 1 successful link recovery (most: link 7)"


@pytest.mark.parametrize("name", ["Link recovery failed events: 1", "Link recovery successful events: 505"])
def test_a_link_that_fails_to_recover_or_does_again_and_again_fails(name: str) -> None:
    (found,) = counted(*QUIET, f"Link 7: {name}")
    assert (found.verdict, found.action) == (Verdict.FAIL, "reset GPU")
    assert "(most: link 7)" in found.message


@pytest.mark.parametrize("name", ["Rx remote Errors", "Tx discards"])
def test_errors_of_the_other_end_count(name: str) -> None:
    (found,) = counted(*QUIET, f"Link 7: {name}: 200")
    assert found.verdict is Verdict.FAIL
    assert found.message == "its NVLinks counted 200 errors (most: link 7)"


@pytest.mark.parametrize(("count", "verdicts"), [(0, []), (1234, [Verdict.FAIL])])
def test_the_counters_of_driver_470_are_read(count: int, verdicts: list[Verdict]) -> None:
    lines = [
        f"Link {link}: {count if (link, name) == (3, 'data CRC') else 0} {name} errors"
        for link in range(12)
        for name in ("replay", "recovery", "flit CRC", "data CRC")
    ]
    found = counted(*lines)
    assert [one.verdict for one in found] == verdicts
    assert all("1234 errors (most: link 3)" in one.message for one in found)


def test_links_of_a_product_without_a_limit_are_compared_with_those_of_its_kind() -> None:
    def found(links: list[int], names: str) -> list[str]:
        devices = [f"gpu{index}" for index in range(len(links))]
        values: dict[str, dict[str, Any]] = {
            "name": dict(zip(devices, names, strict=True)),
            "nvlink_links": dict(zip(devices, links, strict=True)),
        }
        return [one.device for one in judge_links(values, {})]

    assert found([12, 12, 4, 4], "AABB") == [], "two products need not have as many"
    assert found([12, 11, 4, 4], "AABB") == ["gpu1"]
    assert found([4, 4, 4, 2], "AAAA") == ["gpu3"]
