"""Inverse of C's printf: whether a format in a program's source can have printed a line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

_SPEC = r"%[-#0]*\d*(?:\.\d+)?(?:ll|l|z)?[dixufgs%]"
_TOKEN = re.compile(rf"(<<.*?>>|\{{.*?\}}|{_SPEC})")
_PARTS = re.compile(r"%(?P<flags>[-#0]*)(?P<width>\d*)(?:\.(?P<digits>\d+))?(?:ll|l|z)?(?P<kind>.)")
_BODIES = {"d": r"-?\d+", "i": r"-?\d+", "u": r"\d+", "x": r"[0-9a-f]+", "s": r"\S*",
           "g": r"-?[\d.]+(?:e[-+]\d+)?|nan"}  # fmt: skip


@dataclass(frozen=True)
class Value:
    """One `%…` of a format."""

    body: re.Pattern[str]
    width: int
    left: bool
    free: bool = False  # a string without a width, which matches anything

    def ends(self, line: str, at: int) -> Iterator[int]:
        """Yield the possible ends of the value that begins here, padded to its width and no further."""
        if self.free:
            yield from range(at, len(line) + 1)
            return
        blanks = 0 if self.left else len(line[at:]) - len(line[at:].lstrip(" "))
        if self.width and blanks >= self.width:  # an empty string
            blanks = self.width
        found = self.body.match(line, at + blanks)
        if found is None or (not self.width and blanks):
            return
        length = len(found[0])
        if self.left:
            end = at + max(length, self.width)
            if not line[at + length : end].strip(" ") and end <= len(line):
                yield end
        elif blanks + length == max(self.width, length):
            yield at + blanks + length


@dataclass(frozen=True)
class Repeated:
    """`<<A|B>>`: A, B, A, B, A."""

    one: tuple[Token, ...]
    between: tuple[Token, ...]

    def ends(self, line: str, at: int) -> Iterator[int]:
        """Yield the possible ends, most repetitions first."""
        for end in _ends(self.one, line, at):
            for start in _ends(self.between, line, end):
                if start > at:
                    yield from self.ends(line, start)
            yield end


@dataclass(frozen=True)
class Words:
    """Literal words; for `{a;b}`, one of several."""

    known: tuple[str, ...]

    def ends(self, line: str, at: int) -> Iterator[int]:
        """Return the end of each match."""
        return (at + len(word) for word in self.known if line.startswith(word, at))


Token = Value | Repeated | Words


@dataclass(frozen=True)
class Format:
    """One line of a program, and its position in the source."""

    where: str
    tokens: tuple[Token, ...]

    def prints(self, line: str) -> bool:
        """Whether the whole line matches this format."""
        return len(line) in _ends(self.tokens, line, 0)


def _ends(tokens: Sequence[Token], line: str, at: int) -> Iterator[int]:
    if not tokens:
        yield at
        return
    for end in tokens[0].ends(line, at):
        yield from _ends(tokens[1:], line, end)


def read(where: str, text: str, words: list[str] | None = None) -> Format:
    """Parse a format; `words` are values given in the source itself."""
    return Format(where, (Words((text % tuple(words),)),) if words is not None else _tokens(text))


def _tokens(text: str) -> tuple[Token, ...]:
    return tuple(_token(part) for part in _TOKEN.split(text) if part)


def _token(part: str) -> Token:
    if part.startswith("<<"):
        one, between = part[2:-2].split("|")
        return Repeated(_tokens(one), _tokens(between))
    if part.startswith("{"):
        return Words(tuple(part[1:-1].split(";")))
    spec = _PARTS.fullmatch(part)
    if spec is None or spec["kind"] == "%":
        return Words(("%" if spec else part,))
    kind, flags, width = spec["kind"], spec["flags"], int(spec["width"] or 0)
    if kind == "x" and "0" in flags:
        head = "0x" if "#" in flags else ""
        return Value(re.compile(f"{head}[0-9a-f]{{{width - len(head)},}}"), 0, left=False)
    body = _BODIES.get(kind, "")
    if kind == "f":
        digits = int(spec["digits"] or 0) if spec["digits"] is not None else 6
        body = r"-?\d+" + (rf"\.\d{{{digits}}}" if digits else "")
    return Value(re.compile(body), width, "-" in flags, free=kind == "s" and not width)


@cache
def formats(program: str) -> tuple[Format, ...]:
    """Return a program's formats from printed.yml."""
    known = yaml.safe_load(Path(__file__).with_name("printed.yml").read_text(encoding="utf-8"))
    return tuple(read(*entry) for entry in known[program]["formats"])


def order(program: str, text: str) -> list[int]:
    """Return the numbers of a text's formats in order of first appearance."""
    rows = [line for line in re.split(r"[\r\n]", text) if line]
    found = [at for row in rows for at, one in enumerate(formats(program)) if one.prints(row)]
    return list(dict.fromkeys(found))


def unknown(program: str, text: str) -> list[str]:
    """Return the lines that match no format of the program; a `\\r` begins a line."""
    rows = [line for line in re.split(r"[\r\n]", text) if line]
    return [line for line in rows if not any(one.prints(line) for one in formats(program))]
