"""The lab's layer over a base tree: files on a node that the lab adds and no package owns."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from gpuprov_lab.places import LabPlace
from gpuprov_lab.releases import RELEASES
from gpuprov_lab.repository import HTTP_PORT, layout
from gpuprov_lab.trees import COMPONENTS, USER, USER_ID

CACHE_PORT = 3142
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"

# Units of no use to a node, which cost boot time or wake up in the middle of a test.
MASKED = (
    *("getty.target", "console-getty.service", "getty@tty1.service", "systemd-networkd-wait-online.service"),
    *(
        "apt-daily.timer",
        "apt-daily-upgrade.timer",
        "dpkg-db-backup.timer",
        "fstrim.timer",
        "e2scrub_all.timer",
    ),
    *(
        "e2scrub_reap.service",
        "systemd-firstboot.service",
        "systemd-resolved.service",
        "systemd-timesyncd.service",
    ),
)

# As on the RHEL family; Debian's own has `best=False` and skips unreachable repositories.
DNF_CONF = """\
[main]
gpgcheck=1
installonly_limit=3
clean_requirements_on_remove=True
best=True
skip_if_unavailable=False
"""
SYSTEM_REPO = """\
[system]
name=The distribution's own packages
baseurl={folder}
enabled=1
gpgcheck=1
gpgkey={key}
"""

# nspawn mounts /proc last, so nothing can be mounted over it from outside; the node does it first thing.
# Surfaces that a machine has beyond its GPUs, for RDMA cards, follow (silicon/mounts.py).
SURFACES_UNIT = """\
[Unit]
Description=Kernel surfaces of the simulated hardware
DefaultDependencies=no
Conflicts=shutdown.target
Before=sysinit.target shutdown.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/mkdir -p -m 1777 /var/cache/silicon
ExecStart=/bin/mount --bind /var/lib/silicon/proc_driver /proc/driver
ExecStart=/bin/sh -c 'cd /var/lib/silicon; [ ! -s proc_cpuinfo ] || mount --bind proc_cpuinfo /proc/cpuinfo'
ExecStart=/bin/sh -c '[ ! -e /proc/modules ] || mount --bind /var/lib/silicon/proc_modules /proc/modules'
ExecStart=/usr/bin/python3 -I -S /usr/lib/silicon/run.py mounts

[Install]
WantedBy=sysinit.target
"""

BOOT_UNIT = """\
[Unit]
Description=What kernel and udev do at boot, for the simulated GPUs
DefaultDependencies=no
Conflicts=shutdown.target
After=silicon-surfaces.service local-fs.target systemd-tmpfiles-setup.service
Before=basic.target shutdown.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/python3 -I -S /usr/lib/silicon/run.py boot

[Install]
WantedBy=basic.target
"""

SSHD = """\
PermitRootLogin no
PasswordAuthentication no
UseDNS no
"""

LSMOD = """\
#!/bin/sh
# The kernel's own list where it has one (then it is ours, mounted over it).
[ -e /proc/modules ] && exec /usr/bin/kmod list
exec awk 'BEGIN { printf "%-23s %7s  %s\\n", "Module", "Size", "Used by" }
    { sub(/,$/, "", $4); printf "%-23s %7d  %d %s\\n", $1, $2, $3, $4 == "-" ? "" : $4 }' \\
    /var/lib/silicon/proc_modules
"""


def launcher(tool: str) -> str:
    """Return a shell script that runs one simulated tool, whatever the caller's environment."""
    return f'#!/bin/sh\nexec /usr/bin/python3 -I -S /usr/lib/silicon/run.py {tool} "$@"\n'


