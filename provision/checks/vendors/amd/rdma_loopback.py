"""rdma_loopback with the memory of AMD's GPUs, which perftest supports if built with ROCm.

HIP numbers GPUs in a different order, so only the GPU next to a card is made visible to the program, by its
unique number, and the GPU that the program prints is compared. If the kernel lacks peer memory of amdgpu,
DMA-BUF is requested, as RCCL does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from provision.checks.check import CheckNode
from provision.checks.kernel.kernel_log import bus_address
from provision.checks.network import rdma_loopback
from provision.checks.network.rdma_loopback import ID as ID
from provision.checks.network.rdma_loopback import NEEDS as NEEDS
from provision.checks.network.rdma_loopback import SUMMARY as SUMMARY
from provision.checks.network.rdma_loopback import GpuMemory, Loopback
from provision.checks.vendors.amd import devices
from provision.errors import ParseError

# Files that prove that amdgpu has registered with the cards' driver (RCCL, src/transport/net_ib.cc).
_PEER_MEMORY = tuple(
    f"file./sys/{folder}memory_peers/amdkfd/version.exists" for folder in ("kernel/mm/", "kernel/", "")
)
FACTS: tuple[str, ...] = ("rdma.ports", "firmware.rdma", "amdgpu.devices", *_PEER_MEMORY)

_USED = re.compile(r"^Using ROCm Device with ID: .{1,200}, PCI Bus ID: 0x([0-9a-f]{1,2}),", re.MULTILINE)
# The program's only message on a kernel built without DMA-BUF between PCIe devices.
_NO_DMABUF = (
    r"\A(?!(?s:.*)(?:Couldn't initialize ROCm|could not open kernel|could not get kernel))(?s:.*)"
    r"Failed to init memory"
)


def _addresses(node: CheckNode) -> list[str]:
    return [str(address) for address in node.variables.get("gpuprov_pci_addresses") or ()]


def _unique(node: CheckNode, gpu: int) -> str:
    """Return the unique number of a GPU; empty if the driver does not give it."""
    address = bus_address(_addresses(node)[gpu]) if gpu < len(_addresses(node)) else ""
    try:
        matches = [one for one in devices.entries(node) if bus_address(str(one["address"])) == address]
    except ParseError:
        return ""
    unique = str(matches[0].get("unique_id") or "") if matches else ""
    return unique if re.fullmatch(r"[0-9a-fA-F]{16}", unique) else ""


def _rocm(node: CheckNode, gpu: int) -> tuple[tuple[str, ...], Mapping[str, str]]:
    peers = any(node.facts.get(name) is True for name in _PEER_MEMORY)
    dmabuf = () if peers else ("--use_rocm_dmabuf",)
    if unique := _unique(node, gpu):
        return ("--use_rocm", "0", *dmabuf), {"ROCR_VISIBLE_DEVICES": f"GPU-{unique.upper()}"}
    return ("--use_rocm", str(gpu), *dmabuf), {}


def _another(node: CheckNode, gpu: int, text: str) -> str:
    used, addresses = _USED.search(text), _addresses(node)
    if used is None or gpu >= len(addresses) or int(used[1], 16) == int(addresses[gpu].split(":")[1], 16):
        return ""
    return f"ib_write_bw took the GPU on PCI bus {used[1]}, not gpu{gpu} ({addresses[gpu]}) beside the card"


def _left_out(node: CheckNode) -> str:
    modes = devices.partitioned(node)
    return f"GPUs are partitioned ({modes}): their memory is not given to the cards" if modes else ""


ROCM = GpuMemory(
    _rocm,
    re.compile(r"unrecognized option '--use_rocm|Unsupported memory type|Invalid Command or flag"),
    re.compile(rf"{rdma_loopback.REFUSED}|{_NO_DMABUF}", re.IGNORECASE),
    "ROCm, or without its DMA-BUF",
    "the kernel has neither the peer memory of amdgpu (memory_peers) nor DMA-BUF between PCIe devices "
    "(CONFIG_PCI_P2PDMA, CONFIG_DMABUF_MOVE_NOTIFY)",
    _left_out,
    _another,
)

LOOPBACK = Loopback(ROCM)

commands = LOOPBACK.commands
parse = LOOPBACK.parse
judge = LOOPBACK.judge
