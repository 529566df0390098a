"""Prometheus' own programs (promtool, amtool), out of Debian's packages, without installing them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from gpuprov_lab.host import KEYRING
from gpuprov_lab.mirror import debian_mirror
from gpuprov_lab.places import CACHE

SUITE = "trixie"  # the newest that the role knows; its programs run on Debian 12, too
_PACKAGES = ("promtool", "prometheus-alertmanager")


def _apt(folder: Path) -> list[str]:
    """apt-get with lists and archives of its own: the host's are neither read nor changed."""
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
    """The folder with the programs, made once per host, from the mirror of the lab, or of the host.
    Raises CalledProcessError when a package cannot be had."""
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
