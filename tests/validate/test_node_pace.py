"""Each node runs its checks at its own pace: real programs, run by the real Ansible over a real sshd.
Only facts and locks of the nodes are replaced."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gpuprov
from provision import paths
from provision.checks.check import CheckNode, Command
from provision.checks.judge import Finding, Verdict
from provision.checks.judging.registry import CHECKS
from provision.checks.judging.table import Entry
from provision.fleet import Fleet
from provision.remote.ansible import runner
from provision.runs import store
from provision.runs.store import RunFolder
from provision.validate.plays import node_commands
from tests.support.machines import Machines, replaced
from tests.support.sshd import Sshd

FIRST, SECOND, THIRD = ASKED = ("pace_1", "pace_2", "pace_3")
ENDS_MODULE = "kill -9 $PPID"
WORDS = {"measured before": "before", "not run, the node stopped answering": "not run"}
# Kills only the sshd process of this session.
ENDS_CONNECTION = """\
pid=$PPID
until grep -qs '^sshd' /proc/$pid/comm; do pid=$(awk '{print $4}' /proc/$pid/stat); done
kill -9 $pid"""


class Sites(Machines):
    """Nodes behind one sshd that run the shell lines in `programs`, keyed by (node, check)."""

    run_playbook = staticmethod(runner.run_playbook)  # type: ignore[assignment]

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.programs: dict[tuple[str, str], str] = {}
        self.events: list[gpuprov.Event] = []
        self.interrupted_at: gpuprov.Event | None = None
        self.fleet: dict[str, Any] = {}

    def check(self, name: str) -> Entry:
        def commands(node: CheckNode, _options: Any) -> list[Command]:
            note = f"note() {{ echo {node.name} $1 {name} $(date +%s.%N) >> log; }}"
            line = self.programs.get((node.name, name), "true")
            script = f"{note}\nnote began\n{line}\nnote ended"
            return [Command(name, ("sh", "-c", script), 60.0, cwd=str(self.folder))]

        one = SimpleNamespace(
            SUMMARY="its pace",
            NEEDS=(),
            commands=commands,
            parse=lambda _node, _outputs: [],
            judge=lambda _node, _measured, _limits: [Finding(name, Verdict.PASS, "node", "it ran")],
        )
        return Entry(name, "node", "standard", own=one)

    def validate(self, **more: Any) -> gpuprov.ValidateResult:
        loaded = gpuprov.LoadedFleet(Fleet(self.folder / "i.yml", self.fleet, {}), {})
        campaign = gpuprov.Campaign(checks=ASKED, formats="json", **more)
        return gpuprov.validate(loaded, campaign, self.hear)

    def hear(self, event: gpuprov.Event) -> None:
        self.events.append(event)
        if event == self.interrupted_at:
            raise KeyboardInterrupt

    def told(self, node: str) -> list[tuple[str, str]]:
        """Return a node's events in order, without verdicts, since those depend on the local kernel log."""
        return [
            ("began", event.check)
            if isinstance(event, gpuprov.CheckBegan)
            else ((event.note and (WORDS.get(event.note) or "failed")) or "ended", event.check)
            for event in self.events
            if isinstance(event, gpuprov.CheckBegan | gpuprov.CheckEnded) and event.node == node
        ]

    def ran(self) -> list[tuple[str, str, str, float]]:
        """Return (node, began or ended, check, time) as logged by the programs."""
        rows = [line.split() for line in (self.folder / "log").read_text().splitlines()]
        return sorted(((*row[:3], float(row[3])) for row in rows), key=lambda row: row[3])  # type: ignore[misc]


@pytest.fixture
def sites(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own_sshd: Sshd) -> Sites:
    found = replaced(Sites(tmp_path), monkeypatch, tmp_path)
    for name in ASKED:
        monkeypatch.setitem(CHECKS.own, name, found.check(name))
    for name in ("gpu-01", "gpu-02", "gpu-03"):
        found.add(name)
        apart = "-o ControlMaster=no"  # same address and user: they would share a connection
        found.fleet[name] = own_sshd.node(name, ansible_become=False, ansible_ssh_args=apart)
    return found


def through(*words: str) -> list[tuple[str, str]]:
    """Return a node's events when each check begins and ends with the given outcome."""
    return [
        event
        for outcome, check in zip(words, ASKED, strict=False)
        for event in (("began", check), (outcome, check))
    ]


def errors(result: gpuprov.ValidateResult, node: str) -> list[str]:
    """Return the errors of a node's unanswered checks."""
    raws = [store.read_raw(RunFolder.open(result.folder), node, check) for check in ASKED]
    return [raw.error for raw in raws if raw is not None and raw.error]


