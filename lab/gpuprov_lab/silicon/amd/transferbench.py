"""TransferBench: the list of devices, the preset p2p in one or both directions, and a2a.

Forms: src/TransferBench.cpp of ROCm/TransferBench at v1.52 (RunPeerToPeerBenchmarks, DisplayTopology,
RunAllToAllBenchmark), and of newer releases Topology.hpp and Presets/PeerToPeer.hpp in src/client, which
print the same matrix and another list; AMD's outputs of eight MI300X and eight MI350X.
"""

import os
import sys

from load import Load, wait

from amd import copies, hip, smi

SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
SECONDS = 0.35  # for each pair: buffers are filled, the copy runs thirteen times and is compared
NEWER = (6, 3)  # the first release of ROCm with the newer list: merely plausible
_LOCAL = 4.0e-9  # CPU seconds for each byte that is filled and compared


def transferbench(node, arguments: list) -> int:
    """Run `TransferBench` without arguments, `p2p [bytes]` or `a2a [bytes]`."""
    if hip.cannot_start(node, "TransferBench", "libamdhip64.so.6"):
        return 127
    if hip.error(node):
        words = hip.NAMES[hip.NO_DEVICE][1]
        print(f"Encountered HIP error ({words}) at line 957 in file TransferBench.cpp", file=sys.stderr)
        return 255
    gpus, newer = hip.devices(node), smi.rocm(node) >= NEWER
    if not arguments:
        print(f"TransferBench v{'1.64.00' if newer else '1.52'}")
        print("========================================")
        print("Usage: TransferBench config <N>\n")
        (_newer_topology if newer else _topology)(node, gpus)
        return 0
    if arguments[0] not in ("p2p", "a2a"):
        print(f"[ERROR] Unable to open transfer configuration file: [{arguments[0]}]")
        return 1
    size = _bytes(arguments[1]) if len(arguments) > 1 else 1 << 26
    if size % 4:
        print(f"[ERROR] numBytesPerTransfer ({size}) must be a multiple of 4")
        return 1
    if arguments[0] == "a2a":
        return _a2a(node, gpus, size)
    return (_both_ways if _number("P2P_MODE", 0) == 2 else _p2p)(node, gpus, size)


def _bytes(text: str) -> int:
    unit = SIZES.get(text[-1:].upper(), 1)
    digits = text[:-1] if unit > 1 else text
    return int(digits) * unit if digits.isdigit() else 0


def _number(name: str, otherwise: int) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else otherwise


def _sockets(node) -> list:
    return sorted({gpu["numa"] for gpu in node.gpus})


# --- the list of devices


def _processors(node, gpus: list) -> None:
    sockets = _sockets(node)
    print(
        "            |" + "".join(f"NUMA {j:02d}|" for j in range(len(sockets))) + " #Cpus | Closest GPU(s)"
    )
    print("------------+" + "-------+" * (len(sockets) + 1) + "---------------")
    for i, socket in enumerate(sockets):
        row = "".join(f" {10 if i == j else 32:5d} |" for j in range(len(sockets)))
        near = ",".join(str(n) for n, gpu in enumerate(gpus) if gpu["numa"] == socket)
        print(f"NUMA {i:02d} ({i:02d})|{row} {node.sku['cpus'] // len(sockets):5d} | {near}")
    print()


def _link(node, one, other) -> str:
    wired = copies.joined(node)[one["slot"]][other["slot"]]
    return "XGMI-1" if wired else "PCIE-2" if one["numa"] == other["numa"] else "PCIE-3"


def _topology(node, gpus: list) -> None:
    count = len(_sockets(node))
    nodes = f"{count} configured CPU NUMA node(s) [{count} total]"
    print(f"\nDetected topology: {nodes}   {len(gpus)} GPU device(s)")
    _processors(node, gpus)
    print("        |" + "".join(f" {node.sku['gfx']:>6} |" for _ in gpus))
    print(
        "        |"
        + "".join(f" GPU {j:02d} |" for j in range(len(gpus)))
        + " PCIe Bus ID  | #CUs | Closest NUMA | DMA engines"
    )
    print("--------+" * (len(gpus) + 1) + "--------------+------+-------------+------------")
    for i, gpu in enumerate(gpus):
        cells = "".join("    -   |" if gpu is other else f" {_link(node, gpu, other)} |" for other in gpus)
        place = f" {gpu['address'].lower():>11} | {node.sku['units']:4d} | {gpu['numa']:<12d} |"
        print(f" GPU {i:02d} |{cells}{place}{','.join(str(one) for one in range(16))}")


