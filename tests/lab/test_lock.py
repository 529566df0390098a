"""A locked package set: made only from good nodes, enforced on a changed node and a new one.

It is refused if impossible, and removed when no longer declared. dpkg reports the installed packages. The
tests run in the order written: each starts from the state that the previous one left.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.desired import lockfile
from provision.errors import ExitCode
from tests.lab.agreement import INSTALL, Agreement, Gpuprov, command, held, installed, said, spoil
from tests.lab.lab_nodes import Lab, LabNode, running_lab

# No driver: an update of the CUDA toolkit is as good a test, and needs no reboot.
ROLES = ("nvidia_repository", "cuda_toolkit", "nccl", "package_lock")
OLD = {"cuda-toolkit-12-9": "12.9.0-1", "cuda-nvcc-12-9": "12.9.41-1", "libcublas-12-9": "12.9.0.13-1"}
pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = (NodeSpec("gpu-01", "l40s"), NodeSpec("gpu-02", "l40s"))
    with running_lab("lock", nodes, tmp_path_factory.mktemp("lab") / "lab.yml") as running:
        yield running


@pytest.fixture(scope="module")
def gpuprov(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Gpuprov:
    # Without an exact release, every update of CUDA 12.9 is as declared; a bare node gets the newest.
    return command(lab, tmp_path_factory.mktemp("runs"), ROLES, cuda_toolkit_release="''")


@pytest.fixture(scope="module")
def agreement(lab: Lab, gpuprov: Gpuprov) -> Agreement:
    made = Agreement(lab, gpuprov)
    made.check()  # brings both nodes to the declared state
    return made


def older(node: LabNode) -> None:
    """Install an older CUDA update that is still offered, which no declaration forbids."""
    words = " ".join(f"{name}={version}" for name, version in OLD.items())
    spoil(node, f"{INSTALL} {words}; apt-mark hold {' '.join(OLD)}")


@pytest.mark.usefixtures("agreement")
def test_nodes_that_disagree_make_no_lock_file(lab: Lab, gpuprov: Gpuprov) -> None:
    older(lab.node("gpu-01"))
    done = gpuprov("lock")
    assert done.returncode == ExitCode.ERROR, said(done)
    assert "cuda-nvcc-12-9 is 12.9.41-1 on gpu-01, 12.9.86-1 on gpu-02" in done.stderr, said(done)
    assert not lockfile.beside(lab.inventory).exists()


def test_a_node_that_is_not_as_declared_is_no_source(lab: Lab, gpuprov: Gpuprov) -> None:
    spoil(lab.node("gpu-02"), "apt-mark unhold libnccl2")
    done = gpuprov("lock", "--nodes", "gpu-02")
    assert done.returncode == ExitCode.ERROR, said(done)
    assert "gpu-02: 1 expectation not held, the first is package.libnccl2.held (nccl)" in done.stderr
    spoil(lab.node("gpu-02"), "apt-mark hold libnccl2")


def test_a_lock_has_exactly_what_dpkg_says(lab: Lab, gpuprov: Gpuprov) -> None:
    done = gpuprov("lock", "--nodes", "gpu-01")
    assert done.returncode == ExitCode.OK, said(done)
    (group,) = lockfile.read(lockfile.beside(lab.inventory)).groups
    assert (group.os, group.arch, group.skus) == ("debian 13", "x86_64", ("l40s",))
    there = installed(lab.node("gpu-01"))
    assert group.packages.items() <= there.items()
    assert OLD.items() <= group.packages.items()
    ours = {name for name, version in there.items() if "cuda" in name + version}
    assert ours <= group.packages.keys()


def drifted(done: subprocess.CompletedProcess[str]) -> set[tuple[str, str, str]]:
    return {(each["node"], each["role"], each["fact"]) for each in json.loads(done.stdout)["drifts"]}


def test_drift_names_every_package_that_moved_and_up_moves_it_back(
    lab: Lab, gpuprov: Gpuprov, agreement: Agreement
) -> None:
    found = drifted(gpuprov("drift", "--json"))
    assert {("gpu-02", "package_lock", f"package.{name}.version") for name in OLD} <= found
    assert {role for _, role, _ in found} == {"package_lock"}
    plan = agreement.check()
    assert plan["gpu-02"]["roles"] == ["package_lock"]
    assert {each["name"]: each["after"] for each in plan["gpu-02"]["packages"]}.items() >= OLD.items()
    assert gpuprov("drift").returncode == ExitCode.OK
    assert installed(lab.node("gpu-02")).items() >= OLD.items()
    assert held(lab.node("gpu-02")) >= set(OLD)


def test_an_upgrade_by_hand_leaves_locked_packages_where_they_are(lab: Lab) -> None:
    node = lab.node("gpu-02")
    spoil(node, f"apt-mark unhold {' '.join(OLD)}; DEBIAN_FRONTEND=noninteractive apt-get dist-upgrade -qy")
    assert installed(node).items() >= OLD.items()


def test_a_new_node_gets_the_locked_set_though_newer_packages_are_offered(
    lab: Lab, agreement: Agreement
) -> None:
    node = lab.node("gpu-02")
    spoil(node, "apt-get purge -qy --allow-change-held-packages 'cuda-*' 'libcublas*'")
    spoil(node, "rm /etc/apt/preferences.d/gpuprov-lock; truncate -s 0 /var/log/dpkg.log")
    plan = agreement.check()
    assert plan["gpu-02"]["roles"] == ["cuda_toolkit", "package_lock"]
    assert "12.9.1-1" in node.run("apt-cache madison cuda-toolkit-12-9").stdout
    assert installed(node).items() >= OLD.items()
    log = node.run("cat /var/log/dpkg.log").stdout
    assert "install cuda-toolkit-12-9:amd64 <none> 12.9.0-1" in log
    assert "12.9.1-1" not in log, "no role has installed the newer one on the way"


def test_a_lock_that_contradicts_what_is_declared_is_refused_before_anything_is_touched(
    lab: Lab, gpuprov: Gpuprov
) -> None:
    before = {node.name: installed(node) for node in lab.nodes}
    for verb in ("plan", "up", "drift"):
        done = gpuprov(verb, "--set", "cuda_toolkit_release=12.9.1")
        assert done.returncode == ExitCode.ERROR, said(done)
        assert (
            "the lock file has cuda-toolkit-12-9 12.9.0-1, cuda_toolkit declares version 12.9.1"
            in done.stderr
        )
        assert "gpuprov lock again" in done.stderr
    assert {node.name: installed(node) for node in lab.nodes} == before


def test_a_version_that_is_offered_no_longer_is_refused_with_what_is(lab: Lab, gpuprov: Gpuprov) -> None:
    file = lockfile.beside(lab.inventory)
    gone = file.with_name("gone.yml")
    gone.write_text(file.read_text().replace('"cuda-nvcc-12-9": "12.9.41-1"', '"cuda-nvcc-12-9": "12.9.7-1"'))
    done = gpuprov("up", "--nodes", "gpu-02", "--lock", str(gone))
    assert done.returncode == ExitCode.UNHEALTHY, said(done)
    assert "cuda-nvcc-12-9 12.9.7-1 is not offered; offered are: 12.9.86-1, 12.9.41-1" in done.stdout, said(
        done
    )
    assert installed(lab.node("gpu-02")).items() >= OLD.items()


def test_without_the_lock_file_its_pins_go(lab: Lab, gpuprov: Gpuprov) -> None:
    done = gpuprov("up", "--no-lock")
    assert done.returncode == ExitCode.OK, said(done)
    for node in lab.nodes:
        assert node.run("test -e /etc/apt/preferences.d/gpuprov-lock", check=False).returncode == 1
    assert gpuprov("drift", "--no-lock").returncode == ExitCode.OK
