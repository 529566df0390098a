"""Heat maps: each kind of cell looks its own way, the legend says so, and any name is only text."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from provision.checks.judge import Verdict
from provision.report.canvas import Cell, Image, Mark, Scale
from provision.report.heatmaps import LARGEST, HeatMap, draw, shortened
from tests.report.drawn import SVG, boxes, drawing, source, words, written

SCALE = Scale(
    "Colour: share of what it should be", (1.0, 0.9, 0.75, 0.5),
    {Mark.FAIL: "too slow", Mark.HANG: "hangs", Mark.ERROR: "breaks", Mark.UNSTEADY: "once",
     Mark.UNKNOWN: "silent", Mark.NONE: "not measured"},
)  # fmt: skip


def drawn(cells: Mapping[tuple[int, int], Cell], count: int = 3, **more: Any) -> Image:
    names = [f"n{i}" for i in range(count)]
    return draw([HeatMap("bandwidth, GB/s", names, cells, **more)], SCALE, "alt")


def only(cell: Cell) -> set[str]:
    """The look of a box that this cell adds to a map without one."""
    return set(boxes(drawn({(0, 1): cell})) - boxes(drawn({})))


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
    assert unknown == {"hatched"}
    assert only(Cell(1.0)) == only(Cell(7.0)), "more than it should be is good"


def test_worse_is_darker_so_that_it_shows_in_grey() -> None:
    def light(look: set[str]) -> float:
        (colour,) = look
        red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    lights = [light(only(Cell(share))) for share in (0.95, 0.8, 0.6, 0.3)]
    lights.append(light(only(Cell(None, mark=Mark.HANG))))
    assert lights == sorted(lights, reverse=True)
    assert all(one - other > 15 for one, other in pairwise(lights))


def test_what_was_not_asked_for_is_blank_and_the_own_cell_is_grey() -> None:
    assert boxes(drawn({}, own="itself")) - boxes(drawn({})) == {"#f0f2f4": 3 + 1}


def test_who_stands_out_has_a_mark_at_the_name() -> None:
    named = {"n0": Verdict.FAIL, "n1": Verdict.ERROR, "n2": Verdict.WARN}
    assert {"✗ n0", "? n1", "! n2"} <= set(words(drawn({}, named=named)))


def test_groups_are_named_and_told_apart_by_lines() -> None:
    apart = drawn({}, groups=[("rack-01", 2), ("rack-02", 1)])
    assert {"rack-01", "rack-02"} <= set(words(apart))
    assert source(apart).count("stroke: #171a1f") == 2
    assert "stroke: #171a1f" not in source(drawn({}, groups=[("rack-01", 3)]))


def test_rows_and_columns_may_differ() -> None:
    image = drawn({(0, 3): Cell(0.3, "9", Mark.FAIL)}, across=["n2", "p", "q", "r"], beside=[("east", 4)])
    shown = words(image)
    assert [shown.count(name) for name in ("n0", "n2", "p", "east")] == [1, 2, 1, 1]


def test_numbers_are_left_out_where_they_would_not_fit_and_marks_are_not() -> None:
    image = drawn({(0, 1): Cell(0.3, "150", Mark.FAIL), (2, 1): Cell(None, mark=Mark.HANG)}, count=40)
    shown = words(image)
    assert "150" not in shown
    assert shown.count("H") == 1 + 1, "the legend's as well"
    assert crosses(image) == 1
    many = {(a, b): Cell(0.3, "150", Mark.FAIL) for a in range(40) for b in range(40) if a != b}
    assert crosses(drawn(many, count=40)) == 40 * 39
    assert len(drawn(many, count=40).source) < 350_000


def crosses(image: Image) -> int:
    """How many cells have a white cross."""
    paths = [path for path in drawing(image).iter(f"{SVG}path") if "stroke: #ffffff" in path.get("style", "")]
    return sum(path.get("d", "").count("L") for path in paths if "z" not in path.get("d", "")) // 2


def test_a_full_map_stays_small() -> None:
    cells = {(a, b): Cell(a / 60, "394", Mark.NONE) for a in range(64) for b in range(64) if a != b}
    assert len(drawn(cells, count=64).source) < 350_000


@pytest.mark.parametrize("count", [0, LARGEST + 1])
def test_a_map_of_nothing_or_of_too_much_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="1 to 72 names"):
        drawn({}, count=count)
    with pytest.raises(ValueError, match="1 to 72 names"):
        draw([], SCALE, "alt")
    assert drawn({}, count=LARGEST).width < 1300


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
        name, [name, "b"], {(0, 1): Cell(0.2, name, Mark.FAIL)}, [(name, 2)], named={name: Verdict.FAIL}
    )
    image = draw([drawn_map], SCALE, name)
    drawing(image)
    assert "<script" not in source(image)


def test_the_same_numbers_give_the_same_bytes_in_any_process(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from provision.report import pair_maps, peer_maps\n"
        "from tests.support import samples\n"
        "fleet, context = samples.clustered(80, 8, {('leaf', 'rack-03'): 0.4, ('node', 'gpu-70'): None})\n"
        "maps = [pair_maps.between(fleet, context.pairs[0]), *peer_maps.peers(fleet).skus]\n"
        "for one in (shown for each in maps for shown in each.shown): sys.stdout.write(one.image.source)\n"
    )
    (tmp_path / "matplotlibrc").write_text("font.size: 30\nhatch.linewidth: 9\n")
    printed = written(program, ({"PYTHONHASHSEED": "1"}, None), ({"PYTHONHASHSEED": "2"}, tmp_path))
    assert printed.count(b"data:image/svg+xml") == 2 + 2
