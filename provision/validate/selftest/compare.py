"""Comparison of the tools' output with the simulator's for this SKU and driver, for information only.

The simulator is a program of its own (`python -m gpuprov_lab.replica`), as the lab runs it on its nodes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from xml.etree import ElementTree

from provision import foreign_json, paths
from provision.checks.check import Output, Raw
from provision.validate.selftest.result import Shape

_TOOLS = {"nvidia-smi", "gpu_burn", "gpu-burn", "nvbandwidth", "dcgmi", "fio", "nvme"}
_TOOLS |= {"amd-smi", "all_reduce_perf", "all_gather_perf", "reduce_scatter_perf", "alltoall_perf"}
# `# nccl-tests version 2.18.3 nccl-headers=…` (since 2.17), and `nvbandwidth Version: v0.8`.
_VERSION = re.compile(r"(?:nccl-tests version |nvbandwidth Version: v)(\d+(?:\.\d+){1,2})")
_MAKE = 60.0  # seconds to make the simulated machine
_SECONDS = 20.0  # of one tool
_SAMPLED = 3.0  # of one that prints until it is ended


def compare(raws: Iterable[Raw], sku: str, driver: str, rocm: str = "") -> tuple[list[Shape], str]:
    """The differences of each output; and why there are none to be had. `rocm`: its version, of AMD's."""
    if not sku:
        return [], "the SKU of these GPUs is not known"
    if not driver:
        return [], "the version of the loaded driver is not known"
    with tempfile.TemporaryDirectory(prefix="gpuprov-simulated-") as folder:
        simulated, why = _simulated(Path(folder), sku, driver, rocm)
        if why:
            return [], why
        shapes = [
            _one(f"{raw.check}/{output.name}", output, simulated)
            for raw in raws
            for output in raw.outputs
            if _comparable(output)
        ]
    return shapes, ""


def _comparable(output: Output) -> bool:
    if not output.argv or PurePosixPath(output.argv[0]).name not in _TOOLS or output.not_started:
        return False
    return bool(output.stdout.strip()) or not output.beside  # a sampler may be ended before its first line


def _simulated(folder: Path, sku: str, driver: str, rocm: str) -> tuple[Mapping[str, str], str]:
    # -P: `python -m` takes modules from the folder it is started in, and root starts it in anybody's.
    argv = [sys.executable, "-P", "-m", "gpuprov_lab.replica", str(folder), sku, driver, rocm]
    package = str(paths.PACKAGE.parent)
    environment = {**os.environ, "PYTHONPATH": package}
    try:
        done = subprocess.run(
            argv, env=environment, capture_output=True, text=True, timeout=_MAKE, check=True
        )
        found: Mapping[str, str] = foreign_json.read(done.stdout)
    except subprocess.TimeoutExpired:
        return {}, f"the simulated machine was not made within {_MAKE:.0f} s"
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"exit status {error.returncode}"]
        said = next((line.partition("error: ")[2] for line in lines if "error: " in line), lines[-1])
        return {}, f"there is no simulator for SKU {sku} with driver {driver}: {said[:200]}"
    except (OSError, ValueError) as error:
        return {}, f"the simulated machine could not be made: {error}"
    return found, ""


def _release(printed: str) -> dict[str, str]:
    """The release of the tool, where it says so: the simulator prints in that one's words."""
    found = _VERSION.search(printed)
    return {"SILICON_VERSION": found[1]} if found else {}


def _one(name: str, output: Output, simulated: Mapping[str, str]) -> Shape:
    if why := _not_whole(output):
        return Shape(name, output.argv, same=False, why=why)
    printed = _printed(output, simulated)
    if not printed.strip():
        return Shape(name, output.argv, same=False, why="the simulator printed nothing for this call")
    printed_here = output.stdout
    if output.beside:  # both were ended while they printed
        printed_here, printed = _whole_lines(printed_here), _whole_lines(printed)
    here, there, why = differences(printed_here, printed)
    return Shape(name, output.argv, not (why or here or there), why, here, there)


def _whole_lines(text: str) -> str:
    return text[: text.rfind("\n") + 1]


def _not_whole(output: Output) -> str:
    """Why this output has no shape; one that ran beside another was ended with it, and is whole."""
    if output.timed_out:
        return f"it did not end on this machine within {output.seconds:.0f} s"
    if output.truncated:
        return "it was cut off at the size limit on this machine"
    return "" if output.stdout.strip() else "it printed nothing on this machine"


