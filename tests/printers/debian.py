"""Fetch programs from Debian's archive for tests; apt verifies them, and none is committed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from provision.lab.command import call, waiting_lock
from provision.lab.mirror import debian_mirror

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuprov-tests" / "debian"
_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def missing() -> str | None:
    """Reason why this host cannot fetch from Debian's archive; None if it can."""
    if shutil.which("apt-get") is None or not _KEYS.is_file():
        return "this host has no apt with Debian's keys"
    if debian_mirror() is None:
        return "this host's apt sources name no Debian mirror"
    return None


def unpacked(package: str, suite: str, component: str) -> Path:
    """The folder with the files of a package, fetched where the cache has none. Raises LabError."""
    folder = CACHE / suite / package
    with waiting_lock(CACHE / "lock"):
        if not folder.is_dir():
            _fetch(package, suite, component, folder)
    return folder


def _fetch(package: str, suite: str, component: str, folder: Path) -> None:
    apt = CACHE / f"apt-{suite}-{component}"
    for part in ("lists/partial", "archives/partial", "parts"):
        (apt / part).mkdir(parents=True, exist_ok=True)
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
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    call("apt-get", *options, "update", "-qq", timeout=120, fix="is the mirror of this host reachable?")
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
    (found,) = (apt / "archives").glob(f"{package}_*.deb")
    beside = folder.with_name(f".{folder.name}")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    call("dpkg-deb", "-x", found, beside)
    found.unlink()
    beside.rename(folder)
