"""Prometheus' own programs (promtool, amtool), unpacked from Debian's packages without installation."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from gpuprov_lab.host import KEYRING
from gpuprov_lab.mirror import debian_mirror
from gpuprov_lab.places import CACHE

SUITE = "trixie"  # the newest suite that the role supports; its programs also run on Debian 12
_PACKAGES = ("promtool", "prometheus-alertmanager")


def _apt(folder: Path) -> list[str]:
    """Return an apt-get command with private lists and archives, so that the host's stay untouched."""
    settings = {
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": folder / "lists",
        "Dir::Cache::archives": folder / "archives",
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "root",
    }
    return ["apt-get", "-qq", *(word for key, value in settings.items() for word in ("-o", f"{key}={value}"))]


def unpacked() -> Path:
    """Return the folder with the programs, unpacked once per host from the mirror of the lab or host.
    Raises CalledProcessError if a package is unavailable."""
    programs = CACHE / f"prometheus-{SUITE}"
    if programs.is_dir():
        return programs
    folder = CACHE / f"prometheus-{SUITE}.new"
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("lists/partial", "archives/partial", "tree", "programs"):
        (folder / name).mkdir(parents=True)
    mirror = debian_mirror() or "http://deb.debian.org/debian"
    (folder / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirror} {SUITE} main\n")
    for words in (["update"], ["download", *_PACKAGES]):
        subprocess.run([*_apt(folder), *words], cwd=folder, check=True, capture_output=True, timeout=300)
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg-deb", "--extract", package, folder / "tree"], check=True, timeout=120)
    for name in ("promtool", "amtool"):
        shutil.copy2(folder / "tree" / "usr" / "bin" / name, folder / "programs" / name)
    (folder / "programs").rename(programs)
    shutil.rmtree(folder)
    return programs
