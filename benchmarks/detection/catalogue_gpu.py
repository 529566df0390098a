"""Fault classes 14 to 29: the GPUs themselves, the driver and its support for containers."""

from __future__ import annotations

from benchmarks.detection.cases import (
    FAIL_OR_WARN,
    GPU,
    GPUS,
    LOOK,
    NODE,
    RESET,
    Case,
    Draw,
    Entry,
    Expected,
    planted,
)

NOT_SEEN = ("refused", "none", "some")
OTHER_DRIVERS = ("580.95.05", "570.172.08", "590.44.01")
IMAGE = {"gpuprov_container_image": "nvcr.io/nvidia/cuda:12.9.1-base-ubuntu24.04"}


def _double_bit(draw: Draw) -> Case:
    gpu = draw.gpu()
    faults = (f"ecc_uncorrectable gpu={gpu} count={draw.rng.randint(1, 9)}", f"xid gpu={gpu} code=95")
    return Case((draw.rng.choice(faults),), Expected((f"gpu{gpu}",), RESET))


def _remap(draw: Draw) -> Case:
    gpu, kind = draw.gpu(), draw.rng.choice(("pending", "failure"))
    actions = ("reset GPU", "reboot") if kind == "pending" else ("replace part",)
    return Case((f"row_remap_{kind} gpu={gpu}",), Expected((f"gpu{gpu}",), actions))


def _slow_node(draw: Draw) -> Case:
    faults = tuple(f"gpu_slow gpu={gpu} factor={draw.rest}" for gpu in range(GPUS))
    return Case(faults, Expected(("node",), LOOK, verdicts=("fail", "warn")))


def _cap(draw: Draw) -> Case:
    gpu = draw.gpu()
    fault = f"power_limit gpu={gpu} percent={round(100 * (1 - draw.severity))}"
    expected = Expected((f"gpu{gpu}",), ("fix configuration", "investigate"), verdicts=("fail", "warn"))
    return Case((fault,), expected)


def _wrong(draw: Draw) -> Case:
    gpu, errors = draw.gpu(), max(1, round(draw.severity))
    if draw.rng.random() < 0.7:
        expected = Expected((f"gpu{gpu}",), ("replace part", "investigate"))
        return Case((f"burn_errors gpu={gpu} errors={errors}",), expected)
    return Case((f"wrong_result count={errors}",), Expected(("node",), ("investigate",)))


def _firmware(draw: Draw) -> Case:
    gpu, code = draw.gpu(), draw.rng.choice((119, 120, 122, 123))
    if code in (119, 120):
        return Case((f"xid gpu={gpu} code={code}",), Expected((f"gpu{gpu}",), RESET))
    # NVIDIA's catalogue gives no remedy for failed reads or writes of the power management unit.
    expected = Expected((f"gpu{gpu}",), (*RESET, "investigate"), verdicts=("warn", "fail"))
    return Case((f"xid gpu={gpu} code={code}",), expected)


def _library(draw: Draw) -> Case:
    other = draw.rng.choice(OTHER_DRIVERS)
    expected = Expected(("node",), ("reboot", "fix configuration"), verdicts=("error", "fail"))
    return Case((), expected, machine={"library": other})


def _no_module(draw: Draw) -> Case:
    expected = Expected(("node",), ("fix configuration", "reboot"), verdicts=("error", "fail"))
    # Remnants of the driver's packages can keep nouveau blacklisted without providing a module themselves.
    return Case((), expected, machine={"module": draw.rng.choice(("none", "blacklist")), "fabric": False})


def _other_driver(draw: Draw) -> Case:
    version = draw.rng.choice(OTHER_DRIVERS)
    expected = Expected(("node",), ("fix configuration",), verdicts=("warn", "fail"))
    return Case((), expected, machine={"driver": version})


def _canary(draw: Draw) -> Case:
    version = draw.rng.choice(OTHER_DRIVERS)
    return Case(machine={"driver": version}, variables={"nvidia_driver_version": version})


