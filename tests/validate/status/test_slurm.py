"""Parsing `scontrol show node`."""

from __future__ import annotations

import pytest

from provision.validate.status.slurm import SlurmState, parsed
from tests.support import slurm


def sample(state: str, reason: str = "") -> str:
    return slurm.sample("gpu-01", state, reason)


def test_state_and_reason() -> None:
    text = sample("IDLE+DRAIN", "gpuprov: gpu3 Xid 79 [root@2026-11-25T10:00:00]")
    assert parsed("gpu-01", text, "") == SlurmState(
        "gpu-01", "IDLE+DRAIN", "gpuprov: gpu3 Xid 79 [root@2026-11-25T10:00:00]"
    )
    assert parsed("gpu-01", sample("MIXED"), "") == SlurmState("gpu-01", "MIXED")


def test_a_reason_that_looks_like_a_state_is_none() -> None:
    text = sample("DOWN", "was well [root@2026-11-25T10:00:00]\n          State=IDLE ")
    assert parsed("gpu-01", text, "").state == "DOWN"


@pytest.mark.parametrize(
    ("state", "takes"),
    [
        ("IDLE", True),
        ("ALLOCATED", True),
        ("MIXED+PLANNED", True),
        ("ALLOCATED+COMPLETING", True),
        ("IDLE+DRAIN", False),
        ("MIXED+DRAIN", False),
        ("DOWN", False),
        ("DOWN+DRAIN+NOT_RESPONDING", False),
        ("IDLE+MAINTENANCE", False),
        ("IDLE+RESERVED", False),
        ("IDLE*", False),
        ("IDLE+SOMETHING_NEW", False),
    ],
)
def test_whether_it_takes_jobs(state: str, takes: bool) -> None:
    assert parsed("gpu-01", sample(state), "").takes_jobs is takes


@pytest.mark.parametrize(
    ("text", "problem", "words"),
    [
        (
            "Node gpu-01 not found\n",
            "scontrol ended with status 1",
            "scontrol ended with status 1: Node gpu-01 not found",
        ),
        ("", "no answer within 5 s", "no answer within 5 s"),
        ("", "", "scontrol printed nothing"),
        (sample("IDLE").replace("gpu-01", "gpu-02"), "", ""),
        ("NodeName=gpu-01 Arch=x86_64 \n", "", "NodeName=gpu-01 Arch=x86_64"),
        ("\x1b[2J\n", "", "�[2J"),
    ],
)
def test_what_is_not_understood_is_no_state(text: str, problem: str, words: str) -> None:
    found = parsed("gpu-01", text, problem)
    assert (found.state, found.takes_jobs) == ("", False)
    assert found.error
    assert words in found.error
