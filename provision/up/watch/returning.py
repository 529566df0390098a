"""Return of a repaired node: it is provisioned, validated, burnt in, and then becomes a spare.

Each part is a separate run, recorded once it has passed, so that the next call after an interruption
continues with the missing part. If a part finds the node unfit, the next call starts over, because results
from before a repair say nothing about the node after it. The node stays drained throughout."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import replace

from provision.errors import ExitCode, GpuprovError, UsageError
from provision.fleet import Fleet
from provision.remote.schedulers import Holder, Pools, Scheduled, Scheduler
from provision.text import iso, spelled
from provision.up.watch.incidents import SPARE, Incident, Step, Store
from provision.up.watch.lease import refuse_held
from provision.up.watch.policy import Policy
from provision.up.watch.roles import may_return

PARTS = ("up", "validate", "burnin")
_UNFIT = (ExitCode.UNHEALTHY, ExitCode.DRIFT, ExitCode.INCOMPLETE)  # exit statuses that judge the node


def incident_of(node: str, fleet: Fleet, incidents: Sequence[Incident]) -> Incident:
    """Return the incident that keeps a node out of service. Raises UsageError without one."""
    if node not in fleet.nodes:
        raise UsageError(f"the inventory has no node {node}", "gpuprov watch state lists the nodes in repair")
    mine = [one for one in incidents if one.node == node and one.holds_node]
    if not mine:
        raise UsageError(
            f"gpuprov watch did not take {node} out of service",
            "gpuprov watch state lists the nodes in repair",
        )
    return mine[-1]


def refuse_early(
    incident: Incident, incidents: Sequence[Incident], policy: Policy, now: float, forced: bool
) -> None:
    """Make a repeatedly failing node wait longer each time. Raises UsageError before its time."""
    begin = may_return(incident.node, incidents, policy.return_hours, now)
    if now < begin and not forced:
        count = sum(one.node == incident.node for one in incidents)
        when = datetime.datetime.fromtimestamp(begin, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
        raise UsageError(
            f"{incident.node} failed {count} times: it may return at {when}, in {spelled(int(begin - now))}",
            "wait, or use --now if the faulty part was replaced",
        )


def bring_back(
    incident: Incident,
    store: Store,
    scheduler: Scheduler,
    run: Callable[[str], int],
    now: Callable[[], float],
    say: Callable[[str], None],
) -> ExitCode:
    """Run the missing parts; `run` runs one and returns its exit status.

    Raises GpuprovError if the node's state in the scheduler is not as the watch left it."""
    node = incident.node
    _refuse_others(scheduler, node, store)
    for part in PARTS:
        if part in incident.returning:
            say(f"{node}: {part} already passed at {incident.returning[part]}")
            continue
        code = run(part)
        if code != ExitCode.OK:
            say(f"{node}: {part} did not pass; the node stays drained")
            if code in _UNFIT:
                store.write_return(replace(incident, returning={}))
                say("repair it, and run this command again: it begins anew")
            else:
                say(f"run this command again to go on with {part}")
            return ExitCode(code) if code in set(ExitCode) else ExitCode.ERROR
        incident = replace(incident, returning={**incident.returning, part: iso(now())})
        store.write_return(incident)
    _refuse_others(scheduler, node, store)
    if problem := scheduler.mark({node: SPARE}).get(node, ""):
        raise GpuprovError(f"{node} cannot be marked as a spare: {problem}", "run this command again")
    if isinstance(scheduler, Pools) and (problem := scheduler.rejoin(node)):
        raise GpuprovError(f"{node} cannot be put back into its pools: {problem}", "run this command again")
    store.write_return(replace(incident, returned=now(), returned_number=store.next_number()))
    say(f"{node} is a spare now")
    return ExitCode.OK


def _refuse_others(scheduler: Scheduler, node: str, store: Store) -> None:
    word = scheduler.look([node]).get(node) or Scheduled(node, error="no answer")
    refuse_held({node: word}, store)
    if word.error:
        raise GpuprovError(f"{node}: no answer from the scheduler: {word.error}", "fix that first")
    if word.holder is Holder.OTHERS:
        raise GpuprovError(
            f"somebody else drained {node}: {word.reason}", "ask them, or resume it in the scheduler"
        )
    if word.holder is Holder.NOBODY:
        raise GpuprovError(
            f"{node} is in service in the scheduler ({word.state}): somebody resumed it",
            "drain it there, with a reason that begins with `gpuprov: `, and run this command again",
        )


def refuse_unfinished(incident: Incident) -> None:
    """Raise UsageError while the watch is working on the node."""
    node = incident.node
    if incident.step is Step.CHOOSE:  # as a spare it could replace itself
        raise UsageError(
            f"{node} still waits for a spare, so it cannot become one",
            "add a spare; or, if it is repaired, run gpuprov validate on it and resume it in its scheduler",
        )
    if incident.step is not Step.REPAIR:
        raise UsageError(
            f"gpuprov watch has not finished with {node} yet ({incident.step})",
            "gpuprov watch state shows its progress",
        )
