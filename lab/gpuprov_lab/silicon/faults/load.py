"""The faults that only appear under load: network loopback, memory, disks; see catalogue.py.

A card is `nic`, mlx5_<nic> on a healthy node.
"""

from faults.network import nic
from faults.parameters import factor, gpu, onset

# id -> (meaning, parameters)
FAULTS = {
    "nic_slow": ("an RDMA card is slow, also towards itself", [nic(), factor(0.6)]),
    "gpudirect_slow": (
        "the way between an RDMA card and GPU memory is slow, from host memory it is not",
        [nic(), factor(0.5)],
    ),
    "gpudirect_off": ("GPU memory cannot be registered with RDMA cards", []),
    "memory_slow": ("a GPU's own memory is slow", [gpu(), factor(0.7), onset()]),
    "alltoall_slow": ("links have lost their redundancy: only all pairs at once are slow", [factor(0.7)]),
    "overlap_slow": (
        "a GPU computes slowly while it communicates, and only then",
        [gpu(), factor(0.6), onset()],
    ),
    "disk_slow": ("a disk is slow", [factor(0.3), onset()]),
    "dcgm_fails": ("dcgmi diag finds a GPU's memory bad", [gpu()]),
    "one_queue_pair_slow": (
        "look-alike: one queue pair alone does not fill a port, several do",
        [factor(0.55)],
    ),
    "nccl_tests_without_mpi": (
        "look-alike: the nccl-tests programs were built without MPI: each process is a run of its own",
        [],
    ),
    "perftest_without_cuda": ("look-alike: ib_write_bw was built without CUDA, or ROCm", []),
    "numa_remote": (
        "look-alike: host memory of the other socket is slower, to a program that does not bind itself",
        [factor(0.7)],
    ),
    "scratch_old": ("look-alike: the disk is an old, but healthy kind", [factor(0.6)]),
}
