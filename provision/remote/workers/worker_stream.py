"""Protocol between controller and worker: ansible-runner's lines in a Receptor unit, validated.

A first unit greets a worker. A working unit gets one line of `kwargs` and `{"eof": true}`, and returns
events, a status with their number, and `{"eof": true}`, all encrypted (sealed.py). Output of a worker is
validated before use: it may concern only hosts of the worker's share, in the shapes of Ansible's events.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from provision import __version__, foreign_json, paths
from provision.remote.protocol import ANSWER_LIMIT, one_line
from provision.remote.workers import sealed

HELLO = "@gpuprov-worker "  # followed by a JSON object: the worker's versions
LINE_LIMIT = 72 * 1024 * 1024  # bytes; an event has at most 64 MB (remote.ansible.handover)
REFUSED = "@gpuprov-refused "  # followed by a JSON object: why a unit was rejected
STOPPED = "it was stopped"  # prefix of the explanation for a unit that was ended
BEAT = 10.0  # seconds between heartbeats of a unit
_NOISE = 8 * 1024  # bytes kept of other output: standard error is in the same stream
OUTPUT = "gpuprov_output"  # gpuprov's own event: output of one of its programs on a node
_ANSIBLE = ("ansible-core", "ansible-runner")
_KEPT = ("host", "role", "task", "task_path", "ignore_errors", "res")


class BadStreamError(Exception):
    """A worker sent invalid output, described in the text."""


def versions() -> dict[str, str]:
    """Return the versions that must be equal on both sides before work starts."""
    packages = {name: importlib.metadata.version(name) for name in _ANSIBLE}
    return {"gpuprov": __version__, **packages, "contents": _contents()}


@functools.cache
def _contents() -> str:
    """Return a digest of this installation's playbooks, roles, modules and programs, and of this protocol."""
    digest = hashlib.sha256()
    for name, file in sorted(_files()):
        digest.update(f"{name}\0".encode() + hashlib.sha256(Path(file).read_bytes()).digest())
    return digest.hexdigest()[:16]


def _files() -> Iterator[tuple[str, str]]:
    """Yield name and path of each file in the digest; pathlib's globs would take three times as long."""
    for label, top, suffixes in (
        ("playbooks", paths.PLAYBOOKS, (".yml",)),
        ("roles", paths.ROLES, (".yml", ".j2", ".py")),
        ("node", paths.NODE, (".py",)),
        ("workers", Path(__file__).parent, (".py",)),
        ("worker_program", Path(__file__).parent.parent / "worker_program", (".py",)),
    ):
        for folder, _, names in os.walk(top):
            inside = folder.removeprefix(str(top))
            all_files = "files" in inside.split("/")
            for name in names:
                if name.endswith(suffixes) or (all_files and "__pycache__" not in inside):
                    yield f"{label}{inside}/{name}", f"{folder}/{name}"
    for file in paths.PACKAGE.glob("*.py"):
        yield f"provision/{file.name}", str(file)


@functools.cache
def digest() -> str:
    """Return a digest of `versions`, sent in clear, which a worker compares before it opens a unit."""
    return hashlib.sha256(json.dumps(versions(), sort_keys=True).encode()).hexdigest()[:16]


def differences(theirs: Mapping[str, Any], python: str) -> tuple[str, str]:
    """Compare a worker's versions with ours; return the difference and its fix, or two empty texts."""
    ours = versions()
    for name in ("gpuprov", *_ANSIBLE):
        if theirs.get(name) != ours[name]:
            theirs_version = one_line(str(theirs.get(name) or "no"), 40)
            return (
                f"it has {name} {theirs_version}, and this controller has {ours[name]}",
                f"install the same version on it: {python} -m pip install {name}=={ours[name]}",
            )
    if theirs.get("contents") != ours["contents"]:
        return (
            f"its gpuprov {ours['gpuprov']} has other playbooks, roles or modules than this controller's",
            "install the same build of gpuprov on both",
        )
    return "", ""


class OddAnswerError(Exception):
    """The answer for one node is malformed; answers for other nodes are not affected."""


