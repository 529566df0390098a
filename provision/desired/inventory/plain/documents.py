"""Parser of YAML and JSON into the values that `ansible-inventory --list` prints, in one pass.

The events of libyaml are used directly: no nodes are composed, and a text seen before is not resolved
again. That is three to four times as fast as PyYAML's CSafeLoader, which gives the same values.
"""

from __future__ import annotations

import json
import re
from typing import Any

import yaml
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from provision.yamlfile import Loader

VAULT_HEADER = "$ANSIBLE_VAULT"
_TAG = "tag:yaml.org,2002:"
_STANDARD = {"null", "bool", "int", "float", "timestamp"}
# Half of a surrogate pair, which JSON can spell and UTF-8 cannot.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class NotPlainError(Exception):
    """A text that cannot be read here; callers turn to Ansible, which also explains errors better."""


class NoYamlError(NotPlainError):
    """A text that is neither JSON nor YAML."""


def parse(text: str, known: dict[str, Any]) -> Any:
    """Parse a text that Ansible would try as JSON, then as YAML.

    `known` caches the values of plain scalars, shared between files. Dates become text; a `!vault` value
    becomes `{"__ansible_vault": …}`. Raises NotPlainError for anything unusual or invalid.
    """
    if "__ansible_" in text:
        raise NotPlainError("it uses a name that means something in Ansible's own JSON")
    try:
        if text.lstrip(" \t\r\n").startswith("{"):
            try:
                value = json.loads(text)
            except ValueError:
                pass  # a flow mapping of YAML
            else:
                if _SURROGATE.search(text):
                    raise NotPlainError("it spells characters as surrogates")
                return value
        return _Document(text, known).value()
    except RecursionError:
        raise NotPlainError("it is nested too deeply") from None
    except yaml.YAMLError as trouble:
        raise NoYamlError(str(trouble)) from None


class _Document:
    """One YAML text, parsed event by event."""

    def __init__(self, text: str, known: dict[str, Any]) -> None:
        self._next = Loader(text).get_event
        self._known = known
        self._anchors: dict[str, Any] = {}

    def value(self) -> Any:
        self._next()  # the start of the stream
        if type(self._next()) is yaml.StreamEndEvent:
            return None
        value = self._value(self._next())
        self._next()  # the end of the document
        if type(self._next()) is not yaml.StreamEndEvent:
            raise NotPlainError("several documents in one file")
        return value

    def _value(self, event: Any) -> Any:
        kind = type(event)
        value: Any
        if kind is yaml.ScalarEvent:
            value = self._scalar(event)
        elif kind is yaml.AliasEvent:
            if event.anchor not in self._anchors:
                raise NotPlainError(f"the alias {event.anchor} is not defined before it is used")
            return self._anchors[event.anchor]
        elif kind is yaml.MappingStartEvent and event.tag in (None, _TAG + "map"):
            value = self._mapping()
        elif kind is yaml.SequenceStartEvent and event.tag in (None, _TAG + "seq"):
            value = self._sequence()
        else:
            raise NotPlainError(f"the tag {event.tag}")
        if event.anchor is not None:
            if event.anchor in self._anchors:
                raise NotPlainError(f"the anchor {event.anchor} is there twice")
            self._anchors[event.anchor] = value
        return value

    def _mapping(self) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        while type(event := self._next()) is not yaml.MappingEndEvent:
            if type(event) is yaml.ScalarEvent and event.value == "<<" and event.implicit[0]:
                merged.update(self._merged())
                continue
            key = self._value(event)
            if type(key) is not str:
                raise NotPlainError(f"the key {key!r} is not text")
            if key in mapping:
                raise NotPlainError(f"the key {key} is there twice")
            mapping[key] = self._value(self._next())
        # The mapping's own key wins over a merged one, even if `<<` comes after it.
        return {**merged, **mapping} if merged else mapping

    def _merged(self) -> dict[str, Any]:
        """Return the value of `<<`: a mapping, or a list of mappings, of which the first with a key wins."""
        value = self._value(self._next())
        parts = value if isinstance(value, list) else [value]
        if not all(isinstance(part, dict) for part in parts):
            raise NotPlainError("<< merges mappings only")
        return {key: inner for part in reversed(parts) for key, inner in part.items()}

    def _sequence(self) -> list[Any]:
        items = []
        while type(event := self._next()) is not yaml.SequenceEndEvent:
            items.append(self._value(event))
        return items

    def _scalar(self, event: Any) -> Any:
        text, tag = event.value, event.tag
        if tag is None:
            if not event.implicit[0]:  # in quotes, so always text
                return text
            try:
                return self._known[text]
            except KeyError:
                value = self._known[text] = _constructed(_meaning(text), text)
                return value
        if tag == "!vault" and text.startswith(VAULT_HEADER):
            return {"__ansible_vault": text}
        return _constructed(tag, text)


def _meaning(text: str) -> str:
    """Return the YAML tag of a scalar without quotes."""
    patterns = Resolver.yaml_implicit_resolvers
    for tag, pattern in (*patterns.get(text[:1], ()), *patterns.get(None, ())):
        if pattern.match(text):
            return str(tag)
    return _TAG + "str"


_CONSTRUCTOR = SafeConstructor()


def _constructed(tag: str, text: str) -> Any:
    if tag == _TAG + "str":
        return text
    kind = tag.removeprefix(_TAG)
    if kind not in _STANDARD:
        raise NotPlainError(f"the tag {tag}")
    try:
        value = getattr(_CONSTRUCTOR, f"construct_yaml_{kind}")(yaml.ScalarNode(tag, text))
    except (ValueError, KeyError, AttributeError):
        raise NotPlainError(f"{text!r} is not a valid {kind}") from None
    return value.isoformat() if kind == "timestamp" else value


class Shared:
    """Table of values with sorted keys, in which equal values are one object for all hosts."""

    def __init__(self) -> None:
        self._seen: dict[str, Any] = {}

    def value(self, value: Any) -> Any:
        if type(value) is not dict and type(value) is not list:
            return value
        spelled = repr(value)
        if spelled not in self._seen:
            self._seen[spelled] = self._sorted(value)
        return self._seen[spelled]

    def _sorted(self, value: Any) -> Any:
        if type(value) is dict:
            return {key: self._sorted(inner) for key, inner in sorted(value.items())}
        if type(value) is list:
            return [self._sorted(inner) for inner in value]
        return value
