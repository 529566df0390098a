"""Validation of an order on the node, and the reasons for refusal."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from provision.node.burnin.order import OrderError, read_order
from tests.node.burnin_order import command, load, order, step

GOOD = order(
    load("warm", step("gpu_burn", "true")),
    {"name": "rest", "kind": "cool_down", "minutes": 5},
    {"name": "pairs", "kind": "fleet", "minutes": 10, "start_after_s": 30},
    about={"anything": [1, None]},
)


def test_an_order_gets_its_defaults() -> None:
    read = read_order(json.dumps(GOOD))
    assert read["sampler"] == {
        "gpu": 1,
        "errors": 10.0,
        "nvlink": 60.0,
        "ib": 15.0,
        "ipmi": 120.0,
        "kernel": 10.0,
    }
    assert read["abort"] == {
        "gpu_celsius": None, "xids": [], "kernel": [], "failed_steps": None, "reboots": 10,
    }  # fmt: skip
    assert (read["vendor"], read["gpus"]) == ("nvidia", [])
    assert [(one["seconds"], one["repeat"], one["start_after_s"]) for one in read["segments"]] == [
        (None, 1, 0),
        (300, None, 0),
        (600, None, 30),
    ]


def test_a_step_without_a_deadline_has_that_of_its_programs() -> None:
    both = {"check": "x", "commands": [command("x", "true"), command("beside", "true", beside="x")]}
    (segment,) = read_order(json.dumps(order(load("a", both))))["segments"]
    assert segment["steps"][0]["deadline"] == 70 + 15 + 20 + 15
    asked = read_order(json.dumps(order(load("a", dict(both, deadline=7)))))["segments"][0]
    assert asked["steps"][0]["deadline"] == 7


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        (["format"], 2, "format is 2; this program knows 1"),
        (["campaign"], "../x", "campaign is '../x', which is no such name"),
        (["campaign"], None, "campaign is missing"),
        (["sample_seconds"], True, "sample_seconds is True, not a number from 0.1 to 3600"),
        (["sample_seconds"], float("nan"), "sample_seconds is nan, not a number"),
        (["sampler"], {"gpu": 0}, "sampler: gpu is 0, not a number from 0.1 to 3600"),
        (["sampler"], [], "sampler is not an object"),
        (["abort"], {"xids": "fatal"}, "abort: xids is not a list of Xid codes"),
        (["abort"], {"failed_steps": 1.5}, "abort: failed_steps is 1.5, not a whole number"),
        (["end_by_s"], -1, "end_by_s is -1, not a number from 0"),
        (["segments"], [], "segments is not a list of 1 to 2000 entries"),
        (["segments", 0, "name"], "a/b", "segment 1: name is 'a/b', which is no such name"),
        (
            ["segments", 0, "kind"],
            "heat",
            "segment warm: kind is 'heat'; known: load, soak, cool_down, fleet",
        ),
        (["segments", 0, "steps"], [], "segment warm: steps is not a list of 1 to 500 entries"),
        (["segments", 1, "minutes"], None, "segment rest: minutes is missing"),
        (
            ["segments", 1, "steps"],
            [step("x", "true")],
            "segment rest: a segment of kind cool_down has no steps",
        ),
        (["segments", 0, "steps", 0, "check"], "x/../y", "segment warm: step 1: check is 'x/../y'"),
        (
            ["segments", 0, "steps", 0, "commands", 0, "argv"],
            ["a", 1],
            "command gpu_burn: argv is not a list",
        ),
        (
            ["segments", 0, "steps", 0, "commands", 0, "argv"],
            ["a\0b"],
            "command gpu_burn: argv is not a list",
        ),
        (
            ["segments", 0, "steps", 0, "commands", 0, "deadline"],
            None,
            "command gpu_burn: deadline is missing",
        ),
        (["segments", 0, "steps", 0, "commands", 0, "env"], {"A": []}, "env has a value that is no text"),
        (["segments", 0, "steps", 0, "commands", 0, "beside"], "other", "beside other, which is not run"),
    ],
)
def test_a_faulty_order_is_refused_in_one_line(where: list[Any], value: Any, said: str) -> None:
    wrong = copy.deepcopy(GOOD)
    place: Any = wrong
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = value
    with pytest.raises(OrderError) as refused:
        read_order(json.dumps(wrong))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '"x"', "null", "\x00"])
def test_what_is_no_order_at_all_is_refused(text: str) -> None:
    with pytest.raises(OrderError):
        read_order(text)
