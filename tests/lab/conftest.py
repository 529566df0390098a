"""Real nodes for tests: a lab for each test file, always removed at its end.

Without root nothing here runs, and the summary says so: LAB TESTS DID NOT RUN.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuprov_lab.spec import DEFAULT_NODES
from tests.lab.gpuprov_up import Operator
from tests.lab.lab_nodes import Lab, running_lab

if TYPE_CHECKING:
    from tests.lab.images import Images

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark lab tests and raise their timeout; one file's tests share one lab (`--dist loadfile`)."""
    files = {path for path in {item.path for item in items} if HERE in path.parents}
    ours = [item for item in items if item.path in files]
    for item in ours:
        item.add_marker(pytest.mark.lab)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))
        if os.geteuid() != 0:
            item.add_marker(
                pytest.mark.skip(reason="LAB TESTS DID NOT RUN: they need root (sudo scripts/test)")
            )


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Run three bare nodes for one test file: two H100 SXM on Debian 13, one L40S on Debian 12."""
    with running_lab("test", DEFAULT_NODES, tmp_path_factory.mktemp("lab") / "lab.yml") as running:
        yield running


@pytest.fixture(scope="module")
def operator(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Operator:
    """Return the operator of this file's lab."""
    return Operator(lab.inventory, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    """Disks made once per session for all workers."""
    from tests.lab.images import Images

    base = tmp_path_factory.getbasetemp()
    with Images(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) as made:
        yield made
