"""The benchmarks run on a few nodes in one round, and docs/performance.md has a row for each goal.

Speed itself is not tested."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import bench_drift, bench_start, document, measured, nodes, results
from benchmarks import expected as expectations
from benchmarks.contenders import FLOOR, OURS
from benchmarks.costs import FailedError, cost_of
from benchmarks.goals import GOALS
from benchmarks.nodes import Nodes
from benchmarks.results import Options, Result, Rounds

pytestmark = pytest.mark.timeout(600)

DOCUMENT = Path(__file__).parents[2] / "docs/performance.md"


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(tmp_path, nodes=3, rounds=1, quick=True)


@pytest.fixture
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use nodes that need no root."""
    monkeypatch.setattr(bench_drift, "fleet", nodes.loopback)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Nodes, list[expectations.Expected]]]:
    with nodes.loopback(2) as fleet:
        yield fleet, expectations.prepared(fleet, str(tmp_path / "on-nodes"))


def a_part(name: str, *findings: Result) -> measured.Part:
    return measured.Part(name, "python -m benchmarks", "2026-01-01", "abc", "a machine", 0.1, 60.0, findings)


def of_goals(found: list[Result]) -> dict[str, Result]:
    return {each.goal: each for each in found}


# --- the document ---


def test_the_document_has_a_row_for_each_goal() -> None:
    measured = DOCUMENT.read_text("utf-8").partition(document.BEGIN)[2].partition(document.END)[0]
    rows = [line.split(" | ") for line in measured.splitlines() if line.startswith("| ")]
    stated = {(row[0].removeprefix("| "), row[1]) for row in rows if len(row) > 3}
    assert {(goal.work, goal.asked) for goal in GOALS.values()} <= stated


def test_a_goal_that_was_not_measured_is_not_claimed() -> None:
    rows = list(document.goals([Result("help.cpu", "it", "nothing", (3.0, 5.0, 9.0), "a note")]))
    assert sum(document.NOT_MEASURED in row for row in rows) == len(GOALS) - 1
    measured = next(row for row in rows if "a note" in row)
    assert "5.00x (3.00 to 9.00)" in measured
    assert "**no**" in measured


def test_what_says_nothing_of_its_goal_neither_meets_nor_misses_it() -> None:
    told = Result("up.processes", "600 hosts", "one process", (0.5,))
    untold = replace(told, unproven="one fills the cores")
    assert (results.misses(told), results.misses(untold)) == (True, False)
    (row,) = [row for row in document.goals([untold]) if "600 hosts" in row]
    assert "| not told | 600 hosts. Not told, for one fills the cores |" in row
    assert "not told (one fills the cores)" in next(results.lines(untold))


def test_figures_are_written_between_the_markers_and_nowhere_else(tmp_path: Path) -> None:
    path = tmp_path / "doc.md"
    path.write_text(f"before\n{document.BEGIN}\nold\n{document.END}\nafter\n")
    document.write(path, [a_part("one", Result("help.cpu", "it", "nothing", (1.0,)))])
    text = path.read_text()
    assert text.startswith(f"before\n{document.BEGIN}\n| goal |")
    assert text.endswith(f" 0.1 | 1.0 |\n{document.END}\nafter\n")
    path.write_text("no markers")
    with pytest.raises(SystemExit, match="no lines"):
        document.write(path, [])
    with pytest.raises(SystemExit, match="cannot be read"):
        document.write(tmp_path / "none.md", [])


def test_the_document_shows_the_figures_that_are_kept_beside_it(tmp_path: Path) -> None:
    """No figure was edited by hand, and every figure belongs to an existing part."""
    kept = measured.read(measured.beside(DOCUMENT), list(command.parts()))
    copy = tmp_path / "copy.md"
    copy.write_text(DOCUMENT.read_text("utf-8"), "utf-8")
    document.write(copy, kept.values())
    assert copy.read_text("utf-8") == DOCUMENT.read_text("utf-8")


def test_figures_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "doc.json"
    result = Result("help.cpu", "it", "nothing", (1.0, 2.0), "a note")
    one, two = a_part("one", result), a_part("two")
    measured.write(path, [one, two])
    assert measured.read(path, ["two", "one"]) == {"two": two, "one": one}
    assert measured.read(path, ["two"]) == {"two": two}
    assert measured.read(tmp_path / "none.json", ["two"]) == {}
    path.write_text('{"one": {"no": "figures"}}')
    with pytest.raises(SystemExit, match="does not hold figures"):
        measured.read(path, ["one"])


def test_measuring_one_part_again_leaves_the_others(tmp_path: Path) -> None:
    def gives(*values: float) -> results.Measure:
        return lambda _: iter([Result("help.cpu", f"it took {values[0]:.0f}", "nothing", values)])

    path = tmp_path / "doc.md"
    path.write_text(f"{document.BEGIN}\n{document.END}\n")
    first = {"one": gives(1.0), "two": gives(2.0)}
    assert command.main(["--quick", "--write", str(path)], first) == 0
    again = {"one": gives(3.0), "two": gives(4.0)}
    assert command.main(["--quick", "--rounds", "1", "--only", "one", "--write", str(path)], again) == 0
    text = path.read_text()
    assert "it took 3" in text
    assert "it took 2" in text
    assert "it took 1" not in text
    assert "it took 4" not in text
    assert "`python -m benchmarks --quick --rounds 1` |" in text
    assert "`python -m benchmarks --quick` |" in text


