"""Independence of the simulated tools from the checks that parse them, to avoid shared mistakes."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from gpuprov_lab import places
from provision import cli

ROOT = Path(cli.__file__).resolve().parent
CHECKS = sorted((ROOT / "checks").rglob("*.py"))
SILICON = sorted(places.SILICON.rglob("*.py"))

# A text of this length on both sides was copied, unless it is the tool's own wording.
LONG = 24

# Exact output and arguments of the real tools, which both sides need; each with its source.
DOCUMENTED = {
    "Requested functionality has been deprecated": "nvidia-smi -q -x, retired fields (captures)",
    "device_to_device_memcpy_read_ce": "a test case of nvbandwidth",
    "device_to_device_memcpy_write_ce": "a test case of nvbandwidth",
    "device_to_host_memcpy_ce": "a test case of nvbandwidth",
    "host_to_device_memcpy_ce": "a test case of nvbandwidth",
    "Link recovery failed events": "a counter of nvidia-smi nvlink -e, NVLink 5",
    "Link recovery successful events": "a counter of nvidia-smi nvlink -e, NVLink 5",
    "Local link integrity Errors": "a counter of nvidia-smi nvlink -e, NVLink 5",
    "local_link_integrity_errors": "a file of /sys/class/infiniband",
    "excessive_buffer_overrun_errors": "a file of /sys/class/infiniband",
    "port_rcv_remote_physical_errors": "a file of /sys/class/infiniband",
    "port_rcv_constraint_errors": "a file of /sys/class/infiniband",
    "port_xmit_constraint_errors": "a file of /sys/class/infiniband",
    "Insufficient Permissions": "NVML's text of its error 4, in nvidia-smi's cells (captures)",
    "Unable to determine the device handle for": "nvidia-smi in place of its answer (public issue threads)",
    "clocks_event_reasons_counters": "an element of nvidia-smi -q -x (v13)",
    "--format=csv,noheader,nounits": "an option of nvidia-smi",
    "Fatal error during GPU init": "amdgpu's amdgpu_device.c, in the Linux kernel",
    "total_uncorrectable_count": "a value of amd-smi metric",
    "Couldn't set the link layer": "perftest's perftest_parameters.c, linux-rdma/perftest at 00b55b6",
}


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text("utf-8"))))


def strings(path: Path) -> set[str]:
    """Return the string literals of a file except docstrings, including pieces of f-strings."""
    docstrings = {
        id(node.body[0].value)
        for node in nodes(path)
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return {
        node.value.strip()
        for node in nodes(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    }


def patterns(path: Path) -> set[str]:
    """Return the regular expressions that a file compiles or searches with."""
    return {
        argument.value
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "re"
        for argument in node.args[:1]
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }


@functools.cache
def numbers(path: Path) -> frozenset[float]:
    """Return the distinctive numbers of a file: three or more significant digits."""
    distinctive = set()
    for node in nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and node.value is not True:
            digits = re.sub(r"\D", "", repr(node.value)).strip("0")
            if len(digits) >= 3:
                distinctive.add(float(node.value))
    return frozenset(distinctive)


def test_no_simulated_tool_names_our_packages() -> None:
    """tests/test_architecture.py verifies that neither side imports the other."""
    assert {path.stem for path in SILICON if "provision" in " ".join(strings(path))} <= {"run", "boot"}


def test_no_long_text_stands_on_both_sides() -> None:
    ours = {text: path.name for path in CHECKS for text in strings(path) if len(text) >= LONG}
    theirs = {text: path.name for path in SILICON for text in strings(path) if len(text) >= LONG}
    copied = {
        f"{ours[text]}, {theirs[text]}: {text!r}" for text in ours.keys() & theirs.keys() - DOCUMENTED.keys()
    }
    assert sorted(copied) == []


def test_no_pattern_stands_on_both_sides() -> None:
    """A pattern with a group embodies its author's understanding of a format."""
    ours, theirs = (
        {text for path in side for text in patterns(path) if "(" in text and len(text) > 16}
        for side in (CHECKS, SILICON)
    )
    assert sorted(ours & theirs) == []


@pytest.mark.parametrize("path", CHECKS, ids=lambda path: path.stem)
def test_few_particular_numbers_are_shared(path: Path) -> None:
    """Bit masks and PCI ids belong to the tools; many shared numbers reveal a copied table."""
    for other in SILICON:
        shared = numbers(path) & numbers(other)
        assert len(shared) <= 2, f"{other.name}: {sorted(shared)}"
