"""Comparison of the tools' output with the simulator's for this SKU and driver, for information only.

The simulator is a program of its own (`python -m provision.lab.replica`), as the lab runs it on its nodes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from provision import paths
from provision.checks.check import Output
from provision.runs.raw_output import Raw
from provision.validate.selftest.result import Shape
from provision.validate.selftest.shapes import differences

_TOOLS = {"nvidia-smi", "gpu_burn", "gpu-burn", "nvbandwidth", "dcgmi", "fio", "nvme"}
_TOOLS |= {"all_reduce_perf", "all_gather_perf", "reduce_scatter_perf", "alltoall_perf"}
# `# nccl-tests version 2.18.3 nccl-headers=…` (since 2.17), and `nvbandwidth Version: v0.8`.
_VERSION = re.compile(r"(?:nccl-tests version |nvbandwidth Version: v)(\d+(?:\.\d+){1,2})")
_MAKE = 60.0  # seconds to make the simulated machine
_SECONDS = 20.0  # of one tool
_SAMPLED = 3.0  # of one that prints until it is ended


def compare(raws: Iterable[Raw], sku: str, driver: str) -> tuple[list[Shape], str]:
    """The differences of each output; and why there are none to be had."""
    if not sku:
        return [], "the SKU of these GPUs is not known"
    if not driver:
        return [], "the version of the loaded driver is not known"
    with tempfile.TemporaryDirectory(prefix="gpuprov-simulated-") as folder:
        simulated, why = _simulated(Path(folder), sku, driver)
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


def _simulated(folder: Path, sku: str, driver: str) -> tuple[Mapping[str, str], str]:
    # -P: `python -m` takes modules from the folder it is started in, and root starts it in anybody's.
    argv = [sys.executable, "-P", "-m", "provision.lab.replica", str(folder), sku, driver]
    package = str(paths.PACKAGE.parent)
    environment = {**os.environ, "PYTHONPATH": package}
    try:
        done = subprocess.run(
            argv, env=environment, capture_output=True, text=True, timeout=_MAKE, check=True
        )
        found: Mapping[str, str] = json.loads(done.stdout)
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
