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
from provision.up import Up
from provision.up_protocol import Look, Settings
from provision.up_result import Result, Status, exit_code
from provision.up_wave import LOST_LOOKS, SETTLE_LOOKS
from provision.waves import BATCH, CANARY, Share, Wave

ORDER = ("nvidia_driver", "nvlink", "nccl")


def drift(
    node: str, role: str = "nccl", *, reboot: bool = False, unknown: bool = False, fact: str = ""
) -> Drift:
    expectation = Expectation(role, fact or f"package.{role}.version", "equals", "2", "because", reboot)
    return Drift(node, expectation, "1", unknown, "no such tool" if unknown else "")


def plan_of(drifts: Mapping[str, Sequence[Drift]], wave_size: int = 100, canaries: int = 0) -> Plan:
    nodes = {}
    for node, found in drifts.items():
        roles = tuple(role for role in ORDER if role in {d.expectation.role for d in found})
        nodes[node] = NodePlan(node, roles, tuple(found), any(d.expectation.reboot for d in found), 1.0)
    first, names = list(nodes)[:canaries], list(nodes)[canaries:]
    waves = [Wave(names[i : i + wave_size], BATCH) for i in range(0, len(names), wave_size)]
    return Plan(nodes, tuple([Wave(first, CANARY), *waves] if first else waves), {})


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
    undrainable: dict[str, str] = field(default_factory=dict)
    still_drained: dict[str, str] = field(default_factory=dict)
    sick: dict[str, str] = field(default_factory=dict)
    quiet: bool = True  # hooks and gates are not in `calls`

    def drain(self, wave: int, nodes: Wave) -> Mapping[str, str]:
        self._note("drain", wave, nodes)
        return {node: why for node, why in self.undrainable.items() if node in nodes}

    def undrain(self, wave: int, nodes: Wave) -> Mapping[str, str]:
        self._note("undrain", wave, nodes)
        return {node: why for node, why in self.still_drained.items() if node in nodes}

    def gate(self, nodes: Sequence[str]) -> Mapping[str, str]:
        self._note("gate", tuple(nodes))
        return {node: why for node, why in self.sick.items() if node in nodes}

    def _note(self, *call: Any) -> None:
        if not self.quiet:
            self.calls.append(call)  # type: ignore[arg-type]

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


def carry_out(
    plan: Plan, hands: Remembering, *, halted: Callable[[], str] = lambda: "", **settings: Any
) -> Up:
    order = {"role_order": ORDER, **settings}
    told: list[Result] = []
    up = Up(plan, hands, Settings(**order), on_result=told.append, halted=halted, pause=hands.pause)
    up.run()
    assert told == list(up.results.values())  # one end for each node
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
    silent = Look("a", error="silent", unreachable=True)
    hands = Remembering(
        outcomes={"a": Outcome("a", "unreachable", 2, "nccl", "Install", "no route to host")},
        looks={"a": [silent], "b": [Look("b", error="silent", unreachable=True)]},
    )
    up = carry_out(plan_of({"a": [drift("a")], "b": [drift("b")], "c": [drift("c")]}), hands)
    assert statuses(up) == {"a": Status.UNREACHABLE, "b": Status.UNREACHABLE, "c": Status.DONE}
    assert up.results["a"].message == "it stopped answering during this task: no route to host"
    assert (up.results["a"].role, up.results["a"].task, up.results["a"].changed) == ("nccl", "Install", 2)
    assert len([call for call in hands.calls if call == ("look", ("a",))]) == LOST_LOOKS
    assert exit_code(up.results.values()) == ExitCode.INCOMPLETE


@pytest.mark.parametrize(("boot", "why"), [("2", "it booted by itself"), ("1", "the connection broke")])
def test_a_node_that_comes_back_has_its_roles_run_again(boot: str, why: str) -> None:
    class OnceGone(Remembering):
        def apply(self, roles: Mapping[str, tuple[str, ...]]) -> Mapping[str, Outcome]:
            outcomes = super().apply(roles)
            self.outcomes = {}
            return outcomes

    silent = Look("a", error="silent", unreachable=True)
    hands = OnceGone(
        outcomes={"a": Outcome("a", "unreachable", 0, "nccl", "Install", "closed")},
        looks={"a": [silent, Look("a", (drift("a"),), boot=boot), Look("a", boot=boot)]},
    )
    heard: list[str] = []
    up = Up(
        plan_of({"a": [drift("a")], "b": [drift("b")]}),
        hands,
        Settings(role_order=ORDER),
        on_result=lambda _result: None,
        boots={"a": "1", "b": "1"},
        say=heard.append,
        pause=hands.pause,
    )
    up.run()
    assert statuses(up) == {"a": Status.DONE, "b": Status.DONE}
    assert [call[1] for call in hands.calls if call[0] == "apply"] == [
        {"a": ("nccl",), "b": ("nccl",)},
        {"a": ("nccl",)},
    ]
    assert f"a: {why} in the middle of nccl · Install; it answers again" in heard


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


