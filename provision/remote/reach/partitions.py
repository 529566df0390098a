"""One playbook on many hosts, partitioned over several ansible-playbook processes.

One process runs about 150 tasks a second on any number of cores, and its cost per task grows with the number
of hosts. Playbooks with hosts that wait for each other (playbooks/launch.yml and the programs of a pair) are
not partitioned, as one host may finish before another starts. Workers play their own nodes (remote/workers).
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import queue
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from provision.errors import GpuprovError, UsageError
from provision.remote.ansible import runner
from provision.remote.ansible.events import Event, Outcome
from provision.remote.ansible.runner import Interrupts
from provision.remote.workers import mesh, split, worker_runs
from provision.remote.workers.mesh import Share

FEWEST = 50  # hosts that justify the start of one more ansible-playbook
_WAITING = 1000  # queued events; a slow consumer then slows Ansible down instead of filling the memory
_POLL = 1.0  # seconds between checks of a waiting thread

VARIABLE = "GPUPROV_PROCESSES"

Run = runner.Play  # runs a playbook in one place; None stands for runner.run_playbook on this machine


def worth(hosts: int, fewest: int) -> int:
    """Return the number of processes for this many hosts, at least 1.

    GPUPROV_PROCESSES sets it; otherwise there is one per available core, if each gets `fewest` hosts. Raises
    UsageError if that variable is not a number."""
    chosen = os.environ.get(VARIABLE)
    if chosen is None:
        return max(1, min(len(os.sched_getaffinity(0)), hosts // fewest))
    if not chosen.isdecimal() or not int(chosen):
        raise UsageError(f"{VARIABLE}={chosen}: not a number of processes", "give 1 or more, or unset it")
    return max(1, min(int(chosen), hosts))


def local_places(hosts: int) -> list[Run | None]:
    """Return the local places for `hosts`. Raises UsageError if GPUPROV_PROCESSES is not a number."""
    return [None] * worth(hosts, FEWEST)


def width(hosts: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the number of ansible-playbook processes that `run_sharded` starts, including the workers'."""
    local, links, _ = split(hosts)
    workers = {worker.name for link in links.values() for worker in link.workers}
    return (worth(len(local), FEWEST) if local else 0) + len(workers)


def run_sharded(
    playbook: Path,
    hosts: Mapping[str, Mapping[str, Any]],
    *,
    on_event: Callable[[Event], None] | None = None,
    places: Sequence[Run | None] | None = None,
    waiting: int = 0,
    **options: Unpack[runner.PlayOptions],
) -> dict[str, Outcome]:
    """Run a playbook at all `places` concurrently (default: local ones), dividing hosts and forks.

    Workers play their own hosts. If `waiting` is set, groups of that many consecutive hosts wait for each
    other: there is one local place, each worker has all the forks, and `in_batches` keeps groups together.
    `on_event` is called in this thread, in order for each host. A failure at one place is reported for its
    hosts only; GpuprovError is raised if every place failed. `timeout` is scaled for a place whose forks need
    more rounds. A signal, or an exception in `on_event`, stops every place.
    """
    local, links, away = split(hosts)
    shares, stranded = mesh.assigned(away, links) if away else ([], {})
    nobody = {name: worker_runs.unreachable(name, trouble) for name, trouble in stranded.items()}
    forks = options.setdefault("forks", 25)
    if not local and not shares:
        return nobody
    if not waiting or not shares:
        outcomes = _divided(
            playbook, local, shares, None if waiting else places, waiting, on_event, **options
        )
    else:
        outcomes = {}
        worker_of = {name: share.worker for share in shares for name in share.hosts}
        for names in in_batches(
            {name: worker_of.get(name, "") for name in hosts if name not in nobody}, forks, waiting
        ):
            batch = [
                replace(share, hosts={name: share.hosts[name] for name in share.hosts if name in names})
                for share in shares
                if not names.isdisjoint(share.hosts)
            ]
            mine = {name: local[name] for name in local if name in names}
            outcomes |= _divided(playbook, mine, batch, None, waiting, on_event, **options)
    outcomes |= nobody
    return {name: outcomes[name] for name in hosts if name in outcomes}


def _divided(
    playbook: Path,
    local: Mapping[str, Mapping[str, Any]],
    shares: Sequence[Share],
    places: Sequence[Run | None] | None,
    waiting: int,
    on_event: Callable[[Event], None] | None,
    **options: Unpack[runner.PlayOptions],
) -> dict[str, Outcome]:
    forks, timeout = options["forks"], options.get("timeout")
    available = [None] if waiting else local_places(len(local)) if places is None else places
    chosen = list(available)[: max(1, min(forks, len(local)))]
    if len(chosen) == 1 and not shares:
        run = chosen[0] or runner.run_playbook
        return run(playbook, local, on_event=on_event, **options)
    dealt: list[tuple[Run | None, Mapping[str, Mapping[str, Any]]]] = []
    if local:
        dealt += zip(chosen, partition(local, len(chosen)), strict=True)
    dealt += [(functools.partial(worker_runs.run_playbook, share), share.hosts) for share in shares]
    work = _Work(playbook, options, on_event)
    rounds = math.ceil(sum(len(part) for _, part in dealt) / forks)
    widths = [forks] * len(dealt) if waiting else _forks(forks, [part for _, part in dealt])
    for (place, part), width in zip(dealt, widths, strict=True):
        longer = max(1.0, math.ceil(len(part) / width) / rounds)
        work.begin(place, part, width, timeout and timeout * longer)
    return work.finish()


