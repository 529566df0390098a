"""Our package module for Debian and Ubuntu, with stand-ins for apt and dpkg on PATH."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.modules import Host

MADISON = """\
nvidia-driver-cuda | 595.71.05-1 | http://10.0.0.1/cuda  Packages
nvidia-driver-cuda | 580.126.09-1 | http://10.0.0.1/cuda  Packages
nvidia-driver-cuda | 580.126.09-1 | http://10.0.0.2/mirror  Packages
  libnccl2 | 2.29.7-1+cuda13.2 | http://10.0.0.1/cuda  Packages
  libnccl2 | 2.29.7-1+cuda12.9 | http://10.0.0.1/cuda  Packages
  libnccl2 | 2.18.5-1-2 | http://deb.example/debian trixie/non-free amd64 Packages
  libnccl2 | 2.18.5-1-2 | http://deb.example/debian trixie/non-free Sources
"""
# As printed by apt 2.6; AMD's archive has components like a distribution's.
POLICY = """\
Package files:
 100 /var/lib/dpkg/status
     release a=now
 500 http://deb.example/debian trixie/non-free amd64 Packages
     release v=13.1,o=Debian,a=stable,n=trixie,l=Debian,c=non-free,b=amd64
     origin deb.example
 500 http://radeon.example/rocm/apt/7.2 noble/main amd64 Packages
     release o=repo.radeon.com,a=noble,n=noble,l=ROCm 7.2,c=main,b=amd64
     origin radeon.example