def layer_files(release: str, bridge_address: str, public_key: str) -> dict[str, tuple[str, int]]:
    """Return path on the node -> (content, mode) of every file of the layer."""
    modules = f"usr/lib/modules/{os.uname().release}"
    units = "etc/systemd/system"
    system = RELEASES[release]
    identity = {**system.files, **_package_manager(release, bridge_address)}
    return {
        **{name: (content, 0o644) for name, content in identity.items()},
        "usr/sbin/modprobe": (launcher("modprobe"), 0o755),
        "usr/sbin/rmmod": (launcher("rmmod"), 0o755),
        "usr/sbin/lsmod": (LSMOD, 0o755),
        "usr/bin/lsmod": (LSMOD, 0o755),
        "usr/bin/dmesg": (launcher("dmesg"), 0o755),
        f"{units}/silicon-surfaces.service": (SURFACES_UNIT, 0o644),
        f"{units}/silicon-boot.service": (BOOT_UNIT, 0o644),
        "etc/ssh/sshd_config.d/10-lab.conf": (SSHD, 0o644),
        f"etc/sudoers.d/{USER}": (f"{USER} ALL=(ALL) NOPASSWD: ALL\n", 0o440),
        f"home/{USER}/.ssh/authorized_keys": (public_key, 0o600),
        # depmod and modinfo expect these next to the modules, and the host's folder is not visible.
        f"{modules}/modules.order": ("", 0o644),
        f"{modules}/modules.builtin": ("", 0o644),
        f"{modules}/modules.builtin.modinfo": ("", 0o644),
    }


def _package_manager(release: str, bridge_address: str) -> dict[str, str]:
    """Return the package manager's configuration of sources for the distribution's own packages."""
    system = RELEASES[release]
    if not system.dnf:
        mirror = f"http://{bridge_address}:{CACHE_PORT}/debian"
        return {
            "etc/apt/sources.list": f"deb [signed-by={KEYRING}] {mirror} {system.base.suite} {COMPONENTS}\n"
        }
    place = layout("system", release)
    server = f"http://{bridge_address}:{HTTP_PORT}"
    source = SYSTEM_REPO.format(folder=f"{server}/{place.folder}/", key=f"{server}/{place.key}")
    return {
        "etc/dnf/dnf.conf": DNF_CONF,
        "etc/dnf/vars/releasever": f"{system.major}\n",
        "etc/yum.repos.d/redhat.repo": source,
        "etc/ld.so.conf.d/lib64.conf": "/usr/lib64\n",
    }


def layer_links() -> dict[str, str]:
    """Return path on the node -> target of the symbolic link there."""
    units = "etc/systemd/system"
    links = {f"{units}/{name}": "/dev/null" for name in MASKED}
    links[f"{units}/sysinit.target.wants/silicon-surfaces.service"] = "../silicon-surfaces.service"
    links[f"{units}/basic.target.wants/silicon-boot.service"] = "../silicon-boot.service"
    return links


def ensure_layer(place: LabPlace, release: str, bridge_address: str, public_key: str) -> Path:
    """Write the layer if missing; new content gets a new folder, as a layer in use must not change."""
    files, links = layer_files(release, bridge_address, public_key), layer_links()
    digest = hashlib.sha256(repr((files, links)).encode()).hexdigest()[:8]
    layer = place.folder / f"layer-{release}-{digest}"
    if layer.is_dir():
        return layer
    building = place.folder / f"building-layer-{release}"
    shutil.rmtree(building, ignore_errors=True)
    for name, (content, mode) in files.items():
        write_file(building, name, content, mode)
    for name, target in links.items():
        make_folders(building, Path(name).parent)
        (building / name).symlink_to(target)
    home = building / "home" / USER
    for path in (home, home / ".ssh", home / ".ssh/authorized_keys"):
        os.chown(path, USER_ID, USER_ID)
    (home / ".ssh").chmod(0o700)
    building.rename(layer)
    return layer


def write_file(root: Path, name: str, content: str, mode: int = 0o644) -> None:
    """Write `root`/`name` with exactly `mode`, whatever the umask."""
    make_folders(root, Path(name).parent)
    (root / name).write_text(content)
    (root / name).chmod(mode)


def make_folders(root: Path, name: Path) -> None:
    """Make `root`/`name` and its parents, 0755: an overlay's top folder hides the modes of lower layers."""
    root.mkdir(parents=True, exist_ok=True)
    root.chmod(0o755)
    for part in [*reversed(name.parents), name]:
        if part != Path():
            (root / part).mkdir(exist_ok=True)
            (root / part).chmod(0o755)
