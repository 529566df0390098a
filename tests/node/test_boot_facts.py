"""State after the next boot: kernel, headers, initramfs, DKMS modules, Secure Boot keys, driver."""

from __future__ import annotations

import base64
import os

import pytest

from tests.node.machine import KEY, KEY_FINGERPRINT, Machine

NEW, OLD = "6.12.107+deb13-amd64", "6.12.9+deb13-amd64"
LOG = (
    "DKMS (dkms-3.2.2) make.log for nvidia/580.126.09 for kernel {kernel} (x86_64)\nSat Nov 21 2026\n\n{rest}"
)
OLD_LOG = "DKMS make.log for nvidia-580.126.09 for kernel {kernel} (x86_64)\n{rest}"
BUILD = "/var/lib/dkms/nvidia/580.126.09/build"
COMPILER = f"""# CC [M]  {BUILD}/nvidia/nv-pci.o
{BUILD}/nvidia/nv-pci.c: In function 'nv_resize_pcie_bars':
{BUILD}/nvidia/nv-pci.c:237:9: error: too few arguments to function 'pci_resize_resource'
  237 |     r = pci_resize_resource(pci_dev, NV_GPU_BAR1, requested_size);
make[4]: *** [scripts/Makefile.build:234: {BUILD}/nvidia/nv-pci.o] Error 1
"""
CERTIFICATE = b"\x30\x82\x03\x3c" + bytes(range(200)) * 4
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
SHIM = "605dab50-e046-4300-abb6-3dd810dd8b23"


def kernels(machine: Machine, *releases: str) -> None:
    for release in releases:
        machine.file(f"/boot/vmlinuz-{release}", "")
        (machine.root / "lib/modules" / release).mkdir(parents=True, exist_ok=True)


def test_without_kernels_of_its_own_a_machine_boots_what_it_runs(machine: Machine) -> None:
    assert machine.value("kernel.boot_release") == os.uname().release
    assert machine.value("kernel.installed") == []


def test_the_newest_kernel_boots_and_newest_is_not_alphabetical(machine: Machine) -> None:
    kernels(machine, OLD, NEW, "6.12.107~rc3-amd64")
    machine.file("/boot/vmlinuz-0-rescue-0123", "")
    machine.file("/boot/vmlinuz-9.9.9.old", "")
    assert machine.value("kernel.installed") == [NEW, "6.12.107~rc3-amd64", OLD]
    assert machine.value("kernel.boot_release") == NEW


@pytest.mark.parametrize(
    ("default", "saved", "expected"),
    [
        ("saved", f"saved_entry=gnulinux-advanced-12ab>gnulinux-{OLD}-advanced-12ab", OLD),
        ("saved", f"saved_entry=0f1e2d3c4b5a69788796a5b4c3d2e1f0-{OLD}", OLD),
        ("saved", "saved_entry=1", NEW),
        ("saved", "", NEW),
        ("saved", f"saved_entry=gnulinux-advanced-12ab>gnulinux-{OLD}-recovery-12ab", NEW),
        (f"Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux {OLD}", "", OLD),
        ("Advanced options>Debian GNU/Linux, with Linux 5.10.0-gone", "", NEW),
        ("0", f"saved_entry=x-{OLD}", NEW),
    ],
)
def test_grubs_choice_is_honoured_when_it_names_a_kernel(
    machine: Machine, default: str, saved: str, expected: str
) -> None:
    kernels(machine, OLD, NEW)
    machine.file("/etc/default/grub", f'# GRUB_DEFAULT=7\nGRUB_TIMEOUT=5\nGRUB_DEFAULT="{default}"\n')
    machine.file("/boot/grub2/grubenv", f"# GRUB Environment Block\n{saved}\n####")
    assert machine.value("kernel.boot_release") == expected


def test_headers_count_when_a_module_can_be_built_with_them(machine: Machine) -> None:
    kernels(machine, OLD, NEW)
    machine.file("/usr/src/linux-headers-new/Makefile", "")
    for release, target in ((NEW, "linux-headers-new"), (OLD, "linux-headers-removed")):
        (machine.root / f"lib/modules/{release}/build").symlink_to(f"../../../usr/src/{target}")
    assert machine.value("kernel.headers") == [NEW]


