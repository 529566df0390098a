"""Serial numbers, UUIDs and hardware addresses replaced by stand-ins of the same shape, always the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

_UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE)
_MAC = re.compile(r"(?<![0-9a-f:])[0-9a-f]{2}(?::[0-9a-f]{2}){5}(?![0-9a-f:])", re.IGNORECASE)
_GUID = re.compile(
    r"(?<![0-9a-f:])[0-9a-f]{4}(?::[0-9a-f]{4}){3}(?![0-9a-f:])|\b0x[0-9a-f]{16}\b", re.IGNORECASE
)
_GID = re.compile(r"\bfe80:[0-9a-f:]{4,34}", re.IGNORECASE)
# Serial numbers have no shape of their own: they stand behind a name that says so.
_NAMED = (
    re.compile(r"<\w*serial\w*>\s*([^<]{4,64}?)\s*</", re.IGNORECASE),
    re.compile(r'\\?"[^"\n]{0,40}serial[^"\n]{0,40}"\s*:\s*\\?"\s*([^"\\]{4,64}?)\s*\\?"', re.IGNORECASE),
    re.compile(r"\bserial(?: ?number)?\s*[:=]\s*([\w.-]{4,64})", re.IGNORECASE),
)
_SERIAL = re.compile(r"(?=.*[1-9])[A-Za-z0-9][\w.-]{3,63}")


class Serials:
    """The stand-ins, kept for as long as the archive is written."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._given: set[str] = set()

    def learn(self, text: str) -> None:
        """Remember the serial numbers that a text names."""
        for pattern in _NAMED:
            for value in pattern.findall(text):
                if _SERIAL.fullmatch(value) and value.lower() not in self._given:
                    self._stand_in(value, _plain)

    def learn_values(self, value: Any, key: str = "") -> None:
        """Remember those among named values: a node's facts, a check's measurements."""
        if isinstance(value, Mapping):
            for name, inner in value.items():
                self.learn_values(inner, str(name))
        elif isinstance(value, list | tuple):
            for inner in value:
                self.learn_values(inner, key)
        elif isinstance(value, str) and "serial" in key.lower():
            self.learn(f"serial: {value}")

    def hide(self, text: str) -> str:
        """The text with the stand-ins."""
        for value in sorted(self._known, key=len, reverse=True):
            if value in text.lower():
                pattern = rf"(?<![A-Za-z0-9]){re.escape(value)}(?![A-Za-z0-9])"
                text = re.sub(pattern, self._known[value], text, flags=re.IGNORECASE)
        for known, shape in ((_UUID, _uuid), (_GID, _gid), (_MAC, _mac), (_GUID, _guid)):
            text = self._replaced(known, shape, text)
        return text

    def _replaced(self, known: re.Pattern[str], shape: Callable[[str, int], str], text: str) -> str:
        return known.sub(lambda found: self._stand_in(found[0], shape), text)

    def _stand_in(self, value: str, shape: Callable[[str, int], str]) -> str:
        key = value.lower()
        if not key.strip("0x:-fe8") or key in self._given:  # of no device, or a stand-in already
            return value
        if key not in self._known:
            self._known[key] = shape(value, len(self._known) + 1)
            self._given.add(self._known[key].lower())
        return self._known[key]


def _plain(value: str, number: int) -> str:
    return f"{number:0{len(value)}d}"


def _uuid(_value: str, number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


def _mac(_value: str, number: int) -> str:
    return f"02:00:00:00:{number // 100 % 100:02d}:{number % 100:02d}"


def _gid(_value: str, number: int) -> str:
    return f"fe80:0000:0000:0000:0000:0000:0000:{number:04d}"


def _guid(value: str, number: int) -> str:
    return f"0x{number:016d}" if value.lower().startswith("0x") else f"0000:0000:0000:{number:04d}"
