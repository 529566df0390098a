"""A Python with torch, limited to one program: the training that measures the cost of overlap.

The program's output is defined in provision/node/ddp_scaling.py, torch's errors when CUDA does not start in
pytorch/pytorch (c10/cuda, torch/cuda/__init__.py). Durations: multiplications by the GPU's rate (bf16 is
about twice TF32), sums by the bus bandwidth of an all-reduce; NCCL's kernels occupy some of the
multiprocessors while they run.
"""

import json
import math
import sys

import bandwidth
import cuda
import noise
from load import Load, health_factor, wait

TORCH, NCCL = "2.8.0+cu129", "2.27.3"
SHAPE = {"--layers": 8, "--hidden": 8192, "--rows": 2048}
SECONDS = 3.0
BF16 = 1.8  # times the rate of TF32
UPDATE = 0.03  # of a step: the optimizer
TAKEN = 0.12  # of the multiprocessors, by NCCL's kernels


def python3(node, arguments: list) -> int:
    """Run the interpreter and return the program's exit status."""
    text = arguments[arguments.index("-c") + 1] if "-c" in arguments[:-1] else ""
    if "torch" not in text:
        print("python3: only a training with torch is simulated", file=sys.stderr)
        return 1
    words = arguments[arguments.index("-c") + 2 :]
    given = {words[at]: words[at + 1] for at in range(0, len(words) - 1, 2)}
    ranks, shape = int(given.get("--ranks", 1)), {name: int(given.get(name, SHAPE[name])) for name in SHAPE}
    wait(node, 12.0)  # until torch is loaded by all ranks
    gpus, problem = cuda.devices(node), _problem(node)
    if not problem and len(gpus) != ranks:
        problem = f"RuntimeError: torch sees {len(gpus)} GPUs instead of {ranks}"
    if problem:
        print(json.dumps({"errors": {str(rank): problem for rank in range(ranks)}}))
        return 1
    message = 2 * shape["--layers"] * shape["--hidden"] ** 2
    head = {"ddp_scaling": 1, "torch": TORCH, "nccl": NCCL, "backend": "nccl", "ranks": ranks}
    head.update({name[2:]: value for name, value in shape.items()}, gradient_bytes=message)
    print(json.dumps(head))
    with Load(node, "python3", gpus):
        Training(node, gpus, shape, message).run()
    print(json.dumps({"end": "complete"}))
    return 0


def _problem(node) -> str:
    """Return the error of torch.cuda.init(), or ""."""
    number = cuda.error(node)
    if not cuda.library_version(node, "libcuda.so.1") or (number == 100 and node.driver() is None):
        return (
            "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU "
            "and installed a driver from http://www.nvidia.com/Download/index.aspx"
        )
    if number == 100:
        return "RuntimeError: No CUDA GPUs are available"
    if number:
        return (
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions "
            "before calling NumCudaDevices() that might have already set an error? "
            f"Error {number}: {cuda.NAMES[number][1]}"
        )
    return ""


class Training:
    """The five phases; times in milliseconds."""

    def __init__(self, node, gpus: list, shape: dict, message: int) -> None:
        self.node, self.gpus, self.layers = node, gpus, shape["--layers"]
        self.message = message
        self.work = 6.0 * shape["--layers"] * shape["--hidden"] ** 2 * shape["--rows"]

    def run(self) -> None:
        """Let each phase's time pass and print its results."""
        wait(self.node, len(self.gpus) * (SECONDS / 3 + 0.3))
        alone = self._compute("alone")
        self._tell("alone", [one * (1.0 + UPDATE) for one in alone], alone, SECONDS / 3)
        wait(self.node, SECONDS)
        together = self._compute("together")
        self._tell("together", [one * (1.0 + UPDATE) for one in together], together)
        wait(self.node, SECONDS + 4.0)
        self._tell("all_reduce", [self._sums(rank) for rank in range(len(self.gpus))])
        wait(self.node, SECONDS)
        self._overlapped()
        wait(self.node, SECONDS + 1.0)
        self._ddp()

    def _compute(self, phase: str) -> list:
        """Return the time until each GPU has its gradients."""
        rate = self.node.sku["burn"]["tensor"] * 1e9 * BF16
        return [
            1e3
            * self.work
            / (rate * health_factor(self.node, gpu["slot"]))
            / noise.jitter(self.node, "training " + phase, gpu["slot"], 0.005)
            for gpu in self.gpus
        ]

    def _sums(self, rank: int) -> float:
        """Return the time of all messages of a step, one after another."""
        ranks, nvls = len(self.gpus), self.node.sku["architecture"] in ("Hopper", "Blackwell")
        best = bandwidth.collective(self.node, self.gpus, "all_reduce", nvls or not self.node.sku["fabric"])
        took = self.message * 2.0 * (ranks - 1) / ranks / (best * 0.85e9) + self.layers * 30e-6
        return 1e3 * took * noise.jitter(self.node, "training sums", rank, 0.002)

    def _beside(self, phase: str) -> list:
        """Return for each GPU its time to the gradients without messages, and its pace during messages."""
        found = []
        for gpu, free in zip(self.gpus, self._compute(phase)):  # noqa: B905 (strict came with 3.10)
            pace = (1.0 - TAKEN) * self.node.factor("overlap_slow", gpu=gpu["slot"])
            found.append((free, pace * noise.jitter(self.node, "training pace", gpu["slot"], 0.008)))
        return found

    def _overlapped(self) -> None:
        """Run the phase with continuous messages."""
        computed = [free / pace for free, pace in self._beside("overlapped")]
        rounds = math.ceil(1.25 * self._compute("together")[0] / self._sums(0))
        self._tell("overlapped", self._common(max(max(computed), rounds * self._sums(0))), computed)

    def _ddp(self) -> None:
        """Run the phase with messages from the first gradient on, after a third of the time."""
        sums, computed = self._sums(0), []
        for free, pace in self._beside("ddp"):
            during = min(2.0 / 3.0 * free, sums * pace)
            computed.append(free - during + during / pace)
        slowest = max(computed)
        # The last gradient is sent last, or the links have been busy since the first one.
        self._tell("ddp", self._common(max(slowest + sums / self.layers, slowest / 3.0 + sums)))

    def _common(self, computed: float) -> list:
        """Return the duration of a step that all GPUs end together."""
        step = computed * (1.0 + UPDATE)
        return [
            step * noise.jitter(self.node, "training step", rank, 0.001) for rank in range(len(self.gpus))
        ]

    def _tell(self, phase: str, steps: list, computed=(), seconds=SECONDS) -> None:
        common = [max(20, int(seconds * 1e3 / one)) for one in steps]
        if phase != "alone":
            common = [common[0]] * len(steps)
        found = {
            "phase": phase,
            "steps": [count - count // 4 for count in common],
            "step_ms": [round(one, 4) for one in steps],
        }
        if computed:
            found["compute_ms"] = [round(one, 4) for one in computed]
        print(json.dumps(found))
