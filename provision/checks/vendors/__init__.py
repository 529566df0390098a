"""The vendors whose GPUs are checked, a package each. A new one is a folder here, and a line."""

from __future__ import annotations

from provision.checks.vendor import Vendor
from provision.checks.vendors.amd import OFFERED as AMD
from provision.checks.vendors.nvidia import OFFERED as NVIDIA

ALL = {"nvidia": NVIDIA, "amd": AMD}


def offered(vendor: object) -> Vendor:
    """What there is for this vendor's GPUs. Whosever a node's GPUs are that nobody knows, the first vendor's
    tools are asked, and say that they find none."""
    return ALL.get(str(vendor), NVIDIA)
