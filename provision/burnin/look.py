"""Observation of nodes before a burn-in: their hardware, their declared variables, their fingerprint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from provision.burnin.profile import Profile
from provision.checks import selection
from provision.fleet import Fleet
from provision.remote.observe import observe
from provision.runs import fingerprint
from provision.runs.fingerprint import Fingerprint
from provision.runs.node_facts import NodeFacts
from provision.terminal import Progress
from provision.validate import validation


@dataclass(frozen=True)
class Looked:
    """Every node of the fleet. `variables`: what each declares."""

    variables: Mapping[str, Mapping[str, Any]]
    seen: dict[str, NodeFacts] = field(default_factory=dict)
    known: dict[str, Fingerprint] = field(default_factory=dict)

    @property
    def able(self) -> dict[str, NodeFacts]:
        """The nodes that can burn."""
        return {name: node for name, node in self.seen.items() if not node.error}


def look(
    fleet: Fleet, overrides: Mapping[str, Any], profile: Profile, *, timeout: float, connections: int
) -> Looked:
    """Look at every node once. Raises StackError for a variable that cannot be resolved."""
    looked = Looked(validation.plain_variables(fleet, overrides))
    with Progress("burnin", total=len(fleet.nodes)) as progress:
        progress.step(f"looking at {len(fleet.nodes)} node{'s' * (len(fleet.nodes) != 1)}")
        found = observe(
            fleet.nodes.values(),
            dict.fromkeys(fleet.nodes, fingerprint.FACTS | selection.facts_for(profile.checks)),
            timeout=timeout,
            connections=connections,
            vault_password_files=fleet.vault_password_files,
        )
        for name in fleet.nodes:
            node = validation.seen_of(found[name], looked.variables[name])
            looked.seen[name] = node
            if not node.error:
                looked.known[name] = fingerprint.of(found[name].facts, found[name].problems)
            progress.done(f"{name}: {node.error}" if node.error else "")
    return looked
