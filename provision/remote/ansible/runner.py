"""Runner of playbooks that yields typed events; the only module that imports ansible_runner.

Code that may run in several threads imports ansible-runner as a whole (`import ansible_runner`), here and in
worker_runs.py: if its modules are imported alone, its plugins are not registered and none of them works.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TypedDict, Unpack

from provision.errors import GpuprovError
from provision.remote.ansible import accelerator, handover
from provision.remote.ansible.events import Event as Event
from provision.remote.ansible.events import Outcome as Outcome
from provision.remote.ansible.events import Tally
from provision.remote.ssh import known_hosts
from provision.secrets_mask import secrets_of


@contextlib.contextmanager
def handled(handler: Callable[[int, FrameType | None], None], signals: Collection[int]) -> Iterator[None]:
    """Handle these signals with `handler` in the `with` block.

    Python delivers signals to the main thread only, so nothing changes in any other thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


def heeded(*signals: int) -> list[int]:
    """Return the signals that are not ignored, so that nohup is respected."""
    return [number for number in signals if signal.getsignal(number) != signal.SIG_IGN]


def ended_as_interrupted() -> contextlib.AbstractContextManager[None]:
    """Treat termination as an interrupt: SIGTERM and SIGHUP raise KeyboardInterrupt in the block."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    return handled(interrupt, heeded(signal.SIGTERM, signal.SIGHUP))


class Interrupts:
    """Counter of stop requests by signals or by us: one ends Ansible cleanly, another kills it."""

    def __init__(self) -> None:
        self.count = 0

    def note(self) -> None:
        self.count += 1

    def noted(self) -> contextlib.AbstractContextManager[None]:
        """Count SIGINT, SIGTERM and SIGHUP in the `with` block."""
        return handled(
            lambda _number, _frame: self.note(), [signal.SIGINT, signal.SIGTERM, *heeded(signal.SIGHUP)]
        )


GRACE = 4.0  # seconds for Ansible to end its workers after a stop request, before it is killed
POLL = 0.5  # seconds between checks of the deadline while there is no output

_RUNNERS_OWN = (
    "ANSIBLE_CALLBACK_PLUGINS",
    "ANSIBLE_STDOUT_CALLBACK",
    "ANSIBLE_RETRY_FILES_ENABLED",
    "AWX_ISOLATED_DATA_DIR",
    "RUNNER_OMIT_EVENTS",
    "RUNNER_ONLY_FAILED_EVENTS",
)


Hosts = Mapping[str, Mapping[str, Any]]  # name → variables
OnEvent = Callable[[Event], None] | None


class PlayOptions(TypedDict, total=False):
    """Options of `run_playbook` that any place of execution accepts."""

    extra_vars: Mapping[str, Any] | None
    forks: int
    timeout: float | None
    check_mode: bool
    diff: bool
    verbosity: int
    tags: Collection[str]
    skip_tags: Collection[str]
    vault_password_files: Sequence[Path]
    secrets: Collection[str]
    interrupts: Interrupts | None


class Play(Protocol):
    """Function with the signature of `run_playbook`, for a local run or a worker."""

    def __call__(
        self, playbook: Path, hosts: Hosts, /, *, on_event: OnEvent = None, **options: Unpack[PlayOptions]
    ) -> dict[str, Outcome]: ...


def run_playbook(
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
    around: handover.Around | None = None,
) -> dict[str, Outcome]:
    """Run `playbook` on `hosts` (name → variables) and return one Outcome per host.

    Secrets among the variables reach the disk only in a 0700 folder that is removed. A host without events is
    `failed` ("nothing was run on it"). `on_event` is called in this thread. After `timeout` seconds Ansible
    is stopped, and unfinished hosts are failed. `diff`, `verbosity`: as Ansible's --diff and -v, with the
    additional output in events. `tags`, `skip_tags`: as Ansible's; without `tags` all tasks run. `secrets`:
    texts to mask, in addition to values of variables named like secrets. `around`: an inventory for
    templates; only `hosts` are played. `interrupts`: counted by a caller that runs several playbooks in
    threads; otherwise signals are counted here.

    Raises GpuprovError if the playbook could not run at all, and KeyboardInterrupt after Ansible was stopped
    by SIGINT, SIGTERM or SIGHUP.
    """
    if not hosts:
        return {}
    known = {"secret": list(secrets)}
    tally = Tally(
        {name: secrets_of(variables, extra_vars or {}, known) for name, variables in hosts.items()},
        diff=diff,
        verbosity=verbosity,
    )
    noted = interrupts or Interrupts()
    stop = Stop(time.monotonic() + timeout if timeout is not None else None, noted)

    def take(raw: Mapping[str, Any]) -> None:
        event = tally.take(raw)
        if event is not None and on_event is not None and stop.error is None:
            on_event(event)

    with contextlib.nullcontext() if interrupts else noted.noted():
        status = play(
            playbook,
            hosts,
            take,
            stop,
            extra_vars=extra_vars or {},
            forks=forks,
            check_mode=check_mode,
            diff=diff,
            verbosity=verbosity,
            tags=tags,
            skip_tags=skip_tags,
            vault_password_files=vault_password_files,
            around=around,
        )
    if stop.timed_out:
        return tally.outcomes(f"did not finish in {timeout:.0f} s")
    if not tally.play_started:
        reason = tally.last_words or f"ansible-playbook ended with status {status}"
        raise GpuprovError(
            f"Ansible could not run {playbook}: {reason}",
            "correct the cause, usually a variable in the inventory",
        )
    return tally.outcomes(f"Ansible ended early (status {status}): {tally.last_words or 'it said nothing'}")


def play(
    playbook: Path,
    hosts: Mapping[str, Mapping[str, Any]],
    take: Callable[[Mapping[str, Any]], None],
    stop: Stop,
    *,
    extra_vars: Mapping[str, Any],
    forks: int,
    check_mode: bool,
    diff: bool,
    verbosity: int,
    tags: Collection[str],
    skip_tags: Collection[str],
    vault_password_files: Sequence[Path],
    around: handover.Around | None = None,
) -> Any:
    """Run the playbook, passing each raw event to `take`; return Ansible's (unreliable) exit status.

    Raises the errors of `take`, and KeyboardInterrupt if `stop` was interrupted, once Ansible has ended."""
    import ansible_runner

    def handle(raw: Mapping[str, Any]) -> bool:
        stop.pid = stop.pid or raw.get("pid")
        try:
            take(raw)
        except BaseException as error:
            # Raised through ansible-runner, it would leave Ansible running.
            stop.error = stop.error or error
        return False  # no event file

    with handover.private_folder() as folder:
        arguments = ["--check"] * check_mode + ["--diff"] * diff
        if verbosity:
            arguments.append(f"-{'v' * verbosity}")
        if tags:
            arguments += ["--tags", ",".join(sorted(tags))]
        if skip_tags:
            arguments += ["--skip-tags", ",".join(sorted(skip_tags))]
        for file in vault_password_files:
            arguments += ["--vault-password-file", str(Path(file).absolute())]
        # Extra variables would override host variables.
        moved = {name: extra_vars[name] for name in known_hosts.VARIABLES if name in extra_vars}
        extra_vars = {name: value for name, value in extra_vars.items() if name not in moved}
        own = {name: {**variables, **moved} for name, variables in hosts.items()}
        hosts = known_hosts.for_ansible(own, handover.SSH_ARGS)
        inventory = handover.write_inventory(folder, hosts, around)
        if around:
            arguments += ["--limit", f"@{handover.write_limit(folder, hosts)}"]
        if extra_vars:
            handover.write_extra_vars(folder, extra_vars)
        environment = handover.environment(folder, forks) | accelerator.environment(extra_vars)
        config = ansible_runner.RunnerConfig(
            private_data_dir=str(folder),
            # Relative key files in an inventory are relative to gpuprov's working directory.
            project_dir=str(Path.cwd()),
            playbook=str(handover.write_playbook(folder, Path(playbook).absolute(), skip_tags)),
            inventory=str(inventory),
            cmdline=shlex.join(arguments) or None,
            envvars={
                **environment,
                "ANSIBLE_CALLBACK_PLUGINS": "",
                "ANSIBLE_STDOUT_CALLBACK": "",
                "AWX_LIB_DIRECTORY": "",
            },
            fact_cache_type="memory",
            forks=forks,
            quiet=True,
        )
        config.prepare()
        # ansible-runner copies all of os.environ into a file: keep only our variables and its own.
        kept = (*environment, *_RUNNERS_OWN)
        config.env = {name: value for name, value in config.env.items() if name in kept}
        config.command = [*handover.ANSIBLE, str(os.getpid()), *config.command]
        config.suppress_output_file = True
        config.pexpect_timeout = POLL
        # A pattern that always matches; otherwise ansible-runner keeps all output in memory, and checks
        # `cancel` only after a pause in the output.
        config.expect_passwords[re.compile(r"(?s).+")] = None
        runner = ansible_runner.Runner(config, event_handler=handle, cancel_callback=stop.cancel)
        runner.run()
        stop.end_strays()
    if stop.error is not None:
        raise stop.error
    if stop.interrupted:
        raise KeyboardInterrupt
    return runner.rc


class Stop:
    """The end of an Ansible run: a request first, so that Ansible ends its workers, then a kill."""

    def __init__(self, deadline: float | None, interrupts: Interrupts) -> None:
        self.pid: int | None = None
        self.error: BaseException | None = None
        self.timed_out = False
        self._deadline = deadline
        self._interrupts = interrupts
        self._kill_at: float | None = None
        self._seen: set[tuple[int, str]] = set()

    @property
    def interrupted(self) -> bool:
        """Return whether a stop was requested; Ansible has its own session, so Ctrl-C reaches only us."""
        return self._interrupts.count > 0

    def cancel(self) -> bool:
        """Return True to make ansible-runner kill Ansible; called by it continuously."""
        now = time.monotonic()
        if self._deadline is not None and now > self._deadline:
            self.timed_out = True
        if not (self.timed_out or self.interrupted or self.error is not None):
            return False
        if self._kill_at is None:
            if self.pid is None:
                return True
            self._kill_at = now + GRACE
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGINT)
        if self.pid is not None:
            self._seen.update(_descendants(self.pid))
        return now > self._kill_at or self._interrupts.count > 1  # a second Ctrl-C skips the grace period

    def end_strays(self) -> None:
        """Kill Ansible's leftover workers, which have their own sessions."""
        for pid, started in self._seen:
            with contextlib.suppress(OSError):
                if _stat(pid)[1] == started:
                    os.kill(pid, signal.SIGKILL)


def _stat(pid: int) -> tuple[int, str]:
    """Return (parent, start time) of a process; the start time detects a reused process id."""
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return int(fields[1]), fields[19]


def _descendants(root: int) -> Iterator[tuple[int, str]]:
    processes: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                processes[int(entry.name)] = _stat(int(entry.name))
    family = {root}
    # A parent may have a higher id: repeat until nothing is added.
    while grown := {pid for pid, (parent, _) in processes.items() if parent in family} - family:
        family |= grown
    for pid in family - {root}:
        yield pid, processes[pid][1]
