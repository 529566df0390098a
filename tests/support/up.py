"""Stand-ins for tests of `up`: drifts, plans, a scripted executor.
Also a scripted fleet behind the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from provision import cli
from provision.desired import resolve
from provision.desired.compatibility import Refusal
from provision.desired.expectations import Expectation, roles_in_order
from provision.drift import assess
from provision.drift.assess import Assessment
from provision.drift.drifts import Drift
from provision.fleet import Fleet
from provision.remote.ansible import runner
from provision.remote.ansible.runner import Event, Outcome
from provision.remote.reach import fleet_lock
from provision.remote.reach.observe import Observation
from provision.up.execute import Execution, Look
from provision.up.options import UpOptions
from provision.up.plan import NodePlan, Plan
from provision.up.result import Result
from provision.up.waves import BATCH, CANARY, Wave
from tests.support.described import machine
from tests.support.locks import NodeLocks

SECRET = "corr3ct-h0rse"
NODES = ("gpu-01", "gpu-02", "gpu-03")
DEBIAN = machine(sku="h100-sxm")


def drift(
    node: str,
    role: str = "nccl",
    *,
    reboot: bool = False,
    unknown: bool = False,
    fact: str = "",
    found: str = "1.0",
) -> Drift:
    """Return a drift in the version of a package."""
    expectation = Expectation(role, fact or f"package.{role}.version", "equals", "2.0", "because", reboot)
    return Drift(node, expectation, found, unknown, "no such tool" if unknown else "")


def plan_of(drifts: Mapping[str, Sequence[Drift]] | str, wave_size: int = 100, canaries: int = 0) -> Plan:
    """Return a plan for these drifts; for `abc`, one drift on each of the nodes a, b and c."""
    if isinstance(drifts, str):
        drifts = {node: [drift(node)] for node in drifts}
    nodes = {}
    for node, found in drifts.items():
        roles = {each.expectation.role for each in found}
        ordered = tuple(role for role in roles_in_order() if role in roles)
        nodes[node] = NodePlan(node, ordered, tuple(found), any(d.expectation.reboot for d in found), 1.0)
    first, names = list(nodes)[:canaries], list(nodes)[canaries:]
    waves = [Wave(names[i : i + wave_size], BATCH) for i in range(0, len(names), wave_size)]
    return Plan(nodes, tuple([Wave(first, CANARY), *waves] if first else waves), {})


@dataclass
class ScriptedExecutor:
    """An executor with scripted results; each node uses up its looks in order and repeats the last."""

    looks: dict[str, list[Look]] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    reboots: dict[str, Outcome] = field(default_factory=dict)
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    on_apply: Callable[[], None] = lambda: None
    paused: list[float] = field(default_factory=list)
    undrainable: dict[str, str] = field(default_factory=dict)
    still_drained: dict[str, str] = field(default_factory=dict)
    sick: dict[str, str] = field(default_factory=dict)
    quiet: bool = True  # leaves hooks and gates out of `calls`

    def drain(self, wave: int, nodes: Wave) -> Mapping[str, str]:
        self._note("drain", wave, nodes)
        return {node: why for node, why in self.undrainable.items() if node in nodes}

    def undrain(self, wave: int, nodes: Wave) -> Mapping[str, str]:
        self._note("undrain", wave, nodes)
        return {node: why for node, why in self.still_drained.items() if node in nodes}

    def gate(self, nodes: Sequence[str]) -> Mapping[str, str]:
        self._note("gate", tuple(nodes))
        return {node: why for node, why in self.sick.items() if node in nodes}

    @property
    def order(self) -> str:
        return " ".join(call[0] for call in self.calls)

    def called(self, method: str) -> list[Any]:
        """Return the last argument of each call of `method`."""
        return [call[-1] for call in self.calls if call[0] == method]

    def _note(self, *call: Any) -> None:
        if not self.quiet:
            self.calls.append(call)

    def pause(self, seconds: float) -> None:
        self.paused.append(seconds)

    def look(self, nodes: Sequence[str]) -> Mapping[str, Look]:
        self.calls.append(("look", tuple(nodes)))
        answers = {}
        for node in nodes:
            script = self.looks.get(node, [Look(node)])
            answers[node] = script.pop(0) if len(script) > 1 else script[0]
        return answers

    def apply(self, roles: Mapping[str, tuple[str, ...]]) -> Mapping[str, Outcome]:
        self.calls.append(("apply", dict(roles)))
        self.on_apply()
        return {node: self.outcomes.get(node, Outcome(node, "ok", 1)) for node in roles}

    def reboot(self, nodes: Sequence[str]) -> Mapping[str, Outcome]:
        self.calls.append(("reboot", tuple(nodes)))
        return {node: self.reboots.get(node, Outcome(node, "ok", 1)) for node in nodes}


def execution(
    plan: Plan,
    executor: ScriptedExecutor,
    *,
    on_result: Callable[[Result], None] = lambda _result: None,
    halted: Callable[[], str] = lambda: "",
    say: Callable[[str], None] = lambda _text: None,
    **options: Any,
) -> Execution:
    return Execution(plan, executor, UpOptions(**options), on_result, halted, say=say, pause=executor.pause)


def carry_out(plan: Plan, executor: ScriptedExecutor, **options: Any) -> Execution:
    """Execute a plan; each node has exactly one result."""
    ended: list[Result] = []
    up = execution(plan, executor, on_result=ended.append, **options)
    up.run()
    assert ended == list(up.results.values())
    return up


@dataclass
class World:
    """A fleet as `up` observes it: a node lacks roles until they have run or it has rebooted."""

    inventory: Path
    capsys: pytest.CaptureFixture[str]
    missing: dict[str, list[Drift]] = field(default_factory=dict)
    errors: dict[str, tuple[str, bool]] = field(default_factory=dict)
    refused: dict[str, Refusal] = field(default_factory=dict)
    failing: dict[str, Outcome] = field(default_factory=dict)
    stubborn: set[str] = field(default_factory=set)
    played: list[tuple[str, dict[str, Any], bool]] = field(default_factory=list)
    observed: list[str] = field(default_factory=list)
    on_play: Callable[[], None] = lambda: None
    more: dict[str, Any] = field(default_factory=dict)  # added to each task's result
    asked: dict[str, Any] = field(default_factory=dict)  # the other options of the last playbook
    locks: NodeLocks = field(default_factory=NodeLocks)
    variables: dict[str, str] = field(default_factory=lambda: {"ansible_become_password": SECRET})

    def __post_init__(self) -> None:
        self.declare()

    def up(self, *arguments: str, canary: bool = False) -> int:
        """Run `gpuprov up`; its output is in `out` and `err`."""
        canaries = () if canary or "--resume" in arguments else ("--no-canary",)
        return self._main(str(self.inventory), *arguments, *canaries)

    def resume(self, *arguments: str) -> int:
        """Resume the last run."""
        return self._main("--resume", *arguments)

    def _main(self, *words: str) -> int:
        code = cli.main(["up", *words])
        self.out, self.err = self.capsys.readouterr()
        return code

    def declare(self, **variables: str) -> None:
        """Write the inventory."""
        self.variables |= variables
        self.inventory.write_text(
            json.dumps({"all": {"hosts": dict.fromkeys(NODES), "vars": self.variables}})
        )

    def lack(self, *nodes: str) -> None:
        """Make these nodes lack one role."""
        self.missing = {node: [drift(node)] for node in nodes}

    def fail(self, *nodes: str, message: str = "broken") -> None:
        """Make a role fail on these nodes from now on."""
        self.failing = {node: Outcome(node, "failed", 0, "nccl", "Install", message) for node in nodes}

    def stand_in(self, monkeypatch: pytest.MonkeyPatch, play: Callable[..., Any] | None = None) -> None:
        """Replace the observation of nodes, Ansible (by `play`, if given) and the nodes' locks."""
        monkeypatch.setattr(assess, "assess", self.assess)
        monkeypatch.setattr(assess, "look", self.look)
        monkeypatch.setattr(runner, "run_playbook", play or self.play)
        monkeypatch.setattr(fleet_lock, "run_programs", self.locks.programs)
        monkeypatch.setattr(fleet_lock, "RETRY", 0.0)

    def assess(self, fleet: Fleet, overrides: Mapping[str, Any], **options: Any) -> Assessment:
        declared = {name: {**node.variables, **overrides} for name, node in fleet.nodes.items()}
        views = resolve.views_of(fleet, declared)
        start = Assessment(fleet, overrides, declared, views, frozenset({SECRET}), {})
        return self.look(replace(start, remove=options.get("remove", ())), list(fleet.nodes))

    def look(self, known: Assessment, chosen: Collection[str], **_options: Any) -> Assessment:
        self.observed += chosen
        answers = {}
        for name in chosen:
            error, unreachable = self.errors.get(name, (None, False))
            answers[name] = Observation(name, {"os.id": "debian", "boot.id": "b1"}, {}, error, unreachable)
        alive = [name for name in chosen if name not in self.errors and name not in self.refused]
        return replace(
            known,
            observations=answers,
            described=dict.fromkeys(alive, DEBIAN),
            drifts={name: list(self.missing.get(name, ())) for name in alive},
            refused={name: [self.refused[name]] for name in chosen if name in self.refused},
        )

    def play(
        self,
        playbook: Path,
        hosts: Mapping[str, Mapping[str, Any]],
        *,
        on_event: Callable[[Event], None],
        check_mode: bool,
        **options: Any,
    ) -> dict[str, Outcome]:
        self.asked = options
        self.played.append((playbook.name, dict(hosts), check_mode))
        self.on_play()
        outcomes = {}
        for name, variables in hosts.items():
            roles = variables.get("gpuprov_remove") or variables.get("gpuprov_roles", ["reboot"])
            for role in roles:
                on_event(Event("started", name, role, "Install"))
                result = {"msg": f"password {SECRET}", **self.more}
                on_event(Event("changed", name, role, "Install", result))
            outcomes[name] = self.failing.get(name, Outcome(name, "ok", 1))
            if outcomes[name].status == "ok" and name not in self.stubborn and not check_mode:
                reboots = playbook.name == "reboot.yml"
                done = set(roles)
                self.missing[name] = [
                    each
                    for each in self.missing.get(name, ())
                    if (each.expectation.reboot and not reboots)
                    or (not each.expectation.reboot and each.expectation.role not in done)
                ]
        return outcomes
