"""Judging of a fleet node by node: memory holds only the compared values, a spill file the rest.

Each node is judged by itself, set aside as its line of the report, and forgotten but for the numbers and
versions that the fleet compares. Then the comparison reads again those lines to which it adds something. What
comes out is a stored report (stored_health), which reads the rest when somebody asks for it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from provision import (
    fleet_judge,
    fleet_pairs,
    health,
    node_history,
    offenders,
    outliers,
    set_aside,
    stored_health,
)
from provision.health import FleetHealth, NodeHealth
from provision.judge import Finding
from provision.majority import Voter
from provision.offenders import Past
from provision.report import json as report_json
from provision.seen import Seen
from provision.store import RunFolder


@dataclass(frozen=True, slots=True)
class Alone:
    """A node that was judged by itself: its line of the report, and what of it the fleet compares."""

    name: str
    text: str
    numbers: tuple[fleet_judge.Measured, ...]
    voter: Voter | None


def alone(node: NodeHealth, one: Seen | None) -> Alone:
    """What has to be kept of a node that was judged by itself."""
    numbers = tuple(fleet_judge.numbers(node))
    return Alone(node.node, report_json.node_text(node), numbers, outliers.voter_of(node, one))


@dataclass
class _Fleet:
    """What the nodes are told by each other, by their past and by their pairs."""

    names: Sequence[str]
    texts: set_aside.SetAside
    by_peers: Mapping[int, Sequence[Finding]]
    by_versions: Mapping[str, Sequence[Finding]]
    past: Mapping[str, Sequence[Past]]
    between: fleet_pairs.Between

    def lines(self) -> Iterator[str]:
        """Each node as a line of the report, as the fleet judges it."""
        for number, name in enumerate(self.names):
            text = self.texts.text(number)
            if (
                number in self.by_peers
                or name in self.by_versions
                or self._known(name)
                or self.between.checks
            ):
                text = report_json.node_text(self._judged(number, health.node_from(json.loads(text))))
            yield text

    def _known(self, name: str) -> bool:
        """Whether earlier runs found anything bad on it; what is bad once is not raised."""
        return any(one.bad for one in self.past.get(name, ()))

    def _judged(self, number: int, node: NodeHealth) -> NodeHealth:
        if number in self.by_peers:
            node = fleet_judge.extended(node, self.by_peers[number])
        if node.node in self.by_versions:
            node = outliers.extended(node, self.by_versions[node.node])
        (node,) = offenders.escalate([node], self.past)
        return self.between.extended(node)


def judged(
    folder: RunFolder, head: FleetHealth, nodes: Iterable[Alone], seen: Mapping[str, Seen]
) -> FleetHealth:
    """The report of these nodes, in the order given, of which `head` says all but the nodes. `nodes` is gone
    through once. Raises RunFolderError."""
    peers, versions, names = fleet_judge.Peers(), outliers.Versions(), []
    texts = set_aside.SetAside(folder.path)
    for node in nodes:
        names.append(node.name)
        texts.add(node.text)
        peers.add(node.numbers)
        versions.add(node.name, node.voter)
    by_versions, ambiguous = versions.found()
    between = fleet_pairs.between(folder, seen)
    fleet = _Fleet(names, texts, peers.found(), by_versions, node_history.recalled(folder), between)
    head = replace(
        head, not_compared=(*peers.not_compared(), *ambiguous), fabric=between.fabric, between=between.told
    )
    del peers, versions  # what they were compared by is as much as all that is kept of them
    return replace(head, nodes=_stored(folder, head, fleet.lines()))


def _stored(folder: RunFolder, head: FleetHealth, lines: Iterable[str]) -> tuple[NodeHealth, ...]:
    """The nodes of these lines, of which only what every report shows is in memory."""
    place = set_aside.place(folder.path)
    with (
        set_aside.explained(place),
        tempfile.NamedTemporaryFile("w", encoding="ascii", dir=place, prefix=".judged.") as out,
    ):
        out.writelines(report_json.document(head, lines))
        out.flush()
        return stored_health.read(
            Path(out.name)
        ).nodes  # which keeps the file open, and needs its name no more
