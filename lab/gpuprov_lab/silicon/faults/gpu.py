"""The faults of GPUs and of the tools that report on them; see catalogue.py."""

import fabric_log

from faults.parameters import REQUIRED, YES_NO, choice, factor, gpu, number, onset, telling, text, tool

# id -> (meaning, parameters)
FAULTS = {
    "burn_errors": (
        "wrong results in gpu_burn: FAULTY, exit 0",
        [gpu(), number("errors", 3, 1, 10**9, "per report"), onset()],
    ),
    "burn_dies": ("a GPU's gpu_burn process dies", [gpu(), onset()]),
    "gpu_slow": ("a GPU computes slowly", [gpu(), factor(0.7), onset()]),
    "acs_on": ("the firmware leaves PCI access control on in the bridges above the GPUs", []),
    "gpu_missing": ("a GPU is not on the PCI bus", [gpu()]),
    "gpu_swapped": ("another GPU of the same kind is in the slot", [gpu()]),
    "vbios": (
        "a GPU has another VBIOS than its kind left the factory with",
        [gpu(), text("version", "96.00.10.00.99", "as nvidia-smi prints it")],
    ),
    "gpu_off_bus": ("a GPU fell off the bus after boot: Xid 79", [gpu(), onset()]),
    "gpu_off_bus_at_boot": (
        "a GPU is on the PCI bus and does not answer the driver that is loaded: no Xid, and no such GPU",
        [gpu()],
    ),
    "gpu_silent": (
        "a GPU stops answering the driver: it is still listed, with an error in place of its readings",
        [
            gpu(),
            choice(
                "error",
                "GPU is lost",
                ["GPU is lost", "Unknown Error", "GPU requires reset"],
                "what the driver answers",
            ),
            onset(),
        ],
    ),
    "memory_small": ("a GPU reports less memory", [gpu(), number("mib", 40960, 1024, 10**6, "total in MiB")]),
    "hot_gpu": ("a GPU runs hotter", [gpu(), number("degrees", 15, 1, 60, "above its peers, in C"), onset()]),
    "throttle": (
        "a GPU's clocks are held down under load",
        [
            gpu(),
            choice("reason", "hw_thermal", ["hw_thermal", "hw_power_brake", "sw_thermal"], "by what"),
            factor(0.6),
            onset(),
        ],
    ),
    "slow_pair": (
        "copies between two GPUs are slow, both ways",
        [gpu("one of the pair", "a"), gpu("the other", "b"), factor(0.4)],
    ),
    "pair_disabled": ("two GPUs cannot reach each other's memory", [gpu("one", "a"), gpu("other", "b")]),
    "nvlink_down": ("an NVLink is inactive", [gpu(), number("link", REQUIRED, 0, 17, "which link")]),
    "nvlink_errors": (
        "an NVLink counts errors",
        [
            gpu(),
            number("link", REQUIRED, 0, 17, "which link"),
            number("count", 1234, 1, 10**9, "of each kind"),
        ],
    ),
    "nvlink_recovered": (
        "an NVLink 5 trained again, with success",
        [gpu(), number("link", REQUIRED, 0, 17, "which link"), number("count", 1, 1, 10**9, "how often")],
    ),
    "nvlink_remote": (
        "an NVLink 5 counts errors of its other end, and discards what it had to send",
        [
            gpu(),
            number("link", REQUIRED, 0, 17, "which link"),
            number("count", 1234, 1, 10**9, "of each kind"),
        ],
    ),
    "collective_slow": ("collectives are slow and no GPU or pair is", [factor(0.7)]),
    "wrong_result": ("collectives return wrong elements", [number("count", 16, 1, 10**9, "#wrong per size")]),
    "h2d_slow": ("copies between host and a GPU are slow", [gpu(), factor(0.4)]),
    "pcie_width": (
        "a GPU's PCIe link trained narrow",
        [gpu(), choice("width", 8, [1, 2, 4, 8], "lanes"), onset()],
    ),
    "pcie_gen": (
        "a GPU's PCIe link is slow under load, too",
        [gpu(), number("gen", 3, 1, 5, "generation"), onset()],
    ),
    "pcie_replays": (
        "a GPU's PCIe link repeats itself, and goes on to",
        [
            gpu(),
            number("count", 52341, 1, 10**9, "replays: so many at once, and so many more each minute"),
            onset(),
        ],
    ),
    "ecc_uncorrectable": (
        "uncorrectable memory errors since boot: Xid 48",
        [gpu(), number("count", 1, 1, 10**6, "errors"), onset()],
    ),
    "row_remap_pending": ("a row waits for a reset to be remapped: Xid 63", [gpu()]),
    "row_remap_failure": ("a row could not be remapped: Xid 64", [gpu()]),
    "xid": (
        "a line in the kernel log",
        [
            gpu(),
            number("code", REQUIRED, 1, 999, "Xid"),
            text("text", "", "what follows it; a usual text without"),
            text("instance", "", "of a MIG, as the driver writes it: GPU-I:05 or GPU-I:01 GPU-CI:02"),
            choice("once", "no", YES_NO, "yes: not again after the next boot"),
            onset(),
        ],
    ),
    "fabric_down": ("the fabric stays In Progress although fabric manager runs", []),
    "fabric_line": (
        "fabric manager or IMEX logs trouble",
        [choice("kind", REQUIRED, fabric_log.KINDS["trouble"], "what of")],
    ),
    "fabric_line_harmless": (
        "look-alike: fabric manager or IMEX logs what a healthy machine has",
        [choice("kind", REQUIRED, fabric_log.KINDS["harmless"], "what of")],
    ),
    "tool_hang": (
        "a program never returns",
        [*tool(), choice("stubborn", "no", YES_NO, "yes: ignores TERM")],
    ),
    "tool_garbage": ("a program prints garbage and exits 0", tool()),
    "tool_truncated": (
        "a program's output ends early",
        [*tool(), number("percent", 60, 0, 99, "what is left")],
    ),
    "tool_missing": ("a program cannot be started: exit 127", tool()),
    "ecc_aggregate_old": (
        "look-alike: corrected errors of the past, none since boot",
        [gpu(), number("count", 41, 1, 10**6, "errors")],
    ),
    "remapped_clean": (
        "look-alike: rows remapped long ago, none pending",
        [gpu(), number("rows", 2, 1, 10, "rows")],
    ),
    "pcie_replays_old": (
        "look-alike: a few replays over a lifetime",
        [gpu(), number("count", 7, 1, 99, "replays")],
    ),
    "aer_storm": (
        "the kernel logs corrected PCIe errors of a GPU, again and again",
        [gpu(), number("count", 120, 1, 10**4, "a minute, for the last minute"), onset()],
    ),
    "remapped_many": (
        "rows remapped for correctable errors, none pending: memory that wears out",
        [gpu(), number("rows", 24, 1, 512, "rows")],
    ),
    "remap_banks_used": (
        "memory banks with few or no spare rows left",
        [
            gpu(),
            number("low", 1, 0, 64, "banks with few"),
            number("none", 0, 0, 64, "banks without any"),
        ],
    ),
    "sram_threshold": (
        "uncorrectable SRAM errors over NVIDIA's limit",
        [gpu(), number("count", 12, 1, 10**6, "errors over its life")],
    ),
    "power_limit": (
        "a GPU's power limit was lowered",
        [gpu(), number("percent", 60, 20, 99, "of what is usual for its kind")],
    ),
    "gpu_process": (
        "a process was left on a GPU",
        [
            gpu(),
            telling(number("pid", 31337, 2, 4194304, "its id")),
            text("name", "/usr/bin/python3", "its program"),
            number("mib", 4096, 1, 10**6, "of the GPU's memory, in MiB"),
        ],
    ),
    "gpu_mode": (
        "a GPU's mode was changed",
        [gpu(), choice("mode", REQUIRED, ["ecc_off", "exclusive", "persistence_off"], "to what")],
    ),
    "fabric_unhealthy": (
        "a GPU joined the NVLink fabric with less than its bandwidth",
        [gpu(), choice("what", "bandwidth", ["bandwidth", "route", "timeout", "configuration"], "in what")],
    ),
    "fabric_failed": (
        "a GPU could not join the NVLink fabric",
        [gpu(), text("status", "Unknown Error", "as nvidia-smi prints it")],
    ),
    "recovery_action": (
        "the driver requests an action to recover a GPU",
        [
            gpu(),
            choice(
                "action",
                REQUIRED,
                ["Reset", "Reboot", "Drain P2P", "Drain and Reset", "Recover IMEX Domain"],
                "which one (the last from driver 595 on)",
            ),
        ],
    ),
    "nvlink_domain": (
        "a tray of an NVL72 is not in its rack's NVLink domain",
        [choice("what", "none", ["none", "clique", "cluster"], "in no domain, or another clique or cluster")],
    ),
    "nvl72_rack": (
        "look-alike: a tray of an NVL72 is in another rack, whose NVLink domain has the same clique",
        [number("number", 2, 2, 99, "which rack; a tray without this is in rack 1")],
    ),
    "xid_incident": (
        "an Xid with all that it brings along, and the driver's verdict",
        [gpu(), number("code", REQUIRED, 1, 999, "the Xid it begins with"), onset()],
    ),
    "nvlink_storm": (
        "NVLink errors of every GPU at once, and of a switch: the fabric's",
        [choice("code", 74, [74, 145, 149], "which Xid"), onset()],
    ),
    "tool_slow": ("a program takes long to answer", [*tool(), number("seconds", 40, 1, 3600, "longer")]),
    "slow_first_call": (
        "look-alike: without persistence mode the driver is loaded for each call of nvidia-smi",
        [number("seconds", 8, 1, 20, "longer")],
    ),
    "power_cap_site": (
        "look-alike: the site caps the power of every GPU",
        [number("percent", 80, 20, 99, "of what is usual for its kind")],
    ),
    "monitoring_agent": (
        "look-alike: a monitoring agent holds a context on every GPU",
        [choice("name", "nv-hostengine", ["nv-hostengine", "dcgm-exporter", "nvidia-smi"], "which")],
    ),
    "airflow_gradient": (
        "look-alike: GPUs at the warm end of the airflow are hotter",
        [number("degrees", 6, 1, 8, "from the first to the last, in C")],
    ),
    "pcie_wired": (
        "look-alike: the machine is built with narrow slots",
        [choice("width", 8, [4, 8], "lanes")],
    ),
    "nvlink_errors_old": (
        "look-alike: a few errors while the links trained after the reboot",
        [gpu(), number("link", REQUIRED, 0, 17, "which link"), number("count", 5, 1, 20, "of CRC")],
    ),
    "aer_old": (
        "look-alike: a few corrected PCIe errors since boot",
        [gpu(), number("count", 4, 1, 8, "ten minutes apart")],
    ),
    "power_cap_brief": (
        "look-alike: hardware slowdown at the start of a load, for a moment",
        [gpu(), number("seconds", 2, 1, 3, "how long")],
    ),
}
