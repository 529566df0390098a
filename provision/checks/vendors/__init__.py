"""GPU vendors with checks, one package each; a new vendor is a folder here and a line below."""

from __future__ import annotations

from provision.checks.vendor import Vendor
from provision.checks.vendors.amd import OFFERED as AMD
from provision.checks.vendors.nvidia import OFFERED as NVIDIA

ALL = {"nvidia": NVIDIA, "amd": AMD}


def offered(vendor: object) -> Vendor:
    """Return a vendor's checks; for an unknown vendor the first one's tools run and find no GPU."""
    return ALL.get(str(vendor), NVIDIA)
