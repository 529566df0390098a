"""Base trees: a minimal Debian per release, made once per host with mmdebstrap, shared by all nodes."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path

from provision.errors import LabError
from provision.lab import process
from provision.lab.command import attempt, call, locked, waiting_lock
from provision.lab.folders import remove_tree
from provision.lab.host import KEYRING
from provision.lab.mirror import VARIABLE
from provision.lab.places import CACHE
from provision.lab.spec import RELEASES

USER = "ops"
USER_ID = 1000
COMPONENTS = "main contrib non-free non-free-firmware"
# python3-apt is what Ansible's apt module needs; procps and pciutils are on every real server.
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
_TREES = CACHE / "trees"
# Counts up when `_finish` changes, so that an old tree is not taken for a new one.
_RECIPE = 1


def tree_path(release: str) -> Path:
    """Where the base tree of `release` is, or will be; the name changes with what goes into it."""
    digest = hashlib.sha256(repr((release, PACKAGES, COMPONENTS, _RECIPE)).encode()).hexdigest()
    return _TREES / f"{release}-{digest[:8]}"


def ensure_tree(release: str, mirror: str | None, say: Callable[[str], None]) -> Path:
    """The base tree of `release`, built when it is not there, which takes about half a minute.

    `mirror` is the URL to build from; None: mmdebstrap's own default. Two builders wait for each other.
    """
    tree = tree_path(release)
    if tree.is_dir():
        return tree
    _TREES.mkdir(parents=True, exist_ok=True)
    with waiting_lock(_TREES / f"{release}.lock"):
        if tree.is_dir():
            return tree
        _abandon(release)
        say(f"building the {release} base tree (once per machine)")
        try:
            _bootstrap(_TREES / f"building-{release}", release, mirror)
            _finish(_TREES / f"building-{release}")
            (_TREES / f"building-{release}").rename(tree)
        finally:
            _abandon(release)
    return tree


def abandon_builds() -> None:
    """Remove what a killed builder left; a living one is left alone."""
    for release in RELEASES:
        with contextlib.suppress(LabError), locked(_TREES / f"{release}.lock", release):
            _abandon(release)


def _abandon(release: str) -> None:
    """Stop what still works on a half-built tree (mmdebstrap leaves a gpg agent, too) and remove it."""
    for folder in (_TREES / f"building-{release}", _TREES / f"tmp-{release}"):
        strays = [pid for pid, words in process.command_lines() if any(str(folder) in word for word in words)]
        process.stop_pids(strays, grace=15)
        remove_tree(folder)


def mirror_of(tree: Path) -> str:
    """The mirror `tree` was built from, as its own apt sources say; raises LabError when they name none."""
    for line in (tree / "etc/apt/sources.list").read_text().splitlines():
        for word in line.split():
            if word.startswith(("http://", "https://")):
                return word.rstrip("/")
    raise LabError(f"no mirror in {tree}/etc/apt/sources.list", f"set {VARIABLE} to a Debian mirror's URL")


def trust_options() -> list[str]:
    """This host's apt options about dates: behind a frozen mirror the checks are off."""
    done = attempt("apt-config", "dump", "Acquire::Check-Date", "Acquire::Check-Valid-Until")
    return [line.strip() for line in done.stdout.splitlines() if line.startswith("Acquire::Check-")]


def _bootstrap(folder: Path, release: str, mirror: str | None) -> None:
    suite = RELEASES[release]
    source = [f"deb [signed-by={KEYRING}] {mirror} {suite} {COMPONENTS}"] if mirror else []
    options = [f"--aptopt={option.rstrip(';')}" for option in trust_options()]
    fix = (
        f"set {VARIABLE} to a Debian mirror this host reaches, and see that debian-archive-keyring is recent"
    )
    temporary = _TREES / f"tmp-{release}"
    temporary.mkdir()
    what = (f"--components={COMPONENTS.replace(' ', ',')}", f"--include={','.join(PACKAGES)}")
    call(
        *("mmdebstrap", "--mode=root", "--variant=minbase", *what, *options, suite, str(folder), *source),
        timeout=1200,
        extra={"TMPDIR": str(temporary)},
        fix=fix,
    )


def _finish(tree: Path) -> None:
    """What all nodes of all labs have in common."""
    call("chroot", tree, "useradd", "--create-home", "--shell", "/bin/bash", "--uid", str(USER_ID), USER)
    call("chroot", tree, "passwd", "--lock", "root")
    for secret in (tree / "etc/ssh").glob("ssh_host_*"):
        secret.unlink()  # every node gets its own
    for name in ("etc/resolv.conf", "etc/hostname", "etc/machine-id"):
        (tree / name).unlink(missing_ok=True)
        (tree / name).touch()
    # dpkg syncs every file to disk; a node's disk is thrown away anyway.
    (tree / "etc/dpkg/dpkg.cfg.d/lab").write_text("force-unsafe-io\n")
    (tree / "etc/apt/apt.conf.d/10lab").write_text(
        'Acquire::Languages "none";\n' + "\n".join(trust_options()) + "\n"
    )
    # Else every first boot rebuilds ld.so.cache, the journal catalog and the users.
    for name in ("etc/.updated", "var/.updated"):
        (tree / name).touch()
