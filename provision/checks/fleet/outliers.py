"""The wording of outliers and ties: nodes outside the fleet's majority (pure)."""

from __future__ import annotations

from provision.checks.fleet import majority
from provision.checks.fleet.majority import Outlier, Tie
from provision.node_names import fold
from provision.text import value_text


def outlier_text(outlier: Outlier) -> str:
    """How a node differs from its kind, in one line without its name."""
    usual = value_text(outlier.majority)
    most = f"{outlier.agree} of {outlier.answered} ({outlier.kind}) have {usual}"
    if outlier.majority is None:
        most = "and the other nodes do not agree either" if outlier.answered >= majority.SMALLEST else ""
    if outlier.unknown:
        return f"has no value ({value_text(outlier.problem)})" + (f", {most}" if most else "")
    where = majority.places(outlier)
    if where:
        text = ", ".join(
            f"{value_text(value)} on {outlier.per} {','.join(map(str, at))}" for value, at in where.items()
        )
        return f"is {text}, {most}"
    return f"is {value_text(outlier.found)}, {most}"


def tie_text(tie: Tie) -> str:
    """Which nodes have which value, where no value has a majority."""
    sides = (f"{len(nodes)} have {value_text(value)} ({fold(nodes)})" for value, nodes in tie.sides)
    return f"ambiguous, no value has a majority of {tie.kind}: {', '.join(sides)}"
