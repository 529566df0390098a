"""The simulator against shapes of real output: same elements, order, units and exit status.

shapes.yml has the shapes, differences.yml the differences and their reasons; both are data, so that this runs
without the recordings. With GPUPROV_CAPTURES the shapes themselves are compared with the recordings.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import gpuprov_lab
from tests.lab_silicon import record_shapes
from tests.lab_silicon.comparison import compared, listed
from tests.lab_silicon.surfaces import NOT_HELD, NOT_SIMULATED, QX, SURFACES, Surface

Printed = Callable[[Surface], tuple[str, int]]
Make = Callable[..., Any]
HERE = Path(__file__).parent
FOLDER = os.environ.get("GPUPROV_CAPTURES", "")
with_captures = pytest.mark.skipif(
    not FOLDER, reason="GPUPROV_CAPTURES is not set: shapes.yml was NOT compared with the recordings"
)
RECORDED = [name for name, surface in SURFACES.items() if surface.capture]


@pytest.mark.parametrize("name", SURFACES)
def test_a_surface_differs_only_in_what_is_listed(name: str, printed: Printed) -> None:
    text, status = printed(SURFACES[name])
    assert compared(name, text, status) == listed()[name]


def test_every_difference_has_a_reason_and_a_surface() -> None:
    for entry in yaml.safe_load((HERE / "differences.yml").read_text(encoding="utf-8")):
        assert len(entry["why"]) > 20
        assert set(entry["surfaces"]) <= set(SURFACES)
    assert set(record_shapes.read()) == set(SURFACES)


@with_captures
@pytest.mark.parametrize("name", RECORDED)
def test_a_shape_is_that_of_its_recording(name: str) -> None:
    shape = record_shapes.of_recording(SURFACES[name], Path(FOLDER), Path(FOLDER))
    assert shape == record_shapes.read()[name]


@with_captures
def test_every_recording_is_held_against_the_simulator() -> None:
    files = {path.name for path in Path(FOLDER).iterdir() if path.name != "README.md"}
    assert files == {SURFACES[name].capture for name in RECORDED} | set(NOT_SIMULATED)


def test_what_is_not_simulated_still_is_not(bare: Make) -> None:
    node = bare()
    for tool, why in NOT_SIMULATED.values():
        assert why
        if tool:
            assert f"there is no simulated '{tool}'" in node.run(tool).stderr


def test_each_form_of_a_driver_is_held_or_named() -> None:
    """The simulator prints `-q -x` in a form for each range of drivers; _FORMS lists their beginnings."""
    tree = ast.parse(
        Path(gpuprov_lab.__file__).with_name("silicon").joinpath("nvidia_smi/tree.py").read_text()
    )
    (forms,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_FORMS"
    )
    starts = [start for start, _ in forms]
    drivers = [
        tuple(map(int, surface.driver.split(".")[:2])) for surface in SURFACES.values() if surface.words == QX
    ]
    held = {max(start for start in starts if start <= driver) for driver in drivers}
    assert set(starts) - held == set(NOT_HELD)
