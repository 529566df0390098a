"""The families edac and nvme, and the driver's libraries, on trees modelled on a machine's."""

from __future__ import annotations

from tests.node.machine import Tree

MC = "/sys/devices/system/edac/mc"


def test_memory_errors_of_controllers_and_modules(tree: Tree) -> None:
    assert tree.value("edac.controllers") == []
    tree.file(f"{MC}/power/control", "auto\n")  # not every folder is a controller
    tree.lines(f"{MC}/mc0", mc_name="Intel_EDAC i10nm Socket#0 IMC#0", ce_count=3, ue_count=1)
    label = "CPU_SrcID#0_MC#0_Chan#0_DIMM#0"
    tree.lines(f"{MC}/mc0/dimm0", dimm_label=label, dimm_ce_count=3, dimm_ue_count=1)
    facts = tree.values("edac.controllers", "edac.modules")
    assert facts["edac.controllers"] == [
        {"controller": "mc0", "driver": "Intel_EDAC i10nm Socket#0 IMC#0", "corrected": 3, "uncorrected": 1}
    ]
    assert facts["edac.modules"] == [
        {"controller": "mc0", "module": "dimm0", "label": label, "corrected": 3, "uncorrected": 1}
    ]
    tree.file(f"{MC}/mc0/ce_count", "many\n")
    assert "is not a number" in tree.problem("edac.controllers")


def test_drives_of_the_machine_and_not_those_of_a_fabric(tree: Tree) -> None:
    assert tree.value("nvme.drives") == []
    for number, transport in ((0, "pcie"), (1, "rdma")):
        tree.lines(
            f"/sys/class/nvme/nvme{number}",
            **{"transport": transport, "model": "SAMSUNG MZWLR3T8HBLS-00007   ", "serial": "S6EWNE0R100000"},
            **{"firmware_rev": "MPK92B5Q", "state": "live", "address": "0000:e1:00.0"},
        )
    assert tree.value("nvme.drives") == [
        {
            **{"drive": "nvme0", "model": "SAMSUNG MZWLR3T8HBLS-00007", "serial": "S6EWNE0R100000"},
            **{"firmware": "MPK92B5Q", "state": "live", "address": "0000:e1:00.0"},
        }
    ]


def test_libraries_that_cannot_be_loaded(tree: Tree) -> None:
    folder = "/usr/lib/x86_64-linux-gnu"
    tree.file(f"{folder}/libcuda.so.580.126.09", b"\x7fELF\x02")
    tree.link(f"{folder}/libcuda.so.1", "libcuda.so.580.126.09")
    tree.file(f"{folder}/libcurl.so.4", b"")  # an unrelated library
    assert tree.value("driver.broken_libraries") == []
    tree.file(f"{folder}/libnvidia-ml.so.580.126.09", b"")
    tree.link(f"{folder}/libnvidia-ml.so.1", "libnvidia-ml.so.580.126.09")
    tree.link(f"{folder}/libnvidia-cfg.so.1", "libnvidia-cfg.so.570.1.1")
    assert tree.value("driver.broken_libraries") == [
        f"{folder}/{name}"
        for name in ("libnvidia-cfg.so.1", "libnvidia-ml.so.1", "libnvidia-ml.so.580.126.09")
    ]
