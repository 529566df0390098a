"""The nccl-tests programs in the form of their source since 2.17: text, JSON report, failures.

Started by a launcher, a program is one of several processes (mpi.py), of which only the first one prints.
"""

import os
import platform
import re
import sys
from functools import partial

import cuda
import noise
from amd import hip, rccl_report
from load import Load, wait

from nccl import mpi
from nccl import report as nccl_report
from nccl import world as nccl_world

GIB = 1 << 30
SIZES = {"k": 1 << 10, "m": 1 << 20, "g": GIB}
TYPES = {
    "int8": 1, "uint8": 1, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "half": 2, "float": 4, "double": 8, "bfloat16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1,
}  # fmt: skip
OPERATIONS = ("sum", "prod", "max", "min", "avg", "mulsum")
# letter -> long name; every option takes a value
LETTERS = {
    "t": "nthreads", "g": "ngpus", "b": "minbytes", "e": "maxbytes", "i": "stepbytes", "f": "stepfactor",
    "n": "iters", "m": "agg_iters", "w": "warmup_iters", "N": "run_cycles", "p": "parallel_init",
    "c": "check", "o": "op", "d": "datatype", "r": "root", "z": "blocking", "y": "stream_null",
    "T": "timeout", "G": "cudagraph", "C": "report_cputime", "S": "report_timestamps", "J": "output_file",
    "a": "average", "R": "local_register", "x": "cta_policy", "D": "device_implementation",
    "V": "device_cta_count", "M": "memory", "u": "unalign", "I": "per_iter_timing", "K": "per_iter_skip",
}  # fmt: skip
CUDA_ERROR, NCCL_ERROR, NUMBERS = 2, 3, 7


class UsageError(Exception):
    """A rejected command line; the text is the reason."""


class Options:
    """The command line, with numbers parsed as in C."""

    def __init__(self, arguments: list) -> None:
        self.values = {
            "t": "1",
            "g": "1",
            "b": "32M",
            "e": "32M",
            "i": "1M",
            "f": "1",
            "n": "20",
            "m": "1",
            "w": "1",
        }
        self.values.update(
            {
                "c": "1",
                "o": "sum",
                "d": "float",
                "r": "0",
                "p": "0",
                "z": "0",
                "G": "0",
                "u": "0",
                "N": "1",
                "J": "",
            }
        )
        words = list(arguments)
        while words:
            letter, value = self._letter(words.pop(0))
            if value is None:
                if not words:
                    raise UsageError(f"option requires an argument -- '{letter}'")
                value = words.pop(0)
            self.values[letter] = value
        self.smallest, self.largest = _size(self.values["b"], "minbytes"), _size(self.values["e"], "maxbytes")
        self.step = _size(self.values["i"], "stepBytes")
        self.type = self.values["d"] if self.values["d"] in TYPES else "float"
        self.operation = self.values["o"] if self.values["o"] in OPERATIONS else "sum"

    @staticmethod
    def _letter(word: str):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found = [letter for letter, long in LETTERS.items() if long == name]
            if found:
                return found[0], value if equals else None
        elif word.startswith("-") and word[1:2] in LETTERS:
            return word[1], word[2:] or None
        raise UsageError(
            "help" if word in ("-h", "--help") else f"invalid option -- '{word.lstrip('-')[:1]}'"
        )

    def number(self, letter: str) -> int:
        """Return an option as a whole number, 0 if it is not a number."""
        found = re.match(r"\s*-?\d+", self.values[letter])
        return int(found.group()) if found else 0

    def sizes(self) -> list:
        """Return the message sizes of the table."""
        factor, size, found = self.number("f"), self.smallest, []
        while size <= self.largest and len(found) < 4096:
            found.append(size)
            size = size * factor if factor > 1 else size + max(1, self.step)
            if not found[-1] and factor > 1:
                break
        return found


def _size(text: str, name: str) -> int:
    found = re.match(r"\s*(\d+(?:\.\d*)?)\s*([GgMmKk]?)", text)
    if not found:
        raise UsageError(f"invalid size specified for '{name}'")
    return int(float(found.group(1)) * SIZES.get(found.group(2).lower(), 1))


def _perf(node, arguments: list, name: str) -> int:
    program = name + "_perf"
    runtime, library = (hip, "librccl.so.1") if node.vendor == "amd" else (cuda, "libnccl.so.2")
    if runtime.cannot_start(node, program, library):
        return 127
    try:
        options = Options(arguments)
    except UsageError as why:
        help_requested = str(why) == "help"
        if not help_requested:
            print(f"{program}: {why}", file=sys.stderr)
        print(
            f"USAGE: {program} \n\t"
            + " \n\t".join(f"[-{x},--{long} <value>]" for x, long in LETTERS.items())
            + " \n\t[-h,--help]"
        )
        return 0 if help_requested else 255
    world = mpi.world(node)
    form = rccl_report.Report if node.vendor == "amd" else nccl_report.Report
    report = form(node, program, options, arguments) if world.rank == 0 else nccl_report.Silent()
    status = _run(node, name, options, report, world, runtime)
    report.close()
    if status:
        print(f" .. {platform.node()} pid {os.getpid()}: Test failure common.cu:1452")
    return status


