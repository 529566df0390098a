"""Slurm scheduler, using `scontrol` and `squeue` locally or on a host of the group `gpuprov_slurm`.

**Resuming.** A node that was up gets State=RESUME, and takes jobs again after any change of ours, including a
reboot. A node that slurmctld had set DOWN earlier (Not responding) must not become IDLE through gpuprov: its
reason is marked `(was DOWN)` for later runs, and it gets State=UNDRAIN, which keeps the base state; slurmctld
then returns it according to the site's ReturnToService. A node that a person set DOWN stays untouched.

**Races.** Slurm has no conditional update: if a person drains a node between our observation and our update,
our reason replaces theirs. Each update is read back, and a missing change is reported as a failure.

**Leases of watches** are stored in the comments of nodes. Observed with 24.11: a comment survives `scontrol
reconfigure` and restarts of slurmctld, also after a kill; `slurmctld -c` clears it along with every drain.
slurmctld saves its state a few seconds after a change, so a kill within these may undo the last one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from provision.fleet import GROUPS, Fleet, Kind
from provision.remote.schedulers import BreakerError, Holder, Job, Scheduled, lease, slurm_breaker, slurm_text
from provision.remote.schedulers.commands import Ask, Commands, CommandsError, Done
from provision.remote.schedulers.slurm_text import NodeText
from provision.text import one_line

AT_ONCE = 400  # nodes per query: about 600 KB of output
UPDATES = 50  # updates per round trip
_SQUEUE = ("squeue", "--noheader", "--states=RUNNING,SUSPENDED,COMPLETING,CONFIGURING,STOPPED")
_HIDDEN = Job("?")  # stands for jobs that Slurm counts but does not show
# Errors of Slurm's commands when they cannot reach slurmctld (src/common/slurm_errno.c).
_NO_CONTROLLER = ("Unable to contact slurm controller", "Zero Bytes were transmitted", "Socket timed out")
_DENIED = ("Access/permission denied", "Invalid user id")
_STRANGE = "not supported"  # an update that this Slurm release does not support


def _elsewhere(done: Done) -> bool:
    """Return whether another host may succeed: the commands are missing here, or cannot reach slurmctld."""
    return bool(done.problem) or (done.status != 0 and any(word in done.err for word in _NO_CONTROLLER))


class Slurm:
    """One Slurm cluster; `names` maps inventory names to Slurm's, and `ask` runs commands."""

    kind = "slurm"
    settle = 3.0  # longer than a watch takes between its observation and its update

    def __init__(self, fleet: Fleet, names: Mapping[str, str], ask: Ask | None = None) -> None:
        self._names = dict(names)
        self._ask: Ask = ask or Commands(fleet, GROUPS[Kind.SLURM], _elsewhere)

    def look(self, nodes: Sequence[str]) -> dict[str, Scheduled]:
        """Return the state of each node and the jobs on it."""
        states: dict[str, Scheduled] = {}
        query = _Way(lambda commands: self._asked(*commands))
        for batch in _portions(nodes):
            names = ",".join(dict.fromkeys(self._name(node) for node in batch))
            try:
                node_output, queue = query(
                    ["scontrol", "show", "node", names],
                    [*_SQUEUE, f"--nodelist={names}", f"--format={slurm_text.FORMAT}"],
                )
                parsed = slurm_text.nodes(node_output.out)
                if not parsed and node_output.error and "not found" not in node_output.error:
                    raise CommandsError(_line(node_output))
                missing = [name for name in names.split(",") if name not in parsed]
                if missing and queue.status:  # squeue rejects the whole list if one name is unknown
                    present = ",".join(parsed)
                    queue = (
                        self._asked([*_SQUEUE, f"--nodelist={present}", f"--format={slurm_text.FORMAT}"])[0]
                        if present
                        else Done(0)
                    )
                if queue.error:
                    raise CommandsError(_line(queue))
                running = slurm_text.jobs(queue.out, parsed)
            except (CommandsError, ValueError) as error:
                states |= {
                    node: Scheduled(self._name(node), error=one_line(str(error), 300)) for node in batch
                }
                continue
            for node in batch:
                name = self._name(node)
                node_text = parsed.get(name)
                states[node] = (
                    Scheduled(name, error=_unknown(name))
                    if node_text is None
                    else _scheduled(node_text, running.get(name, ()))
                )
        return states

    def drain(self, reasons: Mapping[str, str]) -> dict[str, str]:
        """Keep new jobs off these nodes; nodes that are held already stay unchanged."""
        texts, problems = self._known(list(reasons))
        todo = {
            node: slurm_text.reason_for(reasons[node], text)
            for node, text in texts.items()
            if text.holder is Holder.NOBODY
        }
        return problems | self._drained(todo)

    def mark(self, reasons: Mapping[str, str]) -> dict[str, str]:
        """Replace the reason of nodes that gpuprov holds."""
        texts, problems = self._known(list(reasons))
        for node, text in texts.items():
            if text.holder is not Holder.US:
                holder = f"somebody else holds it ({text.reason})" if text.holder is Holder.OTHERS else ""
                problems[node] = holder or f"gpuprov does not hold it ({text.state})"
        todo = {
            node: slurm_text.reason_for(reasons[node], text)
            for node, text in texts.items()
            if node not in problems
        }
        return problems | self._drained(todo)

    def resume(self, nodes: Sequence[str]) -> dict[str, str]:
        """Return nodes that gpuprov holds to their earlier state; other nodes stay unchanged."""
        texts, problems = self._known(nodes)
        todo = {node: slurm_text.put_back(text) for node, text in texts.items() if text.holder is Holder.US}
        refused = self._updated(todo)
        # Slurm's state afterwards decides: an update of several nodes may have been applied in part.
        again, errors = self._known(list(todo))
        problems |= errors
        for node, text in again.items():
            if text.holder is Holder.US:
                problems[node] = refused.get(node) or f"scontrol returned it, and Slurm says {text.state}"
        return problems

    def join(self, node: str, like: str, pools: Sequence[str]) -> str:  # noqa: ARG002 - there is one cluster
        """Put a node into partitions.
        `Nodes+=` needs a newer scontrol; an older one rejects it and gets the whole extended list."""
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
        """Write leases into the nodes' comments, after the site's own text."""
        texts, problems = self._known(list(leases))
        changed = {node for node, text in texts.items() if lease.read(text.comment) != before.get(node)}
        problems |= dict.fromkeys(changed, "another watch changed its lease just now")
        todo = {
            node: [f"Comment={lease.put(text.comment, leases[node])}"]
            for node, text in texts.items()
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

    # The breaker of drains for a fault: reservations, which the health program on each node reads too.

    def breaker(self) -> str | None:
        """Return why the breaker is open, or None; see the protocol Breaks."""
        with _told():
            why = slurm_breaker.opened(self._scontrol)
        return None if why is None else one_line(why, 300)

    def permit(self, node: str, share: float, least: int) -> str:
        texts, problems = self._known([node])
        if problems:
            raise BreakerError(problems[node])
        with _told():
            return one_line(slurm_breaker.permit(self._scontrol, texts[node].pools, share, least), 400)

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
        """Query nodes with scontrol; return node → parsed output, and node → error."""
        texts: dict[str, NodeText] = {}
        problems: dict[str, str] = {}
        query = _Way(lambda commands: self._asked(*commands))
        for batch in _portions(nodes):
            names = ",".join(dict.fromkeys(self._name(node) for node in batch))
            try:
                output = query(["scontrol", "show", "node", names])[0]
                parsed = slurm_text.nodes(output.out)
                if not parsed and output.error and "not found" not in output.error:
                    raise CommandsError(_line(output))
            except CommandsError as error:
                problems |= dict.fromkeys(batch, str(error))
                continue
            for node in batch:
                name = self._name(node)
                if name in parsed:
                    texts[node] = parsed[name]
                else:
                    problems[node] = _unknown(name)
        return texts, problems

    def _drained(self, reasons: Mapping[str, str]) -> dict[str, str]:
        """Drain nodes with these reasons and read them back; return node → error."""
        refused = self._updated({node: ["State=DRAIN", f"Reason={why}"] for node, why in reasons.items()})
        texts, problems = self._known(list(reasons))
        for node, text in texts.items():
            if text.holder is not Holder.US or text.why != reasons[node]:
                mismatch = f"scontrol drained it, and Slurm says {text.state} ({text.reason or 'no reason'})"
                problems[node] = refused.get(node) or mismatch
        return problems

    def _updated(self, changes: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Apply scontrol updates; return node → error.
        Nodes with the same update share one command; if that fails, each is updated alone."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for node, arguments in changes.items():
            groups.setdefault(tuple(arguments), []).append(node)
        together = [(batch, arguments) for arguments, nodes in groups.items() for batch in _portions(nodes)]
        problems: dict[str, str] = {}
        alone: list[tuple[Sequence[str], Sequence[str]]] = []
        for (batch, arguments), (why, for_all) in zip(together, self._updates(together), strict=True):
            if why and len(batch) > 1 and not for_all:
                alone += (([node], arguments) for node in batch)
            elif why:
                problems |= dict.fromkeys(batch, why)
        for ((node,), _words), (why, _for_all) in zip(alone, self._updates(alone), strict=True):
            if why:
                problems[node] = why
        return problems

    def _updates(self, changes: Sequence[tuple[Sequence[str], Sequence[str]]]) -> list[tuple[str, bool]]:
        """Run updates of groups of nodes; return (error or "", whether all nodes would fail so) for each.
        Many updates share one round trip, since comments differ from node to node."""
        results: list[tuple[str, bool]] = []
        for start in range(0, len(changes), UPDATES):
            batch = changes[start : start + UPDATES]
            names = [",".join(map(self._name, nodes)) for nodes, _ in batch]
            commands = [
                ["scontrol", "update", f"NodeName={name}", *arguments]
                for name, (_, arguments) in zip(names, batch, strict=True)
            ]
            try:
                done = self._asked(*commands)
            except CommandsError as error:
                return results + [(str(error), True)] * (len(changes) - len(results))
            results += [(_line(outcome) if outcome.error else "", _for_all(outcome)) for outcome in done]
        return results

    def _asked(self, *commands: Sequence[str]) -> list[Done]:
        """Run commands and return their outcomes; raise CommandsError if any did not finish."""
        done = self._ask(commands)
        broken = next((outcome for outcome in done if outcome.problem), None)
        if broken is not None or len(done) != len(commands):
            raise CommandsError(broken.problem if broken else "an answer is missing")
        return done

    def _name(self, node: str) -> str:
        return self._names.get(node) or node.partition(".")[0]


class _Way:
    """Runner of commands that fails at once after a CommandsError, as other calls would wait as long."""

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
    """Return whether an update failed for a reason that would affect every other node too."""
    return bool(done.error) and any(word in done.err for word in (*_DENIED, *_NO_CONTROLLER, _STRANGE))


def _scheduled(text: NodeText, running: Iterable[Job]) -> Scheduled:
    jobs = tuple(running)
    if text.busy and not jobs:  # PrivateData=jobs hides jobs from non-operators; the node is busy anyway
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
    """Return Slurm's error message, with advice if the cause is known."""
    if any(word in done.error for word in _DENIED):
        return f"{done.error}: who runs scontrol must be root, SlurmUser or an operator of Slurm"
    # In this case the last line of scontrol is only "Request aborted".
    return next((one_line(line, 200) for line in done.err.splitlines() if _STRANGE in line), done.error)
