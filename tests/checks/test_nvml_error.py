"""Which cells of nvidia-smi hold an error of NVML in place of a reading."""

from __future__ import annotations

import pytest

from provision.checks.gpu.gpu_answers import LOST, NOT_PERMITTED, REQUIRES_RESET, UNKNOWN, error_text, worst


@pytest.mark.parametrize(
    ("cell", "error"),
    [
        ("GPU is lost", LOST),  # -q -x, 550.163.01
        ("[GPU is lost]", LOST),  # --query-gpu, 550.163.01
        (" [Unknown Error]\n", UNKNOWN),
        ("[GPU requires reset]", REQUIRES_RESET),
        ("Insufficient Permissions", NOT_PERMITTED),
        ("ERR!", "ERR!"),
    ],
)
def test_an_error_in_place_of_a_reading_is_recognised(cell: str, error: str) -> None:
    assert error_text(cell) == error


@pytest.mark.parametrize("cell", ["N/A", "[N/A]", "[Not Supported]", "", "None", "0", "Success", "31 C"])
def test_a_reading_or_its_absence_is_no_error(cell: str) -> None:
    assert error_text(cell) is None


def test_a_lost_gpu_outranks_the_other_errors_of_its_cells() -> None:
    assert worst({UNKNOWN, LOST, NOT_PERMITTED}) == LOST
