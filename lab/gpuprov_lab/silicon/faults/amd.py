"""The faults of AMD GPUs, and the other faults that their simulator supports; see catalogue.py."""

from amd.driver_log import EVENTS
from amd.products import BLOCKS

from faults import host as faults_host
from faults import network as faults_network
from faults.parameters import choice, factor, gpu, number, telling

KINDS = {"ue": "uncorrectable", "de": "deferred", "ce": "corrected"}

# id -> (meaning, parameters)
FAULTS = {
    "ras_errors": (
        "AMD: a block of a GPU counts errors since the driver was loaded",
        [
            gpu(),
            telling(choice("block", "umc", BLOCKS, "which; umc is the memory")),
            telling(choice("kind", "ue", list(KINDS), "ue uncorrectable, de deferred, ce corrected")),
            number("count", 1, 1, 10**6, "errors"),
        ],
    ),
    "bad_pages": (
        "AMD: pages of a GPU's memory were found bad",
        [
            gpu(),
            telling(
                choice("state", "pending", ["pending", "unreservable", "reserved"], "what became of them")
            ),
            number("count", 1, 1, 4096, "pages"),
        ],
    ),
    "xgmi_down": (
        "AMD: an xGMI link between two GPUs is down",
        [
            gpu("one", "a"),
            gpu("other", "b"),
            choice("since", "later", ["later", "boot"], "boot: it did not train, and is in no topology"),
        ],
    ),
    "two_way_slow": (
        "AMD: two GPUs copy to each other more slowly when both copy at once",
        [gpu("one", "a"), gpu("other", "b"), factor(0.6)],
    ),
    "all_to_all_slow": (
        "AMD: copies are slow while every GPU copies to every other",
        [factor(0.6)],
    ),
    "two_way_once": (
        "look-alike: AMD: two GPUs are slow once of the two times that both copy at once",
        [gpu("one", "a"), gpu("other", "b")],
    ),
    "pcie_fatal": ("AMD: a GPU's PCIe status has a fatal error", [gpu()]),
    "pcie_unsupported": (
        "look-alike: AMD: a GPU's PCIe status has corrected errors and unsupported requests",
        [gpu()],
    ),
    "power_short": ("AMD: a GPU does not reach its limit of power", [gpu(), factor(0.8)]),
    "memory_pattern": (
        "AMD: a GPU's memory does not hold what a test of RVS's module mem writes",
        [gpu(), number("test", 3, 1, 11, "which test; the first prints PASS whatever it found")],
    ),
    "gpu_reset": (
        "AMD: the driver reset a GPU",
        [gpu(), choice("result", "succeeded", ["succeeded", "failed"], "how it ended")],
    ),
    "gpu_resetting": ("AMD: a GPU is being reset: its error counters cannot be read", [gpu()]),
    "gpu_event": (
        "AMD: a line of the driver in the kernel log",
        [gpu(), telling(choice("event", "ring_timeout", list(EVENTS), "which"))],
    ),
    "partition_mode": (
        "AMD: a GPU is partitioned, its peers are not",
        [gpu(), choice("mode", "CPX", ["CPX", "QPX", "DPX"], "how")],
    ),
    "partition_site": (
        "look-alike: AMD: the site partitions every GPU",
        [choice("mode", "CPX", ["CPX", "QPX", "DPX"], "how")],
    ),
    "guest": (
        "look-alike: AMD: the node is a guest of a hypervisor, its GPUs are virtual functions (SR-IOV)",
        [],
    ),
    "bridges": (
        "look-alike: AMD: bridges join so many cards each, not four as usual",
        [choice("cards", 2, [1, 2], "1: there are none")],
    ),
    "ras_corrected_few": (
        "look-alike: AMD: a few corrected memory errors since the driver was loaded",
        [gpu(), number("count", 3, 1, 20, "errors")],
    ),
    "bad_pages_few": (
        "look-alike: AMD: a few pages of memory that were taken out of use long ago",
        [gpu(), number("count", 2, 1, 8, "pages")],
    ),
}
# General GPU faults that are also simulated for AMD.
_SHARED = (
    *("gpu_missing", "gpu_swapped", "vbios", "gpu_off_bus", "gpu_off_bus_at_boot", "memory_small", "hot_gpu"),
    *("throttle", "pcie_width", "pcie_gen", "pcie_replays", "pcie_replays_old", "pcie_wired", "aer_storm"),
    *("aer_old", "power_limit", "power_cap_site", "airflow_gradient", "ecc_uncorrectable", "acs_on"),
    *("burn_errors", "burn_dies", "gpu_slow", "power_cap_brief"),
    *("h2d_slow", "slow_pair", "memory_slow", "collective_slow", "alltoall_slow", "wrong_result"),
    *("nic_slow", "gpudirect_slow", "gpudirect_off", "one_queue_pair_slow", "perftest_without_cuda"),
    *("nccl_tests_without_mpi",),
    *("tool_hang", "tool_garbage", "tool_truncated", "tool_missing", "tool_slow"),
)
SHOWN = frozenset({*FAULTS, *_SHARED, *faults_host.FAULTS, *faults_network.FAULTS}) - {
    "gpudirect_absent", "library_empty"
}  # fmt: skip


def refusal(name: str, vendor: str, sku: str) -> str:
    """Return why a node with these GPUs cannot have the fault; empty if it can."""
    if name == "bridges" and sku != "mi210":
        return f"{name}: only cards (mi210) are joined by bridges"
    if name == "guest" and sku not in ("mi300x", "mi355x"):
        return f"{name}: the lab knows the virtual functions of mi300x and mi355x"
    if vendor == "amd" and name not in SHOWN:
        return f"{name}: the lab does not simulate it for AMD's GPUs"
    if vendor != "amd" and name in FAULTS:
        return f"{name}: it is a fault of AMD's GPUs"
    return ""
