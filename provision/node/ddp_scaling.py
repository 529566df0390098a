"""Trains a fixed model with PyTorch: on each GPU alone, on all, and on all with gradients added up.

Runs on a node under any Python that has torch: `python3 -I -c TEXT --ranks 8`, with one process for each GPU,
rank N on CUDA's device N. It prints JSON objects, one on each line, and writes nothing else:

  {"ddp_scaling": 1, "torch": "2.8.0", "nccl": "2.27.3", "backend": "nccl", "ranks": 8,
   "layers": 8, "hidden": 8192, "rows": 2048, "gradient_bytes": 1073741824}
  {"phase": "alone", "steps": [50, …], "step_ms": [10.4, …], "compute_ms": [10.1, …]}
  {"phase": "together", …}
  {"phase": "all_reduce", "steps": [435, …], "step_ms": [5.1, …]}
  {"phase": "overlapped", "steps": …, "step_ms": …, "compute_ms": …}
  {"phase": "ddp", "steps": …, "step_ms": …}
  {"end": "complete"}

Each list has a value for each rank. `steps` were measured; `step_ms` is the median time from the start of a
step to its end; `compute_ms` ends with the last gradient, which waits for no other GPU: if all ranks end a
step together, it shows the rank that the others wait for.
Instead of a phase: {"errors": {"3": "RuntimeError: …"}}, by rank. Instead of everything:
{"ddp_scaling": 1, "absent": "why there is nothing to run"}.

`ddp` is DistributedDataParallel. A layer's gradient is larger than one of its buckets, so that `all_reduce`
adds up the same messages as a step. They may finish long before the computation: in `overlapped` they are
repeated often enough to last for the whole step.
"""

import argparse
import datetime
import importlib
import importlib.util
import json
import math
import os
import select
import signal
import socket
import statistics
import sys
import time

FORMAT = 1
FIRST_WORDS = 60  # seconds for all ranks to connect
LAST_WORDS = 2.0  # seconds for the other ranks' errors once one has failed
CALIBRATION, FEWEST, MOST = 5, 20, 1000  # steps
SETTLE = 0.25  # share of the steps that warm up and are not counted
OUTLAST = 1.25  # duration of the messages in `overlapped`, in steps without messages
BUCKET_MB = 25  # torch's default, stated because `all_reduce` relies on it


class AbsentError(Exception):
    """Nothing to run: torch is missing, or was built without CUDA."""


def main(arguments):
    parser = argparse.ArgumentParser(prog="ddp_scaling")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument(
        "--backend", choices=("nccl", "gloo"), default="nccl", help="gloo: on CPUs, to try it"
    )
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=8192)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a phase; a third for each GPU alone")
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("torch") is None:
        say({"ddp_scaling": FORMAT, "absent": "there is no torch in %s" % sys.executable})
        return 0
    port = free_port()
    children = []  # (process, handle of its messages)
    for rank in range(options.ranks):
        reader, writer = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(reader)
            os.dup2(2, 1)  # libraries' output must not mix with results
            run_rank(options, rank, port, os.fdopen(writer, "w"))
        os.close(writer)
        children.append((process, reader))
    try:
        return tell(children)
    finally:
        for process, _ in children:
            end(process)


