"""Every expectation of every role: it holds after `up`; broken, `drift` names exactly it; `up` repairs it
with its own role and runs no other. How many they were is printed as a table, role by role.

One fact at a time is broken on each node, on all nodes at once. Where one cause makes several promises untrue
(breakers.TOGETHER), all of them and no other must be named. What only a person at the console can repair
(breakers.BY_A_PERSON) `up` must refuse, with that person's next step, and accept once it is done.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from provision.desired import inventory
from provision.desired.expectations import HARDWARE, Expectation
from provision.drift import assess
from provision.lab.spec import NodeSpec
from tests.lab import breakers
from tests.lab.lab_nodes import Lab, running_lab

ROOT = Path(__file__).resolve().parents[2]
# B200 has the longest list (fabric manager, nvlsm, ib_umad).
NODES = (
    NodeSpec("walk-01", "b200"),
    NodeSpec("walk-02", "b200"),
    NodeSpec("walk-03", "h100-sxm", "debian12"),
    NodeSpec("walk-04", "b200"),
    NodeSpec("walk-05", "b200"),
    NodeSpec("walk-06", "b200"),
)
# Keys are real, and of NVIDIA's revoked one the walk has no copy: it declares another.
DECLARED = {"nvidia_repository_revoked_keys": [breakers.REVOKED], "nvlink_ready_timeout": 20}
pytestmark = [pytest.mark.long, pytest.mark.timeout(5400)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab("walk", NODES, tmp_path_factory.mktemp("lab") / "lab.yml") as running:
        for node in running.nodes:  # every machine that boots by itself has an initramfs
            node.as_root(
                "apt-get update -q; apt-get install -qy --no-install-recommends initramfs-tools", 300
            )
            node.as_root(
                "echo CONFIG_RD_GZIP=y > /boot/config-$(uname -r); update-initramfs -c -k $(uname -r)"
            )
        yield running


class Walk:
    """The fleet, what is promised of it, and what is still to be broken."""

    def __init__(self, lab: Lab, runs: Path) -> None:
        self.lab = lab
        self.runs = runs
        seen = assess.assess(inventory.load(lab.inventory), DECLARED)
        self.promised = {
            node: [
                each
                for each in expected
                if each.role != HARDWARE and each.fact not in breakers.NOT_ON_LAB_NODES
            ]
            for node, expected in seen.expected.items()
        }

    def gpuprov(self, verb: str, *options: str) -> Any:
        declared = [
            word for key, value in DECLARED.items() for word in ("--set", f"{key}={json.dumps(value)}")
        ]
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "provision.cli",
                verb,
                str(self.lab.inventory),
                "--json",
                *declared,
                *options,
            ],
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT), "GPUPROV_RUNS": str(self.runs)},
        )
        assert done.stdout.startswith("{"), done.stderr
        return json.loads(done.stdout)

    def up(self) -> Any:
        """How it ended for each node."""
        return self.gpuprov("up", "--no-canary")["nodes"]

    def on_nodes(self, commands: dict[str, str]) -> list[str]:
        """Run each as root on its node; what did not work."""

        def run(node: str) -> str:
            done = self.lab.node(node).run(f"sudo sh -c {shlex.quote(commands[node])}", check=False)
            return f"{node}: {commands[node]!r}: {done.stderr}" if done.returncode else ""

        with ThreadPoolExecutor() as pool:
            return [failure for failure in pool.map(run, commands) if failure]

    def rounds(self) -> Iterator[dict[str, Expectation]]:
        """Node → what to break on it now, until every promise had its turn on one node."""
        walked: set[tuple[str, str]] = set()
        while True:
            chosen: dict[str, Expectation] = {}
            for node, promised in self.promised.items():
                each = next((p for p in promised if (p.role, p.fact) not in walked), None)
                if each is not None:
                    chosen[node] = each
                    walked.add((each.role, each.fact))
            if not chosen:
                return
            yield chosen


def trouble_of(walk: Walk, chosen: dict[str, Expectation]) -> list[str]:
    """Break these, look, repair: what was not as it should be."""
    trouble = walk.on_nodes({node: breakers.command(each) for node, each in chosen.items()})
    named: dict[str, set[tuple[str, str]]] = {node: set() for node in walk.promised}
    for drift in walk.gpuprov("drift")["drifts"]:
        named[drift["node"]].add((drift["role"], drift["fact"]))
    ended = walk.up()
    persons = {node: each.fact for node, each in chosen.items() if each.fact in breakers.BY_A_PERSON}
    trouble += walk.on_nodes({node: breakers.BY_A_PERSON[fact][1] for node, fact in persons.items()})
    for node in walk.promised:
        wanted = broken_by(chosen.get(node), walk.promised[node])
        if named[node] != wanted:
            trouble.append(f"{node}: broke {wanted or 'nothing'}, drift named {named[node] or 'nothing'}")
        end = ended[node]
        told = f"{end['status']} {end['message']} {[drift['fact'] for drift in end['drifts']]}"
        if set(end["roles"]) != {role for role, _fact in wanted}:
            trouble.append(f"{node}: broke {wanted or 'nothing'}, up ran {end['roles']}: {told}")
        elif node in persons:
            if end["status"] != "failed" or breakers.BY_A_PERSON[persons[node]][0] not in end["message"]:
                trouble.append(f"{node}: {persons[node]} is for a person, and up said {told}")
        elif end["status"] not in ("done", "as declared"):
            trouble.append(f"{node}: broke {wanted or 'nothing'}, up ended with {told}")
    return trouble


def broken_by(expectation: Expectation | None, promised: list[Expectation]) -> set[tuple[str, str]]:
    """(role, fact) of every promise that its breaker makes untrue: some facts two roles promise."""
    if expectation is None:
        return set()
    same = {(each.role, each.fact) for each in promised if each.fact == expectation.fact}
    return same | breakers.TOGETHER.get(expectation.fact, set())


def test_every_expectation_holds_is_noticed_when_broken_and_is_repaired_by_its_role(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def say(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(text)
            sys.stdout.flush()

    walk = Walk(lab, tmp_path)
    walk.up()
    assert walk.gpuprov("drift")["drifts"] == []
    count: Counter[str] = Counter()
    trouble: list[str] = []
    for chosen in walk.rounds():
        found = trouble_of(walk, chosen)
        say("\n".join(["", *(f"  {node}: {each.fact}" for node, each in chosen.items()), *found]))
        trouble += found
        count.update(each.role for each in chosen.values())
        if found:  # the next round begins from a fleet that is as declared
            walk.up()
    assert walk.gpuprov("drift")["drifts"] == []
    table = "".join(f"\n  {role:20} {number:4}" for role, number in count.items())
    say(f"\n\nheld, broken, named, and repaired by their role:{table}\n  all {sum(count.values()):21}\n")
    assert trouble == []
    assert sum(count.values()) > 150
