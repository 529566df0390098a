"""Base trees: a minimal Debian per suite and package manager, built once per host for all nodes."""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from gpuprov_lab import process
from gpuprov_lab.command import attempt, call, locked, waiting_lock
from gpuprov_lab.folders import remove_tree
from gpuprov_lab.host import KEYRING
from gpuprov_lab.mirror import VARIABLE
from gpuprov_lab.places import CACHE
from gpuprov_lab.releases import RELEASES, Base
from provision.errors import LabError

USER = "ops"
USER_ID = 1000
COMPONENTS = "main contrib non-free non-free-firmware"
# Ansible's apt module needs python3-apt; procps and pciutils are on every real server.
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "openssh-server", "sudo", "python3", "python3-apt", "apt", "gpgv"),
    *(
        "debian-archive-keyring",
        "ca-certificates",
        "iproute2",
        "kmod",
        "procps",
        "pciutils",
        "less",
        "logrotate",
    ),
)
DNF = ("dnf", "python3-dnf", "dnf-plugins-core", "rpm", "gpg", "dracut-core")
# Removed from a tree with dnf, where a query of Debian's package manager is a mistake that works by accident.
_DEBIAN_TOOLS = ("apt", "apt-cache", "apt-config", "apt-get", "apt-key", "apt-mark", "dpkg", "dpkg-query")
_DEBIAN_FILES = (
    *("etc/apt/apt.conf.d", "etc/apt/preferences.d", "etc/apt/sources.list.d", "etc/apt/trusted.gpg.d"),
    *("etc/debian_version", "etc/dpkg", "var/lib/apt", "var/lib/dpkg"),
)
# Plugins that the RHEL family does not install by default.
_DEBIAN_PLUGINS = ("expired-pgp-keys", "leaves", "local", "modulesync", "show_leaves", "system_upgrade")
# A plugin that has its own package in the RHEL family; that package links it to this path.
_PLUGIN = "usr/lib/python3/dist-packages/dnf-plugins/versionlock.py"
_PLUGIN_KEPT = "usr/share/dnf-plugins-core/versionlock.py"
_TREES = CACHE / "trees"
# Incremented when `_finish` changes, so that old trees are rebuilt.
_RECIPE = 1
_RECIPE_DNF = 3


def packages(base: Base) -> tuple[str, ...]:
    """Return the packages of a base tree, in addition to Debian's own minimum."""
    return (*(name for name in PACKAGES if name != "python3-apt"), *DNF) if base.dnf else PACKAGES


def tree_path(release: str) -> Path:
    """Return the path of `release`'s base tree, built or not; the name changes with its contents."""
    base = RELEASES[release].base
    recipe = _RECIPE_DNF if base.dnf else _RECIPE
    digest = hashlib.sha256(repr((base.name, packages(base), COMPONENTS, recipe)).encode()).hexdigest()
    return _TREES / f"{base.name}-{digest[:8]}"


def ensure_tree(release: str, mirror: str | None, say: Callable[[str], None]) -> Path:
    """Return the base tree of `release`; building a missing one takes about half a minute.

    `mirror` is the URL to build from; None: mmdebstrap's own default. Two builders wait for each other.
    """
    tree = tree_path(release)
    if tree.is_dir():
        return tree
    base = RELEASES[release].base
    _TREES.mkdir(parents=True, exist_ok=True)
    with waiting_lock(_TREES / f"{base.name}.lock"):
        if tree.is_dir():
            return tree
        _abandon(base)
        say(f"building the {base.name} base tree (once per machine)")
        try:
            _bootstrap(_TREES / f"building-{base.name}", base, mirror)
            _finish(_TREES / f"building-{base.name}")
            if base.dnf:
                _leave_dnf_alone(_TREES / f"building-{base.name}")
            (_TREES / f"building-{base.name}").rename(tree)
        finally:
            _abandon(base)
    return tree


def bases() -> Iterator[Base]:
    """Yield every base once."""
    yield from dict.fromkeys(release.base for release in RELEASES.values())


def abandon_builds() -> None:
    """Remove the remains of killed builders; running builders are left alone."""
    for base in bases():
        with contextlib.suppress(LabError), locked(_TREES / f"{base.name}.lock", base.name):
            _abandon(base)


