"""Reconciliation of one node's findings about pairs of GPUs: names the GPU that explains them (pure).

A slow cell of a bandwidth matrix has two ends and a link. One slow link shows in two cells, one slow GPU in
its whole row and column, a sick fabric in most cells. `explain` names the fewest culprits that account for
every slow cell.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from provision.checks.health import CheckResult
from provision.checks.judge import Finding, Verdict, worst

Cell = tuple[int, int]  # directed: from GPU, to GPU

# A GPU is to blame for its slow partners when this share of them is slow: a GPU whose link to one partner
# happens to be fine is still the simplest explanation of six slow partners out of seven.
_GPU_SHARE = 0.75
# When this share of all pairs is slow no single GPU explains it: the fabric (or the whole node) does.
_NODE_SHARE = 0.9


@dataclass(frozen=True)
class Culprit:
    """Who explains the slow `cells`. `device`: node, gpu3, or the pair gpu2-gpu6 (both directions are one
    culprit).
    """

    device: str
    cells: tuple[Cell, ...]


def pair_name(one: int, other: int) -> str:
    """The name of a pair regardless of direction: `gpu2-gpu6`."""
    return f"gpu{min(one, other)}-gpu{max(one, other)}"


def explain(slow: Collection[Cell], measured: Collection[Cell]) -> list[Culprit]:
    """The fewest culprits for the `slow` cells among the `measured` ones; every slow cell has exactly one.

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
    """The GPU that explains most of the slow pairs left, if it is slow towards nearly all partners not yet
    blamed.
    """
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
    return [Culprit(device, tuple(found)) for device, found in sorted(cells.items())]


# What a group test (a collective over all GPUs) is slow because of, when the named check found it on the same
# node.
_CAUSES = {
    "p2p_bandwidth": ("p2p", "p2p_read", "p2p_write", "h2d", "d2h"),
    "gpu_inventory": (
        *("nvlink_links", "nvlink_speed", "throttle", "pcie_width", "fabric_state"),
        *("xgmi_links", "xgmi_up"),
    ),
}
# What a collective over the network cards may suffer from, and what the way from a GPU into a card may.
_NETWORK_CAUSES = {
    "rdma_loopback": ("host_share", "gpu_share", "gpu"),
    "network_ports": ("state", "rate", "width"),
}
_HOST_CAUSES = {
    "host_health": ("acs",),
    "p2p_bandwidth": ("h2d", "d2h"),
    "gpu_inventory": ("pcie_width", "pcie_generation"),
}

# A GPU that is lost or missing renumbers those behind it for CUDA: the card beside the last one finds none.
_LOST = {"gpu_inventory": ("xid.79", "unreadable.nvidia_smi", "driver_gpus")}


def point_at_cause(findings: Sequence[Finding]) -> list[Finding]:
    """Let a slow group point at the slow part already found on this node, instead of accusing the node too.

    The group's own number is kept: the finding becomes a `warn` whose message names the culprit it is
    consistent with. Without a culprit it stays a `fail` of the node. Wrong results are never explained away.
    """
    return [_pointed(finding, findings) for finding in findings]


def reconciled(checks: Sequence[CheckResult]) -> list[CheckResult]:
    """The checks of one node with one culprit for each cause."""
    findings = iter(point_at_cause([finding for check in checks for finding in check.findings]))
    told = [replace(check, findings=tuple(next(findings) for _ in check.findings)) for check in checks]
    return [replace(check, verdict=worst(f.verdict for f in check.findings)) for check in told]


def _pointed(finding: Finding, findings: Sequence[Finding]) -> Finding:
    """One finding, pointing at what explains it if anything does."""
    known = _explained_by(finding) if finding.verdict is Verdict.FAIL else {}
    causes = [
        cause
        for cause in findings
        if cause.verdict is Verdict.FAIL and cause.metric in known.get(cause.check, ())
    ]
    if (
        finding.check == "rdma_loopback" and finding.metric == "gpu_share"
    ):  # its evidence names the GPU whose memory was written from
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
    """The metrics, by check, that a slow one of this kind may come from; empty for all other findings."""
    if finding.check == "nccl_network" and finding.metric == "rail_share":
        return {**_NETWORK_CAUSES, **_HOST_CAUSES}
    if finding.check == "rdma_loopback" and finding.metric == "gpu_share":
        return _HOST_CAUSES
    if finding.check == "rdma_loopback" and finding.metric == "gpu":
        return _LOST
    return _CAUSES if finding.check.startswith("nccl_") and finding.metric == "busbw" else {}
