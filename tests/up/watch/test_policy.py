"""The limits that an operator sets, and the values that are refused."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from provision import paths
from provision.errors import StackError
from provision.up.watch.policy import Policy, of, policy
from tests.support.watching import fleet


def test_the_defaults_hold_where_nothing_is_said() -> None:
    assert of(fleet(), {}) == Policy()


def test_what_is_said_holds() -> None:
    said = {"hourly": 2, "share": 5, "same": ["rail"], "validated_hours": 12}
    assert of(fleet(gpuprov_watch=said), {}) == Policy(hourly=2, share=5, same=("rail",), validated_hours=12)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"hourly": True}, "gpuprov_watch.hourly (gpu-01) must be a whole number from 0 to 1000, not True"),
        ({"share": 101}, "gpuprov_watch.share (gpu-01) must be a number from 0 to 100"),
        ({"same": "rack"}, "must be a list of variables"),
        ({"hourli": 1}, "has no key 'hourli'"),
        ("4", "must be a mapping"),
    ],
)
def test_what_cannot_be_meant_is_refused(value: Any, said: str) -> None:
    with pytest.raises(StackError) as refused:
        policy(value, "gpu-01")
    assert said in refused.value.what


def test_one_watch_has_one_policy() -> None:
    one = fleet(gpuprov_watch={"hourly": 2})
    other = replace(one.nodes["gpu-02"], variables={"gpuprov_watch": {"hourly": 3}})
    with pytest.raises(StackError, match="gpuprov_watch is not the same for gpu-01 and gpu-02"):
        of(replace(one, nodes={**one.nodes, "gpu-02": other}), {})


@pytest.mark.parametrize(("pool", "share", "most"), [(8, 10, 1), (100, 10, 10), (100, 0, 1), (29, 10, 2)])
def test_how_many_of_a_partition_may_be_out(pool: int, share: float, most: int) -> None:
    assert Policy(share=share).out_of(pool) == most


def test_the_page_has_every_key_with_its_default() -> None:
    page = (paths.DOCS / "watch.md").read_text()
    for one in fields(Policy):
        default = list(one.default) if isinstance(one.default, tuple) else one.default
        words = (
            "[" + ", ".join(default) + "]"
            if isinstance(default, list)
            else f"{default:g}"
            if default != ""
            else '""'
        )
        assert f"| `{one.name}` | {words} |" in page, one.name
