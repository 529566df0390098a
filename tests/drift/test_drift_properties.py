"""Invariance of a fleet's drift report under the order of nodes and answers, and under host names."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from provision.desired import stack
from provision.drift import drift_report
from provision.drift.assess import assess
from provision.drift.drift_report import DriftReport
from provision.fleet import Fleet, Node
from provision.remote.reach.observe import Observation
from tests.support.observed import debian, promised, unknown
from tests.support.seed import SEED, times

pytestmark = pytest.mark.timeout(7200)

CASES = times(40, 20_000)
KERNEL = "6.1.0"
GPU = {"device_id": "10de:2330", "subsystem_id": "10de:16c1", "link_width": 16, "link_width_max": 16}
OWN: dict[str, Any] = {
    **debian("12", "bookworm", KERNEL),
    **{"gpu.count": 8, "gpu.nvswitch_count": 4},
    "gpu.pci": [{"address": f"0000:{slot}b:00.0", **GPU} for slot in range(8)],
    "firmware.gpu_vbios": ["96.00.74.00.01"] * 8,
    **{"firmware.system": "Supermicro SYS-821GE", "firmware.bios_version": "1.4b", "firmware.rdma": []},
    **{"memory.installed_gib": 2048, "cpu.online": 224},
}
ROLES = {"gpuprov_roles": ["nvidia_driver", "nccl"]}
# Facts that drift individually, and facts that the majority decides.
CHANGES: Sequence[Mapping[str, Any]] = (
    {"module.nouveau.loaded": True},
    {"firmware.bios_version": "1.3"},
    {"firmware.bios_version": "1.2"},
    {"firmware.gpu_vbios": ["96.00.10.00.99"] * 8},
    {"driver.loaded_version": "570.1"},
    {"memory.installed_gib": 1984},
    {"os.version_id": "13", "os.codename": "trixie"},
)
PROBLEMS = (
    {"firmware.gpu_vbios": "no answer within 8 s"},
    {"driver": "nvidia-smi hangs"},
    {"package": "locked"},
)


class Drawn:
    """Random nodes by number, with their changes and reachability."""

    def __init__(self, draw: random.Random, promises: Callable[[], dict[str, Any]]) -> None:
        self.promises = promises
        self.count = draw.randint(3, 8)
        usual = draw.sample(CHANGES, 2)
        self.changes = [
            [one for one in CHANGES if draw.random() < (0.5 if one in usual else 0.08)]
            for _ in range(self.count)
        ]
        self.problems = [draw.choice(PROBLEMS) if draw.random() < 0.15 else {} for _ in range(self.count)]
        self.silent = [draw.random() < 0.1 for _ in range(self.count)]
        ignored = {"gpuprov_ignore_majority": ["firmware.bios_version"]}
        self.declared = [{**ROLES, **(ignored if draw.random() < 0.1 else {})} for _ in range(self.count)]

    def answer(self, number: int, name: str, asked: Collection[str]) -> Observation:
        if self.silent[number]:
            return Observation(name, error="no route to host", unreachable=True)
        facts = {**unknown(asked, KERNEL), **OWN, **self.promises()}
        for change in self.changes[number]:
            facts |= change
        problems = self.problems[number]
        kept = {
            fact: value
            for fact, value in facts.items()
            if not {fact, fact.partition(".")[0]} & problems.keys()
        }
        return Observation(name, kept, problems)

    def report(self, numbers: Sequence[int], names: Sequence[str], answers: random.Random) -> DriftReport:
        """Return the report on these nodes in this order, with answers in another. `names`: by number."""
        of = {names[number]: number for number in numbers}
        nodes = {name: Node(name, ("gpus",), self.declared[number]) for name, number in of.items()}

        def observe(
            chosen: Collection[Node], ask: Mapping[str, Collection[str]], **options: Any
        ) -> dict[str, Observation]:
            observations = {}
            for node in answers.sample(list(chosen), len(chosen)):
                observations[node.name] = self.answer(of[node.name], node.name, ask[node.name])
                if options.get("on_done"):
                    options["on_done"](observations[node.name])
            return observations

        fleet = Fleet(Path("inventory.yml"), nodes, {"all": tuple(nodes)})
        also, also_of = drift_report.FACTS, drift_report.FACTS_OF
        seen = assess(fleet, {}, observe=observe, also=also, also_of=also_of)
        return drift_report.make(seen, required=True)


def found(report: DriftReport, number_of: Mapping[str, int]) -> Counter[tuple[Any, ...]]:
    return Counter(
        (
            *(one.rule, one.level, tuple(sorted(number_of[node] for node in one.nodes))),
            one.text if len(one.nodes) == 1 else "",  # for several nodes the text may name them
        )
        for one in report.findings
    )


@pytest.fixture
def promises() -> Callable[[], dict[str, Any]]:
    declared = stack.declared(Node("gpu-01", (), ROLES), {})
    known = promised({**declared, "inventory_hostname": "gpu-01"}, OWN)
    return lambda: known


def test_neither_order_nor_names_of_nodes_change_the_report(
    promises: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GPUPROV_RUNS", str(tmp_path / "runs"))
    rules: Counter[str] = Counter()
    for case in range(CASES):
        draw = random.Random(f"{SEED} {case}")  # noqa: S311 - drawn cases
        drawn = Drawn(draw, promises)
        numbers = list(range(drawn.count))
        first = [f"gpu-{number:02}" for number in numbers]
        names = draw.sample([f"gpu-{place:02}" for place in range(99)], drawn.count)
        one = drawn.report(numbers, first, draw)
        two = drawn.report(draw.sample(numbers, drawn.count), names, draw)
        was = found(one, dict(zip(first, numbers, strict=True)))
        assert found(two, dict(zip(names, numbers, strict=True))) == was, f"case {case} of seed {SEED}"
        assert two.code == one.code
        rules.update(rule for rule, *_ in was)
    assert {rule.partition("/")[0] for rule in rules} > {"majority", "node"}, rules
