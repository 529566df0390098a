"""Refusals of a role's preflight, rendered by Ansible's own templating."""

from __future__ import annotations

import functools
import re
from typing import Any

import ansible.template  # type: ignore[import-untyped]
from ansible.parsing.dataloader import DataLoader  # type: ignore[import-untyped]
from ansible.plugins.loader import init_plugin_loader  # type: ignore[import-untyped]

from provision import paths, yamlfile
from provision.desired import stack
from provision.desired.role import all_defaults, all_roles
from provision.errors import StackError

init_plugin_loader([])


def _trusted(value: Any) -> Any:
    if isinstance(value, str):
        return ansible.template.trust_as_template(value)
    if isinstance(value, dict):
        return {key: _trusted(each) for key, each in value.items()}
    return [_trusted(each) for each in value] if isinstance(value, list | tuple) else value


@functools.cache
def _told(role: str) -> dict[str, Any]:
    """Return the variables of the role's refusing task and of the shared task that it imports."""
    tasks = yamlfile.load(all_roles()[role].path / "tasks" / "preflight.yml", StackError)
    (task,) = (task for task in tasks if "refuse.yml" in task.get("ansible.builtin.import_tasks", ""))
    (shared,) = yamlfile.load(paths.ROLES / "node_facts" / "tasks" / "refuse.yml", StackError)
    return {**shared["vars"], **task["vars"]}


def rules(role: str) -> list[tuple[str, str]]:
    """Return (condition, sentence) for each rule and each branch of a rule."""
    branches = []
    for rule in _told(role)["__node_facts_refusals"]:
        _nothing, *parts, rest = re.split(r"{% (?:(?:el)?if (.*?)|endif) %}", rule)
        assert (_nothing, rest) == ("", ""), rule
        pairs = [*zip(parts[::2], parts[1::2], strict=False)]
        assert parts[-1] is None, rule
        branches += [(condition, sentence.strip()) for condition, sentence in pairs]
    return branches


def refused(role: str, node: dict[str, Any], /, **known: Any) -> str:
    """Return the refusal for this node with the role's defaults and these variables; empty if none."""
    variables = {
        **{**all_defaults(), **stack.load(stack.DEFAULT).variables},
        **{**all_roles()[role].own_vars(node["os"]), **_told(role)},
        **{"role_name": role, "ansible_check_mode": False, "gpuprov_node": node, **known},
    }
    templar = ansible.template.Templar(loader=DataLoader(), variables=_trusted(variables))
    return str(templar.template(ansible.template.trust_as_template("{{ __node_facts_refused }}")))
