"""Profiles: the shipped ones fit their duration, and every mistake gets one clear line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from provision.burnin import plan, profile
from provision.checks.judging.registry import CHECKS
from provision.errors import UsageError

HEAT = {"name": "heat", "kind": "soak", "checks": ["gpu_burn"], "weight": 1}
BETWEEN = {"name": "x", "kind": "fleet", "minutes": 9, "checks": ["nccl_pair"]}


def written(tmp_path: Path, **changes: Any) -> str:
    file = tmp_path / "ours.yml"
    file.write_text(yaml.safe_dump({"minutes": 60, "segments": [HEAT], **changes}))
    return str(file)


@pytest.mark.parametrize(("name", "hours"), [("smoke", 1 / 3), ("day", 24), ("long", 72)])
def test_a_shipped_profile_takes_what_it_says(name: str, hours: float) -> None:
    fitted = profile.fitted(profile.load(name), None, plan.cost)
    total = math.fsum(profile.about(segment, plan.cost) for segment in fitted.segments)
    assert total == pytest.approx(hours * 60)
    heat = math.fsum(s.minutes or 0 for s in fitted.segments if s.kind == "soak")
    assert heat > 0.6 * total  # most of the time is load


def test_the_profiles_are_listed_shortest_first() -> None:
    assert profile.available() == ("smoke", "day", "long")


@given(st.floats(min_value=260, max_value=6000))
def test_a_duration_is_what_the_segments_add_up_to(minutes: float) -> None:
    fitted = profile.fitted(profile.load("day"), minutes, plan.cost)
    assert math.fsum(profile.about(s, plan.cost) for s in fitted.segments) == pytest.approx(minutes)
    assert all(s.minutes >= s.least for s in fitted.segments if s.weight and s.minutes is not None)


def test_a_duration_below_a_segments_least_is_refused_with_the_duration_that_would_do() -> None:
    day = profile.load("day")
    with pytest.raises(UsageError, match="first_heat of day, which needs 30") as error:
        profile.fitted(day, 60, plan.cost)
    enough = float(error.value.fix.split("--duration ")[1].split("m")[0])
    profile.fitted(day, enough, plan.cost)
    with pytest.raises(UsageError):
        profile.fitted(day, enough - 2, plan.cost)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"minuts": 3}, "unknown key 'minuts'"),
        ({"minutes": "long"}, "minutes must be a number"),
        ({"segments": []}, "segments must be a list"),
        ({"segments": [{**HEAT, "kind": "boil"}]}, "segment heat: kind must be one of"),
        ({"segments": [{**HEAT, "checks": ["gpu_brun"]}]}, "unknown check 'gpu_brun'"),
        ({"segments": [{**HEAT, "minutes": 4}]}, "segment heat: has minutes and weight"),
        ({"segments": [HEAT, HEAT]}, "two segments are called heat"),
        ({"segments": [{**HEAT, "checks": ["gpu_burn", "nccl_all_reduce"]}]}, "a soak is one check"),
        ({"segments": [{**HEAT, "checks": ["host_health"]}]}, "host_health runs no program"),
        ({"segments": [{**HEAT, "checks": ["pair_bandwidth"]}]}, "belongs into a fleet segment"),
        ({"segments": [{"name": "cold", "kind": "cool_down", "minutes": 5}]}, "no segment of it is load"),
        ({"segments": [{"name": "x", "kind": "load", "minutes": 2, "least": 3, "checks": ["gpu_burn"]}]},
         "less than its least"),
        ({"segments": [HEAT, {**BETWEEN, "attended": True}]},
         "segment x: attended must be only"),
        ({"segments": [{**HEAT, "attended": "only"}]}, "a soak has no attended"),
        ({"abort": {"xids": "bad"}}, "xids must be a list of Xids, or fatal"),
        ({"segments": [{**HEAT, "checks": []}]}, "it has no checks"),
        ({"segments": ["heat"]}, "segment 1: must be a mapping"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_names_file_and_place(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError) as error:
        profile.load(written(tmp_path, **changes))
    assert said in error.value.what
    assert "ours.yml" in error.value.what
    assert "\n" not in error.value.what
    assert error.value.fix


def test_an_unknown_profile_gets_the_near_one() -> None:
    with pytest.raises(UsageError) as error:
        profile.load("smokee")
    assert error.value.fix == "did you mean smoke?"


@pytest.mark.parametrize(
    ("text", "minutes"), [("24h", 1440), ("90m", 90), ("1h30m", 90), ("3d", 4320), ("30s", 0.5)]
)
def test_durations_are_read(text: str, minutes: float) -> None:
    assert profile.duration(text) == minutes


@pytest.mark.parametrize("text", ["", "24", "h", "-3h", "1 h", "0h", "24x", "1h30"])
def test_a_duration_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write it as|above 0"):
        profile.duration(text)


@given(st.floats(min_value=0.5, max_value=6000), st.floats(min_value=0.1, max_value=240))
def test_a_soak_is_whole_loads_that_add_up_to_it(minutes: float, step: float) -> None:
    segment = profile.Segment("heat", "soak", ("gpu_burn",), minutes=minutes, step_minutes=step)
    count, seconds = profile.steps_of_soak(segment)
    assert count * seconds == pytest.approx(minutes * 60, abs=count)
    assert seconds <= max(1.5 * step, minutes) * 60 + 1


def test_every_check_that_makes_load_has_an_estimate() -> None:
    table = plan.estimates()["seconds"]["checks"]
    assert {name for name, check in CHECKS.items() if check.NEEDS} == set(table)
