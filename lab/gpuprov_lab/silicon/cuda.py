"""The CUDA library's result for a starting program: an error, or the GPUs it may use."""

import os
import sys

NAMES = {
    100: ("CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"),
    802: ("CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"),
    803: (
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "system has unsupported display driver / cuda driver combination",
    ),
}
_PLACES = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64")


def library_version(node, name: str) -> str:
    """Return the version of a library's link target (`libnccl.so.2` → `2.27.7`); empty if not installed."""
    for place in _PLACES:
        link = node.root / place / name
        if link.is_symlink():
            return os.readlink(str(link)).partition(".so.")[2]  # noqa: PTH115 (Path.readlink came with 3.9)
    return ""


def cannot_start(node, program: str, *libraries: str) -> bool:
    """Print the dynamic linker's error and return True if a library is missing. The status is 127."""
    for name in ("libcuda.so.1", *libraries):
        if not library_version(node, name):
            print(
                f"{program}: error while loading shared libraries: {name}: cannot open shared object file: "
                "No such file or directory",
                file=sys.stderr,
            )
            return True
    return False


def error(node) -> int:
    """Return the result of cuInit: 0, or a key of NAMES."""
    driver = node.driver()
    if driver is None or not devices(node):
        return 100
    if library_version(node, "libcuda.so.1") != driver[0]:
        return 803
    return 0 if node.fabric_ready() else 802


def devices(node) -> list:
    """Return the GPUs in CUDA's order, filtered by CUDA_VISIBLE_DEVICES; an unknown entry ends the list."""
    usable = node.usable()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return usable
    chosen = []
    for word in visible.split(","):
        name = word.strip()
        if name.isdigit() and int(name) < len(usable):
            gpu = usable[int(name)]
        else:
            gpu = next(
                (one for one in usable if name.startswith("GPU-") and one["uuid"].startswith(name)), None
            )
        if gpu is None or gpu in chosen:
            break
        chosen.append(gpu)
    return chosen


def runtime_version(node) -> int:
    """Return the driver's CUDA version in the API's form: 12.9 is 12090."""
    import telemetry

    major, minor = telemetry.cuda_version(node.driver()[0]).split(".")
    return int(major) * 1000 + int(minor) * 10
