"""nccl_group over AMD's GPUs, by RCCL: see rccl.py."""

from __future__ import annotations

from dataclasses import replace

from provision.checks.pairs import nccl_between, nccl_group
from provision.checks.pairs.nccl_group import FACTS as FACTS
from provision.checks.pairs.nccl_group import ID as ID
from provision.checks.pairs.nccl_group import SUMMARY as SUMMARY
from provision.checks.vendors.amd import rccl

COLLECTIVE = rccl.of(nccl_group.COLLECTIVE)
METRIC = replace(nccl_group.METRIC, installs=nccl_between.installs(COLLECTIVE.suite))