def test_what_was_measured_before_a_kill_is_kept(tmp_path: Path) -> None:
    def killed(_: Options) -> Iterator[Result]:
        raise KeyboardInterrupt
        yield

    good = [Result("help.cpu", "it", "nothing", (1.0,))]
    path = tmp_path / "doc.md"
    path.write_text(f"{document.BEGIN}\n{document.END}\n")
    with pytest.raises(KeyboardInterrupt):
        command.main(["--quick", "--write", str(path)], {"one": lambda _: iter(good), "two": killed})
    assert "1.00x" in path.read_text()


@pytest.mark.parametrize("key", GOALS)
def test_a_goal_knows_on_which_side_of_its_limit_is_better(key: str) -> None:
    goal = GOALS[key]
    better, worse = (2.0, 0.5) if goal.least else (0.5, 2.0)
    assert goal.met(goal.limit * better)
    assert not goal.met(goal.limit * worse)


def test_the_command_finds_every_part_and_refuses_an_unknown_one() -> None:
    known = command.parts()
    assert {"drift", "start", "up"} <= known.keys()
    with pytest.raises(SystemExit, match="no such part"):
        command.chosen("drift,no-such", list(known))


def test_a_part_that_breaks_is_said_and_the_others_are_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: Options) -> Iterator[Result]:
        raise FailedError("out of order")
        yield

    good = [Result("help.cpu", "it", "nothing", (1.0,))]
    path = tmp_path / "doc.md"
    path.write_text(f"{document.BEGIN}\n{document.END}\n")
    assert command.main(["--quick", "--write", str(path)], {"one": broken, "two": lambda _: iter(good)}) == 70
    text = path.read_text()
    assert "`one` was not measured to its end: out of order" in text
    assert "1.00x" in text
    assert "FailedError" in capsys.readouterr().err
    assert command.main(["--quick"], {"two": lambda _: iter([replace(good[0], values=(99.0,))])}) == 1


# --- the parts ---


@pytest.mark.usefixtures("loopback")
def test_drift_is_measured_against_its_floors(options: Options) -> None:
    found = of_goals(list(bench_drift.measure(options)))
    assert found.keys() == {"drift.controller", "drift.node", "drift.wall"}
    assert all(each.median > 0 for each in found.values())


def test_start_measures_its_goals(options: Options) -> None:
    assert of_goals(list(bench_start.measure(options))).keys() == {"help.cpu", "help.wall"}


# --- a contender must observe the nodes ---


def test_forty_things_are_expected_of_every_kind(two: tuple[Nodes, list[expectations.Expected]]) -> None:
    _, expected = two
    assert len(expected) == 40
    assert len({(one.kind, one.name) for one in expected}) == 40
    wrong = expectations.with_differences(expected)
    assert [one.kind for one, other in zip(expected, wrong, strict=True) if one != other] == [
        "package",
        "module",
        "sysctl",
    ]


def test_who_reports_no_planted_difference_is_not_measured(
    two: tuple[Nodes, list[expectations.Expected]], tmp_path: Path
) -> None:
    fleet, expected = two
    bench_drift.sees(OURS, fleet, expected, bench_drift._new(tmp_path, "ours"))
    with pytest.raises(FailedError, match="it reports"):  # plain ssh observes nothing
        bench_drift.sees(FLOOR, fleet, expected, bench_drift._new(tmp_path, "floor"))


def test_who_finds_a_node_not_as_declared_is_not_measured(
    two: tuple[Nodes, list[expectations.Expected]], tmp_path: Path
) -> None:
    fleet, expected = two
    work = OURS.make(fleet, expectations.with_differences(expected), tmp_path)
    with pytest.raises(FailedError, match="2 of 2 not as declared"):
        bench_drift.converged("gpuprov drift", work, fleet)


def test_a_node_that_fails_is_one_line(two: tuple[Nodes, list[expectations.Expected]]) -> None:
    fleet, _ = two
    assert fleet.run(fleet.names[0], "echo", "it answers") == "it answers\n"
    with pytest.raises(FailedError, match=r"^node-00000: cat /no/such: .*No such file"):
        fleet.run(fleet.names[0], "cat", "/no/such")


def test_what_outlives_a_command_is_ended_and_counted(tmp_path: Path) -> None:
    mark, script = tmp_path / "pid", tmp_path / "lasting.py"
    work = "sum(range(20_000_000))"
    script.write_text(
        f"import os, time\n{work}\nopen({str(mark)!r}, 'w').write(str(os.getpid()))\ntime.sleep(90)"
    )
    shell = f"setsid {sys.executable} {script} & while [ ! -s {mark} ]; do sleep 0.05; done"
    cost = cost_of(["bash", "-c", shell], timeout=60)
    assert cost.code == 0, cost.trouble
    assert not Path(f"/proc/{mark.read_text()}").exists()
    assert cost.controller > 0.05


def test_a_command_that_does_not_end_is_ended() -> None:
    with pytest.raises(FailedError, match="not done after"):
        cost_of(["sleep", "60"], timeout=0.5)


# --- figures ---


def test_ratios_are_to_the_floor_of_the_same_round() -> None:
    rounds = Rounds()
    costs: Mapping[str, tuple[float, ...]] = {"floor": (1.0, 2.0), "ours": (3.0, 4.0)}
    for name, values in costs.items():
        for value in values:
            rounds.add(name, value)
    assert rounds.ratios("ours", "floor") == (3.0, 2.0)


@pytest.mark.parametrize(
    ("value", "text"), [(0.394, "0.39"), (1.05, "1.05"), (12.44, "12.4"), (316.8, "317"), (4875, "4,875")]
)
def test_numbers_have_the_digits_that_mean_something(value: float, text: str) -> None:
    assert results.number(value) == text