def test_an_initramfs_older_than_what_it_has_to_contain_is_stale(machine: Machine) -> None:
    assert machine.value("kernel.initramfs_stale") is False, "there is none, and nothing to put in"
    kernels(machine, NEW)
    settings = machine.file("/etc/modprobe.d/blacklist-nouveau.conf", "blacklist nouveau\n")
    assert machine.value("kernel.initramfs_stale") is False
    image = machine.file(f"/boot/initrd.img-{NEW}", "")
    os.utime(image, (1000, 1000))
    assert machine.value("kernel.initramfs_stale") is True
    os.utime(settings, (999, 999))
    assert machine.value("kernel.initramfs_stale") is False


def test_what_dkms_installed_is_told_from_what_it_only_has(machine: Machine) -> None:
    assert machine.value("dkms.nvidia.built") == []
    for name in ("nvidia-current-open", "zfs"):
        (machine.root / f"var/lib/dkms/{name}/1.0/source").mkdir(parents=True)
    assert machine.value("dkms.nvidia.built") == []
    link = machine.root / f"var/lib/dkms/nvidia-current-open/kernel-{NEW}-x86_64"
    link.symlink_to(f"1.0/{NEW}/x86_64")
    assert machine.value("dkms.nvidia.built") == [NEW]
    assert machine.value("dkms.zfs.built") == []


@pytest.mark.parametrize("head", [LOG, OLD_LOG])
def test_a_failed_build_is_told_in_the_compilers_words(machine: Machine, head: str) -> None:
    kernels(machine, NEW)
    machine.file(f"{BUILD}/make.log", head.format(kernel=NEW, rest=COMPILER))
    error = "nvidia/nv-pci.c:237:9: error: too few arguments to function 'pci_resize_resource'"
    assert machine.value("dkms.nvidia.failed") == [f"{NEW}: {error}"]
    assert machine.value("dkms.zfs.failed") == []


@pytest.mark.parametrize(
    ("rest", "error"),
    [
        ("make: *** /lib/modules/x/build: No such file or directory.  Stop.\n", "make: *** /lib/modules/x"),
        (
            'ERROR: modpost: GPL-incompatible module uses "rcu"\n',
            'ERROR: modpost: GPL-incompatible module uses "rcu"',
        ),
        ("Cleaning build area...\n", "the build ended without an error message"),
        ("  if grep ': error: ' x\nnv.c:1:2: fatal error: x.h: No such file\n", "nv.c:1:2: fatal error: x.h"),
    ],
)
def test_errors_that_are_not_the_compilers(machine: Machine, rest: str, error: str) -> None:
    kernels(machine, NEW)
    machine.file(f"{BUILD}/make.log", LOG.format(kernel=NEW, rest=rest))
    assert machine.value("dkms.nvidia.failed")[0].startswith(f"{NEW}: {error}")


def test_a_failure_that_was_put_right_or_whose_kernel_is_gone_is_none(machine: Machine) -> None:
    kernels(machine, NEW)
    machine.file(f"{BUILD}/make.log", LOG.format(kernel="5.10.0-gone", rest=COMPILER))
    assert machine.value("dkms.nvidia.failed") == []
    machine.file(f"{BUILD}/make.log", LOG.format(kernel=NEW, rest=COMPILER))
    (machine.root / f"var/lib/dkms/nvidia/kernel-{NEW}-x86_64").symlink_to(f"590.48.01/{NEW}/x86_64")
    assert machine.value("dkms.nvidia.failed") == []


def test_a_machine_without_efi_has_no_secure_boot(machine: Machine) -> None:
    assert machine.value("secure_boot.enabled") is None
    assert machine.value("secure_boot.enrolled") is None
    assert machine.value("secure_boot.rejects_dkms") is False


