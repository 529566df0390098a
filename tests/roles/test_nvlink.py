"""Machines that need fabric manager, nvlsm or IMEX, and the expectations for them."""

from __future__ import annotations

from typing import Any

import pytest

from provision.desired import expectations, stack
from tests.roles import promises
from tests.support import described

SYSTEMS = {"debian": "debian 13", "ubuntu": "ubuntu 24.04", "rocky": "rocky 9.4"}


def machine(pci_id: str, count: int = 8, switches: int = 0, os_id: str = "debian") -> dict[str, Any]:
    devices = [{"address": str(number), "device_id": f"10de:{pci_id}"} for number in range(count)]
    seen = {"gpu.count": count, "gpu.pci": devices, "gpu.nvswitch_count": switches}
    return {**described.machine(SYSTEMS[os_id]), "gpu": stack.describe_node(seen)["gpu"]}


def promised(node: dict[str, Any], **declared: Any) -> dict[str, Any]:
    return promises.values(promises.promised(node, gpuprov_roles=["nvlink"], **declared))


@pytest.mark.parametrize(
    ("node", "needs"),
    [
        (machine("26b9"), set()),  # L40S
        (machine("20b5", 4), set()),  # A100 PCIe, bridged in pairs
        (machine("2330", 4), set()),  # 4-GPU HGX H100 without NVSwitch, or one passed through to a guest
        (machine("2342", 1), set()),  # GH200 alone
        (machine("20b2", switches=6), {"manager"}),  # HGX A100
        (machine("2330", switches=4), {"manager"}),
        (machine("2335", switches=4), {"manager"}),
        (machine("2901"), {"manager", "nvlsm", "ib_umad"}),  # HGX B200
        (machine("3182"), {"manager", "nvlsm", "ib_umad"}),  # HGX B300
        (machine("2941", 4), {"imex"}),  # GB200 NVL72 compute tray
        (machine("31c2", 4), {"imex"}),  # GB300
    ],
)
def test_the_hardware_decides_what_runs(node: dict[str, Any], needs: set[str]) -> None:
    facts = promised(node, nvlink_imex_nodes=["10.0.0.1"], nvidia_driver_version="595.71.05")
    found = {
        name
        for name, fact in {
            "manager": "service.nvidia-fabricmanager.active",
            "nvlsm": "package.nvlsm.status",
            "ib_umad": "module.ib_umad.loaded",
            "imex": "service.nvidia-imex.active",
        }.items()
        if fact in facts
    }
    assert found == needs
    assert bool(facts) == bool(needs)


@pytest.mark.parametrize("version", ["570.124.06", "580.126.09", "595.71.05"])
@pytest.mark.parametrize("os_id", sorted(SYSTEMS))
def test_fabric_manager_has_the_drivers_version_under_any_name(version: str, os_id: str) -> None:
    facts = promised(machine("2330", switches=4, os_id=os_id), nvidia_driver_version=version)
    assert facts["fabric.manager_version"] == version
    assert facts["fabric.manager_matches_driver"] is True
    assert facts["fabric.manager_held"] is True
    assert facts["nvidia_smi.fabric.state"] == ["Completed"] * 8
    assert facts["nvidia_smi.fabric.status"] == ["Success"] * 8
    assert not [fact for fact in facts if "without_" in fact]


@pytest.mark.parametrize(
    ("pci_id", "switches", "version", "registers"),
    [
        ("20b2", 6, "580.126.09", False),  # HGX A100: N/A whatever fabric manager does (telegraf, 535)
        ("2330", 4, "535.274.02", True),
        ("2335", 4, "595.71.05", True),
        ("2901", 0, "580.126.09", True),
    ],
)
def test_only_gpus_that_register_with_the_fabric_are_expected_to(
    pci_id: str, switches: int, version: str, registers: bool
) -> None:
    facts = promised(machine(pci_id, switches=switches), nvidia_driver_version=version)
    assert facts["service.nvidia-fabricmanager.active"] == "active"
    assert facts.get("nvidia_smi.fabric.state") == (["Completed"] * 8 if registers else None)


def test_a_driver_declared_as_a_branch_decides_when_it_is_there() -> None:
    facts = promised(machine("2330", switches=4), nvidia_driver_version="580")
    assert "fabric.manager_version" not in facts
    assert facts["fabric.manager_matches_driver"] is True


def test_partitioned_gpus_are_not_waited_for() -> None:
    mig = {"enabled": True, "profiles": {"all": ["1g.10gb"]}}
    assert "nvidia_smi.fabric.state" not in promised(machine("2330", switches=4), gpu_settings_mig=mig)


def test_nvlsm_has_a_version_of_its_own() -> None:
    facts = promised(machine("2901"), nvlink_nvlsm_version="2025.10.14-1")
    assert facts["package.nvlsm.version"] == "2025.10.14-1"
    assert facts["file./etc/modules-load.d/gpuprov-nvlink.conf.content"].endswith("\nib_umad\n")


def test_a_tray_names_all_trays_of_its_rack() -> None:
    trays = ["10.0.0.1", "10.0.0.2", "fd00::3"]
    facts = promised(machine("2941", 4), nvlink_imex_nodes=trays)
    assert facts["file./etc/nvidia-imex/nodes_config.cfg.content"].splitlines()[1:] == trays
    assert facts["fabric.imex_version"] == "580.126.09"
    assert not [fact for fact in facts if "manager" in fact]
    assert facts["nvidia_smi.without_cluster"] == facts["nvidia_smi.without_clique"] == []


@pytest.mark.parametrize(
    ("os_id", "branch", "first"),
    [
        ("debian", "580", "nvidia-fabricmanager-580"),
        ("debian", "595", "nvidia-fabricmanager"),
        ("rocky", "580", "nvidia-fabric-manager"),
        ("rocky", "595", "nvidia-fabricmanager"),
    ],
)
def test_the_likely_name_is_asked_first_and_all_are(os_id: str, branch: str, first: str) -> None:
    from provision.desired.role import all_roles

    declared = {"nvidia_driver_version": f"{branch}.1.2"}
    renderer = expectations.renderer_for(
        all_roles()["nvlink"], declared, machine("2330", switches=4, os_id=os_id)
    )
    names = renderer.value("{{ __nvlink_managers }}")
    assert names[0] == first
    assert {"nvidia-fabricmanager", f"nvidia-fabricmanager-{branch}"} <= set(names)


def test_a_plan_names_the_package_that_is_there() -> None:
    from provision.drift import drifts as drift
    from provision.up import plan

    wanted = promises.promised_by("nvlink", machine("2330", switches=4))
    facts = {"fabric.manager_package": "nvidia-fabricmanager-580", "fabric.manager_version": "580.95.05-1"}
    drifts = [
        drift.Drift("gpu-01", wanted["fabric.manager_version"], "580.95.05-1"),
        drift.Drift("gpu-01", wanted["fabric.manager_matches_driver"], False),
    ]
    (change,) = plan.packages_of(drifts, facts)
    assert (change.name, change.before, change.after) == (
        "nvidia-fabricmanager-580",
        "580.95.05-1",
        "580.126.09",
    )
    drifts = [drift.Drift("gpu-01", wanted["fabric.manager_version"], None)]
    (change,) = plan.packages_of(drifts, {})
    assert (change.name, change.change) == ("nvidia-fabricmanager", plan.Change.INSTALL)
