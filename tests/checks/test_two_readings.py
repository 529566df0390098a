"""The simulated tools and the checks that read them are written apart: could they share a mistake?"""

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

# A text this long that stands on both sides was copied, unless it is the tool's own wording.
LONG = 24

# What the real tools print or are called with, word for word: both sides must have it. Source beside each.
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
    """The string literals of a file that are no documentation, with the pieces of f-strings."""
    told = {
        id(node.body[0].value)
        for node in nodes(path)
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return {
        node.value.strip()
        for node in nodes(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told
    }


def patterns(path: Path) -> set[str]:
    """The regular expressions a file compiles or searches with."""
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
    """Numbers so particular that two people would not choose both: three digits and more, not round."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and node.value is not True:
            digits = re.sub(r"\D", "", repr(node.value)).strip("0")
            if len(digits) >= 3:
                found.add(float(node.value))
    return frozenset(found)


def test_no_simulated_tool_names_our_packages() -> None:
    """That neither side imports the other is held by tests/test_architecture.py."""
    assert {path.stem for path in SILICON if "provision" in " ".join(strings(path))} <= {"run", "boot"}


def test_no_long_text_stands_on_both_sides() -> None:
    ours = {text: path.name for path in CHECKS for text in strings(path) if len(text) >= LONG}
    theirs = {text: path.name for path in SILICON for text in strings(path) if len(text) >= LONG}
    copied = {
        f"{ours[text]}, {theirs[text]}: {text!r}" for text in ours.keys() & theirs.keys() - DOCUMENTED.keys()
    }
    assert sorted(copied) == []


def test_no_pattern_stands_on_both_sides() -> None:
    """A pattern with a group in it is somebody's reading of a format."""
    ours, theirs = (
        {text for path in side for text in patterns(path) if "(" in text and len(text) > 16}
        for side in (CHECKS, SILICON)
    )
    assert sorted(ours & theirs) == []


@pytest.mark.parametrize("path", CHECKS, ids=lambda path: path.stem)
def test_few_particular_numbers_are_shared(path: Path) -> None:
    """Bit masks and PCI ids are the tools' own; many numbers in common are a table that was copied."""
    for other in SILICON:
        shared = numbers(path) & numbers(other)
        assert len(shared) <= 2, f"{other.name}: {sorted(shared)}"
