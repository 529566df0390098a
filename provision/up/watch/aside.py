"""Setting nodes aside as spares: each is drained, and waits for another node to fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from provision.errors import GpuprovError, UsageError
from provision.fleet import Fleet
from provision.remote.schedulers import Holder, Scheduled, Scheduler
from provision.up.watch.incidents import SPARE, Incident
from provision.up.watch.policy import SPARES
from provision.up.watch.roles import Role, roles


def set_aside(
    nodes: Sequence[str],
    fleet: Fleet,
    incidents: Sequence[Incident],
    scheduler: Scheduler,
    say: Callable[[str], None],
) -> None:
    """Drain idle nodes of the spares' group, so that the watch may choose them.

    A watch never does this itself: a node in service may have replaced another, for a watch whose folder this
    user does not have. Raises UsageError for a node that is no spare or has jobs, GpuprovError if the
    scheduler does not drain one; nodes before it stay drained."""
    role = roles(fleet, incidents)
    for name in nodes:
        if name not in fleet.groups.get(SPARES, ()):
            raise UsageError(f"{name} is not in the group {SPARES}", "add it to the group in the inventory")
        if role[name] is not Role.SPARE:
            why = (
                "it took the place of a failed node" if role[name] is Role.SERVICE else "it waits for repair"
            )
            raise UsageError(f"{name} is no spare now: {why}", "gpuprov watch state shows what each node is")
    found = scheduler.look(nodes)
    for name in nodes:
        word = found.get(name) or Scheduled(name, error="no answer")
        if word.error:
            raise GpuprovError(f"{name}: no answer from the scheduler: {word.error}", "fix that first")
        if word.holder is Holder.OTHERS:
            raise GpuprovError(f"somebody else drained {name}: {word.reason}", "ask them")
        if word.holder is Holder.NOBODY and word.jobs:
            fix = "if it replaces no failed node, wait for the job, or drain it in the scheduler"
            raise UsageError(f"{name} is in service: job {word.jobs[0].id} runs on it", fix)
        if word.holder is Holder.NOBODY and (problem := scheduler.drain({name: SPARE}).get(name, "")):
            raise GpuprovError(f"{name} cannot be drained: {problem}", "drain it in the scheduler")
        say(f"{name} is a spare")
