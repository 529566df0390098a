"""The wording of outliers and ties: nodes outside the fleet's majority (pure)."""

from __future__ import annotations

from provision import majority, shown
from provision.majority import Outlier, Tie
from provision.node_names import fold


def outlier_text(outlier: Outlier) -> str:
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
            f"{shown.value(value)} on {outlier.per} {','.join(map(str, at))}" for value, at in where.items()
        )
        return f"is {text}, {most}"
    return f"is {shown.value(outlier.found)}, {most}"


def tie_text(tie: Tie) -> str:
    """Which nodes have which value, where no value has a majority."""
    sides = (f"{len(nodes)} have {shown.value(value)} ({fold(nodes)})" for value, nodes in tie.sides)
    return f"ambiguous, no value has a majority of {tie.kind}: {', '.join(sides)}"
