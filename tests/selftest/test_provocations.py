"""A condition is proven when the check names it; if it could not be provoked, the reason is reported."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from provision.checks.health import CheckResult
from provision.checks.judge import Finding, Verdict
from provision.validate.selftest import foreign, provocations
from provision.validate.selftest.foreign import Foreign, ForeignError
from provision.validate.selftest.machine import Tool
from provision.validate.selftest.provocations import Condition, provoke, slow
from provision.validate.selftest.result import NOT_POSSIBLE, NOT_PROVEN, PROVEN


def bench(*findings: Finding, burn: str = "/bin/true") -> Any:
    """Return a bench on which every check yields these findings."""
    verdict = findings[0].verdict if findings else Verdict.PASS
    found = CheckResult("gpu_inventory", verdict, findings, (), 1.0)
    made = SimpleNamespace(
        tools={name: Tool(name, burn, "build it") for name in ("gpu_burn", "nvidia-smi")},
        node=SimpleNamespace(variables={}, limits=dict),
        accused=set(),
        options={"burn_seconds": 60},
        commands=lambda *_, **__: [],
        run=lambda *_: (None, found),
    )
    made.with_variables = lambda **_: made
    return made


def condition(make: Any) -> Condition:
    return Condition("a condition", "done to gpu{gpu}", "gpu{gpu} named", make, ("gpu_burn",))


def used(device: str, text: str) -> Finding:
    return Finding("gpu_inventory", Verdict.WARN, device, f"is in use: {text}", "processes", text)


@pytest.mark.parametrize(
    ("make", "state", "why"),
    [
        (lambda *_: (True, "fail gpu7"), PROVEN, ""),
        (lambda *_: (False, "nothing"), NOT_PROVEN, "the check did not name it"),
    ],
)
def test_its_state_is_whether_it_was_named(make: Any, state: str, why: str) -> None:
    done = provoke(bench(), condition(make), 7)
    assert (done.state, done.why, done.done, done.expected) == (state, why, "done to gpu7", "gpu7 named")


def test_without_its_tool_it_is_not_possible() -> None:
    done = provoke(bench(burn=""), condition(lambda *_: pytest.fail("it was made")), 7)
    assert (done.state, done.why) == (NOT_POSSIBLE, "gpu_burn is not installed: build it")


def test_a_program_that_never_came_to_work_proves_nothing() -> None:
    def make(*_: object) -> tuple[bool, str]:
        raise ForeignError("gpu_burn on gpu7 alone was not at work within 30 s", "look at dmesg")

    done = provoke(bench(), condition(make), 7)
    assert done.state == NOT_PROVEN, "the machine is not accused, and not called proven"
    assert done.why == "gpu_burn on gpu7 alone was not at work within 30 s; look at dmesg"


class Holder(Foreign):
    """A foreign program with these process ids."""

    def __enter__(self) -> Foreign:
        return self

    def __exit__(self, *_: object) -> None: ...

    @property
    def pids(self) -> set[int]:
        return {4242, 4243}


@pytest.mark.parametrize(
    ("findings", "process", "memory"),
    [
        ([used("gpu7", "python3 (pid 4242, 2100 MiB)")], True, True),
        ([used("gpu7", "a (pid 1, 9 MiB), b (pid 4243, 2040 MiB)")], True, True),
        ([used("gpu7", "python3 (pid 4242, 2000 MiB)")], True, False),
        ([used("gpu7", "python3 (pid 99, 2100 MiB)")], False, True),
        ([used("gpu6", "python3 (pid 4242, 2100 MiB)")], False, False),
        ([used(gpu, "python3 (pid 4242, 2100 MiB)") for gpu in ("gpu6", "gpu7")], False, True),
        ([], False, False),
    ],
)
def test_the_process_and_its_memory_must_be_right(
    monkeypatch: pytest.MonkeyPatch, findings: list[Finding], process: bool, memory: bool
) -> None:
    monkeypatch.setattr(foreign, "memory", lambda *_: Holder("a program", 4242, 2048))
    states = {one.name: provoke(bench(*findings), one, 7).state for one in list(provocations.all_of())[:2]}
    assert [state == PROVEN for state in states.values()] == [process, memory]


@pytest.mark.parametrize(
    ("verdicts", "named"),
    [
        ({"gpu7": Verdict.FAIL}, True),
        ({"gpu7": Verdict.WARN, "node": Verdict.WARN}, True),
        ({"gpu7": Verdict.FAIL, "gpu6": Verdict.WARN}, False),
        ({"gpu6": Verdict.FAIL}, False),
        ({"node": Verdict.FAIL}, False),
        ({"gpu7": Verdict.PASS}, False),
    ],
)
def test_a_load_slows_the_one_gpu_and_no_other(verdicts: dict[str, Verdict], named: bool) -> None:
    findings = tuple(Finding("gpu_burn", verdict, device, "x") for device, verdict in verdicts.items())
    assert slow(CheckResult("gpu_burn", Verdict.FAIL, findings, (), 1.0), 7)[0] is named


@pytest.mark.parametrize(
    ("gpu", "accused", "limits", "state", "why"),
    [
        (3, set(), {}, PROVEN, ""),
        (2, set(), {}, NOT_POSSIBLE, "gpu_burn compares a GPU with its peers: that takes 4 GPUs"),
        (0, set(), {"gpu_burn.rate": 1}, PROVEN, ""),
        (3, {"node", "gpu2"}, {}, PROVEN, ""),
        (3, {"gpu3"}, {}, NOT_PROVEN, "the check gpu_burn reports a fault of gpu3 as it is"),
    ],
)
def test_a_slow_gpu_must_be_one_that_only_the_load_can_have_slowed(
    monkeypatch: pytest.MonkeyPatch,
    gpu: int,
    accused: set[str],
    limits: dict[str, int],
    state: str,
    why: str,
) -> None:
    monkeypatch.setattr(foreign, "load", lambda *_: contextlib.nullcontext())
    here = bench(Finding("gpu_burn", Verdict.FAIL, f"gpu{gpu}", "slow"))
    here.accused, here.node.limits = accused, lambda: limits
    done = provoke(here, list(provocations.all_of())[2], gpu)
    assert (done.state, done.why) == (state, why)


def test_a_check_that_does_not_run_here_names_no_missing_tool() -> None:
    done = provoke(bench(Finding("x", Verdict.SKIP, "node", "MIG is on")), list(provocations.all_of())[3], 7)
    assert (done.state, done.why) == (
        NOT_POSSIBLE,
        "memory_bandwidth measures nothing on this machine: MIG is on",
    )


@pytest.mark.parametrize(
    ("position", "message"),
    [
        (3, "/nonexistent/nvbandwidth is not installed"),
        (4, "gpu_burn did not end within 2 s"),
    ],
)
def test_an_error_must_say_what_it_is(position: int, message: str) -> None:
    one = list(provocations.all_of())[position]
    assert provoke(bench(Finding("x", Verdict.ERROR, "node", message)), one, 7).state == PROVEN
    assert provoke(bench(Finding("x", Verdict.ERROR, "node", "it failed")), one, 7).state == NOT_PROVEN
    assert provoke(bench(Finding("x", Verdict.FAIL, "node", message)), one, 7).state == NOT_PROVEN
