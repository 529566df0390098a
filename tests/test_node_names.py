"""Compact notation of many node names."""

from __future__ import annotations

import pytest

from provision.node_names import fold, label, natural


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (["gpu-01", "gpu-02", "gpu-03", "gpu-07"], "gpu-[01-03,07]"),
        (["gpu-09", "gpu-10", "gpu-11"], "gpu-[09-11]"),
        (["gpu-9", "gpu-10", "gpu-11"], "gpu-[9-11]"),
        (["n099", "n100", "n1000"], "n[099-100], n1000"),
        (["gpu-02", "gpu-01", "gpu-02"], "gpu-[01-02]"),
        (["gpu-07"], "gpu-07"),
        (["a1.pod3.example", "a2.pod3.example", "a2.pod4.example"], "a[1-2].pod3.example, a2.pod4.example"),
        (["10.0.0.9", "10.0.0.10"], "10.0.0.[9-10]"),
        (["fe80::1", "fe80::2"], "fe80::1, fe80::2"),
        (["login", "head.example"], "head.example, login"),
        (["n" + "9" * 5000], "n" + "9" * 79 + "…"),
        ([], ""),
    ],
)
def test_fold(names: list[str], folded: str) -> None:
    shown = fold(names)
    assert shown == folded or (len(names) == 1 and len(shown) <= 100 and shown.startswith("n9"))


def test_a_long_list_is_cut_and_says_how_many_are_missing() -> None:
    names = [f"{letter}{number}-host" for letter in "abcdefghij" for number in (1, 3)]
    assert fold(names, limit=40) == "a[1,3]-host, b[1,3]-host, c[1,3]-host … and 14 more"


def test_one_long_range_is_cut_too() -> None:
    names = [f"gpu-{number:03d}" for number in range(0, 200, 2)]
    assert fold(names, limit=12) == "gpu-[000,002,004,… 97 more]"


def test_natural_order() -> None:
    assert sorted(["gpu-10", "gpu-9", "a", "1"], key=natural) == ["1", "a", "gpu-9", "gpu-10"]


def test_a_label_is_the_name_where_it_can_be_and_stands_for_one_node_only() -> None:
    assert label("gpu-01.rack2") == "gpu-01.rack2"
    odd = ["gpu\x1b", "gpu\x07", "gpu\ud800", "x" * 5000, "x" * 5001, " gpu", "gpu ", ""]
    labels = [label(name) for name in odd]
    assert len(set(labels)) == len(odd)
    assert all(each.isprintable() and len(each) < 210 for each in labels)
