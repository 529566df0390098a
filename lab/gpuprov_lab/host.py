"""Requirements of the lab on its host: root, a few programs, a few kernel limits."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from gpuprov_lab.command import PATH, call
from gpuprov_lab.places import STATE, make_root_only
from provision.errors import LabError
from provision.paths import own_command

# Required program -> its Debian (and Ubuntu) package.
PROGRAMS = {
    "mmdebstrap": "mmdebstrap",
    "systemd-nspawn": "systemd-container",
    "apt-cacher-ng": "apt-cacher-ng",
    "dpkg-deb": "dpkg",
    "gpg": "gnupg",
    "gpgconf": "gnupg",
    "ip": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "mount": "mount",
    "unshare": "util-linux",
}
# Additional programs for nodes that use rpms.
RPM_PROGRAMS = {
    **dict.fromkeys(("rpmbuild", "rpmsign"), "rpm"),
    **dict.fromkeys(("createrepo_c", "modifyrepo_c"), "createrepo-c"),
}
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
POLICY = Path("/usr/sbin/policy-rc.d")

# With the kernel's default of 128 only about 19 systemd nodes boot; the others die silently.
LIMITS = {"fs.inotify.max_user_instances": 8192}
_LIMITS_BEFORE = STATE / "limits-before.json"


def require_root() -> None:
    """Raise LabError with the command to run, unless root: namespaces, mounts and bridges need it."""
    if os.geteuid() != 0:
        ours = own_command() if sys.argv[0].endswith(".py") else [_full(sys.argv[0])]
        raise LabError(
            "the lab boots real nodes, which needs root", shlex.join(["sudo", *ours, *sys.argv[1:]])
        )
    os.umask(0o022)  # files for nodes must be readable there, whatever the caller's umask


def _full(program: str) -> str:
    """Return the program's full path, since sudo's PATH lacks virtual environments."""
    return shutil.which(program) or program


def missing_packages(*, rpms: bool = False) -> list[str]:
    """Return the Debian packages that this host lacks for a lab, sorted. `rpms`: some nodes use rpms."""
    programs = {**PROGRAMS, **(RPM_PROGRAMS if rpms else {})}
    missing = {package for program, package in programs.items() if shutil.which(program, path=PATH) is None}
    if not KEYRING.exists():
        missing.add("debian-archive-keyring")
    return sorted(missing)


def install_missing(say: Callable[[str], None], *, rpms: bool = False) -> None:
    """Install missing packages with apt-get. Raises LabError that names them if that is impossible."""
    missing = missing_packages(rpms=rpms)
    if not missing:
        return
    names = " ".join(missing)
    if shutil.which("apt-get", path=PATH) is None:
        raise LabError(
            f"the lab needs, under Debian's names: {names}", "install them, or use a Debian or Ubuntu host"
        )
    say(f"installing {names}")
    extra = {"DEBIAN_FRONTEND": "noninteractive"}
    fix = f"run it by hand: apt-get update && apt-get install {names}"
    call("apt-get", "update", "-qq", timeout=300, extra=extra, fix=fix)
    with _services_stay_down():
        call(
            *("apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing),
            timeout=600,
            extra=extra,
            fix=fix,
        )
    if "apt-cacher-ng" in missing and Path("/run/systemd/system").is_dir():
        # Its package enables a cache open to the network; the lab starts a private one on loopback.
        call("systemctl", "disable", "--now", "apt-cacher-ng.service")
    if missing := missing_packages(rpms=rpms):
        raise LabError(f"still missing after the installation: {' '.join(missing)}", fix)


@contextlib.contextmanager
def _services_stay_down() -> Iterator[None]:
    """Keep package scripts from starting services, by Debian's mechanism; an existing policy stays."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\n# gpuprov lab: removed again when its installation has ended\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)


def raise_limits() -> None:
    """Raise the kernel limits that are too low, and save the previous values."""
    before: dict[str, int] = {}
    with contextlib.suppress(FileNotFoundError, ValueError):
        before = json.loads(_LIMITS_BEFORE.read_text())
    for key, required in LIMITS.items():
        now = int(_limit(key).read_text())
        if now < required:
            before.setdefault(key, now)
    if before:
        make_root_only(STATE)
        _LIMITS_BEFORE.write_text(json.dumps(before))  # saved first, for a kill right after the change
    for key in before:
        _limit(key).write_text(str(LIMITS[key]))


def _limit(key: str) -> Path:
    return Path("/proc/sys") / key.replace(".", "/")


def restore_limits() -> None:
    """Restore the kernel limits that `raise_limits` changed; called after the last lab is gone."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        for key, value in json.loads(_LIMITS_BEFORE.read_text()).items():
            _limit(key).write_text(str(value))
    _LIMITS_BEFORE.unlink(missing_ok=True)
