"""Our package module for the RHEL family, with stand-ins on PATH that print recorded output of dnf 4
and rpm 4.20 from a node with NVIDIA's module streams."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.modules import Host

# dnf --quiet --disableplugin=versionlock repoquery --available --qf …, with the stream 580-open enabled.
REPOQUERY = """\
kmod-nvidia-open-dkms|3|580.126.09|1.el9|x86_64|nvidia-cuda

kmod-nvidia-open-dkms|3|580.95.05|1.el9|x86_64|nvidia-cuda

libnccl|0|2.29.3|1+cuda13.1|x86_64|nvidia-cuda

libnccl|0|2.29.7|1+cuda12.9|x86_64|nvidia-cuda

libnccl|0|2.29.7|1+cuda13.2|x86_64|nvidia-cuda

nvidia-driver-cuda|3|580.126.09|1.el9|x86_64|nvidia-cuda

nvidia-driver-cuda|3|580.95.05|1.el9|x86_64|nvidia-cuda

nvidia-driver-cuda|3|580.95.05|1.el9|i686|nvidia-cuda

nvidia-kmod-common|3|580.126.09|1.el9|noarch|nvidia-cuda
"""
# rpm -qa --qf …
INSTALLED = """\
gpg-pubkey|(none)|7ab6d9bc|6b00fb37|(none)
libnvidia-ml|3|580.126.09|1.el9|x86_64
nvlsm|(none)|2025.10.14|1|x86_64
nvidia-driver-cuda|3|580.126.09|1.el9|x86_64
nvidia-kmod-common|3|580.126.09|1.el9|noarch
"""
# File written by `dnf versionlock add --raw`.
LOCKS = """\

