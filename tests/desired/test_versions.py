"""Packagers' version strings: epochs, revisions, builds."""

from __future__ import annotations

import pytest

from provision.desired import versions


@pytest.mark.parametrize(
    ("installed", "wanted", "same"),
    [
        ("580.126.09-1", "580.126.09", True),
        ("1:4.5.3-1", "4.5.3", True),
        ("1:4.5.3-1", "4.5.3-1", True),
        ("580.126.09-1~deb13u1", "580.126.09", True),
        ("580.126.09-1.el9", "580.126.09", True),
        ("2.29.7-1+cuda12.9", "2.29.7", True),
        ("2.29.7-1+cuda12.9", "2.29.7-1", True),
        ("2.29.7-1+cuda12.9", "2.29.7-1+cuda12.9", True),
        ("2.29.7-1+cuda12.9", "2.29.7+cuda12.9", True),
        ("2.29.7-1+cuda13.1", "2.29.7-1+cuda12.9", False),
        ("2.29.7-1+cuda13.1", "2.29.7+cuda12.9", False),
        ("2.29.7-1+cuda12.9", "2.29", False),
        ("580.126.09-1", "580.126.9", False),
        ("580.126.091-1", "580.126.09", False),
        ("12.9.1-1", "12.9", False),
    ],
)
def test_same(installed: str, wanted: str, same: bool) -> None:
    assert versions.same(installed, wanted) is same


@pytest.mark.parametrize(
    ("installed", "wanted", "enough"),
    [
        ("580.126.09-1", "580.65.06", True),
        ("580.65.06", "580.65.06", True),
        ("12.10", "12.9", True),
        ("12.9", "12.10", False),
        ("13.0", "13", True),
        ("13", "13.0", True),
        ("1:1.0", "2.0", False),
        ("garbage", "1.0", False),
        ("1.0", "garbage", False),
    ],
)
def test_at_least(installed: str, wanted: str, enough: bool) -> None:
    assert versions.at_least(installed, wanted) is enough