def _newer_topology(node, gpus: list) -> None:
    count = len(_sockets(node))
    print("\nDetected Topology:\n==================")
    print(f"  {count} configured CPU NUMA node(s) [{count} total]")
    print(f"  {len(gpus)} GPU device(s)\n  0 Supported NIC device(s)\n")
    _processors(node, gpus)
    print("        |" + "".join(f" {node.sku['gfx']:>6} |" for _ in gpus))
    print(
        "        |"
        + "".join(f" GPU {j:02d} |" for j in range(len(gpus)))
        + " PCIe Bus ID  | #CUs | NUMA | #DMA | #XCC | NIC"
    )
    print("--------+" * (len(gpus) + 1) + "--------------+------+------+------+------+------")
    for i, gpu in enumerate(gpus):
        cells = "".join("    N/A |" if gpu is other else f" {_link(node, gpu, other)} |" for other in gpus)
        place = f" {gpu['address'].lower():<11} | {node.sku['units']:<4d} | {gpu['numa']:<4d}"
        print(f" GPU {i:02d} |{cells}{place} | {16:<4d} | {8:<4d} | {-1:<4d}")


# --- the preset p2p


def _p2p(node, gpus: list, size: int) -> int:
    reads = _number("USE_REMOTE_READ", 0) == 1
    cpus = min(_number("NUM_CPU_DEVICES", 99), len(_sockets(node)))
    print(f"Bytes Per Direction {size}")
    names = [f"CPU {i:02d}" for i in range(cpus)] + [f"GPU {i:02d}" for i in range(len(gpus))]
    parts = [*_sockets(node)[:cpus], *gpus]
    who, what = ("Remote", "Local") if reads else ("Local", "Remote")
    print(f"Unidirectional copy peak bandwidth GB/s [{who} read / {what} write] (GPU-Executor: GFX)")
    head = f"{'SRC' + chr(92) + 'EXE+DST' if reads else 'SRC+EXE' + chr(92) + 'DST':>12}"
    for place, name in enumerate(names):
        head += ("   " if cpus and place == cpus else "") + f"{name[:3]:>7} {name[4:]}"
    print(head)
    sums: dict = {}
    with Load(node, "TransferBench", gpus):
        for i, one in enumerate(parts):
            if i == cpus and i:
                print()
            row = f"{names[i][:3]:>5} {names[i][4:]}  ->"
            for j, other in enumerate(parts):
                wait(node, SECONDS + size * _LOCAL)
                if any(node.lost(part) for part in (one, other) if isinstance(part, dict)):
                    return _fails()
                rate = _rate(node, one, other, reads=reads)
                if i != j:
                    sums.setdefault((i >= cpus, j >= cpus), []).append(rate)
                row += ("   " if cpus and j == cpus else "") + f"{rate:10.2f}"
            print(row, flush=True)
    print(" " * 25 + "".join(f"  {a}PU->{b}PU" for a in "CG" for b in "CG"))
    kinds = [(a, b) for a in (False, True) for b in (False, True)]
    averages = [f"{sum(sums[k]) / len(sums[k]):10.2f}" if k in sums else f"{'N/A':>10}" for k in kinds]
    print(f"Averages (During UniDir):{''.join(averages)}\n")
    return 0


