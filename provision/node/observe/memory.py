"""Memory size, and memory settings that have no kernel parameter, or not on every kernel."""

import os

from provision.node.observe.files import ReadError, at, because, names_in, read_line
from provision.node.observe.probe import FAMILIES, whole_family

SHARED = "/dev/shm"  # noqa: S108 - checked, not written
BLOCKS = "/sys/devices/system/memory"
HUGEPAGE = "/sys/kernel/mm/transparent_hugepage/enabled"


def transparent_hugepage():
    """Return `always`, `madvise` or `never`; "absent" if the kernel has no such setting."""
    text = read_line(HUGEPAGE)
    if text is None:
        return "absent"
    # always [madvise] never
    for word in text.split():
        if word[:1] == "[" and word[-1:] == "]":
            return word[1:-1]
    raise ReadError(HUGEPAGE + " was not understood")


def numa_balancing():
    """Return whether the kernel moves pages to the threads that use them; False for a kernel that cannot."""
    return (read_line("/proc/sys/kernel/numa_balancing") or "0") != "0"


def shm_bytes():
    try:
        status = os.statvfs(at(SHARED))
    except OSError as error:
        raise ReadError(SHARED + ": " + because(error)) from None
    return status.f_blocks * status.f_frsize


def installed_gib():
    """Return the memory that the firmware provides, whatever the kernel reserves of it; None if unknown."""
    size = read_line(BLOCKS + "/block_size_bytes")
    blocks = [name for name in names_in(BLOCKS) if name[:6] == "memory" and name[6:].isdigit()]
    return len(blocks) * int(size, 16) // 2**30 if size and blocks else None


MEMORY = {
    "installed_gib": installed_gib,
    "transparent_hugepage": transparent_hugepage,
    "numa_balancing": numa_balancing,
    "shm_bytes": shm_bytes,
}


FAMILIES["memory"] = whole_family(MEMORY)
