"""One test for each node and fact; the plug-in gpuprov.pytest_plugin collects, reads and judges them."""

from __future__ import annotations

from collections.abc import Callable


def test_expectation(gpuprov_check: Callable[[], None]) -> None:
    gpuprov_check()
