"""A plan predicts `up`: roles, packages, holds and reboots, from many states of two nodes.

The tests run in the order written: each starts from the state that the previous one left.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpuprov_lab.spec import NodeSpec
from tests.lab.agreement import INSTALL, Agreement, Gpuprov, command, spoil
from tests.lab.lab_nodes import Lab, running_lab

ROLES = ("nvidia_repository", "nvidia_driver", "cuda_toolkit", "nccl", "container_toolkit", "package_lock")
OLD_DRIVER = ("--set", "nvidia_driver_version=570.124.06")
pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = (NodeSpec("gpu-01", "h100-sxm"), NodeSpec("gpu-02", "h100-sxm"))
    with running_lab("plan", nodes, tmp_path_factory.mktemp("lab") / "lab.yml") as running:
        yield running


@pytest.fixture(scope="module")
def gpuprov(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Gpuprov:
    return command(lab, tmp_path_factory.mktemp("runs"), ROLES)


@pytest.fixture(scope="module")
def agreement(lab: Lab, gpuprov: Gpuprov) -> Agreement:
    return Agreement(lab, gpuprov)


def test_bare_nodes_get_what_the_plan_says(agreement: Agreement) -> None:
    plan = agreement.check(*OLD_DRIVER)
    for node in plan.values():
        assert node["reboot"] == "yes", "nouveau holds the GPUs of a bare node"
        assert {each["name"] for each in node["packages"] if each["after"] == "570.124.06"} >= {"libcuda1"}
        assert node["learnt_from_runs"] == 0


def test_nodes_as_declared_are_left_alone(agreement: Agreement) -> None:
    plan = agreement.check(*OLD_DRIVER)
    assert all(node["as_declared"] and node["minutes"] == 0 for node in plan.values())


def test_settings_holds_and_packages_that_moved(agreement: Agreement, lab: Lab) -> None:
    one, other = lab.nodes
    spoil(one, "apt-mark unhold libcuda1; echo NCCL_DEBUG=INFO >> /etc/nccl.conf")
    spoil(one, f"{INSTALL} libnccl2=2.29.3-1+cuda13.1 libnccl-dev=2.29.3-1+cuda13.1")
    half = "/^Package: libnvidia-container1$/,/^$/s/ok installed/ok unpacked/"
    spoil(one, f"sed -i '{half}' /var/lib/dpkg/status")
    spoil(other, "systemctl stop nvidia-persistenced; rm /etc/modprobe.d/blacklist-nouveau.conf")
    spoil(other, "apt-get remove -qy --allow-change-held-packages nvidia-container-toolkit")
    plan = agreement.check(*OLD_DRIVER)
    assert plan[one.name]["roles"] == ["nvidia_driver", "nccl", "container_toolkit"]
    changes = {p["name"]: (p["change"], p["before"], p["after"]) for p in plan[one.name]["packages"]}
    assert changes["libcuda1"][0] == "hold"
    assert changes["libnccl2"] == ("replace", "2.29.3-1+cuda13.1", "2.29.7-1+cuda12.9")
    assert changes["libnvidia-container1"][0] == "repair"
    assert plan[other.name]["roles"] == ["nvidia_driver", "container_toolkit"]
    assert [p["name"] for p in plan[other.name]["packages"]] == ["nvidia-container-toolkit"]


def test_a_library_that_moved_and_a_reboot_a_node_asks_for_itself(agreement: Agreement, lab: Lab) -> None:
    one, other = lab.nodes
    # The driver's other packages depend on their exact version: only dpkg can move one of them alone.
    spoil(one, "cd /tmp && apt-get download -q libcudadebugger1=580.95.05-1")
    spoil(one, "dpkg --install --force-depends /tmp/libcudadebugger1_580.95.05-1_amd64.deb")
    spoil(other, "touch /run/reboot-required; echo linux-image-6.12 > /run/reboot-required.pkgs")
    spoil(other, "echo NCCL_DEBUG=INFO >> /etc/nccl.conf")
    plan = agreement.check(*OLD_DRIVER)
    assert plan[one.name]["reboot"] == "no", "the module in memory is the declared one"
    assert plan[other.name]["reboot"] == "yes"
    assert "linux-image-6.12" in plan[other.name]["reboot_because"][0]


def test_another_declared_driver_whose_minutes_are_learnt(agreement: Agreement, gpuprov: Gpuprov) -> None:
    plan = agreement.check()
    for node in plan.values():
        assert node["reboot"] == "yes"
        replaced = {each["name"] for each in node["packages"] if each["after"] == "580.126.09"}
        assert {"nvidia-driver-cuda", "libcuda1"} <= replaced
        assert node["learnt_from_runs"] > 0
    print(f"\nplan and up agreed on {agreement.states} of {agreement.states} nodes and states")  # noqa: T201
    assert "(learnt from " in gpuprov("plan", *OLD_DRIVER).stdout