def partition(hosts: Mapping[str, Mapping[str, Any]], places: int) -> list[dict[str, Mapping[str, Any]]]:
    """Deal hosts to places in turn, since neighbours in an inventory are alike and take equally long."""
    return [{name: hosts[name] for name in list(hosts)[place::places]} for place in range(places)]


def in_batches(places: Mapping[str, str], forks: int, together: int) -> list[set[str]]:
    """Split hosts (each with its place: a worker, or "" for local) into batches to play in sequence.

    A batch has at most `forks` hosts per place and keeps each `together` consecutive hosts together.
    Otherwise one host could wait for its turn at its worker until its partner at another worker times out."""
    names = list(places)
    batches: list[set[str]] = [set()]
    busy: Counter[str] = Counter()
    for start in range(0, len(names), together):
        group = names[start : start + together]
        more = Counter(places[name] for name in group)
        if batches[-1] and any(busy[place] + count > forks for place, count in more.items()):
            batches.append(set())
            busy.clear()
        busy += more
        batches[-1].update(group)
    return batches


def _forks(forks: int, dealt: Sequence[Mapping[str, Any]]) -> list[int]:
    """Divide `forks` in proportion to the hosts, without remainder and with at least one each."""
    total, before, widths = sum(map(len, dealt)), 0, []
    for part in dealt:
        after = before + len(part)
        widths.append(max(1, forks * after // total - forks * before // total))
        before = after
    return widths


@dataclass(frozen=True)
class _Ended:
    """The result of one place: outcomes or an error."""

    hosts: Mapping[str, Any]
    outcomes: Mapping[str, Outcome] | None = None
    error: BaseException | None = None

    def told(self) -> Mapping[str, Outcome]:
        if self.outcomes is not None:
            return self.outcomes
        what = self.error.what if isinstance(self.error, GpuprovError) else str(self.error)
        return {name: Outcome(name, "failed", message=what) for name in self.hosts}


class _Work:
    """Places at work in one thread each; their events are handled in the thread that calls `finish`."""

    def __init__(
        self, playbook: Path, options: runner.PlayOptions, on_event: Callable[[Event], None] | None
    ) -> None:
        self._playbook = playbook
        self._interrupts = Interrupts()
        self._options: runner.PlayOptions = {**options, "interrupts": self._interrupts}
        self._on_event = on_event
        self._said: queue.Queue[Event | _Ended] = queue.Queue(_WAITING)
        self._waiting: list[threading.Thread] = []

    def begin(
        self, place: Run | None, hosts: Mapping[str, Mapping[str, Any]], forks: int, timeout: float | None
    ) -> None:
        """Prepare `place` to play on these hosts once `finish` is called."""
        # The thread that starts Ansible must outlive it: the kernel ends Ansible with the thread
        # (handover.py).
        thread = threading.Thread(
            target=self._play, args=(place, hosts, forks, timeout), name="shard", daemon=True
        )
        self._waiting.append(thread)

    def _play(
        self, place: Run | None, hosts: Mapping[str, Mapping[str, Any]], forks: int, timeout: float | None
    ) -> None:
        run = place or runner.run_playbook
        hear = self._said.put if self._on_event is not None else None
        try:
            options: runner.PlayOptions = {**self._options, "forks": forks, "timeout": timeout}
            outcomes = run(self._playbook, hosts, on_event=hear, **options)
        except BaseException as error:  # re-raised in the waiting thread
            self._said.put(_Ended(hosts, error=error))
        else:
            self._said.put(_Ended(hosts, outcomes))

    def finish(self) -> dict[str, Outcome]:
        """Start all places, handle events, and wait until Ansible has ended everywhere, even on errors."""
        ended: list[_Ended] = []
        mistake: BaseException | None = None
        with self._interrupts.noted():
            for thread in self._waiting:
                thread.start()
            while len(ended) < len(self._waiting):
                with contextlib.suppress(queue.Empty):
                    message = self._said.get(timeout=_POLL)
                    if isinstance(message, _Ended):
                        ended.append(message)
                        wrong = None if isinstance(message.error, GpuprovError) else message.error
                    else:
                        wrong = self._heard(message) if mistake is None else None
                    if wrong is not None and mistake is None:
                        mistake = wrong
                        # An interrupted place has counted it; a second interrupt would kill the other places
                        # at once.
                        self._interrupts.count = max(1, self._interrupts.count)
        if mistake is not None:
            raise mistake
        if self._interrupts.count:
            raise KeyboardInterrupt
        failed = [one.error for one in ended if one.error is not None]
        if len(failed) == len(ended):
            raise failed[0]
        return {name: outcome for one in ended for name, outcome in one.told().items()}

    def _heard(self, event: Event) -> BaseException | None:
        """Call `on_event`; return its exception, which would leave Ansible running if raised here."""
        try:
            if self._on_event is not None:
                self._on_event(event)
        except BaseException as error:
            return error
        return None
