"""Base facts (always read) about the system, its kernel, boot and GPUs on the PCI bus."""

import os

from provision.node.observe.files import ReadError, at, link_target, names_in, read_line, read_text
from provision.node.observe.vendors import gpu_part, number_in

PCI_FUNCTIONS = "/sys/bus/pci/devices"


def settings_in(path):
    """Return the KEY=value settings of a shell-like file."""
    pairs = [line.strip().partition("=") for line in (read_text(path) or "").splitlines()]
    return {key: value.strip("\"'") for key, equals, value in pairs if equals and key[:1] != "#"}


def os_release():
    return settings_in("/etc/os-release") or settings_in("/usr/lib/os-release")


def os_family(release):
    kin = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    if "debian" in kin or "ubuntu" in kin:
        return "debian"
    if "rhel" in kin or "fedora" in kin or "centos" in kin:
        return "redhat"
    return release.get("ID")


def version_key(text):
    """Return a key that sorts versions like `sort -V`; a suffix with ~ or -rc sorts before no suffix."""
    key = []
    rest = text.replace("-rc", "~rc")
    while rest:
        size = 1
        while size < len(rest) and rest[size].isdigit() == rest[0].isdigit():
            size += 1
        part = rest[:size]
        key.append((2, int(part), "") if part.isdigit() else (0 if part[0] == "~" else 2, -1, part))
        rest = rest[size:]
    return [*key, (1, 0, "")]


def kernels_installed():
    """Return the kernel releases in /boot that a boot loader offers, newest first."""
    releases = []
    for name in names_in("/boot"):
        release = name[len("vmlinuz-") :]
        if name[:8] == "vmlinuz-" and "rescue" not in release and release[-4:] not in (".old", ".bak"):
            releases.append(release)
    return sorted(releases, key=version_key, reverse=True)


def grub_choice(releases):
    """Return the kernel that GRUB's saved or configured default names; None if it is not in `releases`."""
    entry = settings_in("/etc/default/grub").get("GRUB_DEFAULT", "0")
    if entry == "saved":
        for folder in ("/boot/grub", "/boot/grub2"):
            saved = settings_in(folder + "/grubenv").get("saved_entry")
            entry = saved or entry
    # gnulinux-advanced-UUID>gnulinux-RELEASE-advanced-UUID, or ID-RELEASE, or a title: Advanced options
    # for Debian GNU/Linux>Debian GNU/Linux, with Linux RELEASE
    last = entry.rpartition(">")[2]
    for release in releases:
        named = ("gnulinux-%s-advanced" % release) in last
        if named or last[-len(release) - 1 :] in (" " + release, "-" + release):
            return release
    return None


def boot_release(running):
    """Return the next boot's kernel: GRUB's named choice, else the newest; `running` if /boot has none."""
    try:
        releases = kernels_installed()
        return (grub_choice(releases) or releases[0]) if releases else running
    except ReadError:  # only root can read /boot or GRUB's files
        return running


def probe_system():
    release = os_release()
    name = os.uname()
    return {
        "os.id": release.get("ID"),
        "os.version_id": release.get("VERSION_ID"),
        "os.codename": release.get("VERSION_CODENAME"),
        "os.family": os_family(release),
        "os.arch": name.machine,
        "kernel.release": name.release,
        "kernel.boot_release": boot_release(name.release),
    }


def probe_boot():
    required = os.path.exists(at("/run/reboot-required"))
    reason = None
    if required:
        text = read_text("/run/reboot-required.pkgs") or read_text("/run/reboot-required") or ""
        reason = ", ".join(sorted({line.strip() for line in text.splitlines() if line.strip()})) or None
    return {
        "boot.id": read_line("/proc/sys/kernel/random/boot_id"),
        "boot.required": required,
        "boot.reason": reason,
    }


def as_number(text):
    return int(text) if text and text.isdigit() else None


def pci_id(folder, prefix):
    texts = [read_line(folder + prefix + part) or "" for part in ("vendor", "device")]
    ids = [text.lower().replace("0x", "") for text in texts]
    return ":".join(ids) if all(ids) else None


def probe_gpu():
    gpus = []
    switches = 0
    for address in names_in(PCI_FUNCTIONS):
        folder = "%s/%s/" % (PCI_FUNCTIONS, address)
        part = gpu_part(folder)
        if part == "switch":
            switches += 1
        if part == "gpu":
            gpus.append(
                {
                    "address": address,
                    "device_id": pci_id(folder, ""),
                    "subsystem_id": pci_id(folder, "subsystem_"),
                    "link_width": as_number(read_line(folder + "current_link_width")),
                    "link_width_max": as_number(read_line(folder + "max_link_width")),
                }
            )
    return {"gpu.count": len(gpus), "gpu.pci": gpus, "gpu.nvswitch_count": switches}


def gpus_of(vendor, driver):
    """Return addresses of a vendor's GPUs with this driver, or with none because it could not start them."""
    addresses = []
    for address in names_in(PCI_FUNCTIONS):
        folder = "%s/%s/" % (PCI_FUNCTIONS, address)
        holder = (link_target(folder + "driver") or driver).rpartition("/")[2]
        if gpu_part(folder) == "gpu" and number_in(folder + "vendor") == vendor and holder == driver:
            addresses.append(address)
    return addresses


def bus_address(text):
    """Convert a PCI address to the spelling of sysfs (00000000:4B:00.0 -> 0000:4b:00.0)."""
    domain, _, rest = text.strip().lower().partition(":")
    return "%04x:%s" % (int(domain, 16), rest)


BASE = (
    (
        (
            *("os.id", "os.version_id", "os.codename", "os.family", "os.arch"),
            *("kernel.release", "kernel.boot_release"),
        ),
        probe_system,
    ),
    (("boot.id", "boot.required", "boot.reason"), probe_boot),
    (("gpu.count", "gpu.pci", "gpu.nvswitch_count"), probe_gpu),
)
