"""Fault classes with their look-alikes on nodes with AMD GPUs.

They have their own table (`--amd`), since some loads exist for NVIDIA GPUs only.
The network and host classes are tried again only if the GPUs matter in them; the checks of the other classes
are identical.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.detection import catalogue_fleet, catalogue_network
from benchmarks.detection.cases import (
    AMD,
    FAIL_OR_WARN,
    GPU,
    LOOK,
    NODE,
    PAIR,
    RESET,
    Case,
    Draw,
    Entry,
    Expected,
    planted,
)

HANDS = ("reseat or check cable", "replace part", "investigate", "power-cycle")
# SKUs with firmware that reports links, limits and deferred errors; SKUs with the CPU's memory.
WITH_METRICS = ("mi300x", "mi325x", "mi355x")
SHARED = ("mi300a",)
WHOLE = ("mi210", *WITH_METRICS, *SHARED)  # one device per GPU; the second device of a module shows no power
ALONE = tuple(sku for sku in AMD if sku not in SHARED)
LIMITS = (*WITH_METRICS, *SHARED)
BLOCKS = ("umc", "sdma", "gfx", "mmhub", "hdp")
_OTHER_DRIVERS = ("6.10.5", "6.8.5", "6.14.14")


def _not_started(draw: Draw) -> Case:
    gpu = draw.gpu()
    return Case(
        (f"gpu_off_bus_at_boot gpu={gpu}", "reboot"), Expected((f"gpu{gpu}", f"slot {gpu}"), RESET, also=NODE)
    )


def _uncorrectable(draw: Draw) -> Case:
    gpu, count = draw.gpu(), draw.rng.randint(1, 9)
    if draw.sku in SHARED:
        block = draw.rng.choice(("sdma", "gfx", "mmhub"))
        return Case(
            (f"ras_errors gpu={gpu} block={block} kind=ue count={count}",), Expected((f"gpu{gpu}",), RESET)
        )
    memory = f"ecc_uncorrectable gpu={gpu} count={count}"
    other = f"ras_errors gpu={gpu} block={draw.rng.choice(BLOCKS)} kind=ue count={count}"
    return Case((draw.rng.choice((memory, other)),), Expected((f"gpu{gpu}",), RESET))


def _no_module(draw: Draw) -> Case:
    del draw
    return Case((), Expected(NODE, ("fix configuration",), ("fail", "error")), machine={"module": "none"})


def _other_driver(draw: Draw) -> Case:
    expected = Expected(NODE, ("fix configuration",), FAIL_OR_WARN)
    return Case((), expected, machine={"driver": draw.rng.choice(_OTHER_DRIVERS)})


def _new_format(draw: Draw) -> Case:
    altered = draw.rng.choice((('"gpu_data"', '"devices"'), ('"bdf"', '"pci_bdf"'), ('"gpu":', '"index":')))
    return Case(
        (),
        Expected(NODE, ("investigate", "run again"), ("error",)),
        machine={"altered": ("amd-smi", *altered)},
    )


def _wired(draw: Draw) -> Case:
    lanes = draw.rng.choice((4, 8))
    return Case((f"pcie_wired width={lanes}",), variables={"gpuprov_pcie_width": lanes})


_FAULTS_OF_TOOL = ("garbage tool=amd-smi", "truncated tool=amd-smi percent=60", "missing tool=amd-smi")

_missing = planted("gpu_missing gpu={gpu}", ("node", "slot {gpu}"), HANDS, also=NODE)
_off_the_bus = planted("gpu_off_bus gpu={gpu}", ("gpu{gpu}", "slot {gpu}"), RESET, also=NODE)
_width = planted("pcie_width gpu={gpu} width={width}", GPU, HANDS, FAIL_OR_WARN, width=(1, 2, 4, 8))
_generation = planted("pcie_gen gpu={gpu} gen={gen}", GPU, HANDS, gen=(1, 2, 3))
_replays = planted("pcie_replays gpu={gpu} count={severity}", GPU, HANDS)
_old_replays = planted("pcie_replays_old gpu={gpu} count={severity}")
_storm = planted("aer_storm gpu={gpu} count={count}", GPU, HANDS, FAIL_OR_WARN, count=range(60, 5_001))
_old_aer = planted("aer_old gpu={gpu} count={count}", count=range(1, 9))
_link_down = planted("xgmi_down a={a} b={b} since={since}", PAIR, RESET, since=("later", "boot"))
_link_errors = planted(
    "ras_errors gpu={gpu} block=xgmi_wafl kind=ue count={count}", GPU, RESET, count=range(1, 99)
)
_bridges = planted("bridges cards={cards}", everywhere=True, cards=(1, 2))
# GPU, CPU and memory are one part on these nodes, so naming the GPU blames no other part.
_of_socket = planted(
    "ecc_uncorrectable gpu={gpu} count={count}", ("mc{gpu}",), HANDS, also=("gpu{gpu}",), count=range(1, 9)
)
_few_link_errors = planted("ras_errors gpu={gpu} block=xgmi_wafl kind=ce count={count}", count=range(1, 20))
_corrected = planted("ras_corrected_few gpu={gpu} count={count}", count=range(1, 21))
_deferred = planted(
    "ras_errors gpu={gpu} kind=de count={count}", GPU, ("watch", *RESET), FAIL_OR_WARN, count=range(1, 9)
)
_pages = planted(
    "bad_pages gpu={gpu} state={state} count={count}",
    GPU,
    RESET,
    state=("pending", "unreservable"),
    count=range(1, 5),
)
_few_pages = planted("bad_pages_few gpu={gpu} count={count}", count=range(1, 9))
_many_pages = planted(
    "bad_pages gpu={gpu} state=reserved count={severity}", GPU, ("watch", "replace part"), FAIL_OR_WARN
)
_throttle = planted(
    "throttle gpu={gpu} reason={reason} factor=0.6",
    GPU,
    (*LOOK, "power-cycle"),
    FAIL_OR_WARN,
    reason=("hw_thermal", "sw_thermal"),
)
_cap = planted("power_limit gpu={gpu} percent={percent}", GPU, ("fix configuration",), percent=range(40, 90))
_site_cap = planted("power_cap_site percent={percent}", everywhere=True, percent=range(60, 96))
_hot = planted("hot_gpu gpu={gpu} degrees={severity}", GPU, LOOK, FAIL_OR_WARN)
_airflow = planted("airflow_gradient degrees={degrees}", degrees=range(1, 9))
_hangs = ("firmware_stuck", "fence_timeout", "fatal_event")
_stuck = planted("gpu_event gpu={gpu} event={event}", GPU, RESET, event=_hangs)
_users = planted("gpu_event gpu={gpu} event={event}", event=("page_fault", "ring_recovered"))
_hang = planted(
    "tool_hang tool=amd-smi stubborn={stubborn}",
    NODE,
    ("investigate", "reboot"),
    ("error",),
    stubborn=("no", "yes"),
)
_partition = planted(
    "partition_mode gpu={gpu} mode={mode}", GPU, ("fix configuration",), FAIL_OR_WARN, mode=("CPX", "DPX")
)
_partitions = planted("partition_site mode={mode}", everywhere=True, mode=("CPX", "QPX"))
_no_answer = planted(
    "tool_{how}", NODE, ("investigate", "fix configuration", "run again"), ("error",), how=_FAULTS_OF_TOOL
)

# --- what only a load shows

_ONSETS = range(8, 30)  # seconds after the load starts
_slow = planted("gpu_slow gpu={gpu} factor={rest}", GPU, LOOK)
_wrong = planted("burn_errors gpu={gpu} errors={severity}", GPU, ("replace part",))
_wrong_later = planted("burn_errors gpu={gpu} onset={onset}", GPU, ("replace part",), onset=_ONSETS)
_lost_in_load = planted("gpu_off_bus gpu={gpu} onset={onset}", GPU, RESET, also=NODE, onset=_ONSETS)
_worker_dies = planted("burn_dies gpu={gpu}", GPU, ("investigate",), ("error",))
_heat_later = planted(
    "throttle gpu={gpu} reason={reason} factor=0.6 onset={onset}",
    GPU,
    (*LOOK, "power-cycle"),
    FAIL_OR_WARN,
    reason=("hw_thermal", "sw_thermal", "hw_power_brake"),
    onset=_ONSETS,
)
_hot_later = planted("hot_gpu gpu={gpu} degrees=25 onset={onset}", GPU, LOOK, FAIL_OR_WARN, onset=_ONSETS)
_brief = planted("power_cap_brief gpu={gpu} seconds={seconds}", seconds=range(1, 4))
_more_errors = planted(
    "ecc_uncorrectable gpu={gpu} count={count} onset={onset}", GPU, RESET, count=range(1, 9), onset=_ONSETS
)
_more_replays = planted("pcie_replays gpu={gpu} count=5000 onset={onset}", GPU, HANDS, onset=_ONSETS)
_narrow_later = planted(
    "pcie_width gpu={gpu} width={width} onset=8", GPU, HANDS, FAIL_OR_WARN, width=(1, 2, 4, 8)
)
_rvs_hangs = planted(
    "tool_hang tool=rvs stubborn={stubborn}",
    NODE,
    ("investigate", "reboot"),
    ("error",),
    stubborn=("no", "yes"),
)
_no_result = planted(
    "tool_{how}",
    NODE,
    ("investigate", "fix configuration", "run again"),
    ("error",),
    how=("garbage tool=rvs", "truncated tool=rvs percent=60", "missing tool=rvs"),
)


def _new_words(draw: Draw) -> Case:
    altered = draw.rng.choice((("GFLOPS", "TFLOPS"), ("GPU[", "Device["), ("[GPU::", "[DEV::")))
    verdicts = ("error", "warn")
    return Case(
        (), Expected(NODE, ("investigate", "run again"), verdicts), machine={"altered": ("rvs", *altered)}
    )


# --- what AMD's acceptance tests show

_short_of_power = planted("power_short gpu={gpu} factor={rest}", GPU, LOOK)
_pattern = planted("memory_pattern gpu={gpu} test={test}", GPU, ("replace part",), test=range(2, 11))

# --- what copies and collectives show

_MODULES = ((0, 1), (2, 3), (4, 5), (6, 7))
_WIRED = {  # pairs with as many links as other pairs
    "mi250": _MODULES,
    "mi250x": (*_MODULES, (0, 6), (2, 4)),
    "mi210": tuple((a, b) for a in range(8) for b in range(a + 1, 8) if a // 4 == b // 4),
}


def _slow_link(draw: Draw) -> Case:
    wired = _WIRED.get(draw.sku)
    a, b = draw.rng.choice(wired) if wired else draw.pair()
    expected = Expected((f"gpu{a}-gpu{b}",), RESET, FAIL_OR_WARN, also=NODE)
    return Case((f"slow_pair a={a} b={b} factor={draw.rest}",), expected)


_both_ways = planted("two_way_slow a={a} b={b} factor={rest}", PAIR, RESET, FAIL_OR_WARN, also=NODE)
_both_ways_once = planted("two_way_once a={a} b={b}")
_host_copies = planted("h2d_slow gpu={gpu} factor={rest}", GPU, HANDS, also=NODE)
_memory = planted("memory_slow gpu={gpu} factor={rest}", GPU, LOOK, also=NODE)
_few_percent = planted("memory_slow gpu={gpu} factor=0.985")
_collective = planted("collective_slow factor={rest}", NODE, LOOK)
_redundancy = planted("alltoall_slow factor={rest}", NODE, (*HANDS, *LOOK))
_wrong_sums = planted("wrong_result count={severity}", NODE, LOOK)
_copies_hang = planted(
    "tool_hang tool={tool} stubborn={stubborn}",
    NODE,
    ("investigate", "reboot"),
    ("error",),
    tool=("TransferBench", "all_reduce_perf", "alltoall_perf"),
    stubborn=("no", "yes"),
)
_no_copies = planted(
    "tool_{how}",
    NODE,
    ("investigate", "fix configuration", "run again"),
    ("error",),
    how=(
        *("garbage tool=TransferBench", "truncated tool=TransferBench percent=60"),
        *("missing tool=TransferBench", "truncated tool=all_gather_perf percent=80"),
    ),
)


def _new_matrix(draw: Draw) -> Case:
    altered = draw.rng.choice((("GB/s [", "GiB/s ["), ("  ->", "  =>"), ("Averages", "Means"), ("EXE", "X")))
    expected = Expected(NODE, ("investigate", "run again"), ("error",))
    return Case((), expected, machine={"altered": ("TransferBench", *altered)})


# The path between network cards and GPUs, and faults that only show between nodes.
_SHARED = tuple(
    replace(entry, skus=AMD, name=entry.name.replace("CUDA", "ROCm"))
    for entry in (*catalogue_network.ENTRIES, *catalogue_fleet.ENTRIES)
    if entry.number in (35, 36, 38, 39)
)
_ENTRIES = (
    Entry(1, "GPU missing", _missing, skus=AMD),
    Entry(2, "GPU off the bus", _off_the_bus, skus=AMD),
    Entry(2, "GPU that does not start at boot", _not_started, skus=AMD, variant="b"),
    Entry(2, "GPU that falls off the bus under load", _lost_in_load, skus=AMD, variant="l"),
    Entry(3, "PCIe width degraded", _width, skus=ALONE),
    Entry(3, "PCIe width lost under load", _narrow_later, skus=ALONE, variant="l"),
    # On other SKUs a site has to declare its own copy limits, which depend on its slots.
    Entry(3, "slots wired with fewer lanes", _wired, skus=("mi300x",), trap=True),
    Entry(4, "PCIe generation degraded", _generation, skus=ALONE),
    Entry(5, "PCIe replays", _replays, "a minute", (1_000, 100_000), skus=ALONE),
    Entry(5, "old PCIe replays", _old_replays, "replays", (1, 99), skus=ALONE, trap=True),
    Entry(5, "PCIe replays that begin under load", _more_replays, skus=ALONE, variant="l"),
    Entry(5, "PCIe errors in the kernel log", _storm, skus=ALONE, variant="a"),
    Entry(5, "a few PCIe errors in the log", _old_aer, skus=ALONE, trap=True, variant="a"),
    Entry(6, "host-device copies slow", _host_copies, "slowdown", (0.3, 0.9), skus=AMD),
    Entry(7, "xGMI link down", _link_down, skus=LIMITS),
    Entry(7, "fewer links than others, as wired", lambda _: Case(), skus=("mi250x",), trap=True),
    Entry(7, "cards joined otherwise, or not at all", _bridges, skus=("mi210",), trap=True, variant="b"),
    Entry(8, "xGMI errors", _link_errors, skus=ALONE),
    Entry(8, "a few corrected xGMI errors", _few_link_errors, skus=ALONE, trap=True),
    Entry(9, "collective slow", _collective, "slowdown", (0.2, 0.9), skus=AMD),
    Entry(10, "xGMI pair slow", _slow_link, "slowdown", (0.32, 0.9), skus=AMD),
    Entry(
        10, "xGMI pair slow both ways at once", _both_ways, "slowdown", (0.32, 0.9), skus=LIMITS, variant="b"
    ),
    Entry(10, "xGMI pair slow both ways, once", _both_ways_once, skus=LIMITS, trap=True, variant="b"),
    Entry(14, "uncorrectable errors", _uncorrectable, skus=AMD),
    Entry(14, "a few corrected errors", _corrected, skus=AMD, trap=True),
    Entry(14, "uncorrectable errors of memory that is the processor's", _of_socket, skus=SHARED, variant="p"),
    Entry(14, "deferred errors", _deferred, skus=WITH_METRICS, variant="d"),
    Entry(14, "uncorrectable errors under load", _more_errors, skus=ALONE, variant="l"),
    Entry(15, "bad pages still in use", _pages, skus=ALONE),
    Entry(15, "bad pages taken out of use long ago", _few_pages, skus=ALONE, trap=True),
    Entry(16, "nearly as many bad pages as allowed", _many_pages, "pages", (116, 512), skus=WITH_METRICS),
    Entry(16, "memory that does not hold a pattern", _pattern, skus=AMD, variant="m"),
    Entry(17, "memory bandwidth low", _memory, "slowdown", (0.15, 0.8), skus=AMD),
    Entry(17, "memory a percent slower", _few_percent, skus=AMD, trap=True),
    Entry(18, "GPU slow", _slow, "slowdown", (0.25, 0.8), skus=AMD),
    Entry(
        18, "GPU that does not reach its power", _short_of_power, "below", (0.1, 0.5), skus=WHOLE, variant="p"
    ),
    Entry(19, "throttling by the board or by heat", _throttle, skus=LIMITS),
    Entry(19, "throttling that begins under load", _heat_later, skus=AMD, variant="l"),
    Entry(19, "brief slowdown at the start of a load", _brief, skus=LIMITS, trap=True),
    Entry(20, "power limit of one GPU low", _cap, skus=WITH_METRICS),
    Entry(20, "power limited by policy on all nodes", _site_cap, skus=AMD, trap=True),
    Entry(21, "cooling gradient", _hot, "°C above peers", (20, 40), skus=AMD),
    Entry(21, "warm end of the airflow", _airflow, skus=AMD, trap=True),
    Entry(21, "GPU that runs hot under load alone", _hot_later, skus=AMD, variant="l"),
    Entry(22, "wrong results", _wrong, "errors", (1, 10_000), skus=AMD),
    Entry(22, "results that become wrong under load", _wrong_later, skus=AMD, variant="l"),
    Entry(22, "wrong sums of a collective", _wrong_sums, "elements", (1, 10_000), skus=AMD, variant="c"),
    Entry(23, "firmware or queue that does not answer", _stuck, skus=AMD),
    Entry(23, "fault of a user's program, or a hang that was mended", _users, skus=AMD, trap=True),
    Entry(24, "amd-smi hangs", _hang, skus=AMD),
    Entry(24, "copies or a collective hang", _copies_hang, skus=AMD, variant="c"),
    Entry(24, "RVS hangs", _rvs_hangs, skus=AMD, variant="l"),
    Entry(26, "driver version drift", _other_driver, skus=AMD),
    Entry(27, "driver's module not there", _no_module, skus=AMD),
    *_SHARED,
    Entry(40, "slow only when all pairs talk", _redundancy, "slowdown", (0.25, 0.8), skus=AMD, variant="a"),
    Entry(49, "partition mode drift", _partition, skus=LIMITS),
    Entry(49, "partitioned by policy on all nodes", _partitions, skus=LIMITS, trap=True),
    Entry(51, "test could not run", _no_answer, skus=AMD),
    Entry(51, "RVS without a result", _no_result, skus=AMD, variant="l"),
    Entry(51, "RVS whose worker ends", _worker_dies, skus=AMD, variant="w"),
    Entry(51, "copies without a result", _no_copies, skus=AMD, variant="c"),
    Entry(52, "new output format of TransferBench", _new_matrix, skus=AMD, variant="c"),
    Entry(52, "new output format", _new_format, skus=AMD),
    Entry(52, "new output format of RVS", _new_words, skus=AMD, variant="l"),
)
ENTRIES = {f"amd{entry.key}": entry for entry in _ENTRIES}
HEALTHY = "amd-healthy"
