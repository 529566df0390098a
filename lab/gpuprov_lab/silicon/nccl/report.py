"""The output of an nccl-tests program, and the JSON file that it writes with -J."""

import json
import os
import platform
import sys
import time
from pathlib import Path

import cuda

UNAVAILABLE = "  N/A"  # one character narrower than a count (src/util.cu:508, 510)


def fitted(value: float, width: int) -> str:
    """Format a number in at most `width` characters: two decimals, one, none, or an exponent."""
    for form in ("{:{}.2f}", "{:{}.1f}", "{:{}.0f}"):
        text = form.format(value, width)
        if len(text) <= width:
            return text
    return "{:{}.1e}".format(value, width) if width >= 7 else "{:{}.0e}".format(value, width)


def _number(value: float):
    return "nan" if value != value else float(f"{value:f}")


NAMES = {"all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter"}


def tell_choice(name: str, size: int, algorithm: str, times: int) -> None:
    """Print what NCCL_DEBUG=INFO shows of the subsystem TUNING: a line for each operation of rank 0.

    For NCCL an all-to-all consists of sends and receives, for which no algorithm is chosen. The lines go to
    NCCL_DEBUG_FILE, by default between the program's own lines.
    """
    subsystems = os.environ.get("NCCL_DEBUG_SUBSYS", "INIT,ENV").upper().split(",")
    level = os.environ.get("NCCL_DEBUG", "").upper()
    if name not in NAMES or level not in ("INFO", "TRACE") or not {"TUNING", "ALL"} & set(subsystems):
        return
    line = "{}:{}:{} [0] NCCL INFO {}: {} Bytes -> Algo {} proto SIMPLE channel{{Lo..Hi}}={{0..15}}\n".format(
        platform.node().split(".")[0], os.getpid(), os.getpid(), NAMES[name], size, algorithm
    )
    path = os.environ.get("NCCL_DEBUG_FILE", "")
    if path == "/dev/stderr":
        sys.stderr.write(line * times)
    elif path:
        with Path(path).open("a") as stream:
            stream.write(line * times)
    else:
        sys.stdout.write(line * times)


def too_few(wanted: int, there: int) -> int:
    """Print the error about too few GPUs and return the exit status."""
    print(f"Invalid number of GPUs: {wanted} requested but only {there} were found.", file=sys.stderr)
    print("Please check the number of processes and GPUs per process.", file=sys.stderr)
    return 5


class Silent:
    """A report that prints nothing, for all processes but the first."""

    def head(self) -> None: ...

    def devices(self, met: list) -> None: ...

    def too_few(self, wanted: int, there: int) -> int:
        return too_few(wanted, there)

    def reduced(self, most: int) -> None: ...

    def table_head(self) -> None: ...

    def row(self, row: dict) -> None: ...

    def footer(self, errors: int, average: float, least: float) -> None: ...

    def close(self) -> None: ...


