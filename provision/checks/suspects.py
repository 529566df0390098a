"""Attribution of one node's slow GPU pairs to the GPU, link or fabric that explains them (pure).

A slow cell of a bandwidth matrix has two ends and a link. A slow link shows in two cells, a slow GPU in its
whole row and column, a faulty fabric in most cells. `explain` names the fewest culprits that account for all
slow cells.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from provision.checks.health import CheckResult
from provision.checks.judge import Finding, Verdict, worst

Cell = tuple[int, int]  # directed: from GPU, to GPU

# A GPU is the culprit if this share of its pairs is slow: even with one good link it remains the simplest
# explanation of six slow partners out of seven.
_GPU_SHARE = 0.75
# When this share of all pairs is slow no single GPU explains it: the fabric (or the whole node) does.
_NODE_SHARE = 0.9


@dataclass(frozen=True)
class Culprit:
    """The explanation of the slow `cells`: node, gpu3, or the pair gpu2-gpu6 in both directions."""

    device: str
    cells: tuple[Cell, ...]


def pair_name(one: int, other: int) -> str:
    """Return the name of a pair regardless of direction: `gpu2-gpu6`."""
    return f"gpu{min(one, other)}-gpu{max(one, other)}"


def explain(slow: Collection[Cell], measured: Collection[Cell]) -> list[Culprit]:
    """Return the fewest culprits that explain the `slow` cells; each slow cell belongs to exactly one.

    `measured`: all measured cells.

    >>> [c.device for c in explain({(2, 6), (6, 2)}, {(a, b) for a in range(8) for b in range(8) if a != b})]
    ['gpu2-gpu6']
    """
    remaining = {tuple(sorted(cell)) for cell in slow if cell[0] != cell[1]}
    pairs = {tuple(sorted(cell)) for cell in measured if cell[0] != cell[1]} | remaining
    gpus = sorted({gpu for pair in pairs for gpu in pair})
    if len(gpus) > 3 and len(remaining) >= _NODE_SHARE * len(pairs):
        return [Culprit("node", tuple(sorted(slow)))]
    blamed: list[int] = []
    while (guilty := _guiltiest(remaining, pairs, gpus, blamed)) is not None:
        blamed.append(guilty)
        remaining = {pair for pair in remaining if guilty not in pair}
    return _culprits(slow, blamed)


def _guiltiest(
    slow: Collection[tuple[int, ...]],
    pairs: Collection[tuple[int, ...]],
    gpus: Sequence[int],
    blamed: Sequence[int],
) -> int | None:
    """Return the GPU with the most slow pairs left, if nearly all of its unblamed partners are slow."""
    best, best_count = None, 1  # a GPU with one slow partner is a slow pair
    for gpu in gpus:
        if gpu in blamed:
            continue
        partners = [pair for pair in pairs if gpu in pair and not any(other in blamed for other in pair)]
        bad = [pair for pair in partners if pair in slow]
        if len(bad) > best_count and len(bad) >= _GPU_SHARE * len(partners):
            best, best_count = gpu, len(bad)
    return best


def _culprits(slow: Collection[Cell], blamed: Sequence[int]) -> list[Culprit]:
    cells: dict[str, list[Cell]] = defaultdict(list)
    for cell in sorted(slow):
        guilty = next((gpu for gpu in blamed if gpu in cell), None)
        cells[pair_name(*cell) if guilty is None else f"gpu{guilty}"].append(cell)
    return [Culprit(device, tuple(slow_cells)) for device, slow_cells in sorted(cells.items())]


# Findings on the same node that explain a slow group test (a collective over all GPUs), by check.
_CAUSES = {
    "p2p_bandwidth": ("p2p", "p2p_read", "p2p_write", "h2d", "d2h"),
    "gpu_inventory": (
        *("nvlink_links", "nvlink_speed", "throttle", "pcie_width", "fabric_state"),
        *("xgmi_links", "xgmi_up"),
    ),
}
# Findings that explain a slow collective over the network cards, and a slow route from a GPU to a card.
_NETWORK_CAUSES = {
    "rdma_loopback": ("host_share", "gpu_share", "gpu"),
    "network_ports": ("state", "rate", "width"),
}
_HOST_CAUSES = {
    "host_health": ("acs",),
    "p2p_bandwidth": ("h2d", "d2h"),
    "gpu_inventory": ("pcie_width", "pcie_generation"),
}

# A lost or missing GPU renumbers the ones behind it for CUDA, so the card next to the last one finds no GPU.
_LOST = {"gpu_inventory": ("xid.79", "unreadable.nvidia_smi", "driver_gpus")}


def point_at_cause(findings: Sequence[Finding]) -> list[Finding]:
    """Attribute slow group tests to a slow part already found on this node, rather than to the node.

    The finding keeps its number and becomes a `warn` that names the likely culprit in its message. Without a
    culprit it stays a `fail` of the node. Wrong results are never attributed to another part.
    """
    return [_pointed(finding, findings) for finding in findings]


def reconciled(checks: Sequence[CheckResult]) -> list[CheckResult]:
    """Return the checks of one node with one culprit for each cause."""
    findings = iter(point_at_cause([finding for check in checks for finding in check.findings]))
    updated = [replace(check, findings=tuple(next(findings) for _ in check.findings)) for check in checks]
    return [replace(check, verdict=worst(f.verdict for f in check.findings)) for check in updated]


def _pointed(finding: Finding, findings: Sequence[Finding]) -> Finding:
    """Return the finding, downgraded to a warning if other findings on the node explain it."""
    metrics = _explained_by(finding) if finding.verdict is Verdict.FAIL else {}
    causes = [
        cause
        for cause in findings
        if cause.verdict is Verdict.FAIL and cause.metric in metrics.get(cause.check, ())
    ]
    if (
        finding.check == "rdma_loopback" and finding.metric == "gpu_share"
    ):  # the evidence names the GPU that provided the memory
        causes = [cause for cause in causes if cause.device in ("node", *finding.evidence)]
    if not causes:
        return finding
    devices = ", ".join(sorted({cause.device for cause in causes}))
    checks = ", ".join(sorted({cause.check for cause in causes}))
    return replace(
        finding,
        verdict=Verdict.WARN,
        message=f"{finding.message}; consistent with {devices}, found by {checks}: "
        "repair that first, then measure again",
        action="run again",
    )


def _explained_by(finding: Finding) -> Mapping[str, tuple[str, ...]]:
    """Return the metrics by check that may cause a slow finding of this kind; empty for all others."""
    if finding.check == "nccl_network" and finding.metric == "rail_share":
        return {**_NETWORK_CAUSES, **_HOST_CAUSES}
    if finding.check == "rdma_loopback" and finding.metric == "gpu_share":
        return _HOST_CAUSES
    if finding.check == "rdma_loopback" and finding.metric == "gpu":
        return _LOST
    return _CAUSES if finding.check.startswith("nccl_") and finding.metric == "busbw" else {}
