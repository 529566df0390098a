"""nccl_pair over AMD's GPUs, by RCCL: see rccl.py."""

from __future__ import annotations

from dataclasses import replace

from provision.checks.pairs import nccl_between, nccl_pair
from provision.checks.pairs.nccl_pair import FACTS as FACTS
from provision.checks.pairs.nccl_pair import ID as ID
from provision.checks.pairs.nccl_pair import SUMMARY as SUMMARY
from provision.checks.vendors.amd import rccl

COLLECTIVE = rccl.of(nccl_pair.COLLECTIVE)
METRIC = replace(nccl_pair.METRIC, installs=nccl_between.installs(COLLECTIVE.suite))