def test_a_slow_node_holds_no_other_and_each_ones_events_are_in_order(sites: Sites) -> None:
    sites.programs["gpu-02", FIRST] = "sleep 12"
    result = sites.validate()
    for name in sites.fleet:
        assert errors(result, name) == []
        assert sites.told(name) == through("ended", "ended", "ended"), name
    ended = {row[:3]: row[3] for row in sites.ran()}
    for name in ("gpu-01", "gpu-03"):
        assert ended[name, "ended", THIRD] < ended["gpu-02", "ended", FIRST], name


def test_a_node_that_fails_or_is_lost_in_the_middle_costs_no_other_anything(sites: Sites) -> None:
    """A killed module gives no answer and the node continues; a lost connection ends the node's run."""
    sites.programs["gpu-01", SECOND] = ENDS_MODULE
    sites.programs["gpu-02", SECOND] = ENDS_CONNECTION
    result = sites.validate()
    assert sites.told("gpu-01") == through("ended", "failed", "ended")
    assert sites.told("gpu-02") == [*through("ended", "failed"), ("not run", THIRD)]
    assert sites.told("gpu-03") == through("ended", "ended", "ended")
    assert [node.unreachable for node in result.health.nodes] == [False, True, False]
    assert ("gpu-02", "began", THIRD) not in [row[:3] for row in sites.ran()]
    (why,) = errors(result, "gpu-01")
    assert not why.startswith(SECOND), why

    # The resumed run measures only the checks without an answer.
    sites.programs.clear()
    sites.events.clear()
    (sites.folder / "log").unlink()
    again = sites.validate(resume=str(result.folder))
    assert [errors(again, name) for name in sites.fleet] == [[], [], []]
    ran = {(row[0], row[2]) for row in sites.ran()}
    assert ran == {("gpu-01", SECOND), ("gpu-02", SECOND), ("gpu-02", THIRD)}
    assert sites.told("gpu-01") == [("before", FIRST), *through("ended", "ended")[2:], ("before", THIRD)]


def test_no_more_nodes_than_forks_are_at_work(sites: Sites) -> None:
    """Loads must not overlap: a node finishes all its checks before another takes its slot."""
    sites.programs = dict.fromkeys(itertools.product(sites.fleet, ASKED), "sleep 0.7")
    sites.validate(forks=2)
    at, most = set[str](), 0
    for name, what, check, _ in sites.ran():
        at.add(name)
        most = max(most, len(at))
        if (what, check) == ("ended", THIRD):
            at.remove(name)
    assert most == 2


def test_an_interrupt_in_the_middle_keeps_what_each_node_has_done(sites: Sites) -> None:
    sites.programs["gpu-02", FIRST] = "sleep 30"
    sites.interrupted_at = gpuprov.CheckBegan("gpu-03", THIRD)
    began = time.monotonic()
    result = sites.validate()
    assert time.monotonic() - began < 30
    assert result.health.interrupted
    measured = {node.node: [check.check for check in node.checks] for node in result.health.nodes}
    assert measured["gpu-02"] == []
    assert measured["gpu-03"] == [FIRST, SECOND]
    sites.interrupted_at, sites.events, sites.programs = None, [], {}
    before = sites.ran()
    again = sites.validate(resume=str(result.folder))
    assert [errors(again, name) for name in sites.fleet] == [[], [], []]
    assert sites.told("gpu-03") == [("before", FIRST), ("before", SECOND), *through("", "", "ended")[4:]]
    assert {row[:3] for row in sites.ran()[len(before) :]} >= {("gpu-02", "ended", check) for check in ASKED}


def test_an_answer_comes_once_and_as_it_was(sites: Sites) -> None:
    """Ansible adds the results of all loop items to the result of the loop."""
    script = "echo '{{ braces }} {% if %}'; head -c 100000 /dev/zero | tr '\\0' x"
    asked = {name: node_commands.programs([Command(name, ("sh", "-c", script), 60.0)]) for name in ASKED}
    hosts = {"gpu-01": {**sites.fleet["gpu-01"].variables, "gpuprov_checks": node_commands.checks(asked)}}
    heard: list[runner.Event] = []
    ended = node_commands.played(paths.PLAYBOOKS / "checks.yml", hosts, heard.append)
    assert ended["gpu-01"].status == "ok"
    *items, whole = [event.result for event in heard if event.kind == "ok"]
    assert [each["item"] for each in items] == list(ASKED)
    for each in items:
        output = each["gpuprov"]["outputs"][0]["stdout"]
        assert output == "{{ braces }} {% if %}\n" + "x" * 100000
    assert whole == {"msg": "the task hides its output (no_log)"}
