"""nccl_alltoall over AMD's GPUs, by RCCL: see rccl.py."""

from __future__ import annotations

from provision.checks.nccl import nccl_alltoall
from provision.checks.nccl.nccl_alltoall import ID as ID
from provision.checks.nccl.nccl_alltoall import NEEDS as NEEDS
from provision.checks.nccl.nccl_alltoall import SUMMARY as SUMMARY
from provision.checks.vendors.amd import rccl

COLLECTIVE = rccl.of(nccl_alltoall.COLLECTIVE)

commands = COLLECTIVE.commands
parse = COLLECTIVE.parse
judge = COLLECTIVE.judge
