"""Collectives over AMD's GPUs: rccl-tests, RCCL's programs, print the same format as nccl-tests.

RCCL reads NCCL's variables, including the ones that disable links between GPUs, and numbers GPUs as HIP does.
The GPU of a rank does not matter, since a collective uses all of them.
"""

from __future__ import annotations

from dataclasses import replace

from provision.checks.nccl import collectives, nccl_network
from provision.checks.nccl.nccl_table import Suite
from provision.checks.pairs import nccl_between

RCCL_TESTS = Suite(
    "rccl-tests",
    "HIP",
    "look at the kernel log, and for xGMI links that are down",
    "amd_validation_tools_",
    "AMD has no package of rccl-tests: set amd_validation_tools_rccl_tests_method, then gpuprov up",
)

ALL_REDUCE = replace(collectives.ALL_REDUCE, suite=RCCL_TESTS)
ALL_GATHER = replace(collectives.ALL_GATHER, suite=RCCL_TESTS)
REDUCE_SCATTER = replace(collectives.REDUCE_SCATTER, suite=RCCL_TESTS)
ALL_TO_ALL = replace(collectives.ALL_TO_ALL, suite=RCCL_TESTS)
OVER_CARDS = nccl_network.OverCards(replace(nccl_network.COLLECTIVE, suite=RCCL_TESTS))
_BETWEEN = replace(nccl_between.COLLECTIVE, suite=RCCL_TESTS)
PAIR = replace(nccl_between.NCCL_PAIR, COLLECTIVE=_BETWEEN)
GROUP = replace(nccl_between.NCCL_GROUP, COLLECTIVE=_BETWEEN)
