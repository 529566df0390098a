"""Charts: reproducible bytes, well-formed for any node name, and outliers labelled."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from provision.checks.gpu.telemetry_rows import Series
from provision.checks.judge import Verdict
from provision.report import plots
from provision.report.canvas import Image, apart, ticks
from provision.report.tables import Mark, Sku, Strip, glance
from tests.report.drawn import drawing, source, words, written
from tests.report.style import SHEET
from tests.support import samples


def burn(gpus: int = 8, hot: int = 5) -> dict[str, Series]:
    return {
        f"gpu{g}": Series(
            [2.0 * i for i in range(30)],
            [60.0 + (25 if g == hot else 0) + i / 10 for i in range(30)],
            [690.0 + g for i in range(30)],
            [1830.0 if g != hot or i < 10 else 1400.0 for i in range(30)],
        )
        for g in range(gpus)
    }


def test_three_charts_with_units_and_the_bad_gpu_by_name() -> None:
    images = plots.telemetry(burn(), {"gpu5": Verdict.FAIL})
    shown = [words(image) for image in images]
    assert [title for each in shown for title in each if ", " in title] == [
        "temperature, °C", "power, W", "SM clock, MHz",
    ]  # fmt: skip
    for each in shown:
        assert [word for word in each if word.startswith("gpu")] == ["gpu5"]
        assert "seconds since the first sample" in each
    assert images[0].alt == "temperature of 8 GPUs 60 to 87.9 °C; gpu5 (fail) 85 to 87.9 °C"


def test_where_nobody_has_a_finding_the_odd_one_is_named_quietly() -> None:
    image = plots.telemetry(burn(), {})[0]
    assert [word for word in words(image) if word.startswith("gpu")] == ["gpu5"]
    assert "fail" not in image.alt


def test_verdicts_differ_by_more_than_colour() -> None:
    def dashes(verdict: Verdict) -> str:
        svg = source(plots.telemetry(burn(), {"gpu5": verdict})[0])
        (kind,) = set(re.findall('<path class="(v-\\w+)"', svg))
        (look,) = re.findall(rf"\.lines \.{kind} {{ ([^}}]*)}}", SHEET) or ["solid"]
        return str(look)

    assert len({dashes(verdict) for verdict in (Verdict.FAIL, Verdict.WARN, Verdict.ERROR)}) == 3


def test_what_was_not_sampled_has_no_chart() -> None:
    one = Series([0.0, 2.0], [None, None], [1.0, None], [None, None])
    assert [image.alt for image in plots.telemetry({"gpu0": one}, {})] == ["power of 1 GPU 1 to 1 W"]
    assert plots.telemetry({}, {}) == []


def test_many_gpus_cost_no_more_than_a_few() -> None:
    images = plots.telemetry(burn(3000, hot=2999), {"gpu2999": Verdict.FAIL})
    assert sum(len(image.source) for image in images) < 500_000
    assert "gpu2999" in words(images[0])


def test_the_same_numbers_give_the_same_bytes_in_any_process(tmp_path: Path) -> None:
    program = (
        "import sys; from provision.report import plots\n"
        "from provision.checks.gpu.telemetry_rows import Series\n"
        "one = Series([0.0, 2.0, 4.0], [50.0, 60.0, 61.0], [600.0, 690.0, 690.0], [1830.0, 1800.0, 1830.0])\n"
        "sys.stdout.write(plots.telemetry({'gpu0': one}, {})[0].source)"
    )
    written(program, ({"PYTHONHASHSEED": "1"}, None), ({"PYTHONHASHSEED": "2"}, tmp_path))
    skus = glance(samples.demo()).skus
    assert plots.fleet(skus) == plots.fleet(skus)


def test_a_peak_and_a_dip_of_one_sample_are_drawn_however_many_there_are() -> None:
    """An hour of one sample per second, while a plot has room for a few hundred."""
    temperatures: list[float | None] = [60.0] * 3600
    temperatures[1234], temperatures[2345] = 91.0, 41.0
    one = Series([float(second) for second in range(3600)], temperatures, [None] * 3600, [None] * 3600)
    (image,) = plots.telemetry({"gpu0": one.thinned(300)}, {})
    heights = [y for _, y in line(image)]
    usual = heights[0]
    assert (min(heights) < usual - 50, max(heights) > usual + 50) == (True, True)
    assert len(heights) <= 300


def line(image: Image) -> list[tuple[int, int]]:
    """Return the points of a chart's only line, in chart units."""
    (path,) = [one.get("d", "") for lines in drawing(image).iter("g") for one in lines]
    numbers = [int(number) for number in re.findall(r"-?\d+", path)]
    steps = list(zip(numbers[::2], numbers[1::2], strict=True))
    return [(sum(x for x, _ in steps[:n]), sum(y for _, y in steps[:n])) for n in range(1, len(steps) + 1)]


def test_no_line_is_drawn_over_what_was_not_sampled_and_one_sample_alone_is_a_dot() -> None:
    one = Series([0.0, 2.0, 4.0, 6.0], [50.0, None, 60.0, None], [None] * 4, [None] * 4)
    (image,) = plots.telemetry({"gpu0": one}, {})
    (path,) = [path.get("d", "") for lines in drawing(image).iter("g") for path in lines]
    assert (path.count("M"), path.count("h0"), path.count("l")) == (2, 2, 0)


@pytest.mark.parametrize("count", [1, 2, 8, 72])
def test_names_at_the_ends_of_lines_are_not_over_each_other(count: int) -> None:
    bad = dict.fromkeys(burn(count), Verdict.FAIL)
    for image in plots.telemetry(burn(count), bad):
        places = sorted(float(text.get("y", "")) for text in drawing(image).iter("text")
                        if "loud" in text.get("class", ""))  # fmt: skip
        assert all(later - earlier >= 11 for earlier, later in pairwise(places))
        assert (places[0] > 11, places[-1] < 216) == (True, True)
        named = len(places)
        assert named == min(count, 11)
        assert any(word.endswith(f"+{count - named}") for word in words(image)) == (count > named)


