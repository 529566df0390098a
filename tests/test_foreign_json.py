"""The parser of foreign JSON: for any text it returns a value or raises JsonError."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision import foreign_json
from provision.foreign_json import DEEPEST, JsonError

HOSTILE: dict[str, bytes] = {
    "NaN": b'{"age": NaN}',
    "Infinity": b"[Infinity]",
    "-Infinity": b"-Infinity",
    "an infinite float": b"1e999",
    "a number of 60,000 digits": b"9" * 60_000,
    "a number whose float overflows": b"[" + b"9" * 310 + b"]",
    "100,000 levels": b"[" * 100_000,
    "levels of objects": b'{"a":' * (DEEPEST + 1) + b"1" + b"}" * (DEEPEST + 1),
    "not UTF-8": b'"\xff"',
    "nothing": b"",
    "two values": b"1 2",
    "cut": b'{"a": [1,',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_one_error_for_all_that_cannot_be_used(name: str) -> None:
    with pytest.raises(JsonError) as refused:
        foreign_json.read(HOSTILE[name])
    assert len(str(refused.value)) < 200
    assert "\n" not in str(refused.value)


def test_a_text_above_the_limit() -> None:
    with pytest.raises(JsonError, match="longer than 10 bytes"):
        foreign_json.read(b"[1,2,3,4,5,6]", largest=10)


def test_what_is_just_within_the_limits() -> None:
    deep = b"[" * DEEPEST + b"1" + b"]" * DEEPEST
    assert json.dumps(foreign_json.read(deep)) == deep.decode()
    assert foreign_json.read(b" [18446744073709551615, 1e308]\r\n") == [2**64 - 1, 1e308]
    assert foreign_json.read("[" + ",".join(["[]"] * 1000) + "]") == [[]] * 1000


def test_the_last_of_two_values_counts_or_both_are_refused() -> None:
    assert foreign_json.read('{"a": 1, "a": 2}') == {"a": 2}
    with pytest.raises(JsonError, match="'a' stands twice"):
        foreign_json.read('{"a": 1, "a": 2}', unique=True)


def test_a_repeated_name_is_found_in_linear_time() -> None:
    def seconds(count: int) -> float:
        names = ",".join(f'"{number}":1' for number in range(count))
        began = time.process_time()
        with pytest.raises(JsonError):
            foreign_json.read(f'{{{names},"{count - 1}":1}}', unique=True)
        return time.process_time() - began

    assert seconds(40_000) < 20 * seconds(10_000) + 0.2


def test_a_value_with_text_behind_it() -> None:
    assert foreign_json.first('log {"a": 1} more', 4) == ({"a": 1}, 12)


@given(st.binary(max_size=200) | st.text(alphabet='[]{}",:0123456789eE+-.NaIfinty\\u ', max_size=200))
def test_it_agrees_with_the_decoder_of_python(text: bytes | str) -> None:
    try:
        value = foreign_json.read(text)
    except JsonError:
        return
    assert value == json.loads(text)
