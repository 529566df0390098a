"""Tests of ddp_scaling: the meaning of its numbers, refused reports, and the program on the node."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from provision.checks.check import Output
from provision.checks.judge import Verdict
from provision.checks.nccl import ddp_scaling
from provision.checks.thresholds import ThresholdError, for_sku
from provision.errors import ParseError
from provision.paths import NODE
from tests.support.checks import make_node, sample

PROGRAM = NODE / "ddp_scaling.py"
PYTHON = "/opt/pytorch/bin/python3"


def outputs(text: str, mig: str = "Disabled\n" * 8, **more: Any) -> dict[str, Output]:
    fate = {"rc": 0, "stdout": text, "stderr": "", "seconds": 36.0, **more}
    return {
        "mig": Output("mig", ("nvidia-smi",), 0, mig, "", 1.0),
        "torch": Output("torch", ("python3",), **fate),
    }


def changed(text: str, where: str, /, **values: Any) -> str:
    """Return the text with other values in the line of one phase."""
    lines = [json.loads(line) for line in text.splitlines()]
    next(line for line in lines if line.get("phase") == where).update(values)
    return "".join(json.dumps(line) + "\n" for line in lines)


# --- judging ---


def test_of_two_gpus_the_limit_finds_the_slow_one() -> None:
    """With two GPUs there is no majority, and the median of both still meets the limit."""
    text, node = sample("ddp_scaling/cpu-two-ranks.jsonl").replace("gloo", "nccl"), make_node(2)
    text = changed(text, "together", compute_ms=[10.0, 10.0], step_ms=[11.0, 11.0])
    text = changed(text, "overlapped", compute_ms=[12.0, 30.0], step_ms=[31.0, 31.0])
    given = outputs(text, "Disabled\n" * 2)
    found = ddp_scaling.judge(node, ddp_scaling.parse(node, given), for_sku(node.sku))
    assert [(f.verdict, f.device, f.metric) for f in found] == [
        (Verdict.PASS, "node", "kept"),
        (Verdict.FAIL, "gpu1", "kept"),
    ]


def test_what_comes_out_of_a_sample() -> None:
    each = {"steps": [225] * 8, "step_ms": [10.0] * 8}
    text = sample("ddp_scaling/healthy.jsonl")
    for phase, values in {
        "alone": {**each, "step_ms": [9.0] * 8, "compute_ms": [8.0] * 8},
        "together": {**each, "compute_ms": [9.0] * 8},
        "all_reduce": {**each, "step_ms": [6.0] * 8},
        "overlapped": {**each, "step_ms": [13.0] * 8, "compute_ms": [12.5] * 8},
        "ddp": {**each, "step_ms": [12.0] * 8},
    }.items():
        text = changed(text, phase, **values)
    found = {(m.device, m.metric): m.value for m in ddp_scaling.parse(make_node(), outputs(text))}
    assert found["node", "step"] == 12.0
    assert found["node", "series_share"] == 75.0  # 12 / (10 + 6)
    assert (found["gpu3", "kept"], found["node", "kept"]) == (72.0, 72.0)  # 9 / 12.5
    assert found["node", "efficiency"] == 75.0  # 9 / 12
    assert (found["gpu7", "overlapped"], found["gpu0", "alone"]) == (80.0, 111.111)


@pytest.mark.parametrize(("limit", "said"), [(37, "too loose"), (45, ""), (101, "no machine passes")])
def test_a_limit_that_finds_nothing_or_everybody_is_refused(limit: int, said: str, tmp_path: Path) -> None:
    file = tmp_path / "ours.yml"
    row = f"{{limit: {limit}, unit: '%', direction: at_least, source: our own fleet, kind: measured}}"
    file.write_text(f"sku: h100-sxm\nthresholds:\n  ddp_scaling.kept: {row}\n")
    if not said:
        assert for_sku("h100-sxm", file)["ddp_scaling.kept"].limit == limit
        return
    with pytest.raises(ThresholdError, match=said):
        for_sku("h100-sxm", file)


# --- commands, and nodes that need none ---


def test_the_program_goes_along_and_needs_no_file() -> None:
    mig, torch = ddp_scaling.commands(make_node(4), {})
    assert torch.argv == ("python3", "-I", "-c", PROGRAM.read_text("utf-8"), "--ranks", "4")
    assert torch.env == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert mig.argv[0] == "nvidia-smi"
    (_, named) = ddp_scaling.commands(make_node(validation_tools_torch_python=PYTHON), {})
    assert named.argv[0] == PYTHON


def test_one_argument_of_a_command_line_can_carry_the_program() -> None:
    assert len(PROGRAM.read_bytes()) < 128 * 1024  # MAX_ARG_STRLEN, execve(2)


def test_slices_are_no_gpus() -> None:
    given = outputs(sample("ddp_scaling/seven-gpus.jsonl"), "Disabled\n" * 7 + "Enabled\n")
    found = ddp_scaling.judge(make_node(), ddp_scaling.parse(make_node(), given), {})
    assert [f.verdict for f in found] == [Verdict.SKIP]


# --- refused reports ---


def test_a_real_run_is_read_but_for_its_backend() -> None:
    """Recorded with PyTorch 2.14.1 and two ranks on CPUs, hence gloo."""
    text, node = sample("ddp_scaling/cpu-two-ranks.jsonl"), make_node(2)
    with pytest.raises(ParseError, match="torch ran on gloo, not on GPUs"):
        ddp_scaling.parse(node, outputs(text, "Disabled\n" * 2))
    found = ddp_scaling.parse(node, outputs(text.replace("gloo", "nccl"), "Disabled\n" * 2))
    assert {m.device for m in found} == {"node", "gpu0", "gpu1"}
    assert {m.metric for m in found} >= {"overlapped", "compute", "alone", "series_share", "efficiency"}


@pytest.mark.parametrize(
    ("phase", "values", "said"),
    [
        ("overlapped", {"compute_ms": [12.0] * 7}, "its line on overlapped"),
        ("overlapped", {"compute_ms": ["12.0"] * 8}, "its line on overlapped"),
        ("together", {"step_ms": [float("nan")] * 8}, "instead of a result"),
        ("all_reduce", {"step_ms": [0] * 8}, "its line on all_reduce"),
        ("alone", {"more": 1}, "its line on alone"),
        ("ddp", {"phase": "fsdp"}, "torch reported alone, together, all_reduce, overlapped, fsdp"),
        ("together", {"compute_ms": [1e6] * 8}, "longer than the step"),
        ("ddp", {"step_ms": [11.0] * 7 + [15.0]}, "disagree on how long a common step took"),
    ],
)
def test_an_unknown_or_contradictory_form_is_refused(phase: str, values: Any, said: str) -> None:
    text = changed(sample("ddp_scaling/healthy.jsonl"), phase, **values)
    with pytest.raises(ParseError, match=said):
        ddp_scaling.parse(make_node(), outputs(text))


@pytest.mark.parametrize("fate", [{"rc": 1}, {"truncated": True}, {"rc": None, "timed_out": True}])
def test_a_run_that_did_not_end_well_is_no_measurement(fate: Any) -> None:
    with pytest.raises(ParseError):
        ddp_scaling.parse(make_node(), outputs(sample("ddp_scaling/healthy.jsonl"), **fate))


# --- the program itself, up to where it needs torch ---


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", PROGRAM.read_text("utf-8"), *words]
    env = {**os.environ, **environment}
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_the_program_imports_torch_only_by_name_and_only_for_a_rank() -> None:
    tree = ast.parse(PROGRAM.read_text("utf-8"), feature_version=(3, 6))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names


def test_where_there_is_no_torch_it_says_so_and_starts_nothing(tmp_path: Path) -> None:
    argv = [sys.executable, "-I", "-S", "-c", PROGRAM.read_text("utf-8"), "--ranks", "8"]
    answer = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path)
    assert json.loads(answer.stdout) == {"ddp_scaling": 1, "absent": f"there is no torch in {sys.executable}"}
    node = make_node()
    (found,) = ddp_scaling.parse(node, outputs(answer.stdout))
    assert found.metric == "absent"


def test_a_torch_that_cannot_be_loaded_is_told_by_every_rank(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libcudnn.so.9: cannot open shared object file')\n")
    answer = run("--ranks", "2", PYTHONPATH=str(tmp_path))
    assert answer.returncode == 1
    with pytest.raises(ParseError, match=r"gpu[01].*: OSError: libcudnn.so.9"):
        ddp_scaling.parse(make_node(2), outputs(answer.stdout, "Disabled\n" * 2, rc=1))


def test_a_rank_that_is_killed_ends_the_others(tmp_path: Path) -> None:
    """The others would otherwise wait for it until their deadline."""
    (tmp_path / "torch.py").write_text(
        "import os, time\n"
        "try: os.open('first', os.O_CREAT | os.O_EXCL)\n"
        "except FileExistsError: time.sleep(600)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    argv = [sys.executable, "-c", PROGRAM.read_text("utf-8"), "--ranks", "2"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    answer = subprocess.run(
        argv, env=env, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert answer.returncode == 1
    (said,) = json.loads(answer.stdout)["errors"].values()
    assert said == "killed by signal 9"
