"""The index of runs says what reading all runs says, whatever happened to the runs and to the index."""

from __future__ import annotations

import dataclasses
import itertools
import multiprocessing
import shutil
import sqlite3
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from provision import offenders, run_index, verdict_history
from provision.judge import Verdict
from provision.run_index import Index, Past, Repeat
from tests.support.past_runs import node, run

VERDICTS = (Verdict.PASS, Verdict.PASS, Verdict.PASS, Verdict.WARN, Verdict.FAIL, Verdict.ERROR)


def again(home: Path, inventory: str | None) -> tuple[dict[str, Past], dict[str, int], list[Repeat]]:
    """The answers by reading every run, written as plainly as can be."""
    history: dict[str, list[run_index.Run]] = {}
    for one in run_index.runs(home):
        for name in one.verdicts if inventory in (None, one.inventory) else ():
            history.setdefault(name, []).append(one)
    last, flips, repeats = {}, {}, []
    rules = offenders.rules()
    for name, runs in history.items():
        said = [one.verdicts[name] for one in runs]
        last[name] = Past(runs[-1].name, runs[-1].started, said[-1])
        changed = sum(one != other for one, other in itertools.pairwise(said))
        if changed:
            flips[name] = changed
        recent = runs[-rules.runs :]
        times = Counter(device for one in recent for who, device in one.bad if who == name)
        repeats += [Repeat(name, d, n, len(recent)) for d, n in times.items() if n >= rules.investigate]
    return last, flips, sorted(repeats, key=lambda one: (-one.times, one.node, one.device))


def answers(home: Path, inventory: str | None) -> tuple[dict[str, Past], dict[str, int], list[Repeat]]:
    with Index(home) as index:
        return index.last(inventory), index.flips(inventory), index.repeats(inventory)


def test_last_flips_and_repeat_offenders(tmp_path: Path) -> None:
    run(tmp_path, 1, node("n1", Verdict.PASS), node("n2", Verdict.FAIL))
    run(tmp_path, 2, node("n1", Verdict.FAIL), node("n2", Verdict.FAIL))
    newest = run(tmp_path, 3, node("n1", Verdict.PASS), node("n3", Verdict.ERROR))
    with Index(tmp_path) as index:
        assert {name: (past.run, past.verdict) for name, past in index.last().items()} == {
            "n1": (newest.name, "pass"),
            "n2": ("20260501T000002.000Z-validate", "fail"),
            "n3": (newest.name, "error"),
        }
        assert [past.verdict for past in index.of("n1")] == ["pass", "fail", "pass"]
        assert index.of("nobody") == []
        assert index.flips() == {"n1": 2}
        assert index.repeats() == [Repeat("n2", "GPU-n2-3", 2, 2)]


def spoil(home: Path, noise: Random) -> None:
    """What people, kills and disks do to runs and to the index."""
    folders = sorted(home.glob("*Z-validate"))
    one = noise.choice(folders) if folders else home / "none"
    match noise.randrange(7):
        case 0:
            shutil.rmtree(one, ignore_errors=True)
        case 1:
            (one / verdict_history.FILE).unlink(missing_ok=True)
        case 2 if folders:
            (one / verdict_history.FILE).write_text('{"format": 1, "report": {"nodes": [{"no')
        case 3:
            (home / run_index.FILE).unlink(missing_ok=True)
        case 4:
            (home / run_index.FILE).write_bytes(noise.randbytes(5000))
        case 5:
            (home / run_index.FILE).write_bytes((home / run_index.FILE).read_bytes()[:6000])
        case 6 if folders:
            run(home, int(one.name[9:15]), node("n1", noise.choice(VERDICTS)))


@pytest.mark.parametrize("seed", range(6))
def test_it_says_what_all_runs_say(seed: int, tmp_path: Path) -> None:
    noise = Random(seed)  # noqa: S311 - the same histories every time
    told = 0
    for number in range(12):
        names = [f"n{i}" for i in range(6) if noise.random() < 0.8]
        nodes = [node(name, noise.choice(VERDICTS), noise.choice((1, 1, 5))) for name in names]
        folder = run(tmp_path, number, *nodes, inventory=noise.choice(("one.yml", "one.yml", "two.yml")))
        if noise.random() < 0.15:
            (folder / verdict_history.FILE).unlink()  # unfinished
        answers(tmp_path, None)
        if noise.random() < 0.5:
            spoil(tmp_path, noise)
        for inventory in (None, "one.yml"):
            expected = again(tmp_path, inventory)
            assert answers(tmp_path, inventory) == expected
        told += len(expected[0]) + len(expected[2])
    assert told


def test_only_what_is_new_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        run(tmp_path, number, node("n1", Verdict.PASS))
    answers(tmp_path, None)
    asked: list[str] = []
    honest = run_index.read
    monkeypatch.setattr(run_index, "read", lambda path: (asked.append(path.name), honest(path))[1])
    answers(tmp_path, None)
    assert asked == []
    newest = run(tmp_path, 5, node("n1", Verdict.FAIL))
    assert answers(tmp_path, None)[0]["n1"].verdict == "fail"
    assert asked == [newest.name]


def test_an_index_of_another_version_is_made_anew(tmp_path: Path) -> None:
    run(tmp_path, 1, node("n1", Verdict.PASS))
    with sqlite3.connect(tmp_path / run_index.FILE) as base:
        base.execute("create table runs (something text)")
        base.execute("pragma user_version = 99")
    base.close()
    assert answers(tmp_path, None) == again(tmp_path, None)


def test_without_a_place_for_the_index_the_runs_are_read(tmp_path: Path) -> None:
    run(tmp_path, 1, node("n1", Verdict.FAIL))
    (tmp_path / run_index.FILE).mkdir()
    assert answers(tmp_path, None) == again(tmp_path, None)
    assert answers(tmp_path / "nowhere", None) == ({}, {}, [])


def _ask(home: Path, times: int, results: multiprocessing.Queue[object]) -> None:
    for _ in range(times):
        results.put(answers(home, None))


def test_several_processes_ask_at_once(tmp_path: Path) -> None:
    for number in range(10):
        run(tmp_path, number, *(node(f"n{i}", VERDICTS[(i + number) % 6]) for i in range(30)))
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    askers = [context.Process(target=_ask, args=(tmp_path, 3, results)) for _ in range(3)]
    for asker in askers:
        asker.start()
    found = [results.get(timeout=120) for _ in range(9)]
    for asker in askers:
        asker.join(timeout=60)
        assert asker.exitcode == 0
    expected = again(tmp_path, None)
    assert all(one == expected for one in found)


def test_a_device_is_told_by_its_uuid(tmp_path: Path) -> None:
    """A GPU that sits elsewhere in the next run is the same GPU."""
    moved = node("n1", Verdict.FAIL, gpu=3)
    identity = dataclasses.replace(moved.gpus[3], index=5)
    elsewhere = dataclasses.replace(node("n1", Verdict.FAIL, gpu=5), gpus=(identity,))
    run(tmp_path, 1, moved)
    run(tmp_path, 2, elsewhere)
    with Index(tmp_path) as index:
        assert index.repeats() == [Repeat("n1", "GPU-n1-3", 2, 2)]
