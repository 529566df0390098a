"""Nodes with RDMA ports, and the output of ib_write_bw between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from provision.checks.check import Output

RATE = 400  # Gb/s of each port
_COUNTERS = ("symbol_error", "link_downed")


def facts(devices: Iterable[str] = ("mlx5_0", "mlx5_1"), rate: int = RATE, **more: Any) -> dict[str, Any]:
    """Return the facts of a node with these InfiniBand cards; `device/port` names one port of several."""
    ports = [
        {
            **{"device": name.partition("/")[0], "port": name.partition("/")[2] or "1", "state": "ACTIVE"},
            **{"link_layer": "InfiniBand", "phys_state": "LinkUp", "rate": rate, "link": "4X NDR"},
            **{"lid": 1, "sm_lid": 1, "board_id": "MT_0000000838", "address": "0000:18:00.0", "pkeys": ""},
            **{"gids": 1, "roce_v2_ipv4": "", "netdev": None, "netdev_up": None, "carrier_downs": None},
            **more,
        }
        for name in devices
    ]
    counters = [
        {"device": port["device"], "port": port["port"], **dict.fromkeys(_COUNTERS, 0)} for port in ports
    ]
    mtus = {f"{port['device']}/{port['port']}": 4096 for port in ports}
    return {"hca.ports": ports, "hca.counters": counters, "hca.mtus": mtus}


def printed(rate: float, device: str = "mlx5_0", pairs: int = 4, size: int = 8388608) -> str:
    """Return a client's output after its transfer."""
    rule = "-" * 87
    return (
        f"{rule}\n                    RDMA_Write BW Test\n"
        f" Dual-port       : OFF          Device         : {device}\n"
        f" Number of qps   : {pairs}            Transport type : IB\n{rule}\n"
        " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
        f" {size}    4000             {rate:.2f}             {rate:.2f}             0.005850\n{rule}\n"
    )


def printed_latency(median: float, device: str = "mlx5_0", size: int = 2) -> str:
    """Return the output of an ib_write_lat client after its messages."""
    rule = "-" * 87
    return (
        f"{rule}\n                    RDMA_Write Latency Test\n"
        f" Dual-port       : OFF\t\tDevice         : {device}\n"
        f" Number of qps   : 1\t\tTransport type : IB\n{rule}\n"
        " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]"
        "   99% percentile[usec]   99.9% percentile[usec] \n"
        f" {size:<7d} 5000          {median * 0.95:<7.2f}        {median * 3:<7.2f}      {median:<7.2f}  "
        f"\t       {median:<7.2f}     \t0.18   \t\t{median * 1.1:<7.2f} \t\t{median * 2:<7.2f}\n{rule}\n"
    )


SERVING = "\n************************************\n* Waiting for client to connect... *\n"
NOBODY = (
    "Couldn't connect to 10.0.0.1:18700\n Unable to open file descriptor for socket connection\n"
    " Unable to init the socket connection\n"
)
NO_DEVICE = " IB device mlx5_0 not found\n Unable to find the Infiniband/RoCE device\n"


def output(name: str = "mlx5_0", **more: Any) -> Output:
    """Return a program's output, by default empty and with exit status 0."""
    plain: Mapping[str, Any] = {
        **{"argv": ("ib_write_bw",), "rc": 0, "stdout": "", "stderr": "", "seconds": 1.5},
        **{"timed_out": False, "truncated": False, "not_started": ""},
    }
    return Output(**{"name": name, **plain, **more})