def _both_ways(node, gpus: list, size: int) -> int:
    """Print the bidirectional rates of GPUs only: two rows for each pair, and their sum."""
    print(f"Bytes Per Direction {size}")
    print("Bidirectional copy peak bandwidth GB/s [Local read / Remote write] (GPU-Executor: GFX)")
    print(f"{'SRC' + chr(92) + 'DST':>12}" + "".join(f"    GPU {n:02d}" for n in range(len(gpus))))
    every: list = []
    with Load(node, "TransferBench", gpus):
        for i, one in enumerate(gpus):
            wait(node, SECONDS + size * _LOCAL)
            if any(node.lost(gpu) for gpu in gpus):
                return _fails()
            out = [0.0 if one is other else copies.two_way(node, one, other) / 2 for other in gpus]
            every += [rate for rate in out if rate]
            for arrow, times in ((" ->", 1), ("<- ", 1), ("<->", 2)):
                cells = "".join(f"{times * rate:10.2f}" if rate else f"{'N/A':>10}" for rate in out)
                print(f"  GPU {i:02d} {arrow}{cells}", flush=True)
            if i < len(gpus) - 1:
                print()
    print(" " * 25 + "".join(f"  {a}PU->{b}PU" for a in "CG" for b in "CG"))
    print("Averages (During  BiDir):" + f"{'N/A':>10}" * 3, end="")
    print(f"{sum(every) / len(every):10.2f}\n" if every else f"{'N/A':>10}\n")
    return 0


def _a2a(node, gpus: list, size: int) -> int:
    """Copy between all directly connected pairs at once."""
    rates = {
        (i, j): copies.together(node, one, other)
        for i, one in enumerate(gpus)
        for j, other in enumerate(gpus)
        if one is not other and copies.joined(node)[one["slot"]][other["slot"]]
    }
    print("GPU-GFX All-To-All benchmark:\n==========================")
    pairs = "directly connected pairs of GPUs"
    print(f"- Copying {size} bytes between {pairs} using 8 CUs ({len(rates)} Transfers)")
    if not rates:
        return 0
    with Load(node, "TransferBench", gpus):
        wait(node, SECONDS + len(gpus) * size * _LOCAL)
        if any(node.lost(gpu) for gpu in gpus):
            return _fails()
    print("\nSummary:\n==========================================================")
    columns = range(len(gpus))
    print("SRC\\DST " + "".join(f" GPU {j:02d}    " for j in columns) + "    STotal      Actual")
    for i in columns:
        row = {j: rates[i, j] for j in columns if (i, j) in rates}
        cells = "".join(f" {row[j]:8.3f}  " if j in row else f" {'N/A':>8}  " for j in columns)
        print(f"GPU {i:02d}{cells}    {sum(row.values()):8.3f}    {sum(row.values()) * 0.96:8.3f}")
    received = [sum(rate for (_, to), rate in rates.items() if to == j) for j in columns]
    total = sum(received)
    print("\nRTotal" + "".join(f" {rate:8.3f}  " for rate in received), end="")
    print(f"    {total:8.3f}    {min(received) * 0.96:8.3f}    {max(received) * 0.96:8.3f}\n")
    print(f"Average   bandwidth (GPU Timed): {total / len(rates):8.3f} GB/s")
    print(f"Aggregate bandwidth (GPU Timed): {total:8.3f} GB/s")
    print(f"Aggregate bandwidth (CPU Timed): {total * 0.7:8.3f} GB/s")
    return 0


def _fails() -> int:
    print(
        "Encountered HIP error (unspecified launch failure) at line 1870 in file TransferBench.cpp",
        file=sys.stderr,
    )
    return 255


def _rate(node, one, other, *, reads: bool) -> float:
    """Return GB/s from one device to the other; a CPU is given as its socket number."""
    if not isinstance(one, dict) and not isinstance(other, dict):
        return 42.0 if one == other else 36.0
    if one is other:
        return copies.local(node, one)
    if isinstance(one, dict) and isinstance(other, dict):
        return copies.peer(node, one, other, "read" if reads else "write")
    gpu, processor = (one, other) if isinstance(one, dict) else (other, one)
    to_gpu = gpu is other
    rate = copies.host(node, gpu, "h2d" if to_gpu else "d2h") * (1.0 if gpu["numa"] == processor else 0.99)
    by_processor = to_gpu is not reads
    return rate * 0.76 if by_processor else rate