# Added lock on Sat Nov 21 03:43:52 2026
nvidia-driver-cuda-3:580.126.09-1.el9.*
"""
RHEL = 'NAME="Rocky Linux"\nID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.6"\n'
ADD = "dnf --quiet --setopt=exit_on_lock=True --assumeyes --disablerepo=* versionlock add --raw"
DELETE = "dnf --quiet --setopt=exit_on_lock=True --assumeyes --disablerepo=* versionlock delete"
# Files opened by the module; on this machine they are missing or belong to another system.
REDIRECTED = (
    "/etc/dnf/dnf.conf",
    "/etc/os-release",
    "/etc/dnf/plugins/versionlock.list",
    "/etc/dnf/plugins/versionlock.conf",
)
BEFORE = """
import builtins, os
there, real_open, real_exists = {!r}, builtins.open, os.path.exists
builtins.open = lambda path, *rest, **named: real_open(there.get(path, path), *rest, **named)
os.path.exists = lambda path: real_exists(there.get(path, path))
"""


class Node(Host):
    def file(self, path: str, text: str) -> None:
        (self.folder / path.rpartition("/")[2]).write_text(text)

    def run(self, check: bool = False, /, **arguments: Any) -> dict[str, Any]:
        where = {path: str(self.folder / path.rpartition("/")[2]) for path in REDIRECTED}
        return self.module("gpuprov_packages", check, BEFORE.format(where), **arguments)

    def asked(self, check: bool = False, /, **arguments: Any) -> dict[str, Any]:
        return self.run(check, state="asked", **arguments)

    def hold(self, *names: str, check: bool = False, held: bool = True, **arguments: Any) -> dict[str, Any]:
        return self.run(check, state="held", packages=dict.fromkeys(names, ""), held=held, **arguments)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    if os.uname().machine != "x86_64":
        pytest.skip("the recorded output is of an x86_64 machine")
    found = Node(tmp_path)
    found.file("/etc/os-release", RHEL)
    found.file("/etc/dnf/plugins/versionlock.conf", "[main]\nenabled = 1\n")
    found.file("/etc/dnf/plugins/versionlock.list", LOCKS)
    found.says("dnf", REPOQUERY)
    found.says("rpm", INSTALLED)
    for absent in ("apt-get", "apt-cache", "apt-mark", "dpkg-query"):
        found.says(absent, "asked on the wrong system", status=1)
    return found


def test_versions_and_specs_have_what_dnf_needs(node: Node) -> None:
    node.says("rpm", "package nvidia-driver-cuda is not installed\n", status=1)
    answer = node.asked(
        packages={
            "nvidia-driver-cuda": "580.95.05",
            "libnccl": "2.29.7-1+cuda12.9",
            "nvidia-kmod-common": "",
        },
    )
    assert answer["versions"] == {
        "nvidia-driver-cuda": "3:580.95.05-1.el9",
        "libnccl": "2.29.7-1+cuda12.9",
        "nvidia-kmod-common": "3:580.126.09-1.el9",
    }
    assert answer["satisfied"] is False
    assert answer["missing"] == []
    assert not node.ran("apt-cache")


def test_what_a_lock_hides_is_offered_all_the_same(node: Node) -> None:
    node.asked(packages={"nvidia-driver-cuda": "580.95.05"})
    (query,) = node.ran("dnf")
    assert "--disableplugin=versionlock" in query
    assert "--cacheonly" not in query


def test_the_newest_is_chosen_by_value_not_by_letter(node: Node) -> None:
    node.says("rpm", "", status=1)
    answer = node.asked(packages={"nvidia-driver-cuda": "580.*", "libnccl": ""})
    assert answer["versions"] == {"nvidia-driver-cuda": "3:580.126.09-1.el9", "libnccl": "2.29.7-1+cuda13.2"}


def test_what_is_installed_as_wanted_is_not_looked_up(node: Node) -> None:
    answer = node.asked(packages={"nvidia-driver-cuda": "580.126.09", "nvlsm": ""})
    assert answer["satisfied"] is True
    assert answer["versions"] == {"nvidia-driver-cuda": "3:580.126.09-1.el9", "nvlsm": "2025.10.14-1"}
    assert not node.ran("dnf")


def test_the_exclude_that_hides_a_package_is_named(node: Node) -> None:
    node.file("/etc/dnf/dnf.conf", "[main]\ngpgcheck=1\nexcludepkgs = kernel*, no-such*\n")
    (missing,) = node.asked(packages={"no-such-package": ""})["missing"]
    assert missing.endswith(" /etc/dnf/dnf.conf hides it: excludepkgs=kernel*, no-such*.")


def test_what_is_missing_is_said_after_one_refresh_and_in_check_mode_without(node: Node) -> None:
    wanted = {"nvidia-driver-cuda": "999.1", "no-such-package": ""}
    answer = node.asked(packages=wanted)
    assert sorted(answer["missing"]) == [
        "No repository offers the package no-such-package.",
        "nvidia-driver-cuda 999.1 is not offered; offered are: 3:580.126.09-1.el9, 3:580.95.05-1.el9.",
    ]
    assert [line for line in node.ran("dnf") if "makecache" in line] == [
        "dnf --quiet --setopt=exit_on_lock=True --assumeyes --refresh makecache"
    ]
    node.log.write_text("")
    node.asked(True, packages=wanted)
    assert ["--cacheonly" in line for line in node.ran("dnf")] == [True, True]


def test_only_repositories_of_the_origin_count(node: Node) -> None:
    node.says("rpm", "", status=1)
    answer = node.asked(packages={"libnccl": ""}, origin="^system$")
    assert answer["versions"] == {}


def test_a_repository_out_of_reach_is_named(node: Node) -> None:
    said = "Error: Failed to download metadata for repo 'nvidia-cuda': Cannot download repomd.xml"
    node.says("dnf", said, status=1, stream=2)
    answer = node.asked(packages={"absent": ""})
    assert answer["failed"] is True
    assert "nvidia-cuda" in answer["msg"]


@pytest.mark.parametrize(
    ("newer", "older"),
    [
        ("1:1.0-1", "9.0-1"),
        ("1.10-1", "1.9-1"),
        ("1.0-2", "1.0-1"),
        ("1.0.1-1", "1.0-1"),
        ("1.0a-1", "1.0-1"),
        ("1.1-1", "1.a-1"),
        ("1.0-1", "1.0~rc1-1"),
        ("1.0^git1-1", "1.0-1"),
        ("1.0.1-1", "1.0^git1-1"),
        ("2.29.7-1+cuda13.2", "2.29.7-1+cuda12.9"),
    ],
)
def test_versions_are_compared_as_rpm_does(node: Node, newer: str, older: str) -> None:
    node.says("rpm", "", status=1)
    for pair in ((newer, older), (older, newer)):
        lines = []
        for text in pair:
            epoch, colon, rest = text.partition(":")
            version, _, release = (rest if colon else text).rpartition("-")
            lines.append(f"x|{epoch if colon else '0'}|{version}|{release}|x86_64|r")
        node.says("dnf", "\n".join(lines) + "\n")
        assert node.asked(packages={"x": ""})["versions"] == {"x": newer}


def test_holding_locks_the_installed_version_and_asks_no_repository(node: Node) -> None:
    answer = node.hold(patterns=["*nvidia*"], version="580.126.09")
    assert answer["marked"] == ["libnvidia-ml", "nvidia-kmod-common"], "one is locked already"
    assert node.ran("dnf") == [
        f"{ADD} libnvidia-ml-3:580.126.09-1.el9.* nvidia-kmod-common-3:580.126.09-1.el9.*"
    ]
    assert not node.ran("apt-mark")


def test_what_is_locked_at_its_version_is_no_change(node: Node) -> None:
    answer = node.hold("nvidia-driver-cuda")
    assert answer["changed"] is False
    assert not node.ran("dnf")


def test_a_lock_at_another_version_is_replaced(node: Node) -> None:
    node.file("/etc/dnf/plugins/versionlock.list", "nvidia-driver-cuda-3:580.95.05-1.el9.*\nvim-2:9-1.*\n")
    answer = node.hold("nvidia-driver-cuda")
    assert answer["marked"] == ["nvidia-driver-cuda"]
    assert node.ran("dnf") == [
        f"{DELETE} nvidia-driver-cuda-3:580.95.05-1.el9.*",
        f"{ADD} nvidia-driver-cuda-3:580.126.09-1.el9.*",
    ]


def test_a_pattern_that_lets_the_next_version_in_is_no_hold(node: Node) -> None:
    node.file("/etc/dnf/plugins/versionlock.list", "*nvidia*580*\n")
    assert node.hold("nvlsm", "libnvidia-ml")["marked"] == ["libnvidia-ml", "nvlsm"]
    assert not [line for line in node.ran("dnf") if "delete" in line], "somebody else's line stays"


def test_letting_go_deletes_the_lines_of_the_package(node: Node) -> None:
    answer = node.hold("nvidia-driver-cuda", "nvlsm", "absent", held=False)
    assert answer["marked"] == ["nvidia-driver-cuda"]
    assert node.ran("dnf") == [f"{DELETE} nvidia-driver-cuda-3:580.126.09-1.el9.*"]


def test_the_plugin_is_installed_when_it_is_missing(node: Node) -> None:
    (node.folder / "versionlock.conf").unlink()
    node.hold("nvlsm")
    assert node.ran("dnf")[0].endswith("install python3-dnf-plugin-versionlock")


def test_check_mode_changes_nothing_and_a_missing_package_is_named(node: Node) -> None:
    assert node.hold("absent", "nvlsm", check=True)["marked"] == ["absent", "nvlsm"]
    assert not node.ran("dnf")
    answer = node.hold("absent")
    assert answer["failed"] is True
    assert "absent" in answer["msg"]


def test_a_refusal_of_dnf_is_named(node: Node) -> None:
    node.says("dnf", "Error: There is no space left on device\n", status=1, stream=2)
    answer = node.hold("nvlsm")
    assert answer["failed"] is True
    assert "no space left" in answer["msg"]


@pytest.mark.parametrize(
    ("lock", "named"),
    [
        ("nvidia-driver*-570*", True),
        ("!nvidia-driver-cuda-3:580.95.05-1.el9.*", True),
        ("vim-2:9-1.*", False),
        ("*nvidia*580*", False),
    ],
)
def test_a_lock_of_others_that_hides_a_package_is_named(node: Node, lock: str, named: bool) -> None:
    node.file("/etc/dnf/plugins/versionlock.list", f"{lock}\n")
    refused = "Error: Unable to find a match: nvidia-driver-cuda-3:580.95.05-1.el9.x86_64"
    node.program(
        "dnf",
        f'case "$*" in *repoquery*) cat {node.folder}/dnf.txt ;; *) echo "{refused}" >&2; exit 1 ;; esac',
    )
    answer = node.run(packages={"nvidia-driver-cuda": "580.95.05"})
    assert answer["failed"] is True
    words = f"E: Somebody keeps back: '{lock}'. Release: dnf versionlock delete '{lock}'\n"
    assert answer["stderr"] == (words if named else "") + refused + "\n"


QUIET = "dnf --quiet --setopt=exit_on_lock=True"


NO_MORE = "--setopt=install_weak_deps=False"
WANTED = {
    "nvidia-driver-cuda": "580.95.05",
    "libnccl": "2.29.7-1+cuda12.9",
    "nvidia-kmod-common": "580.126.09",
}
SPECS = (
    "libnccl-2.29.7-1+cuda12.9.x86_64 nvidia-driver-cuda-3:580.95.05-1.el9.x86_64 "
    "nvidia-kmod-common-3:580.126.09-1.el9.noarch"
)


def answers(node: Node, *, after: str = INSTALLED, status: int = 0, said: str = "") -> None:
    """Make dnf list the offered packages, and run a scripted action for any other command."""
    (node.folder / "offered").write_text(REPOQUERY)
    (node.folder / "after").write_text(after)
    (node.folder / "said").write_text(said)
    installs = f"cp {node.folder}/after {node.folder}/rpm.txt; cat {node.folder}/said >&2; exit {status}"
    node.program(
        "dnf",
        f'case "$*" in *repoquery*) cat {node.folder}/offered ;; *install*|*remove*) {installs} ;; esac',
    )


def done(node: Node) -> list[str]:
    return [line for line in node.ran("dnf") if "repoquery" not in line]


def test_what_differs_moves_in_one_transaction_and_is_let_go_before(node: Node) -> None:
    answers(node, after=INSTALLED.replace("cuda|3|580.126.09", "cuda|3|580.95.05"))
    answer = node.run(packages=WANTED, erase=True, untouched=["kmod-nvidia*"])
    assert answer["moved"] is True
    assert answer["marked"] == ["nvidia-driver-cuda"], "it was locked, and is locked at its new version"
    assert done(node) == [
        f"{DELETE} nvidia-driver-cuda-3:580.126.09-1.el9.*",
        f"{QUIET} --assumeyes {NO_MORE} --exclude=kmod-nvidia* install --allowerasing {SPECS}",
        f"{DELETE} nvidia-driver-cuda-3:580.126.09-1.el9.*",
        f"{ADD} nvidia-driver-cuda-3:580.95.05-1.el9.*",
    ]


def test_removing_keeps_what_others_brought_unless_told(node: Node) -> None:
    answers(node, after="")
    answer = node.run(packages={"nvlsm": "", "absent": ""}, state="absent")
    assert answer["changed"] is True
    assert "nvlsm|(none)|2025.10.14|1|x86_64" in answer["removed"]
    node.file("/rpm.txt", INSTALLED)
    node.run(packages={"nvlsm": ""}, state="absent", autoremove=True)
    assert done(node) == [
        f"{QUIET} --assumeyes remove --noautoremove nvlsm",
        f"{QUIET} --assumeyes remove nvlsm",
    ]


@pytest.mark.parametrize(("status", "said", "changed"), [(1, "Operation aborted.\n", True), (0, "", False)])
def test_check_mode_asks_dnf_and_says_no(node: Node, status: int, said: str, changed: bool) -> None:
    answers(node, status=status, said=said)
    assert node.run(True, packages={"libnccl": ""})["changed"] is changed
    assert done(node) == [
        f"{QUIET} --assumeno --cacheonly {NO_MORE} install libnccl-2.29.7-1+cuda13.2.x86_64"
    ]


def test_what_dnf_refuses_is_said_in_its_words(node: Node) -> None:
    answers(node, status=1, said="Error: Unable to find a match: libnccl-9.9-1.x86_64\n")
    for check in (False, True):
        answer = node.run(check, packages={"libnccl": ""})
        assert answer["failed"] is True
        assert "Unable to find a match: libnccl-9.9-1" in answer["msg"]


def test_a_lock_that_is_never_let_go_is_named(node: Node) -> None:
    node.says("dnf", "", status=200)
    answer = node.run(packages={"libnccl": ""}, lock_timeout=0)
    assert answer["failed"] is True
    assert "another program has held its lock for 0 s" in answer["msg"]


def erasing(node: Node, needed: str = "", wanted: str = "bash\n") -> None:
    (node.folder / "all").write_text(INSTALLED)
    script = f"""
