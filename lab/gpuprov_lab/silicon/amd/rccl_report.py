"""The output of an rccl-tests program: nccl-tests' table under its own header.

Forms: src/common.cu of ROCm/rccl-tests at ae3e635 (its revision of September 2024), with the additional lines
of newer ones (public outputs of MI350X with RCCL 2.27: the ranks' groups, RCCL's, HIP's and ROCm's versions).
"""

import platform
import sys

from nccl import report

from amd import smi

NEWER = (7, 0)  # the release of ROCm with the newer header
VERSIONS = {(6, 4): "2.22.3", (7, 0): "2.26.6", (7, 1): "2.27.7", (7, 2): "2.27.7"}


class Report(report.Report):
    """The output of one run."""

    def __init__(self, node, program: str, options, arguments: list) -> None:
        self.node, self.program, self.options, self.arguments = node, program, options, arguments
        self.version, self.document = "2.13", None
        self.release = smi.rocm(node)

    def head(self) -> None:
        number = self.options.number
        factor = number("f")
        step = f"{factor}(factor)" if factor > 1 else f"{self.options.step}(bytes)"
        if self.release >= NEWER:
            print(f"# Collective test starting: {self.program}")
        print(
            f"# nThread {number('t')} nGpus {number('g')} minBytes {self.options.smallest} maxBytes "
            f"{self.options.largest} step: {step} warmup iters: {number('w')} iters: {number('n')} "
            f"agg iters: {number('m')} validation: {number('c')} graph: {number('G')}"
        )
        version = "develop:6405c76" if self.release >= NEWER else "develop:ae3e635"
        print(f"#\nrccl-tests: Version {version}\n# Using devices")

    def devices(self, met: list) -> None:
        """Print one line for each GPU of all processes."""
        rank = 0
        for one in met:
            for gpu in one["gpus"]:
                if self.release >= NEWER:
                    who, address = f"#  Rank {rank:2d} Group  0 Pid {one['pid']:6d}", gpu["address"].lower()
                else:
                    who, address = f"#   Rank {rank:2d} Pid {one['pid']:6d}", f"{gpu['address'].lower()}.0"
                print(f"{who} on {one['host']:>10} device {gpu['device']:2d} [{address}] {one['product']}")
                rank += 1
        if self.release >= NEWER:
            version = VERSIONS.get(self.release, "2.27.7")
            print(f"RCCL version : {version}-develop:29e1567")
            print("ROCm version : {}.{}.0".format(*self.release))

    def too_few(self, wanted: int, there: int) -> int:
        where = f" on node ({platform.node()})" if wanted > len(self.node.gpus) else ""
        print(
            f"[ERROR] The number of requested GPUs ({wanted}) is greater than the number of GPUs available "
            f"({there}){where}",
            file=sys.stderr,
        )
        return 3

    def footer(self, errors: int, average: float, least: float) -> None:
        judged = "" if least == -1 else "FAILED" if average < least * 0.9 else "OK"
        print("# Errors with asterisks indicate errors that have exceeded the maximum threshold.")
        print(f"# Out of bounds values : {errors} {'FAILED' if errors else 'OK'}")
        print(f"# Avg bus bandwidth    : {average:g} {judged}")
        print("#\n")
