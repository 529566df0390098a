"""Inventory variables that the node's health program receives."""

from __future__ import annotations

import ast
import re

from provision import paths
from provision.desired.role import all_roles

TEMPLATE = (paths.ROLES / "node_health/templates/node-health.json.j2").read_text()


def test_in_a_play_without_those_roles_their_defaults_are_told() -> None:
    """Otherwise gpuprov, which knows all defaults, would report drift after a play of only this role."""
    told = dict(re.findall(r"\{'(\w+)': \w+ \| default\((.*?)\)\}\) %\}", TEMPLATE))
    defaults = {name: value for role in all_roles().values() for name, value in role.defaults.items()}
    assert len(told) == 10
    assert {name: ast.literal_eval(value) for name, value in told.items()} == {
        name: defaults[name] for name in told
    }
    rest = re.findall(r"if (\w+) is defined", TEMPLATE)
    assert rest
    assert all(name.startswith("gpuprov_") for name in rest), "a role's variable has a default"