def test_a_node_that_is_not_as_declared_is_told_with_the_cause_and_the_next_step() -> None:
    cause = "nouveau is loaded and holds the GPUs; next: gpuprov up --nodes a"
    hands = Remembering(looks={"a": [Look("a", (drift("a"),), causes=(cause,))]})
    up = carry_out(plan_of({"a": [drift("a")]}), hands)
    assert up.results["a"].status is Status.NOT_HELD
    assert up.results["a"].message.splitlines() == ["1 expectation still not as declared", cause]


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
    up = carry_out(plan, Remembering(outcomes=failing("a", "c")), max_failures=Share(1))
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


def test_a_percentage_of_failures_is_of_the_nodes_with_something_to_do() -> None:
    plan = plan_of({name: [drift(name)] for name in "abcdefghij"}, wave_size=2)
    up = carry_out(plan, Remembering(outcomes=failing("a", "c")), max_failures=Share(10, True))
    assert [statuses(up)[name] for name in "acde"] == [
        Status.FAILED,
        Status.FAILED,
        Status.DONE,
        Status.NOT_ATTEMPTED,
    ]
    assert "2 failed up to wave 2, more than allowed (--max-failures 10%)" in up.stopped


def test_a_failed_canary_stops_whatever_may_fail() -> None:
    plan = plan_of({name: [drift(name)] for name in "abcd"}, canaries=2)
    up = carry_out(plan, Remembering(outcomes=failing("b")), max_failures=Share(100, True))
    assert statuses(up) == {
        "a": Status.DONE,
        "b": Status.FAILED,
        "c": Status.NOT_ATTEMPTED,
        "d": Status.NOT_ATTEMPTED,
    }
    assert up.results["c"].message == "the canary b failed: no other wave was started"


def test_canaries_that_come_out_well_let_the_rest_begin() -> None:
    up = carry_out(plan_of({name: [drift(name)] for name in "abcd"}, canaries=2), Remembering())
    assert set(statuses(up).values()) == {Status.DONE}


def test_hooks_stand_around_each_wave_and_the_gate_before_the_way_back() -> None:
    hands = Remembering(quiet=False)
    carry_out(plan_of({"a": [drift("a")], "b": [drift("b")]}, wave_size=1), hands)
    assert [call[0] for call in hands.calls] == ["drain", "apply", "look", "gate", "undrain"] * 2
    assert hands.calls[0] == ("drain", 1, ("a",))
    assert hands.calls[5] == ("drain", 2, ("b",))


def test_a_node_that_cannot_be_drained_is_not_touched_and_stops_nobody() -> None:
    hands = Remembering(undrainable={"a": "its drain hook ended with status 1: a job runs"}, quiet=False)
    up = carry_out(plan_of({name: [drift(name)] for name in "abc"}, wave_size=2), hands)
    assert statuses(up) == {"a": Status.NOT_ATTEMPTED, "b": Status.DONE, "c": Status.DONE}
    assert up.results["a"].message == "its drain hook ended with status 1: a job runs"
    assert [call[1] for call in hands.calls if call[0] == "apply"] == [{"b": ("nccl",)}, {"c": ("nccl",)}]
    assert exit_code(up.results.values()) == ExitCode.UNHEALTHY


def test_a_canary_that_cannot_be_drained_proves_nothing() -> None:
    hands = Remembering(undrainable={"a": "a job runs"})
    up = carry_out(plan_of({name: [drift(name)] for name in "ab"}, canaries=1), hands)
    assert statuses(up) == {"a": Status.NOT_ATTEMPTED, "b": Status.NOT_ATTEMPTED}
    assert not [call for call in hands.calls if call[0] == "apply"]


def test_a_rack_of_which_one_node_cannot_be_drained_stays_as_it_is() -> None:
    nodes = plan_of({name: [drift(name)] for name in "abc"}).nodes
    hands = Remembering(undrainable={"a": "a job runs"}, still_drained={"b": "status 2"}, quiet=False)
    up = carry_out(Plan(nodes, (Wave("abc", BATCH, [("a", "b")]),), {}), hands)
    assert statuses(up) == {"a": Status.NOT_ATTEMPTED, "b": Status.NOT_ATTEMPTED, "c": Status.DONE}
    assert up.results["b"].message == "a of its group: a job runs; and status 2"
    assert ("undrain", 1, ("b",)) in hands.calls


def test_only_nodes_that_came_out_well_go_back_into_service() -> None:
    hands = Remembering(
        outcomes=failing("a"),
        looks={"b": [Look("b", (drift("b"),))]},
        sick={"c": "the quick checks found: gpu3: slow"},
        quiet=False,
    )
    up = carry_out(plan_of({name: [drift(name)] for name in "abcd"}), hands)
    assert hands.calls[-2:] == [("gate", ("c", "d")), ("undrain", 1, ("d",))]
    assert statuses(up) == {
        "a": Status.FAILED,
        "b": Status.NOT_HELD,
        "c": Status.UNHEALTHY,
        "d": Status.DONE,
    }