class Report:
    """The output of one run; `close` writes the JSON file if one is requested."""

    def __init__(self, node, program: str, options, arguments: list) -> None:
        self.node, self.program, self.options = node, program, options
        self.version = os.environ.get("SILICON_VERSION") or "2.17.6"
        parts = [int(part) for part in (cuda.library_version(node, "libnccl.so.2") + ".0.0").split(".")[:3]]
        self.nccl = parts[0] * 10000 + parts[1] * 100 + parts[2]
        self.document, self.path = None, None
        if options.values["J"]:
            self._open(options.values["J"], arguments)

    def _open(self, asked: str, arguments: list) -> None:
        if not asked.endswith(".json"):
            return
        path, tried = Path(asked), 0
        while path.exists():
            path, tried = Path(f"{asked}.{tried}"), tried + 1
        try:
            path.touch()
        except OSError:
            print(f"# skipping json output; {path} not accessible")
            return
        print(f"# Writing JSON output to {path}")
        self.path = path
        self.document = {
            "version": 3 if self.version >= "2.19" else 2,
            "start_time": _now(),
            "args": [self.program, *arguments],
            "env": [f"{key}={value}" for key, value in os.environ.items()],
            "nccl_version": self.nccl,
        }

    def head(self) -> None:
        """Print versions and settings."""
        number, values = self.options.number, self.options.values
        factor = number("f")
        step = f"{factor}(factor)" if factor > 1 else f"{self.options.step}(bytes)"
        unalign = f" unalign: {number('u')}" if self.version >= "2.18" else ""
        print(f"# nccl-tests version {self.version} nccl-headers={self.nccl} nccl-library={self.nccl}")
        print(f"# Collective test starting: {self.program}")
        print(
            f"# nThread {number('t')} nGpus {number('g')} minBytes {self.options.smallest} maxBytes "
            f"{self.options.largest} "
            f"step: {step} warmup iters: {number('w')} iters: {number('n')} agg iters: {number('m')} "
            f"validation: {number('c')} graph: {number('G')}{unalign}"
        )
        print("#\n# Using devices")
        if self.document is None:
            return
        config = {
            "nthreads": number("t"),
            "ngpus": number("g"),
            "minimum_bytes": self.options.smallest,
            "maximum_bytes": self.options.largest,
        }
        config.update({"step_factor": factor} if factor > 1 else {"step_bytes": self.options.step})
        config.update(
            warmup_iters=number("w"),
            iterations=number("n"),
            aggregated_iterations=number("m"),
            validation=number("c"),
            graph=number("G"),
            blocking_collectives="true" if values["z"] != "0" else "false",
            parallel_init="true" if values["p"] != "0" else "false",
        )
        self.document["config"] = config

    def devices(self, met: list) -> None:
        """Print a line for each GPU of all processes; the JSON lists each process's first only (util.cu)."""
        rank, first = 0, []
        for one in met:
            for place, gpu in enumerate(one["gpus"]):
                print(
                    f"#  Rank {rank:2d} Group  0 Pid {one['pid']:6d} on {one['host']:>10} "
                    f"device {gpu['device']:2d} [{gpu['address']}] {one['product']}"
                )
                if place == 0:
                    first.append(
                        {
                            "rank": rank,
                            "group": 0,
                            "pid": one["pid"],
                            "hostname": one["host"],
                            "device": gpu["device"],
                            "device_hex": gpu["address"],
                            "device_info": one["product"],
                        }
                    )
                rank += 1
        if self.document is not None:
            self.document["config"]["devices"] = first

    def too_few(self, wanted: int, there: int) -> int:
        """Return the exit status of a run that requests more GPUs than exist."""
        return too_few(wanted, there)

    def reduced(self, most: int) -> None:
        """Report that sizes too large for the GPUs' memory are left out."""
        print(f"#\n# Reducing maxBytes to {most} due to memory limitation")

    def table_head(self) -> None:
        """Print the three lines above the table."""
        wrong = "" if self.version >= "2.18" else 5
        print("#")
        print(
            "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}           out-of-place                       "
            "in-place          ".format(*[""] * 5)
        )
        names = ("size", "count", "type", "redop", "root", *("time", "algbw", "busbw", "#wrong") * 2)
        units = ("(B)", "(elements)", "", "", "", *("(us)", "(GB/s)", "(GB/s)", "") * 2)
        last = 6 if wrong == "" else 5
        for words, width in ((names, 6), (units, last)):
            head = "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}".format(*words[:5])
            body = "".join(
                f"  {words[at]:>7}  {words[at + 1]:>6}  {words[at + 2]:>6}  {words[at + 3]:>{width}}"
                for at in (5, 9)
            )
            print(head + body + (" " if wrong == "" else ""))
        if self.document is not None:
            self.document["results"] = []

    def row(self, row: dict) -> None:
        """Print the row of one size."""
        text = f"{row['size']:12d}  {row['count']:12d}  {row['type']:>8}  {row['redop']:>6}  {-1:6d}"
        for body in row["bodies"]:
            wrong = UNAVAILABLE if body["nwrong"] is None else "{:>6g}".format(body["nwrong"])
            rates = f"{fitted(body['alg_bw'], 6)}  {fitted(body['bus_bw'], 6)}"
            text += f"  {fitted(body['time'], 7)}  {rates}  {wrong}"
        print(text)
        if self.document is None:
            return
        result = {key: row[key] for key in ("size", "count", "type", "redop")}
        result["root"] = f"{-1:6d}"
        for place, body in (("out_of_place", row["bodies"][0]), ("in_place", row["bodies"][1])):
            result[place] = {key: _number(body[key]) for key in ("time", "alg_bw", "bus_bw")}
            result[place]["nwrong"] = None if body["nwrong"] is None else float(body["nwrong"])
        result.update(actual_iterations=self.options.number("n"), experiment_name="")
        self.document["results"].append(result)

    def footer(self, errors: int, average: float, least: float) -> None:
        """Print the summary."""
        judged = "" if least == -1 else "FAILED" if average < least * 0.9 else "OK"
        print(f"# {'Out of bounds values':<20} : {errors} {'FAILED' if errors else 'OK'}")
        print(f"# {'Avg bus bandwidth':<20} : {average:g} {judged}")
        print(f"#\n# Collective test concluded: {self.program}\n#\n")
        if self.document is not None:
            self.document["out_of_bounds"] = {"count": errors, "okay": "false" if errors else "true"}
            okay = "unchecked" if least == -1 else "true" if judged == "OK" else "false"
            self.document["average_bus_bandwidth"] = {"bandwidth": _number(average), "okay": okay}
            self.document["errors"] = []

    def close(self) -> None:
        """Write the JSON file, also after a failed run."""
        if self.document is not None:
            self.document["end_time"] = _now()
            self.path.write_text(json.dumps(self.document, separators=(",", ":")))


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")
