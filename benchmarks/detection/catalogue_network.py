"""Fault classes 30 to 40: RDMA cards, their ports and cables, and what crosses them."""

from __future__ import annotations

from benchmarks.detection.cases import GPUS, Case, Draw, Entry, Expected

HANDS = ("reseat or check cable", "replace part", "investigate")
CONFIGURE = ("fix configuration", "investigate")
COUNTERS = ("symbol_error", "link_error_recovery", "port_rcv_errors", "local_link_integrity_errors")


def _nic(draw: Draw) -> int:
    """One of the cards between nodes: there is one for each GPU."""
    return draw.rng.randrange(GPUS)


def _missing(draw: Draw) -> Case:
    nic, how = _nic(draw), draw.rng.choice(("missing", "driver"))
    # It has no name any more; the kernel numbers those that are left.
    expected = Expected(("node", f"nic slot {nic}"), (*HANDS, "power-cycle"), also=("node",))
    return Case((f"nic_{how} nic={nic}",), expected)


def _narrow(draw: Draw) -> Case:
    nic = _nic(draw)
    fault = f"nic_pcie_width nic={nic} width={draw.rng.choice((1, 2, 4, 8))}"
    return Case((fault,), Expected((f"mlx5_{nic}",), HANDS))


def _down(draw: Draw) -> Case:
    nic, how = _nic(draw), draw.rng.choice(("polling", "training", "recovery", "no_sm"))
    actions = CONFIGURE if how == "no_sm" else HANDS
    return Case((f"port_down nic={nic} how={how}",), Expected((f"mlx5_{nic}",), actions, also=("node",)))


def _disabled(draw: Draw) -> Case:
    return Case((f"port_disabled nic={_nic(draw)}",), variables={"gpuprov_expected_nics": GPUS})


def _slow_port(draw: Draw) -> Case:
    nic, link = _nic(draw), draw.rng.choice(("1X", "2X", "EDR", "FDR"))
    return Case((f"port_slow nic={nic} link={link}",), Expected((f"mlx5_{nic}",), HANDS))


def _split(_: Draw) -> Case:
    return Case(("cables_split",))


def _flaps(draw: Draw) -> Case:
    nic = _nic(draw)
    fault = f"port_flaps nic={nic} count={round(draw.severity)}"
    return Case((fault,), Expected((f"mlx5_{nic}",), (*HANDS, "watch"), verdicts=("fail", "warn")))


def _one_flap(draw: Draw) -> Case:
    return Case((f"port_flap_boot nic={_nic(draw)}",))


def _errors(draw: Draw) -> Case:
    nic = _nic(draw)
    fault = f"port_errors nic={nic} counter={draw.rng.choice(COUNTERS)} count={round(draw.severity)}"
    return Case((fault,), Expected((f"mlx5_{nic}",), (*HANDS, "watch"), verdicts=("fail", "warn")))


def _old_errors(draw: Draw) -> Case:
    fault = f"port_errors_old nic={_nic(draw)} counter={draw.rng.choice(COUNTERS)}"
    return Case((f"{fault} count={draw.rng.randint(1, 200)}",))


def _loopback(draw: Draw) -> Case:
    nic = _nic(draw)
    return Case((f"nic_slow nic={nic} factor={draw.rest}",), Expected((f"mlx5_{nic}",), HANDS))


def _one_pair(draw: Draw) -> Case:
    return Case((f"one_queue_pair_slow factor={draw.rng.uniform(0.4, 0.8):.3f}",))


def _direct(draw: Draw) -> Case:
    if draw.rng.random() < 0.4:
        return Case(("gpudirect_off",), Expected(("node",), CONFIGURE, verdicts=("fail", "warn", "error")))
    nic = _nic(draw)
    fault = f"gpudirect_slow nic={nic} factor={draw.rng.uniform(0.2, 0.7):.3f}"
    return Case((fault,), Expected((f"mlx5_{nic}",), (*HANDS, "fix configuration")))


def _without_cuda(_: Draw) -> Case:
    return Case(("perftest_without_cuda",))


def _address(draw: Draw) -> Case:
    nic, roce = _nic(draw), draw.rng.random() < 0.4
    if roce:
        faults = (f"port_gid nic={nic} how=elsewhere", f"port_gid nic={nic} how=absent")
    else:
        faults = (f"port_pkey nic={nic}", f"port_no_sm nic={nic}", f"port_mtu nic={nic} mtu=1024")
    expected = Expected((f"mlx5_{nic}",), CONFIGURE, verdicts=("fail", "warn"))
    return Case((draw.rng.choice(faults),), expected, machine={"network": "roce" if roce else "ib"})


def _roce(draw: Draw) -> Case:
    # An InfiniBand port has no RoCE GIDs, and a RoCE port has: both are as they should be.
    return Case(("storage_port_down",), machine={"network": draw.rng.choice(("ib", "roce"))})


def _redundancy(draw: Draw) -> Case:
    expected = Expected(("node",), HANDS)
    return Case((f"alltoall_slow factor={draw.rest}",), expected)


def _overlap(draw: Draw) -> Case:
    gpu = draw.gpu()
    expected = Expected((f"gpu{gpu}", "node"), ("investigate", "replace part"), verdicts=("fail", "warn"))
    return Case((f"overlap_slow gpu={gpu} factor={draw.rest}",), expected)


ENTRIES = (
    Entry(30, "NIC missing", _missing),
    Entry(31, "IB port down or polling", _down),
    Entry(31, "port switched off by an administrator", _disabled, trap=True),
    Entry(32, "IB rate or width reduced", _slow_port),
    Entry(32, "split cables by design", _split, trap=True),
    Entry(32, "PCIe of a NIC narrow", _narrow, variant="p"),
    Entry(33, "link flapping", _flaps, "times since boot", (100, 100_000), (2, 500)),
    Entry(33, "one flap at boot", _one_flap, trap=True),
    Entry(34, "symbol or bit errors", _errors, "errors since boot", (10**6, 10**12), (100, 10**6)),
    Entry(34, "errors of months", _old_errors, trap=True),
    Entry(35, "IB loopback slow", _loopback, "slowdown", (0.2, 0.8), (0.01, 0.3)),
    Entry(35, "single queue pair slow", _one_pair, trap=True),
    Entry(36, "GPUDirect RDMA absent", _direct),
    Entry(36, "perftest without CUDA", _without_cuda, trap=True),
    Entry(37, "GID, PKey, MTU or SM wrong", _address),
    Entry(37, "storage port not in use", _roce, trap=True),
    Entry(40, "straggler under overlap only", _overlap, "slowdown", (0.3, 0.8), (0.05, 0.4)),
    Entry(
        40, "slow only when all pairs talk", _redundancy, "slowdown", (0.25, 0.8), (0.01, 0.3), variant="a"
    ),
)
