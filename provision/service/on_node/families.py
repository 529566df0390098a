"""The probes of facts by family: each family's file enters itself in the list when it is imported."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Collection


def load(names: Collection[str]) -> None:
    """Import what reads these facts. A family that nobody knows is left to the observer to say."""
    for family in sorted({name.partition(".")[0] for name in names}):
        module = f"provision.node.observe.{family}"
        if importlib.util.find_spec(module) is not None:
            importlib.import_module(module)
