"""nccl_network over AMD's GPUs, by RCCL: see rccl.py. Of NCCL's settings that keep GPUs from their own links
RCCL reads the same ones."""

from __future__ import annotations

from provision.checks.nccl import nccl_network
from provision.checks.nccl.nccl_network import FACTS as FACTS
from provision.checks.nccl.nccl_network import ID as ID
from provision.checks.nccl.nccl_network import NEEDS as NEEDS
from provision.checks.nccl.nccl_network import SUMMARY as SUMMARY
from provision.checks.vendors.amd import rccl

OVER_CARDS = nccl_network.OverCards(rccl.of(nccl_network.COLLECTIVE))

commands = OVER_CARDS.commands
parse = OVER_CARDS.parse
judge = OVER_CARDS.judge
