"""Parsing consecutive answers from a node's output, however the output is split."""

from __future__ import annotations

import json
import random

import pytest

from provision.remote.protocol import AnswerError, Frames, unframed
from tests.support.seed import SEED

ALIVE = b"@gpuprov-alive\n"


def answer(value: object) -> bytes:
    body = json.dumps(value).encode()
    return b"@gpuprov-facts 1 %d\n%s\n@gpuprov-end\n" % (len(body), body)


def test_of_several_answers_the_newest_counts() -> None:
    found, alive = Frames().newest(answer(1) + ALIVE + answer(2) + answer(3)[:9])
    assert (json.loads(unframed(found)), alive) == (2, True)


def test_a_sign_of_life_is_none_inside_of_an_answer() -> None:
    frames = Frames()
    body = b'"\n@gpuprov-alive\n"'
    whole = b"@gpuprov-facts 1 %d\n%s\n@gpuprov-end\n" % (len(body), body)
    assert frames.newest(whole[:-3]) == (b"", False)
    assert unframed(frames.newest(whole[-3:])[0]) == body


def test_words_around_answers_are_passed_over() -> None:
    frames = Frames()
    assert frames.newest(b"Welcome to gpu-01\n@gpuprov-facts 1 x\n@gpuprov-facts 1 2\n99\nno end\n") == (
        b"",
        False,
    )
    assert frames.newest(ALIVE.replace(b"\n", b"\r\n")) == (b"", True)
    assert unframed(frames.newest(answer("here"))[0]) == b'"here"'


def test_in_any_pieces_it_is_the_same() -> None:
    chance = random.Random(SEED)  # noqa: S311
    text = b"motd\n" + b"".join(answer({"n": number, "x": "y" * number * 50}) + ALIVE for number in range(40))
    frames, found, alive = Frames(), [], 0
    while text:
        size = chance.choice((1, 2, 7, 60, 3000))
        newest, sign = frames.newest(text[:size])
        text = text[size:]
        found += [json.loads(unframed(newest))["n"]] if newest else []
        alive += sign
    assert found == sorted(set(found))
    assert found[-1] == 39
    assert alive >= len(found)


def test_what_never_becomes_an_answer_is_not_kept() -> None:
    frames = Frames(1000)
    for _ in range(100):
        assert frames.newest(b"x" * 1000) == (b"", False)
    assert len(frames._rest) <= 4096
    with pytest.raises(AnswerError, match="larger than 0 KiB"):
        frames.newest(b"\n@gpuprov-facts 1 1001\n")