Pinned packages:
"""
STATUS = """\
libcuda1 amd64 install installed 580.126.09-1
libnvidia-ml1 amd64 hold installed 580.126.09-1
libnvidia-ml1 i386 install installed 580.126.09-1
nvidia-container-toolkit amd64 install installed 1.19.1-1
nvidia-driver-cuda amd64 hold installed 580.126.09-1
nvidia-kernel-open-dkms amd64 install half-configured 580.126.09-1
nvidia-settings amd64 deinstall config-files 550.163.01-1
unknown amd64 unknown not-installed
"""


class Node(Host):
    def offered(self, check: bool = False, **more: Any) -> dict[str, Any]:
        return self.module("gpuprov_packages", check, state="asked", **more)

    def hold(self, *names: str, check: bool = False, held: bool = True, **more: Any) -> dict[str, Any]:
        packages = dict.fromkeys(names, "")
        return self.module("gpuprov_packages", check, state="held", packages=packages, held=held, **more)

    def install(self, check: bool = False, /, **more: Any) -> dict[str, Any]:
        return self.module("gpuprov_packages", check, **more)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    found = Node(tmp_path)
    found.says("apt-cache", MADISON)
    found.says("apt-get", "")
    found.says("dpkg-query", STATUS)
    found.says("apt-mark", "")
    return found


WHOLE = "nvidia-driver-cuda installed 580.126.09-1\nlibnccl2 installed 2.29.7-1+cuda12.9\n"


@pytest.mark.parametrize(
    "wanted",
    [
        {"nvidia-driver-cuda": "580.126.09", "libnccl2": ""},
        ["libnccl2", {"nvidia-driver-cuda": "580.126.09"}],
        ["nvidia-driver-cuda", {}, {"nvidia-driver-cuda": "580.126.09"}, "libnccl2"],  # the last entry counts
    ],
)
def test_what_is_installed_as_wanted_is_not_looked_up(node: Node, wanted: Any) -> None:
    node.says("dpkg-query", WHOLE)
    answer = node.offered(packages=wanted)
    assert answer["satisfied"] is True
    assert answer["versions"] == {"nvidia-driver-cuda": "580.126.09-1", "libnccl2": "2.29.7-1+cuda12.9"}
    assert not [line for line in node.ran() if line.startswith("apt")]


def test_a_version_counts_in_a_list_and_what_is_no_name_is_refused(node: Node) -> None:
    assert (
        "nvidia-driver-cuda 1 is not offered" in node.offered(packages=[{"nvidia-driver-cuda": "1"}])["msg"]
    )
    for wrong in ([["libnccl2"]], [""], None):
        assert "is neither a package's name nor a mapping" in node.offered(packages=wrong)["msg"]


@pytest.mark.parametrize("state", ["half-configured", "unpacked", "config-files"])
def test_a_package_that_is_not_whole_does_not_satisfy(node: Node, state: str) -> None:
    node.says("dpkg-query", WHOLE.replace("installed", state, 1))
    answer = node.offered(packages={"nvidia-driver-cuda": "580.126.09"})
    assert answer["satisfied"] is False
    assert answer["versions"] == {"nvidia-driver-cuda": "580.126.09-1"}


def test_another_version_is_said_beside_the_one_to_install(node: Node) -> None:
    node.says("dpkg-query", WHOLE)
    answer = node.offered(packages={"nvidia-driver-cuda": "595.71.05", "libnccl2": ""})
    assert answer["satisfied"] is False
    assert answer["installed"]["nvidia-driver-cuda"] == "580.126.09-1"
    assert answer["versions"] == {"nvidia-driver-cuda": "595.71.05-1", "libnccl2": "2.29.7-1+cuda12.9"}
    assert answer["missing"] == []


def test_a_version_is_found_with_or_without_its_revision(node: Node) -> None:
    answer = node.offered(packages={"nvidia-driver-cuda": "580.126.09", "libnccl2": "2.29.7-1+cuda12.9"})
    assert answer["versions"] == {"nvidia-driver-cuda": "580.126.09-1", "libnccl2": "2.29.7-1+cuda12.9"}
    assert answer["missing"] == []
    assert answer["changed"] is False
    assert node.ran("apt-get") == [], "no refresh without need"


@pytest.mark.parametrize(
    ("packages", "origin", "versions"),
    [
        ({"libnccl2": ""}, "", {"libnccl2": "2.29.7-1+cuda13.2"}),
        ({"libnccl2": ""}, r" \S+/non-free ", {"libnccl2": "2.18.5-1-2"}),
        ({"nvidia-driver-cuda": "580.126.0"}, "", {}),
        ({"nvidia-driver-cuda": "580.*"}, "", {"nvidia-driver-cuda": "580.126.09-1"}),
    ],
    ids=["the first", "the first of the repositories asked for", "one that only starts alike", "a branch"],
)
def test_the_version_that_is_chosen(
    node: Node, packages: dict[str, str], origin: str, versions: dict[str, str]
) -> None:
    node.says("dpkg-query", "")
    assert node.offered(packages=packages, origin=origin)["versions"] == versions


def test_what_is_missing_is_said_with_what_is_there_after_one_refresh(node: Node) -> None:
    answer = node.offered(packages={"nvidia-driver-cuda": "999.1", "no-such-package": ""})
    assert sorted(answer["missing"]) == [
        "No repository offers the package no-such-package.",
        "nvidia-driver-cuda 999.1 is not offered; offered are: 595.71.05-1, 580.126.09-1.",
    ]
    assert answer["known"] is True
    assert node.ran("apt-get") == ["apt-get -q update"]


def test_a_refresh_that_brings_the_version_is_enough(node: Node) -> None:
    node.says("apt-cache", "")
    node.program("apt-get", f"echo '{MADISON}' > {node.folder}/apt-cache.txt")
    answer = node.offered(packages={"nvidia-driver-cuda": "595.71.05"})
    assert answer["missing"] == []


def test_check_mode_does_not_refresh(node: Node) -> None:
    node.says("apt-cache", "")
    answer = node.offered(check=True, packages={"nvidia-driver-cuda": "595.71.05"})
    assert answer["known"] is False
    assert answer["missing"] == ["No repository offers the package nvidia-driver-cuda."]
    assert node.ran("apt-get") == []


@pytest.mark.parametrize(
    ("program", "wanted", "told", "said"),
    [
        ("apt-get", {"absent": "1"}, {"state": "asked"}, "Release file is expired"),
        ("apt-mark", {"libcuda1": ""}, {"state": "held", "held": True}, "No such package"),
    ],
)
def test_what_apt_refuses_is_named(
    node: Node, program: str, wanted: Any, told: dict[str, Any], said: str
) -> None:
    node.says(program, f"E: {said}\n", status=100, stream=2)
    answer = node.install(packages=wanted, **told)
    assert answer["failed"] is True
    assert said in answer["msg"]


def test_holding_marks_what_is_not_held_in_one_call(node: Node) -> None:
    answer = node.hold("libcuda1", "nvidia-driver-cuda", "libnvidia-ml1")
    assert answer["marked"] == ["libcuda1", "libnvidia-ml1"], "held for one of two architectures is not held"
    assert node.ran()[-1] == "apt-mark hold libcuda1 libnvidia-ml1"


def test_patterns_take_only_packages_of_the_version(node: Node) -> None:
    answer = node.hold(patterns=["*nvidia*"], version="580.126.09")
    held = ["libnvidia-ml1", "nvidia-kernel-open-dkms"]
    assert answer["marked"] == held, "the container toolkit is not the driver"


def test_what_is_held_already_is_no_change(node: Node) -> None:
    assert node.hold("nvidia-driver-cuda")["changed"] is False
    assert node.ran("apt-mark") == []


def test_letting_go_is_the_reverse(node: Node) -> None:
    answer = node.hold("libcuda1", "nvidia-driver-cuda", "absent", held=False)
    assert answer["marked"] == ["nvidia-driver-cuda"]
    assert node.ran()[-1] == "apt-mark unhold nvidia-driver-cuda"


def test_what_is_not_installed_cannot_be_held(node: Node) -> None:
    answer = node.hold("absent", "nvidia-settings")
    assert answer["failed"] is True
    assert "absent, nvidia-settings" in answer["msg"]


def test_check_mode_expects_what_an_earlier_task_would_install(node: Node) -> None:
    answer = node.hold("absent", "libcuda1", check=True)
    assert answer["marked"] == ["absent", "libcuda1"]
    assert node.ran("apt-mark") == []


def test_an_installed_version_of_the_branch_satisfies(node: Node) -> None:
    node.says("dpkg-query", "nvidia-driver-cuda installed 580.95.05-1\n")
    assert node.offered(packages={"nvidia-driver-cuda": "580.*"})["satisfied"]
    assert not node.offered(packages={"nvidia-driver-cuda": "58.*"})["satisfied"]


def test_versions_count_only_from_the_repositories_asked_for(node: Node) -> None:
    node.says("dpkg-query", "")
    from_vendor = node.offered(packages={"libnccl2": "2.18.5-1"}, origin=r"^(?!.* \S+/non-free )")
    assert from_vendor["missing"] == [
        "libnccl2 2.18.5-1 is not offered; offered are: 2.29.7-1+cuda13.2, 2.29.7-1+cuda12.9."
    ]


# The module's dpkg-query formats for one package and for all.
ONE = "${Package} ${db:Status-Status} ${Version}"
APT = (
    "apt-get -q -y -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold "
    "-o DPkg::Lock::Timeout=600 --allow-change-held-packages"
)
INSTALL = f"{APT} --allow-downgrades --no-install-recommends install"


def stand(node: Node, one: str, all_of_them: str = STATUS) -> None:
    """Make dpkg-query answer both of its forms."""
    (node.folder / "one").write_text(one)
    (node.folder / "all").write_text(all_of_them)
    script = f"case \"$*\" in *'{ONE}'*) cat {node.folder}/one ;; *) cat {node.folder}/all ;; esac"
    node.program("dpkg-query", script)


DRIVER = {"nvidia-driver-cuda": "595.71.05"}


def test_what_differs_moves_in_one_transaction_and_keeps_its_mark(node: Node) -> None:
    lost = STATUS.replace("nvidia-driver-cuda amd64 hold", "nvidia-driver-cuda amd64 install")
    stand(node, "nvidia-driver-cuda installed 580.126.09-1\n")
    node.program("apt-get", f"echo '{lost}' > {node.folder}/all")  # apt loses the package
    answer = node.install(packages=DRIVER | {"libnccl2": "2.29.7-1+cuda12.9"})
    assert answer["moved"] is True
    assert answer["marked"] == ["nvidia-driver-cuda"]
    assert [line for line in node.ran() if line.startswith(("apt-get", "apt-mark"))] == [
        f"{INSTALL} libnccl2=2.29.7-1+cuda12.9 nvidia-driver-cuda=595.71.05-1",
        "apt-mark hold nvidia-driver-cuda",
    ]


def test_packages_of_the_replaced_version_are_let_go_before(node: Node) -> None:
    stand(node, "nvidia-driver-cuda installed 580.126.09-1\n")
    held = STATUS.replace("libcuda1 amd64 install", "libcuda1 amd64 hold")
    (node.folder / "all").write_text(held.replace("toolkit amd64 install", "toolkit amd64 hold"))
    node.install(packages=DRIVER, patterns=["libcuda*", "*nvidia*"], version="595.71.05")
    marks = [line for line in node.ran() if line.startswith(("apt-mark", "apt-get"))]
    assert marks == ["apt-mark unhold libcuda1", f"{INSTALL} nvidia-driver-cuda=595.71.05-1"]


# Output of apt 2.6; tests/printers/test_apt.py runs the real one.
UNMET = """\
The following packages have unmet dependencies:
 sitewatch : Depends: libnvidia-ml1 (= 580.126.09-1) but 595.71.05-1 is to be installed
