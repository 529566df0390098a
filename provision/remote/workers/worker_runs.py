"""Playbooks on workers: sends them their nodes and counts their events.

The stream is that of ansible-runner (transmit, worker). Its Processor is not used, because it writes files
under names that come from the worker, unpacks an archive from it, and has no timeout.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from provision import paths
from provision.errors import GpuprovError
from provision.remote import held_locks
from provision.remote.ansible.events import Event, Outcome, Tally
from provision.remote.ansible.runner import Interrupts, OnEvent, PlayOptions
from provision.remote.protocol import NodeError
from provision.remote.workers import causes, mesh, units
from provision.remote.workers.mesh import Left, Share
from provision.remote.workers.units import End, Job
from provision.secrets_mask import secrets_of

_LONGEST = 24 * 3600.0  # timeout in seconds of a playbook without a limit
_AFTER = 60.0  # seconds of a unit beyond the limit here, since the controller normally ends it


def run_playbook(
    share: Share,
    playbook: Path,
    hosts: Mapping[str, Mapping[str, Any]],
    *,
    on_event: OnEvent = None,
    **options: Unpack[PlayOptions],
) -> dict[str, Outcome]:
    """Run `runner.run_playbook` on this share's worker, or on another of its workers if it does not start.
    If a worker is lost midway, its `hosts` become `unreachable`, with its name, and must be checked. A host
    is `ok` only if its worker finished completely. `hosts` belong to the share."""
    name = _shipped(playbook)
    diff, verbosity = options.get("diff", False), options.get("verbosity", 0)
    extra_vars = options.get("extra_vars") or {}
    about = {
        "playbook": name,
        "extravars": extra_vars,
        "forks": options.get("forks", 25),
        "check_mode": options.get("check_mode", False),
        "diff": diff,
        "verbosity": verbosity,
        "tags": sorted(options.get("tags", ())),
        "skip_tags": sorted(options.get("skip_tags", ())),
        "vault_passwords": passwords(options.get("vault_password_files", ())),
    }
    known = {"secret": list(options.get("secrets", ()))}
    stop = Stop(options.get("timeout"), options.get("interrupts") or Interrupts())
    outcomes: dict[str, Outcome] = {}
    refused: list[GpuprovError] = []
    lock = threading.Lock()

    def work(share: Share) -> Left:
        tally = Tally(
            {name: secrets_of(variables, extra_vars, known) for name, variables in share.hosts.items()},
            diff=diff,
            verbosity=verbosity,
        )

        def take(raw: Mapping[str, Any]) -> None:
            try:
                event = tally.take(raw)
                if event is not None and on_event is not None and stop.error is None:
                    on_event(event)
            except BaseException as error:
                stop.error = stop.error or error  # raised once the worker has ended its Ansible

        def say(line: str) -> None:
            if on_event is not None and stop.error is None:
                on_event(Event("said", "", "", "", {"detail": line}))

        locks = held_locks.of(share.hosts)
        payload = transmitted({**about, "inventory": share.hosts, "locks": locks})
        job = Job(name, payload, share.hosts, (stop.left() or _LONGEST) + _AFTER, share.alone, say)
        ended = units.carry(share.way, job, take, stop.wanted)
        try:
            finished, left = _outcomes(share, tally, ended, stop, playbook)
        except GpuprovError as error:
            refused.append(error)
            finished, left = {name: Outcome(name, "failed", message=error.what) for name in share.hosts}, {}
        with lock:
            outcomes.update(finished)
        return left

    for node, trouble in mesh.worked([share], work).items():
        outcomes[node] = unreachable(node, trouble)
    if stop.error is not None:
        raise stop.error
    if stop.interrupted:
        raise KeyboardInterrupt
    if refused and len(outcomes) == len(hosts) and all(one.status == "failed" for one in outcomes.values()):
        raise refused[0]
    return outcomes


def unreachable(node: str, trouble: NodeError) -> Outcome:
    """Return the outcome of a node when none of its workers is usable."""
    return Outcome(node, "unreachable", message=f"{trouble.what} → {causes.next_step(trouble)}")


def _outcomes(
    share: Share, tally: Tally, ended: units.Ended, stop: Stop, playbook: Path
) -> tuple[dict[str, Outcome], Left]:
    """Return the outcomes of a share's hosts, or the hosts that are left to other workers.
    Raises GpuprovError if Ansible could not run the playbook at all."""
    if stop.error is not None or stop.interrupted:
        return {}, {}
    if stop.timed_out:
        return tally.outcomes(f"did not finish in {stop.seconds:.0f} s", whole=False), {}
    trouble = ended.error
    if ended.end is End.NOT_BEGUN and trouble is not None:
        return {}, dict.fromkeys(share.hosts, trouble)
    if trouble is not None:
        share.mesh.avoid(share.worker)
        silent = trouble.kind in ("cut", "hung", "unreachable")
        some = tally.outcomes(f"{trouble.what} → {causes.next_step(trouble)}", whole=False, lost=silent)
        if ended.end is End.LOST:  # otherwise it may still be working
            some = {name: replace(one, lost=one.status == "unreachable") for name, one in some.items()}
        return some, {}
    if not tally.play_started:
        raise GpuprovError(
            f"worker {share.worker}: Ansible could not run {playbook}: "
            f"{tally.last_words or 'it gave no message'}",
            "correct the cause, usually a variable in the inventory",
        )
    return tally.outcomes(
        f"worker {share.worker}: Ansible ended early: {tally.last_words or 'it said nothing'}"
    ), {}


class Stop:
    """Stop condition of a worker: a timeout, an interrupt or an error."""

    def __init__(self, seconds: float | None, interrupts: Interrupts) -> None:
        self.seconds = seconds or 0.0
        self.error: BaseException | None = None
        self.timed_out = False
        self._interrupts = interrupts
        self._deadline = None if seconds is None else time.monotonic() + seconds

    @property
    def interrupted(self) -> bool:
        return self._interrupts.count > 0

    def left(self) -> float | None:
        """Return the remaining seconds; None without a limit."""
        return None if self._deadline is None else max(1.0, self._deadline - time.monotonic())

    def wanted(self) -> bool:
        if self._deadline is not None and time.monotonic() > self._deadline:
            self.timed_out = True
        return self.timed_out or self.interrupted or self.error is not None


def transmitted(said: Mapping[str, Any]) -> bytes:
    """Serialise as `ansible-runner transmit` does, without files.
    (Its Transmitter collects files in a folder, and importing it takes longer than writing these two
    lines.)"""
    return b"".join(json.dumps(line).encode() + b"\n" for line in ({"kwargs": said}, {"eof": True}))


def _shipped(playbook: Path) -> str:
    """Return the name of a playbook shipped with gpuprov, which the worker has too."""
    file = Path(playbook).absolute()
    if file.parent != paths.PLAYBOOKS:
        raise GpuprovError(
            f"{playbook} is not a playbook of gpuprov, and workers have no others",
            "run it from the controller",
        )
    return file.name


def passwords(files: Iterable[Path]) -> list[str]:
    """Read vault passwords from files; raise GpuprovError for a program, which workers cannot run."""
    contents = []
    for file in files:
        if os.access(file, os.X_OK):
            raise GpuprovError(
                f"{file}: a program cannot give a vault password to workers",
                "write the password into a file that is not executable, on a memory file system",
            )
        contents.append(Path(file).read_text(encoding="utf-8"))
    return contents
