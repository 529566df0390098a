"""RDMA, GPUDirect and the host's settings on nodes: breakage, repair and refusals.
DOCA-OFED comes before and after the driver, and access control at each boot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, said
from tests.lab.images import Images
from tests.lab.lab_nodes import Lab, LabNode, running_lab
from tests.lab.role_playbook import Playbook

NODES = (NodeSpec("gpu-01", "h100-sxm"), NodeSpec("gpu-02", "l40s", "debian12"))
ROLES = ["nvidia_repository", "rdma", "nvidia_driver", "gpudirect_rdma", "host_settings"]
COMMON: dict[str, Any] = {
    "gpuprov_roles": ROLES,
    "host_settings_disable_acs": True,
    "host_settings_shm_size": "256M",
    "host_settings_time_servers": ["10.0.0.1"],
}
DOCA: dict[str, Any] = {**COMMON, "rdma_source": "doca", "gpudirect_rdma_method": "peermem"}
BRIDGE = "0000:00:01.0"
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def lab(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Yield gpu-01, which is bare, and gpu-02 with the driver and the inbox stack."""
    declared = {"gpu-02": images.declared()["gpu-02"]}
    inventory = tmp_path_factory.mktemp("lab") / "lab.yml"
    with running_lab("rdma", NODES, inventory, images=declared) as running:
        yield running