def test_the_fleets_chart_names_limit_outlier_and_what_was_not_measured() -> None:
    strip = Strip(
        "burn rate", "Gflop/s", "at_least", (50.0, 51.0, 52.0), (Mark("n7 gpu3", 20.0, Verdict.FAIL),),
        45.0, "limit ≥ 45 Gflop/s", 2,
    )  # fmt: skip
    (sku,) = plots.fleet([Sku("h100-sxm", 6, (strip,), 0)])
    (shown,) = sku.strips
    assert sku.title == "h100-sxm: 6 nodes"
    assert (shown.what, shown.unit) == ("Burn rate", "Gflop/s, more is better")
    assert (shown.limit, shown.silent, shown.more) == ("limit ≥ 45 Gflop/s", 2, 0)
    assert "n7 gpu3" in words(shown.image)
    assert shown.image.alt == "h100-sxm burn rate 20 to 52 Gflop/s, stands out: n7 gpu3 20"
    parts = shown.image.source
    assert [parts.count(f'class="{kind}') for kind in ("median", "limit", "marker v-fail")] == [1, 1, 1]
    assert plots.fleet([]) == []


def test_numbers_below_a_strip_and_names_above_it_have_room_in_a_narrow_one() -> None:
    marks = tuple(Mark(f"gpu-{i:03d} gpu{i % 8}", 45_000.0 + 150 * i, Verdict.FAIL) for i in range(40))
    strip = Strip("burn rate", "Gflop/s", "at_least", (51_234.5,), marks, 45_000.0, "", 0)
    image = plots.fleet([Sku("x", 6, (strip,), 0)])[0].strips[0].image
    rows: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for text in drawing(image).iter("text"):
        kind, said = text.get("class", "").split(), "".join(text.itertext())
        if "roomy" not in kind:
            at, wide = float(text.get("x", "").rstrip("%")) * 3, len(said) * 11 * 0.6  # of 300 pixels
            start = at - wide * (0.5 if "mid" in kind else "end" in kind)
            rows[text.get("y", "")].append((start, start + wide))
    assert len(rows) == 2
    for spans in rows.values():
        assert len(spans) >= 2
        assert all(end < start for (_, end), (start, _) in pairwise(sorted(spans)))
        assert (min(spans)[0] >= 0, max(end for _, end in spans) <= 300) == (True, True)


def test_ten_thousand_values_are_no_larger_than_the_places_there_are() -> None:
    values = tuple(1000.0 + i / 1000 for i in range(100_000))
    marks = tuple(Mark(f"n{i} gpu{i % 8}", 900.0 + i / 1000, Verdict.FAIL) for i in range(10_000))
    strip = Strip("rate", "GB/s", "at_least", values, marks, None, "", 0)
    shown = plots.fleet([Sku("x", 10_000, (strip,), 0)])[0].strips[0]
    assert len(shown.image.source) < 25_000
    named = [word for word in words(shown.image) if word.startswith("n")]
    assert 1 <= len(named) <= 6
    assert shown.more == 10_000 - len(named)


@pytest.mark.parametrize("value", [0.0, 5.0, 1e14, 1e-9])
def test_values_that_are_all_alike_are_drawn_with_a_number_below(value: float) -> None:
    strip = Strip("rate", "GB/s", "at_most", (value, value), (), None, "", 0)
    image = plots.fleet([Sku("x", 2, (strip,), 0)])[0].strips[0].image
    assert len(words(image)) >= 1
    assert "nan" not in source(image)


def test_hostile_names_are_text_in_a_well_formed_image() -> None:
    skus = glance(samples.hostile()).skus
    names = ("$x^{$", "<script>alert(1)</script>", "]]>&amp;", "עברית ✗ 漢字")
    hostile = [
        Sku(
            name,
            1,
            (Strip(name, name, "at_least", (1.0,), (Mark(name, 2.0, Verdict.FAIL),), None, name, 1),),
            0,
        )
        for name in names
    ]
    for sku in plots.fleet([*skus, *hostile]):
        for strip in sku.strips:
            assert "<script" not in source(strip.image)
    assert "<script>alert(1)</script>" in words(plots.fleet(hostile)[1].strips[0].image)
    for image in plots.telemetry({"<b>$x_": burn(1)["gpu0"]}, {"<b>$x_": Verdict.FAIL}):
        assert "<b>$x_" in words(image)


@given(st.floats(-1e14, 1e14), st.floats(1e-9, 1e14), st.integers(2, 8))
def test_ticks_are_round_within_and_not_too_many(low: float, size: float, most: int) -> None:
    high = low + size
    assume(low < high and size > 1e-6 * abs(low))
    found = [at for at, _ in ticks(low, high, most)]
    assert 1 <= len(found) <= most
    room = size * 1e-6
    assert low - room <= found[0] <= found[-1] <= high + room
    assert len({label for _, label in ticks(low, high, most)}) == len(found) or size < 1e-3 * abs(low)


@given(st.lists(st.floats(0, 200), max_size=30), st.floats(1, 20))
def test_things_are_moved_apart_in_order_and_within_where_they_fit(wanted: list[float], room: float) -> None:
    found = apart(sorted(wanted), room, 0, 200)
    assert all(later - earlier >= room - 1e-6 for earlier, later in pairwise(found))
    if found and (len(found) - 1) * room <= 200:
        assert -1e-6 <= found[0] <= found[-1] <= 200 + 1e-6
