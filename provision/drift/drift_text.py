"""Text of drifts and plans: short, without control characters, without secrets."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Mapping
from itertools import zip_longest
from typing import Any

from provision.desired.compatibility import Refusal
from provision.drift.drifts import Drift
from provision.node_names import fold
from provision.secrets_mask import masked, occurring
from provision.terminal import printable
from provision.text import value_text

_REASON = 240  # of the reason why there is none: it names the part and what to do
FEW = 16  # secrets that are cheaper to look for in each text than in all of a document first

_MUST = {
    "equals": "must be",
    "version": "must be version",
    "at_least": "must be at least",
    "one_of": "must be one of",
    "contains": "must contain",
    "matches": "must match",
    "template": "must be as rendered",
}


def difference(drift: Drift) -> str:
    """What is wrong, in one line: `is 570.1, must be 580.126.09`, or the first line where files differ."""
    expected, found = drift.expectation.value, drift.found
    if drift.unknown:
        return f"could not be read: {value_text(drift.problem, _REASON)}"
    if isinstance(expected, str) and isinstance(found, str) and "\n" in expected:
        for number, (want, have) in enumerate(
            zip_longest(expected.splitlines(), found.splitlines()), start=1
        ):
            if want != have:
                return f"line {number} is {value_text(have)}, must be {value_text(want)}"
        return "differs in its line ends"
    if drift.expectation.operator == "template" and found is None:
        return "is absent"
    return f"is {value_text(found)}, {_MUST[drift.expectation.operator]} {value_text(expected)}"


def record(drift: Drift, secrets: Collection[str] = ()) -> dict[str, Any]:
    """A drift for JSON and the run folder."""
    return dict(masked(drift.record(), secrets))


def grouped(items: Mapping[str, Any]) -> list[tuple[Any, list[str]]]:
    """Nodes with equal values together, in order of first appearance: (value, nodes)."""
    groups: dict[Any, list[str]] = {}
    for node, item in items.items():
        groups.setdefault(item, []).append(node)
    return list(groups.items())


def without(document: Any, secrets: Collection[str]) -> Any:
    """`document` with every secret in it masked."""
    return masked(document, occurring(document, secrets) if len(secrets) > FEW else secrets)


def trouble(refused: Mapping[str, list[Refusal]], troubles: Mapping[str, str]) -> list[str]:
    """What is to be said of nodes that are refused, unreachable or unreadable, equal words once."""
    lines = []
    said: dict[tuple[str, str, str], list[str]] = {}
    for node, refusals in refused.items():
        for refusal in refusals:
            key = (refusal.what.removeprefix(f"{node}: "), refusal.fix, refusal.source)
            said.setdefault(key, []).append(node)
    for (what, fix, source), nodes in said.items():
        lines += [f"{fold(nodes)}  refused: {what}", f"      {fix} [{source}]"]
    for _, nodes in grouped({node: why.replace(node, "") for node, why in troubles.items()}):
        lines.append(f"{fold(nodes)}  {troubles[nodes[0]]}")
    return [*lines, ""] if lines else []


def arguments(options: argparse.Namespace) -> dict[str, Any]:
    """The command line for the run folder; values of `--set` may be secrets: only their names are kept."""
    kept = {name: given for name, given in vars(options).items() if name not in ("set", "print_completion")}
    return {**kept, "set": [text.partition("=")[0] for text in options.set]}


def safe(lines: Iterable[str], secrets: Collection[str] = ()) -> str:
    """Lines as they may be printed."""
    return "".join(printable(str(masked(line, secrets))) + "\n" for line in lines)
