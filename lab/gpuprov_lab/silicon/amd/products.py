"""The lab's AMD SKUs: their identity, wiring, and the measurements of healthy hardware.

Sources: PCI ids from libdrm's amdgpu.ids; memory, power limits and names as printed by amd-smi and rocm-smi
in public reports, for an MI300A as in the manual of amd-smi (`amd-smi static`); links and compute units from
AMD's white paper of CDNA 3; the addresses from AMD's NIC to GPU mapping (MI300X), from a node of Frontier
(MI250X), whose `links` between GPUs are those of its rows in xgmi_num_links, and from AMD's guide to
accepting systems (ROCm/system-acceptance-docs, docs/gpus), where MI210 cards are joined in fours, and which
has the least rates of copies and collectives; healthy ones are a few percent above. More on rates: copies.py.
Temperatures, power and clocks are merely plausible; so are board numbers, the wiring between the modules of
an MI250, copies within memory except the MI300X's, and `gemm`, the rate of multiplication in Gflop/s of bf16:
AMD's validation suite requires at least 581,000 of an MI300X, 669,000 of an MI325X.
"""


def _mesh(count: int, links: int = 1, first: int = 0) -> dict:
    """Wire each of `count` GPUs, from `first` on, to every other one."""
    gpus = range(first, first + count)
    return {(a, b): links for a in gpus for b in gpus if a < b}


# Dies of a module have four links between them; the others are this machine's wiring between modules.
_MODULES = {(0, 1): 4, (2, 3): 4, (4, 5): 4, (6, 7): 4}
_BETWEEN = {(0, 6): 2, (2, 4): 2, (0, 2): 1, (1, 3): 1, (1, 5): 1, (3, 7): 1, (5, 7): 1, (4, 6): 1}

