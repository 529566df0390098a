"""nvbandwidth 0.8: text and JSON as in its source (NVIDIA/nvbandwidth), with errors that exit with 0."""

import os
import platform
import sys

import bandwidth
import cuda
import jsoncpp
from load import Load, wait

_H2D, _D2H, _BOTH = (
    f"memcpy {{}} CPU(row) {arrow} GPU(column) bandwidth (GB/s)" for arrow in ("->", "<-", "<->")
)
_READ, _WRITE = (f"memcpy {{}} GPU(row) {arrow} GPU(column) bandwidth (GB/s)" for arrow in ("->", "<-"))
# name without the engine -> (kind, direction, description); kinds: host, all_host, pair, bidirectional, sum,
# latency, local
_CE = [
    ("host_to_device_memcpy", "host", "h2d", _H2D),
    ("device_to_host_memcpy", "host", "d2h", _D2H),
    ("host_to_device_bidirectional_memcpy", "host", "h2d", _BOTH),
    ("device_to_host_bidirectional_memcpy", "host", "d2h", _BOTH),
    ("device_to_device_memcpy_read", "pair", "read", _READ),
    ("device_to_device_memcpy_write", "pair", "write", _WRITE),
    ("device_to_device_bidirectional_memcpy_read", "bidirectional", "Read", ""),
    ("device_to_device_bidirectional_memcpy_write", "bidirectional", "Write", ""),
    ("all_to_host_memcpy", "all_host", "d2h", _D2H),
    ("all_to_host_bidirectional_memcpy", "all_host", "d2h", _BOTH),
    ("host_to_all_memcpy", "all_host", "h2d", _H2D),
    ("host_to_all_bidirectional_memcpy", "all_host", "h2d", _BOTH),
    ("all_to_one_write", "sum", "write", _WRITE),
    ("all_to_one_read", "sum", "read", _READ),
    ("one_to_all_write", "sum", "write", _READ),
    ("one_to_all_read", "sum", "read", _WRITE),
]
CASES = {f"{name}_ce": (kind, way, text.format("CE")) for name, kind, way, text in _CE}
CASES.update({f"{name}_sm": (kind, way, text.format("SM")) for name, kind, way, text in _CE})
CASES["host_device_latency_sm"] = ("host_latency", "", "memory latency SM CPU(row) <-> GPU(column) (ns)")
CASES["device_to_device_latency_sm"] = (
    "pair_latency",
    "",
    "Device to Device Latency SM GPU(row) <-> GPU(column) (ns)",
)
CASES["device_local_copy"] = ("local", "", "memcpy local GPU(column) bandwidth (GB/s)")
_FLAGS = ("json", "verbose", "list", "help")
_IGNORED = ("-s", "--skipVerification", "-d", "--disableAffinity", "-m", "--useMean", "--perfFormatter")
_NEEDS_PEERS = ("pair", "bidirectional", "sum", "pair_latency")
_SECONDS = {"pair": 0.18, "bidirectional": 0.22, "pair_latency": 0.1}


class Options:
    """The command line; `bad` if the real program would reject it."""

    def __init__(self, arguments: list) -> None:
        self.cases, self.prefixes = [], []
        self.json = self.verbose = self.list = self.help = self.bad = False
        self.buffer = 512
        self.unbound = False
        words, into = list(arguments), None
        while words:
            name, equals, value = words.pop(0).partition("=")
            if equals:
                words.insert(0, value)
            if name in ("-t", "--testcase", "-p", "--testcasePrefixes"):
                into = self.cases if name in ("-t", "--testcase") else self.prefixes
                self.bad = self.bad or not words
            elif name in ("-b", "--bufferSize", "-i", "--testSamples", "--loopCount"):
                into = None
                value = words.pop(0) if words else ""
                self.bad = self.bad or not value.isdigit()
                if name in ("-b", "--bufferSize") and not self.bad:
                    self.buffer = int(value)
            elif name.startswith("-"):
                into = None
                self._flag(name)
            elif into is None:
                self.bad = True
            else:
                into.append(name)

    def _flag(self, name: str) -> None:
        known = next((flag for flag in _FLAGS if name in (f"-{flag[0]}", f"--{flag}")), "")
        if known:
            setattr(self, known, True)
        elif name not in _IGNORED:
            self.bad = True
        self.unbound = self.unbound or name in ("-d", "--disableAffinity")


