"""Fault classes 41 to 52: the host, and validators that must not hide their own failures."""

from __future__ import annotations

from benchmarks.detection.cases import FAIL_OR_WARN, GPU, GPUS, NODE, Case, Draw, Entry, Expected, planted

TOOLS = ("nvidia-smi", "gpu_burn", "nvbandwidth", "all_reduce_perf")
# Output of a hypothetical newer release: (tool, current text, its replacement).
NEWER = (
    ("nvidia-smi", "<gpu id=", "<accelerator id="),
    ("nvidia-smi", "<fb_memory_usage>", "<fb_memory>"),
    ("nvidia-smi", "<ecc_errors>", "<ecc>"),
    ("nvidia-smi", " MiB</total>", " GiB</total>"),
    ("gpu_burn", "proc'd:", "processed:"),
    ("gpu_burn", "Gflop/s", "Tflop/s"),
    ("gpu_burn", ": OK", ": PASSED"),
    ("nvbandwidth", '"bandwidth_matrix"', '"matrix"'),
    ("nvbandwidth", '"testcases"', '"results"'),
    ("nvbandwidth", ".", ","),  # the decimal comma of another locale
    ("all_reduce_perf", "busbw", "bus_bw"),
    ("all_reduce_perf", "(GB/s)", "(Gb/s)"),
    ("all_reduce_perf", ".", ","),
)


CONFIGURE = ("fix configuration",)
SCRATCH = {"validation_tools_scratch_dir": "/scratch"}


def _memory(draw: Draw) -> Case:
    module, kind = draw.rng.randrange(16), draw.rng.choice(("uncorrected", "corrected"))
    count = draw.rng.randint(1, 9) if kind == "uncorrected" else draw.rng.randint(100_000, 10**6)
    expected = Expected(
        (f"mc{module // 2}/dimm{module % 2}*",),
        ("replace part", "investigate", "watch"),
        verdicts=FAIL_OR_WARN,
    )
    return Case((f"memory_errors module={module} kind={kind} count={count}",), expected)


def _drive(draw: Draw) -> Case:
    drive, how = draw.rng.randrange(4), draw.rng.choice(("missing", "dead", "worn", "warning"))
    actions = ("replace part", "reseat or check cable", "investigate", "watch")
    names = (f"nvme{drive}", "node") if how == "missing" else (f"nvme{drive}",)
    return Case((f"nvme_{how} drive={drive}",), Expected(names, actions, verdicts=FAIL_OR_WARN))


def _old_disk(draw: Draw) -> Case:
    return Case((f"scratch_old factor={draw.rng.uniform(0.65, 0.9):.3f}",), variables=SCRATCH)


def _no_scratch(_: Draw) -> Case:
    return Case(
        variables={"gpuprov_expected_nvmes": 0}, faults=tuple(f"nvme_missing drive={n}" for n in range(4))
    )


def _node_vbios(_: Draw) -> Case:
    expected = Expected(("node",), ("fix configuration", "investigate"), verdicts=("warn", "fail"))
    return Case(tuple(f"vbios gpu={gpu}" for gpu in range(GPUS)), expected)


def _approved_vbios(_: Draw) -> Case:
    approved = {"gpuprov_ignore_majority": ["firmware.gpu_vbios"]}
    return Case(tuple(f"vbios gpu={gpu}" for gpu in range(GPUS)), variables=approved)


def _partitioned(_: Draw) -> Case:
    return Case(
        ("run nvidia-smi -mig 1", "reboot"),
        variables={"gpu_settings_mig": {"enabled": True}},
        everywhere=True,
    )


def _not_run(draw: Draw) -> Case:
    tool, how = draw.rng.choice(TOOLS), draw.rng.choice(("tool_missing", "tool_truncated", "tool_hang"))
    words = f" percent={draw.rng.randint(0, 97)}" if how == "tool_truncated" else ""
    expected = Expected(("node",), ("run again", "fix configuration", "investigate"), verdicts=("error",))
    return Case((f"{how} tool={tool}{words}",), expected)


def _unknown(draw: Draw) -> Case:
    expected = Expected(("node",), ("run again", "investigate"), verdicts=("error",))
    if draw.rng.random() < 0.25:
        return Case((f"tool_garbage tool={draw.rng.choice(TOOLS)}",), expected)
    return Case((), expected, machine={"altered": draw.rng.choice(NEWER)})


