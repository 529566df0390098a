"""The family amdgpu, on trees modelled on the /sys of machines with AMD Instinct GPUs.

The texts follow real ones: an MI300X in `lspci -PP` of AMD's documentation (05:00.0 below 03:00.0 and
04:00.0), its 206141652992 bytes (ROCm/legacy-rocm-build issue 4750), the row `04 00 00 01 00 01 00 00` of
xgmi_num_links of an MI250X node (ROCm/rocm-systems issue 5763), counts and bad pages as in the documentation
of amdgpu_ras.c in the Linux kernel.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.node.machine import Tree

SWITCH, UPPER, LOWER, GPU = "0000:02:00.0", "0000:03:00.0", "0000:04:00.0", "0000:05:00.0"
PATH = f"../../../devices/pci0000:00/0000:00:01.1/0000:01:00.0/{SWITCH}/{UPPER}/{LOWER}/{GPU}"
BUS = "/sys/bus/pci/devices"
KFD = "/sys/class/kfd/kfd/topology/nodes"
BLOCKS = ("umc", "sdma", "gfx", "mmhub", "pcie_bif", "hdp", "xgmi_wafl")


def function(tree: Tree, address: str, path: str = "", **files: object) -> None:
    """Create a PCI function as in sysfs, where its folder is a link to its slot."""
    folder = f"/sys/devices/x/{address}"
    tree.lines(folder, **files)
    bus = tree.root / BUS.lstrip("/")
    bus.mkdir(parents=True, exist_ok=True)
    target = path or f"../../../devices/x/{address}"
    (bus / address).symlink_to(target)
    real = (bus / target).resolve()
    if path and not real.exists():
        real.parent.mkdir(parents=True, exist_ok=True)
        real.symlink_to(tree.root / folder.lstrip("/"))


def gpu(tree: Tree, address: str = GPU, path: str = PATH, **files: object) -> None:
    mine: dict[str, Any] = {
        **{"vendor": "0x1002", "device": "0x74a1", "class": "0x120000"},
        **{"current_link_speed": "32.0 GT/s PCIe", "current_link_width": 16},
        **{"max_link_speed": "32.0 GT/s PCIe", "max_link_width": 16},
        **{"mem_info_vram_total": 206141652992, "unique_id": "dc91284879207f2b", "pcie_replay_count": 0},
        **{"product_name": "AMD Instinct MI300X OAM", "serial_number": "692251001124"},
        **{"vbios_version": "113-M3000100-102", "xgmi_num_links": "00 01 01 01 01 01 01 01"},
        **{"current_compute_partition": "SPX", "current_memory_partition": "NPS1"},
    }
    function(tree, address, path, **{**mine, **files})
    for block in BLOCKS:
        ras(tree, block, "ue: 0\nce: 0\n", address)
    tree.file(f"/sys/devices/x/{address}/ras/gpu_vram_bad_pages", "")
    tree.link(f"/sys/devices/x/{address}/driver", "../../../bus/pci/drivers/amdgpu")


def ras(tree: Tree, block: str, text: str, address: str = GPU) -> None:
    tree.file(f"/sys/devices/x/{address}/ras/{block}_err_count", text)


def topology(tree: Tree, node: int, location: int, simds: int, size: int) -> None:
    """Create a node of the compute driver's topology; a CPU has no SIMDs."""
    lines = [f"simd_count {simds}", "simd_per_cu 4", f"location_id {location}", "domain 0", "vendor_id 4098"]
    tree.file(f"{KFD}/{node}/properties", "\n".join(lines) + "\n")
    bank = f"heap_type 1\nsize_in_bytes {size}\nflags 0\nwidth 8192\nmem_clk_max 1300\n"
    tree.file(f"{KFD}/{node}/mem_banks/0/properties", bank)


@pytest.fixture
def server(tree: Tree) -> Tree:
    """Create one MI300X in a slot that trained at half its width, below a switch of the server."""
    amd = {"vendor": "0x1002", "class": "0x060400"}
    narrow: dict[str, Any] = {"current_link_width": 8, "max_link_width": 16}
    speed = {"current_link_speed": "16.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe"}
    function(tree, SWITCH, vendor="0x1000", current_link_width=4, **{"class": "0x060400"})
    function(tree, UPPER, **amd, **narrow, **speed)
    function(tree, LOWER, **amd, current_link_width=16, max_link_width=16)
    gpu(tree)
    tree.lines("/sys/module/amdgpu", version="6.10.5")
    tree.file("/opt/rocm/.info/version", "6.3.3-74\n")
    topology(tree, 0, 0, 0, 1 << 40)
    topology(tree, 1, 0x0500, 1216, 206141652992)
    return tree


