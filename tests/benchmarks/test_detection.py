"""A small run of benchmarks/detection: injectable faults are detected and blamed on the right device.

No look-alike and no healthy node is flagged. Nodes with AMD GPUs have their own catalogue. The seed is that
of all tests (tests/support/seed.py): fixed, and random in the long set. CI runs one class in three, and one
in six of AMD's, because each costs half a second of a core and its seed never changes; the long set runs all
classes and more healthy nodes. A failure prints the seed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.detection import __main__ as command
from benchmarks.detection import amd_report, catalogue, catalogue_amd, report, scores
from benchmarks.detection.__main__ import outcomes, trials
from benchmarks.detection.cases import Entry
from benchmarks.detection.trial import HEALTHY, Trial
from tests.support.seed import SEED, VARIABLE, times

pytestmark = pytest.mark.timeout(900)

DOCUMENT = Path(__file__).parents[2] / "docs/detection.md"
HEALTHY_NODES, OF_AMD = times(5, 100), times(1, 50)
AMD_ENTRIES = list(catalogue_amd.ENTRIES.items())[:: times(6, 1)]
FAULTS, LOOK_ALIKES = (
    [(entry.key, entry) for entry in catalogue.covered(traps=traps)[:: times(3, 1)]]
    + [(key, entry) for key, entry in AMD_ENTRIES if entry.trap == traps]
    for traps in (False, True)
)

Outcome = Mapping[str, Any]


@pytest.fixture(scope="module")
def said() -> Mapping[str, Sequence[Outcome]]:
    """Return the validator's outcome of every trial, by class; the simulator runs in a separate process."""
    keys = [key for key, _ in (*FAULTS, *LOOK_ALIKES)]
    nvidia = [key for key in keys if key not in catalogue_amd.ENTRIES]
    asked = trials([*nvidia, HEALTHY], range(SEED, SEED + 1), HEALTHY_NODES, graded=0)
    asked += [Trial(key, SEED) for key in keys if key in catalogue_amd.ENTRIES]
    asked += [Trial(catalogue_amd.HEALTHY, SEED + number) for number in range(OF_AMD)]
    by_key: dict[str, list[Outcome]] = defaultdict(list)
    for one in outcomes(asked, jobs=1):
        by_key[one["key"]].append(one)
    return by_key


def shown(one: Outcome) -> str:
    """Return the details needed to reproduce an outcome."""
    head = f"{VARIABLE}={SEED}: class {one['key']} on {one['sku']}: {'; '.join(one['faults']) or 'no fault'}"
    return "\n".join([f"{head}: verdict {one['verdict']}", *one["findings"], one["trouble"]])


def sorted_by_kind(entries: Iterable[Entry]) -> list[tuple[str, str]]:
    """Return numbers and names in the document's order: faults, then look-alikes."""
    return [(str(entry.number), entry.name) for entry in sorted(entries, key=lambda entry: entry.trap)]


def named(key: str, entry: Entry) -> Any:
    return pytest.param(key, id=f"{key} {entry.name}")


@pytest.mark.parametrize("key", [named(*one) for one in FAULTS])
def test_a_clear_fault_is_caught_and_blamed_rightly(key: str, said: Mapping[str, Sequence[Outcome]]) -> None:
    for one in said[key]:
        assert not one["trouble"], shown(one)
        assert one["caught"], shown(one)
        assert one["blamed"], shown(one)


@pytest.mark.parametrize("key", [named(*one) for one in LOOK_ALIKES])
def test_a_healthy_look_alike_is_not_flagged(key: str, said: Mapping[str, Sequence[Outcome]]) -> None:
    for one in said[key]:
        assert not one["trouble"], shown(one)
        assert not one["flagged"], shown(one)


def test_no_healthy_node_is_flagged(said: Mapping[str, Sequence[Outcome]]) -> None:
    for key, nodes in ((HEALTHY, HEALTHY_NODES), (catalogue_amd.HEALTHY, OF_AMD)):
        flagged = [shown(one) for one in said[key] if one["flagged"] or one["trouble"]]
        assert not flagged, "\n\n".join(flagged)
        assert len(said[key]) == nodes


