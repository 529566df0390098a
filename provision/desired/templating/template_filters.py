"""Filters and tests of Ansible that gpuprov renders itself, because they have exactly one meaning.

Anything they cannot reproduce exactly raises LeftToAnsibleError, and Ansible renders it.
A test compares each filter and test with Ansible's.
"""

from __future__ import annotations

import hashlib
import json
import operator
import posixpath
import re
from collections.abc import Callable, Mapping
from typing import Any


class LeftToAnsibleError(Exception):
    """A use of a filter or test that is left to Ansible."""


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return str(value)
    raise LeftToAnsibleError(f"a text filter over {type(value).__name__}")


def _refuse(*more: Any, **options: Any) -> None:
    """Leave any use with options to Ansible, because no role has one."""
    if more or options:
        raise LeftToAnsibleError("a filter with options")


def _regex_replace(value: Any, pattern: str, replacement: str = "", *more: Any, **options: Any) -> str:
    _refuse(*more, **options)
    return re.sub(pattern, replacement, _text(value))


def _regex_search(value: Any, pattern: str, *more: Any, **options: Any) -> str | None:
    _refuse(*more, **options)
    match = re.search(pattern, _text(value))
    return match.group() if match else None


def _bool(value: Any) -> bool:
    word = str(value).lower() if isinstance(value, str | int) else value  # True is an int: `true`
    if word in ("yes", "on", "1", "true", "y", "t"):
        return True
    if word in ("no", "off", "0", "false", "n", "f"):
        return False
    raise LeftToAnsibleError(f"bool of {type(value).__name__}")


def _ternary(value: Any, when_true: Any, when_false: Any, when_none: Any = None) -> Any:
    # As in Ansible, null without a third value counts as false.
    if value is None and when_none is not None:
        return when_none
    return when_true if bool(value) else when_false


def _combine(*terms: Any, **options: Any) -> dict[Any, Any]:
    _refuse(**options)
    result: dict[Any, Any] = {}
    for term in terms:
        # Ansible, too, accepts lists of mappings: `[a, b] | combine`.
        for each in term if isinstance(term, list | tuple) else [term]:
            if not isinstance(each, Mapping):
                raise LeftToAnsibleError(f"combine of {type(each).__name__}")
            result.update(each)
    return result


def _dict2items(value: Any, *more: Any, **options: Any) -> list[dict[str, Any]]:
    _refuse(*more, **options)
    if not isinstance(value, Mapping):
        raise LeftToAnsibleError(f"dict2items of {type(value).__name__}")
    return [{"key": key, "value": each} for key, each in value.items()]


def _flatten(value: Any, levels: int | None = None, skip_nulls: bool = True) -> list[Any]:
    result: list[Any] = []
    for each in value:
        if skip_nulls and each in (None, "None", "null"):  # Ansible's flatten drops these texts, too
            continue
        if isinstance(each, list | tuple) and (levels is None or levels >= 1):
            result.extend(_flatten(each, None if levels is None else levels - 1, skip_nulls))
        else:
            result.append(each)
    return result


def _unique(values: Any) -> list[Any]:
    result: list[Any] = []
    for value in values:
        if value not in result:  # no set: a list or a mapping has no hash
            result.append(value)
    return result


# --- tests

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    **dict.fromkeys(("==", "=", "eq"), operator.eq),
    **dict.fromkeys(("!=", "<>", "ne"), operator.ne),
    **dict.fromkeys(("<", "lt"), operator.lt),
    **dict.fromkeys(("<=", "le"), operator.le),
    **dict.fromkeys((">", "gt"), operator.gt),
    **dict.fromkeys((">=", "ge"), operator.ge),
}


def _version(value: Any, other: Any, operator: str = "eq", *more: Any, **options: Any) -> bool:
    """Compare versions as Ansible's default, "loose", does: numbers and letter groups in turn."""
    _refuse(*more, **options)
    if operator not in _OPERATORS:
        raise LeftToAnsibleError(f"a version test with {operator}")
    try:
        return _OPERATORS[operator](_loose(value), _loose(other))
    except TypeError:  # `'1.a' is version('1.2', '>')` compares text with a number
        raise LeftToAnsibleError("versions of different shapes") from None


def _loose(value: Any) -> list[int | str]:
    text = _text(value)
    if not text:
        raise LeftToAnsibleError("an empty version")
    # The pattern of distutils' LooseVersion: `580.65` is [580, 65], `1.a` is [1, 'a'].
    parts = [part for part in re.split(r"(\d+|[a-z]+|\.)", text) if part and part != "."]
    return [int(part) if part.isdecimal() else part for part in parts]


def _hash(value: Any, kind: str = "sha1") -> str:
    if kind != "sha256":
        raise LeftToAnsibleError(f"a hash by {kind}")
    return hashlib.sha256(_text(value).encode()).hexdigest()


def _matches(method: Callable[[str, str], re.Match[str] | None]) -> Callable[[Any, str], bool]:
    def test(value: Any, pattern: str, *more: Any, **options: Any) -> bool:
        _refuse(*more, **options)
        return method(pattern, _text(value)) is not None

    return test


def _with_defaults(function: Callable[[Any], Any]) -> Any:
    """Return a filter of one value that leaves calls with options to Ansible."""

    def call(value: Any, *more: Any, **options: Any) -> Any:
        _refuse(*more, **options)
        return function(value)

    return call


# Called by jinja2 with the arguments that a template gives.
FILTERS: dict[str, Any] = {
    "basename": posixpath.basename,
    "bool": _bool,
    "combine": _combine,
    "dict2items": _dict2items,
    "difference": lambda one, other: _unique(value for value in one if value not in other),
    "dirname": posixpath.dirname,
    "flatten": _flatten,
    "from_json": _with_defaults(lambda value: json.loads(_text(value))),
    "hash": _hash,
    "regex_escape": re.escape,
    "regex_replace": _regex_replace,
    "regex_search": _regex_search,
    "split": lambda value, separator=None: _text(value).split(separator),
    "ternary": _ternary,
    "to_json": _with_defaults(json.dumps),
    "union": lambda one, other: _unique([*one, *other]),
    "unique": _unique,
}
TESTS: dict[str, Any] = {
    "all": all,
    "match": _matches(re.match),
    "search": _matches(re.search),
    "version": _version,
}
