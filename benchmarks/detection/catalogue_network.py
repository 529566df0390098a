"""Fault classes 30 to 40: RDMA cards, their ports and cables, and the traffic over them."""

from __future__ import annotations

from benchmarks.detection.cases import FAIL_OR_WARN, GPUS, NIC, NODE, Case, Draw, Entry, Expected, planted

HANDS = ("reseat or check cable", "replace part", "investigate")
CONFIGURE = ("fix configuration", "investigate")
# No 4-bit counters: those saturate at 15 on healthy ports, too.
COUNTERS = ("symbol_error", "link_error_recovery", "port_rcv_errors", "port_rcv_remote_physical_errors")


def _nic(draw: Draw) -> int:
    """Draw one of the cards between nodes; each GPU has one."""
    return draw.rng.randrange(GPUS)


def _down(draw: Draw) -> Case:
    nic, how = _nic(draw), draw.rng.choice(("polling", "training", "recovery", "no_sm"))
    actions = CONFIGURE if how == "no_sm" else HANDS
    return Case((f"port_down nic={nic} how={how}",), Expected((f"mlx5_{nic}",), actions, also=("node",)))


def _one_pair(draw: Draw) -> Case:
    return Case((f"one_queue_pair_slow factor={draw.rng.uniform(0.4, 0.8):.3f}",))


def _direct(draw: Draw) -> Case:
    if draw.rng.random() < 0.4:
        return Case(("gpudirect_off",), Expected(("node",), CONFIGURE, verdicts=("fail", "warn", "error")))
    nic = _nic(draw)
    fault = f"gpudirect_slow nic={nic} factor={draw.rng.uniform(0.2, 0.7):.3f}"
    return Case((fault,), Expected((f"mlx5_{nic}",), (*HANDS, "fix configuration")))


def _address(draw: Draw) -> Case:
    nic, roce = _nic(draw), draw.rng.random() < 0.4
    if roce:
        faults = [f"port_gid nic={nic} how=elsewhere", f"port_gid nic={nic} how=absent"]
    else:
        faults = [f"port_pkey nic={nic}", f"port_no_sm nic={nic}", f"port_mtu nic={nic} mtu=1024"]
    expected = Expected((f"mlx5_{nic}",), CONFIGURE, verdicts=("fail", "warn"))
    return Case((draw.rng.choice(faults),), expected, machine={"network": "roce" if roce else "ib"})


def _roce(draw: Draw) -> Case:
    # An InfiniBand port has no RoCE GIDs, a RoCE port has some; both are healthy.
    return Case(("storage_port_down",), machine={"network": draw.rng.choice(("ib", "roce"))})


_missing = planted(
    "nic_{how} nic={nic}",
    ("node", "nic slot {nic}"),
    (*HANDS, "power-cycle"),
    also=NODE,
    how=("missing", "driver"),
)
_narrow = planted("nic_pcie_width nic={nic} width={width}", NIC, HANDS, width=(1, 2, 4, 8))
_disabled = planted("port_disabled nic={nic}", variables={"gpuprov_expected_nics": GPUS})
_slow_port = planted("port_slow nic={nic} link={link}", NIC, HANDS, link=("1X", "2X", "EDR", "FDR"))
_split = planted("cables_split")
_flaps = planted("port_flaps nic={nic} count={severity}", NIC, (*HANDS, "watch"), FAIL_OR_WARN)
_one_flap = planted("port_flap_boot nic={nic}")
_errors = planted(
    "port_errors nic={nic} counter={counter} count={severity}",
    NIC,
    (*HANDS, "watch"),
    FAIL_OR_WARN,
    counter=COUNTERS,
)
_old_errors = planted(
    "port_errors_old nic={nic} counter={counter} count={count}", counter=COUNTERS, count=range(1, 201)
)
_loopback = planted("nic_slow nic={nic} factor={rest}", NIC, HANDS)
_without_cuda = planted("perftest_without_cuda")
_redundancy = planted("alltoall_slow factor={rest}", NODE, HANDS)
_overlap = planted(
    "overlap_slow gpu={gpu} factor={rest}",
    ("gpu{gpu}", "node"),
    ("investigate", "replace part"),
    FAIL_OR_WARN,
)

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
