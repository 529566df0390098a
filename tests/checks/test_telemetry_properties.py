"""Properties of any samples of GPUs under load, in checks and burn-ins, of both vendors.
Order and repetition change no finding, an added healthy sample or fault never improves a verdict, and no
GPU is blamed for the fault of another."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from provision.checks.judge import Finding, Verdict
from provision.checks.kernel import kernel_meaning
from tests.support import drawn_gpus, drawn_samples
from tests.support.drawn_gpus import ERRORS, FAULTS, HIDING, Node, named
from tests.support.drawn_samples import BurnIn, Surface, Told
from tests.support.seed import SEED, times

pytestmark = pytest.mark.timeout(7200)

LOST = ERRORS[0]
CASES = times(120, 20_000)
BAD = (Verdict.WARN, Verdict.ERROR, Verdict.FAIL)
Found = frozenset[tuple[Verdict, str, str, str]]  # verdict, device, metric, action
# By surface, in the order of `cases`: faults that no rule judges there, or only sometimes.
UNJUDGED = (
    {"brief", "slower"},
    {"brief", "slower", "unread"},
    {"brief", "slower", "unread", "narrow", "generation"},
    {"brief", "slower", "unread", "narrow", "generation"},
)
# An idle link runs at generation 1, so a single fast sample proves that the link is good.
BEST_COUNTS = "load_pcie_gen"
FOUND: dict[int, Found] = {}  # findings of each unchanged case, with which every property compares


@dataclass(frozen=True)
class Case:
    """A drawn node shown by one of the tools. `draw`: of the property; `found`: on the unchanged node."""

    number: int
    draw: random.Random
    node: Node
    judge: Surface
    found: Found

    def again(self, node: Node, how: Told | None = None) -> Found:
        return told(self.judge(node, how or Told()))

    def any_gpu(self) -> int:
        """Draw a GPU, with a fault in half of the cases."""
        broken = sorted(self.node.faults) if self.draw.random() < 0.5 else []
        return self.draw.choice(broken or range(len(self.node.rounds[0])))

    def shown(self, *more: object) -> str:
        return f"case {self.number} of seed {SEED}: {named(self.node)}, {sorted(self.found)} {more}"


class Cases:
    """Iterator over all cases, which take the surfaces in turn."""

    def __init__(self, surfaces: Sequence[Surface]) -> None:
        self.surfaces = surfaces

    def of(self, name: str) -> Iterator[Case]:
        for number in range(CASES):
            judge = self.surfaces[number % len(self.surfaces)]
            node = drawn_gpus.several(random.Random(f"{SEED} {number}"))  # noqa: S311 - drawn cases
            if number not in FOUND:
                FOUND[number] = told(judge(node, Told()))
            draw = random.Random(f"{SEED} {number} {name}")  # noqa: S311
            yield Case(number, draw, node, judge, FOUND[number])


@pytest.fixture
def cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cases:
    burn_in = BurnIn(tmp_path, monkeypatch)
    return Cases((drawn_samples.nvidia_check, drawn_samples.amd_check, burn_in.nvidia, burn_in.amd))


def told(findings: Sequence[Finding]) -> Found:
    return frozenset((f.verdict, f.device, f.metric, f.action) for f in findings if f.verdict in BAD)


def worst(found: Found, device: str = "") -> tuple[int, int]:
    """Return the worst verdict and the worst action, of one GPU or of all."""
    mine = [one for one in found if device in ("", one[1])]
    actions = [kernel_meaning.ACTIONS.index(action) for *_, action in mine]
    return max((verdict.badness for verdict, *_ in mine), default=0), max(actions, default=0)


def test_the_order_of_gpus_changes_nothing(cases: Cases) -> None:
    for case in cases.of("order"):
        other = case.again(case.node, Told(case.draw))
        assert other == case.found, case.shown(other)


def test_a_repeated_sample_changes_nothing(cases: Cases) -> None:
    """Repeating every sample leaves the fraction of affected samples unchanged."""
    for case in cases.of("repeated"):
        other = case.again(case.node, Told(times=2))
        assert other == case.found, case.shown(other)


def test_one_more_healthy_sample_never_improves_a_verdict(cases: Cases) -> None:
    for case in cases.of("healthy"):
        gpu = case.any_gpu()
        amd = case.number % 2 == 1
        more = drawn_gpus.with_a_healthy_sample(case.node, gpu, case.draw, amd=amd)
        if more is None:
            continue
        after = case.again(more)
        before = frozenset(one for one in case.found if one[2] != BEST_COUNTS)
        for device in ("", f"gpu{gpu}"):
            now, was = worst(after, device), worst(before, device)
            assert all(one >= other for one, other in zip(now, was, strict=True)), case.shown(gpu, after)


def test_one_more_fault_never_improves_a_verdict(cases: Cases) -> None:
    for case in cases.of("fault"):
        more = copy.deepcopy(case.node)
        gpu = case.any_gpu()
        fault = drawn_gpus.broken(more, gpu, case.draw)
        after = case.again(more)
        for device in ("", f"gpu{gpu}"):
            (verdict, action), (was, did) = worst(after, device), worst(case.found, device)
            assert verdict >= was, case.shown(gpu, fault, after)
            assert action >= did or _explains(case.node, more, gpu, fault), case.shown(gpu, fault, after)


def _explains(node: Node, more: Node, gpu: int, fault: str) -> bool:
    """Whether this fault may lower the required action.
    A lost GPU hides its other faults, and `requires reset` replaces `Unknown Error`."""
    others = set().union(*node.faults.values()) - set(HIDING)
    errors = {cell["error"] for cell in more.of(gpu)}
    return fault in HIDING and (bool(others) or ("[GPU requires reset]" in errors and LOST not in errors))


def test_each_gpu_is_blamed_for_its_own_faults_alone(cases: Cases) -> None:
    for case in cases.of("blame"):
        faults = case.node.faults
        blamed = {device for _, device, _, _ in case.found}
        hidden = any(faulty & set(HIDING) for faulty in faults.values())
        assert blamed <= {f"gpu{gpu}" for gpu in faults} | ({"node"} if hidden else set()), case.shown()
        unjudged = UNJUDGED[case.number % len(UNJUDGED)]
        if hidden and case.judge is drawn_samples.amd_check:  # GPU numbers are no longer reliable
            unjudged = set(FAULTS) - set(HIDING)
        judged = {gpu for gpu, faulty in faults.items() if faulty - unjudged}
        assert {f"gpu{gpu}" for gpu in judged} <= blamed, case.shown()
