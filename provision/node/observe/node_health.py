"""Freshness of the newest result of the node's own health program (gpuprov-node-health)."""

from provision.node.observe.files import ReadError, read_line, read_text
from provision.node.observe.probe import FAMILIES, whole_family

RESULT = "/run/gpuprov/health.json"
LARGEST = 256 * 1024  # bytes
LATE = 3  # intervals after which a result is too old to describe the node
LEAST_LATE = 180  # seconds


def result():
    """Return `fresh`, `stale` (no run for three intervals, or none since boot) or None without a result."""
    import json  # imported here, since most nodes need no such fact
    import time

    text = read_text(RESULT, LARGEST)
    if text is None:
        return None
    try:
        document = json.loads(text)
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - document["uptime"]
        limit = max(LATE * document["interval"], LEAST_LATE)
        same_boot = document["boot_id"] == read_line("/proc/sys/kernel/random/boot_id")
    except (ValueError, KeyError, TypeError) as error:
        raise ReadError("%s is no result of gpuprov-node-health: %s" % (RESULT, error)) from None
    return "fresh" if same_boot and 0 <= age <= limit else "stale"


FAMILIES["node_health"] = whole_family({"result": result})
