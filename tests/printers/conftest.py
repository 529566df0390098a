"""The real nvidia-smi of several drivers, above values of our own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.printers import debian, nvml_library
from tests.printers.smi import RELEASES, NvidiaSmi

HEADER = ("libnvidia-ml-dev", "experimental", "non-free")


@pytest.fixture(scope="session")
def printers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, NvidiaSmi]:
    """Driver → its nvidia-smi. Skipped, with the reason, where Debian's archive is not at hand."""
    reason = debian.missing() or (None if shutil.which("gcc") else "this host has no gcc")
    if reason:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("nvml")
    nvml_library.build(debian.unpacked(*HEADER) / "usr/include/nvml.h", folder)
    found = {}
    for driver, (package, suite, place) in RELEASES.items():
        program = debian.unpacked(package, suite, "non-free") / Path(place) / "nvidia-smi"
        found[driver] = NvidiaSmi(program, folder, folder / "values")
    return found
