"""Cache of renderings, shared only by nodes that agree in all values read.
The facts to request still cover every kind of machine."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import Mock, call

import pytest

from provision.desired import expectations, stack
from provision.desired.role import all_roles
from provision.desired.templating import render_cache
from provision.desired.templating.render_cache import RenderCache, Tracked
from provision.fleet import Node


class Asked:
    """Computation from the variable `a`, and from `b` if `a` is true, that counts its calls."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, variables: Mapping[str, Any]) -> Callable[[set[str]], str]:
        def compute(looked_at: set[str]) -> str:
            self.times += 1
            looked_at.add("a")
            if not variables["a"]:
                return "nothing"
            looked_at.add("b")
            return repr(variables["b"])

        return compute


def test_who_agrees_in_what_was_looked_at_is_answered_from_memory() -> None:
    asked, remembered = Asked(), RenderCache[str]()
    for variables, answer, times in (
        ({"a": True, "b": "x", "c": 1}, "'x'", 1),
        ({"a": True, "b": "x", "c": 2}, "'x'", 1),
        ({"a": True, "b": "y"}, "'y'", 2),
        ({"a": False, "b": "x"}, "nothing", 3),
        ({"a": False, "b": "z"}, "nothing", 3),
    ):
        assert remembered.get(variables, 0, asked(variables)) == answer
        assert asked.times == times
    variables = {"a": False}
    assert remembered.get(variables, "another question", asked(variables)) == "nothing"
    assert asked.times == 4


@pytest.mark.parametrize("value", [1, 1.0, "1", [1], ["1"], {"1": 1}, None, [True]])
def test_equal_is_equal_in_type_too(value: Any) -> None:
    asked, remembered = Asked(), RenderCache[str]()
    for other in (True, value):
        variables = {"a": True, "b": other}
        assert remembered.get(variables, 0, asked(variables)) == repr(other)
    assert asked.times == 2


def test_an_answer_made_of_others_learns_what_mattered_also_from_memory() -> None:
    asked, remembered = Asked(), RenderCache[str]()
    variables = ChainMap[str, Any]({"a": True}, {"b": "x", "c": 1})
    for _ in range(2):
        mattered = {"z"}
        remembered.get(variables, 0, asked(variables), mattered)
        assert mattered == {"a", "b", "z"}
    assert asked.times == 1


def test_what_all_nodes_share_is_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`groups` holds the names of all nodes, on every node."""
    frozen = Mock(wraps=render_cache.frozen)
    monkeypatch.setattr(render_cache, "frozen", frozen)
    asked, remembered = Asked(), RenderCache[str]()
    shared = {"all": [f"gpu-{number:04}" for number in range(100)]}
    for _ in range(100):
        variables = {"a": True, "b": shared}
        remembered.get(variables, 0, asked(variables))
    assert asked.times == 1
    assert frozen.call_args_list.count(call(shared)) == 1
    variables = {"a": True, "b": {"all": ["gpu-0000"]}}
    assert remembered.get(variables, 0, asked(variables)) == "{'all': ['gpu-0000']}"


MACHINE: dict[str, Any] = {"os": {"id": "debian", "arch": "x86_64"}, "gpu": {"count": 8}}


def times_read(read: Callable[[Mapping[str, Any]], object], *machines: Mapping[str, Any]) -> int:
    """Return how many of these machines need a computation, given the values that `read` uses."""
    cache, times = RenderCache[None](), 0
    for machine in machines:

        def compute(reads: set[str], machine: Mapping[str, Any] = machine) -> None:
            nonlocal times
            times += 1
            read(Tracked(machine, reads))

        cache.get(machine, 0, compute)
    return times


def test_only_what_was_read_of_a_machine_has_to_agree() -> None:
    view = Tracked(MACHINE, set())
    assert view["os"]["id"] == "debian"
    assert view.reads == {"os.id"}
    other_arch = {"os": {"id": "debian", "arch": "aarch64"}, "gpu": {}}
    assert times_read(lambda view: view["os"]["id"], MACHINE, other_arch) == 1
    assert times_read(lambda view: view["os"]["id"], MACHINE, {"os": {"id": "ubuntu"}}) == 2
    assert times_read(lambda view: view["os"] and view["os"].get("id"), MACHINE, {"os": None}) == 2


def test_what_was_missed_has_to_be_missing() -> None:
    view = Tracked(MACHINE, set())
    assert view["os"].get("codename") is None
    assert "count" in view["gpu"]
    with_codename = {**MACHINE, "os": {**MACHINE["os"], "codename": "trixie"}}
    assert times_read(lambda view: view["os"].get("codename"), MACHINE, MACHINE, with_codename) == 2


@pytest.mark.parametrize("look", [list, len, dict, lambda view: view == {}, lambda view: list(view.items())])
def test_looking_at_the_whole_is_reading_all_of_it(look: Any) -> None:
    other_arch = {**MACHINE, "os": {"id": "debian", "arch": "aarch64"}}
    assert times_read(lambda view: look(view["os"]), MACHINE, MACHINE, other_arch) == 2
    assert times_read(look, MACHINE, MACHINE, other_arch) == 2


@pytest.mark.parametrize("variables", [{}, {"gpuprov_roles": ["nvidia_driver", "nvlink"]}])
def test_the_facts_to_ask_are_those_of_every_kind_of_machine(variables: dict[str, Any]) -> None:
    declared = stack.declared(Node("gpu-01", (), variables), {})
    names: set[str] = set()
    for name, role in all_roles().items():
        usual = role.vendor in (None, "nvidia")  # the vendor of its GPUs is still unknown
        if name in variables.get("gpuprov_roles", [name] if usual else []):
            for machine in expectations.hypothetical_machines(role):
                names.update(expectations._names_on(role, expectations.renderer_for(role, declared, machine)))
    assert expectations.facts_to_ask(declared) == names | {expectations.SILENT_GPUS["nvidia"]}
    assert len(names) > 50
