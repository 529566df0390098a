"""The real nvidia-smi of several drivers and the real amd-smi of two releases, above values of our own."""

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

# Seconds of a test: the first run fetches programs from Debian's archive, one process after the other.
_FETCHING = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_FETCHING))


@pytest.fixture(scope="session")
def printers(tmp_path_factory: pytest.TempPathFactory) -> Printers:
    """Driver → its nvidia-smi.

    Skipped, with the reason, where Debian's archive is not at hand, or has this driver no longer.
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
    """Release → its amd-smi. Skipped, with the reason, where Debian's archive is not at hand."""
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
