"""Write and read speed of a file in the scratch folder: a slow disk starves healthy GPUs.

Off without a folder (validation_tools_scratch_dir), because many nodes have none. It writes one file of its
own there and nothing elsewhere; the file is removed even if fio was killed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from provision import foreign_json
from provision.checks.check import CheckNode, Command, Measurement, Output, completed, last_words
from provision.checks.judge import Finding, Verdict, by_threshold
from provision.checks.thresholds import Threshold
from provision.errors import ParseError

SUMMARY = "how fast a file in the scratch folder is written and read, when a folder is given"
FINDS = "a slow disk below the scratch folder; off unless `validation_tools_scratch_dir` names one"
NEEDS: tuple[str, ...] = ("fio",)

ID = "disk_speed"

_FILE = "gpuprov-disk-speed.tmp"
_SECONDS = 15  # for each direction
_WAYS = ("write", "read")
_FAILED = re.compile(r"^fio: (?:pid=\d+, )?err=\d+/.*\berror=(.{1,200})$", re.MULTILINE)


def _folder(node: CheckNode) -> str:
    """Return the scratch folder, or "" without one; raise ParseError if it is not an absolute path."""
    folder = node.variables.get("validation_tools_scratch_dir") or ""
    # A colon separates paths for fio: it would write elsewhere.
    if (
        not isinstance(folder, str)
        or (folder and not folder.startswith("/"))
        or ":" in folder
        or ".." in folder
    ):
        raise ParseError(
            f"validation_tools_scratch_dir is {folder!r}", "give an absolute path without a colon"
        )
    return folder


def commands(node: CheckNode, options: Mapping[str, Any]) -> Sequence[Command]:  # noqa: ARG001 - the contract
    try:
        folder = _folder(node)
    except ParseError:
        return []  # `parse` reports it
    if not folder:
        return []
    program = str(node.variables.get("validation_tools_fio_path", "/usr/bin/fio"))
    file = str(PurePosixPath(folder) / _FILE)
    common = (f"--filename={file}", "--size=4G", "--bs=1M", "--ioengine=libaio", "--direct=1", "--iodepth=32")
    timed = (f"--runtime={_SECONDS}", "--time_based", "--unlink=1")
    jobs = ("--name=write", "--rw=write", *common, *timed, "--name=read", "--stonewall", "--rw=read")
    argv = (program, "--output-format=json", *jobs, *common, *timed)
    load = 2.0 * _SECONDS
    return [
        # The folder must exist: fio creates none, nor does gpuprov.
        Command("fio", argv, load + 120.0, cwd=folder, load=load),
        Command("removed", ("rm", "-f", "--", file), 30.0),
    ]


def _cause(output: Output) -> str:
    """Return the reason of fio's failure, a line above its JSON on standard output (fio 3.39).

    `fio: pid=7485, err=2/file:filesetup.c:799, func=open(/scratch/x), error=No such file or directory`"""
    match = _FAILED.search(output.stdout) or _FAILED.search(output.stderr)
    return match[1].strip() if match else last_words(output)


def parse(node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
    """Parse `write` and `read` in MB/s (10^6 bytes), with the `folder`; raise ParseError."""
    folder = _folder(node)
    measurements = [Measurement("folder", folder, "")]
    if not folder:
        return measurements
    output = completed(outputs, "fio")
    if output.truncated:
        raise ParseError("fio: the output was cut at its size limit", "run the check again")
    begin = output.stdout.find("{")
    if begin < 0:
        raise ParseError(f"fio printed no JSON: {last_words(output)}", "run fio by hand")
    try:
        document, _ = foreign_json.first(output.stdout, begin, unique=True)
        jobs = {str(job["jobname"]): job for job in document["jobs"]}
        if set(jobs) != set(_WAYS):
            raise ParseError(f"fio ran the jobs {sorted(jobs)}, not write and read", "report the new format")
        for mode in _WAYS:
            if int(jobs[mode]["error"]):
                raise ParseError(
                    f"fio failed to {mode} in {folder}: {_cause(output)}", "look at the disk and its space"
                )
            rate, moved = (_bytes(jobs[mode][mode][name]) for name in ("bw_bytes", "io_bytes"))
            if not rate or not moved:
                raise ParseError(f"fio moved nothing to {mode} in {folder}", "run the check again")
            measurements.append(Measurement(mode, round(rate / 1e6, 1), "MB/s"))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        problem = f"{type(error).__name__}: {error}"[:200]
        raise ParseError(f"fio: its JSON was not understood: {problem}", "run the check again") from error
    if output.rc:
        raise ParseError(
            f"fio ended with status {output.rc}: {_cause(output)}", "look at the disk and its space"
        )
    return measurements


def _bytes(value: Any) -> float:
    """Return a number of bytes, or of bytes per second; raise ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**63:
        raise ValueError(f"{value!r:.60} is not a number of bytes")
    return float(value)


def judge(
    node: CheckNode,  # noqa: ARG001 - the contract
    measurements: Sequence[Measurement],
    thresholds: Mapping[str, Threshold],
) -> list[Finding]:
    values = {m.metric: m for m in measurements}
    folder = str(values["folder"].value)
    if not folder:
        reason = "no scratch folder is given: set validation_tools_scratch_dir"
        return [Finding(ID, Verdict.SKIP, "node", reason, "folder")]
    return [
        by_threshold(
            ID,
            f"speed to {mode} in {folder}",
            values[mode],
            thresholds.get(f"{ID}.{mode}"),
            action="investigate",
        )
        for mode in _WAYS
    ]
