"""ib_write_bw of perftest, server and client, in the form of its source (linux-rdma/perftest).

On one node the two find each other through a file in the node's state, on two over TCP (perftest_socket.py).
"""

import contextlib
import json
import os
import sys
import time
from pathlib import Path

import bandwidth
import cuda
import nics
import noise
import perftest_output
import perftest_socket
from load import Load, wait

_VALUES = {
    "-d": "device", "--ib-dev": "device", "-i": "ib_port", "--ib-port": "ib_port",
    "-p": "port", "--port": "port",
    "-s": "size", "--size": "size", "-q": "qps", "--qp": "qps", "-n": "iters", "--iters": "iters",
    "-D": "duration", "--duration": "duration", "-x": "gid", "--gid-index": "gid",
    "-m": "mtu", "--mtu": "mtu",
    "--use_cuda": "cuda", "-Q": "cq_mod", "--cq-mod": "cq_mod", "-t": "depth", "--tx-depth": "depth",
}  # fmt: skip
_FLAGS = {
    "-F": "force", "--CPU-freq": "force", "--report_gbits": "gbits", "--perform_warm_up": "warm",
    "--use_cuda_dmabuf": "dmabuf", "-b": "both", "--bidirectional": "both", "-a": "all", "--all": "all",
    "-R": "rdma_cm", "--rdma_cm": "rdma_cm", "-N": "no_peak", "--noPeak": "no_peak",
}  # fmt: skip
_CUDA_OPTIONS = ("--use_cuda", "--use_cuda_dmabuf")


class UsageError(Exception):
    """The command line is refused; the text is what getopt says."""


def _options(node, arguments: list) -> dict:
    found = {"ib_port": "1", "port": "18515", "size": "65536", "qps": "1", "iters": "5000", "host": ""}
    words = list(arguments)
    while words:
        name, equals, value = words.pop(0).partition("=")
        if name in _CUDA_OPTIONS and node.fault("perftest_without_cuda"):
            raise UsageError(f"unrecognized option '{name}'")
        if name in _FLAGS:
            found[_FLAGS[name]] = True
        elif name in _VALUES:
            if not equals and not words:
                raise UsageError(f"option requires an argument -- '{name.lstrip('-')}'")
            found[_VALUES[name]] = value if equals else words.pop(0)
        elif name.startswith("-"):
            raise UsageError(f"unrecognized option '{name}'")
        elif found["host"]:
            raise UsageError("too many arguments")
        else:
            found["host"] = name
    for key in ("ib_port", "port", "size", "qps", "iters"):
        if not found[key].isdigit():
            raise UsageError(f"invalid argument '{found[key]}'")
        found[key] = int(found[key])
    return found


def ib_write_bw(node, arguments: list) -> int:
    """The whole program; returns its exit status."""
    if arguments in (["-V"], ["--version"]):
        print("Version: 6.24")
        return 0
    try:
        options = _options(node, arguments)
    except UsageError as why:
        print(f"ib_write_bw: {why}", file=sys.stderr)
        print(" Invalid Command or flag.", file=sys.stderr)
        print(" Please check command line and run again.\n", file=sys.stderr)
        print("Usage:\n  ib_write_bw            start a server and wait for connection")
        print("  ib_write_bw <host>     connect to server at <host>\n")
        print(" Parser function exited with Error", file=sys.stderr)
        return 1
    cards = {card["name"]: card for card in nics.working(node)}
    if "device" not in options:
        options["device"] = next(iter(cards), "")
    card = cards.get(options["device"])
    if card is None or options["ib_port"] != 1:
        print(f" IB device {options['device']} not found", file=sys.stderr)
        print(" Unable to find the Infiniband/RoCE device", file=sys.stderr)
        return 1
    state = nics.link_of(node, card)[0]
    if not state.startswith("4"):
        print(f" Port number 1 state is {state[3:].capitalize()}", file=sys.stderr)
        print(" Couldn't set the link layer", file=sys.stderr)
        print(" Couldn't get context for the device", file=sys.stderr)
        return 1
    if options["host"]:
        return _client(node, options, card)
    with perftest_socket.listening(node, options["port"]) as listener:
        return _server(node, options, card, listener)


# -- finding each other


def _meeting(node, port: int) -> Path:
    return node.folder / "run" / f"perftest.{port}"


def _server(node, options: dict, card: dict, listener) -> int:
    print("\n************************************")
    print("* Waiting for client to connect... *")
    print("************************************")
    sys.stdout.flush()
    meeting = _meeting(node, options["port"])
    meeting.write_text(json.dumps({"pid": os.getpid(), "device": card["name"]}))
    try:
        while True:
            agreed = None
            if listener is None:
                time.sleep(0.02)
            else:
                agreed = perftest_socket.answer(node, listener, _myself(node, options, card))
            if agreed:
                met = {"row": None if "lost" in agreed else _row(options, agreed["rate"])}
                break
            try:
                met = json.loads(meeting.read_text())
            except (OSError, ValueError):
                continue
            if "row" in met:
                break
    finally:
        with contextlib.suppress(OSError):
            meeting.unlink()
    if met["row"] is None:
        return _no_memory() if "cuda" in options else 1
    perftest_output.head(options, card, server=True)
    perftest_output.table(options, met["row"])
    return 0


