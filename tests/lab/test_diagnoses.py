"""Five driver stack problems on a lab node, each reported in one line: cause and next step.

The evidence of hardware and firmware is placed at its origin: EFI variables, DKMS's tree, dpkg's database,
the loaded module. Only the observer stands between the evidence and the line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuprov_lab.spec import NodeSpec
from tests.lab.gpuprov_up import Operator
from tests.lab.lab_nodes import Lab, LabNode, running_lab

NODE = "sick-01"
DRIVER, OTHER = "580.126.09", "570.124.06"
# gcc 14's error for the open module 550.163.01 on Debian 13's kernel.
COMPILER = "nvidia/nv-pci.c:237:9: error: too few arguments to function 'pci_resize_resource'"
GUID = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(
        "sick", (NodeSpec(NODE, "h100-sxm"),), tmp_path_factory.mktemp("lab") / "lab.yml"
    ) as running:
        yield running


@pytest.fixture(scope="module")
def node(lab: Lab) -> LabNode:
    """Return a node with a driver's files but without its packages, which an observation does not need."""
    found = lab.node(NODE)
    library = "/usr/lib/x86_64-linux-gnu"
    root(
        found,
        f"""
        rm -rf /sys/module/nouveau
        mkdir -p /sys/module/nvidia /proc/driver/nvidia {library}
        echo live > /sys/module/nvidia/initstate
        {loaded(DRIVER)}
        {dpkg("nvidia-fabricmanager-580", DRIVER)}
        touch {library}/libnvidia-ml.so.{DRIVER}
        ln -sfn libnvidia-ml.so.{DRIVER} {library}/libnvidia-ml.so.1
        """,
    )
    return found


def root(node: LabNode, script: str) -> None:
    node.run(f"sudo bash -es <<'SCRIPT'\n{script}\nSCRIPT")


def loaded(version: str) -> str:
    """Return a command that fakes the loaded module's version in /proc."""
    line = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (dvs)"
    return f"echo '{line}' > /proc/driver/nvidia/version"


def gone(name: str) -> str:
    return f"sed -i '/^Package: {name}$/,/^$/d' /var/lib/dpkg/status"


def dpkg(name: str, version: str, status: str = "install ok installed") -> str:
    paragraph = f"Package: {name}\\nStatus: {status}\\nArchitecture: amd64\\nVersion: {version}-1\\n"
    return f"{gone(name)}; printf '\\n{paragraph}\\n' >> /var/lib/dpkg/status"


SECURE_BOOT = f"""
mount -t tmpfs none /sys/firmware && mkdir -p /sys/firmware/efi/efivars /var/lib/dkms
printf '\\006\\000\\000\\000\\001' > /sys/firmware/efi/efivars/SecureBoot-{GUID}
printf '0\\202\\001\\012a certificate' > /var/lib/dkms/mok.pub
rm /proc/driver/nvidia/version
"""
HALF_BUILT = f"""
mkdir -p /var/lib/dkms/nvidia/550.163.01/build /lib/modules/$(uname -r)
cat > /var/lib/dkms/nvidia/550.163.01/build/make.log <<LOG
DKMS (dkms-3.2.2) make.log for nvidia/550.163.01 for kernel $(uname -r) (x86_64)
Building module(s)
# command: make -j2 KERNEL_UNAME=$(uname -r) modules
/var/lib/dkms/nvidia/550.163.01/build/{COMPILER}
  237 |     return pci_resize_resource(pci_dev, bar, size);
make: *** [Makefile:85: modules] Error 2
LOG
{dpkg("nvidia-open-kernel-dkms", "550.163.01", "install ok half-configured")}
rm /proc/driver/nvidia/version
"""

# trouble -> (root shell command, rule, words of the cause, words of the next step, command that undoes it)
TROUBLES = {
    "driver and fabric manager differ": (
        dpkg("nvidia-fabricmanager-580", "580.95.05"),
        "fabric-manager-mismatch",
        f"fabric manager is 580.95.05 (nvidia-fabricmanager-580) and the driver {DRIVER}",
        "gpuprov up /",
        dpkg("nvidia-fabricmanager-580", DRIVER),
    ),
    "library and module differ": (
        loaded(OTHER) + "; " + dpkg("nvidia-fabricmanager-580", OTHER),
        "library-module-split",
        f"the library is {DRIVER} and the module in memory {OTHER}",
        "gpuprov up /",
        loaded(DRIVER) + "; " + dpkg("nvidia-fabricmanager-580", DRIVER),
    ),
    "a half-built module": (
        HALF_BUILT,
        "dkms-build-failed",
        f": {COMPILER}",
        "choose a driver that builds on this kernel",
        f"rm -r /var/lib/dkms/nvidia; {gone('nvidia-open-kernel-dkms')}; {loaded(DRIVER)}",
    ),
    "Secure Boot without our key": (
        SECURE_BOOT,
        "secure-boot-key",
        "Secure Boot is on and the key that signs DKMS modules is not enrolled",
        "mokutil --import",
        f"umount /sys/firmware; rm /var/lib/dkms/mok.pub\n{loaded(DRIVER)}",
    ),
    "nouveau is loaded": (
        "mkdir -p /sys/module/nouveau && echo live > /sys/module/nouveau/initstate",
        "nouveau-loaded",
        "nouveau is loaded and holds the GPUs",
        "blacklists nouveau, rebuilds the initramfs and reboots",
        "rm -r /sys/module/nouveau",
    ),
}


def diagnosed(operator: Operator, folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """Return the output of `drift`, and the diagnoses in its document."""
    file = folder / "drift.json"
    done = operator.call("drift", "--format", f"json={file}")
    assert file.exists(), done.stderr
    return done.stdout, json.loads(file.read_text())["diagnoses"]


def test_a_node_without_these_troubles_has_no_diagnosis(
    node: LabNode, operator: Operator, tmp_path: Path
) -> None:
    text, found = diagnosed(operator, tmp_path)
    assert found == [], node.name
    assert "cause and next step" not in text


@pytest.mark.parametrize("trouble", TROUBLES)
def test_each_trouble_is_one_line_with_cause_and_next_step(
    node: LabNode, operator: Operator, tmp_path: Path, trouble: str
) -> None:
    plant, rule, cause, following, undo = TROUBLES[trouble]
    root(node, plant)
    try:
        text, found = diagnosed(operator, tmp_path)
        planned = operator.call("plan").stdout if rule == "nouveau-loaded" else text
    finally:
        root(node, undo)
    assert [(each["rule"], each["nodes"]) for each in found] == [(rule, [NODE])]
    (line,) = [line for line in text.splitlines() if line.startswith(f"  {NODE}  ") and "; next: " in line]
    before, _, after = line.partition("; next: ")
    assert cause in before
    assert following in after
    assert line in planned.splitlines(), "plan says it, too"
    sys.stderr.write(f"{line.strip()}\n")