def one(tree: Tree) -> dict[str, Any]:
    (entry,) = tree.value("amdgpu.devices")
    return dict(entry)


def test_a_gpu_has_its_identity_memory_counts_and_links(server: Tree) -> None:
    assert one(server) == {
        **{"address": GPU, "device_id": "1002:74a1", "driver": "amdgpu", "name": "AMD Instinct MI300X OAM"},
        **{"serial": "692251001124", "unique_id": "dc91284879207f2b", "vbios": "113-M3000100-102"},
        **{"memory_bytes": 206141652992, "compute_partition": "SPX", "memory_partition": "NPS1"},
        **{"compute_units": 304, "partitions": 1, "pcie_replays": 0, "xgmi_links": 7, "xgmi_peers": 7},
        **{"uncorrected": 0, "corrected": 0, "deferred": None, "blocks": "", "unread": ""},
        **{"bad_pages": 0, "bad_pages_in_use": 0, "bad_page_threshold": None},
        # values of the slot, not of the link within the card or of the server's switch above
        **{"link_speed": "16.0 GT/s PCIe", "link_speed_max": "32.0 GT/s PCIe"},
        **{"link_width": 8, "link_width_max": 16, "fatal_error": None},
        **{"xgmi_row": "0 1 1 1 1 1 1 1", "xgmi_to": ""},
    }
    assert server.values("amdgpu.loaded_version", "amdgpu.rocm") == {
        "amdgpu.loaded_version": "6.10.5",
        "amdgpu.rocm": "6.3.3-74",
    }


def test_a_configuration_space_that_cannot_be_read_costs_no_other_value(server: Tree) -> None:
    (server.root / f"sys/devices/x/{GPU}/config").mkdir()
    assert (one(server)["fatal_error"], one(server)["link_width"]) == (None, 8)


def test_the_topology_says_whom_a_gpu_is_linked_with(server: Tree) -> None:
    """Only xGMI links to GPUs count, not PCIe links to the CPU, nor links to missing nodes."""
    topology(server, 2, 0x2600, 1216, 206141652992)
    topology(server, 3, 0x4600, 1216, 206141652992)
    for link, (kind, node) in enumerate([(2, 0), (11, 3), (11, 2), (11, 0), (11, 9)]):
        text = f"type {kind}\nversion_major 0\nnode_from 1\nnode_to {node}\nweight 15\n"
        server.file(f"{KFD}/1/io_links/{link}/properties", text)
    assert one(server)["xgmi_to"] == "0000:26:00.0 0000:46:00.0"


def test_errors_are_counted_by_block_and_kind(server: Tree) -> None:
    ras(server, "umc", "ue: 1\nce: 12\nde: 3\n")
    ras(server, "gfx", "ue: 2\nce: 0\nde: 0\n")
    entry = one(server)
    assert (entry["uncorrected"], entry["corrected"], entry["deferred"]) == (3, 12, 3)
    assert entry["blocks"] == "gfx ue 2, umc ue 1, umc ce 12, umc de 3"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("Query currently inaccessible\n", "umc: Query currently inaccessible"),
        ("", "umc: no count of uncorrected errors"),
        ("ce: 4\n", "umc: no count of uncorrected errors"),
        ("ue: many\n", "umc: ue: many"),
    ],
)
def test_counts_that_cannot_be_read_are_not_zero(server: Tree, said: str, why: str) -> None:
    ras(server, "umc", said)
    entry = one(server)
    assert (entry["uncorrected"], entry["corrected"]) == (None, None)
    assert entry["unread"] == why
    ras(server, "gfx", "ue: 1\nce: 0\n")
    assert one(server)["uncorrected"] == 1  # the count of the other block is still known


def test_a_driver_without_counters_says_so(tree: Tree) -> None:
    gpu(tree)
    for block in BLOCKS:
        (tree.root / f"sys/devices/x/{GPU}/ras/{block}_err_count").unlink()
    entry = one(tree)
    assert (entry["uncorrected"], entry["unread"]) == (None, "the driver gives no error counters")


