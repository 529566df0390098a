"""nccl_reduce_scatter over AMD's GPUs, by RCCL: see rccl.py."""

from __future__ import annotations

from provision.checks.nccl import nccl_reduce_scatter
from provision.checks.nccl.nccl_reduce_scatter import ID as ID
from provision.checks.nccl.nccl_reduce_scatter import NEEDS as NEEDS
from provision.checks.nccl.nccl_reduce_scatter import SUMMARY as SUMMARY
from provision.checks.vendors.amd import rccl

COLLECTIVE = rccl.of(nccl_reduce_scatter.COLLECTIVE)

commands = COLLECTIVE.commands
parse = COLLECTIVE.parse
judge = COLLECTIVE.judge