all_reduce_perf = partial(_perf, name="all_reduce")
all_gather_perf = partial(_perf, name="all_gather")
reduce_scatter_perf = partial(_perf, name="reduce_scatter")
alltoall_perf = partial(_perf, name="alltoall")


def _run(node, name: str, options: Options, report, world, runtime) -> int:
    gpus, requested = runtime.devices(node), options.number("t") * options.number("g")
    before = world.gather(node.name)[: world.rank].count(node.name)  # earlier processes on this node
    report.head()
    problem = runtime.error(node)
    if problem:
        print(f"{platform.node()}: Test CUDA failure common.cu:1024 '{runtime.NAMES[problem][1]}'")
        return CUDA_ERROR
    first = int(os.environ.get("NCCL_TESTS_DEVICE") or before * requested)
    if first + requested > len(gpus) or requested < 1:
        return report.too_few(first + requested, len(gpus))
    gpus = gpus[first : first + requested]
    team = nccl_world.Team(node, world, world.gather(nccl_world.introduction(node, gpus, first)))
    report.devices(team.met)
    if team.lacks_cards():
        print(
            f"{platform.node()}: Test NCCL failure common.cu:1279 'invalid usage (run with NCCL_DEBUG=WARN "
            "for details) / '"
        )
        return NCCL_ERROR
    _fit_memory(options, min(one["memory"] for one in team.met), report)
    world.gather("initialized")  # like ncclCommInitRank, return when all processes have called it
    report.table_head()
    rows = []
    with Load(node, name + "_perf", gpus):
        wait(node, 3.0)
        for size in options.sizes():
            row = world.gather(_measure(node, name, options, team, size))[0]
            seconds = (
                sum(one["time"] for one in row["bodies"]) * 1e-6 * (options.number("n") + options.number("w"))
            )
            wait(node, min(seconds, 20.0))
            report.row(row)
            rows.append(row)
    status = _verdict(rows, report)
    world.end()
    return status


def _fit_memory(options: Options, mib: int, report) -> None:
    total = mib - 480
    total <<= 20
    reserved = min(-(-total // (16 * GIB)) * GIB, 4 * GIB)
    most = (total - reserved - GIB) // (3 if options.number("c") else 2)
    if options.largest > most:
        options.largest = most
        options.smallest = min(options.smallest, most)
        report.reduced(most)


def _measure(node, name: str, options: Options, team, asked: int) -> dict:
    word, ranks, nodes = TYPES[options.type], team.ranks, len(team.order)
    elements = asked // word
    if name == "all_reduce":
        count, size = elements, elements * word
    else:
        count = elements // ranks & ~(16 // word - 1)
        size = count * ranks * word
    factor = (2.0 if name == "all_reduce" else 1.0) * (ranks - 1) / ranks
    agreed = team.agree(name)
    best = agreed["rate"]
    in_switch = agreed["switch"] and node.sku["fabric"] and name == "all_reduce" and ranks > 2
    times = 2 * (options.number("n") + options.number("w"))
    if team.world.rank == 0:
        nccl_report.tell_choice(name, size, "NVLS" if in_switch else "RING", times)
    bodies = []
    for place in ("out", "in"):
        latency = 11.0 + 0.7 * ranks + (26.0 if not node.sku["links"] else 0.0) + 6.0 * (nodes - 1)
        latency *= noise.jitter(node, "latency", f"{size}{place}", 0.02)
        rate = best * noise.jitter(node, name, f"{size}{place}{ranks}", 0.003) * 1e3  # bytes per microsecond
        ramp = 9.5e6 / (best * 1e3) * (1.0 - 1.0 / (1.0 + size / 4.0e6)) if factor else 0.0
        took = latency + ramp + size * (factor or 0.0005) / rate
        bodies.append(
            {
                "time": took,
                "alg_bw": size / took / 1e3,
                "bus_bw": size / took / 1e3 * factor,
                "nwrong": agreed["wrong"] if options.number("c") else None,
            }
        )
    return {
        "size": size,
        "count": count,
        "type": options.type,
        "redop": options.operation if name in ("all_reduce", "reduce_scatter") else "none",
        "bodies": bodies,
    }


def _verdict(rows: list, report) -> int:
    rates = [body["bus_bw"] for row in rows for body in row["bodies"]]
    average = sum(rates) / len(rates) if rates else float("nan")
    errors = sum(1 for row in rows for body in row["bodies"] if body["nwrong"])
    minimum = os.environ.get("NCCL_TESTS_MIN_BW")
    least = -1.0
    if minimum is not None:
        found = re.match(r"\s*\d+(\.\d*)?", minimum)
        least = float(found.group()) if found else 0.0
    report.footer(errors, average, least)
    return NUMBERS if errors or average < least * 0.9 else 0
