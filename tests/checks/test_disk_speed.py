"""disk_speed: off without a folder, its file never outside it and never left behind, both rates or none."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from provision.checks.check import CheckNode, Output
from provision.checks.host import disk_speed
from provision.checks.judge import Finding, Verdict
from provision.checks.thresholds import Threshold
from provision.errors import ParseError

Sample = Callable[[str], str]
MakeNode = Callable[..., CheckNode]
LIMITS = {
    f"disk_speed.{way}": Threshold(f"disk_speed.{way}", limit, "MB/s", "at_least", "a test", "measured")
    for way, limit in (("write", 1000), ("read", 2000))
}


@pytest.fixture
def judge(make_node: MakeNode, sample: Sample) -> Callable[..., list[Finding]]:
    def run(name: str, limits: Any = LIMITS) -> list[Finding]:
        node = make_node(validation_tools_scratch_dir="/scratch")
        output = Output("fio", ("fio",), 0, sample(f"disk_speed/{name}.json"), "", 1.0)
        return disk_speed.judge(node, disk_speed.parse(node, {"fio": output}), limits)

    return run


@pytest.mark.parametrize("name", ["healthy", "note-first"])
def test_a_fast_disk_passes(name: str, judge: Any) -> None:
    assert [(f.verdict, f.metric, f.value) for f in judge(name)] == [
        (Verdict.PASS, "write", 2811.4),
        (Verdict.PASS, "read", 6702.9),
    ]


def test_a_slow_disk_fails(judge: Any) -> None:
    assert [f.verdict for f in judge("slow")] == [Verdict.FAIL, Verdict.FAIL]


def test_without_a_limit_nobody_passes(judge: Any) -> None:
    assert [f.verdict for f in judge("healthy", {})] == [Verdict.WARN, Verdict.WARN]


def test_it_is_skipped_without_a_folder(make_node: MakeNode) -> None:
    node = make_node()
    assert disk_speed.commands(node, {}) == []
    (finding,) = disk_speed.judge(node, disk_speed.parse(node, {}), {})
    assert finding.verdict is Verdict.SKIP


def test_its_file_is_in_the_folder_and_removed_whatever_happens(make_node: MakeNode) -> None:
    fio, removed = disk_speed.commands(make_node(validation_tools_scratch_dir="/scratch/a"), {})
    files = {word for word in fio.argv if word.startswith("--filename=")}
    assert files == {"--filename=/scratch/a/gpuprov-disk-speed.tmp"}
    assert fio.cwd == "/scratch/a", "a folder that is not there is told, and not made"
    assert fio.argv.count("--unlink=1") == 2
    assert removed.argv == ("rm", "-f", "--", "/scratch/a/gpuprov-disk-speed.tmp")


@pytest.mark.parametrize("folder", ["scratch", "/a:/etc", "/scratch/../etc", 7])
def test_a_path_that_may_lead_elsewhere_is_refused(folder: Any, make_node: MakeNode) -> None:
    node = make_node(validation_tools_scratch_dir=folder)
    assert disk_speed.commands(node, {}) == []
    with pytest.raises(ParseError, match="validation_tools_scratch_dir is"):
        disk_speed.parse(node, {})


def test_a_disk_without_space_is_not_slow(judge: Any) -> None:
    with pytest.raises(ParseError, match="fio failed to write"):
        judge("no-space")


@pytest.mark.parametrize(
    ("old", "new"),
    [('"jobname": "read"', '"jobname": "trim"'), ('"bw_bytes": 6', '"bw_bytes": -6'), ('"jobs"', '"work"')],
)
def test_an_unknown_form_is_refused(old: str, new: str, sample: Sample, make_node: MakeNode) -> None:
    text = sample("disk_speed/healthy.json")
    assert old in text
    node = make_node(validation_tools_scratch_dir="/scratch")
    changed = Output("fio", ("fio",), 0, text.replace(old, new), "", 1.0)
    with pytest.raises(ParseError):
        disk_speed.parse(node, {"fio": changed})


def test_cut_anywhere_it_is_refused_or_means_the_same(sample: Sample, make_node: MakeNode) -> None:
    node, text = make_node(validation_tools_scratch_dir="/scratch"), sample("disk_speed/healthy.json").strip()
    for length in range(0, len(text), 97):
        with pytest.raises(ParseError):
            disk_speed.parse(node, {"fio": Output("fio", ("fio",), 0, text[:length], "", 1.0)})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"bw_bytes": 2811400000', '"bw_bytes": "2811400000"'),
        ('"bw_bytes": 2811400000', '"bw_bytes": true'),
        ('"bw_bytes": 2811400000', '"bw_bytes": "N/A"'),
        ('"io_bytes": 42171000000', '"io_bytes": null'),
        ('"bw_bytes": 2811400000', '"bw_bytes": 1e999'),
    ],
)
def test_a_text_for_a_number_is_no_rate(old: str, new: str, sample: Sample, make_node: MakeNode) -> None:
    text = sample("disk_speed/healthy.json")
    assert old in text
    node = make_node(validation_tools_scratch_dir="/scratch")
    changed = Output("fio", ("fio",), 0, text.replace(old, new, 1), "", 1.0)
    with pytest.raises(ParseError, match="was not understood"):
        disk_speed.parse(node, {"fio": changed})


def test_rates_of_a_run_that_failed_are_none(sample: Sample, make_node: MakeNode) -> None:
    node = make_node(validation_tools_scratch_dir="/scratch")
    output = Output("fio", ("fio",), 1, sample("disk_speed/healthy.json"), "fio: verify: bad header", 1.0)
    with pytest.raises(ParseError, match="ended with status 1: fio: verify: bad header"):
        disk_speed.parse(node, {"fio": output})


# fio 3.39 (Debian 13), recorded: the reason stands above the JSON, and the last line is a brace.
@pytest.mark.parametrize(
    ("line", "way", "reason"),
    [
        (
            "fio: pid=7450, err=28/file:io_u.c:1976, func=io_u error, error=No space left on device",
            "write",
            "No space left on device",
        ),
        (
            "fio: pid=7485, err=2/file:filesetup.c:799, func=open(/scratch/gpuprov-disk-speed.tmp), "
            "error=No such file or directory",
            "read",
            "No such file or directory",
        ),
    ],
)
def test_the_reason_of_a_failed_job_is_named(line: str, way: str, reason: str, make_node: MakeNode) -> None:
    jobs = [
        {"jobname": each, "error": int(each == way), each: {"bw_bytes": 1, "io_bytes": 1}}
        for each in ("write", "read")
    ]
    output = Output("fio", ("fio",), 1, f"{line}\n{json.dumps({'jobs': jobs}, indent=1)}\n", "", 17.0)
    with pytest.raises(ParseError) as failure:
        disk_speed.parse(make_node(validation_tools_scratch_dir="/scratch"), {"fio": output})
    assert failure.value.what == f"fio failed to {way} in /scratch: {reason}"
