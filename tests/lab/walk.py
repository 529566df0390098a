"""A walk over what roles promise: each fact is broken once on some node; `drift` must name exactly it, and
`up` repair it with its own role and run no other.

One fact at a time is broken on each node, on all nodes at once. Where one cause makes several promises untrue
(breakers.TOGETHER), all of them and no other must be named. What only a person can repair
(breakers.BY_A_PERSON) `up` must leave to them, with their next step, and accept once it is done.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from provision.desired import inventory
from provision.desired.expectations import HARDWARE, Expectation
from provision.drift import assess
from tests.lab import breakers
from tests.lab.gpuprov_up import Operator
from tests.lab.lab_nodes import Lab


class Walk:
    """A fleet with these variables, what is promised of it, and what is still to be broken. `roles`: those
    whose promises are broken; all when None."""

    def __init__(
        self,
        lab: Lab,
        operator: Operator,
        declared: Mapping[str, Any],
        roles: Collection[str] | None = None,
    ) -> None:
        self.lab = lab
        self._operator, self._declared, self._roles = operator, dict(declared), roles
        seen = assess.assess(inventory.load(operator.inventory), declared)
        self.promised = {
            node: [
                each
                for each in expected
                if each.role != HARDWARE and each.fact not in breakers.NOT_ON_LAB_NODES
            ]
            for node, expected in seen.expected.items()
        }

    def gpuprov(self, verb: str, *options: str) -> Any:
        """The document that it printed."""
        done = self._operator.call(verb, "--json", *options, timeout=900, **self._declared)
        assert done.stdout.startswith("{"), done.stderr
        return json.loads(done.stdout)

    def up(self) -> Any:
        """How it ended for each node."""
        return self.gpuprov("up", "--no-canary")["nodes"]

    def on_nodes(self, commands: Mapping[str, str]) -> list[str]:
        """Run each as root on its node; what did not work."""

        def run(node: str) -> str:
            done = self.lab.node(node).run(f"sudo sh -c {shlex.quote(commands[node])}", check=False)
            return f"{node}: {commands[node]!r}: {done.stderr}" if done.returncode else ""

        with ThreadPoolExecutor() as pool:
            return [failure for failure in pool.map(run, commands) if failure]

    def rounds(self) -> Iterator[dict[str, Expectation]]:
        """Node → what to break on it now, until every promise had its turn on one node."""
        walked: set[tuple[str, str]] = set()
        while True:
            chosen: dict[str, Expectation] = {}
            for node, promised in self.promised.items():
                each = next((p for p in promised if self._is_due(p, walked)), None)
                if each is not None:
                    chosen[node] = each
                    walked.add((each.role, each.fact))
            if not chosen:
                return
            yield chosen

    def _is_due(self, each: Expectation, walked: set[tuple[str, str]]) -> bool:
        return (self._roles is None or each.role in self._roles) and (each.role, each.fact) not in walked

    def whole(self, say: Callable[[str], None]) -> tuple[Counter[str], list[str]]:
        """Go through all of it, from nodes that need not be as declared. Role → its promises; what was not as
        it should be."""
        self.up()
        assert self.gpuprov("drift")["drifts"] == []
        count: Counter[str] = Counter()
        trouble: list[str] = []
        for chosen in self.rounds():
            found = self._trouble_of(chosen)
            say("\n".join(["", *(f"  {node}: {each.fact}" for node, each in chosen.items()), *found]))
            trouble += found
            count.update(each.role for each in chosen.values())
            if found:  # the next round begins from a fleet that is as declared
                self.up()
        assert self.gpuprov("drift")["drifts"] == []
        table = "".join(f"\n  {role:20} {number:4}" for role, number in count.items())
        say(f"\n\nheld, broken, named, and repaired by their role:{table}\n  all {sum(count.values()):21}\n")
        return count, trouble

    def _trouble_of(self, chosen: Mapping[str, Expectation]) -> list[str]:
        """Break these, look, repair: what was not as it should be."""
        trouble = self.on_nodes({node: breakers.command(each) for node, each in chosen.items()})
        named: dict[str, set[tuple[str, str]]] = {node: set() for node in self.promised}
        for drift in self.gpuprov("drift")["drifts"]:
            named[drift["node"]].add((drift["role"], drift["fact"]))
        ended = self.up()
        persons = {
            node: breakers.BY_A_PERSON[each.fact]
            for node, each in chosen.items()
            if each.fact in breakers.BY_A_PERSON
        }
        trouble += self.on_nodes({node: one.repair for node, one in persons.items()})
        for node in self.promised:
            wanted = broken_by(chosen.get(node), self.promised[node])
            if named[node] != wanted:
                trouble.append(f"{node}: broke {wanted or 'nothing'}, drift named {named[node] or 'nothing'}")
            end = ended[node]
            reasons = [f"{drift['fact']} ({drift['why']})" for drift in end["drifts"]]
            told = f"{end['status']} {end['message']} {reasons}"
            if set(end["roles"]) != {role for role, _fact in wanted}:
                trouble.append(f"{node}: broke {wanted or 'nothing'}, up ran {end['roles']}: {told}")
            elif node in persons:
                if end["status"] != persons[node].status or persons[node].said not in told:
                    trouble.append(f"{node}: {chosen[node].fact} is for a person, and up said {told}")
            elif end["status"] not in ("done", "as declared"):
                trouble.append(f"{node}: broke {wanted or 'nothing'}, up ended with {told}")
        return trouble


def broken_by(expectation: Expectation | None, promised: Collection[Expectation]) -> set[tuple[str, str]]:
    """(role, fact) of every promise that its breaker makes untrue: some facts two roles promise."""
    if expectation is None:
        return set()
    same = {(each.role, each.fact) for each in promised if each.fact == expectation.fact}
    return same | breakers.TOGETHER.get(expectation.fact, set())
