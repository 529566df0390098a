"""Comparison of the simulator's amd-smi with AMD's on the same values: only listed differences."""

from __future__ import annotations

import ast
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from tests.lab_silicon.amd_machine import installed
from tests.lab_silicon.silicon import RUN, Silicon
from tests.printers import amdsmi_simulated
from tests.printers.amdsmi import AmdPrinters
from tests.support.seed import SEED

SKUS = ("mi210", "mi250x", "mi300a", "mi300x", "mi325x", "mi355x")  # simulated by the lab
PAIRS = [("10.1", sku) for sku in SKUS] + [("6.1.2", sku) for sku in SKUS[:4]]
IN_CI = {("10.1", "mi300x"), ("6.1.2", "mi250x")}
_TEXTS = 10  # number of altered texts
ROCM = {"6.1.2": "6.1.2-119", "10.1": "10.1.0-1"}


def booted(folder: Path, sku: str, release: str) -> Silicon:
    node = Silicon(folder / "state", folder / "root")
    (node.root / "usr/share/gpu-burn").mkdir(parents=True)
    words = ["--sku", sku, "--name", "gpu-01", "--seed", "7", "--network", "none"]
    assert node.run("new", "--dir", str(node.state), *words).returncode == 0
    return installed(node, ROCM[release]).boot()


def unlisted(ours: dict[str, Any], theirs: dict[str, Any], release: str) -> tuple[list[str], list[str]]:
    """Return the differences that no entry explains, and the entries that explain none."""
    known = amdsmi_simulated.listed()
    open_, used = [], set()
    for command in ours:
        patterns = [line for of, name, line in known if (of, name) == (release, command)]
        for difference in amdsmi_simulated.differences(ours[command], theirs[command]):
            path, _, what = difference.partition(": ")
            fits = [line for line in patterns if what == "only here" and fnmatchcase(path, line)]
            used |= {(command, line) for line in fits}
            if not fits:
                open_.append(f"{command} {difference}")
    every = {(name, line) for of, name, line in known if of == release}
    return open_, sorted(f"{command} {line}" for command, line in every - used)


@pytest.mark.parametrize(
    ("release", "sku"),
    [pytest.param(*pair, marks=[] if pair in IN_CI else [pytest.mark.long]) for pair in PAIRS],
)
def test_each_element_is_amds_or_explained(
    release: str, sku: str, amd_printers: AmdPrinters, tmp_path: Path
) -> None:
    ours = amdsmi_simulated.simulated(booted(tmp_path, sku, release), release)
    machine = amdsmi_simulated.machine_like(sku, release, ours)
    theirs = amdsmi_simulated.real(amd_printers(release), machine, release)
    found, gone = unlisted(ours, theirs, release)
    assert found == []
    assert gone == []


@pytest.fixture(scope="module")
def pair(amd_printers: AmdPrinters, tmp_path_factory: pytest.TempPathFactory) -> tuple[Silicon, Any, Any]:
    """Return a node, the simulator's output for it, and the output of AMD's program."""
    node = booted(tmp_path_factory.mktemp("altered"), "mi300x", "10.1")
    ours = amdsmi_simulated.simulated(node, "10.1")
    machine = amdsmi_simulated.machine_like("mi300x", "10.1", ours)
    return node, ours, amdsmi_simulated.real(amd_printers("10.1"), machine, "10.1")


def constants(source: str, printed: set[str]) -> Iterator[ast.Constant]:
    """Yield the printer's dictionary texts with an output element as key, if used only once."""
    for table in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Dict)):
        for key, value in zip(table.keys, table.values, strict=True):
            if isinstance(key, ast.Constant) and key.value in printed:
                both = (key, value)
                for one in both:
                    text = one.value if isinstance(one, ast.Constant) else None
                    once = isinstance(text, str) and source.count(f'"{text}"') == 1
                    if isinstance(one, ast.Constant) and once:
                        yield one


@pytest.mark.parametrize(
    "drawn", [0, 1, *(pytest.param(one, marks=pytest.mark.long) for one in range(2, _TEXTS))]
)
def test_an_altered_text_of_the_simulators_printer_is_found(
    drawn: int, pair: tuple[Silicon, Any, Any], tmp_path: Path
) -> None:
    """Alter ten texts of the printer, drawn with the seed, each in a copy of the simulator."""
    node, ours, theirs = pair
    shutil.copytree(RUN.parent, copied := tmp_path / "silicon")
    printer = copied / "amd/smi_values.py"
    source = printer.read_text()
    paths = (path for of in (ours, theirs) for path, _ in amdsmi_simulated.elements(of))
    found = sorted(
        constants(source, {part for path in paths for part in path.split("/")}),
        key=lambda one: (one.lineno, one.col_offset),
    )
    chosen = random.Random(SEED).sample(found, _TEXTS)[drawn]  # noqa: S311
    lines = source.splitlines()
    line = lines[chosen.lineno - 1]
    start, end = (len(line.encode()[:at].decode()) for at in (chosen.col_offset, chosen.end_col_offset or 0))
    lines[chosen.lineno - 1] = line[:start] + repr(f"{chosen.value!s}_") + line[end:]
    printer.write_text("\n".join(lines))
    altered = {}
    for name in amdsmi_simulated.commands("10.1"):
        argv = [sys.executable, "-I", "-S", str(copied / "run.py"), "amd-smi"]
        done = subprocess.run(
            [*argv, *amdsmi_simulated.COMMANDS[name], "--json"],
            env=node.environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        altered[name] = json.loads(done.stdout)
    assert unlisted(ours, theirs, "10.1")[0] == []
    assert unlisted(altered, theirs, "10.1")[0] != [], f"{chosen.value!s} in line {chosen.lineno}"
