"""Documented commands that need no node run in the order of each page, in a fresh folder.

tests/lab/test_documented_runs.py runs all of them on nodes. tests/documented_runs.yml lists those not run.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.support import page_runs, pages
from tests.support.page_runs import Folder, Site
from tests.support.pages import Command, Needs
from tests.support.stored import FIXTURE, measured

# As many nodes as a limit learned from them requires.
MEASURED = [f"gpu-{number:02d}" for number in range(1, 5)]


def here(page: str) -> list[Command]:
    wanted = (Needs.NOTHING, Needs.RUNS)
    return [each for each in pages.commands(page) if each.needs in wanted and not pages.not_run(each)]


@pytest.mark.parametrize("page", [page for page in pages.PAGES if here(page)])
def test_what_needs_no_node_runs_as_the_page_has_it(page: str, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for _ in range(2):
        measured(runs, dict.fromkeys(MEASURED, FIXTURE.read_text(encoding="utf-8")))
    folder = Folder(tmp_path, Site(fleet={"gpu_nodes": {"hosts": {"gpu-01": {}}}}), runs=runs)
    for command in here(page):
        ran = folder.run(command, timeout=60)
        assert ran.code == 0, str(ran)
        assert "Traceback" not in ran.err
        assert page_runs.not_printed(ran, ran.out + ran.err) == []


@pytest.mark.parametrize("page", [page for page in pages.PAGES if pages.inventories(page)])
def test_the_inventories_that_a_page_shows_are_ones(page: str, tmp_path: Path) -> None:
    for number, inventory in pages.inventories(page):
        if "all" not in inventory:  # a fragment that omits the reader's nodes
            inventory["gpu_nodes"].setdefault("hosts", {"gpu-01": {}})
        file = tmp_path / f"fleet{number}.yml"
        file.write_text(yaml.safe_dump(inventory, sort_keys=False))
        folder = Folder(tmp_path / str(number), Site())
        checked = folder.run(Command(page, 0, f"gpuprov plan --offline {file}"), timeout=60)
        assert checked.code == 0, str(checked)
        assert "no mistake found" in checked.out


def test_every_page_but_one_shows_commands_and_most_of_them_are_run() -> None:
    shown = {page: len(pages.commands(page)) for page in pages.PAGES}
    assert [page for page, count in shown.items() if not count] == ["docs/schedulers.md"]
    reasons = [pages.not_run(each) for page in pages.PAGES for each in pages.commands(page)]
    assert sum(bool(reason) for reason in reasons) < len(reasons) / 4
    assert {each.needs for page in pages.PAGES for each in pages.commands(page)} == set(Needs)


def test_what_root_alone_may_do_is_shown_with_sudo() -> None:
    """Tests run as root, and would not notice."""
    for command in pages.commands("docs/lab.md"):
        if (options := command.options) is not None and command.needs is Needs.LAB:
            assert command.root or options.lab_verb in ("faults", "compare"), command


@pytest.mark.parametrize("kind", ["not_run", "ends", "not_printed"])
def test_no_entry_outlives_what_it_is_about(kind: str) -> None:
    for page, entries in pages.data()[kind].items():
        assert page in pages.PAGES
        shown = [each.text for each in pages.commands(page)]
        lines = [line for each in pages.commands(page) for line in each.output]
        for entry, value in entries.items():
            assert entry in (lines if kind == "not_printed" else shown), f"{page} no longer shows: {entry}"
            assert value, f"{page}: {entry}: no reason"
            if kind == "ends":
                assert value["why"]
                assert 1 <= len(value["codes"]) <= shown.count(entry)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2 of 20 nodes unhealthy, 14 healthy", "1 of 3 nodes unhealthy"),
        ("✗ FAIL       2  gpu-[03-04]", "✗ FAIL 1 gpu-03"),
        ("      gpu-[06-07]", "  gpu-66"),
        ("    + 13 packages 570.124.06 → 580.126.09: a, b", "    ~ 1 package 580.126.09: nvidia-driver-cuda"),
        ("oldest health result: 41 s (gpu-16)", "oldest health result: 7 s (n1)"),
    ],
)
def test_lines_of_one_form_are_alike(one: str, other: str) -> None:
    assert pages.form(one) == pages.form(other)


def test_lines_of_other_forms_are_not() -> None:
    assert pages.form("Slurm: 17 ALLOCATED") != pages.form("pending: 1 finding")
    assert pages.form("Failed") != pages.form("Not measured")
    assert pages.form("next: gpuprov up fleet.yml") != pages.form("next: scontrol update")
