"""Modules built by DKMS, read from its tree, because the shell script `dkms status` takes seconds."""

import os

from provision.node.observe.files import at, link_target, names_in, read_bytes
from provision.node.observe.probe import FAMILIES, Family, one_each

DKMS_TREE = "/var/lib/dkms/"
LOG_LIMIT = 16 * 1024 * 1024
LOG_KERNEL = b" for kernel "  # DKMS (dkms-3.2.2) make.log for nvidia/580.126.09 for kernel 6.12.107 (x86_64)
ERRORS = (b": fatal error: ", b": error: ", b"ERROR: modpost: ", b": undefined reference to ", b"*** ")


def modules_named(name):
    return [module for module in names_in(DKMS_TREE) if module.startswith(name)]


def dkms_built(name):
    """Return the kernels with an installed module, from links kernel-RELEASE-ARCH -> VERSION/RELEASE/ARCH."""
    kernels = set()
    for module in modules_named(name):
        for entry in names_in(DKMS_TREE + module):
            if entry[:7] == "kernel-":
                parts = (link_target("%s%s/%s" % (DKMS_TREE, module, entry)) or "").split("/")
                if len(parts) == 3:
                    kernels.add(parts[1])
    return sorted(kernels)


def first_error(log):
    """Return the first error line of a compiler or of make, without the build folder."""
    lines = log.split(b"\n")
    for mark in ERRORS:
        for line in lines:
            if mark in line and line[:1] not in (b" ", b"\t"):
                text = line.decode("utf-8", "replace").strip()
                folder, build, rest = text.partition("/build/")
                return (rest if build and " " not in folder else text)[:300]
    return "the build ended without an error message"


def dkms_failed(name):
    built = dkms_built(name)
    failures = []
    for module in modules_named(name):
        for version in names_in(DKMS_TREE + module):
            log = read_bytes("%s%s/%s/build/make.log" % (DKMS_TREE, module, version), LOG_LIMIT)
            head = (log or b"").partition(b"\n")[0]
            release = head.partition(LOG_KERNEL)[2].split(b" ")[0].decode("utf-8", "replace")
            # A successful build removes its log; a removed kernel no longer matters.
            if release and release not in built and os.path.isdir(at("/lib/modules/" + release)):
                failures.append("%s: %s" % (release, first_error(log)))
    return sorted(failures)


FAMILIES["dkms"] = Family(
    ("built", "failed"),
    one_each(lambda name, attribute: dkms_built(name) if attribute == "built" else dkms_failed(name)),
)
