"""Identity of a lab node: its release, its tree, and its package manager."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuprov_lab import trees
from gpuprov_lab.layer import layer_files
from gpuprov_lab.releases import RELEASES, Base
from gpuprov_lab.spec import parse_node
from provision.remote import node_program

FAMILIES = {"debian": "debian", "ubuntu": "debian", "rhel": "redhat", "rocky": "redhat"}


def seen_as(text: str) -> dict[str, Any]:
    """Return the facts that the program on the node reads from an os-release file."""
    namespace: dict[str, Any] = {}
    exec(node_program.text_for(["os.id"]), namespace)  # noqa: S102
    namespace["read_text"] = lambda _path: text
    return dict(namespace["probe_system"]())


@pytest.mark.parametrize("name", [name for name, release in RELEASES.items() if not release.real])
def test_a_node_says_it_is_its_release(name: str) -> None:
    release = RELEASES[name]
    facts = seen_as(release.files["usr/lib/os-release"])
    os_id = name.rstrip("0123456789")
    assert facts["os.id"] == os_id
    assert facts["os.family"] == FAMILIES[os_id]
    digits = name.removeprefix(os_id)
    version = facts["os.version_id"]
    assert digits == (version.replace(".", "") if os_id == "ubuntu" else version.partition(".")[0])
    assert parse_node(f"gpu-01=b200:{name}").release == name


def test_a_release_of_the_rhel_family_names_its_platform_which_modules_need() -> None:
    for name in ("rhel8", "rhel9", "rhel10", "rocky9"):
        release = RELEASES[name]
        assert f'PLATFORM_ID="platform:el{release.major}"' in release.files["usr/lib/os-release"]
        assert release.files["etc/redhat-release"].startswith(("Red Hat Enterprise Linux", "Rocky Linux"))


def test_trees_are_shared_by_what_is_in_them() -> None:
    assert trees.tree_path("ubuntu2404") == trees.tree_path("debian13")
    assert trees.tree_path("ubuntu2204") == trees.tree_path("debian12")
    assert len({trees.tree_path(name) for name in ("rhel8", "rhel9", "rhel10", "rocky9")}) == 1
    assert len({trees.tree_path(name) for name in RELEASES}) == len(list(trees.bases())) == 3


def test_a_tree_with_dnf_has_nothing_for_apt() -> None:
    dnf, apt = (trees.packages(RELEASES[name].base) for name in ("rhel9", "debian13"))
    assert "dnf" in dnf
    assert "python3-apt" not in dnf
    assert "python3-apt" in apt
    assert "dnf" not in apt


def test_the_layer_points_each_package_manager_at_the_lab() -> None:
    ubuntu = layer_files("ubuntu2404", "10.80.0.1", "KEY")
    assert "http://10.80.0.1:3142/debian trixie main" in ubuntu["etc/apt/sources.list"][0]
    assert 'ID="ubuntu"' in ubuntu["usr/lib/os-release"][0]
    redhat = layer_files("rhel8", "10.80.0.1", "KEY")
    assert "baseurl=http://10.80.0.1:8080/system/el8/\n" in redhat["etc/yum.repos.d/redhat.repo"][0]
    assert "gpgcheck=1" in redhat["etc/yum.repos.d/redhat.repo"][0]
    assert "etc/apt/sources.list" not in redhat
    debian = layer_files("debian13", "10.80.0.1", "KEY")
    assert not {"usr/lib/os-release", "etc/yum.repos.d/redhat.repo"} & set(debian), "Debian is what it is"


def test_who_cleans_up_after_one_tree_leaves_the_builder_of_another_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stopped: list[int] = []
    lines = [
        (1, ["mmdebstrap", f"{tmp_path}/building-one"]),
        (2, ["mmdebstrap", f"{tmp_path}/building-one-dnf"]),
        (3, ["dpkg", f"--root={tmp_path}/building-one-dnf/x"]),
        (4, ["gpg-agent", "--homedir", f"{tmp_path}/tmp-one/apt"]),
    ]
    monkeypatch.setattr(trees, "_TREES", tmp_path)
    monkeypatch.setattr("gpuprov_lab.process.command_lines", lambda: iter(lines))
    monkeypatch.setattr("gpuprov_lab.process.stop_pids", lambda pids, **_: stopped.extend(pids))
    trees._abandon(Base("one", "trixie"))
    assert stopped == [1, 4]
    trees._abandon(Base("one-dnf", "trixie", dnf=True))
    assert stopped == [1, 4, 2, 3]
