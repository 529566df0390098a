"""GPUs of either vendor or of both in one machine, and the roles that they rule out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provision import cli
from provision.checks.judging.node_facts import node_facts_of
from provision.desired import compatibility, stack, vendors
from provision.desired.role import all_roles
from provision.errors import GpuprovError
from provision.validate.selftest.machine import Machine
from tests.support.observed import debian

PACKAGE = Path(cli.__file__).parent


def base(*ids: str) -> dict[str, Any]:
    pci = [{"address": f"0000:{number:02x}:00.0", "device_id": each} for number, each in enumerate(ids)]
    return {**debian("13", "trixie", "6.12.0"), "gpu.count": len(ids), "gpu.pci": pci}


@pytest.mark.parametrize(
    "ids", [["1002:74a1"] * 8, ["1002:75a0"], ["10de:2330"] * 8], ids=["known", "unknown", "the other's"]
)
def test_the_gpus_of_one_vendor_are_not_refused(ids: list[str]) -> None:
    assert compatibility.check_node({}, stack.describe_node(base(*ids)), "gpu-01") == []


def test_gpus_of_several_vendors_in_one_machine_are() -> None:
    (refusal,) = compatibility.check_node({}, stack.describe_node(base("10de:2330", "1002:74a1")), "gpu-01")
    assert refusal.rule == "vendor"
    words = "GPUs of several vendors (1002:74a1, 10de:2330): observed; gpuprov cannot provision them"
    assert refusal.what == f"gpu-01: {words}"
    assert "gpuprov_roles: [host_settings, rdma, package_lock]" in refusal.fix


@pytest.mark.parametrize(
    ("ids", "declared", "wrong"),
    [
        (["1002:74a1"], {"gpuprov_roles": list(vendors.HOST_ROLES)}, ""),
        (["1002:74a1"], {"gpuprov_roles": []}, ""),
        (["1002:74a1"], {"gpuprov_roles": ["amdgpu_driver"]}, ""),
        (["1002:74a1"], {"gpuprov_roles": ["host_settings", "nvidia_driver"]}, "nvidia_driver"),
        (["1002:74a1"], {"gpuprov_roles": ["nccl", "rccl", "cuda_toolkit"]}, "cuda_toolkit, nccl"),
        (["1002:74a1"], {"gpuprov_roles": ["nccl"], "nccl_enabled": False}, ""),
        (["10de:2330"], {"gpuprov_roles": ["nvidia_driver", "rocm"]}, "rocm"),
        (["10de:2330", "1002:74a1"], {"gpuprov_roles": list(vendors.HOST_ROLES)}, ""),
    ],
)
def test_roles_that_contradict_the_gpus_are_named(
    ids: list[str], declared: dict[str, Any], wrong: str
) -> None:
    found = compatibility.check_node(declared, stack.describe_node(base(*ids)), "gpu-01")
    assert [each.rule for each in found] == (["vendor"] if wrong else [])
    for each in found:
        assert each.what.startswith(f"gpu-01: gpuprov_roles lists {wrong}, for ")
        assert "leave gpuprov_roles out" in each.fix


def test_a_node_without_its_amd_gpus_is_refused_as_one_without_nvidias() -> None:
    """The inventory declares AMD GPUs, and none is on the node's bus."""
    node = stack.describe_node(base())
    declared = {"gpuprov_sku": "mi300x"}
    (refusal,) = compatibility.check_node(declared, node, "gpu-01")
    assert (refusal.rule, "lspci -d 1002:" in refusal.fix) == ("no-amd-gpu", True)
    assert compatibility.check_node({**declared, "amdgpu_driver_require_gpu": False}, node, "gpu-01") == []


@pytest.mark.parametrize("declared", [{}, {"gpuprov_expected_gpus": 8}, {"gpuprov_expected_gpus": 0}])
def test_no_check_runs_on_a_machine_with_gpus_of_several_vendors(declared: dict[str, Any]) -> None:
    facts = base("1002:74a1", "10de:2330")
    node = node_facts_of("gpu-01", facts, {}, stack.describe_node(facts), declared)
    assert node.error == (
        "GPUs of several vendors (1002:74a1, 10de:2330): observed; gpuprov cannot check them → "
        "leave it out with --nodes"
    )
    assert (node.missing_gpus, node.without_gpus) == (False, False)


def test_checks_run_on_a_machine_with_the_second_vendors_gpus() -> None:
    facts = base("1002:74a1")
    assert node_facts_of("gpu-01", facts, {}, stack.describe_node(facts), {}).error == ""


def test_the_selftest_begins_on_it_unless_its_gpus_are_of_several_vendors() -> None:
    one = Machine(observe=lambda _: (base("1002:74a1"), {}))
    assert one.facts((), {}).gpuprov_node["gpu"]["vendor"] == "amd"
    mixed = Machine(observe=lambda _: (base("1002:74a1", "10de:2330"), {}))
    with pytest.raises(GpuprovError, match="gpuprov cannot load them"):
        mixed.facts((), {})


def test_each_role_is_for_one_vendors_gpus_or_for_any_machine() -> None:
    by_vendor = {name: role.vendor for name, role in all_roles().items()}
    assert set(by_vendor.values()) == {None, *vendors.NAMES}
    of_any = {name for name, vendor in by_vendor.items() if vendor is None}
    assert of_any == {
        *(*vendors.HOST_ROLES, "gpu_metrics", "monitoring", "node_health", "receptor", "slurm_health"),
    }


# Modules in which a vendor may be named: those called after one or after all of them, programs on nodes,
# modules that observe nodes a second time or provoke faults on them, and data.
OF_A_VENDOR = {"vendors", *vendors.NAMES}
ON_NODES = ("node/", "checks/on_node/", "validate/selftest/", "drift/testinfra/", "data/", "_packed/")
# The name of a tool (nvidia_smi) does not count as the name of its vendor.
NAMED = re.compile(rf"(?<![a-z])(?:{'|'.join(vendors.NAMES)})(?![a-z]|_smi)|rocm|radeon", re.I)


def names_of(tree: ast.Module) -> Iterator[str]:
    """Yield the vendor names among the names that a module defines, uses and imports and among its strings.
    Keys of subscripts, prose, and the ids of facts, roles and variables are left out."""
    keys = {id(one.slice) for one in ast.walk(tree) if isinstance(one, ast.Subscript)}
    for one in ast.walk(tree):
        for field in ("id", "attr", "name", "asname", "arg", "module"):
            if isinstance(found := getattr(one, field, None), str) and NAMED.search(found):
                yield found
        if isinstance(one, ast.Constant) and one.value in vendors.NAMES and id(one) not in keys:
            yield repr(one.value)


def test_no_shared_module_names_a_vendor() -> None:
    shared, apart = {}, set()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        found = sorted(set(names_of(ast.parse(path.read_text("utf-8")))))
        if OF_A_VENDOR & set(path.relative_to(PACKAGE).with_suffix("").parts):
            apart.update(found)
        elif found and not name.startswith(ON_NODES):
            shared[name] = found
    assert shared == {}
    assert {"AMD", "NVIDIA", "'amd'", "'nvidia'"} <= apart, "names are not found"
