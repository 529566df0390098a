"""Execution of a plan with a scripted executor: the roles run on each node, and each node's status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from provision.desired.expectations import Expectation
from provision.drift.drifts import Drift
from provision.errors import ExitCode
from provision.remote.ansible.runner import Outcome
from provision.up.execute import LOST_LOOKS, SETTLE_LOOKS, Execution, Look
from provision.up.options import EarlierRuns
from provision.up.plan import Plan
from provision.up.result import Result, Status, exit_code
from provision.up.waves import BATCH, Share, Wave
from tests.support.up import ScriptedExecutor, carry_out, drift, execution, plan_of


def ends(up: Execution) -> str:
    """Format the results as `a failed, b done`."""
    return ", ".join(f"{node} {result.status}" for node, result in sorted(up.results.items()))


def test_a_node_is_done_only_when_a_second_look_says_so() -> None:
    executor = ScriptedExecutor(looks={"bad": [Look("bad", (drift("bad"),))]})
    up = carry_out(plan_of({"good": [drift("good")], "bad": [drift("bad")]}), executor)
    assert ends(up) == "bad not as declared, good done"
    assert up.results["bad"].drifts == (drift("bad"),)
    assert up.results["good"].roles == ("nccl",)
    assert exit_code(up.results.values()) == ExitCode.UNHEALTHY
    # A role is not run twice for the same reason.
    assert executor.called("apply") == [{"good": ("nccl",), "bad": ("nccl",)}]


def test_each_node_gets_its_own_roles() -> None:
    executor = ScriptedExecutor()
    carry_out(
        plan_of({"a": [drift("a", "nvlink")], "b": [drift("b", "nccl"), drift("b", "nvidia_driver")]}),
        executor,
    )
    assert executor.calls[0] == ("apply", {"a": ("nvlink",), "b": ("nvidia_driver", "nccl")})


def test_a_failed_role_fails_the_node_and_the_others_go_on() -> None:
    executor = ScriptedExecutor(
        outcomes={"a": Outcome("a", "failed", 2, "nccl", "Install", "E: no such version")}
    )
    up = carry_out(plan_of("ab"), executor)
    assert ends(up) == "a failed, b done"
    assert up.results["a"] == Result(
        "a", Status.FAILED, "E: no such version", "nccl", "Install", ("nccl",), 2
    )
    assert ("look", ("b",)) in executor.calls
    assert exit_code(up.results.values()) == ExitCode.UNHEALTHY


def test_a_node_that_dies_in_the_middle_is_unreachable_and_nothing_worse() -> None:
    silent = Look("a", error="silent", unreachable=True)
    executor = ScriptedExecutor(
        outcomes={"a": Outcome("a", "unreachable", 2, "nccl", "Install", "no route to host")},
        looks={"a": [silent], "b": [Look("b", error="silent", unreachable=True)]},
    )
    up = carry_out(plan_of("abc"), executor)
    assert ends(up) == "a unreachable, b unreachable, c done"
    assert up.results["a"].message == "it stopped answering during this task: no route to host"
    assert (up.results["a"].role, up.results["a"].task, up.results["a"].changed) == ("nccl", "Install", 2)
    assert len([call for call in executor.calls if call == ("look", ("a",))]) == LOST_LOOKS
    assert exit_code(up.results.values()) == ExitCode.INCOMPLETE


@pytest.mark.parametrize(("booted", "why"), [(True, "it booted by itself"), (False, "the connection broke")])
def test_a_node_that_comes_back_has_its_roles_run_again(booted: bool, why: str) -> None:
    class OnceGone(ScriptedExecutor):
        def apply(self, roles: Mapping[str, tuple[str, ...]]) -> Mapping[str, Outcome]:
            outcomes = super().apply(roles)
            self.outcomes = {}
            return outcomes

    silent = Look("a", error="silent", unreachable=True)
    executor = OnceGone(
        outcomes={"a": Outcome("a", "unreachable", 0, "nccl", "Install", "closed")},
        looks={"a": [silent, Look("a", (drift("a"),), booted=booted), Look("a")]},
    )
    heard: list[str] = []
    up = carry_out(plan_of("ab"), executor, say=heard.append)
    assert ends(up) == "a done, b done"
    assert executor.called("apply") == [{"a": ("nccl",), "b": ("nccl",)}, {"a": ("nccl",)}]
    assert f"a: {why} in the middle of nccl · Install; it answers again" in heard


def test_where_a_step_was_not_enough_the_role_is_run_once_more() -> None:
    whole = drift("a")
    step = replace(whole, expectation=replace(whole.expectation, step="install"))
    for found, passes in ((step, 2), (whole, 1)):
        executor = ScriptedExecutor(looks={"a": [Look("a", (found,))]})
        assert ends(carry_out(plan_of({"a": [found]}), executor)) == "a not as declared"
        assert executor.called("apply") == [{"a": ("nccl",)}] * passes


def test_a_host_the_playbook_said_nothing_about_has_failed() -> None:
    class Silent(ScriptedExecutor):
        def apply(self, _roles: Mapping[str, tuple[str, ...]]) -> Mapping[str, Outcome]:
            return {}

    up = carry_out(plan_of("a"), Silent())
    assert up.results["a"].status is Status.FAILED
    assert up.results["a"].message == "nothing was run on it"


def test_what_waits_for_a_reboot_is_rebooted_and_looked_at_again() -> None:
    waiting = drift("a", "nvidia_driver", reboot=True)
    executor = ScriptedExecutor(looks={"a": [Look("a", (waiting,)), Look("a")]})
    up = carry_out(plan_of({"a": [waiting], "b": [drift("b")]}), executor)
    assert executor.calls[1:] == [("look", ("a", "b")), ("reboot", ("a",)), ("look", ("a",))]
    assert ends(up) == "a done, b done"
    assert up.results["a"].rebooted
    assert not up.results["b"].rebooted


def test_a_node_that_asks_for_a_reboot_gets_it() -> None:
    executor = ScriptedExecutor(looks={"a": [Look("a", boot_required="linux-image"), Look("a")]})
    up = carry_out(plan_of("a"), executor)
    assert ("reboot", ("a",)) in executor.calls
    assert up.results["a"].status is Status.DONE


def test_without_reboots_a_node_says_what_it_waits_for() -> None:
    waiting = drift("a", "nvidia_driver", reboot=True)
    executor = ScriptedExecutor(
        looks={"a": [Look("a", (waiting,))], "b": [Look("b", boot_required="linux-image")]}
    )
    up = carry_out(plan_of({"a": [waiting], "b": [drift("b")]}), executor, may_reboot=False)
    assert ends(up) == "a reboot needed, b done"
    assert "linux-image" in up.results["b"].message
    assert not executor.called("reboot")
    assert exit_code(up.results.values()) == ExitCode.UNHEALTHY


def test_a_node_that_does_not_come_back_is_this_waves_failure() -> None:
    waiting = drift("a", "nvidia_driver", reboot=True)
    executor = ScriptedExecutor(
        looks={"a": [Look("a", (waiting,))]},
        reboots={"a": Outcome("a", "failed", role="", task="Reboot", message="timed out waiting")},
    )
    up = carry_out(plan_of({"a": [waiting], "b": [drift("b")]}, wave_size=1), executor)
    assert ends(up) == "a failed, b not attempted"
    assert up.results["a"].rebooted


def test_a_promise_broken_by_another_role_gets_a_second_pass() -> None:
    broken = drift("a", "nvlink", fact="service.fabricmanager.active")
    executor = ScriptedExecutor(looks={"a": [Look("a", (broken,)), Look("a")]})
    up = carry_out(plan_of({"a": [drift("a", "nvidia_driver")]}), executor)
    assert executor.called("apply") == [{"a": ("nvidia_driver",)}, {"a": ("nvlink",)}]
    assert up.results["a"].status is Status.DONE
    assert up.results["a"].roles == ("nvidia_driver", "nvlink")


def test_a_node_that_is_not_as_declared_is_told_with_the_cause_and_the_next_step() -> None:
    cause = "nouveau is loaded and holds the GPUs; next: gpuprov up --nodes a"
    executor = ScriptedExecutor(looks={"a": [Look("a", (drift("a"),), causes=(cause,))]})
    up = carry_out(plan_of("a"), executor)
    assert up.results["a"].status is Status.NOT_HELD
    assert up.results["a"].message.splitlines() == ["1 expectation still not as declared", cause]


def test_there_is_no_third_pass() -> None:
    looks = [Look("a", (drift("a", "nvlink", fact=f"fact.{number}.x"),)) for number in range(5)]
    executor = ScriptedExecutor(looks={"a": looks})
    up = carry_out(plan_of({"a": [drift("a", "nvidia_driver")]}), executor)
    assert len(executor.called("apply")) == 2
    assert up.results["a"].status is Status.NOT_HELD


def test_roles_that_had_waited_for_the_reboot_run_again_after_it() -> None:
    driver, fabric = drift("a", "nvidia_driver", reboot=True), drift("a", "nvlink")
    executor = ScriptedExecutor(
        looks={"a": [Look("a", (driver, fabric)), Look("a", (fabric,)), Look("a", (fabric,)), Look("a")]}
    )
    up = carry_out(plan_of({"a": [driver, fabric]}), executor)
    assert executor.order == "apply look reboot look look apply look"
    assert executor.calls[5] == ("apply", {"a": ("nvlink",)})
    assert up.results["a"].status is Status.DONE


def service(node: str, state: str) -> Drift:
    expectation = Expectation("nvlink", "service.fabricmanager.active", "equals", "active", "because")
    return Drift(node, expectation, state)


def test_what_is_still_starting_is_waited_for_and_no_role_runs_again() -> None:
    starting = Look("a", (service("a", "activating"),))
    executor = ScriptedExecutor(looks={"a": [starting, starting, starting, Look("a")]})
    up = carry_out(plan_of({"a": [drift("a", "nvlink")], "b": [drift("b")]}), executor)
    assert ends(up) == "a done, b done"
    assert executor.called("look") == [("a", "b"), *[("a",)] * 3]
    assert len(executor.called("apply")) == 1
    assert len(executor.paused) == 3


def test_what_starts_for_ever_is_not_waited_for_for_ever() -> None:
    executor = ScriptedExecutor(looks={"a": [Look("a", (service("a", "activating"),))]})
    up = carry_out(plan_of({"a": [service("a", "inactive")]}), executor)
    assert up.results["a"].status is Status.NOT_HELD
    assert len(executor.paused) == SETTLE_LOOKS


def test_a_machine_that_has_just_booted_gets_a_second_look() -> None:
    waiting = drift("a", "nvidia_driver", reboot=True)
    late = [Look("a", (service("a", "inactive"), drift("a"))), Look("a", (drift("a"),)), Look("a")]
    executor = ScriptedExecutor(looks={"a": [Look("a", (waiting,)), *late]})
    up = carry_out(plan_of({"a": [waiting]}), executor)
    assert up.results["a"].status is Status.DONE
    assert executor.order == "apply look reboot look look look"


def test_on_the_last_pass_nothing_is_rebooted_in_vain() -> None:
    new, stuck = drift("a", "nvlink", fact="one.new"), drift("a", "nccl", fact="two.new")
    waiting = drift("a", "nvidia_driver", reboot=True)
    executor = ScriptedExecutor(looks={"a": [Look("a", (new,)), Look("a", (waiting, stuck))]})
    up = carry_out(plan_of({"a": [drift("a", "nvidia_driver")]}), executor)
    assert not executor.called("reboot")
    assert up.results["a"].status is Status.NOT_HELD


def test_what_cannot_be_read_is_not_done_and_not_failed() -> None:
    executor = ScriptedExecutor(
        looks={"a": [Look("a", (drift("a", unknown=True),))], "b": [Look("b", error="sudo refused")]}
    )
    up = carry_out(plan_of("ab"), executor)
    assert ends(up) == "a unreadable, b unreadable"
    assert exit_code(up.results.values()) == ExitCode.INCOMPLETE


def failing(*names: str) -> dict[str, Outcome]:
    return {name: Outcome(name, "failed", message="broken") for name in names}


def test_after_a_failed_wave_the_next_is_not_begun() -> None:
    executor = ScriptedExecutor(outcomes=failing("a"))
    up = carry_out(plan_of("abcd", wave_size=2), executor)
    assert ends(up) == "a failed, b done, c not attempted, d not attempted"
    assert "--max-failures 0" in up.stopped
    assert len(executor.called("apply")) == 1


def test_failures_that_were_allowed_do_not_stop_and_all_waves_count() -> None:
    plan = plan_of("abcdef", wave_size=2)
    up = carry_out(plan, ScriptedExecutor(outcomes=failing("a", "c")), max_failures=Share(1))
    assert ends(up) == "a failed, b done, c failed, d done, e not attempted, f not attempted"


def test_check_mode_runs_roles_and_neither_looks_nor_reboots() -> None:
    executor = ScriptedExecutor(outcomes={"b": Outcome("b", "failed", message="x")})
    up = carry_out(plan_of({"a": [drift("a", reboot=True)], "b": [drift("b")]}), executor, check_mode=True)
    assert executor.order == "apply"
    assert ends(up) == "a checked, b failed"
    assert up.results["a"].changed == 1


def test_an_interrupt_leaves_a_result_for_every_node() -> None:
    def interrupt() -> None:
        if len(executor.called("apply")) == 2:
            raise KeyboardInterrupt

    executor = ScriptedExecutor(on_apply=interrupt)
    up = execution(plan_of("abc", wave_size=1), executor)
    with pytest.raises(KeyboardInterrupt):
        up.run()
    assert ends(up) == "a done, b interrupted, c not attempted"
    assert exit_code(up.results.values()) == ExitCode.INTERRUPTED


def test_a_percentage_of_failures_is_of_the_nodes_with_something_to_do() -> None:
    plan = plan_of("abcdefghij", wave_size=2)
    up = carry_out(plan, ScriptedExecutor(outcomes=failing("a", "c")), max_failures=Share(10, True))
    assert ends(up).startswith("a failed, b done, c failed, d done, e not attempted")
    assert "2 failed up to wave 2, more than allowed (--max-failures 10%)" in up.stopped


def test_a_failed_canary_stops_whatever_may_fail() -> None:
    plan = plan_of("abcd", canaries=2)
    up = carry_out(plan, ScriptedExecutor(outcomes=failing("b")), max_failures=Share(100, True))
    assert ends(up) == "a done, b failed, c not attempted, d not attempted"
    assert up.results["c"].message == "the canary b failed: no other wave was started"


def test_canaries_that_come_out_well_let_the_rest_begin() -> None:
    up = carry_out(plan_of("abcd", canaries=2), ScriptedExecutor())
    assert {result.status for result in up.results.values()} == {Status.DONE}


def test_hooks_stand_around_each_wave_and_the_gate_before_the_way_back() -> None:
    executor = ScriptedExecutor(quiet=False)
    carry_out(plan_of("ab", wave_size=1), executor)
    assert executor.order == " ".join(["drain apply look gate undrain"] * 2)
    assert executor.calls[0] == ("drain", 1, ("a",))
    assert executor.calls[5] == ("drain", 2, ("b",))


def test_a_node_that_cannot_be_drained_is_not_touched_and_stops_nobody() -> None:
    executor = ScriptedExecutor(
        undrainable={"a": "its drain hook ended with status 1: a job runs"}, quiet=False
    )
    up = carry_out(plan_of("abc", wave_size=2), executor)
    assert ends(up) == "a not attempted, b done, c done"
    assert up.results["a"].message == "its drain hook ended with status 1: a job runs"
    assert executor.called("apply") == [{"b": ("nccl",)}, {"c": ("nccl",)}]
    assert exit_code(up.results.values()) == ExitCode.UNHEALTHY


def test_a_node_that_an_earlier_run_drained_does_not_return_with_its_group() -> None:
    executor = ScriptedExecutor(undrainable={"b": "busy"}, quiet=False)
    plan = replace(plan_of("abc"), waves=(Wave("abc", BATCH, [("a", "b", "c")]),))
    carry_out(plan, executor, earlier=EarlierRuns(drained=frozenset("a")))
    assert executor.called("undrain") == [("c",)]


def test_a_canary_that_cannot_be_drained_proves_nothing() -> None:
    executor = ScriptedExecutor(undrainable={"a": "a job runs"})
    up = carry_out(plan_of("ab", canaries=1), executor)
    assert ends(up) == "a not attempted, b not attempted"
    assert up.results["b"].message == "the canary a not attempted: no other wave was started"
    assert not executor.called("apply")


def test_a_rack_of_which_one_node_cannot_be_drained_stays_as_it_is() -> None:
    nodes = plan_of("abc").nodes
    executor = ScriptedExecutor(undrainable={"a": "a job runs"}, still_drained={"b": "status 2"}, quiet=False)
    up = carry_out(Plan(nodes, (Wave("abc", BATCH, [("a", "b")]),), {}), executor)
    assert ends(up) == "a not attempted, b not attempted, c done"
    assert up.results["b"].message == "a of its group: a job runs; and status 2"
    assert ("undrain", 1, ("b",)) in executor.calls


def test_only_nodes_that_came_out_well_go_back_into_service() -> None:
    executor = ScriptedExecutor(
        outcomes=failing("a"),
        looks={"b": [Look("b", (drift("b"),))]},
        sick={"c": "the quick checks found: gpu3: slow"},
        quiet=False,
    )
    up = carry_out(plan_of("abcd"), executor)
    assert executor.calls[-2:] == [("gate", ("c", "d")), ("undrain", 1, ("d",))]
    assert ends(up) == "a failed, b not as declared, c unhealthy, d done"


def test_what_the_gate_finds_stops_the_next_wave() -> None:
    executor = ScriptedExecutor(sick={"a": "gpu3: slow"})
    up = carry_out(plan_of("ab", wave_size=1), executor)
    assert ends(up) == "a unhealthy, b not attempted"
    assert exit_code(up.results.values()) == ExitCode.UNHEALTHY


def test_a_node_that_cannot_be_put_back_is_named_so() -> None:
    executor = ScriptedExecutor(still_drained={"a": "its undrain hook ended with status 1"})
    up = carry_out(plan_of("ab"), executor)
    assert ends(up) == "a still drained, b done"
    assert up.results["a"].message == "it matches its declared state; its undrain hook ended with status 1"
    assert exit_code(up.results.values()) == ExitCode.UNHEALTHY


def test_reboots_are_done_some_at_a_time() -> None:
    waiting = {name: drift(name, "nvidia_driver", reboot=True) for name in "abcde"}
    executor = ScriptedExecutor(looks={name: [Look(name, (waiting[name],)), Look(name)] for name in "abcde"})
    up = carry_out(plan_of({name: [waiting[name]] for name in "abcde"}), executor, reboots_at_once=2)
    assert executor.called("reboot") == [("a", "b"), ("c", "d"), ("e",)]
    assert {result.status for result in up.results.values()} == {Status.DONE}


def test_when_nodes_do_not_come_back_no_further_one_is_rebooted() -> None:
    waiting = {name: drift(name, "nvidia_driver", reboot=True) for name in "abc"}
    executor = ScriptedExecutor(
        looks={name: [Look(name, (waiting[name],)), Look(name)] for name in "abc"},
        reboots={"a": Outcome("a", "failed", message="timed out waiting")},
    )
    up = carry_out(plan_of({name: [waiting[name]] for name in "abc"}), executor, reboots_at_once=1)
    assert executor.called("reboot") == [("a",)]
    assert ends(up) == "a failed, b not as declared, c not as declared"
    assert "1 node of its wave did not come back" in up.results["b"].message


def test_a_lost_lock_stops_before_the_next_wave() -> None:
    executor = ScriptedExecutor()
    lost = iter(["", "the lock of a was taken by bob"])
    up = carry_out(plan_of("ab", wave_size=1), executor, halted=lambda: next(lost))
    assert ends(up) == "a done, b not attempted"
    assert up.results["b"].message == "the lock of a was taken by bob"


def test_an_interrupt_in_the_way_back_leaves_a_result_for_every_node() -> None:
    class Interrupted(ScriptedExecutor):
        def undrain(self, _wave: int, _nodes: Wave) -> Mapping[str, str]:
            raise KeyboardInterrupt

    up = execution(plan_of("ab", wave_size=1), Interrupted())
    with pytest.raises(KeyboardInterrupt):
        up.run()
    assert ends(up) == "a interrupted, b not attempted"
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
