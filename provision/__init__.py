"""gpuprov: GPU machines from bare Linux to proven ready for production."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing's own would cost `gpuprov --help` a sixth of its time
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__version__ = "0.1.0"


# What users import or name on a command line (own checks, `pytest --pyargs`), by its name until 0.1.
_MOVED = {
    "provision.judge": "provision.checks.judge",
    "provision.thresholds": "provision.checks.thresholds",
    "provision.testinfra_suite": "provision.drift.testinfra",
}


class _OldNames:
    """Finds a moved module by its old name, with a warning that names the new one."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        if name not in _MOVED:
            return None
        import importlib.util
        import warnings

        warnings.warn(f"{name} is now {_MOVED[name]}", DeprecationWarning, stacklevel=2)
        new = importlib.util.find_spec(_MOVED[name])
        if new is None or new.submodule_search_locations is not None:
            return new  # pytest --pyargs looks for a folder, and imports nothing by this name
        return importlib.util.spec_from_loader(name, _Copy(), origin=new.origin)  # type: ignore[arg-type]


class _Copy:
    """Gives the old name the very objects of the new module: a second execution would make other classes."""

    @staticmethod
    def create_module(_spec: ModuleSpec) -> None:
        return None

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        import importlib

        new = importlib.import_module(_MOVED[module.__name__])
        module.__dict__.update({name: value for name, value in vars(new).items() if name[:2] != "__"})


sys.meta_path.insert(0, _OldNames)  # before an empty folder that an older checkout left
