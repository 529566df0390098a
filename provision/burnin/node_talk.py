"""Calls to the burn-in program of many nodes, through playbooks/burnin.yml; its answers are untrusted."""

from __future__ import annotations

import base64
import json
import math
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provision import paths
from provision.errors import GpuprovError
from provision.remote.ansible import partitions, runner
from provision.text import one_line

PLAYBOOK = paths.PLAYBOOKS / "burnin.yml"
LIMIT = 4 * 1024 * 1024  # bytes of files that one answer brings
_TASK = 120  # seconds for a node to answer one word; stopping ends hung programs first
_SETUP = 60.0  # seconds for the connection, beyond that


@dataclass(frozen=True)
class Answer:
    """What one node said. `error`: why it said nothing that can be used. `at`: seconds since the epoch when
    it was heard here; `now`, `up`, `boot`: the node's own clocks and boot when it spoke."""

    node: str
    said: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    unreachable: bool = False
    at: float = 0.0
    now: float = 0.0
    up: float = 0.0
    boot: str = ""

    @property
    def campaign(self) -> str:
        return one_line(str(self.said.get("campaign") or ""), 100)

    def true(self, key: str) -> bool:
        return self.said.get(key) is True


def packed(text: str) -> str:
    """A text as the module takes it: no word of it is a template of Ansible's."""
    return base64.b64encode(zlib.compress(text.encode("utf-8", "replace"), 9)).decode()


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
    """Ask all of `nodes` (name → variables) at once. `each`: node → parameters of its own, `shared`: those of
    all, by the module's names. One Answer per node; `heard` is called with each as it comes."""
    found: dict[str, Answer] = {}

    def keep(answer: Answer) -> None:
        found[answer.node] = answer
        if heard is not None:
            heard(answer)

    def on_event(event: runner.Event) -> None:
        if event.kind in ("ok", "changed") and isinstance(said := event.result.get("gpuprov"), Mapping):
            keep(_understood(event.node, said))

    common = {
        "gpuprov_burnin_state": state,
        "gpuprov_burnin_campaign": campaign,
        "gpuprov_burnin_limit": LIMIT,
        "gpuprov_task_timeout": _TASK,
        **_named(shared or {}),
    }
    hosts = {name: {**variables, **_named((each or {}).get(name, {}))} for name, variables in nodes.items()}
    outcomes: Mapping[str, runner.Outcome] = {}
    trouble = ""
    try:
        outcomes = partitions.run_sharded(
            PLAYBOOK,
            hosts,
            on_event=on_event,
            extra_vars=common,
            forks=forks,
            places=[None],
            timeout=math.ceil(len(hosts) / forks) * (_TASK + _SETUP) + _SETUP,
            vault_password_files=vault_password_files,
        )
    except GpuprovError as error:
        trouble = error.what
    for name in nodes:
        if name not in found:
            outcome = outcomes.get(name)
            why = trouble or (outcome.message if outcome else "") or "nothing was run on it"
            unreachable = outcome is not None and outcome.status == "unreachable"
            keep(Answer(name, error=one_line(why, 300), unreachable=unreachable, at=time.time()))
    return found


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
    """How far each file is known already, as the module takes it."""
    return packed(json.dumps(dict(known)))
