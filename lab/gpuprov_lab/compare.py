"""Comparison of a real machine's tool output with the simulator's output for its SKU and driver.

A difference is not a fault of the machine; it shows an error in the simulator.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from xml.etree import ElementTree

from gpuprov_lab import replica
from gpuprov_lab.places import SILICON
from provision.errors import LabError

_TOOLS = {"nvidia-smi", "gpu_burn", "gpu-burn", "nvbandwidth", "dcgmi", "fio", "nvme"}
_TOOLS |= {"amd-smi", "all_reduce_perf", "all_gather_perf", "reduce_scatter_perf", "alltoall_perf"}
# `# nccl-tests version 2.18.3 nccl-headers=…` (since 2.17), and `nvbandwidth Version: v0.8`.
_VERSION = re.compile(r"(?:nccl-tests version |nvbandwidth Version: v)(\d+(?:\.\d+){1,2})")
_SECONDS = 20.0  # timeout of one tool
_SAMPLED = 3.0  # duration of a tool that prints until it is ended


@dataclass(frozen=True)
class Output:
    """The output of one program in a selftest's archive; `beside`: the program that it was ended with."""

    name: str
    argv: Sequence[str]
    stdout: str
    seconds: float = 0.0
    timed_out: bool = False
    truncated: bool = False
    not_started: str = ""
    beside: str = ""


@dataclass(frozen=True)
class Shape:
    """One output compared with the simulator's: element paths, columns or lines of only one of them."""

    output: str
    argv: Sequence[str]
    same: bool
    why: str = ""  # reason why no comparison was possible
    only_here: Sequence[str] = ()
    only_simulated: Sequence[str] = ()


@dataclass(frozen=True)
class Recorded:
    """A selftest's folder with the outputs to compare. `rocm`: ROCm's version, for AMD GPUs."""

    outputs: Sequence[Output]
    sku: str
    driver: str
    rocm: str = ""

    def compared(self) -> tuple[list[Shape], str]:
        return compare(self.outputs, self.sku, self.driver, self.rocm)


def recorded(folder: Path) -> Recorded:
    """Read the folder that `gpuprov selftest` wrote, or its unpacked archive. Raises LabError."""
    document = _document(folder / "selftest.json")
    archive = folder / "archive" if (folder / "archive").is_dir() else folder
    facts = _document(archive / "facts.json").get("facts")
    found: list[Output] = []
    for path in sorted((archive / "checks").glob("*.json")):
        found += outputs(path.stem, _document(path))
    rocm = facts.get("amdgpu.rocm") if isinstance(facts, dict) else None
    return Recorded(found, str(document.get("sku") or ""), str(document.get("driver") or ""), str(rocm or ""))


def _document(path: Path) -> Mapping[str, Any]:
    fix = "give the folder that gpuprov selftest wrote, or the one that its archive unpacks to"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LabError(f"{path} cannot be read: {error.strerror}", fix) from error
    except (ValueError, RecursionError) as error:
        raise LabError(f"{path} is no JSON: {error}", fix) from error
    if not isinstance(found, dict):
        raise LabError(f"{path} is no document of a selftest", fix)
    return found


def outputs(check: str, document: Mapping[str, Any]) -> Iterator[Output]:
    """Yield the outputs in a check's document, named CHECK/NAME; malformed ones are skipped."""
    listed = document.get("outputs")
    for one in listed if isinstance(listed, list) else ():
        if not isinstance(one, dict) or not isinstance(one.get("argv"), list):
            continue
        seconds = one.get("seconds")
        yield Output(
            f"{check}/{one.get('name')}",
            [str(word) for word in one["argv"]],
            str(one.get("stdout") or ""),
            seconds=float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < 1e9 else 0.0,
            timed_out=bool(one.get("timed_out")),
            truncated=bool(one.get("truncated")),
            not_started=str(one.get("not_started") or ""),
            beside=str(one.get("beside") or ""),
        )


def lines(shapes: Sequence[Shape]) -> Iterator[str]:
    """Render the shapes as text."""
    yield f"{sum(one.same for one in shapes)} of {len(shapes)} outputs have the shape of the simulated ones"
    for one in shapes:
        if not one.same:
            yield f"{one.output}: {one.why or ' '.join(one.argv)}"
            yield from (f"  only here       {part}" for part in one.only_here)
            yield from (f"  only simulated  {part}" for part in one.only_simulated)


def compare(recorded: Iterable[Output], sku: str, driver: str, rocm: str = "") -> tuple[list[Shape], str]:
    """Return the differences of each output, and the reason if no comparison is possible.
    `rocm`: ROCm's version, for AMD GPUs."""
    if not sku:
        return [], "the SKU of these GPUs is not known"
    if not driver:
        return [], "the version of the loaded driver is not known"
    with tempfile.TemporaryDirectory(prefix="gpuprov-simulated-") as folder:
        simulated, why = _simulated(Path(folder), sku, driver, rocm)
        return ([] if why else [_one(output, simulated) for output in recorded if _comparable(output)]), why


def _comparable(output: Output) -> bool:
    if not output.argv or PurePosixPath(output.argv[0]).name not in _TOOLS or output.not_started:
        return False
    if any("/" in word for word in output.argv[1:]):  # the simulated tool would read or write that file here
        return False
    return bool(output.stdout.strip()) or not output.beside  # a sampler may be ended before its first line


