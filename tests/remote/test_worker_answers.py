"""Answers of nodes pass through a worker's stream unchanged and compressed, and no worker can send a
decompression bomb."""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from provision.remote.ansible import handover
from provision.remote.protocol import ANSWER_LIMIT
from provision.remote.workers import sealed, worker_stream
from provision.remote.workers.worker_stream import Answers, BadStreamError, OddAnswerError

KEY = bytes(range(sealed.KEY_BYTES))


def answer(**facts: Any) -> bytes:
    body = json.dumps({"uid": 0, "facts": facts, "problems": {}}, separators=(",", ":"))
    return f"@gpuprov-facts 1 {len(body)}\n{body}\n@gpuprov-end\n".encode()


def fleet(count: int) -> list[bytes]:
    """Return answers of nodes that differ in only three facts."""
    same = {f"package.lib-{number:02}.version": "580.126.09-0ubuntu1" for number in range(60)}
    return [
        answer(**same, **{"boot.id": f"{number * 7919:032x}", "host.name": f"gpu-{number:04}", "cpu": number})
        for number in range(count)
    ]


def passed(outputs: list[bytes]) -> list[bytes]:
    """Return the outputs after sending them through a stream as events."""
    sender, receiver = Answers(), Answers()
    return [receiver.unpacked(json.loads(json.dumps(sender.packed(output)))) for output in outputs]


_members = st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from(["1", "22", "é", ',"', "\\", "\n"]))
_answers = st.one_of(_members.map(lambda facts: answer(**facts)), st.binary(max_size=40), st.just(b""))


@given(st.lists(_answers, max_size=40))
def test_any_answers_come_out_as_they_went_in(outputs: list[bytes]) -> None:
    assert passed(outputs) == outputs


