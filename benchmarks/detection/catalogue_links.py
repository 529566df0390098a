"""Fault classes 1 to 13: missing GPUs, and the links to and between GPUs."""

from __future__ import annotations

from benchmarks.detection.cases import (
    FABRIC,
    FAIL_OR_WARN,
    GPU,
    GPUS,
    IMEX,
    LINKS,
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
from benchmarks.detection.tree import DRIVER

HANDS = ("reseat or check cable", "replace part", "investigate", "power-cycle")


def _old_xid(draw: Draw) -> Case:
    # The line is written once, and the reboot starts a new log.
    return Case((f"xid gpu={draw.gpu()} code=79 once=yes", "reboot"))


def _generation(draw: Draw) -> Case:
    gpu, best = draw.gpu(), 4 if draw.sku in ("a100-sxm-80", "l40s") else 5
    fault = f"pcie_gen gpu={gpu} gen={draw.rng.randint(1, best - 1)}"
    return Case((fault,), Expected((f"gpu{gpu}",), HANDS, also=("node",)))


def _wired(draw: Draw) -> Case:
    lanes = draw.rng.choice((4, 8))
    return Case((f"pcie_wired width={lanes}",), variables={"gpuprov_pcie_width": lanes})


def _link_down(draw: Draw) -> Case:
    gpu, links = draw.gpu(), draw.rng.sample(range(LINKS[draw.sku]), draw.rng.randint(1, 4))
    faults = tuple(f"nvlink_down gpu={gpu} link={link}" for link in links)
    return Case(faults, Expected((f"gpu{gpu}",), RESET, also=("node",)))


def _link_errors(draw: Draw) -> Case:
    if draw.severity >= 1_000 and draw.rng.random() < 0.3:
        gpu, code = draw.gpu(), draw.rng.choice((74, 149))
        return Case((f"xid gpu={gpu} code={code}",), Expected((f"gpu{gpu}",), RESET))
    gpu, link = draw.gpu(), draw.rng.randrange(LINKS[draw.sku])
    fault = f"nvlink_errors gpu={gpu} link={link} count={round(draw.severity)}"
    return Case((fault,), Expected((f"gpu{gpu}",), (*RESET, "investigate", "watch")))


def _old_link_errors(draw: Draw) -> Case:
    gpu, link = draw.gpu(), draw.rng.randrange(LINKS[draw.sku])
    return Case((f"nvlink_errors_old gpu={gpu} link={link} count={draw.rng.randint(1, 20)}",))


def _fabric(draw: Draw) -> Case:
    devices = ("node", *(f"gpu{gpu}" for gpu in range(GPUS)))
    expected = Expected(devices, ("fix configuration", "investigate", "reboot"))
    if draw.rng.random() < 0.5:
        return Case(("fabric_down",), expected)
    return Case((), expected, machine={"fabric": False})


def _other_manager(draw: Draw) -> Case:
    # An old manager exits as soon as it starts; if one is still running, it exits at the next reboot.
    version = draw.rng.choice(("580.95.05", "570.172.08", "590.48.01"))
    machine = {"manager": f"{version}-1", "fabric": draw.rng.random() < 0.5}
    expected = Expected(("node",), ("fix configuration", "reboot"))
    return Case((), expected, machine=machine)


def _packaged_again(draw: Draw) -> Case:
    release = draw.rng.choice(("2", "1ubuntu1", "0lambda0.22.04.1"))
    return Case(machine={"manager": f"{DRIVER}-{release}"})


def _no_imex(draw: Draw) -> Case:
    """Draw an IMEX that is stopped, or exits at startup because its version is not the driver's."""
    how = draw.rng.choice(("stopped", "failed", "other version"))
    version = draw.rng.choice(("580.95.05", "570.195.03", "590.44.01"))
    machine = {
        "stopped": {"imex": "inactive"},
        "failed": {"imex": "failed"},
        "other version": {"manager": f"{version}-1", "imex": draw.rng.choice(("failed", "active"))},
    }[how]
    expected = Expected(("node",), ("fix configuration",))
    return Case((), expected, machine=machine)


def _idle_tray(draw: Draw) -> Case:
    """Draw a healthy tray of an idle rack with an IMEX domain that reports itself as unhealthy.
    A tray itself only has to run the daemon, in the driver's version."""
    return Case(machine={"manager": f"{DRIVER}-{draw.rng.choice(('1', '2'))}"})


_gpu_missing = planted("gpu_missing gpu={gpu}", ("node", "slot {gpu}"), HANDS, also=NODE)
_off_the_bus = planted("gpu_off_bus gpu={gpu}", ("gpu{gpu}", "slot {gpu}"), RESET, also=NODE)
_width = planted("pcie_width gpu={gpu} width={width}", GPU, HANDS, also=NODE, width=(1, 2, 4, 8))
_replays = planted("pcie_replays gpu={gpu} count={severity}", GPU, (*HANDS, "watch"))
_storm = planted(
    "aer_storm gpu={gpu} count={count}", GPU, (*HANDS, "watch"), FAIL_OR_WARN, count=range(60, 5_001)
)
_old_aer = planted("aer_old gpu={gpu} count={count}", count=range(1, 9))
_old_replays = planted("pcie_replays_old gpu={gpu} count={severity}")
_host_copies = planted("h2d_slow gpu={gpu} factor={rest}", GPU, HANDS, also=NODE)
_link_storm = planted("nvlink_storm code={code}", NODE, (*RESET, *LOOK), code=(74, 145, 149))
_collective = planted("collective_slow factor={rest}", NODE, LOOK)
_pair = planted("slow_pair a={a} b={b} factor={rest}", PAIR, RESET, also=NODE)
_no_access = planted("pair_disabled a={a} b={b}", PAIR, RESET, also=NODE)
_unhealthy_fabric = planted(
    "fabric_unhealthy gpu={gpu} what={what}",
    GPU,
    (*RESET, "fix configuration", "investigate"),
    what=("bandwidth", "route", "timeout", "configuration"),
)

ENTRIES = (
    Entry(1, "GPU missing", _gpu_missing),
    Entry(2, "GPU off the bus", _off_the_bus),
    Entry(2, "old Xid, before the last boot", _old_xid, trap=True),
    Entry(3, "PCIe width degraded", _width),
    Entry(3, "slots wired with fewer lanes", _wired, skus=("l40s",), trap=True),
    Entry(4, "PCIe generation degraded", _generation),
    Entry(5, "PCIe replay or AER storm", _replays, "replays", (10_000, 1_000_000), (100, 100_000)),
    Entry(5, "a few replays over a lifetime", _old_replays, "replays", (1, 99), trap=True),
    Entry(5, "PCIe errors in the kernel log", _storm, variant="a"),
    Entry(5, "a few PCIe errors in the log", _old_aer, trap=True, variant="a"),
    Entry(1, "SKU with fewer GPUs", lambda _: Case(), skus=("a100-pcie-80",), trap=True),
    Entry(6, "host memory of the other socket slower", lambda _: Case(("numa_remote",)), trap=True),
    Entry(6, "host-device copies slow", _host_copies, "slowdown", (0.3, 0.9), (0.02, 0.4)),
    Entry(7, "NVLink down", _link_down, skus=FABRIC),
    Entry(8, "NVLink errors", _link_errors, "errors", (1_000, 1_000_000), (1, 1_000), skus=FABRIC),
    Entry(8, "NVLink errors of the whole fabric", _link_storm, skus=FABRIC, variant="f"),
    Entry(8, "NVLink errors while links trained", _old_link_errors, skus=FABRIC, trap=True),
    Entry(9, "collective slow", _collective, "slowdown", (0.25, 0.9), (0.01, 0.3), skus=FABRIC),
    Entry(10, "peer pair slow", _pair, "slowdown", (0.3, 0.9), (0.02, 0.4), skus=FABRIC),
    Entry(10, "peer access missing", _no_access, skus=FABRIC, variant="d"),
    Entry(11, "fabric manager not running", _fabric, skus=FABRIC),
    Entry(
        11,
        "GPU joined the fabric unhealthy",
        _unhealthy_fabric,
        skus=("h100-sxm", "h200-sxm", "b200"),
        variant="u",
    ),
    Entry(12, "fabric manager and driver differ", _other_manager, skus=FABRIC),
    Entry(12, "another package release of one version", _packaged_again, skus=FABRIC, trap=True),
    Entry(13, "IMEX not ready", _no_imex, skus=IMEX),
    Entry(13, "a tray whose rack runs nothing", _idle_tray, skus=IMEX, trap=True),
)
