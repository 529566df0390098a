"""A root directory made of Debian packages, with programs run in separate namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuprov_lab import debian
from provision.errors import LabError

# Programs write into the folder `own`; all tests share the root itself.
ENTER = """\
set -e
root=$1 own=$2 sys=$3; shift 3
mount --make-rprivate /
mount -t proc proc "$root/proc" 2>/dev/null || mount --rbind /proc "$root/proc"
mount -t tmpfs dev "$root/dev"
for name in null zero urandom; do touch "$root/dev/$name"; mount --bind "/dev/$name" "$root/dev/$name"; done
for name in etc var tmp run; do mount --bind "$own/$name" "$root/$name"; done
if [ -n "$sys" ]; then mount --rbind "$sys" "$root/sys"; fi
exec chroot "$root" "$@"
"""


@dataclass(frozen=True)
class Root:
    """Programs of Debian packages in `packages`, and their writable files in `own`."""

    packages: Path
    own: Path

    def run(
        self,
        *argv: str,
        sys: Path | None = None,
        network: bool = False,
        environment: Mapping[str, str] | None = None,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end, with `sys` as its /sys. All its children end with it."""
        words = ["unshare", *_user(), "--mount", "--pid", "--fork", "--kill-child"]
        words += [] if network else ["--net"]
        words += ["sh", "-c", ENTER, "sh", str(self.packages), str(self.own), str(sys or "")]
        # Set inside, because an LD_PRELOAD would also affect the host's programs.
        words += ["env", *(f"{name}={value}" for name, value in (environment or {}).items()), *argv]
        return subprocess.run(
            words,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "TZ": "UTC", "HOME": "/root"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )


def make(own: Path, name: str, suite: str, *packages: str) -> Root:
    """Make the root `name`; skips the test, with the reason, if this host cannot make or enter it."""
    reason = debian.missing() or _closed()
    if reason:
        pytest.skip(reason)
    try:
        folder = debian.root_of(name, suite, *packages)
    except LabError as error:
        if suite == "forky" and "Unable to locate package" in error.what:
            pytest.skip(f"Debian's {suite} does not have all of {', '.join(packages)} now")
        raise
    for part in ("etc", "var"):
        shutil.copytree(folder / part, own / part, symlinks=True)
    for part in ("tmp", "run"):
        (own / part).mkdir(exist_ok=True)
    return Root(folder, own)


def _user() -> list[str]:
    """Return the options of unshare with which an unprivileged user may mount."""
    return [] if os.geteuid() == 0 else ["--user", "--map-root-user"]


def _closed() -> str | None:
    done = subprocess.run(
        ["unshare", *_user(), "--mount", "--pid", "--net", "--fork", "true"], capture_output=True, check=False
    )
    return None if done.returncode == 0 else "this host lets us make no namespaces"