@pytest.mark.parametrize(
    ("debugfs", "parameter", "expected"),
    [
        ("128\n", "-1\n", 128),
        (None, "-1\n", None),
        (None, "64\n", 64),
        ("4294967295\n", "-1\n", None),
        ("0", "0", None),
    ],
)
def test_how_many_bad_pages_the_driver_allows(
    debugfs: str | None, parameter: str, expected: int | None, server: Tree
) -> None:
    server.file(f"/sys/devices/x/{GPU}/drm/card3/dev", "226:3\n")
    if debugfs is not None:
        server.file("/sys/kernel/debug/dri/3/ras/bad_page_cnt_threshold", debugfs)
    server.file("/sys/module/amdgpu/parameters/bad_page_threshold", parameter)
    (entry,) = server.value("amdgpu.devices")
    assert entry["bad_page_threshold"] == expected


def test_bad_pages_and_those_still_in_use(server: Tree) -> None:
    pages = "0x00000001 : 0x00001000 : R\n0x00000002 : 0x00001000 : P\n0x00000003 : 0x00001000 : F\n"
    server.file(f"/sys/devices/x/{GPU}/ras/gpu_vram_bad_pages", pages)
    entry = one(server)
    assert (entry["bad_pages"], entry["bad_pages_in_use"]) == (3, 2)


def test_each_die_of_a_module_is_a_gpu(tree: Tree) -> None:
    die = {"device": "0x7408", "class": "0x038000", "mem_info_vram_total": 68702699520}
    gpu(tree, "0000:c1:00.0", "", **die, xgmi_num_links="00 04 01 00 00 00 02 00")
    gpu(tree, "0000:c6:00.0", "", **die, xgmi_num_links="04 00 00 01 00 01 00 00")
    topology(tree, 1, 0xC100, 440, 68702699520)
    topology(tree, 2, 0xC600, 440, 68702699520)
    facts = tree.values("gpu.count", "amdgpu.devices")
    assert facts["gpu.count"] == 2
    shown = [
        (each["address"], each["compute_units"], each["xgmi_links"], each["xgmi_peers"])
        for each in facts["amdgpu.devices"]
    ]
    assert shown == [("0000:c1:00.0", 110, 7, 3), ("0000:c6:00.0", 110, 6, 3)]


def test_partitions_of_a_gpu_are_one_gpu(server: Tree) -> None:
    for number in range(8):
        topology(server, 1 + number, number << 28 | 0x0500, 152, 25767706624)
    server.lines(f"/sys/devices/x/{GPU}", current_compute_partition="CPX")
    entry = one(server)
    assert (entry["partitions"], entry["compute_units"], entry["compute_partition"]) == (8, 304, "CPX")


def test_memory_that_processor_and_gpu_share_is_in_the_topology(server: Tree) -> None:
    (server.root / f"sys/devices/x/{GPU}/mem_info_vram_total").unlink()
    assert one(server)["memory_bytes"] == 206141652992


def test_a_gpu_without_its_driver(tree: Tree) -> None:
    function(tree, GPU, vendor="0x1002", device="0x74a1", **{"class": "0x120000"})
    facts = tree.values("amdgpu.loaded_version", "amdgpu.devices", "amdgpu.rocm")
    (entry,) = facts["amdgpu.devices"]
    assert (facts["amdgpu.loaded_version"], facts["amdgpu.rocm"], entry["driver"]) == (None, None, None)
    assert (entry["memory_bytes"], entry["uncorrected"], entry["xgmi_links"]) == (None, None, None)


def test_a_driver_that_is_part_of_the_kernel_has_its_version(tree: Tree) -> None:
    tree.lines("/sys/module/amdgpu/parameters", reset_method=-1)
    tree.lines("/proc/sys/kernel", osrelease="6.14.0-24-generic")
    assert tree.value("amdgpu.loaded_version") == "kernel 6.14.0-24-generic"


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({"device": "0x74a1", "class": "0x120000"}, 1),
        ({"device": "0x740f", "class": "0x038000"}, 1),
        ({"device": "0xffff", "class": "0x120000"}, 1),  # an Instinct newer than this code
        ({"device": "0x744c", "class": "0x030000"}, 0),  # a Radeon display card
        ({"device": "0x1681", "class": "0x038000"}, 0),  # integrated graphics
        ({"device": "0x1501", "class": "0x060400"}, 0),  # a bridge of an Instinct
    ],
)
def test_what_of_amds_is_a_gpu(tree: Tree, files: dict[str, str], count: int) -> None:
    function(tree, GPU, vendor="0x1002", **files)
    assert tree.value("gpu.count") == count
    assert len(tree.value("amdgpu.devices")) == count


