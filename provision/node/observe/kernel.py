"""Kernels on disk: which a boot may choose, and what the driver's module needs of them."""

import os

from provision.node.observe.files import ReadError, at, because, is_absent, names_in
from provision.node.observe.probe import FAMILIES, Family, attribute_of, single
from provision.node.observe.system import boot_release, kernels_installed

# What an initramfs has to contain, as the driver's role writes it.
IN_INITRAMFS = ("/etc/modprobe.d/blacklist-nouveau.conf", "/etc/modprobe.d/gpuprov-nvidia.conf")
IMAGES = ("/boot/initrd.img-%s", "/boot/initramfs-%s.img")


def kernel_headers():
    """Releases for which a module can be built. The link alone may lead to headers that are gone."""
    releases = names_in("/lib/modules")
    return [name for name in releases if os.path.exists(at("/lib/modules/%s/build/Makefile" % name))]


def changed_at(path):
    try:
        return os.stat(at(path)).st_mtime
    except OSError as error:
        if is_absent(error):
            return None
        raise ReadError(because(error)) from None


def initramfs_stale():
    """Whether the next boot's initramfs is older than a file it has to contain; no initramfs is never old."""
    release = boot_release(os.uname().release)
    made = [time for time in [changed_at(image % release) for image in IMAGES] if time is not None]
    wanted = [time for time in [changed_at(path) for path in IN_INITRAMFS] if time is not None]
    return bool(made and wanted and max(wanted) > max(made))


KERNEL_FACTS = {
    "installed": kernels_installed,
    "headers": kernel_headers,
    "initramfs_stale": initramfs_stale,
}


def kernel_probes(names):
    return [single(name, KERNEL_FACTS[attribute_of(name)]) for name in names]


FAMILIES["kernel"] = Family(tuple(KERNEL_FACTS), kernel_probes, items=False)
