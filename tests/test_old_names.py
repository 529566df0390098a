"""Modules that users import or name on a command line are found by the names they had before."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import pytest

from provision.checks import judge, thresholds
from provision.drift import testinfra


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [("provision.judge", judge, "by_threshold"), ("provision.thresholds", thresholds, "Threshold")],
)
def test_an_own_check_may_import_the_old_name(old: str, new: object, name: str) -> None:
    try:
        with pytest.warns(DeprecationWarning, match=f"{old} is now provision.checks"):
            module = importlib.import_module(old)
        assert getattr(module, name) is getattr(new, name), "another class would be no finding of ours"
    finally:
        sys.modules.pop(old, None)


def test_pytest_finds_the_suite_by_its_old_name() -> None:
    with pytest.warns(DeprecationWarning, match=r"provision\.drift\.testinfra"):
        found = importlib.util.find_spec("provision.testinfra_suite")
    assert found is not None
    assert found.origin == testinfra.__file__
