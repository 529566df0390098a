"""Real DKMS with Debian's driver, headers, compiler and kernel: a failing and a working build.

Debian 13's nvidia-open-kernel-dkms 550 does not compile against its kernel 6.12, and leaves its package half
configured; the proprietary one compiles. The node runs the host's kernel: the one in its /boot only counts as
the next to boot. The tests run in the order written, and take minutes of compiling.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, said
from tests.lab.lab_nodes import running_lab

ROLES = ["nvidia_repository", "nvidia_driver"]
DRIVER = {"gpuprov_roles": ROLES, "nvidia_driver_source": "distribution", "nvidia_driver_version": "550"}
OPEN = {**DRIVER, "nvidia_driver_flavour": "open"}
PROPRIETARY = {**DRIVER, "nvidia_driver_flavour": "proprietary"}
ERROR = r"nvidia/\S+\.c:\d+:\d+: error: "
pytestmark = [pytest.mark.long, pytest.mark.timeout(3000)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    inventory = tmp_path_factory.mktemp("dkms") / "lab.yml"
    with running_lab("dkms", (NodeSpec("gpu-01", "h100-sxm"),), inventory) as running:
        yield running


@pytest.fixture(scope="module")
def node(lab: Any) -> Any:
    """Return a node with a Debian kernel in /boot and without its headers.
    nouveau is unloaded: otherwise it, and not the next kernel, would be the reason to reboot."""
    node = lab.node("gpu-01")
    node.as_root("echo blacklist nouveau > /etc/modprobe.d/site.conf")
    node.reboot()
    node.run("sudo apt-get update -q", timeout=300)
    node.run(
        "sudo DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends linux-image-amd64",
        timeout=900,
    )
    return node


@pytest.fixture(scope="module")
def kernel(node: Any) -> str:
    (release,) = re.findall(r"vmlinuz-(\S+)", node.run("ls /boot").stdout)
    assert release != node.run("uname -r").stdout.strip()
    return str(release)


def test_a_module_that_does_not_compile_is_one_clear_sentence(
    operator: Operator, node: Any, kernel: str
) -> None:
    done = operator.call("up", "--no-reboot", timeout=1500, **OPEN)
    assert done.returncode == ExitCode.UNHEALTHY, said(done)
    sentence = rf"DKMS could not build nvidia-current-open 550\.\S+ for kernel {re.escape(kernel)}: {ERROR}"
    assert re.search(sentence, said(done)), said(done)
    assert "Set nvidia_driver_flavour to proprietary" in said(done)
    assert re.search(": error: ", node.run("cat /var/log/gpuprov-nvidia-dkms.log").stdout), "the log is kept"


def test_the_machine_is_left_so_that_apt_works(node: Any) -> None:
    assert node.run("sudo dpkg --audit").stdout == ""
    node.run("sudo apt-get install -y --no-install-recommends hello", timeout=300)


def test_a_half_configured_package_is_diagnosed_with_the_compilers_words(
    operator: Operator, node: Any, kernel: str
) -> None:
    """Another user's apt-get left this state; the log of the real failure is in DKMS's place."""
    node.run(
        "sudo mkdir -p /var/lib/dkms/nvidia-current-open/550/build && "
        "sudo cp /var/log/gpuprov-nvidia-dkms.log /var/lib/dkms/nvidia-current-open/550/build/make.log"
    )
    failed = operator.drifted(**OPEN)["dkms.nvidia.failed"]["found"]
    node.run("sudo rm -r /var/lib/dkms/nvidia-current-open")
    assert len(failed) == 1, failed
    assert re.match(rf"{re.escape(kernel)}: {ERROR}", failed[0])


def test_another_choice_recovers_the_machine(operator: Operator, node: Any, kernel: str) -> None:
    done = operator.call("up", "--no-reboot", timeout=2400, **PROPRIETARY)
    # The node cannot boot the kernel in its /boot, so only the state in memory may differ.
    drifted = set(operator.drifted(**PROPRIETARY))
    assert drifted <= {"driver.loaded_version", "driver.flavour", "service.nvidia-persistenced.active"}, said(
        done
    )
    assert "driver.loaded_version" in drifted
    version = node.run(f"/usr/sbin/modinfo -k {kernel} -F version nvidia-current").stdout.strip()
    assert version.startswith("550."), "the module is there for the kernel that will boot"
    assert node.run(f"/usr/sbin/modinfo -k {kernel} -F license nvidia-current").stdout.strip() == "NVIDIA"
    assert f"{kernel}, x86_64: installed" in node.run("sudo dkms status").stdout
    assert f"its module is built for kernel {kernel}" in node.run("cat /run/reboot-required.pkgs").stdout
    assert node.run("sudo dpkg --audit").stdout == ""
    listing = node.run(f"sudo lsinitramfs /boot/initrd.img-{kernel}", timeout=300).stdout
    assert "etc/modprobe.d/blacklist-nouveau.conf" in listing
    held = set(node.run("apt-mark showhold").stdout.split())
    assert {"nvidia-kernel-dkms", "nvidia-smi", "libcuda1", "libnvidia-ml1", "nvidia-persistenced"} <= held
    assert json.dumps(sorted(held)).count("open-kernel") == 0
