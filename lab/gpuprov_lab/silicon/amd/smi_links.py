"""amd-smi's output on the links between GPUs: `topology` and `xgmi`. Sources of the forms: smi.py."""

from amd import readings
from amd.smi_values import unit

BY_GPU = (7, 1)  # since this release `xgmi -l` lists the states of links by GPU


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
        {"gpu": i, "bdf": gpu["address"], "link_status": _link_status(node, gpu, gpus, release)}
        for i, gpu in enumerate(gpus)
    ]
    metrics = [
        {"gpu": i, "bdf": gpu["address"], "link_metrics": _link_metrics(node, gpu, gpus)}
        for i, gpu in enumerate(gpus)
    ]
    if "-l" in words or "--link-status" in words:
        return {"link_status": status} if release >= (6, 4) else status
    return {"xgmi_metric": metrics} if release >= (6, 4) else metrics


def _link_status(node, gpu, gpus, release) -> list:
    """Return the state of each link in order: up, down, or disabled; the firmware of MI200s reports none.

    There are as many entries as GPUs, whatever the number of links (amdsmi_get_gpu_xgmi_link_status), in the
    form of AMD's changelog, `GPU0   0000:08:00.0  U  U  U  U  D  U  D  X`. Since 7.1 there is an entry for
    each GPU of the node, SELF included: `U/U` for two links, N/A without a link
    (projects/amdsmi/amdsmi_cli/subcommands/xgmi.py of ROCm/rocm-systems)."""
    places = min(len(gpus), 8)
    states = readings.link_states(node, gpu) if node.sku["violations"] else []
    if release < BY_GPU:
        if not states:
            return ["N/A"] * len(gpus)
        return [state for _, state in states[:places]] + ["X"] * (places - len(states))
    shown = []
    for other in gpus:
        # The library does not know links beyond the last entry of its list.
        letters = [state for number, (to, state) in enumerate(states) if to is other and number < places]
        shown.append("SELF" if other is gpu else "/".join(letters) or "N/A")
    return shown


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
