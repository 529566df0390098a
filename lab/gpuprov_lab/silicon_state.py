"""The simulated silicon of a node from the host's side, managed by the silicon's own program."""

from __future__ import annotations

import json
import sys
from typing import Any

from gpuprov_lab.command import attempt, call
from gpuprov_lab.places import SILICON, NodePlace
from provision.errors import LabError

# The folders and files that are mounted into the node, and must exist for that.
SURFACES = ("proc_driver", "sys_pci", "sys_module")


def create(place: NodePlace, sku: str, seed: int, speed: float, network: str) -> None:
    """Create a new node's state: GPUs in factory state without a loaded driver, and its RDMA cards."""
    place.silicon.mkdir(parents=True, exist_ok=True)
    options = ["--sku", sku, "--name", place.name, "--seed", str(seed), "--speed", f"{speed:g}"]
    options += ["--network", network]
    call(*_program("new"), "--dir", place.silicon, *options)
    for name in SURFACES:
        (place.silicon / name).mkdir(exist_ok=True)
    (place.silicon / "proc_modules").touch()


def fault_list() -> str:
    """Return a text that lists every fault with its parameters."""
    return call(*_program("fault"), "--list")


def set_fault(place: NodePlace, fault: str, parameters: list[str]) -> None:
    """Set a fault; `parameters` are `key=value` texts. Raises LabError when they are invalid."""
    _fault(place, "set", fault, *parameters)


def clear_fault(place: NodePlace, fault: str | None) -> None:
    """Clear one fault, or all of them if None."""
    _fault(place, "clear", *([fault] if fault else []))


def faults(place: NodePlace) -> Any:
    """Return a node's present faults from its state file; None if it cannot be read."""
    try:
        return json.loads((place.silicon / "state.json").read_text()).get("faults", [])
    except (OSError, ValueError, AttributeError):
        return None


def _fault(place: NodePlace, *words: str) -> None:
    done = attempt(*_program("fault"), "--dir", place.silicon, *words)
    if done.returncode != 0:
        messages = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise LabError(messages[-1] if messages else "the fault was refused", "gpuprov lab faults")


def _program(tool: str) -> list[str]:
    program = SILICON / "run.py"
    if not program.is_file():
        raise LabError(f"{program} is missing", "reinstall gpuprov")
    return [sys.executable, "-I", "-S", str(program), tool]
