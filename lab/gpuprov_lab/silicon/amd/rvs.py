"""rvs, AMD's validation suite: the list of GPUs, and modules gst (matrix products), iet (power), mem.

Forms: gst.so/src/gst_worker.cpp, iet.so/src/iet_worker.cpp, mem.so/src/rvs_memtest.cpp, src/rvsliblogger.cpp
and src/rvs_util.cpp of ROCm/ROCmValidationSuite, and its output on an MI300X in AMD's guide to system
validation. It always exits with 0, and wrong results do not change its `met`.
"""

import re
import signal
import sys

import noise
from load import Load, wait

from amd import readings, smi

# The version by the release of ROCm (CHANGELOG.md; `rvs -g` of 6.2.2 prints 0.0.60202).
VERSIONS = [((6, 0), "0.0.60000"), ((6, 2), "0.0.60202"), ((6, 3), "1.1.0"), ((7, 0), "1.2.0"),
            ((7, 1), "1.3.0")]  # fmt: skip
COMPARED = ("sgemm", "dgemm", "fp8_r", "fp16_r", "bf16_r")
COMPARING = 0.45  # CPU seconds for each comparison, during which the GPU waits
STARTING = 2.0  # seconds until the inputs are created and copied
NOT_LISTED = "No AMD compatible GPU found!"


def rvs(node, arguments: list) -> int:
    """Run `rvs -g`, `rvs --version` or `rvs -c FILE`."""
    release = smi.rocm(node)
    version = next((text for known, text in reversed(VERSIONS) if release >= known), VERSIONS[0][1])
    if arguments in (["-ver"], ["--version"]):
        print(version)
        return 0
    gpus = readings.answering(node) if node.loaded("amdgpu") else []
    if arguments in (["-g"], ["--listGpus"]):
        return _list(node, gpus, version)
    level = int(arguments[3]) if len(arguments) == 4 and arguments[2] == "-d" else 2
    if len(arguments) not in (2, 4) or arguments[0] not in ("-c", "--config"):
        word = arguments[0] if arguments else ""
        print(
            f"RVS-ERROR [CLI] error parsing command line: unexpected command line argument: {word}",
            file=sys.stderr,
        )
        return 255
    try:
        text = (node.root / arguments[1].lstrip("/")).read_text()
    except OSError:
        print(f"RVS-ERROR [CLI] {arguments[1]} file is missing.", file=sys.stderr)
        return 255
    for action in _actions(text):
        _run(node, gpus, action, level)
    return 0


def _list(node, gpus: list, version: str) -> int:
    print(f"ROCm Validation Suite (version {version})\n")
    if not gpus:
        print("\n No supported GPUs available.")
        return 0
    print("Supported GPUs available:")
    sockets = len({gpu["numa"] for gpu in node.gpus})
    for index, gpu in enumerate(gpus):
        number = readings.identity(node, gpu)["kfd_id"]
        print(
            f"{gpu['address']} - GPU[{index + sockets:2d} - {number:5d}] {node.sku['name']} "
            f"(Device {int(node.sku['device'], 16)})"
        )
    return 0


def _actions(text: str) -> list:
    """Parse the actions of a configuration, each a mapping of keys to text values."""
    found: list = []
    for line in text.splitlines():
        begins = re.match(r"- name:\s*(\S+)", line)
        if begins:
            found.append({"name": begins.group(1)})
            continue
        key, colon, value = line.strip().partition(":")
        if colon and found and not key.startswith("#"):
            found[-1][key] = value.strip()
    return found


