"""Kernels on disk: which a boot may choose, and what the driver's module needs of them."""

import os

from provision.node.observe.files import at, names_in, status_of
from provision.node.observe.probe import FAMILIES, whole_family
from provision.node.observe.system import boot_release, kernels_installed

# What an initramfs has to contain, as the drivers' roles write it.
IN_INITRAMFS = (
    "/etc/modprobe.d/blacklist-nouveau.conf",
    "/etc/modprobe.d/gpuprov-nvidia.conf",
    "/etc/modprobe.d/gpuprov-amdgpu.conf",
)
IMAGES = ("/boot/initrd.img-%s", "/boot/initramfs-%s.img")


def kernel_headers():
    """Releases for which a module can be built. The link alone may lead to headers that are gone."""
    releases = names_in("/lib/modules")
    return [name for name in releases if os.path.exists(at("/lib/modules/%s/build/Makefile" % name))]


def newest(paths):
    """When the newest of these files was changed; None when there is none of them."""
    return max((found.st_mtime for found in map(status_of, paths) if found), default=None)


def initramfs_stale():
    """Whether the next boot's initramfs is older than a file it has to contain; no initramfs is never old."""
    release = boot_release(os.uname().release)
    made, wanted = newest(image % release for image in IMAGES), newest(IN_INITRAMFS)
    return made is not None and wanted is not None and wanted > made


FAMILIES["kernel"] = whole_family(
    {"installed": kernels_installed, "headers": kernel_headers, "initramfs_stale": initramfs_stale}
)
