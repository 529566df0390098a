"""Text of drifts and plans: short, without control characters, without secrets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from provision.desired.compatibility import Refusal
from provision.drift.drifts import Drift
from provision.node_names import fold
from provision.secrets_mask import masked, occurring
from provision.terminal import printable

# Bytes of Markdown. GitHub drops a step's whole summary above 1024 KiB; the margin is for text already
# written.
SUMMARY = 960 * 1024
FEW = 16  # up to this many secrets, masking each text is cheaper than first searching the whole document


def record(drift: Drift, secrets: Collection[str] = ()) -> dict[str, Any]:
    """Convert a drift to a masked record for JSON and the run folder."""
    return dict(masked(drift.record(), secrets))


def grouped(items: Mapping[str, Any]) -> list[tuple[Any, list[str]]]:
    """Group nodes with equal values, in order of first appearance: (value, nodes)."""
    groups: dict[Any, list[str]] = {}
    for node, item in items.items():
        groups.setdefault(item, []).append(node)
    return list(groups.items())


def without(document: Any, secrets: Collection[str]) -> Any:
    """Return `document` with every secret in it masked."""
    return masked(document, occurring(document, secrets) if len(secrets) > FEW else secrets)


def trouble(
    refused: Mapping[str, list[Refusal]], troubles: Mapping[str, str], host_only: Mapping[str, str]
) -> list[str]:
    """Return lines about refused, partly compared, unreachable and unreadable nodes; equal ones merged."""
    lines = []
    refusals_by_text: dict[tuple[str, str, str], list[str]] = {}
    for node, refusals in refused.items():
        for refusal in refusals:
            key = (refusal.what.removeprefix(f"{node}: "), refusal.fix, refusal.source)
            refusals_by_text.setdefault(key, []).append(node)
    for (what, fix, source), nodes in refusals_by_text.items():
        lines += [f"{fold(nodes)}  refused: {what}", f"      {fix} [{source}]"]
    for what, nodes in grouped(host_only):
        lines.append(f"{fold(nodes)}  compared without its GPUs: {what}")
    for _, nodes in grouped({node: why.replace(node, "") for node, why in troubles.items()}):
        lines.append(f"{fold(nodes)}  {troubles[nodes[0]]}")
    return [*lines, ""] if lines else []


def size(lines: Iterable[str]) -> int:
    """Return the size in bytes of these lines in a file."""
    return sum(len(line.encode(errors="replace")) + 1 for line in lines)


def fitting(blocks: Sequence[Sequence[str]], room: int) -> int:
    """Count how many of the leading blocks of lines fit into `room` bytes."""
    for number, block in enumerate(blocks):
        room -= size(block)
        if room < 0:
            return number
    return len(blocks)


def safe(lines: Iterable[str], secrets: Collection[str] = ()) -> str:
    """Mask secrets and control characters in lines, and join them for printing."""
    return "".join(printable(str(masked(line, secrets))) + "\n" for line in lines)
