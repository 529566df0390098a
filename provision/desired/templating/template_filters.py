"""The filters and tests of Ansible that gpuprov renders itself: those with exactly one meaning.

Anything they cannot say exactly raises LeftToAnsibleError, and Ansible is asked. A test compares each.
"""

from __future__ import annotations

import base64
import json
import operator
import posixpath
import re
from collections.abc import Callable, Mapping
from typing import Any


class LeftToAnsibleError(Exception):
    """This use is left to Ansible."""


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return str(value)
    raise LeftToAnsibleError(f"a text filter over {type(value).__name__}")


def _flags(ignorecase: bool, multiline: bool) -> int:
    return (re.IGNORECASE if ignorecase else 0) | (re.MULTILINE if multiline else 0)


def _regex_replace(
    value: Any,
    pattern: str,
    replacement: str = "",
    ignorecase: bool = False,
    multiline: bool = False,
    count: int = 0,
) -> str:
    return re.compile(pattern, _flags(ignorecase, multiline)).sub(replacement, _text(value), count=count)


def _regex_search(
    value: Any, pattern: str, *, ignorecase: bool = False, multiline: bool = False
) -> str | None:
    match = re.search(pattern, _text(value), _flags(ignorecase, multiline))
    return match.group() if match else None


def _regex_findall(value: Any, pattern: str, multiline: bool = False, ignorecase: bool = False) -> list[Any]:
    return re.findall(pattern, _text(value), _flags(ignorecase, multiline))


def _bool(value: Any) -> bool:
    word = str(value).lower() if isinstance(value, str | int) else value
    if word in ("yes", "on", "1", "true", "y", "t"):
        return True
    if word in ("no", "off", "0", "false", "n", "f"):
        return False
    raise LeftToAnsibleError(f"bool of {type(value).__name__}")


def _ternary(value: Any, when_true: Any, when_false: Any, when_none: Any = None) -> Any:
    if value is None and when_none is not None:
        return when_none
    return when_true if bool(value) else when_false


def _combine(*terms: Any, recursive: bool = False, list_merge: str = "replace") -> dict[Any, Any]:
    if list_merge != "replace":
        raise LeftToAnsibleError("combine with list_merge")
    result: dict[Any, Any] = {}
    for term in terms:
        for each in term if isinstance(term, list | tuple) else [term]:
            if not isinstance(each, Mapping):
                raise LeftToAnsibleError(f"combine of {type(each).__name__}")
            result = _merged(result, each) if recursive else {**result, **each}
    return result


def _merged(low: Mapping[Any, Any], high: Mapping[Any, Any]) -> dict[Any, Any]:
    result = dict(low)
    for key, value in high.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = _merged(result[key], value) if both else value
    return result


def _dict2items(value: Any, key_name: str = "key", value_name: str = "value") -> list[dict[str, Any]]:
    if not isinstance(value, Mapping):
        raise LeftToAnsibleError(f"dict2items of {type(value).__name__}")
    return [{key_name: key, value_name: each} for key, each in value.items()]


def _items2dict(value: Any, key_name: str = "key", value_name: str = "value") -> dict[Any, Any]:
    return {each[key_name]: each[value_name] for each in value}


def _flatten(value: Any, levels: int | None = None, skip_nulls: bool = True) -> list[Any]:
    result: list[Any] = []
    for each in value:
        if skip_nulls and each in (None, "None", "null"):
            continue
        if isinstance(each, list | tuple) and (levels is None or levels >= 1):
            result.extend(_flatten(each, None if levels is None else levels - 1, skip_nulls))
        else:
            result.append(each)
    return result


def _unique(values: Any) -> list[Any]:
    result: list[Any] = []
    for value in values:
        if value not in result:
            result.append(value)
    return result


def _union(one: Any, other: Any) -> list[Any]:
    return _unique([*one, *other])


def _intersect(one: Any, other: Any) -> list[Any]:
    return _unique([value for value in one if value in other])


def _difference(one: Any, other: Any) -> list[Any]:
    return _unique([value for value in one if value not in other])


def _split(value: Any, separator: str | None = None) -> list[str]:
    return _text(value).split(separator)


def _from_json(value: Any) -> Any:
    return json.loads(_text(value))


def _json(value: Any) -> str:
    return json.dumps(value)


def _b64encode(value: Any) -> str:
    return base64.b64encode(_text(value).encode()).decode()


# --- tests

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    **dict.fromkeys(("==", "=", "eq"), operator.eq),
    **dict.fromkeys(("!=", "<>", "ne"), operator.ne),
    **dict.fromkeys(("<", "lt"), operator.lt),
    **dict.fromkeys(("<=", "le"), operator.le),
    **dict.fromkeys((">", "gt"), operator.gt),
    **dict.fromkeys((">=", "ge"), operator.ge),
}


def _version(value: Any, other: Any, operator: str = "eq", **options: Any) -> bool:
    """Ansible's default, "loose": numbers and letter groups compared in turn."""
    if options or operator not in _OPERATORS:
        raise LeftToAnsibleError("a version test with options")
    try:
        return _OPERATORS[operator](_loose(value), _loose(other))
    except TypeError:
        raise LeftToAnsibleError("versions of different shapes") from None


def _loose(value: Any) -> list[int | str]:
    text = _text(value)
    if not text:
        raise LeftToAnsibleError("an empty version")
    parts = [part for part in re.split(r"(\d+|[a-z]+|\.)", text) if part and part != "."]
    return [int(part) if part.isdecimal() else part for part in parts]


def _matches(method: str) -> Callable[..., bool]:
    def test(value: Any, pattern: str = "", ignorecase: bool = False, multiline: bool = False) -> bool:
        return bool(getattr(re.compile(pattern, _flags(ignorecase, multiline)), method)(_text(value)))

    return test


def _contains(value: Any, item: Any) -> bool:
    return item in value


def _subset(value: Any, other: Any) -> bool:
    return set(value) <= set(other)


def _superset(value: Any, other: Any) -> bool:
    return set(value) >= set(other)


def _truthy(value: Any) -> bool:
    return bool(value)


def _falsy(value: Any) -> bool:
    return not value


FILTERS: dict[str, Callable[..., Any]] = {
    "b64encode": _b64encode,
    "basename": posixpath.basename,
    "bool": _bool,
    "combine": _combine,
    "dict2items": _dict2items,
    "difference": _difference,
    "dirname": posixpath.dirname,
    "flatten": _flatten,
    "from_json": _from_json,
    "intersect": _intersect,
    "items2dict": _items2dict,
    "regex_escape": re.escape,
    "regex_findall": _regex_findall,
    "regex_replace": _regex_replace,
    "regex_search": _regex_search,
    "split": _split,
    "ternary": _ternary,
    "to_json": _json,
    "union": _union,
    "unique": _unique,
}
TESTS: dict[str, Callable[..., bool]] = {
    "all": all,
    "any": any,
    "contains": _contains,
    "falsy": _falsy,
    "match": _matches("match"),
    "regex": _matches("search"),
    "search": _matches("search"),
    "subset": _subset,
    "superset": _superset,
    "truthy": _truthy,
    "version": _version,
}
