"""The readings without a value for an unresponsive GPU, in `-q -x`, `-q` and --query-gpu.

As nvidia-smi 550.163.01 prints a lost GPU: the driver's own data (names, serial number, address, limits,
PCIe) is still correct, and every value that needs the GPU is replaced by the NVML error.
"""

_SECTIONS = {
    "fb_memory_usage": ("total", "reserved", "used", "free"),
    "utilization": ("gpu_util", "memory_util"),
    "temperature": ("gpu_temp",),
    "gpu_power_readings": ("power_draw", "average_power_draw", "instant_power_draw"),
    "clocks": ("graphics_clock", "sm_clock", "mem_clock", "video_clock"),
    "fabric": ("state", "status", "cliqueId", "clusterUuid", "bandwidth"),
}
_WHOLE = ("remapped_rows",)  # the error in place of the container
_EVERY = ("ecc_errors",)  # the error in place of every value in it
_FIELDS = (
    "temperature.", "power.draw", "memory.", "clocks.current.", "clocks.sm", "clocks.gr", "clocks.mem",
    "clocks.video", "utilization.", "ecc.errors.", "fabric.",
)  # fmt: skip


def entries(rows: list, error: str) -> list:
    """Return the entries of a GPU's tree, with the error in place of unavailable values."""
    found = []
    for name, label, value in rows:
        if name in _WHOLE:
            value = error
        elif name in _EVERY:
            value = _struck(value, None, error)
        elif name in _SECTIONS:
            value = _struck(value, _SECTIONS[name], error)
        found.append((name, label, value))
    return found


def _struck(value, names, error: str):
    if not isinstance(value, list):
        return error
    return [
        (
            name,
            label,
            _struck(inner, names, error) if isinstance(inner, list) or not names or name in names else inner,
        )
        for name, label, inner in value
    ]


def fields(values: dict, error: str) -> dict:
    """Return the fields of --query-gpu, with the error in brackets in place of unavailable values."""
    return {
        name: (unit, f"[{error}]" if name.startswith(_FIELDS) else text)
        for name, (unit, text) in values.items()
    }
