"""Drifts become roles, reboots, minutes and waves."""

from __future__ import annotations

from provision import plan
from provision.drift import Drift
from provision.expectations import HARDWARE, Expectation, roles_in_order
from provision.observe import Observation


def drift(node: str, role: str, *, reboot: bool = False, unknown: bool = False) -> Drift:
    return Drift(node, Expectation(role, "a.b", "equals", 1, "why", reboot), None, unknown)


def make(found: dict[str, list[Drift]], **options: object) -> plan.Plan:
    return plan.make(found, {node: Observation(node) for node in found}, **options)  # type: ignore[arg-type]


def test_roles_run_in_the_playbooks_order_once() -> None:
    made = make({"a": [drift("a", "nccl"), drift("a", "nvidia_driver"), drift("a", "nccl")]})
    assert made.nodes["a"].roles == ("nvidia_driver", "nccl")
    assert len(made.nodes["a"].drifts) == 3


def test_a_node_that_matches_is_in_no_wave() -> None:
    made = make({"a": [], "b": [drift("b", "nccl")]})
    assert made.nodes["a"].as_declared
    assert made.nodes["a"].minutes == 0
    assert made.waves == (("b",),)


def test_what_is_unknown_calls_for_its_role_but_promises_no_reboot() -> None:
    node = make({"a": [drift("a", "nvidia_driver", reboot=True, unknown=True)]}).nodes["a"]
    assert node.roles == ("nvidia_driver",)
    assert not node.reboot


def test_a_reboot_costs_minutes() -> None:
    still = make({"a": [drift("a", "nvidia_driver")]}).nodes["a"]
    again = make({"a": [drift("a", "nvidia_driver", reboot=True)]}).nodes["a"]
    assert (still.reboot, again.reboot) == (False, True)
    assert again.minutes == still.minutes + 5


def test_no_role_repairs_hardware() -> None:
    made = make({"a": [drift("a", HARDWARE)]})
    assert made.nodes["a"].roles == ()
    assert not made.nodes["a"].as_declared
    assert made.waves == ()


def test_full_is_every_role_a_node_takes_part_in() -> None:
    made = make({"a": [], "b": []}, full=True, takes_part={"b": ("nccl",)})
    assert made.nodes["a"].roles == roles_in_order()
    assert made.nodes["b"].roles == ("nccl",)


def test_waves_have_a_size_and_an_order() -> None:
    found = {name: [drift(name, "nccl")] for name in "abcde"}
    assert make(found, wave_size=2).waves == (("a", "b"), ("c", "d"), ("e",))
    assert make(found, wave_size=2, first={"a": 9, "c": 1}).waves == (("b", "d"), ("e",), ("c",), ("a",))


def test_who_did_not_answer_is_named() -> None:
    said = {"a": Observation("a"), "b": Observation("b", error="no route")}
    assert plan.make({"a": []}, said).unreachable == {"b": "no route"}