class Answers:
    """Compression of the nodes' output in a stream, sending only parts that differ from an earlier answer.

    Sender and receiver see answers in the same order, so both keep the same few short ones for comparison."""

    def __init__(self) -> None:
        self._kinds: list[tuple[str, ...]] = []  # parts of one answer of each kind of node

    def packed(self, output: bytes | bytearray) -> dict[str, Any]:
        """Encode a node's output as data of an event."""
        try:
            text = output.decode("utf-8") if len(output) <= _TEXT else None
        except UnicodeDecodeError:
            text = None
        if text is None:
            return {"bytes": base64.b64encode(output).decode("ascii")}
        parts = text.split(_BETWEEN)
        like, others = -1, len(parts) // _ALIKE + 1
        for number, kind in enumerate(self._kinds):
            if len(kind) == len(parts):
                differ = sum(map(str.__ne__, parts, kind))
                if differ < others:
                    like, others = number, differ
        if like < 0:
            self._keep(text, parts)
            return {"output": text}
        kind = self._kinds[like]
        own = [[place, part] for place, part in enumerate(parts) if part != kind[place]]
        return {"like": like, "parts": own}

    def unpacked(self, data: Mapping[str, Any]) -> bytes:
        """Decode a node's output.

        Raises OddAnswerError for malformed or oversized data, BadStreamError for a reference to an unknown
        answer."""
        try:
            if "bytes" in data:
                output = base64.b64decode(data["bytes"], validate=True)
            elif "like" in data:
                output = _BETWEEN.join(self._like(data["like"], data.get("parts"))).encode()
            else:
                text = data.get("output")
                if not isinstance(text, str):
                    raise OddAnswerError
                output = text.encode()
                self._keep(text, text.split(_BETWEEN))
        except (TypeError, ValueError, binascii.Error):
            raise OddAnswerError from None
        if len(output) > ANSWER_LIMIT:
            raise OddAnswerError
        return output

    def _like(self, like: Any, own: Any) -> list[str]:
        if type(like) is not int or not 0 <= like < len(self._kinds):
            raise BadStreamError(f"an answer like {one_line(repr(like), 40)}, which it never gave")
        parts = list(self._kinds[like])
        if not isinstance(own, list):
            raise OddAnswerError
        for each in own:
            place, part = each
            if type(place) is not int or not 0 <= place < len(parts):
                raise BadStreamError(f"part {one_line(repr(place), 40)} of an answer that has {len(parts)}")
            if not isinstance(part, str):
                raise OddAnswerError
            parts[place] = part
        return parts

    def _keep(self, text: str, parts: Sequence[str]) -> None:
        if len(self._kinds) < _KINDS and len(text) <= _KIND_TEXT and len(parts) <= _KIND_PARTS:
            self._kinds.append(tuple(parts))


_TEXT = 1024 * 1024  # bytes; longer output is sent as base64, since escaping may take six times its size
# Facts and problems of an answer are members of JSON objects (node/observe/answer.py).
_BETWEEN = ',"'
_ALIKE = 2  # one in so many parts must be equal, else the answer is of another kind
_KINDS = 8
_KIND_TEXT = 64 * 1024  # characters
_KIND_PARTS = 1000  # each takes about 60 bytes of memory


