"""Choice of the next pairs: they separate the remaining suspects, with partners that passed (pure).

A suspect is measured with a node that is cleared, over a way nobody suspects, so that the result is about
the suspect alone; where there is no such partner, with one that is itself in doubt. A pair is measured again
where what joins it is suspected. No pair is proposed whose result all likely explanations agree on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice

from provision.checks.pairs.blame import Blame, Kind, Part, parts
from provision.checks.pairs.pairing import Pair

_LOOKED_AT = 64  # partners of each sort; the first free ones are as good as any
_NO_REFERENCE = 8  # pairs of which none passes, from which on one more teaches nothing


def next_pairs(blame: Blame) -> tuple[Pair, ...]:
    """Disjoint pairs to measure next; none when nothing is left that a pair could separate."""
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
        """Add the first pair that is free and tells something."""
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
        """The node with sound partners it has not met: of its rack, which cross nothing, before others."""
        inside = self.sound_in.get(self.fleet.racks.get(node, ""), ())
        partners = chain(self._free(inside), self._free(self.sound))
        return ((node, other) for other in partners if self._new((node, other)))

    def _over(self, part: Part) -> Iterator[Pair]:
        """Pairs of sound nodes that have not met and pass over an uplink, or the path between two racks."""
        for one in self._free(self.sound_in[part.names[0]]):
            others = self.sound if part.kind is Kind.UPLINK else self.sound_in[part.names[1]]
            for other in self._free(others):
                if self.fleet.spans((one, other)) and self._new((one, other)):
                    yield one, other

    def _through(self, pair: Pair) -> Iterator[frozenset[Part]]:
        rails = chain.from_iterable(self.blame.rails.get(node, ("",)) for node in pair)
        return (parts(self.fleet, pair, rail).sure for rail in dict.fromkeys(rails))

    def _clean(self, pair: Pair, kind: Kind, names: tuple[str, ...]) -> bool:
        """Whether nothing in the way of a pair is suspected beside that one part."""
        suspected = self.blame.suspected.intersection(chain.from_iterable(self._through(pair)))
        return all((part.kind, part.names) == (kind, names) for part in suspected)

    def _tells(self, pair: Pair) -> bool:
        """Whether a likely explanation lets the pair pass, on some rail."""
        return any(self.blame.may_pass(through) for through in self._through(pair))
