"""Heat maps: each kind of cell looks different, the legend explains it, and any name is plain text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from provision.checks.judge import Verdict
from provision.report.heatmaps import LARGEST, Cell, Drawn, HeatMap, Mark, Scale, draw, look, shortened
from tests.report.drawn import boxes, source, words, written
from tests.report.style import colours, light

SCALE = Scale(
    "Colour: share of what it should be", (1.0, 0.9, 0.75, 0.5),
    {Mark.FAIL: "too slow", Mark.HANG: "hangs", Mark.ERROR: "breaks", Mark.UNSTEADY: "once",
     Mark.UNKNOWN: "silent", Mark.NONE: "not measured"},
)  # fmt: skip


def drawn(cells: Mapping[tuple[int, int], Cell], count: int = 3, **more: Any) -> Drawn:
    names = [f"n{i}" for i in range(count)]
    return draw([HeatMap("bandwidth, GB/s", names, cells, **more)], SCALE)


def only(cell: Cell) -> set[str]:
    """Return the classes of the box in a map with only this cell."""
    return set(boxes(drawn({(0, 1): cell})))


def test_names_numbers_marks_and_the_legend_are_in_words() -> None:
    image = drawn({(0, 1): Cell(1.1, "394"), (1, 0): Cell(0.4, "150", Mark.FAIL)})
    shown = words(image)
    for wanted in (*("n0", "n1", "n2") * 2, "bandwidth, GB/s", "394", "150", "✗", "too slow", "not measured",
                   "100 % or more", "50 to 75 %", "below 50 %", SCALE.says):  # fmt: skip
        assert wanted in shown, wanted
        shown.remove(wanted)
    assert {"hangs", "breaks", "once", "silent"}.isdisjoint(shown), "no word about what is not there"


def test_every_kind_of_cell_looks_its_own_way() -> None:
    steps = [only(Cell(share)) for share in (1.0, 0.99, 0.89, 0.74, 0.49)]
    hang, unknown = only(Cell(None, mark=Mark.HANG)), only(Cell(None, mark=Mark.UNKNOWN))
    looks = [*steps, hang, unknown]
    assert all(len(look) == 1 for look in looks)
    assert len(set.union(*looks)) == len(looks)
    assert unknown == {"unknown"}
    assert 'class="hatch"' in source(drawn({(0, 1): Cell(None, mark=Mark.UNKNOWN)}))
    assert only(Cell(1.0)) == only(Cell(7.0)), "more than it should be is good"


@pytest.mark.parametrize("dark", [False, True])
def test_the_worse_the_farther_from_the_page_so_that_it_shows_in_grey(dark: bool) -> None:
    colour = colours(dark)
    shares = (0.95, 0.8, 0.6, 0.3)
    seen = [light(colour[f"--{look(Cell(share), SCALE)}"]) for share in shares]
    seen.append(light(colour[f"--{look(Cell(None, mark=Mark.HANG), SCALE)}"]))
    assert seen == sorted(seen, reverse=not dark)
    assert all(abs(one - other) > 0.04 for one, other in pairwise(seen))


def test_what_was_not_asked_for_is_blank_and_the_own_cell_is_grey() -> None:
    assert boxes(drawn({})) == {}
    assert boxes(drawn({}, own="itself")) == {"self": 3}


def test_who_stands_out_has_a_mark_at_the_name() -> None:
    named = {"n0": Verdict.FAIL, "n1": Verdict.ERROR, "n2": Verdict.WARN}
    assert {"✗ n0", "? n1", "! n2"} <= set(words(drawn({}, named=named)))


def test_groups_are_named_and_told_apart_by_lines() -> None:
    apart = drawn({}, groups=[("rack-01", 2), ("rack-02", 1)])
    assert {"rack-01", "rack-02"} <= set(words(apart))
    (lines,) = re.findall('class="groups" d="([^"]*)"', source(apart))
    assert (lines.count("H"), lines.count("V")) == (1, 1)
    assert 'class="groups" d=""' in source(drawn({}, groups=[("rack-01", 3)]))


def test_rows_and_columns_may_differ() -> None:
    image = drawn({(0, 3): Cell(0.3, "9", Mark.FAIL)}, across=["n2", "p", "q", "r"], beside=[("east", 4)])
    shown = words(image)
    assert [shown.count(name) for name in ("n0", "n2", "p", "east")] == [1, 2, 1, 1]


def test_numbers_are_left_out_where_they_would_not_fit_and_marks_are_not() -> None:
    image = drawn({(0, 1): Cell(0.3, "150", Mark.FAIL), (2, 1): Cell(None, mark=Mark.HANG)}, count=40)
    shown = words(image)
    assert "150" not in shown
    assert shown.count("H") == 1 + 1, "the legend's as well"
    assert shown.count("✗") == 1 + 1
    many = {(a, b): Cell(0.3, "150", Mark.FAIL) for a in range(40) for b in range(40) if a != b}
    assert words(drawn(many, count=40)).count("✗") == 40 * 39 + 1
    assert drawn(many, count=40).size < 25_000


def test_a_full_map_stays_small() -> None:
    cells = {(a, b): Cell(a / 60, "394", Mark.NONE) for a in range(64) for b in range(64) if a != b}
    assert drawn(cells, count=64).size < 50_000


@pytest.mark.parametrize("count", [0, LARGEST + 1])
def test_a_map_of_nothing_or_of_too_much_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="1 to 72 names"):
        drawn({}, count=count)
    with pytest.raises(ValueError, match="1 to 72 names"):
        draw([], SCALE)
    ((_, image),) = drawn({}, count=LARGEST).maps
    assert int(re.findall('width="([0-9]+)"', image.source)[0]) < 1200


def test_long_names_keep_the_end_by_which_they_differ() -> None:
    names = [f"a-cluster-with-a-name-nobody-can-remember-{i:04d}" for i in range(3)]
    shortest = [shortened(name) for name in names]
    assert len(set(shortest)) == 3
    assert all(len(name) <= 30 for name in shortest)


@pytest.mark.parametrize(
    "name", ["$x^{$", "<script>alert(1)</script>", "]]>&amp;--!>", "עברית 漢字 ✗", "\x00\x1b[2J", ""]
)
def test_a_hostile_name_is_text_in_a_well_formed_image(name: str) -> None:
    drawn_map = HeatMap(
        name,
        [name, "b"],
        {(0, 1): Cell(0.2, name, Mark.FAIL)},
        [(name, 2)],
        named={name: Verdict.FAIL},
        alt=name,
    )
    assert "<script" not in source(draw([drawn_map], SCALE))


def test_the_same_numbers_give_the_same_bytes_in_any_process(tmp_path: Path) -> None:
    program = (
        "from provision.report import pair_maps, peer_maps\n"
        "from tests.support import samples\n"
        "fleet, context = samples.clustered(80, 8, {('leaf', 'rack-03'): 0.4, ('node', 'gpu-70'): None})\n"
        "maps = [pair_maps.between(fleet, context.pairs[0]), *peer_maps.peers(fleet).skus]\n"
        "for one in (shown for each in maps for shown in each.shown):\n"
        "    print([image.source for _, image in one.heat.maps])\n"
    )
    printed = written(program, ({"PYTHONHASHSEED": "1"}, None), ({"PYTHONHASHSEED": "2"}, tmp_path))
    assert printed.count(b"<svg ") == 2 + 2 * 2
