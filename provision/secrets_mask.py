"""Masking of secrets in all output and stored files (pure)."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection, Mapping
from typing import Any

HIDDEN = "********"  # replaces a hidden value

_SECRET_NAME = re.compile(
    r"passw(or)?d|passphrase|_pass$|_pass_|key_pass|private_key$|secret|token|^vault_", re.IGNORECASE
)
_REFERENCE = re.compile(r"^\s*\{\{\s*(\w+)\s*\}\}\s*$")


@functools.lru_cache(maxsize=4096)  # a fleet has few names, each many times
def is_secret_name(name: str) -> bool:
    """Return whether a variable's name suggests a secret."""
    return _SECRET_NAME.search(name) is not None


def secrets_of(*sources: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the values to hide: of variables named like secrets, and those they refer to by `{{ name }}`."""
    found: set[str] = set()
    referred: list[str] = []

    def collect(value: Any, secret: bool) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                collect(inner, secret or is_secret_name(str(key)))
        elif isinstance(value, list | tuple):
            for inner in value:
                collect(inner, secret)
        elif secret and isinstance(value, str | int) and not isinstance(value, bool):
            text = str(value)
            reference = _REFERENCE.match(text)
            if reference:
                referred.append(reference[1])
            elif len(text) >= 3 and "{{" not in text:
                found.update((text, json.dumps(text)[1:-1]))

    for source in sources:
        collect(source, False)
    followed: set[str] = set()
    while names := set(referred) - followed:  # each once: all nodes' variables may refer to one
        followed |= names
        for source in sources:
            for name in names & source.keys():
                collect(source[name], True)
    # Longest first, so that masking a secret inside a longer one leaves no remainder.
    return tuple(sorted(found, key=lambda text: (-len(text), text)))


def occurring(value: Any, secrets: Collection[str]) -> tuple[str, ...]:
    """Return the secrets that occur in `value`.
    Each of its texts is then searched for these only, in a fleet with one password per node."""
    whole = json.dumps(value, ensure_ascii=False, default=str)
    inside = ((secret, json.dumps(secret, ensure_ascii=False)[1:-1]) for secret in secrets)
    return tuple(secret for secret, quoted in inside if quoted in whole or _begins_at_a_cut(whole, quoted))


def masked(value: Any, secrets: Collection[str]) -> Any:
    """Return `value` with every secret in its texts hidden."""
    if not secrets:
        return value
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, HIDDEN)
            if begin := _begins_at_a_cut(value, secret):
                value = value.replace(begin + _CUT, HIDDEN + _CUT)
        return value
    if isinstance(value, Mapping):
        return {masked(str(key), secrets): masked(inner, secrets) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [masked(inner, secrets) for inner in value]
    return value


_CUT = "…"  # ends a truncated text
_LEAST = 3  # shortest part of a secret worth hiding, in characters


def _begins_at_a_cut(text: str, secret: str) -> str:
    """Return the part of a secret's beginning that remains before a truncation; empty if none does."""
    for position in (match.start() for match in re.finditer(_CUT, text)):
        for length in range(min(len(secret) - 1, position), _LEAST - 1, -1):
            if text.endswith(secret[:length], 0, position):
                return secret[:length]
    return ""
