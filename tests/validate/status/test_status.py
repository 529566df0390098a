"""A node is healthy only with a fresh, valid and complete health result; everything else is an error,
in one line."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from provision import __version__
from provision.checks.judge import Verdict
from provision.remote.protocol import NodeError
from provision.validate.status.status import NodeStatus, judged
from tests.support.health_results import failed, finding, printed, result


def of(document: Any = None, **changes: Any) -> NodeStatus:
    return judged("gpu-01", printed(document, **changes))


def test_a_fresh_result_is_believed() -> None:
    status = of()
    assert (status.verdict, status.trouble, status.age) == (Verdict.PASS, "", 30.0)
    assert status.counts
    assert of(failed()).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("uptime", "interval", "verdict"),
    [
        (86400 + 180, 60, Verdict.PASS),
        (86400 + 181, 60, Verdict.ERROR),
        (86400 + 179, 10, Verdict.PASS),  # at least three minutes
        (86400 + 3600, 1200, Verdict.PASS),
        (86400 + 3601, 1200, Verdict.ERROR),
    ],
)
def test_a_result_counts_for_three_of_its_intervals(uptime: float, interval: int, verdict: Verdict) -> None:
    assert of(result(interval=interval), uptime=uptime).verdict is verdict


def test_an_old_result_is_told_with_its_age_and_where_to_look() -> None:
    status = of(uptime=86400 + 720)
    assert status.trouble == "the health result is 12 min old: systemctl status gpuprov-node-health.timer"
    assert not status.counts
    # A stale verdict is mentioned but does not count.
    status = of(failed(), uptime=86400 + 720)
    assert status.verdict is Verdict.ERROR
    assert "12 min old (it says fail): systemctl" in status.trouble
    assert status.held == ()


def test_a_result_from_before_a_reboot_does_not_count() -> None:
    status = of(uptime=125.0, boot_id="another")
    assert status.verdict is Verdict.ERROR
    assert status.trouble.startswith(
        "the health result is from before the last boot, 2 min 5 s ago: systemctl"
    )
    assert status.age is None


def test_the_wall_clock_does_not_matter() -> None:
    for written in (0.0, 1e9, 4e9):
        assert of(written=written).verdict is Verdict.PASS
        assert of(written=written, uptime=86400 + 1000).verdict is Verdict.ERROR
    assert of(result(started="1970-01-01T00:00:00Z", finished="2099-01-01T00:00:00Z")).age == 30.0


def test_a_result_that_is_ahead_of_the_clock_since_boot_is_not_believed() -> None:
    status = of(uptime=86400 - 1.0)  # both values are rounded
    assert (status.verdict, status.age) == (Verdict.PASS, 0.0)
    status = of(uptime=86400 - 90.0)
    assert status.verdict is Verdict.ERROR
    assert "ahead of the node's clock since boot by 1 min 30 s" in status.trouble
    assert status.age is None


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in result().items() if key != name}


DEEP = b"[" * 100_000
BAD: dict[str, tuple[Any, str]] = {
    "empty": (b"", "is not JSON"),
    "cut": (json.dumps(result()).encode()[:200], "is not JSON"),
    "not text": (b"\xff\xfe\x00", "is not JSON"),
    "deep": (DEEP, "is not JSON"),
    "NaN": (json.dumps(result(uptime=float("nan"))).encode(), "is not JSON"),
    "raw control characters": (json.dumps(result()).encode().replace(b"debian", b"\x1b[2J"), "is not JSON"),
    "a list": (b"[]", "is not a JSON object"),
    "newer format": (
        result(format=2),
        "has format 2, and this gpuprov reads 1: update gpuprov on this machine",
    ),
    "format 0": (result(format=0), "has no format that exists: 0"),
    "format as text": (result(format="1"), "format must be a whole number"),
    "format true": (result(format=True), "format must be a whole number"),
    "a verdict nobody knows": (result(verdict="fine"), "verdict must be one of pass, skip"),
    "a verdict that is none": (result(verdict=None), "verdict must be one of"),
    "infinite uptime": (
        json.dumps(result()).encode().replace(b"86400.0", b"1e999"),
        "the number 1e999 is too large",
    ),
    "uptime as text": (result(uptime="86400"), "uptime must be a number"),
    "negative interval": (result(interval=-60), "interval must be a number"),
    "an interval of a year": (result(interval=366 * 86400), "interval must be a number"),
    "huge interval": (result(interval=10**400), "a number of 401 digits"),
    "findings as an object": (result(findings={}), "findings must be a list"),
    "findings of text": (result(findings=["x"]), "findings must be a list of objects"),
    "a passed finding": (
        result(findings=[finding(verdict="pass")]),
        "findings must be findings that are no pass",
    ),
    "a state nobody knows": (result(findings=[finding(state="gone")]), "state must be one of active"),
    "evidence of numbers": (result(findings=[finding(evidence=[1])]), "evidence must be a list of texts"),
    "escaped control characters": (result(facts={"os": "\x1b[2J"}), "has control characters, in facts"),
    "a name with a control character": (result(facts={"\x07": 1}), "has control characters, in facts"),
    "a message that moves the cursor": (
        result(findings=[finding(message="\x1b[A gone")]),
        "has control characters, in message",
    ),
    "half a surrogate pair": (
        json.dumps(result()).encode().replace(b"debian", b"\\ud800"),
        "has control characters, in facts",
    ),
    "a version that turns the line round": (result(gpuprov="\u202e"), "has control characters, in gpuprov"),
    "100 MB": (b"{" + b" " * 100_000_000, "is larger than 256 KiB"),
    "one byte too many": (json.dumps(result()).encode().ljust(256 * 1024 + 1), "is larger than 256 KiB"),
    **{
        f"without {name}": (without(name), f"{name} must be")
        for name in result()
        if name not in ("node", "started")
    },
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_result_is_one_line_and_never_healthy(name: str) -> None:
    health, words = BAD[name]
    status = of(health)
    assert status.verdict is Verdict.ERROR
    assert status.trouble.startswith("the health result ")
    assert words in status.trouble
    assert status.trouble.endswith(": log in and look at /run/gpuprov/health.json")
    assert status.trouble.isprintable()
    assert status.document is None
    assert status.health.verdict is Verdict.ERROR


def test_as_many_bytes_as_are_allowed_are_read() -> None:
    assert of(json.dumps(result()).encode().ljust(256 * 1024)).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("problem", "detail", "words"),
    [
        ("absent", "", "no health result: the role node_health is not applied"),
        (
            "refused",
            "/run/gpuprov/health.json belongs to uid 1000, not to root",
            "the health result is not believed: /run/gpuprov/health.json belongs to uid 1000, not to root",
        ),
        (
            "unreadable",
            "/run/gpuprov: permission denied",
            "the health result cannot be read: /run/gpuprov: permission denied "
            "(run as uid 1000, without sudo: ansible_become is off)",
        ),
    ],
)
def test_why_there_is_no_result(problem: str, detail: str, words: str) -> None:
    status = of(b"", problem=problem, detail=detail, uid=1000)
    assert (status.verdict, status.trouble) == (Verdict.ERROR, words)


@pytest.mark.parametrize(
    "changes",
    [
        {"problem": "fine"},
        {"uptime": "soon"},
        {"uptime": -1},
        {"uptime": 10**400},
        {"written": 1e15},
        {"slurm": {"name": "gpu-01"}},
        {"slurm": []},
        {"uid": None},
    ],
)
def test_an_answer_that_the_program_would_not_give_is_unreadable(changes: dict[str, Any]) -> None:
    status = of(**changes)
    assert (status.verdict, status.state) == (Verdict.ERROR, "unreadable")
    assert "its answer is not of the form expected" in status.trouble


@pytest.mark.parametrize("health", ["", "!!!!", "AAAA", "eJwDAAAAAAE"])
def test_a_result_that_is_not_packed_as_agreed_is_an_error(health: str) -> None:
    status = of(None, health=health)
    assert status.verdict is Verdict.ERROR
    assert re.match("the health result (did not come through whole|is not JSON)", status.trouble)


def test_no_answer_at_all() -> None:
    gone = judged("gpu-01", NodeError("unreachable", "10.0.0.1 refused the connection", "start sshd there"))
    assert (gone.state, gone.verdict) == ("unreachable", Verdict.ERROR)
    assert gone.trouble == "10.0.0.1 refused the connection → start sshd there"
    assert gone.health.unreachable
    odd = judged("gpu-01", b"Last login: today")
    assert (odd.state, odd.verdict) == ("unreadable", Verdict.ERROR)
    assert odd.health.error.startswith("unreadable: it answered something else: 'Last login: today'")


def test_a_node_is_not_better_than_its_findings() -> None:
    assert of(result(verdict="pass", findings=[finding()])).verdict is Verdict.FAIL
    assert of(result(verdict="warn", findings=[finding(state="clearing")])).verdict is Verdict.FAIL
    assert (
        of(result(verdict="pass", measured="fail", findings=[finding(state="pending")])).verdict
        is Verdict.PASS
    )


def test_a_result_that_measured_nothing_proves_nothing() -> None:
    status = of(result(checks=[]))
    assert status.verdict is Verdict.ERROR
    assert "ran no check" in status.trouble
    status = of(result(error="nvidia-smi did not answer"))
    assert status.verdict is Verdict.ERROR
    assert status.trouble == "the health program could not judge the node: nvidia-smi did not answer"
    assert of(result(verdict="error", measured="error")).health.verdict is Verdict.ERROR


def test_another_version_is_no_error() -> None:
    assert of(result(gpuprov="0.0.9")).verdict is Verdict.PASS
    assert of(result(gpuprov="99.0.0")).verdict is Verdict.PASS
    assert __version__ not in ("0.0.9", "99.0.0")


def test_an_action_that_a_newer_program_knows_does_not_hide_its_fault() -> None:
    status = of(result(verdict="fail", findings=[finding(action="ask the oracle")]))
    assert status.verdict is Verdict.FAIL
    assert status.held[0].finding.action == "investigate"


def test_pending_findings_are_no_findings_of_the_report() -> None:
    health = of(result(findings=[finding(state="pending")])).health
    assert (health.verdict, health.checks) == (Verdict.PASS, ())
    (check,) = of(failed()).health.checks
    assert (check.check, check.verdict, check.findings[0].device) == ("gpu_inventory", Verdict.FAIL, "gpu3")


def test_whatever_is_changed_in_a_healthy_result_nothing_raises() -> None:
    """Not every change makes the result bad, but none may crash the reader or turn a failed node healthy."""
    drawn = random.Random(20261125)  # noqa: S311
    whole = json.dumps(failed()).encode()
    for _ in range(2000):
        changed = bytearray(whole)
        for _ in range(drawn.randint(1, 8)):
            at = drawn.randrange(len(changed))
            match drawn.randrange(3):
                case 0:
                    changed[at] = drawn.randrange(256)
                case 1:
                    del changed[at : at + drawn.randint(1, 20)]
                case _:
                    changed[at:at] = bytes(drawn.choices(b'{}[]",:0e9\\u-tn', k=drawn.randint(1, 5)))
        status = of(bytes(changed))
        assert status.trouble.isprintable()
        if status.verdict is Verdict.PASS:
            pytest.fail(f"healthy: {bytes(changed)!r}")