def test_what_the_gate_finds_stops_the_next_wave() -> None:
    hands = Remembering(sick={"a": "gpu3: slow"})
    up = carry_out(plan_of({name: [drift(name)] for name in "ab"}, wave_size=1), hands)
    assert statuses(up) == {"a": Status.UNHEALTHY, "b": Status.NOT_ATTEMPTED}
    assert exit_code(up.results.values()) == ExitCode.UNHEALTHY


def test_a_node_that_cannot_be_put_back_is_named_so() -> None:
    hands = Remembering(still_drained={"a": "its undrain hook ended with status 1"})
    up = carry_out(plan_of({"a": [drift("a")], "b": [drift("b")]}), hands)
    assert statuses(up) == {"a": Status.DRAINED, "b": Status.DONE}
    assert up.results["a"].message == "it matches its declared state; its undrain hook ended with status 1"
    assert exit_code(up.results.values()) == ExitCode.UNHEALTHY


def test_reboots_are_done_some_at_a_time() -> None:
    waiting = {name: drift(name, "nvidia_driver", reboot=True) for name in "abcde"}
    hands = Remembering(looks={name: [Look(name, (waiting[name],)), Look(name)] for name in "abcde"})
    up = carry_out(plan_of({name: [waiting[name]] for name in "abcde"}), hands, reboots_at_once=2)
    assert [call[1] for call in hands.calls if call[0] == "reboot"] == [("a", "b"), ("c", "d"), ("e",)]
    assert set(statuses(up).values()) == {Status.DONE}


def test_when_nodes_do_not_come_back_no_further_one_is_rebooted() -> None:
    waiting = {name: drift(name, "nvidia_driver", reboot=True) for name in "abc"}
    hands = Remembering(
        looks={name: [Look(name, (waiting[name],)), Look(name)] for name in "abc"},
        reboots={"a": Outcome("a", "failed", message="timed out waiting")},
    )
    up = carry_out(plan_of({name: [waiting[name]] for name in "abc"}), hands, reboots_at_once=1)
    assert [call[1] for call in hands.calls if call[0] == "reboot"] == [("a",)]
    assert statuses(up) == {"a": Status.FAILED, "b": Status.NOT_HELD, "c": Status.NOT_HELD}
    assert "1 node of its wave did not come back" in up.results["b"].message


def test_a_lost_lock_stops_before_the_next_wave() -> None:
    hands = Remembering()
    lost = iter(["", "the lock of a was taken by bob"])
    up = carry_out(
        plan_of({"a": [drift("a")], "b": [drift("b")]}, wave_size=1), hands, halted=lambda: next(lost)
    )
    assert statuses(up) == {"a": Status.DONE, "b": Status.NOT_ATTEMPTED}
    assert up.results["b"].message == "the lock of a was taken by bob"


def test_an_interrupt_in_the_way_back_leaves_a_result_for_every_node() -> None:
    class Interrupted(Remembering):
        def undrain(self, _wave: int, _nodes: Wave) -> Mapping[str, str]:
            raise KeyboardInterrupt

    up = Up(
        plan_of({name: [drift(name)] for name in "ab"}, wave_size=1),
        Interrupted(),
        Settings(role_order=ORDER),
        on_result=lambda _result: None,
    )
    with pytest.raises(KeyboardInterrupt):
        up.run()
    assert statuses(up) == {"a": Status.INTERRUPTED, "b": Status.NOT_ATTEMPTED}
    assert "it matches its declared state" in up.results["a"].message


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        ([], ExitCode.OK),
        ([Status.AS_DECLARED, Status.DONE, Status.CHECKED], ExitCode.OK),
        ([Status.DONE, Status.UNREACHABLE], ExitCode.INCOMPLETE),
        ([Status.UNREADABLE], ExitCode.INCOMPLETE),
        ([Status.UNREACHABLE, Status.FAILED], ExitCode.UNHEALTHY),
        ([Status.NOT_HELD], ExitCode.UNHEALTHY),
        ([Status.UNHEALTHY], ExitCode.UNHEALTHY),
        ([Status.DRAINED, Status.UNREACHABLE], ExitCode.UNHEALTHY),
        ([Status.REFUSED, Status.DONE], ExitCode.UNHEALTHY),
        ([Status.FAILED, Status.INTERRUPTED], ExitCode.INTERRUPTED),
    ],
)
def test_the_exit_code_is_the_worst_that_happened(ended: list[Status], code: ExitCode) -> None:
    assert exit_code(Result(str(number), status) for number, status in enumerate(ended)) == code