def _interrupted(draw: Draw) -> Case:
    check = draw.rng.choice(("gpu_inventory", "p2p_bandwidth", "nccl_all_reduce", "gpu_burn"))
    expected = Expected(("node",), ("investigate", "run again", "power-cycle"), verdicts=("error",))
    return Case((), expected, event=f"{draw.rng.choice(('reboots', 'vanishes'))} {check}")


def _rebooted_before(draw: Draw) -> Case:
    return Case(("reboot",) * draw.rng.randint(1, 3))


_memlock = planted("memlock_small kib={kib}", NODE, CONFIGURE, FAIL_OR_WARN, kib=(64, 8192, 65536))
_access_control = planted("{which}", NODE, CONFIGURE, FAIL_OR_WARN, which=("acs_on", "iommu_translated"))
_guest = planted("virtual_machine")
_governor = planted(
    "governor name={name}",
    NODE,
    CONFIGURE,
    FAIL_OR_WARN,
    name=("powersave", "ondemand", "schedutil", "conservative"),
)
_few_corrected = planted(
    "memory_corrected_few module={module} count={count}", module=range(16), count=range(1, 10)
)
_clock = planted("clock_unsynchronised", NODE, CONFIGURE, FAIL_OR_WARN)
_fresh = planted("fresh_boot seconds={seconds}", seconds=range(20, 281))
_slow_disk = planted(
    "disk_slow factor={rest}",
    ("node", "nvme0n1"),
    ("replace part", "investigate"),
    FAIL_OR_WARN,
    variables=SCRATCH,
)
_leaked = planted(
    "gpu_process gpu={gpu} pid={pid} mib={mib}",
    GPU,
    ("restart job", "fix configuration", "investigate", "reset GPU", "reboot"),
    FAIL_OR_WARN,
    pid=range(2_000, 4_000_001),
    mib=range(200, 40_001),
)
_agent = planted("monitoring_agent name={name}", name=("nv-hostengine", "dcgm-exporter", "nvidia-smi"))
_vbios = planted("vbios gpu={gpu}", GPU, ("fix configuration", "investigate"), FAIL_OR_WARN)
_mode = planted(
    "gpu_mode gpu={gpu} mode={mode}",
    GPU,
    CONFIGURE,
    FAIL_OR_WARN,
    mode=("ecc_off", "exclusive", "persistence_off"),
)

ENTRIES = (
    Entry(41, "memlock or /dev/shm too small", _memlock),
    Entry(
        42,
        "ACS or IOMMU blocks peer access",
        _access_control,
    ),
    Entry(42, "guest, which needs both", _guest, trap=True),
    Entry(43, "CPU governor or C-states", _governor),
    Entry(44, "host memory errors", _memory),
    Entry(44, "a few corrected errors", _few_corrected, trap=True),
    Entry(45, "NVMe missing, worn or slow", _drive),
    Entry(
        45,
        "disk slow",
        _slow_disk,
        "slowdown",
        (0.45, 0.9),
        (0.05, 0.5),
        variant="s",
    ),
    Entry(45, "no scratch disk, for none is asked for", _no_scratch, trap=True, variant="n"),
    Entry(45, "old scratch disk, as fast as was stated", _old_disk, trap=True, variant="s"),
    Entry(46, "clock unsynchronised", _clock),
    Entry(46, "first minutes after boot", _fresh, trap=True),
    Entry(47, "leaked process on a GPU", _leaked),
    Entry(47, "monitoring agent", _agent, trap=True),
    Entry(48, "firmware drift", _vbios),
    Entry(48, "firmware drift of a whole node", _node_vbios, variant="n"),
    Entry(48, "two approved versions", _approved_vbios, trap=True),
    Entry(49, "persistence, MIG or ECC mode drift", _mode),
    Entry(49, "declared MIG, on all nodes", _partitioned, trap=True),
    Entry(50, "node unreachable or reboots in test", _interrupted),
    Entry(50, "reboots before the run", _rebooted_before, trap=True),
    Entry(51, "test could not run", _not_run),
    Entry(52, "unknown output format", _unknown),
)