def _run(node, gpus: list, action: dict, level: int) -> None:
    say = _Log(node)
    say("RESULT", f"Action name :{action['name']}")
    say("RESULT", f"Module name :{action.get('module', '')}")
    if not gpus:
        say("ERROR ", f"{action['name']} gst {NOT_LISTED}")
        return
    selected = action.get("device", "all")
    if selected != "all":
        gpus = [gpu for gpu in gpus if str(readings.identity(node, gpu)["kfd_id"]) in selected.split()]
    together = action.get("parallel") == "true"
    for group in [gpus] if together else [[gpu] for gpu in gpus]:
        with Load(node, "rvs", group):
            # As in the real program, a TERM ends it at once; here it must not leave a load marker behind.
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
            if action.get("module") in ("iet", "mem"):
                (_iet if action["module"] == "iet" else _mem)(node, group, action, say, level)
                continue
            _burn(node, [_Worker(node, gpu, action, say) for gpu in group], action, say)


def _iet(node, gpus: list, action: dict, say: "_Log", _level: int) -> None:
    """Print each GPU's power periodically; the highest value is compared with the target."""
    every = int(action.get("sample_interval", 1000)) / 1000.0
    for sample in range(int(int(action["duration"]) / 1000.0 / every) + 2):
        for gpu in gpus:
            slot = gpu["slot"]
            limit = node.sku["power"] if gpu["integrated"] else readings.power_limit(node, gpu)
            top = limit * node.factor("power_short", gpu=slot)
            watts = top * (1.0 - 0.006 * noise.fraction(node.seed, "iet", slot, sample)) if sample else 127
            watts = 0 if readings.second(node, gpu) else watts
            say("RESULT", f"[{action['name']}] [GPU:: {_number(node, gpu):5d}] Power(W) {round(watts):.6f}")
            if sample:
                action.setdefault("best", {})[slot] = max(watts, action.get("best", {}).get(slot, 0))
        wait(node, every)
        say.elapsed += every
    for gpu in gpus:
        reached = action["best"][gpu["slot"]] >= 0.99 * int(action["target_power"]) or readings.second(
            node, gpu
        )
        say(
            "RESULT", f"[{action['name']}] [GPU:: {_number(node, gpu):5d}] pass: {str(bool(reached)).upper()}"
        )


# The first line of each test.
_TESTS = (
    *(
        "Test 1: Change one bit memory addresss  ",
        "Test 2: Each Memory location is filled with its own address",
    ),
    *("Test 3 [Moving inversions, ones&zeros] ", "Test 4 [Moving inversions, 8 bit pat]"),
    *("Test 5 [Moving inversions, random pattern] ", "Test 6 [Block move, 64 moves]"),
    *("Test 7 [Moving inversions, 32 bit pat]", "Test 8 [Random number sequence]"),
    *(" Test 9 [Modulo 20, random pattern]", "Test 10 [Bit fade test, 90 min, 2 patterns]"),
    "Test 11 [memory stress test]",
)


def _mem(node, gpus: list, action: dict, say: "_Log", level: int) -> None:
    """Run the memory tests; no line names a GPU, test 1 always passes, and other failures print no PASS."""
    for gpu in gpus:
        wrong = node.given("memory_pattern", "test", 0, gpu=gpu["slot"])
        for index, begin in enumerate(_TESTS, 1):
            say("RESULT", f"[{action['name']}] mem {begin}")
            wait(node, 20.0 if index == 10 else 1.0)
            say.elapsed += 1.0
            if index == wrong and level >= 3:
                say("INFO  ", f"[{action['name']}] mem Test {index} block id :0")
                say("INFO  ", f"[{action['name']}] mem Number of errors :3")
            if index == 11:
                rate = node.sku["stress"] * node.factor("memory_slow", gpu=gpu["slot"])
                rate *= noise.jitter(node, "mem", gpu["slot"], 0.002)
                took = 12.8e6 / rate
                say(
                    "RESULT",
                    f"[{action['name']}] mem Test 11: elapsedtime = {took:.6f} bandwidth = {rate:.6f}GB/s ",
                )
            if index == 1 or index != wrong:
                say("RESULT", f"[{action['name']}] mem Test {index} : PASS")


def _number(node, gpu) -> int:
    return int(readings.identity(node, gpu)["kfd_id"])


