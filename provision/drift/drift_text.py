"""Text of drifts and plans: short, without control characters, without secrets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from provision.desired.compatibility import Refusal
from provision.drift.drifts import Drift
from provision.node_names import fold
from provision.secrets_mask import masked, occurring
from provision.terminal import printable

# Bytes of Markdown. GitHub drops a step's whole summary above 1024 KiB; some is left for who writes first.
SUMMARY = 960 * 1024
FEW = 16  # secrets that are cheaper to look for in each text than in all of a document first


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


def trouble(
    refused: Mapping[str, list[Refusal]], troubles: Mapping[str, str], host_only: Mapping[str, str]
) -> list[str]:
    """What is to be said of nodes that are refused, unreachable, unreadable or looked at in part, equal words
    once."""
    lines = []
    said: dict[tuple[str, str, str], list[str]] = {}
    for node, refusals in refused.items():
        for refusal in refusals:
            key = (refusal.what.removeprefix(f"{node}: "), refusal.fix, refusal.source)
            said.setdefault(key, []).append(node)
    for (what, fix, source), nodes in said.items():
        lines += [f"{fold(nodes)}  refused: {what}", f"      {fix} [{source}]"]
    for what, nodes in grouped(host_only):
        lines.append(f"{fold(nodes)}  compared without its GPUs: {what}")
    for _, nodes in grouped({node: why.replace(node, "") for node, why in troubles.items()}):
        lines.append(f"{fold(nodes)}  {troubles[nodes[0]]}")
    return [*lines, ""] if lines else []


def size(lines: Iterable[str]) -> int:
    """The bytes that lines take in a file."""
    return sum(len(line.encode(errors="replace")) + 1 for line in lines)


def fitting(blocks: Sequence[Sequence[str]], room: int) -> int:
    """How many of these blocks of lines, from the first on, take no more than `room` bytes."""
    for number, block in enumerate(blocks):
        room -= size(block)
        if room < 0:
            return number
    return len(blocks)


def safe(lines: Iterable[str], secrets: Collection[str] = ()) -> str:
    """Lines as they may be printed."""
    return "".join(printable(str(masked(line, secrets))) + "\n" for line in lines)