_sram = planted("sram_threshold gpu={gpu}", GPU, ("replace part",))
_old_ecc = planted("ecc_aggregate_old gpu={gpu} count={severity}")
_clean_remap = planted("remapped_clean gpu={gpu} rows={rows}", rows=range(1, 9))
_many_remaps = planted(
    "remapped_many gpu={gpu} rows={severity}", GPU, ("watch", "replace part", "investigate"), FAIL_OR_WARN
)
_slow_memory = planted("memory_slow gpu={gpu} factor={rest}", GPU, LOOK)
_slow = planted("gpu_slow gpu={gpu} factor={rest}", GPU, LOOK)
_throttle = planted(
    "throttle gpu={gpu} reason={reason} factor={rest}",
    GPU,
    (*LOOK, "power-cycle"),
    reason=("hw_thermal", "sw_thermal"),
)
_brake = planted(
    "throttle gpu={gpu} reason=hw_power_brake factor={rest}", GPU, (*LOOK, "power-cycle", "fix configuration")
)
_brief_cap = planted("power_cap_brief gpu={gpu} seconds={seconds}", seconds=range(1, 4))
_site_cap = planted("power_cap_site percent={percent}", everywhere=True, percent=range(60, 96))
_airflow = planted("airflow_gradient degrees={degrees}", degrees=range(1, 9))
_hot = planted("hot_gpu gpu={gpu} degrees={severity}", GPU, (*LOOK, "watch"), ("warn", "fail"))
_user_xid = planted("xid gpu={gpu} code={code}", code=(13, 31, 43, 45))
_slow_first = planted("slow_first_call seconds={seconds}", seconds=range(1, 21))
_hang = planted(
    "tool_hang tool={tool} stubborn={stubborn}",
    NODE,
    ("investigate", "reboot"),
    ("error",),
    tool=("nvidia-smi", "gpu_burn", "nvbandwidth", "all_reduce_perf"),
    stubborn=("no", "yes"),
)
_empty_library = planted(
    "library_empty name={name}",
    NODE,
    ("fix configuration",),
    ("fail", "error"),
    name=("libnvidia-ml", "libcuda"),
)
_no_container = planted(
    "container_broken how={how}", NODE, ("fix configuration", "investigate"), variables=IMAGE, how=NOT_SEEN
)
_container_not_asked = planted("container_broken how={how}", how=NOT_SEEN)

ENTRIES = (
    Entry(14, "uncorrectable ECC", _double_bit),
    Entry(14, "corrected errors of the past", _old_ecc, "errors", (1, 500), trap=True),
    Entry(14, "SRAM errors over the limit", _sram, variant="s"),
    Entry(15, "row remap failed or pending", _remap),
    Entry(15, "rows remapped long ago", _clean_remap, trap=True),
    Entry(16, "many correctable remaps", _many_remaps, "rows", (11, 512)),
    Entry(17, "memory bandwidth low", _slow_memory, "slowdown", (0.25, 0.8), (0.01, 0.3)),
    Entry(18, "GPU slow", _slow, "slowdown", (0.25, 0.8), (0.01, 0.3)),
    Entry(18, "all GPUs of a node slow", _slow_node, "slowdown", (0.25, 0.8), (0.01, 0.3), variant="n"),
    Entry(19, "thermal throttle", _throttle, "slowdown", (0.25, 0.8), (0.01, 0.3)),
    Entry(19, "brief software power cap", _brief_cap, trap=True),
    Entry(20, "power brake or cap", _brake, "slowdown", (0.25, 0.8), (0.01, 0.3)),
    Entry(20, "power limit of one GPU low", _cap, "slowdown", (0.2, 0.5), variant="c"),
    Entry(20, "power limited by policy on all nodes", _site_cap, trap=True),
    Entry(21, "cooling gradient", _hot, "°C above peers", (20, 40), (3, 25)),
    Entry(21, "warm end of the airflow", _airflow, trap=True),
    Entry(22, "silent wrong result", _wrong, "errors", (1, 10_000)),
    Entry(23, "GSP or PMU fault", _firmware),
    Entry(23, "Xid of a user's program", _user_xid, trap=True),
    Entry(24, "driver wedged, tool hangs", _hang),
    Entry(24, "first call slow without persistence", _slow_first, trap=True),
    Entry(25, "driver and library differ", _library),
    Entry(26, "driver version drift", _other_driver),
    Entry(26, "canary group with another driver", _canary, trap=True),
    Entry(27, "nouveau loaded, no module", _no_module),
    Entry(28, "container runtime misconfigured", _no_container),
    Entry(28, "container tests not asked for", _container_not_asked, trap=True),
    Entry(29, "empty or wrong library file", _empty_library),
)
