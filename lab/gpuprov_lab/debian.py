"""Fetches programs from Debian's archive; apt verifies them, and none is committed.

The cache belongs to the user, so tests without root use it as well.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from gpuprov_lab.command import call, waiting_lock
from gpuprov_lab.mirror import debian_mirror

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuprov-lab" / "debian"
_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def missing() -> str | None:
    """Return why this host cannot fetch from Debian's archive; None if it can."""
    if shutil.which("apt-get") is None or not _KEYS.is_file():
        return "this host has no apt with Debian's keys"
    if debian_mirror() is None:
        return "this host's apt sources name no Debian mirror"
    return None


def unpacked(package: str, suite: str, component: str) -> Path:
    """Return the folder of a package's files, fetched if not cached. Raises LabError."""
    folder = CACHE / suite / package
    with waiting_lock(CACHE / "lock"):
        if not folder.is_dir():
            _fetch(package, suite, component, folder)
    return folder


def root_of(name: str, suite: str, *packages: str) -> Path:
    """Return a folder with these packages of Debian's main and all their dependencies. Raises LabError.

    The packages are unpacked, not configured: none of their scripts runs.
    """
    folder = CACHE / suite / f"root-{name}"
    with waiting_lock(CACHE / "lock"):
        if not folder.is_dir():
            apt, options = _updated(suite, "main")
            options += ["-o", "APT::Install-Recommends=false"]
            call("apt-get", *options, "--yes", "--download-only", "install", *packages, timeout=300)
            _unpack(sorted((apt / "archives").glob("*.deb")), folder, whole=True)
    return folder


def _updated(suite: str, component: str) -> tuple[Path, list[str]]:
    """Update a private apt for this suite; returns its folder and the apt options that select it."""
    apt = CACHE / f"apt-{suite}-{component}"
    for part in ("lists/partial", "archives/partial", "parts"):
        (apt / part).mkdir(parents=True, exist_ok=True)
    for left in (apt / "archives").glob("*.deb"):
        left.unlink()  # of a killed run
    (apt / "status").touch()
    (apt / "sources.list").write_text(f"deb [signed-by={_KEYS}] {debian_mirror()} {suite} {component}\n")
    settings = {
        "Dir::Etc::sourcelist": apt / "sources.list",
        "Dir::Etc::sourceparts": apt / "parts",
        "Dir::Etc::preferencesparts": apt / "parts",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::State::lists": apt / "lists",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt,
        "APT::Sandbox::User": "",
        "Acquire::Retries": 3,
        "Acquire::Languages": "none",
        "Debug::NoLocking": 1,
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    call("apt-get", *options, "update", "-qq", timeout=120, fix="is the mirror of this host reachable?")
    return apt, options


def _fetch(package: str, suite: str, component: str, folder: Path) -> None:
    apt, options = _updated(suite, component)
    call(
        "sh",
        "-c",
        'cd "$1" && shift && exec apt-get "$@"',
        "sh",
        apt / "archives",
        *options,
        "download",
        package,
        timeout=120,
    )
    _unpack(list((apt / "archives").glob(f"{package}_*.deb")), folder)


def _unpack(packages: list[Path], folder: Path, *, whole: bool = False) -> None:
    """Unpack packages into a new folder, which appears when it is complete, then delete the packages.

    `whole`: lay the folder out as the root of a system.
    """
    beside = folder.with_name(f".{folder.name}")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    for package in packages:
        call("dpkg-deb", "-x", package, beside)
        package.unlink()
    if whole:
        for name in ("dev", "etc", "proc", "run", "sys", "tmp", "var"):
            (beside / name).mkdir(exist_ok=True)
        # Older packages have files in /bin and /lib, which are links into /usr on every machine.
        for name in ("bin", "lib", "lib64", "sbin"):
            (beside / "usr" / name).mkdir(exist_ok=True)
            if (beside / name).is_dir() and not (beside / name).is_symlink():
                call("cp", "-a", f"{beside / name}/.", beside / "usr" / name)
                shutil.rmtree(beside / name)
            if not (beside / name).is_symlink():
                (beside / name).symlink_to(f"usr/{name}")
    beside.rename(folder)