def _printed(output: Output, simulated: Mapping[str, str]) -> str:
    """What the simulated tool prints for the same call; empty when it cannot be run."""
    tool = PurePosixPath(output.argv[0]).name
    argv = [sys.executable, "-I", "-S", simulated["run"], tool, *output.argv[1:]]
    own = {key: value for key, value in simulated.items() if key != "run"}
    folder = Path(simulated["SILICON_ROOT"]) / "usr/share/gpu-burn"
    try:
        done = subprocess.run(
            argv,
            cwd=folder,
            env={**os.environ, **own, **_release(output.stdout)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SAMPLED if output.beside else _SECONDS,
            check=False,
        )
        printed = done.stdout
    except subprocess.TimeoutExpired as late:  # a sampler prints until it is ended
        printed = late.stdout or b""
    except OSError:
        printed = b""
    return printed.decode("utf-8", "replace")


# --- the shape of a tool's output: what remains when every number and identifier is made the same. XML and
# JSON: the paths of their elements, and the units of their values. Everything else: its lines, with numbers
# as N. What depends on the machine's size, or on who else uses it, is no part of a shape.


_MOST = 40  # differences listed of one output
_LONGEST = 160
_MASKS = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r"(?<= on)( +)\S+(?= device +\d)"), " HOST"),  # nccl-tests
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE), "UUID"),
    (
        re.compile(r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} +\d+ [\d:]{8}( [A-Z]{3,4})? \d{4}\b"),
        "DATE",
    ),
    (re.compile(r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-9a-f])?\b", re.IGNORECASE), "PCI"),
    (re.compile(r"\b[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]\b", re.IGNORECASE), "PCI"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.IGNORECASE), "0xN"),
    (re.compile(r"[-+]?\d+(?:\.\d+)*(?:e[-+]?\d+)?"), "N"),
    (re.compile(r"[ \t]+"), " "),
    # How many numbers stand in a row is the machine's size; cells with commas between them are columns.
    (re.compile(r"N(?:[ :/]+N\b)+"), "N"),
    (re.compile(r"(N[^-\n]{0,40}?)(?: - \1)+"), r"\1"),  # gpu_burn: one number for each GPU
)
_UNIT = re.compile(r"[-+]?\d+(?:\.\d+)?\s+([A-Za-z%°][A-Za-z%°/]*)")
_BEGIN = re.compile(r"^[ \t]*(<\?xml|[{\[])", re.MULTILINE)
_PROCESS = "process_info"  # of nvidia-smi -q -x: one for each process that is there right now


@dataclass
class Form:
    """One output. `kind`: XML, JSON or lines; `units`: by path, of values that have one."""

    kind: str
    parts: list[str] = field(default_factory=list)
    units: dict[str, set[str]] = field(default_factory=dict)


def form(text: str) -> Form:
    """The distinct parts of an output, in the order they come; lines before and after a document are too."""
    if begin := _BEGIN.search(text):
        at, closing = begin.start(1), {"<": ">", "{": "}", "[": "]"}[begin[1][0]]
        end = text.rfind(closing) + 1
        around = [*_lines(text[:at]), *_lines(text[end:])]
        found = Form("XML" if begin[1] == "<?xml" else "JSON")
        try:
            if found.kind == "XML":
                walked = _xml(ElementTree.fromstring(text[at:end]), found)  # noqa: S314 - expat since 2.4.1 bounds entities
            else:
                walked = _json(foreign_json.read(text[at:end]), found)
            found.parts = _distinct([*around, *walked])
        except (ElementTree.ParseError, ValueError, RecursionError):
            pass
        else:
            return found
    return Form("lines", _distinct(_lines(text)))


def differences(here: str, simulated: str) -> tuple[list[str], list[str], str]:
    """(what only this machine's output has, what only the simulator's has, why they cannot be compared)."""
    ours, theirs = form(here), form(simulated)
    if ours.kind != theirs.kind:
        return [], [], f"it is {ours.kind} here, and {theirs.kind} in the simulator"
    return _only(ours, theirs), _only(theirs, ours), ""


def _only(one: Form, other: Form) -> list[str]:
    """What `other` lacks. A value without a unit (`N/A`) tells nothing of its unit."""
    there = set(other.parts)
    found = [part for part in one.parts if part not in there]
    for path, units in one.units.items():
        known = other.units.get(path)
        found += [f"{path} in {unit}" for unit in sorted(units - known)] if known else []
    more = len(found) - _MOST
    return [*found[:_MOST], f"and {more} more"] if more > 0 else found


def _distinct(parts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(part for part in parts if part))


def _xml(element: ElementTree.Element, found: Form, at: str = "") -> Iterator[str]:
    path = f"{at}/{element.tag}"
    yield path
    _unit(path, element.text or "", found)
    for child in element:
        if child.tag != _PROCESS:
            yield from _xml(child, found, path)


def _json(value: Any, found: Form, at: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            path = f"{at}.{_line(str(key))}"
            yield path
            if key in ("unit", "units") and isinstance(inner, str):
                found.units.setdefault(path, set()).add(inner)
            yield from _json(inner, found, path)
    elif isinstance(value, list):
        for inner in value:
            yield from _json(inner, found, f"{at}[]")
    elif isinstance(value, str):
        _unit(at, value, found)


def _unit(path: str, value: str, found: Form) -> None:
    if unit := _UNIT.fullmatch(value.strip()):
        found.units.setdefault(path, set()).add(unit[1])


def _lines(text: str) -> Iterator[str]:
    return (_line(line) for line in re.split(r"[\r\n]+", text))


def _line(line: str) -> str:
    line = line[: 20 * _LONGEST]
    for pattern, mark in _MASKS:
        line = pattern.sub(mark, line)
    return line.strip()[:_LONGEST]
