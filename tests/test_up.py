"""The wave logic of `up`, with hands that only remember: what is run on whom, and what a node's end is
called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from provision.drift import Drift
from provision.errors import ExitCode
from provision.expectations import Expectation
from provision.plan import NodePlan, Plan
from provision.runner import Outcome
from provision.up import SETTLE_LOOKS, Look, Settings, Up
from provision.up_result import Result, Status, exit_code

ORDER = ("nvidia_driver", "nvlink", "nccl")


def drift(
    node: str, role: str = "nccl", *, reboot: bool = False, unknown: bool = False, fact: str = ""
) -> Drift:
    expectation = Expectation(role, fact or f"package.{role}.version", "equals", "2", "because", reboot)
    return Drift(node, expectation, "1", unknown, "no such tool" if unknown else "")


def plan_of(drifts: Mapping[str, Sequence[Drift]], wave_size: int = 100) -> Plan:
    nodes = {}
    for node, found in drifts.items():
        roles = tuple(role for role in ORDER if role in {d.expectation.role for d in found})
        nodes[node] = NodePlan(node, roles, tuple(found), any(d.expectation.reboot for d in found), 1.0)
    names = list(nodes)
    waves = tuple(tuple(names[i : i + wave_size]) for i in range(0, len(names), wave_size))
    return Plan(nodes, waves, {})


@dataclass
class Remembering:
    """Hands that answer from scripts: one list of looks per node, each look used once, the last one for
    ever."""

    looks: dict[str, list[Look]] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    reboots: dict[str, Outcome] = field(default_factory=dict)
    calls: list[tuple[str, Any]] = field(default_factory=list)
    on_apply: Callable[[], None] = lambda: None
    paused: list[float] = field(default_factory=list)

    def pause(self, seconds: float) -> None:
        self.paused.append(seconds)

    def look(self, nodes: Sequence[str]) -> Mapping[str, Look]:
        self.calls.append(("look", tuple(nodes)))
        answers = {}
        for node in nodes:
            script = self.looks.get(node, [Look(node)])
            answers[node] = script.pop(0) if len(script) > 1 else script[0]
        return answers

    def apply(self, roles: Mapping[str, tuple[str, ...]]) -> Mapping[str, Outcome]:
        self.calls.append(("apply", dict(roles)))
        self.on_apply()
        return {node: self.outcomes.get(node, Outcome(node, "ok", 1)) for node in roles}

    def reboot(self, nodes: Sequence[str]) -> Mapping[str, Outcome]:
        self.calls.append(("reboot", tuple(nodes)))
        return {node: self.reboots.get(node, Outcome(node, "ok", 1)) for node in nodes}


def carry_out(plan: Plan, hands: Remembering, **settings: Any) -> Up:
    order = {"role_order": ORDER, **settings}
    told: list[Result] = []
    up = Up(plan, hands, Settings(**order), on_result=told.append, pause=hands.pause)
    up.run()
    assert told == list(up.results.values())
    return up


def statuses(up: Up) -> dict[str, Status]:
    return {node: result.status for node, result in up.results.items()}


def test_a_node_is_done_only_when_a_second_look_says_so() -> None:
    hands = Remembering(looks={"bad": [Look("bad", (drift("bad"),))]})
    up = carry_out(plan_of({"good": [drift("good")], "bad": [drift("bad")]}), hands)
    assert statuses(up) == {"good": Status.DONE, "bad": Status.NOT_HELD}
    assert up.results["bad"].drifts == (drift("bad"),)
    assert up.results["good"].roles == ("nccl",)
    assert exit_code(up.results.values()) == ExitCode.UNHEALTHY
    # The same role for the same reason is not run twice.
    assert [call for call in hands.calls if call[0] == "apply"] == [
        ("apply", {"good": ("nccl",), "bad": ("nccl",)})
    ]


def test_each_node_gets_its_own_roles() -> None:
    hands = Remembering()
    carry_out(
        plan_of({"a": [drift("a", "nvlink")], "b": [drift("b", "nccl"), drift("b", "nvidia_driver")]}), hands
    )
    assert hands.calls[0] == ("apply", {"a": ("nvlink",), "b": ("nvidia_driver", "nccl")})


def test_a_failed_role_fails_the_node_and_the_others_go_on() -> None:
    hands = Remembering(outcomes={"a": Outcome("a", "failed", 2, "nccl", "Install", "E: no such version")})
    up = carry_out(plan_of({"a": [drift("a")], "b": [drift("b")]}), hands)
    assert statuses(up) == {"a": Status.FAILED, "b": Status.DONE}
    failed = up.results["a"]
    assert (failed.role, failed.task, failed.message, failed.changed) == (
        "nccl",
        "Install",
        "E: no such version",
        2,
    )
    assert ("look", ("b",)) in hands.calls
    assert exit_code(up.results.values()) == ExitCode.UNHEALTHY


def test_a_node_that_dies_in_the_middle_is_unreachable_and_nothing_worse() -> None:
    hands = Remembering(
        outcomes={"a": Outcome("a", "unreachable", message="no route to host")},
        looks={"b": [Look("b", error="silent", unreachable=True)]},
    )
    up = carry_out(plan_of({"a": [drift("a")], "b": [drift("b")], "c": [drift("c")]}), hands)
    assert statuses(up) == {"a": Status.UNREACHABLE, "b": Status.UNREACHABLE, "c": Status.DONE}
    assert exit_code(up.results.values()) == ExitCode.INCOMPLETE


def test_a_host_the_playbook_said_nothing_about_has_failed() -> None:
    class Silent(Remembering):
        def apply(self, _roles: Mapping[str, tuple[str, ...]]) -> Mapping[str, Outcome]:
            return {}

    up = carry_out(plan_of({"a": [drift("a")]}), Silent())
    assert up.results["a"].status is Status.FAILED
    assert up.results["a"].message == "nothing was run on it"


def test_what_waits_for_a_reboot_is_rebooted_and_looked_at_again() -> None:
    waiting = drift("a", "nvidia_driver", reboot=True)
    hands = Remembering(looks={"a": [Look("a", (waiting,)), Look("a")]})
    up = carry_out(plan_of({"a": [waiting], "b": [drift("b")]}), hands)
    assert [call for call in hands.calls if call[0] != "apply"] == [
        ("look", ("a", "b")),
        ("reboot", ("a",)),
        ("look", ("a",)),
    ]
    assert statuses(up) == {"a": Status.DONE, "b": Status.DONE}
    assert up.results["a"].rebooted
    assert not up.results["b"].rebooted


def test_a_node_that_asks_for_a_reboot_gets_it() -> None:
    hands = Remembering(looks={"a": [Look("a", boot_required="linux-image"), Look("a")]})
    up = carry_out(plan_of({"a": [drift("a")]}), hands)
    assert ("reboot", ("a",)) in hands.calls
    assert up.results["a"].status is Status.DONE


def test_without_reboots_a_node_says_what_it_waits_for() -> None:
    waiting = drift("a", "nvidia_driver", reboot=True)
    hands = Remembering(looks={"a": [Look("a", (waiting,))], "b": [Look("b", boot_required="linux-image")]})
    up = carry_out(plan_of({"a": [waiting], "b": [drift("b")]}), hands, may_reboot=False)
    assert statuses(up) == {"a": Status.REBOOT_NEEDED, "b": Status.DONE}
    assert "linux-image" in up.results["b"].message
    assert not [call for call in hands.calls if call[0] == "reboot"]
    assert exit_code(up.results.values()) == ExitCode.UNHEALTHY


def test_a_node_that_does_not_come_back_is_this_waves_failure() -> None:
    waiting = drift("a", "nvidia_driver", reboot=True)
    hands = Remembering(
        looks={"a": [Look("a", (waiting,))]},
        reboots={"a": Outcome("a", "failed", role="", task="Reboot", message="timed out waiting")},
    )
    up = carry_out(plan_of({"a": [waiting], "b": [drift("b")]}, wave_size=1), hands)
    assert statuses(up) == {"a": Status.FAILED, "b": Status.NOT_ATTEMPTED}
    assert up.results["a"].rebooted


def test_a_promise_broken_by_another_role_gets_a_second_pass() -> None:
    broken = drift("a", "nvlink", fact="service.fabricmanager.active")
    hands = Remembering(looks={"a": [Look("a", (broken,)), Look("a")]})
    up = carry_out(plan_of({"a": [drift("a", "nvidia_driver")]}), hands)
    applied = [call[1] for call in hands.calls if call[0] == "apply"]
    assert applied == [{"a": ("nvidia_driver",)}, {"a": ("nvlink",)}]
    assert up.results["a"].status is Status.DONE
    assert up.results["a"].roles == ("nvidia_driver", "nvlink")


def test_there_is_no_third_pass() -> None:
    looks = [Look("a", (drift("a", "nvlink", fact=f"fact.{number}.x"),)) for number in range(5)]
    hands = Remembering(looks={"a": looks})
    up = carry_out(plan_of({"a": [drift("a", "nvidia_driver")]}), hands)
    assert len([call for call in hands.calls if call[0] == "apply"]) == 2
    assert up.results["a"].status is Status.NOT_HELD


def test_roles_that_had_waited_for_the_reboot_run_again_after_it() -> None:
    driver, fabric = drift("a", "nvidia_driver", reboot=True), drift("a", "nvlink")
    hands = Remembering(
        looks={"a": [Look("a", (driver, fabric)), Look("a", (fabric,)), Look("a", (fabric,)), Look("a")]}
    )
    up = carry_out(plan_of({"a": [driver, fabric]}), hands)
    assert [call[0] for call in hands.calls] == ["apply", "look", "reboot", "look", "look", "apply", "look"]
    assert hands.calls[5] == ("apply", {"a": ("nvlink",)})
    assert up.results["a"].status is Status.DONE


def service(node: str, state: str) -> Drift:
    expectation = Expectation("nvlink", "service.fabricmanager.active", "equals", "active", "because")
    return Drift(node, expectation, state)


def test_what_is_still_starting_is_waited_for_and_no_role_runs_again() -> None:
    starting = Look("a", (service("a", "activating"),))
    hands = Remembering(looks={"a": [starting, starting, starting, Look("a")]})
    up = carry_out(plan_of({"a": [drift("a", "nvlink")], "b": [drift("b")]}), hands)
    assert statuses(up) == {"a": Status.DONE, "b": Status.DONE}
    assert [call for call in hands.calls if call[0] == "look"] == [("look", ("a", "b"))] + [
        ("look", ("a",))
    ] * 3
    assert len([call for call in hands.calls if call[0] == "apply"]) == 1
    assert len(hands.paused) == 3


def test_what_starts_for_ever_is_not_waited_for_for_ever() -> None:
    hands = Remembering(looks={"a": [Look("a", (service("a", "activating"),))]})
    up = carry_out(plan_of({"a": [service("a", "inactive")]}), hands)
    assert up.results["a"].status is Status.NOT_HELD
    assert len(hands.paused) == SETTLE_LOOKS


def test_a_machine_that_has_just_booted_gets_a_second_look() -> None:
    waiting = drift("a", "nvidia_driver", reboot=True)
    late = [Look("a", (service("a", "inactive"), drift("a"))), Look("a", (drift("a"),)), Look("a")]
    hands = Remembering(looks={"a": [Look("a", (waiting,)), *late]})
    up = carry_out(plan_of({"a": [waiting]}), hands)
    assert up.results["a"].status is Status.DONE
    assert [call[0] for call in hands.calls] == ["apply", "look", "reboot", "look", "look", "look"]


def test_on_the_last_pass_nothing_is_rebooted_in_vain() -> None:
    new, stuck = drift("a", "nvlink", fact="one.new"), drift("a", "nccl", fact="two.new")
    waiting = drift("a", "nvidia_driver", reboot=True)
    hands = Remembering(looks={"a": [Look("a", (new,)), Look("a", (waiting, stuck))]})
    up = carry_out(plan_of({"a": [drift("a", "nvidia_driver")]}), hands)
    assert not [call for call in hands.calls if call[0] == "reboot"]
    assert up.results["a"].status is Status.NOT_HELD


def test_what_cannot_be_read_is_not_done_and_not_failed() -> None:
    hands = Remembering(
        looks={"a": [Look("a", (drift("a", unknown=True),))], "b": [Look("b", error="sudo refused")]}
    )
    up = carry_out(plan_of({"a": [drift("a")], "b": [drift("b")]}), hands)
    assert statuses(up) == {"a": Status.UNREADABLE, "b": Status.UNREADABLE}
    assert exit_code(up.results.values()) == ExitCode.INCOMPLETE


def failing(*names: str) -> dict[str, Outcome]:
    return {name: Outcome(name, "failed", message="broken") for name in names}


def test_after_a_failed_wave_the_next_is_not_begun() -> None:
    hands = Remembering(outcomes=failing("a"))
    up = carry_out(plan_of({name: [drift(name)] for name in "abcd"}, wave_size=2), hands)
    assert statuses(up) == {
        "a": Status.FAILED,
        "b": Status.DONE,
        "c": Status.NOT_ATTEMPTED,
        "d": Status.NOT_ATTEMPTED,
    }
    assert "--max-failures 0" in up.stopped
    assert len([call for call in hands.calls if call[0] == "apply"]) == 1


def test_failures_that_were_allowed_do_not_stop_and_all_waves_count() -> None:
    plan = plan_of({name: [drift(name)] for name in "abcdef"}, wave_size=2)
    up = carry_out(plan, Remembering(outcomes=failing("a", "c")), max_failures=1)
    assert list(statuses(up).values()) == [
        Status.FAILED,
        Status.DONE,
        Status.FAILED,
        Status.DONE,
        Status.NOT_ATTEMPTED,
        Status.NOT_ATTEMPTED,
    ]


def test_check_mode_runs_roles_and_neither_looks_nor_reboots() -> None:
    hands = Remembering(outcomes={"b": Outcome("b", "failed", message="x")})
    up = carry_out(plan_of({"a": [drift("a", reboot=True)], "b": [drift("b")]}), hands, check_mode=True)
    assert [call[0] for call in hands.calls] == ["apply"]
    assert statuses(up) == {"a": Status.CHECKED, "b": Status.FAILED}
    assert up.results["a"].changed == 1


def test_an_interrupt_leaves_a_result_for_every_node() -> None:
    def interrupt() -> None:
        if len([call for call in hands.calls if call[0] == "apply"]) == 2:
            raise KeyboardInterrupt

    hands = Remembering(on_apply=interrupt)
    up = Up(
        plan_of({name: [drift(name)] for name in "abc"}, wave_size=1),
        hands,
        Settings(role_order=ORDER),
        on_result=lambda _result: None,
    )
    with pytest.raises(KeyboardInterrupt):
        up.run()
    assert statuses(up) == {"a": Status.DONE, "b": Status.INTERRUPTED, "c": Status.NOT_ATTEMPTED}
    assert exit_code(up.results.values()) == ExitCode.INTERRUPTED


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        ([], ExitCode.OK),
        ([Status.AS_DECLARED, Status.DONE, Status.CHECKED], ExitCode.OK),
        ([Status.DONE, Status.UNREACHABLE], ExitCode.INCOMPLETE),
        ([Status.UNREADABLE], ExitCode.INCOMPLETE),
        ([Status.UNREACHABLE, Status.FAILED], ExitCode.UNHEALTHY),
        ([Status.NOT_HELD], ExitCode.UNHEALTHY),
        ([Status.REFUSED, Status.DONE], ExitCode.UNHEALTHY),
        ([Status.FAILED, Status.INTERRUPTED], ExitCode.INTERRUPTED),
    ],
)
def test_the_exit_code_is_the_worst_that_happened(ended: list[Status], code: ExitCode) -> None:
    assert exit_code(Result(str(number), status) for number, status in enumerate(ended)) == code
