"""Parser of a node's output, which is untrusted until parsed here (pure), and the error of a node."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Collection, Mapping
from typing import Any

from provision import foreign_json
from provision.errors import GpuprovError
from provision.shared_facts import Pool

KINDS = (
    "unreachable",
    "host key",
    "auth",
    "sudo",
    "python",
    "hung",
    "cut",
    "garbage",
    "too large",
    "ansible",
)


class NodeError(GpuprovError):
    """An error of one node: `kind` is one of KINDS, `what` the cause, `fix` the next step."""

    def __init__(self, kind: str, what: str, fix: str) -> None:
        assert kind in KINDS  # noqa: S101
        super().__init__(what, fix)
        self.kind = kind

    def __reduce__(self) -> tuple[type[NodeError], tuple[str, str, str]]:
        return type(self), (self.kind, self.what, self.fix)  # otherwise pickle loses the kind

    @property
    def line(self) -> str:
        """Return cause and next step in one line."""
        return f"{self.what} → {self.fix}" if self.fix else self.what

    @property
    def unreachable(self) -> bool:
        """Return whether nothing ran on the node: it was silent, or refused the connection."""
        return self.kind in ("unreachable", "host key", "auth", "hung")


def state_word(unreachable: bool) -> str:
    """Return the state of a node without a usable answer, as all verbs print it."""
    return "unreachable" if unreachable else "unreadable"


def unreachable(
    what: str, fix: str = "is it powered on, and are address, port and network right?"
) -> NodeError:
    return NodeError("unreachable", what, fix)


def hung(what: str) -> NodeError:
    return NodeError("hung", what, "log in and check load, memory and stuck processes; then run again")


class Clock:
    """Timer for one node."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def overdue(self) -> float:
        """Return seconds since the deadline; negative before it."""
        return time.monotonic() - self._end

    def left(self, at_most: float = 3600.0) -> float:
        """Return the seconds left, at most `at_most`. Raises NodeError after the deadline."""
        if self.overdue >= 0:
            raise hung(f"no answer within {self.seconds:g} s")
        return min(-self.overdue, at_most)


BEGIN = b"@gpuprov-facts 1 "  # as printed by provision/node/observe/answer.py
END = b"@gpuprov-end"
ANSWER_LIMIT = 4 * 1024 * 1024  # bytes of a node's whole output
TEXT_LIMIT = 300 * 1024  # characters of one value
PROBLEM_LIMIT = 400
BASE_FACTS = frozenset(
    {
        *("os.id", "os.version_id", "os.codename", "os.family", "os.arch", "kernel.release"),
        "kernel.boot_release",
        *("boot.id", "boot.required", "boot.reason", "gpu.count", "gpu.pci", "gpu.nvswitch_count"),
    }
)
KERNEL = "{kernel.release}"  # in a requested fact's name; the node inserts its kernel's release


class AnswerError(Exception):
    """The node's output is not a complete, well-formed answer, as described in the text."""


class CutError(AnswerError):
    """The answer is truncated."""


def is_whole(output: bytes | bytearray) -> bool:
    """Return whether `output` contains a complete answer, ignoring what follows it."""
    return _frame(output) is not None


def unframed(output: bytes | bytearray) -> bytes:
    """Return the JSON between the markers, ignoring login banners around it. Raises AnswerError."""
    body = _frame(output)
    if body is not None:
        return body
    if BEGIN in output:
        raise CutError(f"the answer was cut after {len(output)} bytes")
    lines = bytes(output[-4096:]).decode("utf-8", "replace").strip().splitlines()
    raise AnswerError(
        f"it answered something else: {one_line(lines[-1])!r}" if lines else "it answered nothing"
    )


def _frame(output: bytes | bytearray) -> bytes | None:
    start = output.find(BEGIN)
    while start >= 0:
        line_end = output.find(b"\n", start, start + 64)
        length = bytes(output[start + len(BEGIN) : max(line_end, 0)]).strip()
        if length.isdigit() and len(length) < 9:
            body_end = line_end + 1 + int(length)
            # the marker is on the next line, with or without a carriage return
            if output[body_end : body_end + 2 + len(END)].lstrip(b"\r\n").startswith(END):
                return bytes(output[line_end + 1 : body_end])
        start = output.find(BEGIN, start + 1)
    return None


ALIVE = b"@gpuprov-alive"  # heartbeat line of a node without news (provision/node/health_result.py)
_LINE = 4096  # longest line in bytes that may still become an answer


