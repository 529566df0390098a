"""Expectations that the roles set for a node with the default stack."""

from __future__ import annotations

from typing import Any

from provision.desired import expectations, stack
from provision.drift.assess import GIVEN
from tests.support.described import machine


def promised(
    gpuprov_node: dict[str, Any] | None = None, /, **declared: Any
) -> dict[str, expectations.Expectation]:
    """Return fact → expectation of a node with the default stack and these variables.
    Responding GPUs are expected of every node, so that expectation is left out."""
    variables = {**stack.load(stack.DEFAULT).variables, **GIVEN, **declared}
    expected = expectations.of_node(variables, gpuprov_node or machine())
    assert len({(each.role, each.fact) for each in expected}) == len(expected), "two promises about one fact"
    return {each.fact: each for each in expected if each.fact not in expectations.SILENT_GPUS.values()}


def promised_by(
    role: str, gpuprov_node: dict[str, Any] | None = None, /, **settings: Any
) -> dict[str, expectations.Expectation]:
    """Return fact → expectation of one role with these settings."""
    declared = {f"{role}_{name}": value for name, value in settings.items()}
    return promised(gpuprov_node, gpuprov_roles=[role], **declared)


def values(facts: dict[str, expectations.Expectation]) -> dict[str, Any]:
    return {fact: each.value for fact, each in facts.items()}
