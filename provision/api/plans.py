"""Plan of what `up` would do to each node, and why; changes nothing."""

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
    """Result of `plan`: declared and observed states in `seen`, and the resulting `plan` of `up`."""

    seen: Assessment = field(repr=False)
    plan: Plan = field(repr=False)

    @property
    def changes(self) -> tuple[str, ...]:
        """Return the nodes that `up` would change, in the order of its waves."""
        return tuple(node for wave in self.plan.waves for node in wave)

    def document(self) -> dict[str, Any]:
        """Return the document of `gpuprov plan --json` (data/schemas/plan.schema.json), secrets masked."""
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
    """Compare the nodes with their declared state and plan what `up` would do.

    `full`: every role of each node, even without a difference. `remove`: roles to remove instead. `wave`,
    `canary`: how `up` would divide the nodes. Raises GpuprovError for invalid requests; errors of a single
    node are in the result."""
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
    scheduler = {node: state.error for node, state in looked.items() if state.error}
    return PlanResult(seen, dataclasses.replace(made, scheduler=scheduler))
