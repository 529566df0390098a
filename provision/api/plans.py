"""What `up` would do to each node, and why; changes nothing."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from provision.api.fleets import LoadedFleet, look
from provision.api.source import Limits
from provision.drift import drift_text
from provision.drift.assess import Assessment
from provision.events import OnEvent, ignore
from provision.remote.schedulers import chosen
from provision.up import durations, plan_report, waves
from provision.up import plan as planning
from provision.up.plan import Plan


@dataclass(frozen=True)
class PlanResult:
    """What `up` would do. `seen`: what is declared and what was found; `plan`: what follows from it."""

    seen: Assessment = field(repr=False)
    plan: Plan = field(repr=False)

    @property
    def changes(self) -> tuple[str, ...]:
        """The nodes that `up` would change, in the order of its waves."""
        return tuple(node for wave in self.plan.waves for node in wave)

    def document(self) -> dict[str, Any]:
        """The document of `gpuprov plan --json` (data/schemas/plan.schema.json), with secrets masked."""
        masked: dict[str, Any] = drift_text.without(
            plan_report.document(self.seen, self.plan), self.seen.secrets
        )
        return masked


def plan(
    loaded: LoadedFleet,
    *,
    limits: Limits | None = None,
    full: bool = False,
    remove: tuple[str, ...] = (),
    wave: waves.Share | None = None,
    canary: bool = True,
    on_event: OnEvent = ignore,
) -> PlanResult:
    """Compare the nodes with what is declared, and say what `up` would do.

    `full`: every role of each node, whether it differs or not. `remove`: the roles to take off instead.
    `wave`, `canary`: how `up` would divide the nodes. Raises GpuprovError for what no node can be asked for;
    a node in trouble is named in the result."""
    seen = look(loaded, limits, on_event, remove=remove)
    made = planning.make(
        seen.drifts,
        seen.observations,
        full=full,
        takes_part=seen.roles,
        remove=remove,
        rollout=waves.rollout(seen.declared, seen.described, size=wave, canary=canary),
        minutes=durations.learn(seen.fleet.place),
    )
    busy = [node for wave in made.waves for node in wave]
    looked = chosen.load(seen.fleet, seen.overrides).look(busy)
    scheduler = {node: said.error for node, said in looked.items() if said.error}
    return PlanResult(seen, dataclasses.replace(made, scheduler=scheduler))
