"""Metrics as text: Prometheus' own parser reads back exactly the values written."""

from __future__ import annotations

import ast
import math
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from provision.checks import exposition
from provision.checks.exposition import Family, Sample, render


def read(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def one(**labels: str) -> str:
    return render([Family("a", "gauge", "Help.", (Sample(1, labels),))])


def test_families_and_series_are_sorted_and_each_has_its_head() -> None:
    text = render(
        [
            Family("b_total", "counter", "How many.", (Sample(3),)),
            Family("a", "gauge", "What.", (Sample(0, {"node": "n2"}), Sample(1, {"node": "n1", "gpu": "0"}))),
        ]
    )
    assert text == (
        "# HELP a What.\n# TYPE a gauge\n"
        'a{gpu="0",node="n1"} 1\na{node="n2"} 0\n'
        "# HELP b_total How many.\n# TYPE b_total counter\nb_total 3\n"
    )


def test_a_family_without_samples_is_not_written() -> None:
    assert render([Family("a", "gauge", "Help.")]) == ""


def test_quotes_backslashes_and_newlines_of_a_label_are_escaped() -> None:
    assert 'a{name="\\"\\\\n\\n"} 1\n' in one(name='"\\n\n')
    assert read(one(name='"\\n\n')) == {("a", (("name", '"\\n\n'),)): 1}


def test_a_help_text_stays_on_one_line_and_keeps_its_quotes() -> None:
    text = render([Family("a", "gauge", 'a "b"\nup 1\\', (Sample(1),))])
    assert text.splitlines()[0] == '# HELP a a "b"\\nup 1\\\\'
    assert read(text) == {("a", ()): 1}


def test_what_is_not_shown_as_itself_is_replaced() -> None:
    shown = one(name="H100\x1b[2J\r\u202e\ud800")
    assert 'name="H100�[2J���"' in shown
    shown.encode()  # raises if a lone surrogate is left


@given(st.dictionaries(st.from_regex(r"[a-z]\w{0,5}\Z", fullmatch=True).filter(str.isascii), st.text()))
def test_every_label_comes_back(labels: dict[str, str]) -> None:
    kept = {
        name: "".join(c if c.isprintable() or c == "\n" else "�" for c in text)
        for name, text in labels.items()
    }
    assert read(one(**labels)) == {("a", tuple(sorted(kept.items()))): 1}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (True, "1"),
        (0, "0"),
        (-2.0, "-2"),
        (0.1, "0.1"),
        (1764068400.25, "1764068400.25"),
        (1e300, "1e+300"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (math.nan, "NaN"),
    ],
)
def test_numbers(value: float, shown: str) -> None:
    text = render([Family("a", "gauge", "Help.", (Sample(value),))])
    assert text.endswith(f"\na {shown}\n")
    (back,) = read(text).values()
    assert back == value or (math.isnan(back) and math.isnan(value))


def test_a_series_is_written_once_and_has_one_value() -> None:
    twice = Family("a", "gauge", "Help.", (Sample(1, {"b": "x", "c": "y"}), Sample(1, {"c": "y", "b": "x"})))
    assert render([twice]).count("a{") == 1
    with pytest.raises(ValueError, match="two values"):
        render([Family("a", "gauge", "Help.", (Sample(1), Sample(2)))])
    with pytest.raises(ValueError, match="two families"):
        render([twice, twice])


@pytest.mark.parametrize(
    ("name", "kind", "label"),
    [
        ("1a", "gauge", "b"),
        ("a-b", "gauge", "b"),
        ("a\n", "gauge", "b"),
        ("a", "histogram", "b"),
        ("a", "counter", "b"),
        ("a_total", "gauge", "b"),
        ("a", "gauge", "__name__"),
        ("a", "gauge", "b-c"),
    ],
)
def test_a_wrong_name_is_refused(name: str, kind: str, label: str) -> None:
    with pytest.raises(ValueError, match=r"^(not a|a:|a_total:)"):
        Family(name, kind, "Help.", (Sample(1, {label: ""}),))


def test_it_needs_the_standard_library_of_python_39_alone() -> None:
    tree = ast.parse(Path(exposition.__file__).read_text(encoding="utf-8"), feature_version=(3, 9))
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported <= sys.stdlib_module_names