def _abandon(base: Base) -> None:
    """Stop processes in a half-built tree (mmdebstrap also leaves a gpg agent), and remove it."""
    for folder in (_TREES / f"building-{base.name}", _TREES / f"tmp-{base.name}"):
        inside = re.compile(re.escape(str(folder)) + r"(?![\w-])")  # not other trees with this prefix
        strays = [pid for pid, words in process.command_lines() if any(map(inside.search, words))]
        process.stop_pids(strays, grace=15)
        remove_tree(folder)


def mirror_of(tree: Path) -> str:
    """Return the mirror that `tree` was built from, from its apt sources. Raises LabError without one."""
    for line in (tree / "etc/apt/sources.list").read_text().splitlines():
        for word in line.split():
            if word.startswith(("http://", "https://")):
                return word.rstrip("/")
    raise LabError(f"no mirror in {tree}/etc/apt/sources.list", f"set {VARIABLE} to a Debian mirror's URL")


def trust_options() -> list[str]:
    """Return this host's apt options about dates; behind a frozen mirror these checks are off."""
    done = attempt("apt-config", "dump", "Acquire::Check-Date", "Acquire::Check-Valid-Until")
    return [line.strip() for line in done.stdout.splitlines() if line.startswith("Acquire::Check-")]


def _bootstrap(folder: Path, base: Base, mirror: str | None) -> None:
    suite = base.suite
    source = [f"deb [signed-by={KEYRING}] {mirror} {suite} {COMPONENTS}"] if mirror else []
    options = [f"--aptopt={option.rstrip(';')}" for option in trust_options()]
    fix = (
        f"set {VARIABLE} to a Debian mirror this host reaches, and see that debian-archive-keyring is recent"
    )
    temporary = _TREES / f"tmp-{base.name}"
    temporary.mkdir()
    what = (f"--components={COMPONENTS.replace(' ', ',')}", f"--include={','.join(packages(base))}")
    call(
        *("mmdebstrap", "--mode=root", "--variant=minbase", *what, *options, suite, str(folder), *source),
        timeout=1200,
        extra={"TMPDIR": str(temporary)},
        fix=fix,
    )


def _finish(tree: Path) -> None:
    """Apply the changes that all nodes of all labs share."""
    call("chroot", tree, "useradd", "--create-home", "--shell", "/bin/bash", "--uid", str(USER_ID), USER)
    call("chroot", tree, "passwd", "--lock", "root")
    for secret in (tree / "etc/ssh").glob("ssh_host_*"):
        secret.unlink()  # every node gets its own
    for name in ("etc/resolv.conf", "etc/hostname", "etc/machine-id"):
        (tree / name).unlink(missing_ok=True)
        (tree / name).touch()
    # dpkg syncs every file to disk, which is useless for a disposable disk.
    (tree / "etc/dpkg/dpkg.cfg.d/lab").write_text("force-unsafe-io\n")
    (tree / "etc/apt/apt.conf.d/10lab").write_text(
        'Acquire::Languages "none";\n' + "\n".join(trust_options()) + "\n"
    )
    # Otherwise every first boot rebuilds ld.so.cache, the journal catalog and the users.
    for name in ("etc/.updated", "var/.updated"):
        (tree / name).touch()


def _leave_dnf_alone(tree: Path) -> None:
    """Remove Debian's package manager, so that nodes only have dnf and rpm.

    Installed packages are in no database then, as if placed there by hand: rpm only knows those that dnf
    installs on the node.
    """
    (tree / _PLUGIN_KEPT).parent.mkdir()
    (tree / _PLUGIN).rename(tree / _PLUGIN_KEPT)
    for name in ("versionlock.conf", "versionlock.list"):
        (tree / "etc/dnf/plugins" / name).unlink()
    for name in _DEBIAN_PLUGINS:
        (tree / Path(_PLUGIN).with_name(f"{name}.py")).unlink(missing_ok=True)
        (tree / "etc/dnf/plugins" / f"{name}.conf").unlink(missing_ok=True)
    for name in _DEBIAN_TOOLS:
        (tree / "usr/bin" / name).unlink(missing_ok=True)
    for name in _DEBIAN_FILES:
        place = tree / name
        shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
    # Debian's update-alternatives replaces the RHEL family's; their files begin alike.
    (tree / "var/lib/alternatives").mkdir()
    (tree / "var/lib/dpkg").mkdir()
    (tree / "var/lib/dpkg/alternatives").symlink_to("../alternatives")
    (tree / "usr/sbin/alternatives").symlink_to("../bin/update-alternatives")
