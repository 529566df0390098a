"""All-reduce of large messages over the network cards instead of the GPUs' own links.

It needs no second node, and tests each card, its slot and its GPUDirect path under the load of a real
collective. A ring is as fast as its slowest card but does not identify it; rdma_loopback does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from provision.checks.check import CheckNode, Command, Measurement, Output
from provision.checks.judge import Finding, Verdict, by_threshold
from provision.checks.nccl.nccl_collective import Collective
from provision.checks.network.rdma_loopback import gpu_reach
from provision.checks.network.rdma_port import entries, rate_of
from provision.checks.thresholds import Threshold
from provision.errors import ParseError

ID = "nccl_network"

COLLECTIVE = Collective(
    ID,
    "all_reduce_perf",
    "all-reduce over the network cards",
    share=2.0,
    # Without IB it must fail: over TCP it would only be slow.
    env={"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "IB"},
)
_ITERATIONS = "5"  # at 16 GiB a tenth of NVLink's rate; twenty would take minutes


def _rail(node: CheckNode) -> tuple[int, float, int]:
    """Return the number of ports between nodes, their rate in Gb/s, and how many of their kind are down.

    They are the ports of the most frequent board at its most frequent rate, which excludes storage cards. (0,
    0, …) without an active port. Raises ParseError.
    """
    ports = entries(node, "rdma.ports")
    boards = {str(row.get("device")): row.get("board_id") for row in entries(node, "firmware.rdma")}
    kinds: dict[Any, list[float]] = {}
    for port in ports:
        device = str(port.get("device"))
        if device not in boards:
            raise ParseError(f"firmware.rdma has no entry for {device:.60}", "run the check again")
        kinds.setdefault(boards[device], []).append(rate_of(port))
    up = [[rate for rate in rates if rate] for rates in kinds.values()]
    if not any(up):
        return 0, 0.0, 0
    rates = max(kinds.values(), key=lambda found: (any(found), len(found), max(found)))
    rate, count = max(Counter(filter(None, rates)).items(), key=lambda item: (item[1], item[0]))
    return count, rate, rates.count(0.0)


@dataclass(frozen=True)
class OverCards:
    """The check, with one vendor's programs."""

    collective: Collective
    ID: str = ID
    SUMMARY: str = (
        "all-reduce over the node's own network cards: bandwidth as a share of their rate, and right sums"
    )
    FINDS: str = "an all-reduce over the node's own network cards that falls short of their rate"
    NEEDS: tuple[str, ...] = ("all_reduce_perf",)
    FACTS: tuple[str, ...] = ("rdma.ports", "firmware.rdma")

    def commands(self, node: CheckNode, options: Mapping[str, Any]) -> Sequence[Command]:
        try:
            cards, _, _ = _rail(node)
        except ParseError:
            return []  # `parse` reports it
        if not cards or node.gpu_count < 2:
            return []
        (command,) = self.collective.commands(node, options)
        argv = list(command.argv)
        argv[argv.index("-n") + 1] = _ITERATIONS
        return [replace(command, argv=tuple(argv))]

    def parse(self, node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
        """Parse the collective, with `cards`, their `rate` in Gb/s, and `cards_down`; raise ParseError.

        `rail_share`: bandwidth in % of the cards' rate, which is shared if there are fewer cards than GPUs.
        """
        cards, rate, down = _rail(node)
        measurements = [
            Measurement("cards", cards, "cards"),
            Measurement("rate", rate, "Gb/s"),
            Measurement("cards_down", down, "cards"),
        ]
        if not cards or node.gpu_count < 2:
            return measurements
        measurements += self.collective.parse(node, outputs)
        busbw = next(float(m.value) for m in measurements if m.metric == "busbw")
        # GB/s that each GPU can send
        carried = min(rate, gpu_reach(node)) / 8 * min(1.0, cards / node.gpu_count)
        return [*measurements, Measurement("rail_share", round(100 * busbw / carried, 2), "%")]

    def judge(
        self, node: CheckNode, measurements: Sequence[Measurement], thresholds: Mapping[str, Threshold]
    ) -> list[Finding]:
        values = {m.metric: m for m in measurements}
        if "busbw" not in values:
            alone = "one GPU: there is no group to measure"
            reason = "no RDMA port is up in this node" if node.gpu_count > 1 else alone
            return [Finding(ID, Verdict.SKIP, "node", reason, "rail_share")]
        results = self.collective.judge_results(values)
        cards, rate = values["cards"].value, values["rate"].value
        reached = f"{self.collective.words} reaches {values['busbw'].value:g} GB/s"
        what = f"{reached} with {cards} ports of {rate:g} Gb/s; its share of that"
        if down := values["cards_down"].value:
            unknown = (
                f"{what} is not judged: {down} more of their kind not up, whose GPUs share the others' cards"
            )
            return [*results, Finding(ID, Verdict.SKIP, "node", unknown, "rail_share")]
        threshold = thresholds.get(f"{ID}.rail_share")
        return [*results, by_threshold(ID, what, values["rail_share"], threshold, action="investigate")]


OVER_CARDS = OverCards(COLLECTIVE)
