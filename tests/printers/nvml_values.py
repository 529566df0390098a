"""A healthy machine as NVML values, for the SKUs that the product supports."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from gpuprov_lab.silicon.nvidia_smi.nvml_values import BUSES, Machine
from provision import shipped
from provision.errors import StackError


def address(index: int) -> str:
    """Return a GPU's PCI address as spelled in sysfs."""
    return f"0000:{BUSES[index]:02x}:00.0"


def machine(sku: str, driver: str, count: int = 4) -> Machine:
    """Return a healthy machine of a SKU with at least four GPUs, since faults affect the fourth.

    Raises StackError for an unknown SKU.
    """
    return Machine(sku, _described(sku), driver, count)


@cache
def _described(sku: str) -> Mapping[str, Any]:
    return shipped.load_mapping(f"skus/{sku}", StackError)
