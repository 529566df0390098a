"""What was read is remembered, exactly; and the facts to ask are those of every machine all the same."""

from __future__ import annotations

from typing import Any

import pytest

from provision import expectations, stack
from provision.inventory import Node
from provision.role import all_roles
from provision.watched import Watched, agrees

MACHINE: dict[str, Any] = {"os": {"id": "debian", "arch": "x86_64"}, "gpu": {"count": 8}}


def test_only_what_was_read_has_to_agree() -> None:
    view = Watched(MACHINE)
    assert view["os"]["id"] == "debian"
    assert view.reads == {("os", "id"): "debian"}
    assert agrees({"os": {"id": "debian", "arch": "aarch64"}, "gpu": {}}, view.reads)
    assert not agrees({"os": {"id": "ubuntu"}}, view.reads)
    assert not agrees({"os": None}, view.reads)


def test_what_was_missed_has_to_be_missing() -> None:
    view = Watched(MACHINE)
    assert view["os"].get("codename") is None
    assert "count" in view["gpu"]
    assert agrees(MACHINE, view.reads)
    assert not agrees({**MACHINE, "os": {"codename": "trixie"}}, view.reads)


@pytest.mark.parametrize("look", [list, len, dict, lambda view: view == {}, lambda view: list(view.items())])
def test_looking_at_the_whole_is_reading_all_of_it(look: Any) -> None:
    view = Watched(MACHINE)
    look(view["os"])
    assert agrees(MACHINE, view.reads)
    assert not agrees({**MACHINE, "os": {"id": "debian", "arch": "aarch64"}}, view.reads)


@pytest.mark.parametrize("variables", [{}, {"gpuprov_roles": ["nvidia_driver", "nvlink"]}])
def test_the_facts_to_ask_are_those_of_every_kind_of_machine(variables: dict[str, Any]) -> None:
    declared = stack.declared(Node("gpu-01", (), variables), {})
    names: set[str] = set()
    for name, role in all_roles().items():
        if name in variables.get("gpuprov_roles", [name]):
            for machine in expectations.hypothetical_machines(role):
                names.update(expectations._names_on(role, expectations.renderer_for(role, declared, machine)))
    assert expectations.facts_to_ask(declared) == names
    assert len(names) > 50