"""


@pytest.mark.parametrize(("mark", "named"), [("hold", True), ("install", False)])
def test_a_package_that_somebody_holds_and_that_is_in_the_way_is_named(
    node: Node, mark: str, named: bool
) -> None:
    held = STATUS.replace("toolkit amd64 install", "toolkit amd64 hold")
    site = f"sitewatch all {mark} installed 1.0\n"
    stand(node, "nvidia-driver-cuda installed 580.126.09-1\n", held + site)
    (node.folder / "unmet").write_text(UNMET)
    node.program("apt-get", f"cat {node.folder}/unmet; echo 'E: held packages' >&2; exit 100")
    answer = node.install(packages=DRIVER, patterns=["libcuda*", "*nvidia*"], version="595.71.05")
    words = "E: Somebody keeps back: sitewatch. Release: apt-mark unhold sitewatch\n"
    assert answer["failed"] is True
    assert answer["stderr"] == (words if named else "") + "E: held packages\n"


def test_a_version_that_is_not_offered_is_refused_before_anything_changes(node: Node) -> None:
    stand(node, "")
    told = {"title": "NCCL 9", "advice": "Choose another.", "replaces": ["*nvidia*"]}
    for check in (False, True):
        answer = node.install(check, packages={"libnccl2": "9"}, **told)
        assert answer["msg"].startswith(
            "NCCL 9 cannot be installed: libnccl2 9 is not offered; offered are: 2.29.7"
        )
        assert answer["msg"].endswith(" Choose another.")
    assert node.install(packages={"libnccl2": "9"}, state="asked", **told)["failed"] is True
    assert node.ran("apt-get") == ["apt-get -q update"] * 2, "and none in check mode"


def test_check_mode_without_the_repository_is_a_change_and_no_refusal(node: Node) -> None:
    stand(node, "")
    node.says("apt-cache", "")
    answer = node.install(True, packages={"libnccl2": "9"}, held=True)
    assert (answer["changed"], answer["marked"]) == (True, ["libnccl2"])
    assert node.ran("apt-get") == []


def test_check_mode_takes_the_distributions_version_for_no_proof(node: Node) -> None:
    """Debian's contrib and non-free have NCCL too, and a later task may still add NVIDIA's repository."""
    stand(node, "")
    madison = [line for line in MADISON.splitlines(keepends=True) if "debian" in line]
    (node.folder / "madison").write_text("".join(madison))
    (node.folder / "policy").write_text(POLICY)
    node.program("apt-cache", f"cat {node.folder}/$1")
    answer = node.install(True, packages={"libnccl2": "2.29.7-1+cuda12.9"})
    assert (answer["changed"], answer["known"]) == (True, False)
    refused = node.install(packages={"libnccl2": "2.29.7-1+cuda12.9"})
    assert "libnccl2 2.29.7-1+cuda12.9 is not offered; offered are: 2.18.5-1-2." in refused["msg"]
    named = node.install(True, packages={"libnccl2": "2.29.7-1+cuda12.9"}, origin="/non-free ")
    assert named["failed"] is True, "the source that was asked for does not have it"
    rocm = "rocm | 7.1 | http://radeon.example/rocm/apt/7.2 noble/main amd64 Packages\n"
    (node.folder / "madison").write_text(rocm)
    assert node.install(True, packages={"rocm": "7.2"})["failed"] is True


def test_what_must_not_change_is_tried_before(node: Node) -> None:
    stand(node, "")
    node.says("apt-get", "Inst libnccl2 (2.29.7)\nRemv libcuda1 [580.126.09-1]\nConf libnccl2 (2.29.7)\n")
    answer = node.install(packages={"libnccl2": ""}, untouched=["libcuda*"], title="NCCL")
    assert (
        answer["msg"] == "NCCL cannot be installed: that would also change libcuda1, which has another owner."
    )
    (trial,) = node.ran("apt-get")
    assert "--simulate" in trial


def test_packages_with_the_same_files_go_once_the_new_ones_are_downloaded(node: Node) -> None:
    stand(node, "")
    node.install(packages={"libnccl2": "2.18.5-1-2"}, replaces=["libnvidia-*", "libnccl*"])
    install = INSTALL.removeprefix("apt-get ")
    assert node.ran("apt-get") == [
        f"apt-get --download-only {install} libnccl2=2.18.5-1-2",
        f"{APT} remove libnvidia-ml1",
        f"{INSTALL} libnccl2=2.18.5-1-2",
    ]


def test_the_first_of_several_names_that_is_offered_is_meant(node: Node) -> None:
    stand(node, "libnccl2 installed 2.29.7-1+cuda12.9\n")
    answer = node.offered(packages={"libnccl3|nvidia-driver-cuda|libnccl2": ""})
    assert answer["versions"] == {"nvidia-driver-cuda": "595.71.05-1"}
    assert answer["satisfied"] is False
    answer = node.offered(packages={"libnccl3|libnccl2": "2.29.7-1+cuda12.9"})
    assert answer["satisfied"] is True
    assert node.offered(packages={"a|b": ""})["missing"] == ["No repository offers the package a or b."]


def test_what_is_optional_and_not_offered_is_left_out(node: Node) -> None:
    stand(node, "")
    told: dict[str, Any] = {"packages": {"pinning-580.1|pinning-580": ""}, "optional": True}
    assert node.install(**told)["changed"] is False
    assert node.install(**told, replaces=["libcuda*"])["moved"] is True, "what it would have replaced goes"
    assert node.ran("apt-get")[-1] == f"{APT} remove libcuda1"


def test_files_that_a_package_brings_come_back_with_their_modes(node: Node, tmp_path: Path) -> None:
    stand(node, "libnccl2 installed 2.29.7-1+cuda12.9\n")
    gone, loose = tmp_path / "gone", tmp_path / "loose"
    loose.touch(mode=0o600)
    brings = {str(gone): "", str(loose): "0755"}
    for check in (True, False):
        answer = node.install(check, packages={"libnccl2": ""}, brings=brings)
        assert answer["restored"] == [str(gone), str(loose)]
    assert node.ran("apt-get") == [f"{APT} --reinstall install libnccl2"]
    assert loose.stat().st_mode & 0o777 == 0o755
    gone.touch()
    assert node.install(packages={"libnccl2": ""}, brings=brings)["changed"] is False


def test_removing_takes_what_is_there(node: Node) -> None:
    packages = {"libcuda1": "", "absent": ""}
    assert node.install(True, packages=packages, state="absent")["changed"] is True
    assert node.install(packages=packages, state="absent", purge=True)["changed"] is True
    assert node.install(packages={"absent": ""}, state="absent")["changed"] is False
    assert node.ran("apt-get") == [f"{APT} --purge remove libcuda1"]


def test_what_an_earlier_removal_left_is_purged(node: Node) -> None:
    assert node.install(packages={"nvidia-settings": ""}, state="absent")["changed"] is False
    assert node.install(packages={"nvidia-settings": ""}, state="absent", purge=True)["changed"] is True
    stand(node, "")
    node.install(packages={"libnccl2": "2.18.5-1-2"}, replaces=["nvidia-settings"], purge=True)
    assert node.ran("apt-get")[0] == node.ran("apt-get")[2] == f"{APT} --purge remove nvidia-settings"


@pytest.mark.parametrize("holder", ["another", "/usr/bin/apt-get"])  # dpkg 1.21, 1.22
def test_dpkg_that_another_program_has_locked_is_waited_for(holder: str, node: Node) -> None:
    said = f"dpkg: error: dpkg frontend lock was locked by {holder} process with pid 7"
    once = f"test -e {node.folder}/again || {{ touch {node.folder}/again; echo '{said}' >&2; exit 100; }}"
    node.program("apt-mark", once)
    assert node.hold("libcuda1")["marked"] == ["libcuda1"]
    assert len(node.ran("apt-mark")) == 2


def test_a_lock_of_apt_that_is_never_let_go_is_named(node: Node) -> None:
    stand(node, "")
    node.says(
        "apt-get", "E: Could not get lock /var/lib/dpkg/lock. It is held by process 7 (x)\n", 100, stream=2
    )
    answer = node.install(packages={"libnccl2": ""}, lock_timeout=0)
    assert "another program has held its lock for 0 s: E: Could not get lock" in answer["msg"]


# Output of apt-get --simulate --auto-remove purge, and of autoremove only (apt 3.0 of Debian 13).
ALONG = """\
Reading package lists...
Purg nvidia-container-toolkit [1.19.1-1]
Remv libnvidia-ml1 [580.126.09-1] [nvidia-driver-cuda:amd64 ]
Purg libunrelated [1-1]
Purg nvidia-driver-cuda [580.126.09-1]
"""
ANYWAY = "Reading package lists...\nRemv libunrelated [1-1]\n"
SIMULATE = "apt-get --simulate -o APT::AutoRemove::SuggestsImportant=0"


def removable(node: Node, manual: str = "") -> None:
    for name, text in (("along", ALONG), ("anyway", ANYWAY), ("units", "a.service enabled enabled\n")):
        (node.folder / name).write_text(text)
    purge, anyway = f"cat {node.folder}/along", f"cat {node.folder}/anyway"
    node.program("apt-get", f"case \"$*\" in *' purge '*) {purge} ;; *' autoremove') {anyway} ;; esac")
    node.says("apt-mark", manual)
    node.program(
        "systemctl", f'test "$1" != list-unit-files || cat {node.folder}/units; test "$1" != disable'
    )


GONE: dict[str, Any] = {"packages": ["nvidia-driver-.*", "libcuda"], "state": "gone", "purge": True}
OF_ROLE: dict[str, Any] = {**GONE, "units": ["a.service", "b.service"], "title": "the role x"}


def test_what_came_along_goes_too_and_nothing_that_was_superfluous_before(node: Node) -> None:
    removable(node)
    answer = node.install(**OF_ROLE)
    assert (answer["changed"], answer["gone"]) == (True, ["nvidia-driver-cuda"])
    going = "libnvidia-ml1 nvidia-container-toolkit nvidia-driver-cuda"
    assert node.ran("apt-get")[-1] == f"{APT} --purge remove {going}"
    assert node.ran("systemctl") == [
        "systemctl list-unit-files --plain --no-legend a.service b.service",
        "systemctl disable --now a.service",
    ]


def test_check_mode_takes_and_stops_nothing(node: Node) -> None:
    removable(node)
    assert node.install(True, **OF_ROLE)["gone"] == ["nvidia-driver-cuda"]
    assert [line for line in node.ran("apt-get") if not line.startswith(SIMULATE)] == []
    assert not [line for line in node.ran("systemctl") if "disable" in line]


@pytest.mark.parametrize(
    ("manual", "keep"),
    [("libnvidia-ml1\nbash\n", []), ("", ["libnvidia-ml1"])],
    ids=["asked for", "another role's"],
)
def test_a_removal_that_somebody_would_lose_by_is_refused_before_anything(
    node: Node, manual: str, keep: list[str]
) -> None:
    removable(node, manual)
    answer = node.install(**OF_ROLE, keep=keep, advice="Remove that first.")
    assert answer["msg"] == (
        "Removing the role x would also remove libnvidia-ml1, which did not come with it and cannot be "
        "without it. Remove that first."
    )
    assert (
        [line for line in node.ran("apt-get") if not line.startswith(SIMULATE)] == node.ran("systemctl") == []
    )


def test_what_is_kept_or_not_there_is_no_reason_to_ask(node: Node) -> None:
    removable(node)
    answer = node.install(**GONE, keep=["nvidia-driver-cuda"])
    assert (answer["changed"], answer["gone"], node.ran("apt-get")) == (False, [], [])
    assert node.install(packages=[], state="gone", units=["a.service"])["changed"] is True
