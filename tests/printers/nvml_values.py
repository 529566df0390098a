"""A healthy machine by the values of NVML, for the SKUs that the product knows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from gpuprov_lab.silicon.nvidia_smi.nvml_values import BUSES, Machine
from provision import shipped
from provision.errors import StackError


def address(index: int) -> str:
    """The PCI address of a GPU, as sysfs spells it."""
    return f"0000:{BUSES[index]:02x}:00.0"


def machine(sku: str, driver: str, count: int = 4) -> Machine:
    """A healthy machine of a SKU; it has four GPUs at least, since a fault is one of the fourth.

    Raises StackError for a SKU that is not known.
    """
    return Machine(sku, _described(sku), driver, count)


@cache
def _described(sku: str) -> Mapping[str, Any]:
    return shipped.load_mapping(f"skus/{sku}", StackError)
