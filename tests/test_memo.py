"""Answers are shared between nodes that agree where it matters, and between no others."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from provision import memo
from provision.memo import Memo


class Asked:
    """Computes from the variable `a`, and from `b` if `a` is true; counts how often it had to."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, variables: Mapping[str, Any]) -> Callable[[set[str]], str]:
        def compute(looked_at: set[str]) -> str:
            self.times += 1
            looked_at.add("a")
            if not variables["a"]:
                return "nothing"
            looked_at.add("b")
            return repr(variables["b"])

        return compute


def test_who_agrees_in_what_was_looked_at_is_answered_from_memory() -> None:
    asked, remembered = Asked(), Memo[str]()
    for variables, answer, times in (
        ({"a": True, "b": "x", "c": 1}, "'x'", 1),
        ({"a": True, "b": "x", "c": 2}, "'x'", 1),
        ({"a": True, "b": "y"}, "'y'", 2),
        ({"a": False, "b": "x"}, "nothing", 3),
        ({"a": False, "b": "z"}, "nothing", 3),
    ):
        assert remembered.get(variables, 0, asked(variables)) == answer
        assert asked.times == times
    variables = {"a": False}
    assert remembered.get(variables, "another question", asked(variables)) == "nothing"
    assert asked.times == 4


@pytest.mark.parametrize("value", [1, 1.0, "1", [1], ["1"], {"1": 1}, None, [True]])
def test_equal_is_equal_in_type_too(value: Any) -> None:
    asked, remembered = Asked(), Memo[str]()
    for other in (True, value):
        variables = {"a": True, "b": other}
        assert remembered.get(variables, 0, asked(variables)) == repr(other)
    assert asked.times == 2


def test_an_answer_made_of_others_learns_what_mattered_also_from_memory() -> None:
    asked, remembered = Asked(), Memo[str]()
    variables = ChainMap({"a": True}, {"b": "x", "c": 1})
    for _ in range(2):
        mattered = {"z"}
        remembered.get(variables, 0, asked(variables), mattered)
        assert mattered == {"a", "b", "z"}
    assert asked.times == 1


def test_what_all_nodes_share_is_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`groups` holds all nodes' names, on every node."""
    seen: list[Any] = []
    real = memo.frozen
    monkeypatch.setattr(memo, "frozen", lambda value: seen.append(value) or real(value))
    asked, remembered = Asked(), Memo[str]()
    shared = {"all": [f"gpu-{number:04}" for number in range(100)]}
    for _ in range(100):
        variables = {"a": True, "b": shared}
        remembered.get(variables, 0, asked(variables))
    assert asked.times == 1
    assert seen.count(shared) == 1
    variables = {"a": True, "b": {"all": ["gpu-0000"]}}
    assert remembered.get(variables, 0, asked(variables)) == "{'all': ['gpu-0000']}"