def _simulated(folder: Path, sku: str, driver: str, rocm: str) -> tuple[Mapping[str, str], str]:
    try:
        return replica.make(folder, sku, driver, rocm), ""
    except subprocess.TimeoutExpired as late:
        return {}, f"the simulated machine was not made within {late.timeout:.0f} s"
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"exit status {error.returncode}"]
        message = next((line.partition("error: ")[2] for line in lines if "error: " in line), lines[-1])
        return {}, f"there is no simulator for SKU {sku} with driver {driver}: {message[:200]}"
    except (OSError, ValueError) as error:
        return {}, f"the simulated machine could not be made: {error}"


def _release(printed: str) -> dict[str, str]:
    """Return the variable that selects the tool's release in the simulator, if the output names it."""
    found = _VERSION.search(printed)
    return {"SILICON_VERSION": found[1]} if found else {}


def _one(output: Output, simulated: Mapping[str, str]) -> Shape:
    name = output.name
    if why := _not_whole(output):
        return Shape(name, output.argv, same=False, why=why)
    printed = _printed(output, simulated)
    if not printed.strip():
        return Shape(name, output.argv, same=False, why="the simulator printed nothing for this call")
    printed_here = output.stdout
    if output.beside:  # both were ended while printing
        printed_here, printed = _whole_lines(printed_here), _whole_lines(printed)
    here, there, why = differences(printed_here, printed)
    return Shape(name, output.argv, not (why or here or there), why, here, there)


def _whole_lines(text: str) -> str:
    return text[: text.rfind("\n") + 1]


def _not_whole(output: Output) -> str:
    """Return why this output has no shape, or ""; an output ended with its main program is complete."""
    if output.timed_out:
        return f"it did not end on this machine within {output.seconds:.0f} s"
    if output.truncated:
        return "it was cut off at the size limit on this machine"
    return "" if output.stdout.strip() else "it printed nothing on this machine"


def _printed(output: Output, simulated: Mapping[str, str]) -> str:
    """Return the simulated tool's output for the same call; empty if it cannot run."""
    tool = PurePosixPath(output.argv[0]).name
    argv = [sys.executable, "-I", "-S", str(SILICON / "run.py"), tool, *output.argv[1:]]
    folder = Path(simulated["SILICON_ROOT"]) / "usr/share/gpu-burn"
    try:
        done = subprocess.run(
            argv,
            cwd=folder,
            env={**os.environ, **simulated, **_release(output.stdout)},
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


# --- the shape of a tool's output: all numbers and identifiers are replaced by placeholders. XML and
# JSON: the paths of their elements, and the units of their values. Everything else: its lines, with numbers
# as N. Details that depend on the machine's size or on other users are not part of a shape.


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
    # The count of adjacent numbers depends on the machine's size; comma-separated cells are columns.
    (re.compile(r"N(?:[ :/]+N\b)+"), "N"),
    (re.compile(r"(N[^-\n]{0,40}?)(?: - \1)+"), r"\1"),  # gpu_burn: one number for each GPU
)
_UNIT = re.compile(r"[-+]?\d+(?:\.\d+)?\s+([A-Za-z%°][A-Za-z%°/]*)")
_BEGIN = re.compile(r"^[ \t]*(<\?xml|[{\[])", re.MULTILINE)
_PROCESS = "process_info"  # of nvidia-smi -q -x: one for each running process


@dataclass
class Form:
    """The form of one output. `kind`: XML, JSON or lines; `units`: by path, of values with a unit."""

    kind: str
    parts: list[str] = field(default_factory=list)
    units: dict[str, set[str]] = field(default_factory=dict)


def form(text: str) -> Form:
    """Split an output into its distinct parts in order, including lines before and after a document."""
    if begin := _BEGIN.search(text):
        at, closing = begin.start(1), {"<": ">", "{": "}", "[": "]"}[begin[1][0]]
        end = text.rfind(closing) + 1
        around = [*_lines(text[:at]), *_lines(text[end:])]
        found = Form("XML" if begin[1] == "<?xml" else "JSON")
        try:
            if found.kind == "XML":
                walked = _xml(ElementTree.fromstring(text[at:end]), found)  # noqa: S314 - expat since 2.4.1 bounds entities
            else:
                walked = _json(json.loads(text[at:end]), found)
            found.parts = _distinct([*around, *walked])
        except (ElementTree.ParseError, ValueError, RecursionError):
            pass
        else:
            return found
    return Form("lines", _distinct(_lines(text)))


def differences(here: str, simulated: str) -> tuple[list[str], list[str], str]:
    """Return (parts only on this machine, parts only in the simulator, why no comparison is possible)."""
    ours, theirs = form(here), form(simulated)
    if ours.kind != theirs.kind:
        return [], [], f"it is {ours.kind} here, and {theirs.kind} in the simulator"
    return _only(ours, theirs), _only(theirs, ours), ""


def _only(one: Form, other: Form) -> list[str]:
    """Return the parts that `other` lacks. A value without a unit (`N/A`) matches any unit."""
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
