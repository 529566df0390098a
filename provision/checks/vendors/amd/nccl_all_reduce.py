"""nccl_all_reduce over AMD's GPUs, by RCCL: see rccl.py."""

from __future__ import annotations

from provision.checks.nccl import nccl_all_reduce
from provision.checks.nccl.nccl_all_reduce import ID as ID
from provision.checks.nccl.nccl_all_reduce import NEEDS as NEEDS
from provision.checks.nccl.nccl_all_reduce import SUMMARY as SUMMARY
from provision.checks.vendors.amd import rccl

COLLECTIVE = rccl.of(nccl_all_reduce.COLLECTIVE)

commands = COLLECTIVE.commands
parse = COLLECTIVE.parse
judge = COLLECTIVE.judge