@pytest.mark.parametrize(
    ("vendor", "device", "kind"), [("0x1002", "0x74b5", "0x120000"), ("0x10de", "0x2330", "0x030200")]
)
def test_what_a_host_lends_to_guests_is_no_gpu_more(tree: Tree, vendor: str, device: str, kind: str) -> None:
    gpu(tree)
    function(tree, "0000:05:02.0", vendor=vendor, device=device, **{"class": kind})
    assert tree.value("gpu.count") == 2  # a guest has such a bus
    tree.link("/sys/devices/x/0000:05:02.0/physfn", f"../{GPU}")
    assert tree.value("gpu.count") == 1


def test_bridges_above_instinct_gpus_are_looked_at_for_access_control(tree: Tree) -> None:
    gpu(tree, GPU, "")
    tree.link(f"/sys/devices/x/{GPU}/iommu_group", "../../../kernel/iommu_groups/7")
    tree.lines("/sys/kernel/iommu_groups/7", type="identity")
    tree.lines("/sys/kernel/iommu_groups/8", type="DMA-FQ")
    assert tree.value("pci.iommu") == "passthrough"  # group 8 has other devices


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ("echo 6.16.13", "6.16.13"),
        ("true", "kernel 6.12.107+deb13-amd64"),  # the in-tree module has no version
        ("echo 'modinfo: ERROR: Module amdgpu not found.' >&2; exit 1", None),
    ],
)
def test_the_module_of_the_next_boot(tree: Tree, answer: str, version: str | None) -> None:
    kernel = "6.12.107+deb13-amd64"
    tree.file(f"/boot/vmlinuz-{kernel}", "")
    tree.tool("modinfo", f'[ "$1 $2" = "-k {kernel}" ] && {{ {answer}; }}')
    assert tree.value("amdgpu.installed_version") == version


def test_a_strange_answer_about_the_module_is_not_understood(tree: Tree) -> None:
    tree.tool("modinfo", "echo gibberish")
    assert tree.problem("amdgpu.installed_version") == "modinfo answered: gibberish"


def test_amds_own_driver_is_told_from_the_kernels(tree: Tree) -> None:
    tree.file("/sys/module/amdgpu/initstate", "live")
    assert tree.value("amdgpu.dkms_version") is None
    tree.file("/sys/module/amdgpu/version", "6.16.13")
    assert tree.value("amdgpu.dkms_version") == "6.16.13"


def test_groups_and_those_whom_they_list(tree: Tree) -> None:
    tree.file("/etc/group", "root:x:0:\nvideo:x:44:alice,bob\nrender:x:104:\n")
    assert tree.value("group.render.exists") is True
    assert tree.value("group.render.members") == []
    assert tree.value("group.video.members") == ["alice", "bob"]
    assert tree.value("group.vide.exists") is False
    assert tree.value("group.vide.members") is None


@pytest.mark.parametrize(
    ("line", "blacklisted"),
    [
        ("ro quiet modprobe.blacklist=nouveau,amdgpu pci=realloc=off", True),
        ("ro modprobe.blacklist=amdgpu", True),
        ("ro modprobe.blacklist=amdgpu_old quiet", False),
        ("ro quiet", False),
    ],
)
def test_a_driver_that_the_command_line_keeps_away(server: Tree, line: str, blacklisted: bool) -> None:
    server.file("/proc/cmdline", line + "\n")
    assert server.values("amdgpu.blacklisted") == {"amdgpu.blacklisted": blacklisted}


def test_the_version_of_a_rocm_with_a_core_of_its_own(server: Tree) -> None:
    (server.root / "opt/rocm/.info/version").unlink()
    server.file("/opt/rocm/core/.info/version", "7.12.0\n")
    assert server.values("amdgpu.rocm") == {"amdgpu.rocm": "7.12.0"}
