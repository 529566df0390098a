"""Removal of a role: the facts that must hold afterwards, the shared parts that stay, and refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from provision import cli, paths
from provision.desired import removal, stack
from provision.desired.expectations import renderer_for
from provision.desired.resolve import View
from provision.desired.role import all_roles
from provision.drift.assess import GIVEN
from provision.errors import StackError, UsageError
from tests.support.described import machine

ROLES = tuple(all_roles())
MACHINES = {
    "debian": machine("debian 13"),
    "ubuntu": machine("ubuntu 22.04", architecture="blackwell", fabric="nvlink5", sku="b200"),
    "redhat": machine("rocky 9.4"),
    "rack": machine("ubuntu 24.04", "aarch64", architecture="blackwell", fabric="imex", sku="gb200"),
}
# Variables that make the roles create everything they can.
EVERYTHING: dict[str, Any] = {
    "gpu_settings_power_limit": 500,
    "rdma_source": "doca",
    "rdma_doca_version": "3.2.1",
    "rdma_doca_key_fingerprint": "A" * 40,
    "rdma_expected_ports": [{"device": "mlx5_0", "link_layer": "Ethernet"}],
    "rdma_roce_netdev_mtu": 9000,
    "gpudirect_rdma_method": "peermem",
    "host_settings_time_sync": "chrony",
    "host_settings_time_servers": ["10.0.0.1"],
    "container_toolkit_runtimes": ["docker", "containerd", "crio"],
    "container_toolkit_install_runtime": "podman",
    "nvlink_imex_nodes": ["10.0.0.1"],
    "validation_tools_mpi": True,
    "receptor_repository_url": "http://mirror.example/receptor",
    "receptor_repository_key_fingerprint": "A" * 40,
    "receptor_nodes": [
        {"name": "ctl", "address": "10.0.0.1", "port": 27199, "controller": True, "peers": []}
    ],
    "receptor_authority": {
        "certificate": "C",
        "key": "K",
        "work_public_key": "P",
        "work_private_key_sha256": "S",
    },
    "inventory_hostname": "ctl",
}


def view(**declared: Any) -> View:
    return View({}, {**stack.load(stack.DEFAULT).variables, **declared}, dict(GIVEN))


def gone(*roles: str, node: dict[str, Any] | None = None, **declared: Any) -> dict[str, Any]:
    """Return the required value of each fact without these roles."""
    expected = removal.of_view(view(**declared), roles, node or MACHINES["debian"])
    assert {(each.operator, each.role in roles) for each in expected} <= {("equals", True)}
    return {each.fact: each.value for each in expected}


def test_packages_files_and_services_of_a_role_must_be_gone() -> None:
    assert gone("nccl") == {
        "package.libnccl2.version": None,
        "package.libnccl-dev.version": None,
        "file./etc/apt/preferences.d/nccl.exists": False,
        "file./etc/nccl.conf.exists": False,
    }
    found = gone("nvlink")
    assert found["fabric.manager_version"] is found["service.nvidia-fabricmanager.active"] is None


def test_a_loaded_driver_waits_for_a_reboot_and_nothing_else_does() -> None:
    found = removal.of_view(view(), ROLES, MACHINES["debian"])
    waiting = {each.fact for each in found if each.reboot}
    assert waiting == {"driver.loaded_version", "driver.flavour", "amdgpu.dkms_version"}


@pytest.mark.parametrize("system", MACHINES)
@pytest.mark.parametrize("variables", [{}, EVERYTHING], ids=["default", "everything"])
@pytest.mark.parametrize("role", ROLES)
def test_a_role_takes_away_what_it_promises_and_the_node_is_asked_for_it_at_once(
    role: str, variables: dict[str, Any], system: str
) -> None:
    """Compares two independent lists: expect.yml, and `__ROLE_removes` for users of the role alone."""
    node, declared = MACHINES[system], view(**variables)
    facts = {each.fact for each in removal.of_view(declared, [role], node)}
    assert facts <= removal.asked(declared, [role])
    if role in ("gpu_settings", "package_lock"):  # their remove.yml has it
        return
    renderer = renderer_for(all_roles()[role], declared, node)
    taken = renderer.value("{{ __" + role + "_removes }}")
    for fact in facts:
        family, item = fact.partition(".")[0], fact.partition(".")[2].rpartition(".")[0]
        if family == "package":
            assert any(re.fullmatch(name, item) for name in taken["packages"]), fact
        elif family == "file" and not (role == "validation_tools" and item.startswith("/usr/")):
            assert any(item == file or item.startswith(f"{file}/") for file in taken["files"]), fact
        elif family == "service" and not item.startswith("docker"):
            units = [re.sub("[.]service$", "", unit) for unit in taken["units"]]
            assert re.sub("[.]service$", "", item) in units, fact


def test_what_a_role_promises_not_to_be_there_is_no_part_of_it() -> None:
    found = gone("nvidia_repository", "nvidia_driver", "cuda_toolkit", cuda_toolkit_remove_others=True)
    assert not [fact for fact in found if "cuda-keyring" in fact or "cuda-toolkit-11" in fact]
    assert "package.nvidia-kernel-dkms.version" not in found
    assert "module.nouveau.loaded" not in found


def test_a_role_that_is_switched_off_is_removed_all_the_same() -> None:
    assert gone("nccl", nccl_enabled=False) == gone("nccl")


def test_the_lock_and_the_clock_leave_what_they_hold() -> None:
    locked = {"package_lock_versions": {"libnccl2": "1", "bash": "5"}}
    assert gone("package_lock", **locked) == {"file./etc/apt/preferences.d/gpuprov-lock.exists": False}
    chrony: dict[str, Any] = {"host_settings_time_sync": "chrony", "host_settings_time_servers": ["a"]}
    found = gone("host_settings", **chrony)
    assert "file./etc/chrony/conf.d/gpuprov.conf.exists" in found
    assert not [fact for fact in found if "chrony" in fact and "conf.d" not in fact]


def test_a_restart_that_is_due_stays_due() -> None:
    found = gone("container_toolkit", container_toolkit_runtimes=["auto"])
    assert found["container_runtime.containerd.restart_required"] is False
    assert found["container_runtime.containerd.path"] is None


def test_what_another_role_wants_as_well_stays() -> None:
    b200 = MACHINES["ubuntu"]
    with_fabric = view(gpuprov_roles=["rdma", "nvlink"])
    assert "infiniband-diags" in removal.kept(with_fabric, ["rdma"], b200)["packages"]
    assert "package.infiniband-diags.version" not in gone("rdma", node=b200, gpuprov_roles=["nvlink"])
    assert "package.infiniband-diags.version" in gone("rdma", node=b200, gpuprov_roles=[])


def refused(*remove: str, **declared: Any) -> list[tuple[str, str]]:
    found = removal.refusals(view(**declared), removal.named(remove), MACHINES["debian"], "gpu-01")
    return [(each.what, each.fix) for each in found]


@pytest.mark.parametrize("place", ["docs/roles.md", "docs/upgrade.md", "commands/up.py", "commands/plan.py"])
def test_what_the_documents_show_is_not_refused_in_a_fleet_of_defaults(place: str) -> None:
    folder = paths.ROLES.parent if place.endswith(".md") else Path(cli.__file__).parent
    lines = (folder / place).read_text("utf-8").splitlines()
    shown = [re.findall(r"--remove (\w+)", line) for line in lines if re.search("gpuprov (up|plan) ", line)]
    commands = [roles for roles in shown if roles]
    assert commands != []
    for roles in commands:
        assert refused(*roles, validation_tools_enabled=True) == []


def test_a_role_that_is_off_by_default_builds_on_nothing() -> None:
    assert refused("node_health", node_health_enabled=True) == []
    ((what, _),) = refused("node_health", node_health_enabled=True, slurm_health_enabled=True)
    assert what == "gpu-01: slurm_health builds on node_health"


def test_a_role_that_others_build_on_is_refused_with_their_names() -> None:
    ((what, fix),) = refused(
        "nvidia_driver", gpuprov_roles=["nvidia_driver", "nvlink", "nccl", "gpu_settings"]
    )
    assert what == "gpu-01: nvlink and gpu_settings build on nvidia_driver"
    assert fix == (
        "remove them as well (--remove nvlink --remove gpu_settings), or take them out of its gpuprov_roles"
    )
    assert refused("nvidia_driver", "nvlink", gpuprov_roles=["nvlink", "nvidia_driver", "nccl"]) == []
    assert refused("nvidia_driver", gpuprov_roles=["nvlink"], nvlink_enabled=False) == []
    own_source = {"nvidia_driver_source": "distribution", "gpuprov_roles": ["nvidia_driver"]}
    assert refused("nvidia_repository", **own_source) == []


def test_every_role_at_once_is_refused_by_nobody() -> None:
    assert refused(*ROLES) == []


def test_every_need_is_of_a_role_that_runs_before() -> None:
    for place, role in enumerate(ROLES):
        renderer = renderer_for(all_roles()[role], view(**EVERYTHING), MACHINES["debian"])
        needs = renderer.value("{{ __" + role + "_needs | default([]) }}")
        assert set(needs) <= set(ROLES[:place]), role


def test_packages_of_the_lock_file_are_not_removed_behind_its_back() -> None:
    place = "debian 13 x86_64 unknown"
    groups = json.dumps({"places": {place: 0}, "sets": [{"libnccl2": "2.29", "libnccl-dev": "2.29"}]})
    roles = ["nccl", "package_lock"]
    ((what, fix),) = refused("nccl", gpuprov_roles=roles, package_lock_groups=groups)
    assert what == "gpu-01: the lock file has libnccl2 and 1 more of what would be removed"
    assert "--no-lock" in fix
    assert refused("nccl", "package_lock", gpuprov_roles=roles, package_lock_groups=groups) == []


def test_roles_are_removed_last_first_and_must_exist() -> None:
    assert removal.named(["nvidia_driver", "nccl", "nvidia_driver"]) == ("nccl", "nvidia_driver")
    with pytest.raises(UsageError, match="no role called 'ncl'") as caught:
        removal.named(["ncl"])
    assert "did you mean nccl" in caught.value.fix


def test_a_variable_that_cannot_be_rendered_is_named() -> None:
    declared = view(nvidia_driver_source="{{ nowhere }}", gpuprov_roles=["nvidia_driver"])
    with pytest.raises(StackError, match="__nvidia_driver_needs: 'nowhere' is undefined"):
        removal.refusals(declared, ["nvidia_repository"], MACHINES["debian"], "gpu-01")
