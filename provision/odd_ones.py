"""Wording of outliers and ties (pure); provision/majority.py finds them."""

from __future__ import annotations

from collections.abc import Sequence

from provision import majority, shown
from provision.majority import Outlier, Tie
from provision.node_names import fold


def odd_one(outlier: Outlier) -> str:
    """How a node differs from its kind, in one line without its name."""
    usual = shown.value(outlier.majority)
    most = f"{outlier.agree} of {outlier.answered} ({outlier.kind}) have {usual}"
    if outlier.majority is None:
        most = "and the other nodes do not agree either" if outlier.answered >= majority.SMALLEST else ""
    if outlier.unknown:
        return f"has no value ({shown.value(outlier.problem)})" + (f", {most}" if most else "")
    where = majority.places(outlier)
    if where:
        text = ", ".join(
            f"{shown.value(value)} on {outlier.per} {_numbers(at)}" for value, at in where.items()
        )
        return f"is {text}, {most}"
    return f"is {shown.value(outlier.found)}, {most}"


def _numbers(found: Sequence[int]) -> str:
    return ",".join(map(str, found))


def tie(found: Tie) -> str:
    """Which nodes have which value, where no value has a majority."""
    sides = (f"{len(nodes)} have {shown.value(value)} ({fold(nodes)})" for value, nodes in found.sides)
    return f"ambiguous, no value has a majority of {found.kind}: {', '.join(sides)}"
