"""Tests of disk_speed: its file stays in its folder and is always removed, and failures have a reason."""

from __future__ import annotations

import json

import pytest

from provision.checks.host import disk_speed
from provision.errors import ParseError
from tests.support.checks import answered, make_node, node_for


def test_its_file_is_in_the_folder_and_removed_whatever_happens() -> None:
    fio, removed = disk_speed.commands(make_node(validation_tools_scratch_dir="/scratch/a"), {})
    files = {word for word in fio.argv if word.startswith("--filename=")}
    assert files == {"--filename=/scratch/a/gpuprov-disk-speed.tmp"}
    assert fio.cwd == "/scratch/a", "a folder that is not there is told, and not made"
    assert fio.argv.count("--unlink=1") == 2
    assert removed.argv == ("rm", "-f", "--", "/scratch/a/gpuprov-disk-speed.tmp")


# Recorded with fio 3.39 (Debian 13): the reason precedes the JSON, and the last line is a brace.
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
def test_the_reason_of_a_failed_job_is_named(line: str, way: str, reason: str) -> None:
    jobs = [
        {"jobname": each, "error": int(each == way), each: {"bw_bytes": 1, "io_bytes": 1}}
        for each in ("write", "read")
    ]
    node, text = node_for("disk_speed"), f"{line}\n{json.dumps({'jobs': jobs}, indent=1)}\n"
    with pytest.raises(ParseError) as failure:
        disk_speed.parse(node, answered("disk_speed", node, text, rc=1))
    assert failure.value.what == f"fio failed to {way} in /scratch: {reason}"
