"""The faults of the machine around the GPUs; see catalogue.py."""

import host_lines

from faults.parameters import REQUIRED, choice, number, telling

DRIVES, MODULES = 4, 16


def drive():
    return number("drive", REQUIRED, 0, DRIVES - 1, "which NVMe drive")


def module():
    return number("module", REQUIRED, 0, MODULES - 1, "which memory module, over all controllers")


# id -> (meaning, parameters)
FAULTS = {
    "memlock_small": ("sessions may lock little memory", [number("kib", 8192, 64, 10**8, "in KiB")]),
    "iommu_translated": ("the IOMMU translates the addresses of GPUs and cards", []),
    "governor": (
        "the processors' frequency follows their load",
        [
            choice(
                "name", "powersave", ["powersave", "ondemand", "schedutil", "conservative"], "which governor"
            )
        ],
    ),
    "memory_errors": (
        "a memory module has errors",
        [
            module(),
            telling(choice("kind", "uncorrected", ["uncorrected", "corrected"], "of which kind")),
            number("count", 1, 1, 10**9, "since boot"),
        ],
    ),
    "memory_module_missing": ("the firmware does not find a memory module", [module()]),
    "cpus_offline": (
        "hardware threads are offline, or SMT is off",
        [number("count", 1, 1, 512, "how many; one always stays")],
    ),
    "nvme_missing": ("an NVMe drive is not there", [drive()]),
    "nvme_dead": ("the kernel gave an NVMe drive up", [drive()]),
    "nvme_worn": ("an NVMe drive has used up its life", [drive(), number("percent", 112, 100, 255, "of it")]),
    "nvme_warning": (
        "an NVMe drive warns of itself",
        [
            drive(),
            choice("of", "reliability", ["spare", "temperature", "reliability", "read_only"], "of what"),
        ],
    ),
    "clock_unsynchronised": ("nobody keeps the clock", []),
    "gpudirect_absent": ("the driver is of the kind without DMA-BUF, and nvidia_peermem is not loaded", []),
    "library_empty": (
        "a library of the driver is an empty file, as a broken download or a full disk leaves it",
        [telling(choice("name", "libnvidia-ml", ["libnvidia-ml", "libcuda"], "which"))],
    ),
    "container_broken": (
        "containers do not get the GPUs",
        [choice("how", "refused", ["refused", "none", "some"], "what is seen")],
    ),
    "host_line": (
        "the kernel logs trouble of the machine",
        [choice("kind", REQUIRED, host_lines.KINDS["trouble"], "what of")],
    ),
    "host_line_harmless": (
        "look-alike: the kernel logs what a healthy machine has",
        [choice("kind", REQUIRED, host_lines.KINDS["harmless"], "what of")],
    ),
    "virtual_machine": ("look-alike: a guest, which needs access control and a translating IOMMU", []),
    "fresh_boot": (
        "look-alike: booted a moment ago, the clock is not kept yet",
        [number("seconds", 200, 20, 900, "since boot")],
    ),
    "long_uptime": (
        "look-alike: booted long ago",
        [number("days", 52, 2, 4000, "since boot")],
    ),
    "memory_corrected_few": (
        "look-alike: a memory module had a corrected error now and then",
        [module(), number("count", 4, 1, 9, "since boot")],
    ),
}
