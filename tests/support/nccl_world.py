"""Output of all_reduce_perf as one MPI program over several nodes."""

from __future__ import annotations

from collections.abc import Sequence

HEAD = """\
# nccl-tests version 2.17.6 nccl-headers=22907 nccl-library=22907
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 8 minBytes 8589934592 maxBytes 17179869184 step: 2(factor) warmup iters: 5 iters: 5 agg \
iters: 1 validation: 1 graph: 0
#
# Using devices
"""
_COLUMNS = """\
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw \
  busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""


def ranks(hosts: Sequence[str], gpus: int = 8) -> str:
    return "".join(
        f"#  Rank {host * gpus + gpu:2d} Group  0 Pid  {40100 + gpu} on {name:>10} device {gpu:2d} "
        f"[0000:{0x1A + gpu:02x}:00] NVIDIA H100 80GB HBM3\n"
        for host, name in enumerate(hosts)
        for gpu in range(gpus)
    )


def table(hosts: Sequence[str], busbw: float = 380.0, gpus: int = 8, wrong: str = "0") -> str:
    """Return the complete output of rank 0; `busbw` is the rate of the larger of two sizes, in GB/s."""
    count = len(hosts) * gpus
    rows = ""
    for size, rate in ((8589934592, busbw * 0.97), (17179869184, busbw)):
        algbw = rate / (2 * (count - 1) / count)
        run = f"{size / algbw / 1000:7.0f} {algbw:7.2f} {rate:7.2f} {wrong:>6}"
        rows += f" {size:11d} {size // 4:13d}     float     sum      -1 {run}  {run}\n"
    bad = 0 if wrong in ("0", "N/A") else 2 * int(wrong)
    return (
        f"{HEAD}{ranks(hosts, gpus)}{_COLUMNS}{rows}"
        f"# Out of bounds values : {bad} {'FAILED' if bad else 'OK'}\n# Avg bus bandwidth    : {busbw:.3f} \n"
        "#\n# Collective test concluded: all_reduce_perf\n#\n"
    )
