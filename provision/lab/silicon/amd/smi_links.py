"""What amd-smi says of the links between GPUs: `topology` and `xgmi`. Sources of the forms: smi.py."""

from amd import readings
from amd.smi_values import unit


def topology(node, gpus, words, release) -> list:  # noqa: ARG001 - the shape of all commands
    found = []
    for index, gpu in enumerate(gpus):
        rows = []
        for number, other in enumerate(gpus):
            self, joined = gpu is other, readings.links(node, gpu)[other["slot"]]
            near = gpu["numa"] == other["numa"]
            hops = 0 if self else 1 if joined else 2 if near else 3
            rows.append(
                {
                    "gpu": number,
                    "bdf": other["address"],
                    "weight": 0 if self else 15 if joined else 40 if near else 72,
                    "link_status": "ENABLED",
                    "link_type": "SELF" if self else "XGMI" if joined else "PCIE",
                    "num_hops": hops,
                    "bandwidth": "N/A" if self or not joined else f"{50000 * joined}-{50000 * joined}",
                    "coherent": "SELF" if self else "NC",
                    "atomics": "SELF" if self else "64,32",
                    "dma": "SELF" if self else "T",
                    "bi_dir": "SELF" if self else "T",
                }
            )
        found.append({"gpu": index, "bdf": gpu["address"], "links": rows})
    return found


def xgmi(node, gpus, words, release) -> object:
    status = [
        {"gpu": i, "bdf": gpu["address"], "link_status": _link_status(node, gpu, gpus)}
        for i, gpu in enumerate(gpus)
    ]
    metrics = [
        {"gpu": i, "bdf": gpu["address"], "link_metrics": _link_metrics(node, gpu, gpus)}
        for i, gpu in enumerate(gpus)
    ]
    if "-l" in words or "--link-status" in words:
        return {"link_status": status} if release >= (6, 4) else status
    return {"xgmi_metric": metrics} if release >= (6, 4) else metrics


def _link_status(node, gpu, gpus) -> list:
    """Of each of eight links: up, down, or disabled; the firmware of MI200s does not say. The form is that of
    AMD's changelog, `GPU0   0000:08:00.0  U  U  U  U  D  U  D  X`."""
    if not node.sku["violations"]:
        return ["N/A"] * len(gpus)
    states = readings.link_states(node, gpu)
    return states + ["X"] * (8 - len(states))


def _link_metrics(node, gpu, gpus) -> dict:
    rows = []
    for other in gpus:
        moved = "N/A" if other is gpu or not node.sku["violations"] else 0
        rows.append({"gpu": gpus.index(other), "bdf": other["address"], "read": unit(moved, "KB"),
                     "write": unit(moved, "KB")})  # fmt: skip
    rate = node.sku["link_gbits"]
    return {
        "bit_rate": unit(rate, "Gb/s"),
        "max_bandwidth": unit(rate * 16, "Gb/s"),
        "link_type": "XGMI",
        "links": rows,
    }