def test_secure_boot_is_what_firmware_and_shim_say_together(machine: Machine) -> None:
    machine.file("/sys/firmware/efi/efivars/Other", b"")
    assert machine.value("secure_boot.enabled") is False
    machine.file(SECURE_BOOT, b"\x06\0\0\0\0")
    assert machine.value("secure_boot.enabled") is False
    machine.file(SECURE_BOOT, b"\x06\0\0\0\1")
    assert machine.value("secure_boot.enabled") is True
    machine.file(f"/sys/firmware/efi/efivars/MokSBStateRT-{SHIM}", b"\x06\0\0\0\1")
    assert machine.value("secure_boot.enabled") is False, "shim was told not to check"


@pytest.mark.parametrize(
    "where", [f"efivars/MokListRT-{SHIM}", "mok-variables/MokListRT", "efivars/db-d719b2cb"]
)
def test_the_key_is_enrolled_when_its_certificate_is_in_a_list(machine: Machine, where: str) -> None:
    machine.file(SECURE_BOOT, b"\x06\0\0\0\1")
    assert machine.value("secure_boot.enrolled") is False, "no key was made yet"
    assert machine.value("secure_boot.rejects_dkms") is True
    machine.file("/var/lib/dkms/mok.pub", CERTIFICATE)
    machine.file(f"/sys/firmware/efi/{where}", b"\x07\0\0\0" + b"another certificate" * 9)
    assert machine.value("secure_boot.enrolled") is False
    machine.file(f"/sys/firmware/efi/{where}", b"\x07\0\0\0" + b"header" + CERTIFICATE + b"another")
    assert machine.value("secure_boot.enrolled") is True
    assert machine.value("secure_boot.rejects_dkms") is False


def test_the_key_is_the_one_dkms_signs_with_here(machine: Machine) -> None:
    machine.file(f"/sys/firmware/efi/efivars/MokListRT-{SHIM}", b"\x07\0\0\0" + CERTIFICATE)
    machine.file("/etc/os-release", "ID=ubuntu\n")
    machine.file("/var/lib/dkms/mok.pub", CERTIFICATE)
    assert machine.value("secure_boot.enrolled") is False, "Ubuntu's DKMS signs with shim's key"
    pem = b"-----BEGIN CERTIFICATE-----\n%s-----END CERTIFICATE-----\n" % base64.encodebytes(CERTIFICATE)
    machine.file("/var/lib/shim-signed/mok/MOK.der", pem)
    assert machine.value("secure_boot.enrolled") is True
    machine.file("/etc/dkms/framework.conf.d/site.conf", 'mok_certificate="/root/site.der"\n')
    assert machine.value("secure_boot.enrolled") is False
    machine.file("/root/site.der", CERTIFICATE)
    assert machine.value("secure_boot.enrolled") is True


def test_the_driver_on_disk_is_that_of_the_kernel_that_will_boot(machine: Machine) -> None:
    kernels(machine, OLD, NEW)
    machine.tool("modinfo", f'[ "$1 $2" = "-k {NEW}" ] && echo 580.126.09')
    assert machine.value("driver.installed_version") == "580.126.09"


def test_a_library_that_does_not_fit_the_module_is_named(machine: Machine) -> None:
    assert machine.value("driver.mismatch") is None
    line = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"
    machine.file("/proc/driver/nvidia/version", line)
    assert machine.value("driver.mismatch") is None
    folder = machine.root / "usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    (folder / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.580.126.09")
    assert machine.value("driver.mismatch") == "module 580.95.05, library 580.126.09"
    machine.file("/proc/driver/nvidia/version", line.replace("580.95.05", "580.126.09"))
    assert machine.value("driver.mismatch") is None


def test_keys_that_apt_trusts_for_everything_are_found(machine: Machine) -> None:
    fact = f"pgp_key.{KEY_FINGERPRINT}.trusted_by"
    assert machine.value(fact) == []
    machine.file("/etc/apt/trusted.gpg.d/old.asc", KEY)
    machine.file("/etc/apt/trusted.gpg.d/README", "no keyring")
    assert machine.value(fact) == ["/etc/apt/trusted.gpg.d/old.asc"]
    assert machine.value("pgp_key.0123.trusted_by") == []