def nvbandwidth(node, arguments: list) -> int:
    """Run nvbandwidth and return its exit status."""
    options = Options(arguments)
    if cuda.cannot_start(node, "nvbandwidth", "libnvidia-ml.so.1"):
        return 127
    version = "v" + ".".join((os.environ.get("SILICON_VERSION") or "0.8").split(".")[:2])
    form = Json if options.json and not options.bad else Text
    output = form(options, version, CASES)
    if options.bad:
        words = " ".join(["nvbandwidth", *arguments])
        print(f"ERROR: Invalid Arguments \n{words} :\n\n\nnvbandwidth CLI:")
        return 1
    if options.help:
        print("nvbandwidth CLI:\n  -h [ --help ]                   Produce help message\n")
    elif options.list:
        output.cases()
    else:
        return _run(node, options, output)
    return 0


def _run(node, options: Options, output) -> int:
    if options.cases and options.prefixes:
        output.error("You cannot specify both testcase and testcasePrefix options at the same time")
        return 1
    problem = cuda.error(node)
    if problem:
        name, text = cuda.NAMES[problem]
        output.error(
            f"[{name}] {text} in expression cuInit(0) in int main(int, char**)() : nvbandwidth.cpp:244\n"
        )
        return 1
    gpus = cuda.devices(node)
    output.devices(node, gpus)
    prefixes = tuple(options.prefixes) or ("",)
    chosen = options.cases or [name for name in CASES if name.startswith(prefixes)]
    if not chosen:
        output.error("Specified list of testcase prefixes did not match any testcases")
        return 1
    # By default the program binds itself to the CPUs next to each GPU.
    output.host_share = node.factor("numa_remote") if options.unbound else 1.0
    with Load(node, "nvbandwidth", gpus):
        for name in chosen:
            _case(node, gpus, name, output)
    output.end()
    return 0


def _case(node, gpus: list, asked: str, output) -> None:
    name = list(CASES)[int(asked)] if asked.isdigit() and int(asked) < len(CASES) else asked
    if name not in CASES:
        output.status(name, "ERROR", f"Testcase {name} not found!")
        return
    kind, direction, description = CASES[name]
    if kind in _NEEDS_PEERS and len(gpus) < 2:
        output.status(name, "Waived", "")
        return
    output.begin(name)
    wait(node, _SECONDS.get(kind, 0.4) * len(gpus) * (len(gpus) if kind in _SECONDS else 1))
    engine = 0.97 if name.endswith("_sm") else 1.0
    if kind == "bidirectional":
        first, second = (_matrix(node, gpus, "bidirectional", engine) for _ in range(2))
        total = [[_sum(x, second[i][j]) for j, x in enumerate(row)] for i, row in enumerate(first)]
        label = "memcpy {} GPU(row) <-> GPU(column) {} bandwidth (GB/s)"
        words = [(f"{direction}1", first), (f"{direction}2", second), ("Total", total)]
        for word, matrix in words:
            output.matrix(f"{name}_{word.lower()}", label.format("SM" if engine < 1 else "CE", word), matrix)
    else:
        share = output.host_share if kind in ("host", "all_host") else 1.0
        output.matrix(name, description, _values(node, gpus, kind, direction, engine * share))


def _sum(one, other):
    return None if one is None or other is None else one + other


def _matrix(node, gpus: list, kind: str, engine: float) -> list:
    def cell(one, other):
        rate = None if one is other else bandwidth.peer(node, one, other, kind)
        return None if rate is None else rate * engine

    return [[cell(one, other) for other in gpus] for one in gpus]


def _values(node, gpus: list, kind: str, way: str, engine: float) -> list:
    if kind == "pair":
        return _matrix(node, gpus, way, engine)
    if kind == "pair_latency":
        return [
            [
                None
                if one is other
                else 1.0e5 / max(bandwidth.peer(node, one, other, "read") or 50, 90) + 420
                for other in gpus
            ]
            for one in gpus
        ]
    if kind == "host_latency":
        return [[1.0e5 / bandwidth.host(node, gpu, "h2d") / 3.0 for gpu in gpus]]
    if kind == "local":
        return [[bandwidth.local(node, gpu) for gpu in gpus]]
    if kind == "sum":
        per_gpu = []
        for one in gpus:
            rates = [bandwidth.peer(node, one, other, way) for other in gpus if other is not one]
            reached = [rate for rate in rates if rate is not None]
            per_gpu.append(sum(reached) / len(reached) * engine if reached else None)
        return [per_gpu]
    share = 0.72 if kind == "all_host" else 1.0
    return [[bandwidth.host(node, gpu, way) * engine * share for gpu in gpus]]


NOTE = """\
NOTE: The reported results may not reflect the full capabilities of the platform.
Performance can vary with software drivers, hardware clocks, and system topology.

"""