def test_the_document_lists_every_class_and_look_alike_of_the_catalogue() -> None:
    text = DOCUMENT.read_text("utf-8").partition(report.BEGIN)[2].partition(report.END)[0]
    rows = re.findall(r"^\| (\d+) \| ([^|(]+?) (?:\([^|]*\) )?\|", text, re.MULTILINE)
    listed = {(int(number), name) for number, name in rows}
    assert listed == {(entry.number, entry.name) for entry in catalogue.ENTRIES.values()}
    assert {entry.number for entry in catalogue.ENTRIES.values() if not entry.trap} == set(catalogue.CLASSES)


def test_the_document_lists_every_class_and_look_alike_of_amds_catalogue() -> None:
    text = DOCUMENT.read_text("utf-8").partition(amd_report.BEGIN)[2].partition(amd_report.END)[0]
    listed = re.findall(r"^\| (\d+) \| ([^|]+?) \|", text, re.MULTILINE)
    assert listed == sorted_by_kind(catalogue_amd.ENTRIES.values())


def test_the_interval_of_a_share_is_wilsons() -> None:
    low, high = scores.Share(8, 10).interval
    assert (round(low, 4), round(high, 4)) == (0.4902, 0.9433)  # the textbook example
    assert scores.Share(0, 2000).interval[1] < 0.002
    assert scores.Share(0, 0).interval == (0.0, 1.0)


def test_the_least_severity_is_claimed_only_down_to_the_first_misses() -> None:
    entry = Entry(1, "slow", unit="slowdown", clear=(0.5, 0.9), graded=(0.0, 0.5))
    noticed = [
        {"graded": n < 50, "severity": n / 100, "flagged": n > 12, "caught": n > 12, "blamed": True}
        for n in range(1, 91)
    ]
    assert scores.of_class(entry, noticed).smallest == 0.13
    missed_once = [{**one, "flagged": one["severity"] not in (0.3, 0.12)} for one in noticed]
    assert scores.of_class(entry, missed_once).smallest == 0.31
    assert scores.of_class(entry, noticed[-10:]).smallest is None, "ten trials claim nothing"


def test_a_mix_counts_only_what_was_tried() -> None:
    def score(hits: int) -> scores.ClassScore:
        return scores.ClassScore(Entry(1, "one"), scores.Share(hits, 10), scores.Share(hits, hits))

    mix = {"tried": (60.0, (1, 2)), "half": (20.0, (3, 4)), "not": (20.0, (5,))}
    mixed = scores.of_mix(mix, {"1": score(10), "2": score(5), "3": score(10)})
    assert mixed.covered == pytest.approx(0.7)
    assert mixed.recall == pytest.approx((60 * 0.75 + 10) / 70)
    assert mixed.families == {"tried": 0.75, "half": 1.0, "not": None}


def test_a_run_that_was_ended_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Trial] = []

    def run(asked: Sequence[Trial], jobs: int) -> Iterator[Outcome]:
        for one in asked:
            ran.append(one)
            yield {"key": one.key, "seed": one.seed, "graded": one.graded, "trouble": "" if jobs else "oh"}

    monkeypatch.setattr(command, "outcomes", run)
    kept, asked = tmp_path / "kept", [Trial("1", seed) for seed in range(4)]
    list(command.resumed(asked[:2], kept, 1))
    list(command.resumed(asked[2:3], kept, 0))  # a trial that got into trouble has no outcome
    with kept.open("a") as file:
        file.write('{"key": "1", "se')  # killed while writing
    ran.clear()
    assert [one["seed"] for one in command.resumed(asked, kept, 1)] == [0, 1, 2, 3]
    assert ran == asked[2:]
    assert not [one for one in command.resumed(asked, kept, 1) if one["trouble"]]
    assert ran == asked[2:]

    ran.clear()
    for answer in ("lines", "misses"):
        monkeypatch.setattr(amd_report, answer, lambda *_: [])
    for _ in range(2):
        assert command.main(["--amd", "1", "--keep", str(tmp_path / "amd")]) == 0
    assert {one.key for one in ran} >= catalogue_amd.ENTRIES.keys()
    assert len(ran) == len(set(ran)), "the second run tries nothing again"
