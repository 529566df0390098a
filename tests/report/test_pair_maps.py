"""Maps of measurements between nodes: complete up to 64 nodes, then by rack and outlier."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from provision.checks.health import FleetHealth
from provision.checks.judge import Verdict
from provision.checks.pairs.pairing import Outcome, Result, Topology
from provision.report.context import Pairs
from provision.report.pair_maps import PairMaps, between
from tests.report.drawn import alt, boxes, drawing, source, words
from tests.support import samples

GOOD, WORST, BROKEN, UNKNOWN = "s0", "s4", "broken", "unknown"
LEGEND = 1


def of(*results: Result, nodes: int = 4, **more: Any) -> PairMaps:
    """Return the maps of these results, with nodes n0 … and without racks."""
    fleet = Topology(tuple(f"n{i}" for i in range(nodes)))
    return between(samples.nothing(), Pairs("pair_bandwidth", "Gb/s", fleet, results, **more))


def went(one: int, other: int, value: float | None = 394.0, number: int = 1, **more: Any) -> Result:
    more = {"rail": "mlx5_0", "unit": "Gb/s", "expected": 360.0, **more}
    return Result((f"n{one}", f"n{other}"), number, value=value, **more)


def test_all_nodes_of_a_small_fleet_by_rack_with_whom_the_findings_name() -> None:
    fleet, context = samples.clustered()
    found = between(fleet, context.pairs[0])
    (shown,) = found.shown
    text = words(shown.heat)
    for wanted in (
        "gpu-04",
        "? gpu-09",
        "! gpu-01",
        "✗ rack-03",
        "rack-04",
        "pair_bandwidth, Gb/s",
        "too slow",
    ):
        assert wanted in text, wanted
    assert found.named == ("leaf of rack rack-03", "link gpu-01-gpu-02")
    results = context.pairs[0].results
    pairs = {frozenset(result.nodes) for result in results}
    assert (found.measured, found.possible, found.rounds) == (len(pairs), 120, max(r.round for r in results))
    leaf = {pair for pair in pairs if any(node[-2:] in {"09", "10", "11", "12"} for node in pair)}
    assert boxes(shown.heat)[WORST] == 2 * len(leaf), "each pair twice, in nobody else's row"
    assert text.count("✗") == 2 * len(leaf) + 2 + LEGEND
    assert sum(boxes(shown.heat).values()) > 2 * len(pairs)
    assert f"between 16 nodes: {len(pairs)} pairs measured" in alt(shown.heat)
    assert "not measured" in text


def test_a_cell_has_the_worst_rail() -> None:
    maps = of(went(0, 1), went(0, 1, 170.0, rail="mlx5_1"), went(0, 1, 390.0, rail="mlx5_2"))
    shown = words(maps.shown[0].heat)
    assert (shown.count("170"), shown.count("394"), shown.count("390")) == (2, 0, 0)
    assert alt(maps.shown[0].heat).endswith("✗ n0 and n1: 170 Gb/s")


def test_a_hang_an_error_and_what_did_not_run_each_have_their_mark() -> None:
    ended = [
        went(0, 1, None, outcome=Outcome.HANG, said="no end after 40 s"),
        went(2, 3, None, outcome=Outcome.ERROR),
        went(0, 2, None, 2, outcome=Outcome.NOT_RUN, rail=""),
        went(1, 3, number=2),
    ]
    maps = of(*ended)
    image = maps.shown[0].heat
    shown = words(image)
    for mark, said in (("H", "hangs"), ("E", "ends with an error"), ("?", "was to be measured, and was not")):
        assert shown.count(mark) == 2 + LEGEND
        assert said in shown
    assert boxes(image)[BROKEN] == 4
    assert boxes(image)[UNKNOWN] == 2
    assert (maps.measured, maps.possible) == (3, 6)
    assert "H n0 and n1: hang; E n2 and n3: error" in alt(image)


def test_a_rail_that_did_not_run_is_not_covered_up_by_one_that_did() -> None:
    maps = of(went(0, 1), went(0, 1, None, outcome=Outcome.NOT_RUN, rail="mlx5_1"))
    assert words(maps.shown[0].heat).count("?") == 2 + LEGEND
    assert maps.measured == 1


def test_bad_once_and_good_when_repeated_is_neither_bad_nor_hidden() -> None:
    maps = of(went(0, 1, 100.0), went(0, 1, 394.0, 2))
    shown = words(maps.shown[0].heat)
    assert shown.count("~") == 2 + LEGEND
    assert "✗" not in shown
    assert "bad once, good when repeated" in shown


def test_what_is_no_evidence_is_not_drawn_as_if_it_were() -> None:
    strange = [went(0, 1, float("nan")), went(2, 3, -5.0), went(1, 1), went(0, 9), went(0, 2, 1.0, size=7)]
    maps = of(*strange)
    assert maps.measured == 0
    assert words(maps.shown[0].heat).count("?") == 2 * 3 + LEGEND


def test_of_a_latency_less_is_better() -> None:
    fleet = Topology(tuple(f"n{i}" for i in range(4)))
    results = [
        went(0, 1, 2.0, expected=2.5),
        went(2, 3, 10.0, expected=2.5),
        went(0, 2, 1.87, 2, expected=2.5),
    ]
    pairs = Pairs("pair_latency", "us", fleet, tuple(results), direction="at_most")
    image = between(samples.nothing(), pairs).shown[0].heat
    assert "✗ n2 and n3: 10 us" in alt(image)
    assert boxes(image)[WORST] == 2
    assert boxes(image)[GOOD] == 4
    assert "Colour: the most that is expected as a share of a pair's worst" in " ".join(words(image))
    assert {"pair_latency, us", "1.87"} <= set(words(image))


def test_without_an_expectation_pairs_are_compared_with_what_is_usual() -> None:
    values = {(0, 1): 394.0, (2, 3): 393.0, (4, 5): 395.0, (6, 7): 150.0}
    results = [went(*pair, value, expected=None) for pair, value in values.items()]
    image = of(*results, nodes=8).shown[0].heat
    assert boxes(image)[WORST] == 2
    assert boxes(image)[GOOD] == 6
    assert "as a share of what is usual" in " ".join(words(image))


def test_who_took_no_part_has_a_row_and_a_line() -> None:
    why = {"n4": "ib_write_bw is not installed", "n5": "ib_write_bw is not installed"}
    maps = of(went(0, 1), left_out=why)
    image = maps.shown[0].heat
    assert maps.left_out == ("n[4-5]: ib_write_bw is not installed",)
    assert boxes(image)[UNKNOWN] == 6 * 6 - 4 * 4
    assert {"? n4", "? n5", "took no part"} <= set(words(image))


def test_nodes_without_a_rack_come_last_and_are_said_to_have_none() -> None:
    fleet = Topology(("a", "b", "c"), {"a": "east", "c": "east"})
    pairs = Pairs("pair_bandwidth", "Gb/s", fleet, (Result(("a", "b"), 1, value=394.0, expected=360.0),))
    shown = words(between(samples.nothing(), pairs).shown[0].heat)
    assert shown.index("c") < shown.index("b")
    assert {"east", "rack not known"} <= set(shown)


@pytest.mark.parametrize("nodes", [0, 1])
def test_of_less_than_two_nodes_there_is_no_map(nodes: int) -> None:
    maps = of(nodes=nodes)
    assert (maps.shown, maps.measured, maps.possible, maps.rounds) == ((), 0, 0, 0)


def test_a_run_that_ended_before_its_first_round_shows_that_nothing_was_measured() -> None:
    maps = of()
    assert (maps.measured, maps.possible) == (0, 6)
    assert alt(maps.shown[0].heat) == "pair_bandwidth between 4 nodes: 0 pairs measured"


FAULTS: Mapping[tuple[str, ...], float | None] = {
    ("leaf", "rack-04"): 0.4, ("uplink", "rack-11"): 0.6, ("node", "gpu-002"): None,
}  # fmt: skip


def test_of_a_large_fleet_the_racks_and_whoever_stands_out() -> None:
    fleet, context = samples.clustered(200, 8, FAULTS)
    maps = between(fleet, context.pairs[0])
    racks, named = maps.shown
    assert set(maps.named) == {"leaf of rack rack-04", "uplink of rack rack-11", "gpu-002"}
    text = words(racks.heat)
    assert {"✗ rack-04", "✗ rack-11", "rack-25"} <= set(text)
    assert not any(word.startswith("gpu-") for word in text)
    rows = {word for word in words(named.heat) if word.startswith(("✗ gpu", "? gpu", "! gpu"))}
    assert len(rows) == 8 + 8 + 1
    assert "gpu-120" not in words(named.heat)
    assert "The nodes that stand out (17 of 17)" in named.words
    assert "Of 200 nodes the others are in the map of racks only" in named.words
    assert "H gpu-001 and gpu-002: hang" in alt(named.heat)
    assert sum((one.heat.size) for one in maps.shown) < 250_000


def test_a_large_fleet_of_which_nobody_stands_out_says_so() -> None:
    fleet, context = samples.clustered(80, 8, {})
    maps = between(fleet, context.pairs[0])
    (racks,) = maps.shown
    assert boxes(racks.heat)[WORST] == 0
    assert maps.notes == ("No node stands out; 80 nodes are too many to draw.",)
    bare = dataclasses.replace(context.pairs[0], fleet=Topology(context.pairs[0].fleet.nodes))
    maps = between(fleet, bare)
    assert maps.shown == ()
    assert maps.notes[0] == "Not drawn rack by rack: 0 racks known."


def test_more_than_fit_are_counted() -> None:
    fleet = Topology(tuple(f"n{i}" for i in range(300)))
    results = tuple(went(i, i + 1, None, outcome=Outcome.ERROR) for i in range(0, 300, 2))
    (shown,) = between(samples.nothing(), Pairs("pair_bandwidth", "Gb/s", fleet, results)).shown
    assert "The nodes that stand out (48 of 300), a row each, by those they were measured with" in shown.words


def test_hostile_names_are_text() -> None:
    names = ("<script>alert(1)</script>", "$x^{$", "--><b>", "\x1b[2Jred\u202e")
    fleet = Topology(names, dict.fromkeys(names[:2], "]]>&<svg>") | dict.fromkeys(names[2:], "$r_$"))
    result = Result(names[:2], 1, value=10.0, rail="<i>", unit="<u>", expected=360.0)
    hang = Result(names[2:], 1, Outcome.HANG, said="<script>")
    pairs = Pairs("pair_bandwidth", "<u>$", fleet, (result, hang), {"<script>x": "<b>why\n"})
    health: FleetHealth = samples.with_pairs(samples.hostile(), dataclasses.replace(pairs, left_out={}))
    maps = between(health, pairs)
    drawing(maps.shown[0].heat)
    assert "<script" not in source(maps.shown[0].heat)
    assert "\x1b" not in alt(maps.shown[0].heat)
    assert {"]]>&<svg>", "$r_$", "took no part"} <= {
        word.removeprefix("✗ ") for word in words(maps.shown[0].heat)
    }


def test_every_verdict_of_the_check_is_a_nodes_own() -> None:
    """A node that fails another check is no outlier between nodes."""
    fleet, context = samples.clustered()
    assert next(node for node in fleet.nodes if node.node == "gpu-03").verdict is Verdict.FAIL
    assert "gpu-03" in words(between(fleet, context.pairs[0]).shown[0].heat)
