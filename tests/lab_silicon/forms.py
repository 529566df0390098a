"""Shapes of individual tools' outputs: machine-specific parts masked, a recording's losses undone."""

from __future__ import annotations

import re

from tests.lab_silicon import shape


def columns(text: str) -> list[str]:
    return shape.lines(text, shape.in_columns)


def topology(text: str) -> list[str]:
    """Mask CPU ranges, which differ between machines, and put the last column on a separate line."""
    text = re.sub(r"\t\d+-\d+\t\d\t\t(.*)", "\tCPUS\tN\\nGPU NUMA ID: \\1", text)
    return [line if line.startswith("GPU0") else shape.masked(line) for line in text.split("\n")]


def burn(text: str) -> list[str]:
    """gpu_burn: keep each line and each redrawing of the progress line once, but the whole result.

    The recording's collectors removed the first two lines, wherever the buffer repeats them.
    """
    text = re.sub(r"Using compare file: .*\nBurning for \d+ seconds\.\n", "", text)
    run, tested, result = text.partition("\nTested ")
    lines = [shape.masked(line) for line in run.replace("\r", "\n\\r").split("\n")]
    return [*dict.fromkeys(lines), *shape.lines(f"{tested}{result}"[1:])]


def collective(text: str) -> list[str]:
    """nccl-tests: keep each kind of line once, with the widths of the table's columns."""
    text = re.sub(r"(?m)^(#  Rank .* on ).*( device .*\] ).*", r"\1HOST\2PRODUCT", text)
    text = re.sub(r"\[(0x)?[\da-f:]+\]", "[BUS]", text)
    found = shape.kinds(text, shape.in_columns_of_any_form)
    return [line for line in found if "NCCL INFO" not in line]


def matrix(text: str) -> list[str]:
    """nvbandwidth: keep each kind of line once."""
    text = re.sub(r"\([\da-f]{8}:[\da-f]{2}:[\da-f]{2}\)", "(BUS)", text)
    return shape.kinds(text, lambda line: shape.cells(line, 2, 10))


def driver_lines(text: str) -> list[str]:
    """Kernel log: keep the driver's lines about an Xid, without the trace that follows."""
    wanted = re.compile(r"\] NVRM: (GPU at PCI|GPU Board|Xid)")
    found = [line for line in text.split("\n") if wanted.search(line)]
    text = re.sub(r"PCI:[\da-f:]{10}", "PCI:BUS", "\n".join(found))
    text = re.sub(r"name=[\w-]+", "name=NAME", re.sub(r"\((FREE|GSP_\w+)\)", "(FUNCTION)", text))
    return shape.kinds(text)


def with_blanks_as_one(text: str) -> list[str]:
    """perftest: mask blanks, since its collectors expanded tabs and trimmed each line of the recording."""
    return shape.kinds(re.sub(r"[ \t]+", " ", re.sub(r"(?m)^[ \t]+|[ \t]+$", "", text)))


def heads(text: str) -> list[str]:
    """Return the head of each line in fabric manager's log; the rest depends on the event."""
    heads = re.findall(r"(?m)^\[.*?\] \[[A-Z]+\] \[.*?\] ", text)
    return sorted({re.sub(r"\[[A-Z][a-z]{2} ", "[MON ", shape.masked(head)) for head in heads})


def files(text: str) -> list[str]:
    """A kernel folder: return each file with its value."""
    found = [line.partition("mlx5_0/")[2].partition("\t")[::2] for line in text.splitlines()]
    found = [(path, "GID" if "/gids/" in path else shape.masked(value)) for path, value in found]
    return [f"{path}: {value}" for path, value in sorted(found)]
