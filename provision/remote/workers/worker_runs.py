"""Playbooks on a worker: sends its nodes, and counts its events.

The stream is ansible-runner's (transmit, worker). Its Processor is not used: it writes files under names that
come from the worker, unpacks an archive from it, and waits for ever.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from provision import paths
from provision.errors import GpuprovError
from provision.remote.ansible.events import Event, Outcome, Tally
from provision.remote.ansible.runner import Interrupts
from provision.remote.protocol import NodeError, one_line
from provision.remote.workers import VARIABLE, Worker, worker_link
from provision.secrets_mask import secrets_of


def run_playbook(
    worker: Worker,
    playbook: Path,
    hosts: Mapping[str, Mapping[str, Any]],
    *,
    on_event: Callable[[Event], None] | None = None,
    extra_vars: Mapping[str, Any] | None = None,
    forks: int = 25,
    timeout: float | None = None,
    check_mode: bool = False,
    diff: bool = False,
    verbosity: int = 0,
    tags: Collection[str] = (),
    skip_tags: Collection[str] = (),
    vault_password_files: Sequence[Path] = (),
    secrets: Collection[str] = (),
    interrupts: Interrupts | None = None,
) -> dict[str, Outcome]:
    """`runner.run_playbook`, by `worker`. What it cannot do is told for its hosts, with its name: unreachable
    when nothing was begun, else failed; a host is `ok` only when the worker came to the end of it all."""
    known = {"secret": list(secrets)}
    tally = Tally(
        {name: secrets_of(variables, extra_vars or {}, known) for name, variables in hosts.items()},
        diff=diff,
        verbosity=verbosity,
    )
    stop = Stop(timeout, interrupts or Interrupts())
    said = {
        "playbook": _shipped(playbook),
        "inventory": hosts,
        "extravars": extra_vars or {},
        "forks": forks,
        "check_mode": check_mode,
        "diff": diff,
        "verbosity": verbosity,
        "tags": sorted(tags),
        "skip_tags": sorted(skip_tags),
        "vault_passwords": passwords(vault_password_files),
    }

    def take(raw: Mapping[str, Any]) -> None:
        try:
            event = tally.take(raw)
            if event is not None and on_event is not None and stop.error is None:
                on_event(event)
        except BaseException as error:
            stop.error = stop.error or error  # raised when the worker has ended its Ansible

    trouble, begun = through(worker, said, hosts, take, stop)
    if stop.error is not None:
        raise stop.error
    if stop.interrupted:
        raise KeyboardInterrupt
    if stop.timed_out:
        return tally.outcomes(f"did not finish in {timeout:.0f} s", whole=False)
    if trouble is not None:
        text = f"{trouble.what} → {next_step(trouble)}"
        if begun:
            return tally.outcomes(text, whole=False)
        return {name: Outcome(name, "unreachable", message=text) for name in hosts}
    if not tally.play_started:
        said_last = tally.last_words or "it gave no message"
        raise GpuprovError(
            f"worker {worker.name}: Ansible could not run {playbook}: {said_last}",
            "correct the cause, usually a variable in the inventory",
        )
    return tally.outcomes(
        f"worker {worker.name}: Ansible ended early: {tally.last_words or 'it said nothing'}"
    )


def next_step(trouble: NodeError) -> str:
    """What to do about a worker that was lost, and then; and what when it stays lost."""
    first = f"{trouble.fix}{' ' if trouble.fix.endswith('?') else ', '}then " if trouble.fix else ""
    again = "run again, up and validate with --resume"
    return f"{first}{again}; if it stays lost, name another in its nodes' {VARIABLE}"


class Stop:
    """Why a worker is to end before its time."""

    def __init__(self, timeout: float | None, interrupts: Interrupts) -> None:
        self.error: BaseException | None = None
        self.timed_out = False
        self._interrupts = interrupts
        self._deadline = None if timeout is None else time.monotonic() + timeout

    @property
    def interrupted(self) -> bool:
        return self._interrupts.count > 0

    def wanted(self) -> bool:
        if self._deadline is not None and time.monotonic() > self._deadline:
            self.timed_out = True
        return self.timed_out or self.interrupted or self.error is not None


def through(
    worker: Worker,
    said: Mapping[str, Any],
    hosts: Collection[str],
    take: Callable[[Mapping[str, Any]], None],
    stop: Stop,
) -> tuple[NodeError | None, bool]:
    """Send a worker its work, and `take` what it says: why it did not come to its end, and whether it had
    begun."""
    begun = False
    try:
        with worker_link.opened(worker, stop.wanted) as session:
            begun = True
            session.send(_transmitted(said))
            _follow(session, hosts, take)
    except NodeError as error:
        return error, begun
    return None, begun


def _follow(
    session: worker_link.Session, hosts: Collection[str], take: Callable[[Mapping[str, Any]], None]
) -> None:
    """Take a worker's events up to its end. Raises NodeError when one is missing, or it could not work."""
    count, status = 0, {}
    while "eof" not in (said := session.message(hosts)):
        if "status" in said:
            status = said
        else:
            count += 1
            take(said)
    if status.get("status") == "error":
        raise session.failed(one_line(str(status.get("job_explanation") or "it gave no reason"), 300))
    if status.get("gpuprov_events") != count:
        raise session.bad(f"{count} events arrived of {status.get('gpuprov_events')}")


def _transmitted(said: Mapping[str, Any]) -> bytes:
    """As `ansible-runner transmit` would send it. No files: it would collect them in a folder for all."""
    import ansible_runner

    stream = io.BytesIO()
    transmitter = ansible_runner.streaming.Transmitter(
        _output=stream, private_data_dir=".", only_transmit_kwargs=True, **said
    )
    transmitter.run()
    return stream.getvalue()


def _shipped(playbook: Path) -> str:
    """The name of one of our own playbooks, which the worker has as well."""
    file = Path(playbook).absolute()
    if file.parent != paths.PLAYBOOKS:
        raise GpuprovError(
            f"{playbook} is not a playbook of gpuprov, and workers have no others",
            "run it from the controller",
        )
    return file.name


def passwords(files: Iterable[Path]) -> list[str]:
    """What stands in these files. Raises GpuprovError for a program: it would have to run on the worker."""
    found = []
    for file in files:
        if os.access(file, os.X_OK):
            raise GpuprovError(
                f"{file}: a program cannot give a vault password to workers",
                "write the password into a file that is not executable, on a memory file system",
            )
        found.append(Path(file).read_text(encoding="utf-8"))
    return found
