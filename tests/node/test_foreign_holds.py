"""Holds and version locks set by others that block the declared driver; the roles' own do not count."""

from __future__ import annotations

import pytest

from tests.node.machine import Machine

FACT = "packages.580.126.09.overruled_by"
BRANCH = "packages.580.overruled_by"
RHEL = "ID=rocky\nID_LIKE=rhel\n"
LIST, TOML = "/etc/dnf/plugins/versionlock.list", "/etc/dnf/versionlock.toml"


def paragraph(name: str, version: str, *needs: str, want: str = "install") -> str:
    depends = f"Depends: {', '.join(needs)}\n" if needs else ""
    return (
        f"Package: {name}\nStatus: {want} ok installed\nArchitecture: amd64\n"
        f"Version: {version}\n{depends}Description: {name}\n\n"
    )


@pytest.fixture
def debian(machine: Machine) -> Machine:
    machine.file("/etc/os-release", "ID=debian\n")
    return machine


def status(machine: Machine, *paragraphs: str) -> None:
    machine.file("/var/lib/dpkg/status", "".join(paragraphs))


OLD = (
    paragraph("libcuda1", "570.195.03-1", "libnvidia-ml1 (= 570.195.03-1)", want="hold"),
    paragraph("libnvidia-ml1", "570.195.03-1", "libc6 (>= 2.17)", want="hold"),
    paragraph("nvidia-driver-cuda", "570.195.03-1", "libcuda1 (= 570.195.03-1)", want="hold"),
)


def test_a_driver_that_the_role_holds_is_no_obstacle_to_the_next_one(debian: Machine) -> None:
    status(debian, *OLD)
    assert debian.value(FACT) == []


def test_a_held_package_that_needs_another_driver_is_named_with_the_command(debian: Machine) -> None:
    site = paragraph("sitewatch", "1.0", "libc6", "libnvidia-ml1:amd64 (= 570.195.03-1)", want="hold")
    status(debian, *OLD, site)
    words = (
        "sitewatch 1.0, which is held and needs libnvidia-ml1 570.195.03-1 "
        "(release it: apt-mark unhold sitewatch)"
    )
    assert debian.value(FACT) == [words]
    assert debian.value(BRANCH) == [words]
    assert debian.value("packages.570.195.03.overruled_by") == []
    assert debian.value("packages.570.overruled_by") == []


def test_a_held_driver_library_of_a_third_version_is_named(debian: Machine) -> None:
    stray = paragraph("nvidia-settings", "1:550.163.01-1", "libnvidia-ml1 (= 550.163.01-1)", want="hold")
    status(debian, *OLD, stray)
    (found,) = debian.value(FACT)
    assert found.startswith(
        "nvidia-settings 1:550.163.01-1, which is held and needs libnvidia-ml1 550.163.01-1"
    )


@pytest.mark.parametrize(
    "other",
    [
        paragraph("sitewatch", "1.0", "libnvidia-ml1 (= 570.195.03-1)"),  # not on hold
        paragraph("sitewatch", "1.0", "libnvidia-ml1 (>= 570.195.03-1)", want="hold"),
        paragraph("sitewatch", "1.0", "libnvidia-ml1 (= 570.195.03-1) | libnvidia-ml2", want="hold"),
        paragraph("sitewatch", "1.0", "libnvidia-ml1 (= 580.126.09-1)", want="hold"),
        paragraph("nvidia-container-toolkit", "1.19.1-1", "libnvidia-container1 (= 1.19.1-1)", want="hold"),
        paragraph("firefox", "1.0", "libc6 (= 2.41-1)", want="hold"),
        "Package: sitewatch\nStatus: hold ok config-files\nVersion: 1.0\nDepends: libcuda1 (= 570.1-1)\n\n",
    ],
)
def test_a_hold_that_keeps_nothing_away_is_no_finding(debian: Machine, other: str) -> None:
    status(debian, *OLD, other)
    assert debian.value(FACT) == []