def _myself(node, options: dict, card: dict) -> dict:
    return {"name": node.name, "rate": _rate(node, card, None, options["qps"])}


def _row(options: dict, rate: float) -> list:
    return [options["size"], options["iters"] * options["qps"], rate * 1.0005, rate]


def _client(node, options: dict, card: dict) -> int:
    if perftest_socket.is_remote(options["host"]):
        return _client_of_another(node, options, card)
    meeting = _meeting(node, options["port"])
    # Beside a socket there is nothing to wait for: perftest tries once.
    for _ in range(1 if str(node.root) == "/" else 100):
        if meeting.exists():
            break
        time.sleep(0.05)
    try:
        met = json.loads(meeting.read_text())
    except (OSError, ValueError):
        return _nobody(options)
    gpu = None
    if "cuda" in options:
        gpu = _gpu(node, options)
        if gpu is None or not _registers(node, options):
            _answer(meeting, met, None)
            return _no_memory()
    row = _row(options, _rate(node, card, gpu, options["qps"]))
    with Load(node, "ib_write_bw", [gpu] if gpu else []):
        _send(node, row)
    perftest_output.head(options, card, server=False)
    perftest_output.table(options, row)
    _answer(meeting, met, row)
    return 0


def _client_of_another(node, options: dict, card: dict) -> int:
    mine = _myself(node, options, card)
    with perftest_socket.asked(node, options["host"], options["port"], mine) as agreed:
        if agreed is None:
            return _nobody(options)
        row = _row(options, agreed["rate"])
        _send(node, row)
    perftest_output.head(options, card, server=False)
    perftest_output.table(options, row)
    return 0


def _send(node, row: list) -> None:
    size, sent, _, rate = row
    wait(node, 0.4 + size * 8.0 * sent / (rate * 1e9))


def _nobody(options: dict) -> int:
    print(f"Couldn't connect to {options['host']}:{options['port']}", file=sys.stderr)
    print(" Unable to open file descriptor for socket connection", file=sys.stderr)
    print(" Unable to init the socket connection", file=sys.stderr)
    return 1


def _answer(meeting: Path, met: dict, row) -> None:
    fresh = meeting.with_name(meeting.name + ".new")
    fresh.write_text(json.dumps(dict(met, row=row)))
    fresh.replace(meeting)


# -- memory and rates


def _gpu(node, options: dict):
    """The GPU whose memory is used, after what perftest says of it; None when CUDA has no such GPU."""
    print("initializing CUDA")
    gpus = [] if cuda.error(node) else cuda.devices(node)
    number = int(options["cuda"]) if options["cuda"].isdigit() else -1
    if not 0 <= number < len(gpus):
        print(f"cuInit(0) returned {cuda.error(node) or 100}")
        return None
    print("Listing all CUDA devices in system:")
    for index, gpu in enumerate(gpus):
        print("CUDA device {}: PCIe address is {}:00".format(index, gpu["bus"]))
    print(f"\nPicking device No. {number}")
    print(f"[pid = {os.getpid()}, dev = {number}] device name = [{node.sku['name']}]")
    print("creating CUDA Ctx\nmaking it the current CUDA Ctx\nCUDA device integrated: 0")
    return gpus[number]


def _registers(node, options: dict) -> bool:
    """Whether the kernel lets a card reach GPU memory: through DMA-BUF, or nvidia-peermem."""
    if node.fault("gpudirect_off"):
        return False
    if options.get("dmabuf"):
        return node.driver()[1] == "open"
    return node.loaded("nvidia_peermem")


def _no_memory() -> int:
    for line in ("Couldn't allocate MR with error=14", "failed to create mr", "Failed to create MR"):
        print(line, file=sys.stderr)
    print(" Couldn't create IB resources", file=sys.stderr)
    return 1


def _rate(node, card: dict, gpu, pairs: int) -> float:
    """Gb/s that a card reaches towards itself."""
    number = card["number"]
    lanes = node.fault("nic_pcie_width", nic=number)
    generation = 5 if card["speed"] == "NDR" else 4
    slot = 31.5 * 2.0 ** (generation - 4) * 8 * 0.92 * (lanes["width"] / 16.0 if lanes else 1.0)
    rate = min(nics.rate_of(node, card) * 0.984, slot)
    slow = node.fault("nic_slow", nic=number)
    rate *= slow["factor"] if slow else 1.0
    alone = node.fault("one_queue_pair_slow")
    rate *= alone["factor"] if alone and pairs == 1 else 1.0
    if gpu is not None:
        rate = min(rate, node.sku["h2d"] * 8 * 0.95 * bandwidth.pcie_factor(node, gpu))
        far = node.fault("gpudirect_slow", nic=number)
        rate *= far["factor"] if far else 1.0
        rate *= 0.45 if node.fault("acs_on") else 1.0
    # 99.96 % repeatability (SuperBench, HCA loopback)
    return rate * noise.jitter(node, "loopback", "{}{}".format(number, "" if gpu is None else "gpu"), 0.0004)
