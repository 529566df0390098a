"""Comparison of the simulated nvidia-smi with NVIDIA's on the same values: only listed differences."""

from __future__ import annotations

import ast
import random
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree.ElementTree import ParseError

import pytest

from tests.lab_silicon.silicon import RUN, Silicon
from tests.printers import simulated
from tests.printers.smi import RELEASES, Printers
from tests.support.seed import SEED

_PRINTERS = ("tree.py", "tree_errors.py", "tree_fabric.py", "tree_state.py", "query.py")
_DRIVER = "550.163.01"


@pytest.mark.parametrize("driver", RELEASES, ids=[driver[:3] for driver in RELEASES])
def test_every_difference_is_explained(driver: str, printers: Printers, tmp_path: Path) -> None:
    printers(driver)  # skips if the program is missing
    real, ours = (simulated.node(tmp_path, driver, real=real) for real in (True, False))
    for command, found in simulated.compared(real, ours).items():
        assert sorted(found) == simulated.listed(driver, command), command


def _altered(folder: Path, drawn: random.Random, printed: str) -> str:
    """Copy the simulator into a folder and alter one randomly drawn printer text of `printed`."""
    shutil.copytree(RUN.parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / "nvidia_smi" / drawn.choice(_PRINTERS)
    text = file.read_text("utf-8")
    rows = text.splitlines()
    texts = [
        (node.lineno, node.col_offset, node.value)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) > 2
        if node.value.strip() in printed
        if node.lineno == node.end_lineno and rows[node.lineno - 1][node.col_offset] == '"'
    ]
    number, column, value = drawn.choice(texts)
    lines = text.splitlines(keepends=True)
    line = lines[number - 1]
    at = column + drawn.randrange(1, len(value))
    lines[number - 1] = line[:at] + ("y" if line[at] != "y" else "z") + line[at + 1 :]
    file.write_text("".join(lines), "utf-8")
    return f"{file.name}:{number}: {value!r}"


@dataclass(frozen=True)
class _Compared:
    """A node, with the output of the simulator and of NVIDIA's program by command."""

    node: Silicon
    simulated: Mapping[tuple[str, ...], str]
    real: Mapping[tuple[str, ...], str]


def _printed(node: Silicon, program: Path, words: tuple[str, ...]) -> str:
    (node.state / "counter").write_text(simulated.COUNTER)
    call = [sys.executable, "-I", "-S", str(program), "nvidia-smi", *words]
    done = subprocess.run(call, env=node.environment(), capture_output=True, text=True, check=False)
    return done.stdout


@pytest.fixture(scope="module")
def compared(printers: Printers, tmp_path_factory: pytest.TempPathFactory) -> _Compared:
    printers(_DRIVER)  # skips if the program is missing
    folder = tmp_path_factory.mktemp("altered")
    real, node = (simulated.node(folder, _DRIVER, real=real) for real in (True, False))
    commands = [simulated.COMMANDS[place] for place in (0, 4, 8)]
    found = _Compared(
        node,
        {words: _printed(node, RUN, words) for words in commands},
        {words: _printed(real, RUN, words) for words in commands},
    )
    for words in commands:
        assert sorted(simulated.differences(found.real[words], found.simulated[words])) == simulated.listed(
            _DRIVER, " ".join(words)
        )
    return found


def _is_red(known: _Compared, altered: Path, words: tuple[str, ...]) -> bool | None:
    """Whether the comparison detects the alteration in an output; None if the output is unchanged."""
    output = _printed(known.node, altered / RUN.name, words)
    try:
        if list(simulated.elements(known.simulated[words])) == list(simulated.elements(output)):
            return None
        found = simulated.differences(known.real[words], output)
    except ParseError:
        return True  # no longer XML
    return sorted(found) != simulated.listed(_DRIVER, " ".join(words))


@pytest.mark.parametrize(
    "number", [0, 1, *(pytest.param(one, marks=pytest.mark.long) for one in range(2, 10))]
)
def test_the_comparison_finds_one_altered_text(number: int, compared: _Compared, tmp_path: Path) -> None:
    """Alter ten texts of the simulator's printers, drawn from the texts in their output."""
    drawn = random.Random(f"{SEED} {number}")  # noqa: S311
    for attempt in range(60):
        folder = tmp_path / str(attempt)
        what = _altered(folder, drawn, "\n".join(compared.simulated.values()))
        red = [_is_red(compared, folder, words) for words in compared.real]
        shutil.rmtree(folder)
        if any(one is not None for one in red):
            assert True in red, what
            return
    pytest.fail("no drawn text appears in the outputs")
