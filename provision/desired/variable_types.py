"""Types of variables by the roles' argument specs, and conversion of texts into values of these types."""

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

# Variables with these prefixes belong to no role. Some are read before any node is observed, and all are used
# as declared.
EARLY = ("ansible_", "gpuprov_")
# Words for true and false in Ansible's modules and roles.
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
    """Return {name: (type, type of its elements)}, by the roles' argument specs and for our own variables."""
    spec_types = {
        name: (str(option.get("type", "str")), str(option.get("elements", "str")))
        for role in all_roles().values()
        for name, option in role.options.items()
    }
    return spec_types | _EARLY_TYPES


def typed(fleet: Fleet) -> Fleet:
    """Return the fleet with texts converted to the types that roles require.
    INI has no other `false`, and quotes are easily written. Misfits stay, for `check`. Nodes share as before.
    """
    named = {name for node in fleet.nodes.values() for name in node.variables}
    # All roles' specs take long to read, and an inventory with only early variables does not need them.
    kinds = _EARLY_TYPES if all(name.startswith(EARLY) for name in named) else types()
    made: dict[int, Mapping[str, Any]] = {}
    nodes = {}
    for name, node in fleet.nodes.items():
        key = id(node.variables)
        if key not in made:
            meant = {
                each: _turned(*kinds[each], node.variables[each])
                for each in kinds.keys() & node.variables.keys()
            }
            changed = {each: value for each, value in meant.items() if value is not node.variables[each]}
            made[key] = {**node.variables, **changed} if changed else node.variables
        nodes[name] = replace(node, variables=made[key])
    return replace(fleet, nodes=nodes)


def typed_override(name: str, value: Any) -> Any:
    """Convert a value of `--set` to the type that the roles require. Raises StackError if that fails."""
    meant = _turned(*types()[name], value) if name in types() else value
    if name in types() and (wrong := mistyped(name, meant)):
        raise StackError(f"--set {name} must be {wrong}, not {meant!r}", "correct it")
    return meant


def _turned(kind: str, elements: str, value: Any) -> Any:
    """Convert `value` to its type; return it as is if it fits, is a template, or cannot be converted."""
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
    """Return the overrides except templates that are rendered into variables before nodes are observed."""
    return {
        name: value for name, value in overrides.items() if not (name.startswith(EARLY) and is_dynamic(value))
    }


@functools.lru_cache(maxsize=1)
def _options() -> Mapping[str, Mapping[str, Any]]:
    """Return every option of the roles, and `ansible_become`, which is Ansible's own."""
    options = {name: option for role in all_roles().values() for name, option in role.options.items()}
    return {**options, "ansible_become": {"type": "bool"}}


def is_dynamic(value: Any) -> bool:
    """Return whether a value contains a template or a vaulted value, so that its result is unknown yet."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, Mapping):
        return any(str(key).startswith("__ansible_") or is_dynamic(inner) for key, inner in value.items())
    return isinstance(value, list) and any(map(is_dynamic, value))


def mistyped(name: str, value: Any) -> str:
    """Return the kind of value that a role's option requires; empty if `value` is valid or unknown yet."""
    return "" if name in _OWN_TYPES else _wrong(_options()[name], value)


def are_right(variables: Mapping[str, Any]) -> bool:
    """Return whether all role options among a host's variables are known by now and have valid values."""
    return all(
        not is_dynamic(variables[name]) and not _wrong(option, variables[name])
        for name, option in _options().items()
        if name in variables
    )


def _wrong(option: Mapping[str, Any], value: Any) -> str:
    """Return the kind of value that an option of an argument spec requires.
    It is empty if `value` is valid or not known yet."""
    kind = str(option.get("type", "str"))
    if value is None or (is_dynamic(value) and not isinstance(value, list)):
        return ""
    fits = {
        "bool": isinstance(value, bool),
        "int": type(value) is int,
        "float": type(value) in (int, float),
        "list": isinstance(value, list),
        "dict": isinstance(value, dict),
        # As a number, 12.90 has lost a digit, which cannot be recovered.
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
    """Return `_wrong` for a value inside a list or mapping, where Ansible converts values itself."""
    return _wrong(option, _turned(str(option.get("type", "str")), "", value))


def _word(choice: Any) -> str:
    """Return a choice in YAML's spelling."""
    return {"": "''", "True": "true", "False": "false", "None": "null"}.get(str(choice), str(choice))