@pytest.fixture(scope="module")
def operator(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Operator:
    """Bring up gpu-01 with DOCA-OFED and access control on (by firmware), gpu-02 with the inbox stack."""
    inventory = tmp_path_factory.mktemp("inventory") / "nodes.yml"
    declared = yaml.safe_load(lab.inventory.read_text())
    for name, variables in (("gpu-01", DOCA), ("gpu-02", COMMON)):
        declared["gpu_nodes"]["hosts"][name].update(variables)
    inventory.write_text(yaml.safe_dump(declared))
    operator = Operator(inventory, tmp_path_factory.mktemp("runs"))
    lab.node("gpu-01").fault("acs_on")
    assert len(operator.drifted()["pci.acs_harmful"]["found"]) == 8
    done = operator.call("up", timeout=1500)
    assert done.returncode == ExitCode.OK, said(done)
    return operator


@pytest.fixture
def one(lab: Lab) -> LabNode:
    return lab.node("gpu-01")


@pytest.fixture
def two(lab: Lab) -> LabNode:
    return lab.node("gpu-02")


@pytest.mark.usefixtures("operator")
def test_doca_was_there_before_the_drivers_modules_were_built(one: LabNode) -> None:
    log = one.run("grep ' configure ' /var/log/dpkg.log").stdout
    assert log.index("mlnx-ofed-kernel-dkms") < log.index("nvidia-kernel-open-dkms")
    assert "ib_core" in one.run("/usr/sbin/modinfo -F depends nvidia-peermem").stdout
    assert one.run("cat /sys/module/nvidia_peermem/initstate").stdout == "live\n"
    assert "doca-ofed" in one.run("apt-mark showhold").stdout.split()


@pytest.mark.usefixtures("operator")
def test_the_limit_is_in_force_for_logins_and_services(one: LabNode, lab: Lab) -> None:
    wanted = one.run(
        "awk '/^root hard memlock/ { print $4 }' /etc/security/limits.d/90-gpuprov-rdma.conf"
    ).stdout
    assert one.run("ulimit -l").stdout == wanted
    assert one.run("sudo sh -c 'ulimit -l'").stdout == wanted
    shown = one.run("systemctl show --property=DefaultLimitMEMLOCKSoft --value").stdout.strip()
    assert shown == ("infinity" if wanted == "unlimited\n" else str(int(wanted) * 1024))
    assert f"rdma_memlock: '{wanted.strip()}'" in lab.inventory.read_text() or wanted == "unlimited\n"


@pytest.mark.usefixtures("operator")
def test_a_second_run_changes_nothing(lab: Lab, tmp_path: Path) -> None:
    tags = ("--tags", "rdma,gpudirect_rdma,host_settings")
    for node, variables in (("gpu-01", DOCA), ("gpu-02", COMMON)):
        status, output, counts = Playbook(lab, tmp_path).run("--limit", node, *tags, **variables)
        assert status == 0, output
        assert (counts[node]["changed"], counts[node]["failed"]) == (0, 0), output
        assert counts[node]["ok"] > 20, "the roles did run"


def test_access_control_is_cleared_again_after_the_firmware_set_it_at_boot(
    operator: Operator, one: LabNode
) -> None:
    one.reboot()
    journal = one.run("sudo journalctl --boot --unit gpuprov-host-settings --output cat").stdout
    assert f"{BRIDGE}: ACSCtl 001d -> 0000" in journal
    assert one.run(f"sudo setpci -s {BRIDGE} ECAP_ACS+6.w").stdout == "0000\n"
    assert operator.drifted().keys() & {"pci.acs_harmful", "memory.shm_bytes"} == set()
    assert one.run("stat --file-system --format '%b %S' /dev/shm").stdout.split() == ["65536", "4096"]


BREAKS = {
    "pci.acs_harmful": f"setpci -s {BRIDGE} ECAP_ACS+6.w=001d",
    "memory.shm_bytes": "mount -o remount,size=64M /dev/shm",
    "package.doca-ofed.held": "apt-mark unhold doca-ofed",
    "file./etc/apt/sources.list.d/nvidia-doca.sources.content": (
        "echo '# mine' >> /etc/apt/sources.list.d/nvidia-doca.sources"
    ),
    "file./etc/modules-load.d/gpuprov-gpudirect-rdma.conf.content": (
        "echo '#' >> /etc/modules-load.d/gpuprov-gpudirect-rdma.conf"
    ),
    "file./etc/chrony/conf.d/gpuprov.conf.content": "rm /etc/chrony/conf.d/gpuprov.conf",
    "module.nvidia_peermem.loaded": "modprobe -r nvidia-peermem",
    "service.gpuprov-host-settings.service.enabled": "systemctl disable gpuprov-host-settings",
    # Same state as when DOCA-OFED comes after the driver: its modules are built without it.
    "rdma.peermem": (
        "mv /usr/src/ofa_kernel /usr/src/away && apt-get install --reinstall --yes "
        "--allow-change-held-packages nvidia-kernel-open-dkms && mv /usr/src/away /usr/src/ofa_kernel"
    ),
}


def test_each_break_is_named_and_one_up_repairs_them_all(operator: Operator, one: LabNode) -> None:
    broken: set[str] = set()
    for fact, command in BREAKS.items():
        one.as_root(command)
        broken.add(fact)
        if fact in ("package.doca-ofed.held", "module.nvidia_peermem.loaded", "rdma.peermem"):
            found = operator.call("drift", "--nodes", "gpu-01", "--json")
            assert found.returncode == ExitCode.DRIFT, said(found)
            assert {fact for fact in broken if f'"{fact}"' in found.stdout} == broken
    assert set(operator.drifted()) >= broken
    done = operator.call("up", "--nodes", "gpu-01")
    assert done.returncode == ExitCode.OK, said(done)
    assert "ib_core" in one.run("/usr/sbin/modinfo -F depends nvidia-peermem").stdout
    assert one.run("cat /sys/module/nvidia_peermem/initstate").stdout == "live\n"


def test_doca_that_comes_after_the_driver_has_its_modules_built_again(
    operator: Operator, two: LabNode
) -> None:
    assert "ib_core" not in two.run("/usr/sbin/modinfo -F depends nvidia-peermem").stdout
    refused = two.run("sudo modprobe nvidia-peermem", check=False)
    assert "Invalid argument" in refused.stderr
    held = two.run("apt-mark showhold").stdout.split()
    version = two.run("dpkg-query -W nvidia-kernel-open-dkms").stdout
    done = operator.call("up", "--nodes", "gpu-02", **DOCA)
    assert done.returncode == ExitCode.OK, said(done)
    assert "ib_core" in two.run("/usr/sbin/modinfo -F depends nvidia-peermem").stdout
    assert two.run("cat /sys/module/nvidia_peermem/initstate").stdout == "live\n"
    assert two.run("dpkg-query -W nvidia-kernel-open-dkms").stdout == version
    assert set(held) <= set(two.run("apt-mark showhold").stdout.split())


PORT = {"device": "mlx5_0", "link_layer": "InfiniBand"}
REFUSALS: dict[str, tuple[str, dict[str, Any], str]] = {
    "a limit that is none": (
        "rdma",
        {"rdma_memlock": "lots"},
        'rdma_memlock is "lots"; it is a number of KiB',
    ),
    "an interface without room": (
        "rdma",
        {"rdma_expected_ports": [{**PORT, "link_layer": "Ethernet"}], "rdma_roce_netdev_mtu": 1500},
        "with rdma_mtu 4096 it is between 4200",
    ),
    "DOCA without a fingerprint": (
        "rdma",
        {"rdma_source": "doca", "rdma_doca_key_fingerprint": ""},
        "unsigned repositories are not used",
    ),
    "one port of both layers": (
        "rdma",
        {"rdma_expected_ports": [PORT, {**PORT, "link_layer": "Ethernet"}]},
        "A port has one link layer, InfiniBand or Ethernet",
    ),
    "RoCE on InfiniBand": (
        "rdma",
        {"rdma_expected_ports": [PORT], "rdma_roce_pfc_priority": 3},
        "are for ports whose link layer is Ethernet",
    ),
    "congestion notifications with the inbox driver": (
        "rdma",
        {
            "rdma_source": "distribution",
            "rdma_expected_ports": [{**PORT, "link_layer": "Ethernet"}],
            "rdma_roce_ecn_priorities": [3],
        },
        "only DOCA-OFED's driver lets them be set and read",
    ),
    "trust of DSCP without a rule": (
        "rdma",
        {
            "rdma_source": "distribution",
            "rdma_expected_ports": [{**PORT, "link_layer": "Ethernet"}],
            "rdma_roce_trust": "dscp",
        },
        "declare rdma_roce_traffic_class and rdma_roce_pfc_priority as well",
    ),
    "a priority that is none": (
        "rdma",
        {"rdma_expected_ports": [{**PORT, "link_layer": "Ethernet"}], "rdma_roce_ecn_priorities": [8]},
        "it is a list of numbers from 0 to 7",
    ),
    "two stacks": (
        "rdma",
        {"rdma_source": "distribution"},
        "these packages of another stack are installed: doca-ofed",
    ),
    "peermem with the inbox stack": (
        "gpudirect_rdma",
        {"rdma_source": "distribution"},
        "gpudirect_rdma_method peermem cannot work here: nvidia-peermem needs the kernel modules of OFED",
    ),
    "a parameter no kernel has": (
        "host_settings",
        {"host_settings_sysctls": {"net.no_such_thing": 1}},
        "host_settings_sysctls names net.no_such_thing, which this kernel does not have",
    ),
}


@pytest.mark.parametrize("case", sorted(REFUSALS))
@pytest.mark.usefixtures("operator")
def test_what_cannot_work_is_refused_in_a_sentence(lab: Lab, tmp_path: Path, case: str) -> None:
    role, variables, sentence = REFUSALS[case]
    status, output, _ = Playbook(lab, tmp_path).run(
        "--limit", "gpu-01", "--tags", role, **{**DOCA, **variables}
    )
    assert status != 0, output
    words = " ".join(output.replace("\\n", " ").replace('\\"', '"').split())
    assert sentence in words, output
