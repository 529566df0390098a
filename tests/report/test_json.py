"""report.json matches its schema exactly and can be read back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from provision.checks import check, health, judge
from provision.paths import DATA
from provision.report.json import render
from tests.support import samples

SCHEMA: dict[str, Any] = json.loads((DATA / "schemas" / "report.schema.json").read_text(encoding="utf-8"))
VALIDATOR = Draft202012Validator(SCHEMA)
FLEETS = ("healthy", "demo", "unmeasured", "interrupted", "nothing", "hostile", "between")


def document(fleet: health.FleetHealth) -> dict[str, Any]:
    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is not JSON")

    loaded: dict[str, Any] = json.loads("".join(render(fleet)), parse_constant=refuse)
    return loaded


def objects(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if "properties" in schema:
            yield schema
        for value in schema.values():
            yield from objects(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from objects(value)


def test_the_schema_is_one_and_describes_every_field() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    found = list(objects(SCHEMA))
    assert len(found) == 6
    for part in found:
        assert part["additionalProperties"] is False
        assert set(part["required"]) == set(part["properties"])
        for field in part["properties"].values():
            assert "description" in field or "$ref" in field


def test_the_schema_and_the_classes_have_the_same_fields_words_and_version() -> None:
    definitions = SCHEMA["$defs"]
    for name, kind in {
        "node": health.NodeHealth,
        "gpu": health.GpuIdentity,
        "check": health.CheckResult,
        "finding": judge.Finding,
        "measurement": check.Measurement,
    }.items():
        assert set(definitions[name]["properties"]) == {field.name for field in dataclasses.fields(kind)}
    assert set(SCHEMA["properties"]) == {field.name for field in dataclasses.fields(health.FleetHealth)} | {
        "format"
    }
    assert definitions["verdict"]["enum"] == [verdict.value for verdict in judge.Verdict]
    assert definitions["finding"]["properties"]["action"]["enum"] == list(judge.ACTIONS)
    assert SCHEMA["properties"]["format"]["const"] == health.FORMAT


@pytest.mark.parametrize("name", FLEETS)
def test_every_report_fits_the_schema(name: str) -> None:
    problems = [
        problem.message[:200] for problem in VALIDATOR.iter_errors(document(getattr(samples, name)()))
    ]
    assert problems == []


@pytest.mark.parametrize("name", [name for name in FLEETS if name != "hostile"])
def test_a_report_reads_back_as_the_same_health(name: str) -> None:
    fleet = getattr(samples, name)()
    assert health.from_json(document(fleet)) == fleet


@pytest.mark.parametrize("name", [name for name in FLEETS if name != "hostile"])
def test_the_streamed_document_is_that_of_to_json(name: str) -> None:
    fleet = getattr(samples, name)()
    assert document(fleet) == health.to_json(fleet)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"format": 2}, "1 was expected"),
        ({"nodes": [{"node": "gpu-01"}]}, "required"),
        ({"surprise": 1}, "surprise"),
        ({"interrupted": "no"}, "boolean"),
    ],
)
def test_the_schema_refuses_what_is_not_a_report(change: dict[str, Any], complaint: str) -> None:
    broken = {**document(samples.demo()), **change}
    assert any(complaint in problem.message for problem in VALIDATOR.iter_errors(broken))


def test_a_value_that_is_not_a_number_is_still_json() -> None:
    nodes = document(samples.hostile())["nodes"]
    values = [row["value"] for row in nodes[0]["checks"][0]["measurements"]]
    assert "nan" in values
