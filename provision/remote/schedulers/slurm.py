"""Slurm: its nodes, through `scontrol` and `squeue`, here or on a host of the group `gpuprov_slurm`.

**What is put back.** A node that was up gets State=RESUME: whatever we did to it, a reboot included, it takes
jobs again. One that slurmctld had set DOWN before we came (Not responding) is not made IDLE by us: its reason
is marked `(was DOWN)`, so that any later run knows, and it gets State=UNDRAIN, which leaves the base state
alone; slurmctld then returns it by the site's ReturnToService. A node that a person set DOWN is theirs.

**Two at once.** Slurm has no condition in an update: a person who drains the same node in the moment between
our look and our update loses their reason to ours. Each update is read back, and one that did not come about
is a failure with a line.

**Leases of watches** stand in the comments of nodes. Seen with 24.11: a comment survives `scontrol
reconfigure` and restarts of slurmctld, also after a kill; `slurmctld -c` clears it, with every drain. Its
state is written a few seconds after a change, so a kill within these may undo the last one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from provision.fleet import GROUPS, Fleet, Kind
from provision.remote.schedulers import BreakerError, Holder, Job, Scheduled, lease, slurm_breaker, slurm_text
from provision.remote.schedulers.commands import Ask, Commands, CommandsError, Done
from provision.remote.schedulers.slurm_text import NodeText
from provision.text import one_line

AT_ONCE = 400  # nodes in one question: about 600 KB of answer
UPDATES = 50  # changes in one round trip
_SQUEUE = ("squeue", "--noheader", "--states=RUNNING,SUSPENDED,COMPLETING,CONFIGURING,STOPPED")
_HIDDEN = Job("?")  # a job that Slurm counts and does not show
# What Slurm's commands say when it is their way to slurmctld that fails (src/common/slurm_errno.c).
_NO_CONTROLLER = ("Unable to contact slurm controller", "Zero Bytes were transmitted", "Socket timed out")
_DENIED = ("Access/permission denied", "Invalid user id")
_STRANGE = "not supported"  # an update that this release does not know


def _elsewhere(done: Done) -> bool:
    """Another host may do better: the commands are not there, or do not reach slurmctld from it."""
    return bool(done.problem) or (done.status != 0 and any(word in done.err for word in _NO_CONTROLLER))


class Slurm:
    """One Slurm cluster. `names`: inventory's name → Slurm's, of the nodes that it has. `ask`: how commands
    are run."""

    kind = "slurm"
    settle = 3.0  # longer than one watch takes from its look to its update

    def __init__(self, fleet: Fleet, names: Mapping[str, str], ask: Ask | None = None) -> None:
        self._names = dict(names)
        self._ask: Ask = ask or Commands(fleet, GROUPS[Kind.SLURM], _elsewhere)

    def look(self, nodes: Sequence[str]) -> dict[str, Scheduled]:
        """Each node's state and the jobs on it."""
        found: dict[str, Scheduled] = {}
        way = _Way(lambda commands: self._asked(*commands))
        for some in _portions(nodes):
            asked = ",".join(dict.fromkeys(self._name(node) for node in some))
            try:
                shown, queue = way(
                    ["scontrol", "show", "node", asked],
                    [*_SQUEUE, f"--nodelist={asked}", f"--format={slurm_text.FORMAT}"],
                )
                known = slurm_text.nodes(shown.out)
                if not known and shown.error and "not found" not in shown.error:
                    raise CommandsError(_line(shown))
                lost = [name for name in asked.split(",") if name not in known]
                if lost and queue.status:  # squeue refuses all of a list with one strange name in it
                    there = ",".join(known)
                    queue = (
                        self._asked([*_SQUEUE, f"--nodelist={there}", f"--format={slurm_text.FORMAT}"])[0]
                        if there
                        else Done(0)
                    )
                if queue.error:
                    raise CommandsError(_line(queue))
                running = slurm_text.jobs(queue.out, known)
            except (CommandsError, ValueError) as error:
                found |= {node: Scheduled(self._name(node), error=one_line(str(error), 300)) for node in some}
                continue
            for node in some:
                name = self._name(node)
                there_is = known.get(name)
                found[node] = (
                    Scheduled(name, error=_unknown(name))
                    if there_is is None
                    else _scheduled(there_is, running.get(name, ()))
                )
        return found

    def drain(self, reasons: Mapping[str, str]) -> dict[str, str]:
        """Let no new job onto these nodes; those that others hold, or we, stay as they are."""
        known, problems = self._known(list(reasons))
        todo = {
            node: slurm_text.reason_for(reasons[node], text)
            for node, text in known.items()
            if text.holder is Holder.NOBODY
        }
        return problems | self._drained(todo)

    def mark(self, reasons: Mapping[str, str]) -> dict[str, str]:
        """Replace the reason of nodes that we hold already."""
        known, problems = self._known(list(reasons))
        for node, text in known.items():
            if text.holder is not Holder.US:
                whose = f"somebody else holds it ({text.reason})" if text.holder is Holder.OTHERS else ""
                problems[node] = whose or f"gpuprov does not hold it ({text.state})"
        todo = {
            node: slurm_text.reason_for(reasons[node], text)
            for node, text in known.items()
            if node not in problems
        }
        return problems | self._drained(todo)

    def resume(self, nodes: Sequence[str]) -> dict[str, str]:
        """Give nodes that we hold back, as they were; others stay as they are."""
        known, problems = self._known(nodes)
        todo = {node: slurm_text.put_back(text) for node, text in known.items() if text.holder is Holder.US}
        refused = self._updated(todo)
        # What counts is what Slurm says afterwards: an update of several nodes may have been done in part.
        again, more = self._known(list(todo))
        problems |= more
        for node, text in again.items():
            if text.holder is Holder.US:
                problems[node] = refused.get(node) or f"scontrol returned it, and Slurm says {text.state}"
        return problems

    def join(self, node: str, like: str, pools: Sequence[str]) -> str:  # noqa: ARG002 - there is one cluster
        """Put a node into partitions. scontrol has `Nodes+=` in newer releases; an older one refuses it by
        name, and then gets the whole list, as it reads now and one longer."""
        known, problems = self._known([node])
        if problems:
            return problems[node]
        name = self._name(node)
        missing = [pool for pool in pools if pool not in known[node].pools]
        try:
            for pool in missing:
                done = self._asked(["scontrol", "update", f"PartitionName={pool}", f"Nodes+={name}"])[0]
                if _STRANGE in done.err:
                    done = self._whole_list(pool, name)
                if done.error:
                    return f"partition {pool}: {_line(done)}"
        except CommandsError as error:
            return str(error)
        now, problems = self._known([node])
        if problems:
            return problems[node]
        left = [pool for pool in missing if pool not in now[node].pools]
        return f"scontrol added {name} to {', '.join(left)}, and Slurm does not say so" if left else ""

    def lease(
        self, leases: Mapping[str, lease.Lease | None], before: Mapping[str, lease.Lease | None]
    ) -> dict[str, str]:
        """Write leases into the nodes' comments, behind what a site has there."""
        known, problems = self._known(list(leases))
        changed = {node for node, text in known.items() if lease.read(text.comment) != before.get(node)}
        problems |= dict.fromkeys(changed, "another watch changed its lease just now")
        todo = {
            node: [f"Comment={lease.put(text.comment, leases[node])}"]
            for node, text in known.items()
            if node not in changed
        }
        return problems | self._updated(todo)

    def _whole_list(self, pool: str, name: str) -> Done:
        shown = self._asked(["scontrol", "show", "partition", pool])[0]
        if shown.error:
            return shown
        listed = next(
            (line.strip()[6:] for line in shown.out.splitlines() if line.strip().startswith("Nodes=")), ""
        )
        if not listed or listed == "(null)":
            listed = ""
        nodes = ",".join(filter(None, (listed, name)))
        return self._asked(["scontrol", "update", f"PartitionName={pool}", f"Nodes={nodes}"])[0]

    # The breaker of all drains for a fault: reservations, as each node's own program reads them.

    def breaker(self) -> str | None:
        """Why it is open; see the protocol Breaks."""
        with _told():
            why = slurm_breaker.opened(self._scontrol)
        return None if why is None else one_line(why, 300)

    def permit(self, node: str, share: float, least: int) -> str:
        known, problems = self._known([node])
        if problems:
            raise BreakerError(problems[node])
        with _told():
            return one_line(slurm_breaker.permit(self._scontrol, known[node].pools, share, least), 400)

    def open_breaker(self, why: str) -> None:
        with _told():
            slurm_breaker.open_it(self._scontrol, one_line(why, 200))

    def close_breaker(self) -> None:
        with _told():
            slurm_breaker.close(self._scontrol)

    def _scontrol(self, words: Sequence[str]) -> tuple[int, str]:
        try:
            done = self._asked(["scontrol", *words])[0]
        except CommandsError as error:
            raise slurm_breaker.UnknownError(str(error)) from None
        return done.status or 0, done.out + done.err

    def _known(self, nodes: Sequence[str]) -> tuple[dict[str, NodeText], dict[str, str]]:
        """Node → what scontrol says of it; node → why it says nothing."""
        known: dict[str, NodeText] = {}
        problems: dict[str, str] = {}
        way = _Way(lambda commands: self._asked(*commands))
        for some in _portions(nodes):
            asked = ",".join(dict.fromkeys(self._name(node) for node in some))
            try:
                shown = way(["scontrol", "show", "node", asked])[0]
                found = slurm_text.nodes(shown.out)
                if not found and shown.error and "not found" not in shown.error:
                    raise CommandsError(_line(shown))
            except CommandsError as error:
                problems |= dict.fromkeys(some, str(error))
                continue
            for node in some:
                name = self._name(node)
                if name in found:
                    known[node] = found[name]
                else:
                    problems[node] = _unknown(name)
        return known, problems

    def _drained(self, reasons: Mapping[str, str]) -> dict[str, str]:
        """Node → why it is not drained for the reason that it was given."""
        refused = self._updated({node: ["State=DRAIN", f"Reason={why}"] for node, why in reasons.items()})
        known, problems = self._known(list(reasons))
        for node, text in known.items():
            if text.holder is not Holder.US or text.why != reasons[node]:
                said = f"scontrol drained it, and Slurm says {text.state} ({text.reason or 'no reason'})"
                problems[node] = refused.get(node) or said
        return problems

    def _updated(self, changes: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Node → why scontrol did not change it. Those with the same change are changed together; where that
        fails each by itself, so that one does not keep the others."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for node, words in changes.items():
            groups.setdefault(tuple(words), []).append(node)
        together = [(some, words) for words, every in groups.items() for some in _portions(every)]
        problems: dict[str, str] = {}
        alone: list[tuple[Sequence[str], Sequence[str]]] = []
        for (some, words), (why, for_all) in zip(together, self._updates(together), strict=True):
            if why and len(some) > 1 and not for_all:
                alone += (([node], words) for node in some)
            elif why:
                problems |= dict.fromkeys(some, why)
        for ((node,), _words), (why, _for_all) in zip(alone, self._updates(alone), strict=True):
            if why:
                problems[node] = why
        return problems

    def _updates(self, changes: Sequence[tuple[Sequence[str], Sequence[str]]]) -> list[tuple[str, bool]]:
        """Of each change of some nodes: why it failed, or "", and whether any other node would fail so. Many
        go in one round trip: comments differ from node to node."""
        found: list[tuple[str, bool]] = []
        for start in range(0, len(changes), UPDATES):
            some = changes[start : start + UPDATES]
            names = [",".join(map(self._name, nodes)) for nodes, _ in some]
            commands = [
                ["scontrol", "update", f"NodeName={name}", *words]
                for name, (_, words) in zip(names, some, strict=True)
            ]
            try:
                done = self._asked(*commands)
            except CommandsError as error:
                return found + [(str(error), True)] * (len(changes) - len(found))
            found += [(_line(one) if one.error else "", _for_all(one)) for one in done]
        return found

    def _asked(self, *commands: Sequence[str]) -> list[Done]:
        """As many answers as commands; one that could not be run to its end is raised."""
        done = self._ask(commands)
        broken = next((one for one in done if one.problem), None)
        if broken is not None or len(done) != len(commands):
            raise CommandsError(broken.problem if broken else "an answer is missing")
        return done

    def _name(self, node: str) -> str:
        return self._names.get(node) or node.partition(".")[0]


class _Way:
    """`asked`, until it raises CommandsError: the rest would wait as long, each for itself."""

    def __init__(self, asked: Ask) -> None:
        self._asked, self._error = asked, ""

    def __call__(self, *commands: Sequence[str]) -> list[Done]:
        if self._error:
            raise CommandsError(self._error)
        try:
            return self._asked(commands)
        except CommandsError as error:
            self._error = str(error)
            raise


@contextlib.contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except slurm_breaker.UnknownError as error:
        raise BreakerError(one_line(str(error), 300)) from None


def _unknown(name: str) -> str:
    return f"Slurm does not know {name}: set gpuprov_scheduler_name to the name that Slurm has for it"


def _for_all(done: Done) -> bool:
    """Whether an update failed for a reason that no other node escapes."""
    return bool(done.error) and any(word in done.err for word in (*_DENIED, *_NO_CONTROLLER, _STRANGE))


def _scheduled(text: NodeText, running: Iterable[Job]) -> Scheduled:
    jobs = tuple(running)
    if text.busy and not jobs:  # PrivateData=jobs hides them from all but operators: busy all the same
        jobs = (_HIDDEN,)
    return Scheduled(
        text.name,
        text.state,
        text.reason,
        text.holder,
        text.takes_jobs,
        text.down,
        text.pools,
        jobs,
        lease=lease.read(text.comment),
    )


def _portions(nodes: Sequence[str]) -> list[Sequence[str]]:
    return [nodes[start : start + AT_ONCE] for start in range(0, len(nodes), AT_ONCE)]


def _line(done: Done) -> str:
    """Slurm's own words, and what to do where that is known."""
    if any(word in done.error for word in _DENIED):
        return f"{done.error}: who runs scontrol must be root, SlurmUser or an operator of Slurm"
    # scontrol's last words are then "Request aborted" alone.
    return next((one_line(line, 200) for line in done.err.splitlines() if _STRANGE in line), done.error)
