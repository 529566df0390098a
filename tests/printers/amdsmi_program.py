"""Server that runs AMD's amd-smi on top of C functions that answer from a table.

A separate program: `amdsmi_program.py CLI PACKAGE` with the folders of the command amdsmi_cli and of the
package amdsmi. Each line of its input is a request, each line of its output an exit status. AMD's Python is
imported once; a child process runs each request. Every function of the library libamd_smi is a C function
that ctypes builds from the signature in AMD's wrapper.
"""

from __future__ import annotations

import atexit
import builtins
import ctypes
import gc
import importlib
import importlib.util
import io
import json
import os
import pathlib
import re
import runpy
import subprocess
import sys
import traceback
import types
from typing import Any

NOT_SUPPORTED = 2
_PART = re.compile(r"(\w+)|\[(\d+)\]")
_LOADED = ctypes.CDLL
_OPEN = open
_CHARACTERS = ctypes.POINTER(ctypes.c_char)
_FILES = ("/proc/cpuinfo", "/sys/module/amdgpu/initstate", "/sys/module/amd_hsmp/initstate")

TABLE: dict[str, dict[str, Any]] = {}
FILES: dict[str, str] = {}
CALLS: set[str] = set()  # the calls of the current command
KEPT: list[object] = []  # texts kept alive because a function returned their address


def find(table: dict[str, dict[str, Any]], name: str, arguments: list[str]) -> dict[str, Any]:
    """Return the most specific row for a call: by function, device and other arguments."""
    for key in (arguments, arguments[:1], []):
        row = table.get(" ".join([name, *key]))
        if row is not None:
            return row
    return {"return": NOT_SUPPORTED}


def _store(place: Any, path: str, value: Any) -> None:
    """Set the field at a path below a struct; a list as `value` sets as many elements of an array."""
    *parents, (name, index) = _PART.findall(path)
    for parent, position in parents:
        place = getattr(place, parent) if parent else place[int(position)]
    old = getattr(place, name) if name else place[int(index)]
    if isinstance(old, ctypes.Array):
        _fill(old, value)
    else:
        value = value.encode() if isinstance(value, str) else value
        setattr(place, name, value) if name else place.__setitem__(int(index), value)


def _fill(array: Any, value: Any) -> None:
    for position in range(len(array)):
        one = value[position] if isinstance(value, list) and position < len(value) else value
        if isinstance(value, list) and position >= len(value):
            return
        if isinstance(array[position], ctypes.Array):
            _fill(array[position], one)
        else:
            array[position] = one


def _write(pointer: Any, position: int, row: dict[str, Any]) -> None:
    """Write a row through one pointer: `aN` as a number, a text or a list, everything else into a struct."""
    named, kind = f"a{position}", pointer._type_
    if issubclass(kind, (ctypes.Structure, ctypes.Union)) and not isinstance(row.get(named), list):
        if "every byte" in row:
            ctypes.memset(pointer, row["every byte"], ctypes.sizeof(kind))
        for path, value in row.items():
            if path not in ("return", "every byte") and not re.fullmatch(r"a\d+", path):
                _store(pointer.contents, path, value)
    elif named in row:
        value = row[named]
        if kind is ctypes.c_char:
            ctypes.memmove(pointer, value.encode() + b"\0", len(value) + 1)
        elif kind is _CHARACTERS:
            KEPT.append(text := ctypes.create_string_buffer(value.encode()))
            pointer[0] = ctypes.cast(text, _CHARACTERS)
        elif isinstance(value, list):
            for index, one in enumerate(value):
                if isinstance(one, dict):
                    for path, part in one.items():
                        _store(pointer[index], path, part)
                else:
                    pointer[index] = one
        else:
            pointer[0] = value


def _is_union(kind: type) -> bool:
    """Whether the type is a PCI address, the only union passed by value, which ctypes cannot pass."""
    return issubclass(kind, ctypes.Union)