@pytest.fixture
def rhel(machine: Machine) -> Machine:
    machine.file("/etc/os-release", RHEL)
    machine.tool("rpm", "printf 'nvidia-driver-cuda|3|570.195.03-1.el9\\nlibnvidia-ml|3|570.195.03-1.el9\\n'")
    return machine


@pytest.mark.parametrize(
    ("lock", "named"),
    [
        ("nvidia-driver-cuda-3:570.195.03-1.el9.*", False),  # equals the role's own lock, which it releases
        ("libnvidia-ml-3:570.195.03-1.el9.*", False),
        ("nvidia-driver-cuda-3:560.35.03-1.el9.*", True),  # a version that is not installed
        ("kmod-nvidia-open-dkms-3:570.195.03-1.el9.*", True),
        ("nvidia-driver*-570*", True),
        ("*nvidia*-3:570.195.03-1.*", True),
        ("nvidia-driver*-3:580.*", False),
        ("nvidia-driver-cuda-3:580.126.09-1.el9.*", False),
        ("!nvidia-driver-cuda-3:580.126.09-1.el9.*", True),
        ("!nvidia-driver-cuda-3:570.195.03-1.el9.*", False),
        ("*nvidia*570*", False),  # dnf reads all of it as a name, and admits every version of the matches
        ("nvidia-driver-cuda", False),
        ("vim-2:9-1.*", False),
    ],
)
def test_a_line_of_versionlock_is_named_when_it_keeps_the_declared_driver_away(
    rhel: Machine, lock: str, named: bool
) -> None:
    rhel.file(LIST, f"# Added lock on Sat Nov 21 03:43:52 2026\n{lock}\n")
    words = f"{LIST}: {lock} (release it: dnf versionlock delete '{lock}')"
    assert rhel.value(FACT) == ([words] if named else [])


def test_a_lock_to_a_release_of_the_declared_branch_keeps_nothing_away(rhel: Machine) -> None:
    rhel.file(LIST, "nvidia-driver*-3:580.95.05-1.*\n!nvidia-driver-cuda-3:580.105.08-1.*\n")
    assert rhel.value(BRANCH) == []
    assert len(rhel.value(FACT)) == 1


@pytest.mark.parametrize(
    ("name", "conditions", "named"),
    [
        # Example from dnf5-versionlock(8).
        ("*nvidia*", [(">=", "3:570"), ("<", "3:571")], True),
        ("*nvidia*", [(">=", "3:580"), ("<", "3:581")], False),
        ("nvidia-driver-cuda", [("=", "3:570.195.03-1.fc41")], True),
        ("nvidia-driver-cuda", [("=", "3:580.126.09-1.fc41")], False),
        ("nvidia-driver-cuda", [("!=", "3:580.126.09-1.fc41")], True),
        ("nvidia-driver-cuda", [("<=", "3:580.95.05")], True),
        ("bash", [("=", "0:5.2.15-5.fc39")], False),
    ],
)
def test_a_lock_of_dnf_5_is_named_by_its_conditions(
    rhel: Machine, name: str, conditions: list[tuple[str, str]], named: bool
) -> None:
    rows = "".join(
        f'[[packages.conditions]]\nkey = "evr"\ncomparator = "{comparator}"\nvalue = "{value}"\n'
        for comparator, value in conditions
    )
    rhel.file(TOML, f'version = "1.0"\n\n[[packages]]\nname = "{name}"\n{rows}')
    words = f"{TOML}: {name} (release it: dnf versionlock delete '{name}')"
    assert rhel.value(FACT) == ([words] if named else [])


def test_a_lock_of_dnf_5_within_the_branch_keeps_nothing_away(rhel: Machine) -> None:
    rhel.file(
        TOML,
        '[[packages]]\nname = "nvidia-driver-cuda"\n[[packages.conditions]]\nkey = "evr"\n'
        'comparator = "="\nvalue = "3:580.95.05-1.fc41"\n',
    )
    assert rhel.value(BRANCH) == []
    assert len(rhel.value(FACT)) == 1
