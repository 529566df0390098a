"""Health results that make a node a failed node, and the cause that is recorded."""

from __future__ import annotations

from typing import Any

import pytest

from provision.checks.judge import Verdict
from provision.remote.protocol import unreachable
from provision.up.watch.seen import recorded, seen
from provision.validate.status.status import judged
from tests.support.health_results import finding, printed, result

NOW = 1_800_000_000.0


def with_findings(*findings: dict[str, Any], verdict: str = "fail") -> Any:
    return judged("gpu-03", printed(result(verdict=verdict, measured=verdict, findings=list(findings))))


def test_a_lost_gpu_is_fatal_with_its_serial_number_and_what_to_do() -> None:
    found = seen(with_findings(finding()), NOW)
    assert (found.fatal, found.healthy, found.verdict) == (True, False, Verdict.FAIL)
    assert found.cause == "gpu3 has fallen off the bus (Xid 79)"
    assert (found.device, found.serial, found.action) == ("gpu3", "1650923004321", "power-cycle")


def test_the_cause_names_the_device() -> None:
    found = seen(with_findings(finding(message="does not answer: 'GPU is lost'")), NOW)
    assert found.cause == "gpu3: does not answer: 'GPU is lost'"
    assert (
        seen(with_findings(finding(device="node", message="the disk is full")), NOW).cause
        == "the disk is full"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "pending"},
        {"verdict": "warn"},
        {"action": "restart job"},
        {"action": "run again"},
    ],
    ids=["not often enough", "a warning", "the job's fault", "not measured well"],
)
def test_what_is_no_fault_of_the_node_is_not_fatal(changes: dict[str, Any]) -> None:
    assert not seen(with_findings(finding(**changes), verdict="warn"), NOW).fatal


def test_a_finding_that_clears_still_counts() -> None:
    assert seen(with_findings(finding(state="clearing", clean=1)), NOW).fatal


def test_an_old_result_is_neither_fatal_nor_healthy() -> None:
    found = seen(judged("gpu-03", printed(result(findings=[finding()], verdict="fail"), uptime=90000.0)), NOW)
    assert (found.fatal, found.healthy, found.silent) == (False, False, False)


def test_a_silent_node_is_since_when_it_fell_silent() -> None:
    first = seen(judged("gpu-03", unreachable("no route to host")), NOW)
    assert first.silent
    later = seen(judged("gpu-03", unreachable("no route to host")), NOW + 60, first)
    assert later.since == NOW
    assert seen(with_findings(verdict="pass"), NOW + 70, later).since == NOW + 70


def test_a_silent_node_stays_silent_in_other_words() -> None:
    """The wording of the error differs from try to try, but the node has been silent all along."""
    first = seen(judged("gpu-03", unreachable("no route to host")), NOW)
    later = seen(judged("gpu-03", unreachable("it closed the connection")), NOW + 60, first)
    assert later.since == NOW


def test_a_row_of_the_history_is_read_back() -> None:
    found = seen(with_findings(finding()), NOW)
    assert recorded(found.row(NOW)) == found
    with pytest.raises(ValueError, match="must be texts"):
        recorded({"node": 3})
