"""A walk over the promises of roles: each fact is broken once on some node.

`drift` must then report exactly it, and `up` repair it with its own role and run no other. One fact at a time
is broken on each node, on all nodes at once. If one cause breaks several promises (breakers.TOGETHER),
exactly these must be reported. If only a user can repair a fact (breakers.BY_A_PERSON), `up` must leave it
with the next step, and accept it once it is done.
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
    """A fleet with these variables, its promises, and those still to break.
    `roles`: the roles with promises to break; None: all."""

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
        """Run gpuprov and return its JSON document."""
        done = self._operator.call(verb, "--json", *options, timeout=900, **self._declared)
        assert done.stdout.startswith("{"), done.stderr
        return json.loads(done.stdout)

    def up(self) -> Any:
        """Run `up` and return each node's outcome."""
        return self.gpuprov("up", "--no-canary")["nodes"]

    def on_nodes(self, commands: Mapping[str, str]) -> list[str]:
        """Run each command as root on its node, and return the failures."""

        def run(node: str) -> str:
            done = self.lab.node(node).run(f"sudo sh -c {shlex.quote(commands[node])}", check=False)
            return f"{node}: {commands[node]!r}: {done.stderr}" if done.returncode else ""

        with ThreadPoolExecutor() as pool:
            return [failure for failure in pool.map(run, commands) if failure]

    def rounds(self) -> Iterator[dict[str, Expectation]]:
        """Yield node → the promise to break next, until every promise was broken on one node."""
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
        """Walk over all promises, from nodes that need not be as declared.
        Return role → number of its promises, and all problems."""
        self.up()
        assert self.gpuprov("drift")["drifts"] == []
        count: Counter[str] = Counter()
        trouble: list[str] = []
        for chosen in self.rounds():
            found = self._trouble_of(chosen)
            say("\n".join(["", *(f"  {node}: {each.fact}" for node, each in chosen.items()), *found]))
            trouble += found
            count.update(each.role for each in chosen.values())
            if found:  # the next round needs a fleet in its declared state
                self.up()
        assert self.gpuprov("drift")["drifts"] == []
        table = "".join(f"\n  {role:20} {number:4}" for role, number in count.items())
        say(f"\n\nheld, broken, named, and repaired by their role:{table}\n  all {sum(count.values()):21}\n")
        return count, trouble

    def _trouble_of(self, chosen: Mapping[str, Expectation]) -> list[str]:
        """Break these facts, observe, repair; return the problems."""
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
    """Return (role, fact) of every promise that its breaker breaks: two roles promise some facts."""
    if expectation is None:
        return set()
    same = {(each.role, each.fact) for each in promised if each.fact == expectation.fact}
    return same | breakers.TOGETHER.get(expectation.fact, set())
