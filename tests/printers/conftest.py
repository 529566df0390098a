"""The real nvidia-smi of several drivers, above values of our own."""

from __future__ import annotations

import shutil
from functools import cache

import pytest

from provision.errors import LabError
from tests.printers import debian, nvml_library
from tests.printers.smi import HEADER, RELEASES, NvidiaSmi, Printers, release


@pytest.fixture(scope="session")
def printers(tmp_path_factory: pytest.TempPathFactory) -> Printers:
    """Driver → its nvidia-smi.

    Skipped, with the reason, where Debian's archive is not at hand, or has this driver no longer.
    """
    reason = debian.missing() or (None if shutil.which("gcc") else "this host has no gcc")
    if reason:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("nvml")
    nvml_library.build(debian.unpacked(*HEADER) / "usr/include/nvml.h", folder)

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
