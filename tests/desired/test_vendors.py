"""GPUs that gpuprov can only look at: what is said of them, and that nothing is done to their nodes."""

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
from provision.validate.selftest import machine
from tests.support.observed import debian

PACKAGE = Path(cli.__file__).parent


def device(address: str = "0000:05:00.0", **values: Any) -> dict[str, Any]:
    """A healthy MI300X, as amdgpu.devices has it."""
    usual = {
        **{"address": address, "driver": "amdgpu", "memory_bytes": 206141652992, "compute_units": 304},
        **{"compute_partition": "SPX", "memory_partition": "NPS1", "partitions": 1},
        **{"link_speed": "32.0 GT/s PCIe", "link_width": 16, "link_width_max": 16},
        **{"xgmi_links": 7, "xgmi_peers": 7, "uncorrected": 0, "blocks": "", "bad_pages": 0, "unread": ""},
    }
    return {**usual, **values}


def base(*ids: str) -> dict[str, Any]:
    pci = [{"address": f"0000:{number:02x}:00.0", "device_id": each} for number, each in enumerate(ids)]
    return {**debian("13", "trixie", "6.12.0"), "gpu.count": len(ids), "gpu.pci": pci}


def said(*devices: dict[str, Any], ids: tuple[str, ...] = (), **facts: Any) -> str:
    node = stack.describe_node(base(*(ids or ["1002:74a1"] * len(devices))))
    known = {"amdgpu.loaded_version": "6.10.5", "amdgpu.rocm": "6.3.3-74", "amdgpu.devices": list(devices)}
    return vendors.seen(node, {**known, **facts}, {})


def test_what_is_alike_is_said_once() -> None:
    assert said(device(), device("0000:26:00.0")) == (
        "driver amdgpu 6.10.5, ROCm 6.3.3-74, 0 uncorrected errors, PCIe 32.0 GT/s x16, 192 GiB each, "
        "304 compute units each, 7 xGMI links to 7 GPUs each"
    )


@pytest.mark.parametrize(
    ("differs", "words"),
    [
        ({"uncorrected": 2, "blocks": "umc ue 2"}, "2 uncorrected errors (umc ue 2) (0000:26:00.0)"),
        ({"uncorrected": None, "unread": "umc: x"}, "uncorrected errors not counted (0000:26:00.0)"),
        ({"uncorrected": None, "unread": "umc: x"}, "unread: umc: x (0000:26:00.0)"),
        ({"bad_pages": 1}, "1 bad page of memory (0000:26:00.0)"),
        ({"link_width": 8}, "PCIe 32.0 GT/s x8 of x16 (0000:26:00.0)"),
        ({"link_speed": "Unknown"}, "PCIe link unknown (0000:26:00.0)"),
        ({"xgmi_links": 6, "xgmi_peers": 6}, "6 xGMI links to 6 GPUs each (0000:26:00.0)"),
        ({"driver": None}, "not taken by the driver amdgpu (0000:26:00.0)"),
        ({"memory_bytes": None}, "memory unknown (0000:26:00.0)"),
        ({"compute_units": None}, "not in the topology of the compute driver (0000:26:00.0)"),
        ({"compute_partition": "CPX", "memory_partition": "NPS4"}, "CPX/NPS4 (0000:26:00.0)"),
    ],
)
def test_what_differs_is_said_of_its_gpu(differs: dict[str, Any], words: str) -> None:
    text = said(device(), device("0000:26:00.0", **differs))
    assert words in text
    assert text.index(words) < text.index("driver amdgpu 6.10.5")  # reports cut long lines
    assert words.partition(" (")[0] not in said(device(), device("0000:26:00.0"))


def test_many_gpus_are_not_all_named() -> None:
    text = said(device("0000:01:00.0"), *(device(f"0000:{n}0:00.0", bad_pages=3) for n in range(1, 8)))
    assert "3 bad pages of memory (0000:10:00.0 and 6 more)" in text


