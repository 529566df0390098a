"""Real captures, each parsed completely or refused for the reason stated here.

The captures cannot be redistributed: see the fixture `captures`. tests/lab_silicon/test_shapes.py compares
the simulated tools with the same files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from provision.checks.check import Measurement, Output
from provision.checks.gpu import fabric_log, gpu_burn, nvbandwidth, nvidia_smi, nvlink_errors
from provision.checks.kernel import host_lines, kernel_log
from provision.checks.nccl import nccl_table
from provision.checks.network import perftest
from provision.errors import ParseError
from provision.node.observe import fabric as fabric_facts
from provision.node.observe.nvidia_smi import parse_query
from tests.support.scenarios import machine

PEERS = "device_to_device_memcpy_read_ce"
COPIES = ("host_to_device_memcpy_ce", "device_to_host_memcpy_ce")


def output(text: str, *argv: str) -> Output:
    return Output("it", argv or ("it",), 0, text, "", 60.0)


def values(found: Iterable[Measurement]) -> dict[tuple[str, str], Any]:
    return {(one.device, one.metric): one.value for one in found}


def xml(text: str) -> dict[tuple[str, str], Any]:
    return values(nvidia_smi.parse_xml(output(text)))


def nvlink(text: str) -> dict[tuple[str, str], Any]:
    return values(nvlink_errors.parse_links(output(text)))


def burn(text: str) -> dict[tuple[str, str], Any]:
    node = machine(8, "a100-sxm-80", "nvswitch", "ampere")
    return values(
        gpu_burn.parse(node, {"gpu_burn": Output("gpu_burn", ("gpu_burn", "60"), 0, text, "", 90.0)})
    )


def nccl(text: str) -> dict[tuple[str, str], Any]:
    result = nccl_table.parse(text)
    largest = max(result.rows, key=lambda row: row.size)
    return {("node", "ranks"): result.ranks, ("node", "size"): largest.size, ("node", "busbw"): largest.busbw,
            ("node", "rows"): len(result.rows), ("node", "wrong"): largest.wrong}  # fmt: skip


def copies(text: str) -> dict[tuple[str, str], Any]:
    matrices = nvbandwidth.parse(text, (*COPIES, PEERS))
    rows: dict[tuple[str, str], Any] = {("node", name): matrix.rows for name, matrix in matrices.items()}
    return {**rows, ("node", "waived"): matrices[PEERS].waived}


def loopback(text: str) -> dict[tuple[str, str], Any]:
    result = perftest.parse(text)
    sizes, largest = len(result.average), result.average[8388608]
    return {("node", result.device): (result.queue_pairs, sizes, round(largest, 2))}


def events(text: str) -> dict[tuple[str, str], Any]:
    return {
        (one.address, f"{one.kind}.{one.code}"): one.count for one in kernel_log.events(text.splitlines())
    }


def fabric(text: str) -> dict[tuple[str, str], Any]:
    names = [f"nvidia_smi.{field}" for field in ("index", "fabric.state", "fabric.status")]
    return {("node", "states"): parse_query(names, text)[names[1]]}


def manager(text: str) -> dict[tuple[str, str], Any]:
    """Return the NVSwitch errors, and the number of lines that end a multicast fault."""
    lines = [match[3] for line in text.split("\n") if (match := re.match(fabric_facts.LOG_LINE, line))]
    rows = [{"line": line, "count": 1, "first": at, "last": at} for at, line in enumerate(lines)]
    node = machine(8, "h100-sxm", "nvswitch", "hopper", facts={"fabric.manager_log": rows})
    values: dict[tuple[str, str], Any] = {
        (one.address, str(one.code)): one.count for one in fabric_log.switch_errors(node)
    }
    kinds = [kind for line in lines if (kind := host_lines.kind_of(line, "fabric_lines"))]
    return {
        **values,
        ("node", "lines"): len(lines),
        ("node", "ready"): kinds.count(("multicast_ready", "node")),
    }


def link_errors(text: str) -> dict[tuple[str, str], Any]:
    return values(nvlink_errors.parse(output(text)))


# File → its parser, and expected values, as stated in nvidia-facts or in the file itself.
READ: dict[str, tuple[Callable[[str], dict[tuple[str, str], Any]], dict[tuple[str, str], Any]]] = {
    "nvidia-smi-q-x.h100.550.xml": (
        xml,
        {("node", "driver_gpus"): 8, ("gpu0", "name"): "NVIDIA H100 80GB HBM3", ("gpu0", "pcie_gen"): 5,
         ("node", "driver_version"): "550.163.01"},
    ),
    "nvidia-smi-q-x.h100.gpu3-lost.550.xml": (
        xml,
        {("node", "driver_gpus"): 8, ("gpu3", "unanswered"): "GPU is lost",
         ("gpu3", "serial"): "1562821083903", ("gpu3", "pci_address"): "0000:4b:00",
         ("gpu3", "memory_total"): None,
         ("gpu2", "unanswered"): None, ("gpu2", "memory_total"): 81920, ("gpu7", "remap_pending"): "No"},
    ),
    "nvidia-smi-nvlink-s.h100.gpu3-lost.550.txt": (
        nvlink,
        {("gpu3", "nvlink_links"): 18, ("gpu7", "nvlink_links"): 18, ("gpu7", "nvlink_speed"): 26.562},
    ),
    "nvidia-smi-query-gpu-fabric.h100.550.csv": (fabric, {("node", "states"): ["Completed"] * 8}),
    "nvidia-smi-q-x.a100.550.xml": (xml, {("node", "driver_gpus"): 8, ("gpu7", "pcie_width"): 16}),
    "nvidia-smi-q-x.a10g.old-driver.xml": (
        xml,
        {("gpu0", "name"): "NVIDIA A10G", ("gpu0", "power_limit"): 300, ("gpu0", "power_default"): 300},
    ),
    "nvidia-smi-q-x.rtx-4000-ada.v13.xml": (xml, {("node", "driver_gpus"): 1}),
    "nvidia-smi-q-x.t4.old-driver.xml": (xml, {("node", "driver_gpus"): 1, ("gpu0", "name"): "Tesla T4"}),
    "nvidia-smi-nvlink-status.a100.txt": (
        nvlink,
        {("gpu0", "nvlink_links"): 12, ("gpu7", "nvlink_links"): 12, ("gpu7", "nvlink_speed"): 25.0},
    ),
    "gpu-burn.8gpu.log": (burn, {("node", "gpus"): 8, ("gpu7", "state"): "OK", ("gpu0", "rate"): 16990.5}),
    "nccl-tests.all_reduce.log": (
        nccl,  # the older `error` column prints N/A: unchecked
        {("node", "ranks"): 8, ("node", "size"): 2**33, ("node", "busbw"): 235.03, ("node", "wrong"): None},
    ),
    "nccl-tests.alltoall.log": (
        nccl,
        {("node", "ranks"): 8, ("node", "size"): 2**33, ("node", "busbw"): 224.31, ("node", "wrong"): None},
    ),
    "ib_write_bw.loopback.all-sizes.log": (
        loopback,  # server and client in one stream: two headers, the last row twice
        {("node", "ib0"): (1, 23, 194.96)},
    ),
    "nvbandwidth.text.log": (
        copies,
        {("node", COPIES[0]): ((369.36, 269.33, 412.11), (323.36, 299.33, 312.11)),
         ("node", COPIES[1]): ((295.15, 312.11),), ("node", "waived"): True},
    ),
    "fabricmanager.log": (
        manager,
        {("0000:86:00", "12028"): 1, ("node", "lines"): 54, ("node", "ready"): 8},
    ),
    "kernel-log.xid-119.log": (events, {("0000:9b:00", "xid.119"): 5}),
}  # fmt: skip
# File → its parser, and the reason to refuse incomplete text.
REFUSED: dict[str, tuple[Callable[[str], dict[tuple[str, str], Any]], str]] = {
    # Captured for one GPU of a machine with four; gpuprov queries all of them.
    "nvidia-smi-q-x.a100-sxm4.driver535.mig.xml": (xml, "announces 4 GPUs and describes 1"),
    # Cut after 60 lines, in the middle of a GPU.
    "nvidia-smi-nvlink-s.a100.550.txt": (nvlink, "lists fewer links of GPU 4 than of others"),
    "nvidia-smi-nvlink-s.h100.550.txt": (nvlink, "lists fewer links of GPU 3 than of others"),
    "nvidia-smi-nvlink-e.a100.550.txt": (link_errors, "lists fewer counters of GPU 2 than of others"),
    "nvidia-smi-nvlink-e.h100.550.txt": (link_errors, "lists fewer counters of GPU 1 than of others"),
}
# Outputs that no check requests, and the output that replaces them.
UNASKED = {
    "README.md": "what the files are",
    "nvidia-smi-L.a100.550.txt": "nvidia-smi -q -x has it",
    "nvidia-smi-L.h100.550.txt": "nvidia-smi -q -x has it",
    "nvidia-smi-L.h100.gpu3-lost.550.txt": "it lists the lost GPU as if it were healthy",
    "nvidia-smi.plain.h100.gpu3-lost.550.txt": "nvidia-smi -q -x has it",
    "nvidia-smi-query-gpu.h100.gpu3-lost.550.csv": "a query of its own choice of columns",
    "nvidia-smi-topo-m.h100.gpu3-lost.550.txt": "p2p_bandwidth measures every pair",
    "nvidia-smi-q.h100.550.txt": "nvidia-smi -q -x has it, in a form made for programs",
    "nvidia-smi.plain.a100.550.txt": "nvidia-smi -q -x has it",
    "nvidia-smi.plain.h100.550.txt": "nvidia-smi -q -x has it",
    "nvidia-smi-query-gpu.a100.550.csv": "a query of its own choice of columns; telemetry asks for its own",
    "nvidia-smi-query-gpu.h100.550.csv": "a query of its own choice of columns; telemetry asks for its own",
    "nvidia-smi-topo-m.a100.550.txt": "p2p_bandwidth measures every pair",
    "nvidia-smi-topo-m.h100.550.txt": "p2p_bandwidth measures every pair",
    "nvidia-smi-topo-p2p-r.a100.550.txt": "p2p_bandwidth measures every pair, and names those without access",
    "nvidia-smi-topo-p2p-r.h100.550.txt": "p2p_bandwidth measures every pair, and names those without access",
    "lspci-nn.a100.txt": "the look reads /sys/bus/pci",
    "ibstat.many-nodes.txt": "node names and GUIDs; the look reads /sys/class/infiniband",
    "sys-class-infiniband.h100.mlx5_0.tsv": "files of sysfs: tests/node reads them",
}


def test_every_capture_is_in_a_table(captures: Path) -> None:
    files = {path.name for path in captures.iterdir()}
    assert files == {*READ, *REFUSED, *UNASKED}


@pytest.mark.parametrize("name", READ)
def test_a_capture_is_read_whole(name: str, captures: Path) -> None:
    parser, expected = READ[name]
    found = parser((captures / name).read_bytes().decode())
    assert found
    assert {key: found.get(key) for key in expected} == expected
    if parser is xml:
        gpus = {device for device, metric in found if metric in ("memory_total", "unanswered")}
        assert len(gpus) == found["node", "driver_gpus"]


@pytest.mark.parametrize("name", REFUSED)
def test_a_capture_that_is_not_whole_is_refused(name: str, captures: Path) -> None:
    parser, said = REFUSED[name]
    with pytest.raises(ParseError) as refusal:
        parser((captures / name).read_bytes().decode())
    assert said in refusal.value.what
    assert refusal.value.fix
