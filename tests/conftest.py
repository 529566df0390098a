"""Common parts of all tests: a seed, and a real sshd on a loopback address, run as the current user."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.ceilings import seconds_of_ci
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
    """Sort tests so that no long file runs last.
    First the main job, which builds the lab's node image; then lab tests without it, benchmarks, the rest."""
    with_image = {item.path for item in items if "images" in getattr(item, "fixturenames", ())}

    @functools.cache
    def place(file: Path) -> int:
        if HERE / "lab" not in file.parents:
            return 2 if HERE / "benchmarks" in file.parents else 4
        if file.name == "test_main_job.py":
            return 0
        return 3 if file in with_image else 1

    items.sort(key=lambda item: place(item.path))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"the seed of this run: {VARIABLE}={SEED}" if DRAWN else f"fixed seed {SEED}")
    config = terminalreporter.config
    if not Selected.long and config.args_source is not config.ArgsSource.ARGS:  # CI runs all but the long set
        reports = (report for group in terminalreporter.stats.values() for report in group)
        terminalreporter.write_line(seconds_of_ci(reports))


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    program = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin:" + os.environ.get("PATH", ""))
    if program is None:
        pytest.fail("sshd is not installed: apt install openssh-server")
    server = Sshd(tmp_path_factory.mktemp("sshd"), program)
    yield server
    server.stop()


@pytest.fixture
def own_sshd(tmp_path_factory: pytest.TempPathFactory, sshd: Sshd) -> Iterator[Sshd]:
    """Run a separate sshd for a test that stops it or counts logins."""
    server = Sshd(tmp_path_factory.mktemp("own"), sshd.program)
    yield server
    server.stop()
