"""Diagnosis across nodes: culprits, suspects, and the rounds of pairs that separate them (pure).

`next_round` selects the pairs to measure until nothing is left to separate or `MOST_ROUNDS` are done: round 1
across racks, round 2 within them (`pairing`), then suspects with partners that passed. Results are compared
with the expected value and with the run's other results (`judge`). A good result clears all its parts, and
the fewest culprits that explain the rest are named (`blame`). Indistinguishable parts form one set of
suspects with the reason. A node without evidence is reported as such: it did not pass.

    results = []
    while pairs := next_round(fleet, results):
        results += measure(pairs)
    diagnose(fleet, results).culprits
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from provision.checks.pairs.blame import Blame, Kind, Open, Part, blame, parts
from provision.checks.pairs.judge import TOLERANCE, Grade, Judged, judge
from provision.checks.pairs.pairing import Outcome, Pair, Result, Topology, across, limits, within
from provision.node_names import fold
from provision.text import many, one_line

MOST_ROUNDS = 4


@dataclass(frozen=True)
class Culprit:
    """A part that explains bad measurements beyond doubt.

    `device`: `gpu-03`, `gpu-03/rail 2`, `link gpu-01-gpu-02`, `leaf of rack a`, `uplink of rack a`,
    `path between racks a and b`. `nodes`: affected ones. `outcome`: worst of `evidence` (`measured`: slow).
    """

    device: str
    kind: Kind
    nodes: tuple[str, ...]
    outcome: Outcome
    why: str
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class Suspects:
    """Devices that measurements cannot tell apart (`why`: the reason), at least one of them bad."""

    devices: tuple[str, ...]
    nodes: tuple[str, ...]
    outcome: Outcome
    why: str
    evidence: tuple[str, ...]
    next: tuple[Pair, ...]  # pairs that would separate them, if any


@dataclass(frozen=True)
class Diagnosis:
    """Diagnosis of a fleet after its pairs were measured.

    Every node is in `passed`, or named by culprits or suspects (itself or as an end of a link), or in
    `unjudged` (node → reason). `unsteady`: bad once and good when repeated. `notes`: results that are not
    evidence, and impossible comparisons. `limits`: parts that no measurement of this fleet could tell apart.
    """

    culprits: tuple[Culprit, ...]
    suspects: tuple[Suspects, ...]
    passed: tuple[str, ...]
    unjudged: Mapping[str, str]
    unsteady: tuple[str, ...]
    notes: tuple[str, ...]
    limits: tuple[str, ...]


def next_round(
    fleet: Topology,
    results: Iterable[Result],
    *,
    most: int = MOST_ROUNDS,
    tolerance: float = TOLERANCE,
    direction: str = "at_least",
) -> tuple[Pair, ...]:
    """Return the disjoint pairs to measure next, given the results of all rounds; none when done.

    Each result carries the number of its round, from 1; a pair that did not run is NOT_RUN, so that the round
    counts as done.
    """
    results = tuple(results)
    done = max((result.round for result in results), default=0)
    if done >= most:
        return ()
    if done == 0:
        return across(fleet)
    if done == 1 and (pairs := within(fleet, across(fleet))):
        return pairs
    judged = judge(fleet, results, tolerance=tolerance, direction=direction).judged
    return next_pairs(blame(fleet, judged))


def diagnose(
    fleet: Topology,
    results: Iterable[Result],
    *,
    tolerance: float = TOLERANCE,
    direction: str = "at_least",
) -> Diagnosis:
    """Name the culprits of the bad results of one metric (see `judge.judge` for the parameters)."""
    judgement = judge(fleet, results, tolerance=tolerance, direction=direction)
    found = blame(fleet, judgement.judged)
    culprits = tuple(_culprit(found, part) for part in found.culprits)
    following = next_pairs(found)
    suspects = tuple(_suspects(found, one, following) for one in found.open if one.suspects)
    named = {node for part in found.suspected if part.kind in _OWN for node in part.names}
    passed = tuple(node for node in fleet.nodes if node not in named and _passed(found, node))
    unjudged = {
        node: _unjudged(found, judgement.judged, node)
        for node in fleet.nodes
        if node not in named and node not in passed
    }
    return Diagnosis(
        culprits,
        suspects,
        passed,
        unjudged,
        tuple(_unsteady(found)),
        (*judgement.notes, *_no_reference(found, judgement.judged)),
        limits(fleet),
    )


def device(part: Part) -> str:
    """Return the name of a part, such as `gpu-03/rail 2`."""
    names = [one_line(name, 80) for name in part.names]
    called = {
        Kind.NODE: names[0],
        Kind.LINK: f"link {'-'.join(names)}",
        Kind.LEAF: f"leaf of rack {names[0]}",
        Kind.UPLINK: f"uplink of rack {names[0]}",
        Kind.BUNDLE: f"some uplinks of rack {names[0]}",
        Kind.PATH: f"path between racks {' and '.join(names)}",
        Kind.CHANCE: "chance",
    }[part.kind]
    return f"{called}/rail {one_line(part.rail, 40)}" if part.rail else called


def _nodes(found: Blame, part: Part) -> tuple[str, ...]:
    if part.kind in (Kind.NODE, Kind.LINK):
        return part.names
    return tuple(chain.from_iterable(found.fleet.members[rack] for rack in part.names))


def _evidence(found: Blame, suspects: Iterable[Part]) -> list[Judged]:
    """Return the bad measurements that one of these parts may explain."""
    causes = frozenset(suspects)
    return [one for one, row in found.rows.items() if not row.isdisjoint(causes)]


def _worst(bad: Sequence[Judged]) -> Outcome:
    """Return the worst outcome: hang before error before slow."""
    outcomes = {one.result.outcome for one in bad}
    return next((one for one in (Outcome.HANG, Outcome.ERROR) if one in outcomes), Outcome.MEASURED)


def _culprit(found: Blame, part: Part) -> Culprit:
    bad = _evidence(found, [part])
    return Culprit(
        device(part),
        part.kind,
        _nodes(found, part),
        _worst(bad),
        _why(found, part, bad),
        tuple(one.line for one in bad),
    )


def _why(found: Blame, part: Part, bad: Sequence[Judged]) -> str:
    count = many(len(bad), "measurement")
    partners = {node for one in bad for node in one.result.nodes} - set(part.names)
    good = [node for node in partners if Part(Kind.NODE, (node,)) in found.cleared]
    if part.kind is Kind.NODE:
        others = f"; {fold(good, 120)} passed with others" if good else ""
        rails = ", its other rails are not" if part.rail else ""
        rack = found.fleet.racks.get(part.names[0], "")
        alone = len(found.fleet.members.get(rack, ())) == 1
        leaf = "; it is the only node of its rack, whose leaf or uplink would look the same" if alone else ""
        return f"{count} with it bad, with {fold(partners, 120)}{others}{rails}{leaf}"
    unknown = part.kind is Kind.LINK and found.fleet.spans(part.names) is None
    uplink = "; an uplink would look the same, for their racks are not both known" if unknown else ""
    return {
        Kind.LINK: f"{count} of this pair bad, and both ends pass with others: it is unknown which end",
        Kind.LEAF: f"{count} bad, of all pairs of its nodes, within the rack and out of it",
        Kind.UPLINK: f"{count} bad, of all pairs that leave the rack; within it pairs pass",
        Kind.BUNDLE: f"{count} bad, of pairs that leave the rack, while others that leave it pass",
        Kind.PATH: f"{count} bad, of all pairs between these racks; both pass with other racks",
    }[part.kind] + uplink


def _suspects(found: Blame, one: Open, following: Sequence[Pair]) -> Suspects:
    bad = _evidence(found, chain.from_iterable(one.rows))
    nodes = tuple(dict.fromkeys(chain.from_iterable(p.names for p in one.suspects if p.kind in _OWN)))
    if not nodes:
        nodes = tuple(dict.fromkeys(chain.from_iterable(_nodes(found, part) for part in one.suspects)))
    return Suspects(
        tuple(map(device, one.suspects)),
        nodes,
        _worst(bad),
        _not_apart(one, bad),
        tuple(each.line for each in bad),
        tuple(pair for pair in following if not set(pair).isdisjoint(nodes)),
    )


_OWN = (Kind.NODE, Kind.LINK)  # kinds named after nodes, not after racks


def _not_apart(one: Open, bad: Sequence[Judged]) -> str:
    """Return why suspects are not culprits."""
    kinds = {part.kind for part in one.suspects}
    if len({(each.result.round, each.result.nodes) for each in bad}) == 1:
        return "only one measurement was bad, which may be a disturbance: a second one is needed"
    if len(one.suspects) == 1:
        return "its bad measurements have other explanations that are nearly as simple"
    if Kind.LEAF in kinds and Kind.NODE in kinds:
        return "all pairs of these nodes are bad, which fits a bad leaf as well as bad nodes"
    if kinds <= {Kind.UPLINK, Kind.PATH, Kind.BUNDLE}:
        return "the same pairs cross all of them"
    if len({frozenset(each.result.nodes) for each in bad}) == 1:
        return (
            "they were bad with each other, and not measured separately over a path that is known to be good"
        )
    return "each of them would explain these measurements, by itself or with another one"


def _passed(found: Blame, node: str) -> bool:
    return Part(Kind.NODE, (node,)) in found.cleared and found.settled(node)


def _unjudged(found: Blame, judged: Sequence[Judged], node: str) -> str:
    """Return why nothing is known about a node."""
    own = [one for one in judged if node in one.result.nodes]
    if not any(one.result.outcome is not Outcome.NOT_RUN for one in own):
        return "it was not measured"
    bad = {one: row for one, row in found.rows.items() if node in one.result.nodes}
    causes = [device(part) for part in found.culprits if any(part in row for row in bad.values())]
    if causes:
        return f"it was measured only together with {', '.join(causes)}"
    if not any(one.grade is Grade.OK for one in own):
        return "there is nothing to compare its measurements with"
    return "not all its rails were measured"


def _unsteady(found: Blame) -> Iterable[str]:
    """Yield bad measurements that chance explains best."""
    for one, row in found.rows.items():
        if row.isdisjoint(found.suspected):
            yield f"{one.line}; good when measured again"


def _no_reference(found: Blame, judged: Iterable[Judged]) -> Iterable[str]:
    left = {one.result.nodes for one in judged if one.grade is Grade.BAD and not one.result.end}
    if left and not found.rows and not found.cleared:
        yield (
            f"none of {many(len(left), 'pair')} passes: they share a cause, or the expected value "
            "is wrong; no node is named"
        )


# --- Choice of the next pairs: they separate the remaining suspects, with partners that passed. A suspect is
# measured with a cleared node over a route without suspects, so that the result depends on the suspect alone;
# without such a partner, with a node that is itself in doubt. A pair is repeated if its link is suspected. No
# pair is proposed if all likely explanations predict the same result.


_LOOKED_AT = 64  # partners considered of each sort; the first free ones are as good as any
_NO_REFERENCE = 8  # measured pairs; if none of so many passes, another pair teaches nothing


def next_pairs(blame: Blame) -> tuple[Pair, ...]:
    """Return disjoint pairs to measure next; none when no pair could separate anything further."""
    hopeless = len(blame.measured) >= _NO_REFERENCE or (blame.measured and not blame.evidence)
    if hopeless and not blame.cleared:
        return ()
    return _Round(blame).filled()


class _Round:
    """One round being filled. `sound`: nodes that are cleared and not suspected on any rail."""

    def __init__(self, blame: Blame) -> None:
        self.blame = blame
        self.fleet = blame.fleet
        self.pairs: list[Pair] = []
        self.taken: set[str] = set()
        self.suspects = sorted(blame.suspected.difference(blame.culprits))
        self.hunted = {part.names[0] for part in self.suspects if part.kind is Kind.NODE}
        self.doubtful = [node for node in self.fleet.nodes if node in self.hunted or not blame.settled(node)]
        guilty = {part.names[0] for part in blame.culprits if part.kind is Kind.NODE}
        unsound = guilty.union(self.doubtful)
        self.sound = [node for node in self.fleet.nodes if node not in unsound]
        self.sound_in = {
            rack: [node for node in nodes if node not in unsound]
            for rack, nodes in self.fleet.members.items()
        }

    def filled(self) -> tuple[Pair, ...]:
        for part in self.suspects:
            if part.kind is Kind.LINK and not set(part.names).intersection(self.doubtful):
                self._take([(part.names[0], part.names[1])])
        for node in sorted(self.doubtful, key=lambda one: one not in self.hunted):
            clean = (pair for pair in self._with_sound(node) if self._clean(pair, Kind.NODE, (node,)))
            unclean = ((node, other) for other in self._free(self.doubtful) if self._new((node, other)))
            again = ((node, other) for other in self._free(self.doubtful) if not self._new((node, other)))
            self._take(chain(clean, unclean, again))
        for part in self.suspects:
            if part.kind in (Kind.UPLINK, Kind.PATH):
                self._take(pair for pair in self._over(part) if self._clean(pair, part.kind, part.names))
        return tuple(self.pairs)

    def _take(self, candidates: Iterable[Pair]) -> None:
        """Add the first free pair that promises information."""
        for one, other in candidates:
            if one != other and self.taken.isdisjoint((one, other)) and self._tells((one, other)):
                self.pairs.append((one, other))
                self.taken |= {one, other}
                return

    def _free(self, nodes: Iterable[str]) -> Iterator[str]:
        return islice((node for node in nodes if node not in self.taken), _LOOKED_AT)

    def _new(self, pair: Pair) -> bool:
        return frozenset(pair) not in self.blame.measured

    def _with_sound(self, node: str) -> Iterator[Pair]:
        """Pair the node with sound partners it has not met, first in its rack, where no uplink takes part."""
        inside = self.sound_in.get(self.fleet.racks.get(node, ""), ())
        partners = chain(self._free(inside), self._free(self.sound))
        return ((node, other) for other in partners if self._new((node, other)))

    def _over(self, part: Part) -> Iterator[Pair]:
        """Yield pairs of sound nodes that have not met and cross an uplink or the path between two racks."""
        for one in self._free(self.sound_in[part.names[0]]):
            others = self.sound if part.kind is Kind.UPLINK else self.sound_in[part.names[1]]
            for other in self._free(others):
                if self.fleet.spans((one, other)) and self._new((one, other)):
                    yield one, other

    def _through(self, pair: Pair) -> Iterator[frozenset[Part]]:
        rails = chain.from_iterable(self.blame.rails.get(node, ("",)) for node in pair)
        return (parts(self.fleet, pair, rail).sure for rail in dict.fromkeys(rails))

    def _clean(self, pair: Pair, kind: Kind, names: tuple[str, ...]) -> bool:
        """Return whether a pair's route has no suspects other than this part."""
        suspected = self.blame.suspected.intersection(chain.from_iterable(self._through(pair)))
        return all((part.kind, part.names) == (kind, names) for part in suspected)

    def _tells(self, pair: Pair) -> bool:
        """Return whether a likely explanation lets the pair pass, on some rail."""
        return any(self.blame.may_pass(through) for through in self._through(pair))
