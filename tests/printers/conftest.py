"""The real nvidia-smi of several drivers and the real amd-smi of two releases, on top of fake values."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from gpuprov_lab import debian, real_smi
from provision.errors import LabError
from tests.printers import amdsmi
from tests.printers.amdsmi import AmdPrinters, AmdSmi
from tests.printers.smi import RELEASES, NvidiaSmi, Printers, release

# Timeout of a test in seconds: the first run fetches programs from Debian's archive, one process at a time.
_FETCHING = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_FETCHING))


@pytest.fixture(scope="session")
def printers(tmp_path_factory: pytest.TempPathFactory) -> Printers:
    """Return a function: driver → its nvidia-smi.

    Skips, with the reason, if Debian's archive is unavailable or no longer has this driver.
    """
    if reason := real_smi.missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("nvml")

    @cache
    def find(driver: str) -> NvidiaSmi:
        package, suite, _ = RELEASES[driver]
        try:
            return release(driver, folder)
        except LabError as error:
            if suite == "experimental" and "Unable to locate package" in error.what:
                pytest.skip(f"Debian's {suite} has no {package} any more")
            raise

    return find


@pytest.fixture(scope="session")
def amd_printers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AmdPrinters]:
    """Yield a function: release → its amd-smi. Skips, with the reason, without Debian's archive."""
    if reason := debian.missing():
        pytest.skip(reason)
    started = []

    @cache
    def find(named: str) -> AmdSmi:
        files = debian.unpacked("amd-smi", amdsmi.RELEASES[named], "main")
        started.append(AmdSmi.start(files, tmp_path_factory.mktemp("amdsmi")))
        return started[-1]

    yield find
    for program in started:
        program.stop()
