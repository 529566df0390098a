"""The types of variables, by the roles' argument specs: a text becomes what it means, where it means it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from provision.desired.role import all_roles
from provision.errors import StackError
from provision.fleet import Fleet

NUMBERS = frozenset(
    {
        *("gpuprov_expected_gpus", "gpuprov_wave", "gpuprov_reboot_timeout"),
        *("gpuprov_hook_timeout", "gpuprov_package_lock_timeout", "gpuprov_job_wait"),
    }
)

# Variables with these beginnings are no role's. Some are read before any node is looked at, and all as they
# stand.
EARLY = ("ansible_", "gpuprov_")
# Words for true and false, as Ansible's modules and roles take them.
_FLAGS = {
    **dict.fromkeys(("y", "yes", "on", "1", "true", "t"), True),
    **dict.fromkeys(("n", "no", "off", "0", "false", "f"), False),
}
_OWN_TYPES = {
    "gpuprov_canary": "bool",
    "gpuprov_roles": "list",
    "gpuprov_ignore_majority": "list",
    "gpuprov_kubernetes_pool_labels": "list",
    **dict.fromkeys(NUMBERS, "int"),
}
_EARLY_TYPES = {**{name: (kind, "str") for name, kind in _OWN_TYPES.items()}, "ansible_become": ("bool", "")}
_WANTED = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "list": "a list",
    "dict": "a mapping",
    "path": "the path of a file",
}


@functools.lru_cache(maxsize=1)
def types() -> Mapping[str, tuple[str, str]]:
    """Name → its type and that of its elements, by the roles' argument specs; and of our own."""
    found = {
        name: (str(option.get("type", "str")), str(option.get("elements", "str")))
        for role in all_roles().values()
        for name, option in role.options.items()
    }
    return found | _EARLY_TYPES


def typed(fleet: Fleet) -> Fleet:
    """The fleet with texts where roles want other types turned into these: INI has no other `false`, and
    quotes are easily written. What cannot be turned stays, for `check`. Nodes go on sharing what they shared.
    """
    named = {name for node in fleet.nodes.values() for name in node.variables}
    # All roles' specs take long to read: not for an inventory that only says where nodes are.
    known = _EARLY_TYPES if all(name.startswith(EARLY) for name in named) else types()
    made: dict[int, Mapping[str, Any]] = {}
    nodes = {}
    for name, node in fleet.nodes.items():
        key = id(node.variables)
        if key not in made:
            meant = {
                each: _turned(*known[each], node.variables[each])
                for each in known.keys() & node.variables.keys()
            }
            changed = {each: value for each, value in meant.items() if value is not node.variables[each]}
            made[key] = {**node.variables, **changed} if changed else node.variables
        nodes[name] = replace(node, variables=made[key])
    return replace(fleet, nodes=nodes)


def typed_override(name: str, value: Any) -> Any:
    """A value of `--set`, of the type that the roles want. Raises StackError for one that is not."""
    meant = _turned(*types()[name], value) if name in types() else value
    if name in types() and (wrong := mistyped(name, meant)):
        raise StackError(f"--set {name} must be {wrong}, not {meant!r}", "correct it")
    return meant


def _turned(kind: str, elements: str, value: Any) -> Any:
    """`value` itself where it is of its type, a template, or nothing that can be turned into one."""
    if kind == "bool" and type(value) in (int, str):
        return _FLAGS.get(str(value).strip().lower(), value)
    if kind == "str" and type(value) is int:
        return str(value)
    if not isinstance(value, str) or is_dynamic(value):
        return value
    with contextlib.suppress(ValueError):
        if kind == "int":
            return int(value)
        if kind == "float":
            return float(value)
    if kind == "list" and elements == "str":
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def without_early_templates(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides less those that are rendered into the nodes' variables before any node is looked at."""
    return {
        name: value for name, value in overrides.items() if not (name.startswith(EARLY) and is_dynamic(value))
    }


@functools.lru_cache(maxsize=1)
def _options() -> Mapping[str, Mapping[str, Any]]:
    """Every option of the roles; `ansible_become` is Ansible's own."""
    found = {name: option for role in all_roles().values() for name, option in role.options.items()}
    return {**found, "ansible_become": {"type": "bool"}}


def is_dynamic(value: Any) -> bool:
    """Whether a template or a vaulted value is in it: nobody knows yet what it will be."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, Mapping):
        return any(str(key).startswith("__ansible_") or is_dynamic(inner) for key, inner in value.items())
    return isinstance(value, list) and any(map(is_dynamic, value))


def mistyped(name: str, value: Any) -> str:
    """What the value of a role's option must be, where it is not that; of templates nobody knows it yet."""
    return "" if name in _OWN_TYPES else _wrong(_options()[name], value)


def are_right(variables: Mapping[str, Any]) -> bool:
    """Whether all options of roles among a host's variables are known by now, and as the roles want them."""
    return all(
        not is_dynamic(variables[name]) and not _wrong(option, variables[name])
        for name, option in _options().items()
        if name in variables
    )


def _wrong(option: Mapping[str, Any], value: Any) -> str:
    """What `value` must be by an option of an argument spec, in words; empty where it is that, or not known
    yet."""
    kind = str(option.get("type", "str"))
    if value is None or (is_dynamic(value) and not isinstance(value, list)):
        return ""
    fits = {
        "bool": isinstance(value, bool),
        "int": type(value) is int,
        "float": type(value) in (int, float),
        "list": isinstance(value, list),
        "dict": isinstance(value, dict),
        # 12.90 as a number has lost a digit: what it was cannot be told.
        "str": not isinstance(value, float | list | dict),
        "path": isinstance(value, str),
    }
    if not fits.get(kind, True):
        return f"{_WANTED[kind]}{', in quotes' if kind == 'str' else ''}"
    choices = option.get("choices")
    if kind == "list":
        element = {**option, "type": option.get("elements", "raw")}
        wrong = next(filter(None, (_wrong_inside(element, each) for each in value)), "")
        return f"a list in which each element is {wrong}" if wrong else ""
    if choices and value not in choices:
        return f"one of {', '.join(map(_word, choices))}"
    if kind == "dict" and "options" in option:
        options = option["options"]
        if not options.keys() >= value.keys():
            return f"a mapping with no other keys than {', '.join(options)}"
        for key in options.keys() & value.keys():
            if wrong := _wrong_inside(options[key], value[key]):
                return f"a mapping whose {key} is {wrong}"
    return ""


def _wrong_inside(option: Mapping[str, Any], value: Any) -> str:
    """As `_wrong`; Ansible turns what stands inside a list or mapping into what it means."""
    return _wrong(option, _turned(str(option.get("type", "str")), "", value))


def _word(choice: Any) -> str:
    """A choice as YAML has it."""
    return {"": "''", "True": "true", "False": "false", "None": "null"}.get(str(choice), str(choice))
