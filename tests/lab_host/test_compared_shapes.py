"""The shape of an output: which changes alter it, and which do not."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gpuprov_lab.compare import differences

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
XML = (FIXTURES / "gpu_inventory/h100-v13.xml").read_text()
NCCL = (FIXTURES / "nccl_all_reduce/healthy.txt").read_text()
BURN = (FIXTURES / "gpu_burn/healthy.txt").read_text()
BANDWIDTH = (FIXTURES / "memory_bandwidth/healthy.json").read_text()
SAME: tuple[list[str], list[str], str] = ([], [], "")


@pytest.mark.parametrize("text", [XML, NCCL, BURN, BANDWIDTH], ids=["xml", "nccl", "burn", "json"])
def test_an_identical_output_is_the_same(text: str) -> None:
    assert differences(text, text) == SAME


def test_an_element_more_is_the_one_difference() -> None:
    more = XML.replace("</fb_memory_usage>", "<lent>3 MiB</lent></fb_memory_usage>")
    assert differences(more, XML) == (["/nvidia_smi_log/gpu/fb_memory_usage/lent"], [], "")
    assert differences(XML, more) == ([], ["/nvidia_smi_log/gpu/fb_memory_usage/lent"], "")
    document = json.dumps({"tests": [{"a": 1}, {"a": 2, "b": 3}]})
    assert differences(document, json.dumps({"tests": [{"a": 5}]})) == ([".tests[].b"], [], "")


def test_a_missing_column_is_listed() -> None:
    table = "index, name, memory.used [MiB]\n0, NVIDIA H100, 4 MiB\n1, NVIDIA H100, 4 MiB\n"
    less = "index, name\n0, NVIDIA H100\n1, NVIDIA H100\n"
    here, there, why = differences(less, table)
    assert (len(here), len(there), why) == (2, 2, "")
    assert differences("0, 30, 1980\n", "0, 30\n") == (["N, N, N"], ["N, N"], "")


@pytest.mark.parametrize(
    ("text", "old", "new", "expected"),
    [
        (XML, " MiB</used>", " GiB</used>", "/nvidia_smi_log/gpu/fb_memory_usage/used in GiB"),
        ('[{"units": "GB/s"}]', "GB/s", "GiB/s", "[].units in GiB/s"),
        ('{"power": "700.0 W"}', " W", " mW", ".power in mW"),
        ("busbw 470.8 GB/s\n", "GB/s", "MB/s", "busbw N MB/s"),
    ],
)
def test_a_changed_unit_is_listed(text: str, old: str, new: str, expected: str) -> None:
    assert old in text
    here, there, why = differences(text.replace(old, new), text)
    assert expected in here
    assert (len(here) == len(there), why) == (True, "")
    assert len(here) <= 2


def test_a_value_that_is_not_known_has_no_other_unit() -> None:
    unknown = re.sub(r"<used>[^<]*<", "<used>N/A<", XML)
    assert unknown != XML
    assert differences(unknown, XML) == SAME


def gpus(count: int) -> str:
    """Return the XML of a machine with `count` of the GPUs."""
    parts = re.split(r"(?=\t<gpu id)|(?=</nvidia_smi_log>)", XML)
    return "".join([parts[0], *parts[1 : 1 + count], parts[-1]])


def test_the_machines_size_is_no_difference() -> None:
    assert gpus(2).count("<gpu id") == 2
    assert differences(gpus(2), XML) == SAME
    two = "\n".join(line for line in NCCL.splitlines() if not re.search(r"Rank +[2-7]", line))
    assert differences(two, NCCL) == SAME
    line = "5.0%  proc'd: 11 (14 Gflop/s){}   errors: 0{}   temps: 45 C{} "
    wide = line.format(" - 0 (0 Gflop/s)" * 7, " - 0" * 7, " - 45 C" * 7)
    assert differences(line.format("", "", ""), wide) == SAME
    assert differences(line.format(" - 9 (9 Gflop/s)", " - 1", " - 44 C"), wide) == SAME


def test_values_times_names_and_processes_are_no_difference() -> None:
    used = re.sub(r"\d(?=[\d.]* (?:MiB|C|W|MHz)<)", "7", XML).replace("GPU-0", "GPU-7")
    process = "<process_info><pid>7</pid><process_name>x</process_name></process_info>"
    used = used.replace("</gpu>", f"<processes>{process}</processes></gpu>")
    assert used.count("<pid>") > 2
    idle = XML.replace("</gpu>", "<processes></processes></gpu>")
    assert differences(used, idle) == SAME
    assert differences(NCCL.replace("    gpu-01", "h100.example.org"), NCCL) == SAME
    assert differences(BURN.replace("Fri Nov 20 10:01:02 UTC 2026", "Sat Feb  1 00:00:00 2025"), BURN) == SAME


def test_another_release_of_nccl_tests_is_a_line_and_not_dozens() -> None:
    newer = NCCL.replace("graph: 0", "graph: 0 unalign: 0").replace("version 2.17.6", "version 2.18")
    here, there, _ = differences(newer, NCCL)
    assert len(here) == len(there) == 1
    assert "unalign: N" in here[0]


def test_lines_around_a_document_are_differences_of_their_own() -> None:
    warning = "WARNING: infoROM is corrupted at gpu 0000:1A:00.0"
    assert differences(f"{XML}\n{warning}\n", XML) == (["WARNING: infoROM is corrupted at gpu PCI"], [], "")
    assert differences(f"note: both\n{BANDWIDTH}", BANDWIDTH) == (["note: both"], [], "")


def test_two_kinds_are_not_compared() -> None:
    assert differences("Failed to initialize NVML", XML) == (
        [], [], "it is lines here, and XML in the simulator",
    )  # fmt: skip
    assert differences(XML[: len(XML) // 2], XML)[2] == "it is lines here, and XML in the simulator"


def test_a_long_list_says_that_it_goes_on() -> None:
    letters = "\n".join(f"{chr(97 + one // 26)}{chr(97 + one % 26)}" for one in range(100))
    here, _, _ = differences(letters, "x")
    assert (len(here), here[-1]) == (41, "and 60 more")


@pytest.mark.parametrize("text", ["", "{", "[1] x", "<?xml", "\x1b[1m\x00", "{" * 5000 + "}" * 5000])
def test_whatever_was_printed_has_a_shape(text: str) -> None:
    assert differences(text, text) == SAME
