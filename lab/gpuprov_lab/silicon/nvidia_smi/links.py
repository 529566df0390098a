"""nvidia-smi topo and nvidia-smi nvlink. Tabs, escape codes and trailing blanks as printed by 550."""

import noise
from settings import Settings

BAD_ARGUMENT = 2
_LEGEND = """\

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""
_P2P_LEGEND = """\

Legend:

  X    = Self
  OK   = Status Ok
  CNS  = Chipset not supported
  GNS  = GPU not supported
  TNS  = Topology not supported
  NS   = Not supported
  U    = Unknown
"""


def run(node, action: str, words: list) -> int:
    """Run `topo …` or `nvlink …` and return the exit status."""
    gpus = [(i, gpu) for i, gpu in enumerate(node.present()) if not node.lost(gpu)]
    if action == "topo":
        if words in (["-m"], ["--matrix"]):
            return _matrix(node, gpus)
        if (
            words[:1] in (["-p2p"], ["--p2p_status"])
            and len(words) == 2
            and words[1] in ("r", "w", "n", "a", "p", "rw")
        ):
            return _p2p(node, gpus, words[1])
    else:
        if "-i" in words[:-1]:
            at = words.index("-i")
            gpus = [(i, gpu) for i, gpu in gpus if words[at + 1] in (str(i), gpu["uuid"])]
            words = words[:at] + words[at + 2 :]
        if words in (["-s"], ["--status"]):
            return _status(node, gpus)
        if words in (["-e"], ["--errorcounters"]):
            return _errors(node, gpus)
    print(f"Invalid combination of input arguments. Please run 'nvidia-smi {action} -h' for help.\n")
    return BAD_ARGUMENT


def relation(node, one, other) -> str:
    """Return the connection of two GPUs in topo -m's notation."""
    links = node.linked(one["slot"], other["slot"])
    if links:
        return f"NV{links}"
    if one["numa"] != other["numa"]:
        return "SYS"
    return "PIX" if one["slot"] // 2 == other["slot"] // 2 and not node.sku["links"] else "NODE"


def _matrix(node, gpus) -> int:
    names = "\t".join(f"GPU{i}" for i, _ in gpus)
    print(f"\t\x1b[4m{names}\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m")
    for i, gpu in gpus:
        cells = [" X " if gpu is other else relation(node, gpu, other) for _, other in gpus]
        print("\t".join([f"GPU{i}", *cells, gpu["cpus"], str(gpu["numa"])]) + "\t\tN/A")
    print(_LEGEND, end="")
    return 0


def _p2p(node, gpus, kind: str) -> int:
    names = "\t".join(f"GPU{i}" for i, _ in gpus)
    print(f" \t\x1b[4m{names}\t\x1b[0m")
    for i, gpu in gpus:
        cells = ["X" if gpu is other else _capability(node, gpu, other, kind) for _, other in gpus]
        print("\t".join([f" GPU{i}", *cells]) + "\t")
    print(_P2P_LEGEND, end="")
    return 0


def reachable(node, one, other) -> bool:
    """Whether one GPU can read the other's memory."""
    a, b = sorted([one["slot"], other["slot"]])
    return not node.fault("pair_disabled", a=a, b=b)


def _capability(node, one, other, kind: str) -> str:
    if not reachable(node, one, other):
        return "NS"
    if kind in ("n", "a") and not node.linked(one["slot"], other["slot"]):
        return "NS"
    return "OK"


def _head(node, i: int, gpu) -> None:
    print(f"GPU {i}: {node.sku['name']} (UUID: {gpu['uuid']})")


def _status(node, gpus) -> int:
    branch = int((node.driver() or ("0",))[0].split(".")[0])
    for i, gpu in gpus:
        if not node.sku["links"]:
            if branch >= 595:  # observed with 595 on an L40S; older drivers printed nothing
                _head(node, i, gpu)
                print("Device does not have or support Nvlink")
            continue
        _head(node, i, gpu)
        if branch >= 590 and Settings(node).of(gpu)["mig"]:  # observed with 590 on an H100 and an H200
            print("Nvlink queries are not supported for Devices in MIG mode")
            continue
        down = _down(node, gpu)
        if len(down) == node.sku["links"]:
            print("NVML: Unable to retrieve NVLink information as all links are inActive")
            continue
        for link in range(node.sku["links"]):
            print(f"\t Link {link}: " + ("<inactive>" if link in down else f"{node.sku['link_speed']} GB/s"))
    return 0


def _errors(node, gpus) -> int:
    old = int((node.driver() or ("0",))[0].split(".")[0]) <= 470
    for i, gpu in gpus:
        if not node.sku["links"]:
            continue
        _head(node, i, gpu)
        for link in range(node.sku["links"]):
            if link in _down(node, gpu):
                continue
            count, trained = (
                node.given(name, "count", 0, gpu=gpu["slot"], link=link)
                for name in ("nvlink_errors", "nvlink_errors_old")
            )
            names = _new_names if node.sku["fabric"] in ("nvlink5", "imex") else _old_names
            for name, value in names(node, gpu, link, count, trained):
                print(
                    f"\t Link {link}: {value} {_NAMES_470[name]}"
                    if old
                    else f"\t Link {link}: {name}: {value}"
                )
            print()
    return 0


# Strings of nvidia-smi 470.256.02.
_NAMES_470 = {
    "Replay Errors": "replay errors",
    "Recovery Errors": "recovery errors",
    "CRC Errors": "flit CRC errors",
}


def _old_names(node, gpu, link: int, count: int, trained: int) -> list:
    """Return the counters up to NVLink 4."""
    del node, gpu, link
    return [("Replay Errors", count), ("Recovery Errors", count // 100), ("CRC Errors", count + trained)]


def _new_names(node, gpu, link: int, count: int, trained: int) -> list:
    """Return NVLink 5's counters by driver 595's names; bucket 0 of the FEC counts error-free blocks."""
    passed = int(1e9 * (1 + 40 * noise.fraction(node.seed, gpu["uuid"], link)))
    names = [
        ("Tx packets", passed),
        ("Tx bytes", passed * 48),
        ("Rx packets", passed),
        ("Rx bytes", passed * 48),
    ]
    names += [(name, 0) for name in ("Malformed packet Errors", "Buffer overrun Errors")]
    remote = node.given("nvlink_remote", "count", 0, gpu=gpu["slot"], link=link)
    names += [("Rx Errors", count), ("Rx remote Errors", remote), ("Rx General Errors", 0)]
    names += [("Local link integrity Errors", count), ("Tx discards", remote)]
    again = node.given("nvlink_recovered", "count", 0, gpu=gpu["slot"], link=link)
    failed = count // 100
    names += [("Link recovery successful events", again), ("Link recovery failed events", failed)]
    names += [("Total link recovery events", again + failed), ("Effective Errors", count)]
    names += [("Effective BER", "15e-255"), ("Symbol Errors", count + trained), ("Symbol BER", "15e-255")]
    # Counted before any correction: a healthy B300 had such values after boot (595.91.07).
    names += [("Raw BER Lane 0", 2061), ("Raw BER Lane 1", 1038), ("Raw BER Total", 1037)]
    names += [("Raw Errors Lane 0", 82), ("Raw Errors Lane 1", 4)]
    return names + [(f"FEC Errors - {bucket}", passed if bucket == 0 else 0) for bucket in range(16)]


def _down(node, gpu) -> set:
    return {one["link"] for one in node.faults if one["id"] == "nvlink_down" and one["gpu"] == gpu["slot"]}
