"""The operating systems of lab nodes: real Debian, or a Debian tree with another system's identity.

The packages of Ubuntu and of the RHEL family are not on a Debian mirror. A node of such a release runs
Debian's programs under that system's identity (os-release), package manager (apt, or Debian's dnf and rpm)
and repositories; README.md next to this file explains what such a node proves, and what it does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Base:
    """The source of a tree: a Debian suite, with apt or with dnf as its package manager."""

    name: str
    suite: str
    dnf: bool = False


@dataclass(frozen=True)
class Release:
    """One operating system: its base tree, and the files that give it another identity (path → content)."""

    base: Base
    files: Mapping[str, str] = field(default_factory=dict)
    major: str = ""  # of the RHEL family: "9"

    @property
    def dnf(self) -> bool:
        return self.base.dnf

    @property
    def real(self) -> bool:
        """Whether the node really is the system that it claims to be."""
        return not self.files


TRIXIE = Base("debian13", "trixie")
BOOKWORM = Base("debian12", "bookworm")
TRIXIE_DNF = Base("dnf-debian13", "trixie", dnf=True)


def os_release(fields: Mapping[str, str]) -> str:
    """Render `fields` in the format of os-release(5)."""
    return "".join(f'{key}="{value}"\n' for key, value in fields.items())


def _ubuntu(base: Base, version: str, point: str, codename: str, animal: str) -> Release:
    fields = {
        "PRETTY_NAME": f"Ubuntu {point} LTS",
        "NAME": "Ubuntu",
        "VERSION_ID": version,
        "VERSION": f"{point} LTS ({animal})",
        "VERSION_CODENAME": codename,
        "ID": "ubuntu",
        "ID_LIKE": "debian",
        "UBUNTU_CODENAME": codename,
    }
    lsb = f"DISTRIB_ID=Ubuntu\nDISTRIB_RELEASE={version}\nDISTRIB_CODENAME={codename}\n"
    return Release(
        base,
        {"usr/lib/os-release": os_release(fields), "etc/lsb-release": lsb},
        version.partition(".")[0],
    )


def _redhat(os_id: str, name: str, version: str, codename: str) -> Release:
    major = version.partition(".")[0]
    fields = {
        "NAME": name,
        "VERSION": f"{version} ({codename})",
        "ID": os_id,
        "ID_LIKE": "fedora" if os_id == "rhel" else "rhel centos fedora",
        "VERSION_ID": version,
        "PLATFORM_ID": f"platform:el{major}",
        "PRETTY_NAME": f"{name} {version} ({codename})",
    }
    banner = f"{name} release {version} ({codename})\n"
    files = {
        "usr/lib/os-release": os_release(fields),
        "etc/redhat-release": banner,
        "etc/system-release": banner,
    }
    return Release(TRIXIE_DNF, files, major)


RELEASES: Mapping[str, Release] = {
    "debian13": Release(TRIXIE),
    "debian12": Release(BOOKWORM),
    "ubuntu2404": _ubuntu(TRIXIE, "24.04", "24.04.3", "noble", "Noble Numbat"),
    "ubuntu2204": _ubuntu(BOOKWORM, "22.04", "22.04.5", "jammy", "Jammy Jellyfish"),
    "rhel10": _redhat("rhel", "Red Hat Enterprise Linux", "10.0", "Coughlan"),
    "rhel9": _redhat("rhel", "Red Hat Enterprise Linux", "9.6", "Plow"),
    "rhel8": _redhat("rhel", "Red Hat Enterprise Linux", "8.10", "Ootpa"),
    "rocky9": _redhat("rocky", "Rocky Linux", "9.6", "Blue Onyx"),
}