def smi(address: str = "0000:05:00.0", **values: Any) -> dict[str, Any]:
    """The same GPU, as amd_smi.gpus has it."""
    return {
        "address": address,
        "power_limit_w": 750,
        "power_limit_max_w": 750,
        "memory_ecc": "ENABLED",
        **values,
    }


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        ([smi(), smi("0000:26:00.0")], "power limit 750 W each"),
        ([smi()], "amd-smi does not list 0000:26:00.0"),
        ([], "amd-smi does not list 0000:05:00.0 0000:26:00.0"),
        (None, "no amd-smi"),
        ([smi(), smi("0000:26:00.0", power_limit_w=500)], "power limit 500 W of 750 W each (0000:26:00.0)"),
        ([smi(), smi("0000:26:00.0", memory_ecc="DISABLED")], "ECC of memory off (0000:26:00.0)"),
    ],
)
def test_what_amd_smi_says_beside(listed: Any, words: str) -> None:
    text = said(device(), device("0000:26:00.0"), **{"amd_smi.gpus": listed})
    assert f"{words}, " in f"{text}, "
    assert words not in said(device(), device("0000:26:00.0"))


def test_two_dies_are_one_module() -> None:
    dies = [device(f"0000:c{n}:00.0", memory_bytes=68702699520, compute_units=110) for n in range(8)]
    text = said(*dies, ids=("1002:7408",) * 8)
    assert "4 modules of 2 GPUs" in text
    assert "63.98 GiB each, 110 compute units each" in text


def test_the_dies_of_a_module_may_have_different_links() -> None:
    dies = [
        device(f"0000:c{n}:00.0", device_id="1002:7408", xgmi_links=6 + n % 2, xgmi_peers=3) for n in range(8)
    ]
    assert said(*dies, ids=("1002:7408",) * 8).endswith("xGMI to 3 GPUs each")


def test_what_holds_for_none_is_said_of_all() -> None:
    text = said(*(device(f"0000:{n}5:00.0", link_width=8, uncorrected=None) for n in range(8)))
    assert text.startswith("uncorrected errors not counted, PCIe 32.0 GT/s x8 of x16, driver amdgpu")


@pytest.mark.parametrize("wrong", [None, 5, "many", [None, "x"], [{"address": 7, "uncorrected": "0"}], [{}]])
def test_a_strange_answer_of_a_node_is_no_healthy_gpu(wrong: Any) -> None:
    text = said(device(), **{"amdgpu.devices": wrong})
    assert "0 uncorrected" not in text


def test_what_a_node_says_moves_no_cursor_and_has_an_end() -> None:
    text = said(device(blocks="\x1b[2J" + "x" * 5000, uncorrected=1))
    assert text.isprintable()
    assert len(text) < 400


def test_what_could_not_be_read_is_said() -> None:
    node = stack.describe_node(base("1002:74a1"))
    reason = {"amdgpu.devices": "no answer within 8 s"}
    assert vendors.seen(node, {"amdgpu.loaded_version": None}, reason) == (
        "amdgpu.devices unread (no answer within 8 s), driver amdgpu not loaded"
    )


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
    """What it should have, the inventory says; nobody could see it."""
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


def test_the_selftest_begins_on_it_unless_its_gpus_are_of_several_vendors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "_observed", lambda _: (base("1002:74a1"), {}))
    assert machine.look((), {}).gpuprov_node["gpu"]["vendor"] == "amd"
    monkeypatch.setattr(machine, "_observed", lambda _: (base("1002:74a1", "10de:2330"), {}))
    with pytest.raises(GpuprovError, match="gpuprov cannot load them"):
        machine.look((), {})


def test_each_role_is_for_one_vendors_gpus_or_for_any_machine() -> None:
    by_vendor = {name: role.vendor for name, role in all_roles().items()}
    assert set(by_vendor.values()) == {None, *vendors.NAMES}
    of_any = {name for name, vendor in by_vendor.items() if vendor is None}
    assert of_any == {
        *(*vendors.HOST_ROLES, "gpu_metrics", "monitoring", "node_health", "receptor", "slurm_health"),
    }


# What may name a vendor: what is called after one, or after all of them; programs on nodes, and what reads
# nodes a second time or provokes on them; data.
OF_A_VENDOR = {"vendors", *vendors.NAMES}
ON_NODES = ("node/", "checks/on_node/", "validate/selftest/", "drift/testinfra/", "data/", "_packed/")
# Names of tools (nvidia_smi) are no vendor's, but the tool's.
NAMED = re.compile(rf"(?<![a-z])(?:{'|'.join(vendors.NAMES)})(?![a-z]|_smi)|rocm|radeon", re.I)


def names_of(tree: ast.Module) -> Iterator[str]:
    """The names that a module defines, uses and imports, and vendors' ids among its texts, but for keys of
    data that it looks up. Prose, and the ids of facts, roles and variables, are no names."""
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