def say(message):
    print(json.dumps(message), flush=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def end(process):
    """Kill a rank, which may have ended already."""
    try:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    except OSError:  # it was reaped before
        pass


def tell(children):
    """Print all ranks' messages of a phase as one line, until the first failure; return the exit status."""
    received = [[] for _ in children]
    unread = [b"" for _ in children]
    listening = {reader: rank for rank, (_, reader) in enumerate(children)}
    errors, until, printed = {}, None, 0
    while listening and (until is None or time.monotonic() < until):
        for reader in select.select(list(listening), [], [], 0.5)[0]:
            rank = listening[reader]
            data = os.read(reader, 65536)
            lines = (unread[rank] + data).split(b"\n")
            unread[rank] = lines.pop()
            for line in lines:
                message = json.loads(line.decode("utf-8"))
                if "error" in message:
                    errors[str(rank)] = message["error"]
                received[rank].append(message)
            if not data:
                del listening[reader]
                if not received[rank] or not {"end", "error", "absent"} & set(received[rank][-1]):
                    errors[str(rank)] = how_it_ended(children[rank][0])
        if errors and until is None:
            until = time.monotonic() + LAST_WORDS
        while not errors and printed < min(len(one) for one in received):
            say(merged([one[printed] for one in received]))
            printed += 1
    if errors:
        say({"errors": errors})
    return 1 if errors else 0


def how_it_ended(process):
    status = os.waitpid(process, 0)[1]
    if os.WIFSIGNALED(status):
        return "killed by signal %d" % os.WTERMSIG(status)
    return "ended with status %d" % os.WEXITSTATUS(status)


def merged(messages):
    """Merge all ranks' messages of a phase into lists; for other messages, return the first rank's."""
    first = messages[0]
    if "phase" not in first:
        return first
    return {
        name: value if name == "phase" else [one[name] for one in messages] for name, value in first.items()
    }


# --- one rank ---


def run_rank(options, rank, port, out):
    """Run a rank from its start to the end of its process."""

    def send(message):
        out.write(json.dumps(message) + "\n")
        out.flush()

    try:
        Rank(options, rank, port, send).run()
        send({"end": "complete"})
    except AbsentError as why:
        send({"ddp_scaling": FORMAT, "absent": str(why)})
    except BaseException as error:  # any exception of a library is this rank's answer
        words = str(error).strip().split("\n")[0]
        send({"error": ("%s: %s" % (type(error).__name__, words))[:400]})
    os._exit(0)  # the libraries' own teardown may hang, and adds nothing


class Rank:
    """One process of the group, and the GPU it computes on."""

    def __init__(self, options, rank, port, send):
        self.options, self.rank, self.send = options, rank, send
        self.torch = importlib.import_module("torch")
        self.dist = importlib.import_module("torch.distributed")
        self.cuda = options.backend == "nccl"
        if self.cuda:
            self.take_gpu()
        self.store = self.dist.TCPStore(
            "127.0.0.1", port, options.ranks, rank == 0, datetime.timedelta(seconds=FIRST_WORDS)
        )
        self.dist.init_process_group(
            options.backend,
            store=self.dist.PrefixStore("group", self.store),
            rank=rank,
            world_size=options.ranks,
        )
        self.computed = []  # marks of the last gradient of each step

    def take_gpu(self):
        torch = self.torch
        if torch.version.cuda is None:
            raise AbsentError("torch %s of %s was built without CUDA" % (torch.__version__, sys.executable))
        torch.cuda.init()  # raises the reason for a missing GPU; device_count would return 0
        if torch.cuda.device_count() != self.options.ranks:
            raise RuntimeError(
                "torch sees %d GPUs instead of %d" % (torch.cuda.device_count(), self.options.ranks)
            )
        torch.cuda.set_device(self.rank)

    def run(self):
        self.make_model()
        self.send(self.header() if self.rank == 0 else {})
        seconds, model = self.options.seconds, self.model
        for turn in range(self.options.ranks):
            self.meet("turn %d" % turn)
            if turn == self.rank:
                alone = self.measured(lambda: self.train(model), seconds / 3, "alone")
        self.meet("all turns")
        self.send(alone)
        together = self.measured(lambda: self.train(model), seconds, "together")
        self.send(together)
        sums = self.measured(self.add_up, seconds, "all_reduce")
        self.send(sums)
        rounds = self.agreed("rounds", math.ceil(OUTLAST * together["step_ms"] / sums["step_ms"]))
        self.send(self.measured(lambda: self.overlap(rounds), seconds, "overlapped"))
        shared = importlib.import_module("torch.nn.parallel").DistributedDataParallel(
            model,
            device_ids=[self.rank] if self.cuda else None,
            bucket_cap_mb=BUCKET_MB,
            gradient_as_bucket_view=True,
        )
        ddp = self.measured(lambda: self.train(shared), seconds, "ddp")
        del ddp["compute_ms"]  # its share that overlaps with messages differs between GPUs
        self.send(ddp)

    def header(self):
        nccl = ".".join(str(part) for part in self.torch.cuda.nccl.version()) if self.cuda else ""
        return {
            "ddp_scaling": FORMAT,
            "torch": str(self.torch.__version__),
            "nccl": nccl,
            "backend": self.options.backend,
            "ranks": self.options.ranks,
            "layers": self.options.layers,
            "hidden": self.options.hidden,
            "rows": self.options.rows,
            "gradient_bytes": sum(one.numel() * one.element_size() for one in self.parameters),
        }

    def make_model(self):
        """Build a chain of matrix multiplications; all ranks start with the same numbers."""
        torch, hidden = self.torch, self.options.hidden
        device, kind = ("cuda", torch.bfloat16) if self.cuda else ("cpu", torch.float32)
        if self.cuda and not torch.cuda.is_bf16_supported():
            kind = torch.float16
        torch.manual_seed(1)
        layers = [torch.nn.Linear(hidden, hidden, bias=False) for _ in range(self.options.layers)]
        self.model = torch.nn.Sequential(*layers).to(device=device, dtype=kind)
        self.parameters = list(self.model.parameters())
        for one in self.parameters:
            # This keeps a layer's output as large as its input: nothing vanishes, nothing overflows.
            torch.nn.init.normal_(one, std=hidden**-0.5)
        self.optimizer = torch.optim.SGD(self.parameters, lr=1e-6)
        self.input = torch.randn(self.options.rows, hidden, device=device, dtype=kind, requires_grad=True)
        self.gradient = torch.randn(self.options.rows, hidden, device=device, dtype=kind) * 1e-3
        # The gradient of the input is the last one computed, and waits for no other rank.
        self.input.register_hook(lambda _: self.computed.append(self.mark()))
        self.sums = [torch.zeros_like(one) for one in self.parameters]

    def meet(self, name):
        """Wait for all ranks without using their GPUs."""
        if self.store.add(name, 1) == self.options.ranks:
            self.store.set(name + ", all", "1")
        self.store.wait([name + ", all"])

    def agreed(self, name, number):
        """Return the first rank's number, on every rank."""
        if self.rank == 0:
            self.store.set(name, str(number))
        return int(self.store.get(name))

    def train(self, model):
        """Run one step of training."""
        self.input.grad = None
        self.optimizer.zero_grad()
        model(self.input).backward(self.gradient)
        self.optimizer.step()

    def add_up(self):
        """Send only the messages of one step: last layer first, the order of gradients."""
        works = [self.dist.all_reduce(one, async_op=True) for one in reversed(self.sums)]
        for work in works:
            work.wait()

    def overlap(self, rounds):
        """Run a step next to so many rounds of messages, and wait for all of them."""
        works = [self.dist.all_reduce(one, async_op=True) for _ in range(rounds) for one in self.sums]
        self.train(self.model)
        for work in works:
            work.wait()

    # -- time

    def mark(self):
        """Return a mark of this moment: of the GPU's work, when it gets there."""
        if not self.cuda:
            return time.perf_counter()
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, one, other):
        """Return the milliseconds from one mark to the other."""
        return one.elapsed_time(other) if self.cuda else 1000.0 * (other - one)

    def finish(self):
        """Wait until the GPU has done all its work."""
        if self.cuda:
            self.torch.cuda.synchronize()

    def measured(self, step, seconds, name):
        """Return medians of the steps in about so many seconds; all ranks do equally many unless alone."""
        step()
        self.finish()
        began = time.perf_counter()
        for _ in range(CALIBRATION):
            step()
        self.finish()
        each = (time.perf_counter() - began) / CALIBRATION
        steps = int(min(MOST, max(FEWEST, seconds / max(each, 1e-6))))
        if name != "alone":
            steps = self.agreed(name, steps)
        self.computed = []
        marks = []
        for _ in range(steps):
            begin = self.mark()
            step()
            marks.append((begin, self.mark()))
        self.finish()
        counted = range(int(SETTLE * steps), steps)
        step_ms = median(self.between(*marks[i]) for i in counted)
        result = {"phase": name, "steps": len(counted), "step_ms": step_ms}
        if self.computed:
            result["compute_ms"] = median(self.between(marks[i][0], self.computed[i]) for i in counted)
        return result


def median(values):
    return round(statistics.median(values), 4)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