class Reader:
    """Incremental parser of a unit's output; raises BadStreamError and sealed.SealError if it is invalid.

    `take` gets each event, or the versions in a greeting (without `opener`)."""

    def __init__(
        self, hosts: Collection[str], opener: sealed.Opener | None, take: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self.position = 0  # bytes read
        self.begun = False  # the unit has read its input
        self.whole = False  # the output is complete
        self.refusal: Mapping[str, Any] | None = None
        self.noise = b""
        self._hosts = frozenset(hosts)
        self._opener = opener
        self._take = take
        self._printed = _Lines(LINE_LIMIT * 2)  # base64 adds a third
        self._inside = _Lines(LINE_LIMIT)
        self._held = 0  # decrypted and decompressed bytes so far
        self._count = 0
        self._status: Mapping[str, Any] = {}

    @property
    def size(self) -> int:
        """Return the total output in bytes: as printed or as decompressed, whichever is larger."""
        return max(self.position, self._held)

    def feed(self, data: bytes) -> None:
        self.position += len(data)
        for line in self._printed.of(data):
            if self.whole:
                return
            if line.startswith(sealed.FRAME) and self._opener is not None:
                self.begun = True
                for piece in self._opener.data(line):
                    self._held += len(piece)
                    for inner in self._inside.of(piece):
                        self._said(inner)
            elif line.startswith(HELLO.encode()) and self._opener is None:
                self._take(_object(line.decode("utf-8", "replace").removeprefix(HELLO)))
                self.whole = True
            elif line.startswith(REFUSED.encode()) and not self.begun:
                self.refusal = _object(line.decode("utf-8", "replace").removeprefix(REFUSED))
                self.whole = True
            else:
                self.noise = (self.noise + line)[-_NOISE:]

    def trouble(self) -> str:
        """Return why complete output counts as a failure, or "". Raises BadStreamError."""
        if self._status.get("status") == "error":
            return one_line(str(self._status.get("job_explanation") or "it gave no reason"), 300)
        if self._opener is not None and self._status.get("gpuprov_events") != self._count:
            raise BadStreamError(f"{self._count} events arrived of {self._status.get('gpuprov_events')}")
        return ""

    def _said(self, line: bytes) -> None:
        parsed = message(line, self._hosts)
        if self.whole or parsed.get("event") == "keepalive":
            return
        if "eof" in parsed:
            self.whole = True
        elif "status" in parsed:
            self._status = parsed
        else:
            self._count += 1
            self._take(parsed)


class _Lines:
    """Splitter of incoming pieces into whole lines."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest = bytearray()
        self._searched = 0

    def of(self, data: bytes) -> Iterator[bytes]:
        self._rest += data
        while (end := self._rest.find(b"\n", self._searched)) >= 0:
            line = bytes(self._rest[: end + 1])
            del self._rest[: end + 1]
            self._searched = 0
            yield line
        self._searched = len(self._rest)
        if len(self._rest) > self._limit:
            raise BadStreamError(f"a line of more than {self._limit // 1024} KiB")


def slim(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a raw event that are sent: no task arguments, no environment."""
    data = raw.get("event_data")
    if isinstance(data, Mapping) and raw.get("event") != "playbook_on_stats":
        data = {key: data[key] for key in _KEPT if key in data}
        if isinstance(data.get("res"), Mapping):
            data["res"] = {key: value for key, value in data["res"].items() if key != "invocation"}
    elif isinstance(data, Mapping):
        data = {key: data.get(key) or {} for key in ("dark", "failures", "processed")}
    kept = {key: raw.get(key) for key in ("event", "counter", "uuid")}
    return {**kept, "stdout": str(raw.get("stdout") or "")[:4000], "event_data": data}


def message(line: bytes, hosts: Collection[str]) -> dict[str, Any]:
    """Parse one line of a worker that may only report on `hosts`. Raises BadStreamError."""
    parsed = _object(line.decode("utf-8", "replace"))
    if "zipfile" in parsed:
        raise BadStreamError("it sent files that were not requested")
    if "status" in parsed:
        _want(parsed, "status", str)
        _want(parsed, "gpuprov_events", int, None)
    elif "eof" not in parsed and parsed.get("event") != "keepalive":
        _event(parsed, hosts)
    return parsed


def _event(said: Mapping[str, Any], hosts: Collection[str]) -> None:
    _want(said, "event", str)
    _want(said, "uuid", str)
    _want(said, "stdout", str, None)
    counter = said.get("counter")
    if not isinstance(counter, int) or isinstance(counter, bool) or counter < 1 or not said["uuid"]:
        raise BadStreamError("an event without its number")
    data = said.get("event_data")
    if data is None:
        return
    if not isinstance(data, dict):
        raise BadStreamError("an event whose data is not an object")
    if said["event"] == "playbook_on_stats":
        for name in ("dark", "failures", "processed"):
            _want(data, name, dict)
            for host in data[name]:
                _known(host, hosts)
        return
    _want(data, "res", dict, None)
    _want(data, "role", str, None)
    _want(data, "task", str, None)
    _want(data, "task_path", str, None)
    _want(data, "ignore_errors", bool, None)
    if data.get("host") is not None:
        _known(data["host"], hosts)
    rc = (data.get("res") or {}).get("rc")
    if isinstance(rc, int) and abs(rc) >= 1 << 63:
        raise BadStreamError("an exit status beyond all numbers")


def _known(host: Any, hosts: Collection[str]) -> None:
    if not isinstance(host, str) or host not in hosts:
        raise BadStreamError(f"it reported on {one_line(repr(host), 60)}, which is not one of its nodes")


def _want(said: Mapping[str, Any], name: str, *kinds: type | None) -> None:
    value = said.get(name)
    if value is None and None in kinds:
        return
    accepted = tuple(kind for kind in kinds if kind is not None)
    if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
        raise BadStreamError(f"`{name}` is {one_line(repr(value), 60)}")


def _object(text: str) -> dict[str, Any]:
    try:
        parsed = foreign_json.read(text)
    except ValueError:
        raise BadStreamError(f"this is not JSON: {one_line(text[:200], 80)!r}") from None
    if not isinstance(parsed, dict):
        raise BadStreamError(f"this is not an object: {one_line(text[:200], 80)!r}")
    return parsed
