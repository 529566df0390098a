"""Facts stored once for many nodes return each node's own values."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.shared_facts import Pool, SharedFacts

scalars = st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["", "a", "1", "long text"])
flat = st.dictionaries(st.sampled_from("xyz"), scalars, max_size=2)
values = scalars | flat | st.lists(scalars | flat, max_size=3)
answers = st.lists(st.dictionaries(st.sampled_from(["a.b", "c", "d"]), values, max_size=3), max_size=8)


def text(facts: Any) -> str:
    """Serialise facts as JSON, which keeps types: Python treats 1 and True as equal."""
    return json.dumps(dict(facts), sort_keys=True)


@given(answers)
def test_every_node_keeps_its_own_words(given: list[dict[str, Any]]) -> None:
    wanted = [text(facts) for facts in given]
    pool = Pool()
    kept = [pool.of(facts) for facts in given]
    assert [text(facts) for facts in kept] == wanted
    assert [json.dumps(dict(facts.items()), sort_keys=True) for facts in kept] == wanted
    for facts, original in zip(kept, given, strict=True):
        assert (len(facts), facts.keys()) == (len(original), original.keys())
        assert all(facts[name] == facts.get(name) == value for name, value in original.items())
        assert facts == original


@pytest.mark.parametrize("value", [True, 1, [1], [True], {"x": 1}, {"x": True}, [{"x": True}], None])
def test_true_is_not_one(value: Any) -> None:
    pool = Pool()
    pool.of({"a": [{"x": 1}]})
    pool.of({"a": 1})
    assert json.dumps(pool.of({"a": value})["a"]) == json.dumps(value)


def test_what_all_say_is_kept_once() -> None:
    pool = Pool()
    usual = {f"fact.{number}": [number] * 20 for number in range(100)}
    first = pool.of(usual)
    second = pool.of({**json.loads(json.dumps(usual)), "fact.7": "mine"})
    assert isinstance(second, SharedFacts)
    assert second["fact.8"] is first["fact.8"]
    assert (first["fact.7"], second["fact.7"]) == ([7] * 20, "mine")


def test_a_value_that_no_earlier_node_had_is_checked_before_it_is_kept() -> None:
    pool, checked = Pool(), list[dict[str, Any]]()
    usual = {"a": [1], "b": "x", "c": 1}
    for facts in (
        usual,
        {**usual, "a": [1]},
        {**usual, "b": "y"},
        {**usual, "c": True},
        {**usual, "a": [True]},
    ):
        pool.of(facts, lambda some: checked.append(dict(some)))
    assert text({"of": checked}) == text({"of": [usual, {}, {"b": "y"}, {"c": True}, {"a": [True]}]})

    def refuse(_: object) -> None:
        raise ValueError("no")

    other = {"d": "of another kind"}
    with pytest.raises(ValueError, match="no"):
        pool.of(other, refuse)
    assert not isinstance(pool.of(other), SharedFacts), "nothing was kept"


def test_a_name_nobody_said_is_not_there() -> None:
    pool = Pool()
    pool.of({"a": 1, "b": 2})
    facts = pool.of({"a": 1, "b": 3})
    assert ("c" in facts, facts.get("c", "none")) == (False, "none")
    with pytest.raises(KeyError):
        facts["c"]


@given(answers, st.lists(values, min_size=8, max_size=8))
def test_one_fact_more_is_each_nodes_own(given: list[dict[str, Any]], more: list[Any]) -> None:
    first, pool = Pool(), Pool()
    kept = [first.of(facts) for facts in given]
    longer = [pool.of_with(facts, "e", value) for facts, value in zip(kept, more, strict=False)]
    assert [text(facts) for facts in longer] == [
        text({**facts, "e": value}) for facts, value in zip(given, more, strict=False)
    ]
    assert [text(facts) for facts in kept] == [text(facts) for facts in given]


def test_the_one_more_is_kept_once_as_well() -> None:
    pool, later = Pool(), Pool()
    facts = [pool.of({f"fact.{number}": number for number in range(100)} | {"own": own}) for own in range(3)]
    _, one, two = [later.of_with(each, "more", "the same") for each in facts]
    assert isinstance(one, SharedFacts)
    assert isinstance(two, SharedFacts)
    assert (one.base is two.base, one.own, two.own) == (True, {"own": 1}, {"own": 2})
