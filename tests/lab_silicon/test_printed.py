"""The load tools against their sources: a printf of the program can print each line.

printed.yml has the formats with file and line. A line without a format is a drift of the simulator; a format
that no run prints is no longer simulated.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from provision.checks.check import Output
from provision.checks.judge import Verdict
from provision.checks.vendors.nvidia import dcgm_diag
from tests.lab_silicon import printf
from tests.lab_silicon.programs import READ, RUNS, run
from tests.lab_silicon.surfaces import Surface
from tests.support.scenarios import machine

Printed = Callable[[Surface], tuple[str, int]]


WORDS = {"gpu_burn": (" (DIED!)", " (WARNING!)", ", using Tensor Cores")}


@pytest.mark.parametrize("program", RUNS)
def test_every_line_is_one_of_the_source_and_every_format_is_printed(program: str, printed: Printed) -> None:
    seen = ""
    for surface, status in RUNS[program]:
        text, ended = printed(surface)
        assert printf.unknown(program, text) == []
        assert ended == status, surface.words
        seen += text
    rows = seen.replace("\r", "\n").split("\n")
    unused = [one.where for one in printf.formats(program) if not any(one.prints(row) for row in rows)]
    assert unused == []
    assert [word for word in WORDS.get(program, ()) if word not in seen] == []


@pytest.mark.parametrize("program", RUNS)
def test_a_healthy_run_prints_in_the_order_of_the_source(program: str, printed: Printed) -> None:
    text, _ = printed(RUNS[program][0][0])
    order = printf.order(program, text)
    assert order == sorted(order)


def test_a_format_holds_width_and_side() -> None:
    one = printf.read("it", " %-7lu    %6.2f %s")
    assert one.prints(" 65536       12.25 x")
    assert not one.prints(" 65536      12.25 x")
    assert not one.prints(" 65536       12.2 x")
    assert printf.read("it", "<<%d C |- >>").prints("3 C - 4 C ")
    assert not printf.read("it", "<<%d C |- >>").prints("3 C -4 C ")


def test_nvbandwidth_names_its_json_as_its_source(printed: Printed) -> None:
    """Compare with json_output.cpp:25-52 of v0.8; the matrix is strings (:75-79), the sum a number."""
    text, status = printed(run(f"nvbandwidth -j -v -t {READ}"))
    root = json.loads(text)["nvbandwidth"]
    assert status == 0
    assert set(root) == {
        "CUDA Runtime Version", "Driver Version", "GPU Device list", "git_version", "testcases", "version"
    }  # fmt: skip
    (case,) = root["testcases"]
    assert set(case) == {
        "name", "status", "bandwidth_description", "bandwidth_matrix", "sum", "max", "min", "average"
    }  # fmt: skip
    assert {type(cell) for row in case["bandwidth_matrix"] for cell in row} == {str}
    assert (case["bandwidth_matrix"][0][0], case["status"], type(case["sum"])) == ("N/A", "Passed", float)


DCGM = "dcgmi diag -r 2 -j"  # NVIDIA/DCGM: dcgmi/Diag.cpp:1060-1290 of v4.6.0, :1212-1500 of v3.3.9
FAULTS = ("row_remap_pending gpu=3", "dcgm_fails gpu=5")


def paths(value: Any, at: str = "") -> set[str]:
    """Return every key path of a document with the type of its value; lists are `[]`."""
    if isinstance(value, dict):
        return {path for key, inner in value.items() for path in paths(inner, f"{at}/{key}")}
    if isinstance(value, list):
        return {path for inner in value for path in paths(inner, f"{at}[]")}
    return {f"{at}: {type(value).__name__}"}


TEST = "/DCGM Diagnostic/test_categories[]/tests[]"
OLD = "/DCGM GPU Diagnostic/test_categories[]/tests[]/results[]"


@pytest.mark.parametrize(
    ("version", "has", "lacks"),
    [
        (
            "4.6.0",
            {f"{TEST}/results[]/{key}: {kind}" for key, kind in (
                ("entity_group", "str"), ("entity_group_id", "int"), ("entity_id", "int"), ("status", "str"),
                ("warnings[]/warning", "str"), ("warnings[]/error_id", "int"),
                ("warnings[]/error_category", "int"), ("warnings[]/error_severity", "int"))}
            | {f"{TEST}/name: str", f"{TEST}/test_summary/status: str",
               "/DCGM Diagnostic/test_categories[]/category: str",
               "/entity_groups[]/entity_group: str", "/entity_groups[]/entity_group_id: int",
               "/entity_groups[]/entities[]/entity_id: int", "/entity_groups[]/entities[]/device_id: str",
               "/entity_groups[]/entities[]/serial_num: str",
               "/metadata/version: str", "/metadata/Driver Version Detected: str"},
            {"gpu_id", "gpu_ids"},
        ),
        (
            "3.3.9",
            {f"{OLD}/{key}: {kind}" for key, kind in (
                ("status", "str"), ("gpu_id", "int"), ("gpu_id", "str"), ("warnings[]/warning", "str"),
                ("warnings[]/warnings", "str"), ("warnings[]/error_id", "int"),
                ("warnings[]/error_category", "int"), ("warnings[]/error_severity", "int"))}
            | {"/DCGM GPU Diagnostic/test_categories[]/tests[]/name: str",
               "/DCGM GPU Diagnostic/test_categories[]/category: str",
               "/Driver Version Detected: str", "/GPU Device IDs[]: str", "/version: str",
               *(f"/GPU Device Serials/{index}: str" for index in range(8))},
            {"entity_id", "metadata", "test_summary"},
        ),
    ],
)  # fmt: skip
def test_dcgmi_has_the_keys_of_its_source(
    version: str, has: set[str], lacks: set[str], printed: Printed
) -> None:
    text, status = printed(run(DCGM, FAULTS, environment=(("SILICON_VERSION", version),)))
    found = paths(json.loads(text))
    assert found == has
    assert not any(f"/{key}" in path for path in found for key in lacks)
    assert text.startswith('{\n\t"') and text.endswith("\n}\n")  # noqa: PT018 (one layout)
    assert status == 256 - 30


@pytest.mark.parametrize("version", ["3.3.9", "4.6.0"])
def test_dcgmi_of_both_versions_is_read_alike(version: str, printed: Printed) -> None:
    text, status = printed(run(DCGM, FAULTS, environment=(("SILICON_VERSION", version),)))
    node = machine(8, "h100-sxm", "nvswitch", "hopper", {"validation_tools_dcgm_level": 2})
    (command,) = dcgm_diag.commands(node, {})
    outputs = {command.name: Output(command.name, tuple(DCGM.split()), status, text, "", 1.0)}
    found = dcgm_diag.judge(node, dcgm_diag.parse(node, outputs), {})
    failed = {finding.device: finding.message for finding in found if finding.verdict is Verdict.FAIL}
    assert set(failed) == {"gpu3", "gpu5"}
    assert "remapping" in failed["gpu3"]