case "$*" in
*--test*) echo '{needed}' >&2; exit 1 ;;
-qa) test -e {node.folder}/gone || echo nvlsm-2025.10.14-1.x86_64; echo libnvidia-ml-580-1.el9.x86_64 ;;
*) cat {node.folder}/all ;;
esac"""
    node.program("rpm", script)
    done = f'case "$*" in *repoquery*) echo "{wanted}" ;; *" remove "*) touch {node.folder}/gone ;; esac'
    node.program("dnf", done)


def test_a_lock_of_others_is_named_of_packages_in_a_list_too(node: Node) -> None:
    node.file("/etc/dnf/plugins/versionlock.list", "nvidia-driver*-570*\n")
    answers(node, status=1, said="Error: Unable to find a match: nvidia-driver-cuda")
    answer = node.run(packages=[{"nvidia-driver-cuda|nvidia-driver": "580.95.05"}, "nvlsm"])
    assert "E: Somebody keeps back: 'nvidia-driver*-570*'." in answer["stderr"]


def test_a_removal_forgets_the_locks_of_what_it_took(node: Node) -> None:
    erasing(node)
    node.file(
        "/etc/dnf/plugins/versionlock.list",
        LOCKS + "nvlsm-0:2025.10.14-1.*\nlibnvidia-ml-3:580.126.09-1.el9.*\n",
    )
    answer = node.run(packages=["nvidia-driver-.*"], state="gone", autoremove=True, title="the role x")
    assert (answer["gone"], answer["removed"]) == (["nvidia-driver-cuda"], ["nvlsm-2025.10.14-1.x86_64"])
    own, nvlsm = "nvidia-driver-cuda-3:580.126.09-1.el9.*", "nvlsm-0:2025.10.14-1.*"
    remove = "dnf --quiet --setopt=exit_on_lock=True --assumeyes remove nvidia-driver-cuda"
    # The second delete still includes `own`, because this stand-in for dnf never updates the list.
    assert node.ran("dnf")[1:] == [f"{DELETE} {own}", remove, f"{DELETE} {own} {nvlsm}"]


def test_a_removal_forgets_no_lock_of_others(node: Node) -> None:
    erasing(node)
    others = "!nvlsm-0:2025.6-1.*\nnvlsm-13-0-0:13.0.1-1.*\n"  # an exclusion; a lock of another package
    node.file("/etc/dnf/plugins/versionlock.list", others)
    assert node.run(packages=["nvidia-driver-.*"], state="gone", autoremove=True)["removed"]
    assert not [line for line in node.ran("dnf") if line.startswith(DELETE)]


def test_what_needs_a_package_and_was_asked_for_forbids_its_removal(node: Node) -> None:
    needed = "error: Failed dependencies:\n\tnvidia-driver-cuda is needed by (installed) my-tool-1.2-3.x86_64"
    erasing(node, needed.replace("\n", "\\n").replace("\t", "\\t"), "my-tool")
    answer = node.run(packages=["nvidia-driver-cuda"], state="gone", title="the role x")
    assert "Removing the role x would also remove my-tool, which did not come with it" in answer["msg"]
    assert not [line for line in node.ran("dnf") if " remove " in line]
