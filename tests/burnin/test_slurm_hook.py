"""Example hook for Slurm, run with fake scontrol and squeue that keep a node's state in files."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

HOOK = Path(__file__).resolve().parents[2] / "docs" / "examples" / "slurm-hook"

# scontrol show node prints one line, as in Slurm 23.11, and Reason= only if there is a reason.
SCONTROL = """#!/bin/sh
echo "$@" >> {folder}/calls
case "$1" in
show) echo "NodeName=$4 Arch=x86_64 State=IDLE$(cat {folder}/reason) Owner=N/A" ;;
update)
    for word; do
        case "$word" in
        Reason=*) echo " $word [root@2026-11-21T10:00:00]" > {folder}/reason ;;
        State=RESUME) : > {folder}/reason ;;
        esac
    done ;;
esac
"""


@pytest.fixture
def slurm(tmp_path: Path) -> Path:
    for name, text in (
        ("scontrol", SCONTROL.format(folder=tmp_path)),
        ("squeue", f"#!/bin/sh\ncat {tmp_path}/jobs\n: > {tmp_path}/jobs\n"),
        ("sleep", "#!/bin/sh\nexec /bin/sleep 0.2\n"),
        ("hook", HOOK.read_text().replace("/opt/slurm/bin", str(tmp_path))),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    for name in ("reason", "jobs", "calls"):
        (tmp_path / name).touch()
    return tmp_path


def start(slurm: Path, event: str) -> subprocess.Popen[str]:
    environment = {"PATH": os.defpath, "GPUPROV_HOOK": event, "GPUPROV_RUN": "20261121-up"}
    return subprocess.Popen(
        [slurm / "hook", "gpu-01"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(slurm: Path, event: str) -> tuple[int, str]:
    process = start(slurm, event)
    said, _ = process.communicate(timeout=30)
    return process.returncode, said


def updates(slurm: Path) -> list[str]:
    return [line for line in (slurm / "calls").read_text().splitlines() if line.startswith("update")]


def test_it_drains_waits_for_jobs_and_resumes(slurm: Path) -> None:
    (slurm / "jobs").write_text("4711\n4712\n")
    assert run(slurm, "drain") == (0, "waiting for the jobs 4711 4712\n")
    assert run(slurm, "drain")[0] == 0  # a second call, as from a resumed run
    assert run(slurm, "undrain") == (0, "")
    drain = "update NodeName=gpu-01 State=DRAIN Reason=gpuprov:20261121-up"
    assert updates(slurm) == [drain, drain, "update NodeName=gpu-01 State=RESUME"]


def test_a_node_that_somebody_else_drained_is_theirs(slurm: Path) -> None:
    (slurm / "reason").write_text(" Reason=bad_fan [root@2026-11-20T10:00:00]")
    assert run(slurm, "drain") == (0, "drained by somebody else already (bad_fan)\n")
    assert run(slurm, "undrain") == (0, "not drained by gpuprov: left as it is\n")
    assert updates(slurm) == []


def test_out_of_time_it_puts_the_node_back(slurm: Path) -> None:
    (slurm / "squeue").write_text("#!/bin/sh\necho 4711\n")
    process = start(slurm, "drain")
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting for the jobs 4711\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 1
    assert updates(slurm)[-1] == "update NodeName=gpu-01 State=RESUME"


def test_a_scheduler_that_does_not_answer_is_a_failure(slurm: Path) -> None:
    (slurm / "squeue").write_text("#!/bin/sh\necho slurm_load_jobs error >&2\nexit 1\n")
    assert run(slurm, "drain")[0] == 1
    (slurm / "scontrol").write_text("#!/bin/sh\nexit 1\n")
    assert run(slurm, "drain")[0] == 1


def test_called_by_hand_without_its_environment_it_says_so(slurm: Path) -> None:
    assert run(slurm, "reboot") == (2, "GPUPROV_HOOK is neither drain nor undrain\n")