class Frames:
    """Parser of a stream of answers with heartbeats in between.

    Raises AnswerError for an answer of more than `limit` bytes. Other output is skipped, so at most one
    answer is held in memory."""

    def __init__(self, limit: int = ANSWER_LIMIT) -> None:
        self._limit = limit
        self._rest = bytearray()

    def newest(self, data: bytes) -> tuple[bytes, bool]:
        """Consume output; return the newest complete answer, framed, and whether the node is alive.

        (The answer is empty if none is complete. Answers and heartbeats are signs of life.)"""
        rest = self._rest
        rest += data
        newest, alive, at = b"", False, 0
        while (end := rest.find(b"\n", at)) >= 0:
            after = self._answer_end(at, end)
            if after is None:
                break  # incomplete so far
            if after:
                newest, alive = bytes(rest[at:after]), True
            else:
                alive = alive or rest[at:end].rstrip(b"\r") == ALIVE
            at = after or end + 1
        else:
            if len(rest) - at > _LINE:  # useless, whatever follows
                at = len(rest)
        del rest[:at]
        return newest, alive

    def _answer_end(self, start: int, line_end: int) -> int | None:
        """Return the end of the answer at `start`: 0 if no answer begins there, None if it is incomplete."""
        length = bytes(self._rest[start + len(BEGIN) : line_end]).strip()
        if not self._rest.startswith(BEGIN, start) or not length.isdigit() or len(length) > 9:
            return 0
        if int(length) > self._limit:
            raise AnswerError(f"its answer is larger than {self._limit // 1024} KiB")
        body_end = line_end + 1 + int(length)
        closing = bytes(self._rest[body_end : body_end + 2 + len(END)]).lstrip(b"\r\n")
        if len(closing) < len(END) and END.startswith(closing):
            return None
        return body_end + 1 + len(END) if closing.startswith(END) else 0


def facts_of(
    body: bytes, asked: Collection[str], pool: Pool | None = None
) -> tuple[Mapping[str, Any], dict[str, str]]:
    """Return the facts and problems in an answer's JSON. Raises AnswerError for invalid content.

    Only requested and base facts may occur; a fact that is missing from both parts is a problem. `pool`:
    facts of other nodes; a value that another node has too is stored and checked once.
    """
    document = _decoded(body)
    if not isinstance(document, dict) or set(document) != {"uid", "facts", "problems"}:
        raise AnswerError("its answer is not of the form expected")
    facts, problems = document["facts"], document["problems"]
    if not isinstance(facts, dict) or not isinstance(problems, dict) or not isinstance(document["uid"], int):
        raise AnswerError("its answer is not of the form expected")
    allowed = _allowed(frozenset(asked), str(facts.get("kernel.release")))
    foreign = sorted((facts.keys() | problems.keys()) - allowed)
    if foreign:
        raise AnswerError(f"it returned facts that were not requested: {one_line(foreign[0])!r}")
    shared = (pool or Pool()).of(facts, _check)
    if not all(isinstance(reason, str) for reason in problems.values()):
        raise AnswerError("its answer is not of the form expected")
    reasons = {name: _reason(reason, document["uid"]) for name, reason in problems.items()}
    silent = dict.fromkeys(allowed - facts.keys() - problems.keys(), "the node did not answer it")
    return shared, reasons | silent


def _check(facts: Mapping[str, Any]) -> None:
    for name, value in facts.items():
        if not ((type(value) is str and len(value) <= TEXT_LIMIT) or _is_fact(value)):  # most are short texts
            raise AnswerError(f"its answer for {name} is not a fact")


@functools.lru_cache(maxsize=64)
def _allowed(asked: frozenset[str], kernel: str) -> frozenset[str]:
    return BASE_FACTS | {name.replace(KERNEL, kernel) for name in asked}


def _reason(reason: str, uid: int) -> str:
    if "permission denied" in reason and uid != 0:
        reason += f" (run as uid {uid}, without sudo: ansible_become is off)"
    return one_line(reason)


def _decoded(body: bytes) -> Any:
    try:
        document = foreign_json.read(body)
        if b"\\u" in body:
            # A lone surrogate, which JSON can escape, would fail wherever the fact is written.
            json.dumps(document, ensure_ascii=False).encode("utf-8")
    except ValueError:
        raise AnswerError("its answer is not JSON as expected") from None
    return document


def _is_scalar(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= TEXT_LIMIT
    if isinstance(value, int):
        return abs(value) < 2**63
    return value is None


def _is_fact(value: Any) -> bool:
    """Return whether the value is a scalar, a list of scalars or flat dictionaries, or a flat dictionary."""
    if isinstance(value, list):
        return all(_is_scalar(item) or (isinstance(item, dict) and _is_flat(item)) for item in value)
    return _is_flat(value) if isinstance(value, dict) else _is_scalar(value)


def _is_flat(value: Mapping[Any, Any]) -> bool:
    return all(_is_scalar(item) for item in value.values())


def one_line(text: str, limit: int = PROBLEM_LIMIT) -> str:
    """Return a node's text as one printable line."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
