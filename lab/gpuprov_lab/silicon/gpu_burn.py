"""gpu_burn: loose argument parsing, progress line, summary; exit status 0 for OK and FAULTY alike.

Version 1.0 ends with `Killing processes.. `, later ones announce SIGTERM and wait (source: wilicc/gpu-burn).
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import cuda
import noise
import telemetry
from load import Load, health_factor, wait

NO_CLIENTS, NO_DEVICE, SYNTAX = 123, 19, 22
MATRIX = 8192
OPERATIONS = 1100048498688.0  # per matrix multiplication, as the program counts
REDRAWS = 90
SLOWEST_REDRAW = 1.0  # real seconds
HELP = """GPU Burn
Usage: gpu-burn [OPTIONS] [TIME]

-m X\tUse X MB of memory.
-m N%\tUse N% of the available GPU memory.  Default is 90%
-d\tUse doubles
-tc\tTry to use Tensor cores
-l\tLists all GPUs in the system
-i N\tExecute only on GPU N
-c FILE\tUse FILE as compare kernel.  Default is compare.ptx
-stts T\tSet timeout threshold to T seconds for using SIGTERM to abort child processes before using \
SIGKILL.  Default is 30
-h\tShow this help message

Examples:
"""


def _leading_integer(text: str) -> int:
    """Parse like C's atoi: the digits at the start, or 0."""
    found = re.match(r"\s*([+-]?\d+)", text)
    return int(found.group(1)) if found else 0


class Options:
    """The command line as the real program parses it: by substring, by position, without errors."""

    def __init__(self, arguments: list) -> None:
        self.double = self.tensor = self.help = self.list = self.bad = False
        self.memory, self.device, self.kernel, self.threshold = "", -1, "compare.ptx", 30
        consumed, i = 0, 0
        while i < len(arguments):
            word, following = arguments[i], arguments[i + 1 : i + 2]
            if "-h" in word or "-l" in word:
                self.help, self.list = "-h" in word, "-h" not in word
                return
            if "-d" in word:
                self.double, consumed = True, consumed + 1
            if "-tc" in word:
                self.tensor, consumed = True, consumed + 1
            for letter in ("-m", "-i"):
                if word.startswith(letter):
                    if not word[2:] and not following:
                        self.bad = letter
                        return
                    consumed, i = (consumed + 1, i) if word[2:] else (consumed + 2, i + 1)
                    value = word[2:] or following[0]
                    if letter == "-i":
                        self.device = _leading_integer(value)
                    elif not re.match(r"[1-9]\d*%?\Z", value):
                        self.bad = letter
                        return
                    else:
                        self.memory = value
            if word.startswith("-c"):
                consumed += 1 + len(following)
                self.kernel = following[0] if following else self.kernel
            if word.startswith("-stts"):
                consumed += 1 + len(following)
                self.threshold = _leading_integer(following[0]) if following else self.threshold
            i += 1
        self.given = len(arguments) > consumed
        self.seconds = _leading_integer(arguments[consumed]) if self.given else 10


def gpu_burn(node, arguments: list) -> int:
    """Run gpu_burn and return its exit status."""
    options = Options(arguments)
    if options.bad:
        print(f"Syntax error near {options.bad}", file=sys.stderr)
        return SYNTAX
    if options.help:
        print(HELP, end="")
        return 0
    if cuda.cannot_start(node, "gpu_burn"):
        return 127
    if options.list:
        for i, gpu in enumerate(cuda.devices(node)):
            print(f"ID {i}: {node.sku['name']}, {_total(node, gpu) * 1048576 // 1000000}MB")
        return 0
    head = "" if options.given else "Run length not specified in the command line. "
    head += f"Using compare file: {options.kernel}\nBurning for {options.seconds} seconds.\n"
    # The program buffers its own lines unless it writes to a terminal, and every child inherits the buffer.
    waiting = "" if sys.stdout.isatty() else head
    if not waiting:
        print(head, end="")
    sys.stdout.flush()
    _list_gpus()
    return _burn(node, options, waiting)


def _list_gpus() -> None:
    program = Path(__file__).with_name("run.py")
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(program), "nvidia-smi", "-L"],
            stdout=subprocess.PIPE,
            timeout=600,
            check=False,
        )
        print(done.stdout.decode(errors="replace"), end="")
    except (OSError, subprocess.TimeoutExpired):
        pass


def _burn(node, options: Options, waiting: str) -> int:
    problem = cuda.error(node)
    gpus = cuda.devices(node)
    if problem:
        text = cuda.NAMES[problem][1]
        print(
            f"cuInit returned {problem} ({text})\nCouldn't init CUDA: Error (gpu_burn-drv.cpp:312): {text}",
            file=sys.stderr,
        )
        print(waiting, end="")
        print("No CUDA devices", file=sys.stderr)
        return NO_DEVICE
    if options.device >= 0:
        gpus = gpus[options.device : options.device + 1]
    print("cuInit returned 0 (no error)\n" * max(1, len(gpus)), end="", file=sys.stderr)
    broken = "" if gpus else "Error (gpu_burn-drv.cpp:103): invalid device ordinal"
    if not Path(options.kernel).exists():
        broken = f"Error in couldn't find compare kernel: {options.kernel} (gpu_burn-drv.cpp:239): "
        broken += "named symbol not found"
    if broken:
        print(waiting, end="")
        print(f"Couldn't init a GPU test: {broken}\n" * max(1, len(gpus)), end="", file=sys.stderr)
        print("\n\nNo clients are alive!  Aborting", file=sys.stderr)
        return NO_CLIENTS
    with Load(node, "gpu_burn", gpus):
        # As in the real program, a TERM ends it at once; here it must not leave a load marker behind.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        clients = [_Client(node, options, gpu) for gpu in gpus]
        print(waiting, end="")
        if not _listen(node, options, clients):
            print("\n\nNo clients are alive!  Aborting", file=sys.stderr)
            return NO_CLIENTS
        _end(node, options, clients, waiting)
    return 0


