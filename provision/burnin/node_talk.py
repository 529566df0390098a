"""Calls to the burn-in program of many nodes, through playbooks/burnin.yml. Answers are untrusted."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provision import paths
from provision.burnin.timeline import SERIOUS
from provision.checks.kernel import kernel_incidents
from provision.remote.protocol import state_word
from provision.text import one_line
from provision.validate.plays import node_commands

PLAYBOOK = paths.PLAYBOOKS / "burnin.yml"
LIMIT = 4 * 1024 * 1024  # bytes of files in one answer
_TASK = 120  # seconds for a node to answer one command; stopping first ends hung programs
_FIX = "is it powered on, and are address, port, login and network right?"
_SETUP = 60.0  # seconds for the connection, in addition


@dataclass(frozen=True)
class Answer:
    """Answer of one node; `error`: why there is no usable one.

    `at`: its arrival here, seconds since the epoch; `now`, `up`, `boot`: the node's clocks and boot then."""

    node: str
    said: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    unreachable: bool = False
    at: float = 0.0
    now: float = 0.0
    up: float = 0.0
    boot: str = ""

    @property
    def trouble(self) -> str:
        """`unreachable: cause → next step`, or `unreadable: …`; empty if the node answered."""
        if not self.error:
            return ""
        fix = _FIX if self.unreachable else "log in and check sudo and python3"
        return f"{state_word(self.unreachable)}: {self.error} → {fix}"

    @property
    def campaign(self) -> str:
        return one_line(str(self.said.get("campaign") or ""), 100)

    def true(self, key: str) -> bool:
        return self.said.get(key) is True


def ask(
    state: str,
    campaign: str,
    nodes: Mapping[str, Mapping[str, Any]],
    *,
    each: Mapping[str, Mapping[str, str]] | None = None,
    shared: Mapping[str, str] | None = None,
    forks: int = 50,
    vault_password_files: Sequence[Path] = (),
    heard: Callable[[Answer], None] | None = None,
) -> dict[str, Answer]:
    """Send a command to all `nodes` (name → variables) at once, and return one Answer per node.

    `each`: node → its parameters; `shared`: common ones, by the module's names; `heard` gets each answer."""
    answers: dict[str, Answer] = {}

    def keep(answer: Answer) -> None:
        answers[answer.node] = answer
        if heard is not None:
            heard(answer)

    common = {
        "gpuprov_burnin_state": state,
        "gpuprov_burnin_campaign": campaign,
        "gpuprov_burnin_limit": LIMIT,
        "gpuprov_task_timeout": _TASK,
        **_named(shared or {}),
    }
    hosts = {name: {**variables, **_named((each or {}).get(name, {}))} for name, variables in nodes.items()}
    silent = node_commands.play(
        PLAYBOOK,
        hosts,
        lambda node, said: keep(_understood(node, said)),
        extra_vars=common,
        forks=forks,
        places=[None],
        timeout=math.ceil(len(hosts) / forks) * (_TASK + _SETUP) + _SETUP,
        vault_password_files=vault_password_files,
    )
    for name, outcome in silent.items():
        why = one_line(outcome.message or "nothing was run on it", 300)
        keep(Answer(name, error=why, unreachable=outcome.status == "unreachable", at=time.time()))
    return answers


def _named(parameters: Mapping[str, str]) -> dict[str, str]:
    return {f"gpuprov_burnin_{name}": value for name, value in parameters.items()}


def _understood(node: str, said: Mapping[str, Any]) -> Answer:
    at = time.time()
    now, up = _number(said.get("now")), _number(said.get("up"))
    if now is None or up is None or not isinstance(said.get("boot"), str):
        return Answer(node, error="its answer was not understood: it has no time", at=at)
    return Answer(node, said, at=at, now=now, up=up, boot=str(said["boot"])[:64])


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e11 else None


def offsets(known: Mapping[str, int]) -> str:
    """Return how much of each file is here, in the module's format."""
    return node_commands.packed(json.dumps(dict(known)))


# --- the progress of each node, from its answer


@dataclass(frozen=True)
class Status:
    """State of one node."""

    node: str
    words: str  # for people
    alive: bool = False
    over: bool = False  # nothing more will come
    done: bool = False  # it finished by itself
    bad: bool = False  # something failed on it
    holding: str = ""  # segment between nodes in which it waits
    error: str = ""

    def record(self) -> dict[str, Any]:
        """Return the state for JSON."""
        return {
            "node": self.node,
            "status": self.words,
            "burning": self.alive and not self.over,
            "over": self.over,
            "trouble": self.bad,
            "error": self.error or None,
        }


def status(answer: Answer, campaign: str, refused: str = "") -> Status:
    """Return the state of a burn-in according to one answer."""
    if answer.error:
        return Status(answer.node, answer.trouble, error=answer.error)
    if answer.campaign != campaign:
        has = f"has the burn-in {answer.campaign}" if answer.campaign else "has no burn-in"
        words = f"{has}; it was not started: {refused}" if refused else has
        return Status(answer.node, words, over=True, bad=True, error=words)
    reported = answer.said
    alive, finished = answer.true("alive"), answer.true("finished")
    events = [event for event in reported.get("events") or () if isinstance(event, Mapping)]
    last: Mapping[str, Any] = events[-1] if events else {}
    serious = [event for event in events if _is_serious(event)]
    state = _mapping(reported.get("state"))
    words = _where(state, reported, alive=alive, finished=finished)
    if serious:
        words += f"; {one_line(str(serious[-1].get('event')), 30)}"
    elif not alive and not finished:
        words += f"; last: {one_line(str(last.get('event') or 'nothing'), 30)}"
    return Status(
        answer.node,
        words,
        alive=alive,
        over=finished or not alive,
        done=finished,
        bad=bool(serious) or (not alive and not finished),
        holding=one_line(str(reported.get("holding") or ""), 64),
    )


def _is_serious(event: Mapping[str, Any]) -> bool:
    name, line = str(event.get("event")), str(event.get("line"))[:300]
    return name in SERIOUS or (name == "kernel" and kernel_incidents.breaks_a_gpu(line))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _where(state: Mapping[str, Any], said: Mapping[str, Any], *, alive: bool, finished: bool) -> str:
    """Return the current position: `day_one, round 3, gpu_burn`."""
    if finished:
        how = one_line(str(state.get("finished") or "done"), 20)
        return "done" if how == "done" else f"ended ({how})"
    names = _mapping(said.get("order")).get("segments")
    number = state.get("segment")
    position = "waiting"
    if isinstance(names, list) and type(number) is int and 0 <= number < len(names):
        position = f"{one_line(str(names[number]), 64)} ({number + 1} of {len(names)})"
        doing, run = _mapping(state.get("doing")), _mapping(state.get("doing")).get("round")
        if doing:
            number = run + 1 if isinstance(run, int) else 1
            position += f", {one_line(str(doing.get('check')), 64)}, run {number}"
        if state.get("begun") is False:
            position = f"waits for {position}"
    return position if alive else f"not running, stopped in {position}"