class Text:
    """Plain text, printed immediately."""

    def __init__(self, options, version: str, known: dict) -> None:
        self.known = known
        self.verbose, self.version, self.buffer = options.verbose, version, options.buffer
        print(f"nvbandwidth Version: {version}\nBuilt from Git version: {version}\n")

    def cases(self) -> None:
        """Print the list of `-l`."""
        print("Index, Name:\n\tDescription\n=======================")
        for i, name in enumerate(self.known):
            print(f"{i}, {name}:\n\t{self.known[name][2] or 'copies between GPUs, both ways at once'}\n")

    def error(self, text: str) -> None:
        """Print an error that occurred before any case."""
        sys.stdout.flush()
        print(text, file=sys.stderr)

    def devices(self, node, gpus: list) -> None:
        """Print the header: versions and GPUs."""
        if self.buffer < 512:
            print(
                "NOTE: You have chosen a buffer size that is smaller than the default buffer size. It is "
                "suggested to use "
                "the default buffer size (64MB) to achieve maximal peak bandwidth."
            )
        runtime = cuda.runtime_version(node)
        print(
            f"CUDA Runtime Version: {runtime}\nCUDA Driver Version: {runtime}\nDriver Version: "
            f"{node.driver()[0]}\n"
        )
        if self.version >= "v0.8":
            print(platform.node())
        for i, gpu in enumerate(gpus):
            print(f"Device {i}: {_device(node, gpu)}")
        print()

    def status(self, name: str, status: str, text: str) -> None:
        """Print the status of a case that did not run."""
        del name
        print(f"{status}: {text}")

    def begin(self, name: str) -> None:
        """Announce the start of a case."""
        print(f"Running {name}.")

    def matrix(self, name: str, description: str, rows: list) -> None:
        """Print one matrix with its sum."""
        print(description)
        print("  " + "".join(f"{i:>10}" for i in range(len(rows[0]))))
        for i, row in enumerate(rows):
            print(
                f"{i:>2}"
                + "".join(f"{value:10.2f}" if value is not None else f"{'N/A':>10}" for value in row)
            )
        values = [value or 0.0 for row in rows for value in row]
        print(f"\nSUM {name} {sum(values):.2f}")
        if self.verbose:
            average = sum(values) / max(1, sum(1 for value in values if value > 0))
            print(f"MIN {name} {min(values):.2f}\nMAX {name} {max(values):.2f}\nAVG {name} {average:.2f}")
        print()

    def end(self) -> None:
        """Print the final note."""
        print(NOTE, end="")


class Json:
    """One JSON document, printed at the end."""

    def __init__(self, options, version: str, known: dict) -> None:
        self.known = known
        self.verbose, self.buffer = options.verbose, options.buffer
        self.root = {"version": version, "git_version": version}

    def cases(self) -> None:
        """Print nothing: `-l` has no output in this form."""

    def error(self, text: str) -> None:
        """Record an error that occurred before any case, and print the document."""
        self.root["error"] = text
        self.end()

    def devices(self, node, gpus: list) -> None:
        """Record the header: versions and GPUs."""
        self.root["CUDA Runtime Version"] = cuda.runtime_version(node)
        self.root["Driver Version"] = node.driver()[0]
        self.root["GPU Device list"] = [
            f"{i}: {_device(node, gpu)}: ({platform.node()})" for i, gpu in enumerate(gpus)
        ]

    def status(self, name: str, status: str, text: str) -> None:
        """Record the status of a case that did not run."""
        del text
        self.root.setdefault("testcases", []).append({"name": name, "status": status})

    def begin(self, name: str) -> None:
        """Record the start of a case."""
        self.status(name, "Running", "")

    def matrix(self, name: str, description: str, rows: list) -> None:
        """Record one matrix; a further one of the same case is appended, as in the real program."""
        del name
        case = self.root["testcases"][-1]
        values = [value or 0.0 for row in rows for value in row]
        texts = [["N/A" if value is None else f"{value:g}" for value in row] for row in rows]
        case.update(status="Passed", bandwidth_description=description, sum=float(sum(values)))
        case.setdefault("bandwidth_matrix", []).extend(texts)
        if self.verbose:
            average = sum(values) / max(1, sum(1 for value in values if value > 0))
            case.update(min=float(min(values)), max=float(max(values)), average=average)

    def end(self) -> None:
        """Print the whole document."""
        print(jsoncpp.styled({"nvbandwidth": self.root}))


def _device(node, gpu) -> str:
    return f"{node.sku['name']} (00000000:{gpu['bus'].lower()}:00)"
