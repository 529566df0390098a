"""Versions of the NVIDIA driver in memory, on disk and in user space."""

import os

from provision.node.observe.files import ReadError, at, because, is_absent, link_target, names_in, read_text
from provision.node.observe.probe import FAMILIES, Probe, answered, whole_family
from provision.node.observe.system import boot_release

LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib64",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
)


# Libraries that every GPU program loads, directly or indirectly.
LIBRARIES = ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler", "libnvidia-nvvm", "libnvidia-cfg")
ELF = b"\x7fELF"


def looks_like_version(word):
    return "." in word and word.replace(".", "").isdigit()


def driver_loaded(attribute):
    text = read_text("/proc/driver/nvidia/version")
    if text is None:
        return None
    line = text.partition("\n")[0]
    # NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.126.09  Release Build
    # NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023
    if "Kernel Module" not in line:
        raise ReadError("/proc/driver/nvidia/version was not understood")
    if attribute == "flavour":
        return "open" if "Open Kernel Module" in line else "proprietary"
    for word in line.partition("Kernel Module")[2].split():
        if looks_like_version(word):
            return word
    raise ReadError("/proc/driver/nvidia/version was not understood")


def driver_userspace():
    for folder in LIBRARY_FOLDERS:
        path = folder + "/libnvidia-ml.so.1"
        for _ in range(8):  # Debian goes through /etc/alternatives
            target = link_target(path)
            if target is None:
                break
            path = target if target[:1] == "/" else os.path.dirname(path) + "/" + target
            version = path.rpartition("libnvidia-ml.so.")[2]
            if looks_like_version(version):
                return version
    return None


def driver_nvlink_disabled():
    """Return whether the driver was loaded with NVreg_NvLinkDisable=1, as in a VM with a single GPU."""
    text = read_text("/proc/driver/nvidia/params")
    for line in (text or "").splitlines():
        name, _, value = line.partition(":")
        if name == "NvLinkDisable":
            return value.strip() != "0"
    return None


def driver_mismatch():
    """Return a mismatch of library and loaded module, with which every query of the driver fails."""
    loaded, library = driver_loaded("loaded_version"), driver_userspace()
    if loaded is None or library is None or loaded == library:
        return None
    return "module %s, library %s" % (loaded, library)


def driver_broken_libraries():
    """Return driver libraries that no program can load, because they are empty, not ELF or dangling links."""
    broken = []
    for folder in LIBRARY_FOLDERS:
        for name in names_in(folder):
            if ".so" not in name or name[: name.index(".so")] not in LIBRARIES:
                continue
            path = folder + "/" + name
            target = link_target(path) or path
            if first_bytes(target if target[:1] == "/" else folder + "/" + target) != ELF:
                broken.append(path)
    return broken


def first_bytes(path):
    """Return the first four bytes of the file behind a path; empty if it does not exist."""
    try:
        with open(at(path), "rb") as file:
            return file.read(4)
    except OSError as error:
        if is_absent(error):
            return b""
        raise ReadError(because(error)) from None


def parse_modinfo(names, output):
    for line in output.splitlines():
        if looks_like_version(line.strip()):
            return dict.fromkeys(names, line.strip())
    if "not found" in output:
        return dict.fromkeys(names)
    raise answered("modinfo", output)


def installed_probe(name):
    # Debian's own packages call it nvidia-current. The running kernel may no longer have a module.
    modules = ["nvidia", "nvidia-current", "nvidia-current-open"]
    command = ["modinfo", "-k", boot_release(os.uname().release), "-F", "version", *modules]
    return Probe([name], command=command, parse=parse_modinfo)


FAMILIES["driver"] = whole_family(
    {
        "loaded_version": lambda: driver_loaded("loaded_version"),
        "flavour": lambda: driver_loaded("flavour"),
        "userspace_version": driver_userspace,
        "mismatch": driver_mismatch,
        "broken_libraries": driver_broken_libraries,
        "nvlink_disabled": driver_nvlink_disabled,
    },
    tools={"installed_version": installed_probe},
)