def test_long_and_odd_outputs_come_out_as_they_went_in() -> None:
    long = [
        b"\x00" * ANSWER_LIMIT,
        b"\xff" * ANSWER_LIMIT,
        b'a,"' * (worker_stream._TEXT // 3),
        b"\xed\xa0\x80",
    ]
    outputs = [part for output in fleet(3) for part in (output, *long)]
    assert passed(outputs) == outputs


def test_of_nodes_that_are_alike_only_what_differs_is_said() -> None:
    there = Answers()
    first, *others = (json.dumps(there.packed(output)) for output in fleet(50))
    assert len(first) > len(fleet(1)[0])
    assert max(map(len, others)) < 0.1 * len(first)


def test_nodes_of_several_kinds_are_told_apart() -> None:
    """However the kinds alternate, each node is compared with one of its own kind."""
    kinds = [
        [answer(**{f"{kind}.{name}": "x" * 10 for name in range(20)}, n=n) for n in range(5)]
        for kind in "abc"
    ]
    sender = Answers()
    events = [sender.packed(one) for turn in zip(*kinds, strict=True) for one in turn]
    assert all("output" in one for one in events[:3])
    assert all(one["like"] == number % 3 and len(one["parts"]) <= 1 for number, one in enumerate(events[3:]))


@pytest.mark.parametrize("filling", [',"' * 400, "x" * 500, '","' * 100])
def test_no_stream_keeps_more_than_a_few_answers(filling: str) -> None:
    with at_most(4):
        here = Answers()
        for number in range(200):
            here.unpacked({"output": f"{number}" + filling * number})
        assert 1 < len(here._kinds) <= worker_stream._KINDS


@contextlib.contextmanager
def at_most(mebibytes: int) -> Iterator[None]:
    """Check that Python's memory use grows by at most this much inside the block."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < mebibytes * 1024 * 1024
    finally:
        tracemalloc.stop()


ODD: dict[str, Mapping[str, Any]] = {
    "nothing": {},
    "a number": {"output": 7},
    "half a character": {"output": "\ud800"},
    "no base64": {"bytes": "no base64!"},
    "bytes that are a list": {"bytes": ["x"]},
    "too much": {"output": "x" * (ANSWER_LIMIT + 1)},
    "too many bytes": {"bytes": base64.b64encode(bytes(ANSWER_LIMIT + 1)).decode()},
    "parts that are none": {"like": 0},
    "parts that are no pairs": {"like": 0, "parts": [[1, "x", "y"]]},
    "a part that is a number": {"like": 0, "parts": [[0, 1]]},
    "parts that are too much": {"like": 0, "parts": [[0, "x" * ANSWER_LIMIT]]},
}


@pytest.mark.parametrize("name", ODD)
def test_what_no_node_can_have_printed_is_refused_and_the_next_is_understood(name: str) -> None:
    there, here = Answers(), Answers()
    first, second = fleet(2)
    assert here.unpacked(there.packed(first)) == first
    with pytest.raises(OddAnswerError):
        here.unpacked(ODD[name])
    assert here.unpacked(there.packed(second)) == second


@pytest.mark.parametrize(
    "data",
    [{"like": like, "parts": []} for like in (1, -1, True, None, "0", [0], 1 << 70)]
    + [{"like": 0, "parts": [[place, "x"]]} for place in (99, -1, True, None, "0")],
    ids=str,
)
def test_what_was_never_said_cannot_be_named(data: Mapping[str, Any]) -> None:
    here = Answers()
    here.unpacked({"output": '{"a":1,"b":2}'})
    with pytest.raises(BadStreamError):
        here.unpacked(data)


def test_what_one_node_printed_is_not_changed_by_what_another_did() -> None:
    here = Answers()
    first = here.unpacked({"output": '{"a":1,"b":2}'})
    assert here.unpacked({"like": 0, "parts": [[1, 'b":3}']]}) == b'{"a":1,"b":3}'
    assert here.unpacked({"like": 0, "parts": []}) == first


# --- frames and payloads


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_any_frames_come_out_as_they_went_in(parts: list[bytes]) -> None:
    sealer, opener = sealed.Sealer(KEY), sealed.Opener(KEY)
    assert [b"".join(opener.data(sealer.frame(part))) for part in parts] == parts


@pytest.mark.parametrize("size", [sealed._PIECE - 1, sealed._PIECE, sealed._PIECE + 1, 3 * sealed._PIECE])
def test_a_large_frame_comes_in_pieces_and_whole(size: int) -> None:
    sealer, opener = sealed.Sealer(KEY), sealed.Opener(KEY)
    pieces = list(opener.data(sealer.frame(b"x" * size)))
    assert max(map(len, pieces)) <= sealed._PIECE
    assert b"".join(pieces) == b"x" * size
    assert b"".join(opener.data(sealer.frame(b"the next"))) == b"the next"


def test_frames_of_what_is_alike_are_small() -> None:
    sealer = sealed.Sealer(KEY)
    said = [
        json.dumps({"host": f"gpu-{number}", "output": "580.126.09" * 20}).encode() for number in range(50)
    ]
    sizes = [len(sealer.frame(one)) for one in said]
    assert max(sizes[1:]) < 0.5 * len(said[0])


def frame(number: int, packed: bytes) -> bytes:
    """Return a frame around data that was not compressed properly."""
    data = AESGCM(KEY).encrypt(number.to_bytes(12, "big"), packed, None)
    return sealed.FRAME + base64.b64encode(data) + b"\n"


def bomb(mebibytes: int) -> bytes:
    """Return this many MiB of zeros, compressed."""
    deflate = zlib.compressobj(9)
    pieces = [deflate.compress(bytes(1 << 20)) for _ in range(mebibytes)]
    return b"".join(pieces) + deflate.flush(zlib.Z_SYNC_FLUSH)


@pytest.mark.parametrize(
    ("packed", "words"),
    [
        (lambda: b"not compressed", "frame 1 cannot be unpacked"),
        (lambda: zlib.compress(b"a stream that ends"), "frame 1 cannot be unpacked"),
        (lambda: zlib.compress(b"a stream that ends") + b"and goes on", "frame 1 cannot be unpacked"),
        (lambda: bomb(512), "frame 1 holds more than 80 MiB"),
    ],
    ids=["plain", "an end", "after the end", "a bomb"],
)
def test_what_no_worker_compressed_is_refused_in_little_room(packed: Callable[[], bytes], words: str) -> None:
    line = frame(0, packed())
    with at_most(8), pytest.raises(sealed.SealError, match=words):
        for _ in sealed.Opener(KEY).data(line):
            pass


@pytest.mark.parametrize("kept", [0, 1, 10, 20, -10, -2])
def test_a_frame_that_is_cut_is_none(kept: int) -> None:
    line = sealed.Sealer(KEY).frame(b"an event\n" * 20)
    with pytest.raises(sealed.SealError, match="frame 1 cannot be decrypted"):
        list(sealed.Opener(KEY).data(line[: len(sealed.FRAME) + kept] if kept >= 0 else line[:kept] + b"\n"))


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(handover, "memory_folder", lambda: tmp_path)
    return sealed.worker_public_key()


def test_a_payload_takes_little_room_and_comes_out_as_it_went_in(keys: str) -> None:
    payload = json.dumps({f"gpu-{number:04}": {"ansible_user": "ubuntu"} for number in range(1000)}).encode()
    given_to = sealed.sealed({"versions": "x"}, payload, keys)
    assert len(given_to) < 0.3 * len(payload)
    assert sealed.opened(given_to)[1] == payload


def test_a_payload_that_comes_to_more_than_one_may_is_not_opened(
    keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_to = sealed.sealed({}, bytes(64 * 1024 * 1024), keys)
    monkeypatch.setattr(sealed, "PAYLOAD_LIMIT", 1024 * 1024)
    with at_most(4), pytest.raises(sealed.SealError, match="it is cut, or more than 1 MiB"):
        sealed.opened(given_to)
    with pytest.raises(sealed.SealError, match="what it is to do is more than 1 MiB"):
        sealed.sealed({}, bytes(2 * 1024 * 1024), keys)


# --- versions and imports of a unit


def test_workers_that_speak_otherwise_are_of_another_version() -> None:
    """Builds of the same version may differ: the compared digest covers the code of the protocol."""
    named = dict(worker_stream._files())
    spoken = {f"workers/{file.name}" for file in Path(worker_stream.__file__).parent.glob("*.py")}
    assert spoken <= named.keys()
    for label in ("playbooks/", "roles/", "node/", "worker_program/worker_entry.py", "provision/"):
        assert any(name.startswith(label) for name in named)
    assert {"roles/receptor/tasks/main.yml", "node/observe/answer.py", "provision/errors.py"} <= named.keys()
    assert not any("__pycache__" in name for name in named)


@pytest.mark.parametrize(
    ("begun", "without"),
    [
        ("worker_entry", ("ansible_runner", "paramiko", "yaml", "provision.remote.reach.observe")),
        ("worker_entry; import provision.remote.reach.observe", ("ansible_runner", "paramiko", "yaml")),
    ],
)
def test_a_unit_imports_only_what_it_needs(begun: str, without: tuple[str, ...]) -> None:
    """On a frequently used worker, imports would dominate a unit's cost."""
    program = f"import sys; from provision.remote.worker_program import {begun}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not set(without) & set(done.stdout.split())
