"""Error texts that nvidia-smi prints in place of a reading, when the driver got no answer from the GPU.

`GPU is lost` and `[GPU is lost]` were seen with nvidia-smi 550.163.01, in `-q -x` and in `--query-gpu`.
`Unknown Error`, `GPU requires reset` and `Insufficient Permissions` are NVML's own error strings
(nvmlErrorString) and stand in cells in the same way; the plain table prints `ERR!` for any of them. `N/A` and
`Not Supported` are no errors: the GPU has no such reading.
"""

from __future__ import annotations

LOST = "GPU is lost"
REQUIRES_RESET = "GPU requires reset"
UNKNOWN = "Unknown Error"
NOT_PERMITTED = "Insufficient Permissions"
UNSPECIFIED = "ERR!"

# The worst first: a GPU whose cells contain several of them is described by the first.
NO_HANDLE = "Unable to determine the device handle for "  # and which GPU: one line in place of the answer
WORST_FIRST = (LOST, REQUIRES_RESET, UNKNOWN, UNSPECIFIED, NOT_PERMITTED)
_AS_PRINTED = {error.casefold(): error for error in WORST_FIRST}
# What helps. Without permission the GPU was not measured, which is no fault of the part.
ACTIONS = {
    LOST: "power-cycle",
    REQUIRES_RESET: "reset GPU",
    UNKNOWN: "power-cycle",
    UNSPECIFIED: "power-cycle",
    NOT_PERMITTED: "fix configuration",
}


def error_text(cell: str) -> str | None:
    """The NVML error in a cell, spelt as in WORST_FIRST and without brackets; None when there is none."""
    text = cell.strip().removeprefix("[").removesuffix("]").strip().casefold()
    return _AS_PRINTED.get(text)


def worst(errors: set[str]) -> str:
    """The error that describes a GPU best, of those its cells contain. `errors` is not empty."""
    return min(errors, key=WORST_FIRST.index)
