"""Collectives over AMD's GPUs: RCCL's programs, rccl-tests, print as NVIDIA's nccl-tests do."""

from __future__ import annotations

from dataclasses import replace

from provision.checks.nccl.nccl_collective import Collective
from provision.checks.nccl.nccl_table import Suite

RCCL_TESTS = Suite(
    "rccl-tests",
    "HIP",
    "look at the kernel log, and for xGMI links that are down",
    "amd_validation_tools_",
    "AMD has no package of rccl-tests: set amd_validation_tools_rccl_tests_method, then gpuprov up",
)


def of(collective: Collective) -> Collective:
    """The collective as AMD's programs do it. RCCL reads NCCL's variables, and numbers GPUs as HIP does:
    which rank is which GPU matters to nobody, for a collective is all of them."""
    return replace(collective, suite=RCCL_TESTS)
