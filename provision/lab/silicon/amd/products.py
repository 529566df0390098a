"""What each of AMD's SKUs of the lab is: identity, wiring, and what healthy hardware of it measures.

Where the numbers come from: PCI ids from libdrm's amdgpu.ids; memory, power limits and names as amd-smi and
rocm-smi print them in public reports; links and compute units from AMD's white paper of CDNA 3; the addresses
from AMD's NIC to GPU mapping (MI300X) and from a node of Frontier (MI250X), whose `links` between GPUs are
those of its rows in xgmi_num_links. Rates of copies and collectives: copies.py.
Temperatures, power and clocks are plausible, no more; so is `gemm`, what
a GPU multiplies in Gflop/s of bf16: 581,000 is the least that AMD's validation suite asks of an MI300X.
"""


def _mesh(count: int) -> dict:
    """Every GPU is wired to every other by one link."""
    return {(a, b): 1 for a in range(count) for b in range(a + 1, count)}


# Dies of a module have four links between them; the rest is how the modules of this machine are wired.
_MODULES = {(0, 1): 4, (2, 3): 4, (4, 5): 4, (6, 7): 4}
_BETWEEN = {(0, 6): 2, (2, 4): 2, (0, 2): 1, (1, 3): 1, (1, 5): 1, (3, 7): 1, (5, 7): 1, (4, 6): 1}

# GB/s of pairs without a link of their own whose ways are better than others'.
_FAR = {(0, 7): 39.9, (1, 6): 40.0, (2, 5): 40.1, (3, 4): 39.8, (1, 7): 36.0, (3, 5): 35.8}

BLOCKS = ("umc", "sdma", "gfx", "mmhub", "pcie_bif", "hdp", "xgmi_wafl")

PRODUCTS = {
    "mi300x": {
        "name": "AMD Instinct MI300X",
        "product": "AMD Instinct MI300X OAM",
        "model": "102-G30211-00",
        "architecture": "cdna3",
        "gfx": "gfx942",
        "gfx_version": 90402,
        "device": "74a1",
        "subsystem": "74a1",
        "class": "0x120000",
        "buses": ["05", "26", "46", "65", "85", "A6", "C6", "E5"],
        "cpus": 192,
        "vram_bytes": 206141652992,
        "vram_mib": 196592,
        "vram_type": "HBM3",
        "units": 304,
        "arrays": 32,
        "units_per_array": 10,
        "kfd_name": "ip discovery",
        "wired": _mesh(8),
        "link_gbits": 32,  # GT/s of an xGMI lane, 16 of them a link
        "partition": "SPX",
        "memory_partition": "NPS1",
        "deferred": True,  # its hardware counts deferred errors (ACA)
        "violations": True,  # and how long each limit held the clocks down
        "edge": False,
        "pcie": 5,
        "power": 750,
        "clock": 2100,
        "clock_idle": 132,
        "temp_limit": 100,
        "temp_idle": 38,
        "temp_load": 74,
        "clock_load": 1440,
        "gemm": 690_000,
        "h2d": 52.0,
        "d2h": 55.24,
        "d2d": {0: 24.0, 1: 48.4},
        "d2d_far": {},
        "local": 1690.0,
        "ring": {"all_reduce": 315.0, "all_gather": 309.0, "reduce_scatter": 311.0, "alltoall": 296.0},
        "power_idle": 141,
        "vbios": "113-M3000100-102",
        "bad_page_threshold": 128,
        "serial": "69",
    },
    "mi250x": {
        "name": "AMD Instinct MI250X",
        "product": "AMD INSTINCT MI200 (MCM) OAM LC MBA HPE C2",
        "model": "D65209",
        "architecture": "cdna2",
        "gfx": "gfx90a",
        "gfx_version": 90010,
        "device": "7408",
        "subsystem": "0b0c",
        "class": "0x038000",
        "buses": ["C1", "C6", "C9", "CE", "D1", "D6", "D9", "DE"],
        "cpus": 128,
        "vram_bytes": 68702699520,
        "vram_mib": 65520,
        "vram_type": "HBM",
        "units": 110,
        "arrays": 8,
        "units_per_array": 14,
        "kfd_name": "aldebaran",
        "wired": {**_MODULES, **_BETWEEN},
        "link_gbits": 25,
        "dies": 2,  # of a module; the first has the power limit of both
        "partition": "",
        "memory_partition": "",
        "deferred": False,
        "violations": False,
        "edge": True,
        "pcie": 4,
        "power": 560,
        "clock": 1700,
        "clock_idle": 800,
        "temp_limit": 105,
        "temp_idle": 41,
        "temp_load": 72,
        "clock_load": 1480,
        "gemm": 128_000,
        "h2d": 24.4,
        "d2h": 23.8,
        "d2d": {0: 27.6, 1: 31.5, 2: 47.4, 4: 65.0},
        "d2d_far": _FAR,
        "local": 560.0,
        "ring": {"all_reduce": 88.0, "all_gather": 84.0, "reduce_scatter": 85.0, "alltoall": 52.0},
        "power_idle": 91,
        "vbios": "113-D65209-073",
        "bad_page_threshold": 655,
        "serial": "PCB",
    },
}
for _one in PRODUCTS.values():
    # What the rest of the simulator asks of any GPU: NVLinks, NVSwitches and their fabric are NVIDIA's.
    _one.update(vendor="amd", links=0, fabric=None, switches=[], busbw={}, memory=_one["vram_mib"])