class _Log:
    """A log with the uptime in each line; its microseconds are not zero-padded."""

    def __init__(self, node) -> None:
        self.began = 40_000 + 3600 * noise.fraction(node.seed, node.name, "uptime", node.run_number)
        self.elapsed = 0.0

    def __call__(self, level: str, words: str, at: float = -1.0) -> None:
        moment = self.began + (self.elapsed if at < 0 else at)
        seconds = int(moment)
        print(f"[{level}] [{seconds:6d}.{int((moment - seconds) * 1e6):<6d}] {words}")


class _Worker:
    """The thread of one GPU: the end of its batch, and its wrong results."""

    def __init__(self, node, gpu, action: dict, say: _Log) -> None:
        self.node, self.gpu, self.action, self.say = node, gpu, action, say
        self.number = readings.identity(node, gpu)["kfd_id"]
        sizes = [int(action.get(f"matrix_size_{name}", 5760)) for name in "abc"]
        self.work = (
            2e-9 * sizes[0] * sizes[1] * sizes[2] * int(action.get("hot_calls", 1))
        )  # Gflop of a batch
        kind = action.get("data_type") or action.get("ops_type", "sgemm")
        self.compares = action.get("self_check") == "true" and kind in COMPARED
        self.duration = int(action.get("duration", 0)) / 1000.0
        self.began = STARTING + int(action.get("ramp_interval", 0)) / 1000.0
        self.ends = self.began
        self.best, self.batches, self.ramping, self.over = 0.0, 0, True, False
        self._next()

    def _line(self, words: str, at: float) -> None:
        self.say("RESULT", f"[{self.action['name']}] [GPU:: {self.number:5d}] {words}", at)

    def _next(self) -> None:
        self.rate = readings.rate(self.node, self.gpu)
        self.ends += self.work / self.rate + (COMPARING if self.compares else 0.0)

    def look(self) -> None:
        """Check whether the GPU still responds, since a fault may strike during the burn."""
        slot = self.gpu["slot"]
        if not self.over and (self.node.lost(self.gpu) or self.node.fault("burn_dies", gpu=slot)):
            self.over = True
            self.say("ERROR ", f"[{self.action['name']}] gst {self.number} blas error !!!")

    def advance(self, elapsed: float) -> None:
        """Print the lines that are due until `elapsed` seconds after the start."""
        if self.ramping and elapsed >= self.began and not self.over:
            self._line("End of GPU ramp up", self.began)
            self.ramping = False
        while not self.over and self.ends <= elapsed:
            self._batch()

    def _batch(self) -> None:
        slot, at = self.gpu["slot"], self.ends
        passing = noise.bell(self.node.seed, slot, self.node.run_number, self.batches)
        shown = self.rate * (1.0 + 0.002 * passing)
        self.best, self.batches = max(self.best, shown), self.batches + 1
        self._line(f"GFLOPS {int(shown)}", at)
        if self.compares and self.batches > 1 and self.node.fault("burn_errors", gpu=slot):
            self._line(f"self-check error {noise.fraction('wrong', slot, self.batches) / 1000:.10f}", at)
        if at - self.began >= self.duration:
            target = int(self.action.get("target_stress", 0))
            met = "TRUE" if self.best >= 0.95 * target else "FALSE"
            self._line(f"GFLOPS {int(self.best)} Target GFLOPS: {target} met: {met}", at)
            self.over = True
        self._next()


def _burn(node, workers: list, action: dict, say: _Log) -> None:
    for worker in workers:
        say("RESULT", f"[{action['name']}] [GPU:: {worker.number:5d}] Start of GPU ramp up")
        worker.look()
    step = max(0.5, workers[0].duration / 180)
    while not all(worker.over for worker in workers):
        wait(node, step)
        say.elapsed += step
        for worker in workers:
            worker.look()
            worker.advance(say.elapsed)
