"""A site's driver choices on one node: Secure Boot, a branch, another source, old keys.

The firmware's variables are files in a private file system at the kernel's EFI path. The tests run in the
order written: each starts from the state that the previous one left.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, said
from tests.lab.lab_nodes import running_lab

ROLES = ["nvidia_repository", "nvidia_driver"]
EFI = "/sys/firmware/efi"
SHIM = "605dab50-e046-4300-abb6-3dd810dd8b23"
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    inventory = tmp_path_factory.mktemp("choices") / "lab.yml"
    with running_lab("choices", (NodeSpec("gpu-01", "h100-sxm"),), inventory) as running:
        yield running


@pytest.fixture(scope="module")
def node(lab: Any) -> Any:
    return lab.node("gpu-01")


def test_all_that_a_role_refuses_is_said_at_once(operator: Operator, node: Any) -> None:
    ports = [{"device": "mlx5_0", "link_layer": "Ethernet"}]
    wrong: dict[str, Any] = {
        "rdma_memlock": "lots",
        "rdma_expected_ports": ports,
        "rdma_roce_netdev_mtu": 1500,
    }
    done = operator.call("up", gpuprov_roles=["rdma"], **wrong)
    assert done.returncode == ExitCode.UNHEALTHY, said(done)
    text = " ".join(said(done).split())
    assert (
        'rdma_memlock is "lots"; it is a number of KiB, or "unlimited". Also: rdma_roce_netdev_mtu is 1500'
        in text
    )
    assert "rdma-core" not in node.run("dpkg -l | grep ^ii").stdout, "nothing was installed"


def test_secure_boot_stops_the_run_with_the_steps_for_a_person(operator: Operator, node: Any) -> None:
    variable = f"{EFI}/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    node.run("sudo mount -t tmpfs efi /sys/firmware")
    node.run(f"sudo mkdir -p {EFI}/efivars {EFI}/mok-variables")
    node.run(f"printf '\\006\\000\\000\\000\\001' | sudo tee {variable} > /dev/null")
    assert operator.drifted(gpuprov_roles=ROLES)["secure_boot.rejects_dkms"]["found"] is True
    done = operator.call("up", gpuprov_roles=ROLES)
    assert done.returncode == ExitCode.UNHEALTHY, said(done)
    for step in (
        "Secure Boot is on, and the key that signs kernel modules built on this machine is not enrolled",
        "apt-get install dkms mokutil, then dkms generate_mok",
        "mokutil --import /var/lib/dkms/mok.pub",
        "Enroll MOK, Continue, Yes",
        "Run gpuprov up again",
    ):
        assert step in said(done)
    assert "nvidia-driver-cuda" not in node.run("dpkg -l | grep ^ii").stdout, "nothing was installed"


def test_a_key_that_is_there_and_not_enrolled_is_not_made_again(operator: Operator, node: Any) -> None:
    node.run("sudo mkdir -p /var/lib/dkms")
    node.run(
        "{ printf '\\060\\202'; head -c 800 /dev/urandom; } | sudo tee /var/lib/dkms/mok.pub > /dev/null"
    )
    node.run(f"head -c 900 /dev/urandom | sudo tee {EFI}/efivars/MokListRT-{SHIM} > /dev/null")
    done = operator.call("up", gpuprov_roles=ROLES)
    assert done.returncode == ExitCode.UNHEALTHY, said(done)
    assert "mokutil --import /var/lib/dkms/mok.pub" in said(done)
    assert "generate_mok" not in said(done)


def test_an_enrolled_key_lets_the_run_pass_and_a_branch_is_its_newest_release(
    operator: Operator, node: Any
) -> None:
    node.run(
        f"{{ printf '\\007\\000\\000\\000header'; cat /var/lib/dkms/mok.pub; }} "
        f"| sudo tee {EFI}/efivars/MokListRT-{SHIM} > /dev/null"
    )
    done = operator.call("up", gpuprov_roles=ROLES, nvidia_driver_version="580")
    assert done.returncode == ExitCode.OK, said(done)
    assert "580.126.09" in node.run("cat /proc/driver/nvidia/version").stdout
    held = node.run("apt-mark showhold").stdout.split()
    installed = node.run(
        "dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\\n'"
    ).stdout.splitlines()
    ours = {
        line.split()[1]
        for line in installed
        if line.startswith("installed ") and line.endswith(" 580.126.09-1")
    }
    assert len(ours) > 12
    assert ours <= set(held), "every package of the driver is held"
    assert "nvidia-driver-pinning-580" in ours, "NVIDIA's own pin, since the repository has one"
    assert "Pin: version 580.*" in node.run("cat /etc/apt/preferences.d/nvidia-driver").stdout
    assert operator.drifted(gpuprov_roles=ROLES, nvidia_driver_version="580") == {}


def test_an_exact_version_replaces_the_branch_and_its_pin(operator: Operator, node: Any) -> None:
    done = operator.call("up", gpuprov_roles=ROLES, nvidia_driver_version="580.95.05")
    assert done.returncode == ExitCode.OK, said(done)
    assert "580.95.05" in node.run("cat /proc/driver/nvidia/version").stdout
    listed = node.run("dpkg-query -W -f '${db:Status-Status} ${Package}\\n' 'nvidia-driver-pinning-*'").stdout
    assert [line for line in listed.splitlines() if line.startswith("installed")] == [
        "installed nvidia-driver-pinning-580.95.05"
    ]
    within = operator.drifted(gpuprov_roles=ROLES, nvidia_driver_version="580")
    assert "driver.loaded_version" not in within, "it is a release of the branch"


def test_the_other_source_is_refused_by_name_or_replaced(operator: Operator, node: Any) -> None:
    node.run("sudo apt-get update -q && sudo apt-get install -y --no-install-recommends nvidia-legacy-check")
    node.run("sudo install -m 755 /dev/null /usr/bin/nvidia-uninstall")
    node.run("printf '#!/bin/sh\\nrm /usr/bin/nvidia-uninstall\\n' | sudo tee /usr/bin/nvidia-uninstall")
    done = operator.call("up", "--full", gpuprov_roles=ROLES)
    assert done.returncode == ExitCode.UNHEALTHY, said(done)
    assert (
        "A driver from another source is on this machine: nvidia-legacy-check, NVIDIA .run installer"
        in said(done)
    )
    done = operator.call("up", gpuprov_roles=ROLES, nvidia_driver_replace_foreign=True)
    assert done.returncode == ExitCode.OK, said(done)
    assert node.run("ls /usr/bin/nvidia-uninstall", check=False).returncode != 0
    assert (
        "installed"
        not in node.run("dpkg-query -W -f '${db:Status-Status}' nvidia-legacy-check", check=False).stdout
    )
    assert "580.126.09" in node.run("cat /proc/driver/nvidia/version").stdout


def test_old_sources_of_nvidia_are_removed(operator: Operator, node: Any) -> None:
    old = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2004/x86_64 /"
    node.run(f"echo 'deb [trusted=yes] {old}' | sudo tee /etc/apt/sources.list.d/by-hand.list")
    node.run(f"echo 'deb {old}' | sudo tee -a /etc/apt/sources.list")
    node.run("sudo touch /etc/apt/sources.list.d/nvidia-ml.list")
    assert set(operator.drifted(gpuprov_roles=ROLES)) == {
        "file./etc/apt/sources.list.d/nvidia-ml.list.content"
    }
    done = operator.call("up", gpuprov_roles=ROLES)
    assert done.returncode == ExitCode.OK, said(done)
    assert "developer.download.nvidia.com" not in node.run("cat /etc/apt/sources.list").stdout
    left = node.run("ls /etc/apt/sources.list.d").stdout.split()
    assert sorted(left) == [
        "gpuprov-tools.sources",
        "nvidia-container-toolkit.sources",
        "nvidia-cuda.sources",
    ]


def test_headers_and_initramfs_of_the_kernel_that_will_boot_are_promised(
    operator: Operator, node: Any
) -> None:
    """A newer kernel in /boot has neither headers nor a driver module; drift reports both."""
    node.run("sudo mkdir -p /boot /lib/modules/99.1.0-lab && sudo touch /boot/vmlinuz-99.1.0-lab")
    drifted = operator.drifted(gpuprov_roles=ROLES)
    assert set(drifted) == {"kernel.headers", "driver.installed_version"}
    done = operator.call("up", gpuprov_roles=ROLES)
    assert done.returncode == ExitCode.UNHEALTHY, said(done)
    assert "There are no headers for kernel 99.1.0-lab, which the next boot uses" in said(done)
    assert "linux-headers-99.1.0-lab" in said(done)
    node.run("sudo rm -r /lib/modules/99.1.0-lab /boot/vmlinuz-99.1.0-lab")
    assert operator.drifted(gpuprov_roles=ROLES) == {}
