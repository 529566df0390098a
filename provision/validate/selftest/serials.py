"""Placeholders for serial numbers, UUIDs, hardware addresses and the host name.

A part always gets the same placeholder, as long as the original. Values that identify nothing stay: zeros,
`N/A`, PCI addresses. A serial number that looks like any number or word is only replaced next to a name such
as `serial`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

# In JSON nested in a JSON text, a line begins after the two characters of `\n`.
_EDGE = r"(?:(?<![0-9A-Za-z])|(?<=\\[nrt]))"
_WORD = r"[A-Za-z0-9][\w.-]{3,63}"
# Serial numbers have no shape of their own, so a name in front identifies them. The kernel log's `Serial:
# 8250/16550 driver` and `SerialNumber: 0000:00:14.0` are no serial numbers.
_NAMED = (
    re.compile(
        rf"(?P<name><\w{{0,40}}serial\w{{0,40}}>\s{{0,40}})(?P<value>{_WORD})(?=\s{{0,40}}</)", re.IGNORECASE
    ),
    re.compile(
        r'(?P<name>"[^"\n]{0,40}serial(?:[ _]?num(?:ber)?|[ _]?no)?\\?"\s{0,40}:\s{0,40}(?:\\?")?\s{0,40})'
        rf'(?P<value>{_WORD})(?=\s{{0,40}}(?:\\?"|[,\}}\]\n]))',
        re.IGNORECASE,
    ),
    re.compile(
        r"(?P<name>(?<![A-Za-z])serial(?:[ _]?num(?:ber)?|[ _]?no)?[ \t]{0,40}[:=][ \t]{0,40})"
        rf"(?P<value>{_WORD})(?=[\s,;)\]]|\\[nrt]|$)",
        re.IGNORECASE,
    ),
    # lspci -vv: `Capabilities: [100 v1] Device Serial Number b8-59-9f-ff-ff-03-12-34`
    re.compile(
        r"(?P<name>\bserial number[ \t]{1,40})(?P<value>(?:[0-9a-f]{2}-){7}[0-9a-f]{2})\b", re.IGNORECASE
    ),
)
_KEY = re.compile(r"serial(?:[ _-]?num(?:ber)?|[ _]?no)?$", re.IGNORECASE)
_SERIAL = re.compile(rf"(?=.*[1-9]){_WORD}")
_DIGITS_ALONE, _MIXED = 10, 6  # minimum length to recognise a known serial number anywhere
_HOST_KEYS = ("host", "hostname", "node")
# The kernel's journal, systemd's first lines, the ranks of nccl-tests.
_HOST_PLACES = (
    r"^(?P<name>\d{{9,}}\.\d+ )(?P<value>{})(?= )",
    r"(?P<name>Hostname set to <)(?P<value>{})(?=>)",
    r"(?P<name> on +)(?P<value>{})(?= device +\d)",
    r"(?P<name>(?<![\w.-]))(?P<value>{})(?=:\d+:\d+ \[\d+\] )",  # NCCL's own lines
)
_HOST = "this-host"
_UUID = re.compile(
    rf"{_EDGE}[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}(?![0-9A-Za-z])", re.IGNORECASE
)
# systemd's machine ID on the kernel's command line: `systemd.machine_id=`, `initrd=\<ID>\<release>`.
_MACHINE_ID = re.compile(rf"{_EDGE}[0-9a-f]{{32}}(?![0-9A-Za-z])")
# Ethernet (6 bytes), EUI-64 (8), IP over InfiniBand (20).
_MAC = re.compile(
    rf"{_EDGE}(?<!\b[0-9a-f]{{2}}:)[0-9a-f]{{2}}(?::[0-9a-f]{{2}}){{5}}"
    r"(?:(?::[0-9a-f]{2}){2}|(?::[0-9a-f]{2}){14})?(?!:?[0-9a-f])",
    re.IGNORECASE,
)
_GUID = re.compile(rf"{_EDGE}(?<![0-9a-f]:)[0-9a-f]{{4}}(?::[0-9a-f]{{4}}){{3}}(?!:?[0-9a-f])", re.IGNORECASE)
# An interface that udev named by its address: `mlx5_core 0000:1a:00.0 enx0c42a1abcdef: renamed from eth0`.
_NAMED_MAC = re.compile(r"(?P<name>(?<![0-9A-Za-z])(?:en|ib|wl|ww)x)(?P<value>[0-9a-f]{12})(?![0-9A-Za-z])")
# Any 64-bit number has this shape (a throttle reason, an address, a kernel log time), so a name must precede
# it. A PDI is the per-GPU identifier of drivers since 580.
_NAMED_GUID = re.compile(
    r"(?P<name>(?:guid|(?<![0-9A-Za-z])pdi)[^0-9A-Za-z\n]{1,60})(?P<value>0x[0-9a-f]{16}(?![0-9a-f]))",
    re.IGNORECASE,
)
_NUMBER = re.compile(rf"{_EDGE}0x[0-9a-f]{{16}}(?![0-9a-f])", re.IGNORECASE)
_GID = re.compile(
    rf"{_EDGE}(?:fe80::[0-9a-f]{{1,4}}(?::[0-9a-f]{{1,4}}){{0,3}}|"
    r"(?<![0-9a-f]:)[0-9a-f]{4}(?::[0-9a-f]{4}){7})(?!:?[0-9a-f])",
    re.IGNORECASE,
)
# ib_write_bw prints a GID byte by byte in decimal.
_DECIMAL_GID = re.compile(rf"{_EDGE}\d{{2,3}}(?::\d{{2,3}}){{15}}(?!:?\d)")
_LINK_LOCAL = "fe80000000000000"


class Serials:
    """The placeholders, kept as long as the archive is written. `host`: the machine's name."""

    def __init__(self, host: str = "") -> None:
        self._numbers: dict[str, int] = {}
        self._given: set[str] = {_HOST}
        self._serials: dict[str, str] = {}
        hosts = sorted({host, host.partition(".")[0]} - {""}, key=len, reverse=True)
        self._hosts = frozenset(hosts)
        named = "|".join(map(re.escape, hosts))
        self._places = [re.compile(one.format(named), re.MULTILINE) for one in _HOST_PLACES if hosts]
        plain = [re.escape(one) for one in hosts if _tells_a_host(one)]
        if plain:
            self._places.append(re.compile(rf"(?P<name>)(?<![\w.-])(?P<value>{'|'.join(plain)})(?![\w-])"))

    def learn(self, text: str) -> None:
        """Collect the serial numbers that a text names."""
        for pattern in _NAMED:
            for match in pattern.finditer(text):
                self._serial(match["value"])

    def learn_columns(self, argv: Iterable[str], text: str) -> None:
        """Collect serial numbers from an nvidia-smi table; its first line or --query-gpu names columns."""
        queried = next((word.partition("=")[2] for word in argv if word.startswith("--query-gpu=")), "")
        lines = text.splitlines()
        for header in (queried, lines[0] if lines else ""):
            columns = [cell.strip() for cell in header.split(",")]
            for at in (number for number, name in enumerate(columns) if _KEY.search(name)):
                for line in lines:
                    cells = line.split(",")
                    if len(cells) == len(columns):
                        self._serial(cells[at].strip())

    def learn_values(self, value: Any, key: str = "") -> None:
        """Collect serial numbers from named values: a node's facts, a check's measurements."""
        if isinstance(value, Mapping):
            for name, inner in value.items():
                self.learn_values(inner, str(name))
        elif isinstance(value, list | tuple):
            for inner in value:
                self.learn_values(inner, key)
        elif isinstance(value, str) and _KEY.search(key):
            self._serial(value.strip())

    def hidden(self, value: Any, key: str = "") -> Any:
        """Return a JSON document with serial numbers, addresses and host name replaced by placeholders."""
        if isinstance(value, Mapping):
            return {self.hide(str(name)): self.hidden(inner, str(name)) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.hidden(inner, key) for inner in value]
        if not isinstance(value, str):
            return value
        if key in _HOST_KEYS and value in self._hosts:
            return _HOST
        return self._serial(value) if _KEY.search(key) else self.hide(value)

    def hide(self, text: str) -> str:
        """Return the text with serial numbers, addresses and host name replaced by placeholders."""
        for pattern in _NAMED:
            text = pattern.sub(lambda found: found["name"] + self._serial(found["value"]), text)
        lower = text.lower()
        for value in sorted(self._serials, key=len, reverse=True):
            if _tells_itself(value) and value in lower:
                text = re.sub(
                    rf"{_EDGE}{re.escape(value)}(?![A-Za-z0-9])",
                    lambda found: self._serial(found[0]),
                    text,
                    flags=re.IGNORECASE,
                )
        for pattern in self._places:
            text = pattern.sub(lambda found: found["name"] + _HOST, text)
        text = _NAMED_GUID.sub(lambda found: found["name"] + self._guid(found["value"]), text)
        text = _NAMED_MAC.sub(lambda found: found["name"] + self._mac_of_name(found["value"]), text)
        for known, shown in (
            (_UUID, self._uuid),
            (_MACHINE_ID, self._machine_id),
            (_GID, self._gid),
            (_DECIMAL_GID, self._decimal_gid),
            (_MAC, self._mac),
            (_GUID, self._guid),
            (_NUMBER, self._number_known),
        ):
            text = self._replaced(known, shown, text)
        return text

    def _replaced(self, known: re.Pattern[str], shown: Callable[[str], str], text: str) -> str:
        def stand_in(found: re.Match[str]) -> str:
            return found[0] if found[0].lower() in self._given else self._give(shown(found[0]), found[0])

        return known.sub(stand_in, text)

    def _give(self, stand_in: str, value: str) -> str:
        if stand_in != value:
            self._given.add(stand_in.lower())
        return stand_in

    def _number(self, key: str) -> int:
        return self._numbers.setdefault(key.lower(), len(self._numbers) + 1)

    def _serial(self, value: str) -> str:
        if value.lower() in self._given or not _SERIAL.fullmatch(value):
            return value
        stand_in = _refilled(value, self._number(value), "X")
        self._serials[value.lower()] = stand_in
        return self._give(stand_in, value)

    def _uuid(self, value: str) -> str:
        if not value.strip("0-"):
            return value
        return f"00000000-0000-4000-8000-{self._number(value):012d}"

    def _mac(self, value: str) -> str:
        digits = value.replace(":", "")
        if not digits.strip("0") or not digits.lower().strip("f"):
            return value
        if len(digits) == 16:
            return _refilled(value, self._number(digits), "0")
        number = self._number(digits[-16:] if len(digits) == 40 else digits)
        return "02" + _refilled(value[2:], number, "0")

    def _mac_of_name(self, value: str) -> str:
        if value in self._given:
            return value
        return self._give("02" + _refilled(value[2:], self._number(value), "0"), value)

    def _machine_id(self, value: str) -> str:
        return _refilled(value, self._number(value), "0") if value.strip("0") else value

    def _guid(self, value: str) -> str:
        digits = value.lower().removeprefix("0x").replace(":", "")
        if value.lower() in self._given or not digits[4:].strip("0") or not digits.strip("f"):
            return value
        kept = 2 if value.lower().startswith("0x") else 0
        return self._give(value[:kept] + _refilled(value[kept:], self._number(digits), "0"), value)

    def _number_known(self, value: str) -> str:
        return self._guid(value) if value[2:].lower() in self._numbers else value

    def _gid(self, value: str) -> str:
        try:
            address = ipaddress.IPv6Address(value)
        except ValueError:
            return value
        digits = f"{int(address):032x}"
        if not digits[16:].strip("0"):
            return value
        number = self._number(digits[16:])
        if "::" in value:
            return value[:6] + _refilled(value[6:], number, "0")
        if digits.startswith("0" * 20 + "ffff"):  # an IPv4 address
            return value[:30] + _refilled(value[30:], number, "0")
        prefix = value[:20] if digits.startswith(_LINK_LOCAL) else "fd00:0000:0000:0000:"
        return prefix + _refilled(value[20:], number, "0")

    def _decimal_gid(self, value: str) -> str:
        numbers = [int(one) for one in value.split(":")]
        if max(numbers) > 255 or not any(numbers[8:]):
            return value
        number = self._number(bytes(numbers[8:]).hex())
        kept = 12 if numbers[10:12] == [255, 255] and not any(numbers[:10]) else 8
        shown = [*numbers[:kept], *[0] * (14 - kept), number // 100 % 100, number % 100]
        return ":".join(f"{one:02d}" for one in shown)


def _tells_itself(serial: str) -> bool:
    return len(serial) >= (_DIGITS_ALONE if serial.isdigit() else _MIXED)


def _tells_a_host(name: str) -> bool:
    """Return whether this name can only mean the machine; `gpu` and `h100` occur in every output."""
    return len(name) >= _MIXED and any(map(str.isdigit, name)) and any(sign in name for sign in "-.")


def _refilled(value: str, number: int, letter: str) -> str:
    """Fill `value`: its last digits become `number`, its other digits 0, its letters `letter`."""
    rest, made = str(number), []
    places = sum(one.isdigit() or (letter == "0" and one.isalnum()) for one in value)
    anywhere = places < len(rest)
    for character in reversed(value):
        if not character.isalnum():
            made.append(character)
        elif character.isdigit() or letter == "0" or anywhere:
            made.append(rest[-1:] or "0")
            rest = rest[:-1]
        else:
            made.append(letter)
    return "".join(reversed(made))
