"""Loader of scripts/hardware as a module."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

FILE = Path(__file__).resolve().parents[2] / "scripts/hardware"


def _loaded() -> ModuleType:
    loader = SourceFileLoader("gpuprov_hardware", str(FILE))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module  # its dataclasses look up their own module
    loader.exec_module(module)
    return module


script = _loaded()