# MI250: each module has one link of each of its dies to each other module.
_ALL_TO_ALL = {(a, b): 1 for a in range(8) for b in range(a + 1, 8) if a // 2 != b // 2 and a % 2 == b % 2}

# GB/s of pairs without a direct link that have faster routes than others.
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
        # Differences of a virtual function; the names: libdrm's amdgpu.ids, rccl-tests of a cloud node.
        "guest": {"device": "74b5", "name": "AMD Instinct MI300X VF", "product": "AMD Instinct MI300X VF"},
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
        "link_gbits": 32,  # GT/s of an xGMI lane; a link has 16 lanes
        "partition": "SPX",
        "memory_partition": "NPS1",
        "deferred": True,  # the hardware counts deferred errors (ACA)
        "violations": True,  # the time that each limit throttled the clocks is counted
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
        "stress": 2003.0,
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
        "stress": 1150.0,
        "ring": {"all_reduce": 88.0, "all_gather": 84.0, "reduce_scatter": 85.0, "alltoall": 52.0},
        "power_idle": 91,
        "vbios": "113-D65209-073",
        "bad_page_threshold": 655,
        "serial": "PCB",
    },
}
_MI300X, _MI250X = PRODUCTS["mi300x"], PRODUCTS["mi250x"]
PRODUCTS["mi325x"] = dict(
    _MI300X,
    name="AMD Instinct MI325X",
    product="AMD Instinct MI325X OAM",
    model="102-G30218-00",
    device="74a5",
    subsystem="74a5",
    vram_bytes=262128 * 2**20,
    vram_mib=262128,
    vram_type="HBM3E",
    power=1000,
    power_idle=152,
    gemm=790_000,
    d2d={0: 24.0, 1: 48.6},
    local=1920.0,
    stress=2270.0,
    vbios="113-M3250101-100",
)
PRODUCTS["mi355x"] = dict(
    _MI300X,
    name="AMD Instinct MI355X",
    product="AMD Instinct MI355X OAM",
    model="102-G36303-0C",
    architecture="cdna4",
    gfx="gfx950",
    gfx_version=90500,
    device="75a3",
    subsystem="75a3",
    guest={"device": "75b3", "name": "AMD Instinct MI355X VF", "product": "AMD Instinct MI355X VF"},
    buses=["05", "15", "65", "75", "85", "95", "E5", "F5"],
    vram_bytes=309220868096,
    vram_mib=294896,
    vram_type="HBM3E",
    units=256,
    units_per_array=8,
    link_gbits=38,
    power=1400,
    power_idle=245,
    clock=2400,
    clock_load=1930,
    gemm=1_450_000,
    d2d={0: 26.0, 1: 57.8},
    local=2480.0,
    stress=2940.0,
    ring={"all_reduce": 361.0, "all_gather": 352.0, "reduce_scatter": 354.0, "alltoall": 339.0},
    vbios="113-M3550101-109",
)
# CPU and GPU in one socket, each with its own PCI domain; the memory belongs to the CPU, which counts its
# errors (amdgpu_ras.c, gmc_v9_0_set_umc_funcs). It has neither firmware nor a board serial number, and
# reports a power limit of 0 W.
PRODUCTS["mi300a"] = dict(
    _MI300X,
    name="AMD Instinct MI300A",
    product="Aqua Vanjaram [Instinct MI300A]",
    model="N/A",
    device="74a0",
    subsystem="74a0",
    buses=["01"] * 4,
    integrated=True,
    vram_bytes=96432 * 2**20,
    vram_mib=96432,
    vram_type="HBM",
    units=228,
    arrays=24,
    wired=_mesh(4, links=2),
    ras=("sdma", "gfx", "mmhub"),
    power=550,
    power_idle=44,
    temp_idle=29,
    gemm=510_000,
    h2d=76.0,
    d2h=79.0,
    d2d={2: 88.4},
    local=1580.0,
    stress=2180.0,
    ring={"all_reduce": 244.0, "all_gather": 238.0, "reduce_scatter": 240.0, "alltoall": 226.0},
    vbios="N/A",
    bad_page_threshold="N/A",
)
PRODUCTS["mi250"] = dict(
    _MI250X,
    name="AMD Instinct MI250X / MI250",
    product="AMD Instinct MI250X / MI250",
    device="740c",
    buses=["11", "14", "32", "35", "8E", "93", "AE", "B3"],
    units=104,
    units_per_array=13,
    wired={**_MODULES, **_ALL_TO_ALL},
    gemm=121_000,
    d2d={0: 26.8, 1: 33.4, 4: 65.0},
    d2d_far={},
    ring={"all_reduce": 134.0, "all_gather": 128.0, "reduce_scatter": 129.0, "alltoall": 71.0},
    vbios="113-D65201-046",
)
# Cards: a bridge joins four of one socket.
PRODUCTS["mi210"] = dict(
    _MI250X,
    name="AMD Instinct MI210",
    product="AMD Instinct MI210",
    model="D67301",
    device="740f",
    subsystem="0c34",
    buses=["03", "27", "43", "63", "83", "A3", "C3", "E3"],
    units=104,
    units_per_array=13,
    wired={**_mesh(4), **_mesh(4, first=4)},
    dies=1,
    power=300,
    power_idle=42,
    gemm=118_000,
    h2d=25.6,
    d2h=26.1,
    d2d={0: 19.6, 1: 37.9},
    d2d_far={},
    local=572.0,
    ring={"all_reduce": 9.4, "all_gather": 9.2, "reduce_scatter": 9.2, "alltoall": 7.8},
    vbios="113-D67301V-073",
)
for _one in PRODUCTS.values():
    # Keys that the rest of the simulator needs of any GPU; NVLinks, NVSwitches and fabric are NVIDIA's.
    _one.update(vendor="amd", links=0, fabric=None, switches=[], busbw={}, memory=_one["vram_mib"])
    _one.setdefault("ras", BLOCKS)  # the blocks with error counters in the driver
