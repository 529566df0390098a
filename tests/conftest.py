"""What all tests have: a seed, and a real sshd on a loopback address, run as whoever runs the tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.seed import DRAWN, SEED, VARIABLE, Selected, times
from tests.support.sshd import Sshd

HERE = Path(__file__).parent

settings.register_profile(
    "gpuprov",
    max_examples=times(20, 400),
    derandomize=not DRAWN,
    database=None,
    deadline=None,
    print_blob=DRAWN,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("gpuprov")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    Selected.long = "not long" not in config.option.markexpr
    if DRAWN:
        config.option.hypothesis_seed = str(SEED)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on lab nodes first: they wait a lot, and none of their long files shall be the last."""
    items.sort(key=lambda item: HERE / "lab" not in item.path.parents)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"the seed of this run: {VARIABLE}={SEED}" if DRAWN else f"fixed seed {SEED}")


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    program = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin:" + os.environ.get("PATH", ""))
    if program is None:
        pytest.fail("sshd is not installed: apt install openssh-server")
    server = Sshd(tmp_path_factory.mktemp("sshd"), program)
    yield server
    server.stop()
