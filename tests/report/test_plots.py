"""The charts: the same bytes each time, well-formed whatever a node is called, and naming who stands out."""

from __future__ import annotations

import base64
from pathlib import Path

import matplotlib
import pytest

from provision.checks.gpu.telemetry_rows import Series
from provision.checks.judge import Verdict
from provision.report import canvas, plots
from provision.report.tables import Mark, Sku, Strip, glance
from tests.report.drawn import drawing, source, words, written
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
    assert [title for each in shown for title in each if "," in title] == [
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
        colour = canvas.TONE[verdict]
        (line,) = [part for part in svg.split("<path") if f"stroke: {colour}" in part]
        return line.split('style="')[1].split('"')[0].replace(colour, "")

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
    (tmp_path / "matplotlibrc").write_text("font.size: 30\nbackend: nonsense\n")
    image = written(program, ({}, None), ({"MPLBACKEND": "nonsense"}, tmp_path))
    skus = glance(samples.demo()).skus
    assert plots.fleet(skus) == plots.fleet(skus)
    svg = base64.b64decode(image.split(b",", 1)[1]).decode()
    assert "<dc:date>" not in svg


def test_a_style_of_the_users_changes_nothing_and_is_left_alone() -> None:
    usual = plots.telemetry(burn(2), {})[0].source
    with matplotlib.rc_context({"axes.facecolor": "black", "svg.fonttype": "path", "font.size": 30}):
        assert plots.telemetry(burn(2), {})[0].source == usual
        assert matplotlib.rcParams["font.size"] == 30


def test_the_fleets_chart_names_limit_outlier_and_what_was_not_measured() -> None:
    strip = Strip(
        "burn rate", "Gflop/s", "at_least", (50.0, 51.0, 52.0), (Mark("n7 gpu3", 20.0, Verdict.FAIL),),
        45.0, "limit ≥ 45 Gflop/s", 2,
    )  # fmt: skip
    image = plots.fleet([Sku("h100-sxm", 6, (strip,), 0)])
    assert image is not None
    shown = words(image)
    for wanted in ("h100-sxm: 6 nodes", "Burn rate", "Gflop/s, more is better", "n7 gpu3",
                   "limit ≥ 45 Gflop/s", "? 2 nodes not measured"):  # fmt: skip
        assert wanted in shown, wanted
    assert image.alt == "h100-sxm burn rate 20 to 52 Gflop/s, stands out: n7 gpu3 20"
    assert plots.fleet([]) is None


def test_ten_thousand_values_are_no_larger_than_the_places_there_are() -> None:
    values = tuple(1000.0 + i / 1000 for i in range(100_000))
    marks = tuple(Mark(f"n{i} gpu{i % 8}", 900.0 + i / 1000, Verdict.FAIL) for i in range(10_000))
    image = plots.fleet(
        [Sku("x", 10_000, (Strip("rate", "GB/s", "at_least", values, marks, None, "", 0),), 0)]
    )
    assert image is not None
    assert len(image.source) < 200_000
    assert any(word.startswith("and 9,99") for word in words(image))


@pytest.mark.parametrize("value", [0.0, 5.0, 1e14, 1e-9])
def test_values_that_are_all_alike_are_drawn(value: float) -> None:
    strip = Strip("rate", "GB/s", "at_most", (value, value), (), None, "", 0)
    assert plots.fleet([Sku("x", 2, (strip,), 0)]) is not None


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
    for each in (skus, hostile):
        image = plots.fleet(each)
        if image is not None:
            drawing(image)
            assert "<script" not in source(image)
    shown = plots.fleet(hostile)
    assert shown is not None
    assert "$x^{$: 1 node" in words(shown)
    for image in plots.telemetry({"<b>$x_": burn(1)["gpu0"]}, {"<b>$x_": Verdict.FAIL}):
        assert "<b>$x_" in words(image)
