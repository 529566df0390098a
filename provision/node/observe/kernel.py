"""Kernels on disk, kernels with headers, and the age of the next boot's initramfs."""

import os

from provision.node.observe.files import at, names_in, status_of
from provision.node.observe.probe import FAMILIES, whole_family
from provision.node.observe.system import boot_release, kernels_installed

# Files that an initramfs must contain, as written by the drivers' roles.
IN_INITRAMFS = (
    "/etc/modprobe.d/blacklist-nouveau.conf",
    "/etc/modprobe.d/gpuprov-nvidia.conf",
    "/etc/modprobe.d/gpuprov-amdgpu.conf",
)
IMAGES = ("/boot/initrd.img-%s", "/boot/initramfs-%s.img")


def kernel_headers():
    """Return the releases for which a module can be built. The link alone may lead to missing headers."""
    releases = names_in("/lib/modules")
    return [name for name in releases if os.path.exists(at("/lib/modules/%s/build/Makefile" % name))]


def newest(paths):
    """Return the modification time of the newest of these files; None if there are none."""
    return max((status.st_mtime for status in map(status_of, paths) if status), default=None)


def initramfs_stale():
    """Return whether the next boot's initramfs is older than a file it must contain; False without one."""
    release = boot_release(os.uname().release)
    made, required = newest(image % release for image in IMAGES), newest(IN_INITRAMFS)
    return made is not None and required is not None and required > made


FAMILIES["kernel"] = whole_family(
    {"installed": kernels_installed, "headers": kernel_headers, "initramfs_stale": initramfs_stale}
)
