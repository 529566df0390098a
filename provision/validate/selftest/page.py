"""selftest.html: one file that needs no network, made of selftest.json alone; its texts are escaped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from provision.checks.judge import Verdict
from provision.report import html
from provision.text import spelled
from provision.validate.selftest.result import NOT_POSSIBLE, NOT_PROVEN, NOT_TRIED, PROVEN

# A state in the colours and marks of a verdict.
TONES = {
    PROVEN: Verdict.PASS,
    NOT_PROVEN: Verdict.ERROR,
    NOT_POSSIBLE: Verdict.SKIP,
    NOT_TRIED: Verdict.SKIP,
}


def render(document: Mapping[str, Any]) -> Iterator[str]:
    """The page in pieces."""
    checks = document["checks"]
    missing = [tool for tool in document["tools"] if not tool["path"]]
    yield from html.page(
        "selftest.html.j2",
        "selftest.css",
        test=document,
        verdict=Verdict(document["verdict"]),
        verdict_of=Verdict,
        tones=TONES,
        headline=headline(document),
        proven=[one for one in checks if one["state"] == PROVEN],
        conditions=[*document["provocations"], *document["changes"]],
        missing=missing,
        unproven=NOT_PROVEN,
        spelled=spelled,
    )


def headline(document: Mapping[str, Any]) -> str:
    """`12 of 16 checks and 5 of 5 conditions proven on gpu-01`."""
    checks, conditions = document["checks"], [*document["provocations"], *document["changes"]]
    done = [sum(one["state"] == PROVEN for one in rows) for rows in (checks, conditions)]
    said = f"{done[0]} of {len(checks)} checks and {done[1]} of {len(conditions)} conditions proven"
    said += f" on {document['host']}"
    if document["interrupted"]:
        return f"interrupted: {said}"
    return f"stopped: {said}" if document["stopped"] else said