def _total(node, gpu) -> int:
    return node.given("memory_small", "mib", node.sku["memory"], gpu=gpu["slot"]) - 480


class _Client:
    """The process of one GPU: its progress after some seconds, and its wrong results."""

    def __init__(self, node, options: Options, gpu) -> None:
        slot = gpu["slot"]
        kind = "double" if options.double else "tensor" if options.tensor else "float"
        self.node, self.slot, self.gpu = node, slot, gpu
        self.healthy_rate = node.sku["burn"][kind] * noise.jitter(node, "burn", slot, 0.006)
        self.result = MATRIX * MATRIX * (8 if options.double else 4)
        self.total = _total(node, gpu)
        self.available = self.total - 520
        self.used = self._memory(options.memory)
        self.iterations = max(1, self.used * 1048576 // self.result - 2)
        self.batches = self.done = self.errors = 0
        self.shown, self.faulty = 0.0, False
        self.elapsed = self.progress = 0.0
        self.look()

    def look(self) -> None:
        """Update the GPU's faults, since one may strike during the burn."""
        self.wrong = self.node.given("burn_errors", "errors", 0, gpu=self.slot)
        gone = self.node.lost(self.gpu) or bool(self.node.silent(self.gpu))
        self.dies = gone or self.node.fault("burn_dies", gpu=self.slot) is not None
        self.rate = self.healthy_rate * health_factor(self.node, self.slot)
        self.batch_seconds = self.iterations * OPERATIONS / (self.rate * 1e9)

    def _memory(self, asked: str) -> int:
        if asked.endswith("%"):
            return self.available * int(asked[:-1]) // 100
        return int(asked) if asked else int(self.available * 0.9)

    def advance(self, elapsed: float) -> bool:
        """Advance the counters to `elapsed` seconds; True if the process reported anything."""
        self.progress += (elapsed - self.elapsed) / self.batch_seconds
        self.elapsed = elapsed
        batches = int(self.progress)
        fresh, self.batches = batches - self.batches, batches
        if not fresh or self.done < 0:
            return False
        if self.dies:
            self.done, self.errors = -1, self.errors - 1
            return True
        self.done += fresh * self.iterations
        self.errors += fresh * self.wrong
        passing = noise.bell(self.node.seed, self.slot, self.node.run_number, batches)
        self.shown = self.rate * (1.0 + 0.002 * passing)
        return True

    def temperature(self, moment) -> int:
        """Return the sensor's value at this moment."""
        gpu = self.node.gpus[self.slot]
        return telemetry.read(self.node, gpu, self.slot, moment)["temperature"]


def _listen(node, options: Options, clients: list) -> bool:
    """Print the progress line until the time is up; False if every client died."""
    began, next_report, reported = time.time(), 10.0, False
    step, elapsed = min(options.seconds / REDRAWS, SLOWEST_REDRAW * node.speed), 0.0
    if options.seconds <= 0:
        wait(node, 1.0)
        return True
    while elapsed < options.seconds + step:
        if wait(node, step):
            for client in clients:
                client.look()
        elapsed += step
        fresh = [client.advance(elapsed) for client in clients]
        reported = reported or any(fresh)
        if not reported:
            continue
        moment = telemetry.Moment(node)
        temperatures = [client.temperature(moment) for client in clients]
        percent = min(int(elapsed) * 100.0 / options.seconds, 100.0)
        print(_progress(percent, clients, temperatures), end="")
        for client in clients:
            client.faulty = client.faulty or client.errors != 0
        if next_report < percent:
            next_report = percent + 10.0
            print(
                "\n\tSummary at:   "
                + time.strftime("%a %b %e %H:%M:%S %Z %Y", time.localtime(began + elapsed))
                + "\n"
            )
            for client in clients:
                client.errors = 0
        if all(client.done < 0 for client in clients):
            return False
    return True


def _progress(percent: float, clients: list, temperatures: list) -> str:
    done = "- ".join(f"{client.done} ({client.shown:.0f} Gflop/s) " for client in clients)
    errors = []
    for client in clients:
        note = "  (DIED!)" if client.done < 0 else "  (WARNING!)" if client.errors else " "
        errors.append(f"{client.errors}{note}")
    heat = "- ".join(f"{one} C " for one in temperatures)
    return f"\r{percent:.1f}%  proc'd: {done}  errors: {'- '.join(errors)}  temps: {heat}"


def _end(node, options: Options, clients: list, waiting: str) -> None:
    kind = "using DOUBLES" if options.double else "using FLOATS"
    if options.tensor:
        kind += ", using Tensor Cores"
    if os.environ.get("SILICON_VERSION", "").startswith("1.0"):
        print("\nKilling processes.. ", end="")
    else:
        print("\nKilling processes with SIGTERM (soft kill)")
        wait(node, options.threshold)
    for number, client in sorted(
        enumerate(clients), key=lambda one: noise.fraction(node.seed, node.run_number, one[0])
    ):
        device = options.device if options.device >= 0 else number
        if client.done < 0:
            continue
        print(
            f"{waiting}Initialized device {device} with {client.total} MB of memory ({client.available} MB "
            "available, "
            f"using {client.used} MB of it), {kind}\n"
            f"Results are {client.result} bytes each, thus performing {client.iterations} iterations\n"
            f"Freed memory for dev {device}\nUninitted cublas"
        )
    print(f"done\n\nTested {len(clients)} GPUs:")
    for number, client in enumerate(clients):
        print(f"\tGPU {number}: {'FAULTY' if client.faulty else 'OK'}")