class Function:
    """A function of the library, callable by ctypes like a C function."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.restype: Any = ctypes.c_int
        self.argtypes: list[Any] = []
        self._called: Any = None

    def __call__(self, *arguments: object) -> Any:
        if self._called is None:
            kinds = [ctypes.c_uint64 if _is_union(kind) else kind for kind in self.argtypes]
            self._called = ctypes.CFUNCTYPE(self.restype, *kinds)(self._answer)
        return self._called(*(getattr(one, "as_uint", one) for one in arguments))

    def _answer(self, *arguments: Any) -> int:
        try:
            pointers = [(at, one) for at, one in enumerate(arguments) if isinstance(one, ctypes._Pointer)]
            plain = [str(one or 0) for one in arguments if not isinstance(one, ctypes._Pointer)]
            CALLS.add(" ".join([self.name, *plain]))
            row = find(TABLE, self.name, plain)
            if not row.get("return"):
                for at, pointer in pointers:
                    if pointer:
                        _write(pointer, at, row)
            if os.environ.get("GPUPROV_AMDSMI_TRACE"):
                sys.stderr.write(f"TRACE {self.name} {plain} {row}\n")
            return int(row.get("return", 0))
        except Exception:  # ctypes would drop it
            traceback.print_exc(limit=10)
            os.write(2, f"table: {self.name}: {traceback.format_exc()}".encode())
            os._exit(99)


class Library:
    """libamd_smi.so, in which every name is a function."""

    def __init__(self) -> None:
        self.functions: dict[str, Function] = {}

    def __getattr__(self, name: str) -> Function:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.functions.setdefault(name, Function(name))


def _load(path: Any, *arguments: Any, **more: Any) -> Any:
    return Library() if "libamd_smi" in str(path) else _LOADED(path, *arguments, **more)


def _open(path: Any, *arguments: Any, **more: Any) -> Any:
    text = _file(path) if isinstance(path, (str, os.PathLike)) else None
    return io.StringIO(text) if text is not None else _OPEN(path, *arguments, **more)


def _file(path: Any) -> str | None:
    path = str(path)
    if path in FILES or (path in _FILES or path.startswith("/sys/bus/pci/")):
        if path not in FILES:
            raise FileNotFoundError(2, "No such file or directory", path)
        return FILES[path]
    return None


def _pretend() -> None:
    """Fake the few files and programs by which amd-smi examines the host, and root as its user."""
    exists, read_text, listdir, run = pathlib.Path.exists, pathlib.Path.read_text, os.listdir, subprocess.run

    def known(path: Any) -> bool:
        return str(path) in FILES if str(path) in _FILES else exists(path)

    def read(path: Any, *arguments: Any, **more: Any) -> str:
        text = _file(path)
        return text if text is not None else read_text(path, *arguments, **more)

    def names(path: Any = ".") -> list[str]:
        if str(path) != "/sys/bus/pci/devices":
            return listdir(path)
        return [one.split("/")[5] for one in FILES if one.startswith("/sys/bus/pci/devices/")]

    def lscpu(command: Any, *arguments: Any, **more: Any) -> Any:
        if command != ["lscpu"]:
            return run(command, *arguments, **more)
        virtual = "Hypervisor vendor: KVM\nhypervisor" if "hypervisor" in FILES["/proc/cpuinfo"] else ""
        return subprocess.CompletedProcess(command, 0, stdout=virtual)

    pathlib.Path.exists, pathlib.Path.read_text = known, read  # type: ignore[method-assign, assignment]
    os.listdir, subprocess.run, os.geteuid = names, lscpu, lambda: 0  # type: ignore[assignment]
    ctypes.CDLL = _load  # type: ignore[assignment, misc]
    is_file = pathlib.Path.is_file
    pathlib.Path.is_file = lambda path: "libamd_smi" in str(path) or is_file(path)  # type: ignore[method-assign, assignment]
    builtins.open = _open  # type: ignore[assignment]


def _child(folder: str, request: dict[str, Any]) -> None:
    """Run one command like the program itself, with redirected standard streams, then end this process."""
    TABLE.update(request["table"])
    FILES.update(request["files"])
    for stream, path in ((1, request["stdout"]), (2, request["stderr"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), stream)
    if TABLE["amdsmi_init"].get("return"):
        for name in [name for name in sys.modules if name.startswith("amdsmi_")]:
            del sys.modules[name]  # importing them again initialises the library again
    sys.argv = [f"{folder}/amdsmi_cli.py", *request["argv"]]
    status: object = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        status = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    atexit._run_exitfuncs()
    with _OPEN(request["calls"], "w") as calls:
        calls.write("\n".join(sorted(CALLS)))
    if isinstance(status, str):
        sys.stderr.write(f"{status}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit((status if isinstance(status, int) else 1 if status else 0) % 256)


def _import_package(folder: str) -> None:
    """Import AMD's package from its folder, which has a different name in a release's source."""
    spec = importlib.util.spec_from_file_location(
        "amdsmi", f"{folder}/__init__.py", submodule_search_locations=[folder]
    )
    assert spec
    assert spec.loader
    sys.modules["amdsmi"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["amdsmi"])


def main(folder: str, package: str) -> None:
    _pretend()
    sys.path.insert(0, folder)
    for place, name in ((folder, "_version"), (package, "amdsmi._version")):
        if not pathlib.Path(place, "_version.py").exists():  # in a source tree, before the build writes it
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__version__ = "source"  # type: ignore[attr-defined]
    TABLE.update(amdsmi_init={}, amdsmi_shut_down={})
    FILES["/sys/module/amdgpu/initstate"] = "live"
    _import_package(package)
    for name in (
        "amdsmi_init",
        "amdsmi_helpers",
        "amdsmi_commands",
        "amdsmi_parser",
        "amdsmi_logger",
    ):
        importlib.import_module(name)
    FILES.clear()
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        sys.stdout.flush()
        child = os.fork()
        if not child:
            _child(folder, request)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        sys.stdout.write(json.dumps({"rc": status}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
