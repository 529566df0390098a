"""History of nodes: newest results, last runs and verdicts, despite damaged runs and files."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from provision.checks.check import Measurement
from provision.checks.health import CheckResult, FleetHealth, GpuIdentity, NodeHealth
from provision.checks.judge import Finding, Verdict
from provision.checks.judging import offenders
from provision.checks.judging.offenders import Past
from provision.checks.judging.registry import CHECKS
from provision.errors import RunFolderError
from provision.runs import fingerprint, node_history
from provision.runs.fingerprint import Fingerprint
from provision.runs.node_history import Repeat
from provision.runs.store import RunFolder

PASS, WARN, FAIL, ERROR = Verdict.PASS, Verdict.WARN, Verdict.FAIL, Verdict.ERROR
THEN = Fingerprint({**dict.fromkeys(fingerprint.PARTS, "as it was"), "driver.loaded_version": "570.124.06"})


def changed(part: str, value: str) -> Fingerprint:
    return Fingerprint({**THEN.values, part: value})


def node(name: str, verdict: Verdict, gpu: int = 3, boot: str = "") -> NodeHealth:
    """Return a node with one finding, on GPU `gpu`."""
    action = {FAIL: "replace part", WARN: "watch"}.get(verdict, "none")
    finding = Finding(
        "gpu_burn", verdict, f"gpu{gpu}", "burns slowly", "rate", 4.0, action=action, evidence=("a line",)
    )
    rows = (Measurement("rate", 4.0, "Gflop/s", f"gpu{gpu}"),)
    gpus = tuple(GpuIdentity(i, "H100", f"serial {i}", f"GPU-{name}-{i}", f"0:{i}") for i in range(8))
    return NodeHealth(
        name,
        verdict,
        (CheckResult("gpu_burn", verdict, (finding,), rows, 1.0),),
        gpus,
        {"a": 1, **({"boot": boot} if boot else {})},
    )


def fleet(day: int, *nodes: NodeHealth, asked: tuple[str, ...] = ("gpu_burn",)) -> FleetHealth:
    run, started = f"202605{day:02d}T100000.000Z-validate", f"2026-05-{day:02d}T10:00:00Z"
    return FleetHealth(run, "0.1.0", "/srv/inventory.yml", started, started, asked, nodes)


def stored(runs: Path, health: FleetHealth, *, over: bool = True) -> RunFolder:
    folder = RunFolder(runs / health.run_id)
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.write_json("run.json", {"format": 1, "inventory": health.inventory, "asked": list(health.asked)})
    if over:
        node_history.record(folder, {}, health)
    return folder


def judged(day: int, **verdicts: Verdict) -> FleetHealth:
    return fleet(day, *(node(name, verdict) for name, verdict in verdicts.items()))


def run(runs: Path, day: int, **verdicts: Verdict) -> RunFolder:
    return stored(runs, judged(day, **verdicts))


# --- the newest result of each check


def ran(runs: Path, node: str, known: Fingerprint, at: str, **verdicts: str) -> RunFolder:
    folder = RunFolder.create("validate", {}, runs)
    node_history.note_look(folder, node, known)
    for check in verdicts:
        node_history.note_result(folder, node, check, known, at)
    node_history.record(folder, {(node, check): verdict for check, verdict in verdicts.items()})
    return folder


def test_the_newest_result_of_each_check_is_kept(tmp_path: Path) -> None:
    first = ran(tmp_path, "gpu-01", THEN, "2026-11-01T10:00:00Z", gpu_burn="pass", gpu_inventory="pass")
    later = changed("kernel.release", "6.12.2")
    second = ran(tmp_path, "gpu-01", later, "2026-11-02T10:00:00Z", gpu_inventory="fail")
    found = node_history.read(["gpu-01", "gpu-02"], tmp_path)
    assert found["gpu-02"] == {}
    burn, inventory = found["gpu-01"]["gpu_burn"], found["gpu-01"]["gpu_inventory"]
    assert (burn.verdict, burn.run, burn.known) == ("pass", first.path.name, THEN)
    assert (inventory.verdict, inventory.run, inventory.known) == ("fail", second.path.name, later)


def test_an_older_result_does_not_replace_a_newer_one(tmp_path: Path) -> None:
    ran(tmp_path, "gpu-01", THEN, "2026-11-02T10:00:00Z", gpu_burn="fail")
    ran(tmp_path, "gpu-01", THEN, "2026-11-01T10:00:00Z", gpu_burn="pass")
    assert node_history.read(["gpu-01"], tmp_path)["gpu-01"]["gpu_burn"].verdict == "fail"


def test_what_was_not_measured_does_not_replace_what_was(tmp_path: Path) -> None:
    ran(tmp_path, "gpu-01", THEN, "2026-11-01T10:00:00Z", gpu_burn="pass")
    folder = RunFolder.create("validate", {}, tmp_path)
    node_history.note_look(folder, "gpu-01", THEN)
    node_history.record(folder, {("gpu-01", "gpu_burn"): "error"})  # a verdict without a measurement
    assert node_history.read(["gpu-01"], tmp_path)["gpu-01"]["gpu_burn"].verdict == "pass"


def test_standings_name_what_holds_what_expired_and_what_never_ran(tmp_path: Path) -> None:
    ran(tmp_path, "gpu-01", THEN, "2026-11-02T10:00:00Z", gpu_burn="pass", gpu_inventory="warn", new="error")
    results = node_history.read(["gpu-01"], tmp_path)["gpu-01"]
    now = changed("driver.loaded_version", "580.126.09")
    found = {each.check: each for each in fingerprint.standings("gpu-01", list(CHECKS), results, THEN)}
    assert [name for name, each in found.items() if each.holds] == ["gpu_inventory", "gpu_burn"]
    assert found["p2p_bandwidth"].result is None
    expired = {each.check: each for each in fingerprint.standings("gpu-01", list(CHECKS), results, now)}
    assert not expired["gpu_burn"].holds
    assert expired["gpu_burn"].record() == {
        "node": "gpu-01",
        "check": "gpu_burn",
        "verdict": "pass",
        "at": "2026-11-02T10:00:00Z",
        "run": results["gpu_burn"].run,
        "holds": False,
        "changes": [
            {
                "part": "driver.loaded_version",
                "then": "570.124.06",
                "now": "580.126.09",
                "unknown": "",
                "text": "driver.loaded_version 570.124.06 → 580.126.09",
            }
        ],
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "cannot be read"),
        ('{"format": 1, "checks": {}}', "cannot be read"),
        ('{"format": 2, "checks": {}, "fingerprints": {}}', "newer gpuprov"),
        ('{"format": 1, "checks": {"gpu_burn": {"digest": "x"}}, "fingerprints": {}}', "cannot be read"),
    ],
)
def test_a_file_that_is_none_of_ours_is_said_and_costs_no_run(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "validated/gpu-01.json"
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(RunFolderError, match=says):
        node_history.read(["gpu-01"], tmp_path)
    ran(tmp_path, "gpu-01", THEN, "2026-11-02T10:00:00Z", gpu_burn="pass")
    if "newer" in says:
        assert file.read_text() == text, "what a newer version knows is left to it"
    else:
        assert set(node_history.read(["gpu-01"], tmp_path)["gpu-01"]) == {"gpu_burn"}


def test_reading_takes_one_small_file_a_node_however_many_runs_there_were(tmp_path: Path) -> None:
    for number in range(30):
        folder = ran(tmp_path, "gpu-01", THEN, f"2026-11-02T10:00:{number:02}Z", gpu_burn="pass")
        node_history.record(folder, {}, dataclasses.replace(judged(1, **{"gpu-01": FAIL})))
    files = list((tmp_path / "validated").glob("*.json"))
    assert [file.name for file in files] == ["gpu-01.json"]
    assert files[0].stat().st_size < 4096
    begin = time.process_time()
    node_history.read(["gpu-01"] * 1000, tmp_path)
    assert time.process_time() - begin < 1.0


def test_nothing_of_it_is_open_to_others(tmp_path: Path) -> None:
    ran(tmp_path, "gpu-01", THEN, "2026-11-02T10:00:00Z", gpu_burn="pass")
    assert (tmp_path / "validated").stat().st_mode & 0o077 == 0
    assert (tmp_path / "validated/gpu-01.json").stat().st_mode & 0o077 == 0


def test_a_strange_name_stays_in_the_history_folder(tmp_path: Path) -> None:
    run(tmp_path / "runs", 1, **{"../../evil": FAIL})
    (file,) = (tmp_path / "runs/validated").glob("[!.]*")
    assert json.loads(file.read_text())["node"] == "../../evil"


def _record(runs: Path, number: int) -> None:
    for _ in range(5):
        ran(runs, "gpu-01", THEN, "2026-11-02T10:00:00Z", **{f"check{number}": "pass"})
        folder = RunFolder.create(f"validate{number}", {}, runs)
        node_history.record(folder, {}, judged(1, **{"gpu-01": FAIL}))


def test_several_controllers_lose_nothing_of_each_other(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_record, args=(tmp_path, number)) for number in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(timeout=120)
        assert writer.exitcode == 0
    assert set(node_history.read(["gpu-01"], tmp_path)["gpu-01"]) == {"check0", "check1", "check2"}
    assert len(json.loads((tmp_path / "validated/gpu-01.json").read_text())["runs"]) == 15


# --- repeat offenders


def recalled(runs: Path, *nodes: str) -> dict[str, list[Past]]:
    folder = RunFolder.create("validate", {}, runs=runs)
    node_history.recall(folder, nodes or ["gpu-01"])
    return node_history.recalled(folder)


def test_history_is_remembered_run_by_run_and_told_again_the_same(tmp_path: Path) -> None:
    actions = []
    for boot in "aaabbcd":
        one = node("gpu-01", WARN, boot=boot)
        folder = RunFolder.create("validate", {}, runs=tmp_path)
        node_history.recall(folder, ["gpu-01"])
        raised = offenders.escalate([one], node_history.recalled(folder))
        node_history.record(folder, {}, fleet(1, *raised))
        node_history.record(folder, {}, fleet(1, *raised))  # a resumed run counts once
        actions.append(raised[0].checks[0].findings[0].action)
        again = offenders.escalate([one], node_history.recalled(RunFolder.open(folder.path)))
        assert again == raised
    assert actions == ["watch"] * 3 + ["investigate"] * 2 + ["replace part"] * 2


def test_a_healthy_run_is_one_of_the_last_runs_too_and_a_silent_one_is_not(tmp_path: Path) -> None:
    silent = NodeHealth("gpu-01", ERROR, (), error="no route to host")
    for day, one in enumerate([WARN, PASS, PASS, PASS, PASS], 1):
        run(tmp_path, day, **{"gpu-01": one})
        stored(tmp_path, fleet(day + 10, silent))
    past = recalled(tmp_path)["gpu-01"]
    assert [set(one.bad) for one in past] == [{"GPU-gpu-01-3 gpu_burn.rate"}] + [set()] * 4
    raised = offenders.escalate([node("gpu-01", WARN)], {"gpu-01": past})
    assert raised[0].checks[0].findings[0].action == "watch", "longer ago than what counts"


def test_the_history_outlives_the_run_folders(tmp_path: Path) -> None:
    shutil.rmtree(run(tmp_path, 1, **{"gpu-01": FAIL}).path)
    (past,) = recalled(tmp_path)["gpu-01"]
    assert past == Past("20260501T100000.000Z-validate", {"GPU-gpu-01-3 gpu_burn.rate"}, "", {"gpu_burn"})


@pytest.mark.parametrize(
    "damage",
    ["not json", '{"format": 1, "runs": [{"run": 1}, 7, [1], {"run": "x", "bad": 3}]}', '{"runs": 3}', "[]"],
)
def test_a_damaged_history_costs_no_report(tmp_path: Path, damage: str) -> None:
    (tmp_path / "validated").mkdir()
    (tmp_path / "validated/gpu-01.json").write_text(damage)
    assert recalled(tmp_path) == {}


def test_what_an_older_version_kept_of_the_runs_is_read_and_taken_over(tmp_path: Path) -> None:
    """Older versions kept `offenders/<node>.jsonl` with a line for each run, next to `validated/`."""
    lines = [
        '{"run": "run0", "bad": ["GPU-1"]}', "not json", '{"run": "run1", "bad": []}', '{"run": "x"}', "[1]",
        '{"run": "run2", "bad": 3}', '{"run": "run0", "bad": ["GPU-2", "nvlink é"]}',
        '{"run": "run3", "bad": [',
    ]  # fmt: skip
    (tmp_path / "offenders").mkdir()
    (tmp_path / "offenders/gpu-01.jsonl").write_text("\n".join(lines))
    before = [
        Past("run1", frozenset(), "", frozenset()),
        Past("run0", frozenset({"GPU-2", "nvlink é"}), "", frozenset()),
    ]
    assert recalled(tmp_path) == {"gpu-01": before}
    newest = run(tmp_path, 1, **{"gpu-01": FAIL})
    shutil.rmtree(tmp_path / "offenders")
    assert recalled(tmp_path)["gpu-01"] == [
        *before,
        Past(newest.path.name, frozenset({"GPU-gpu-01-3 gpu_burn.rate"}), "", frozenset({"gpu_burn"})),
    ]


# --- results of earlier runs


def found(folder: RunFolder, health: FleetHealth) -> node_history.Earlier:
    earlier = node_history.earlier(folder, health)
    assert earlier is not None
    return earlier


def test_the_first_run_has_nothing_to_compare_with(tmp_path: Path) -> None:
    health = judged(1, n1=PASS)
    assert node_history.earlier(stored(tmp_path, health), health) is None


def test_the_last_run_is_told_with_what_was_wrong_and_nothing_more(tmp_path: Path) -> None:
    run(tmp_path, 1, n1=PASS, n2=PASS)
    last = run(tmp_path, 2, n1=PASS, n2=FAIL)
    now = judged(3, n1=PASS, n2=PASS)
    earlier = found(stored(tmp_path, now), now)
    assert earlier.fleet.run_id == last.path.name
    good, bad = earlier.fleet.nodes
    assert (good.verdict, good.checks) == (PASS, ())
    assert bad.verdict is FAIL
    assert bad.checks[0].findings[0].message == "burns slowly"
    assert (bad.checks[0].measurements, bad.checks[0].findings[0].evidence, bad.facts) == ((), (), {})
    assert earlier.since == {"n2": "2026-05-02T10:00:00Z"}


def test_a_node_is_bad_since_the_first_run_of_an_unbroken_row(tmp_path: Path) -> None:
    run(tmp_path, 1, n1=FAIL, n2=FAIL)
    run(tmp_path, 2, n1=ERROR, n2=WARN)
    run(tmp_path, 3, n1=FAIL, n2=FAIL)
    now = judged(4, n1=FAIL, n2=FAIL)
    assert found(stored(tmp_path, now), now).since == {
        "n1": "2026-05-01T10:00:00Z",
        "n2": "2026-05-03T10:00:00Z",
    }


def test_a_run_of_one_node_does_not_hide_what_is_known_of_the_others(tmp_path: Path) -> None:
    run(tmp_path, 1, n1=FAIL, n2=FAIL)
    run(tmp_path, 2, n2=PASS)
    now = judged(3, n1=FAIL, n2=PASS)
    earlier = found(stored(tmp_path, now), now)
    assert {each.node: each.verdict for each in earlier.fleet.nodes} == {"n1": FAIL, "n2": PASS}
    assert earlier.names == {"n2"}
    assert earlier.since == {"n1": "2026-05-01T10:00:00Z"}


def test_only_the_same_checks_on_the_same_inventory_are_compared(tmp_path: Path) -> None:
    first = run(tmp_path, 1, n1=FAIL)
    stored(tmp_path, fleet(2, node("n1", PASS), asked=("gpu_inventory",)))
    stored(tmp_path, dataclasses.replace(judged(3, n1=PASS), inventory="/srv/another.yml"))
    now = judged(4, n1=FAIL)
    assert found(stored(tmp_path, now), now).fleet.run_id == first.path.name


def test_an_interrupted_run_is_no_measure(tmp_path: Path) -> None:
    first = run(tmp_path, 1, n1=PASS)
    stored(tmp_path, dataclasses.replace(judged(2, n1=ERROR), interrupted=True))
    now = judged(3, n1=PASS)
    assert found(stored(tmp_path, now), now).fleet.run_id == first.path.name
    assert [one.verdict for one in node_history.node_runs(tmp_path)["n1"]] == ["pass", "pass"]


def test_a_later_run_is_not_earlier(tmp_path: Path) -> None:
    first = judged(1, n1=PASS)
    folder = stored(tmp_path, first)
    run(tmp_path, 2, n1=FAIL)
    assert node_history.earlier(folder, first) is None


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "null", '{"format": 2}', '{"format": 1}', "[" * 100_000,
        '{"format": 1, "since": [], "report": {}}', '{"format": 1, "since": {}, "report": {"nodes": 3}}',
    ],
)  # fmt: skip
def test_a_damaged_or_newer_history_is_passed_over(tmp_path: Path, text: str) -> None:
    first = run(tmp_path, 1, n1=FAIL)
    stored(tmp_path, judged(2, n1=PASS), over=False).write(node_history.VERDICTS, text)
    (tmp_path / "20260503T100000.000Z-validate").mkdir()
    now = judged(4, n1=FAIL)
    assert found(stored(tmp_path, now), now).fleet.run_id == first.path.name
    assert [one.verdict for one in node_history.node_runs(tmp_path)["n1"]] == ["fail", "fail"]


# --- all runs together


def said(runs: Path) -> dict[str, list[str]]:
    return {name: [one.verdict for one in found] for name, found in node_history.node_runs(runs).items()}


def repeats(runs: Path) -> list[Repeat]:
    return [
        one
        for name, found in node_history.node_runs(runs).items()
        for one in node_history.repeats(name, found)
    ]


def test_verdicts_flips_and_repeat_offenders(tmp_path: Path) -> None:
    run(tmp_path, 1, n1=PASS, n2=FAIL)
    run(tmp_path, 2, n1=FAIL, n2=PASS)
    run(tmp_path, 3, n1=FAIL, n2=FAIL)
    newest = run(tmp_path, 4, n1=PASS, n3=ERROR)
    history = node_history.node_runs(tmp_path)
    assert said(tmp_path) == {
        "n1": ["pass", "fail", "fail", "pass"],
        "n2": ["fail", "pass", "fail"],
        "n3": ["error"],
    }
    assert (history["n1"][-1].run, history["n1"][-1].started) == (newest.path.name, "2026-05-04T10:00:00Z")
    assert {name: node_history.flips(runs) for name, runs in history.items()} == {"n1": 2, "n2": 2, "n3": 0}
    assert repeats(tmp_path) == [Repeat("n2", "GPU-n2-3", "gpu_burn.rate", 2, 3)]
    assert node_history.node_runs(tmp_path / "nowhere") == {}


def test_a_repeat_offender_is_one_across_boots_and_not_across_looks(tmp_path: Path) -> None:
    for day, boot in enumerate("aaaab", 1):
        assert repeats(tmp_path) == []
        stored(tmp_path, fleet(day, node("n1", FAIL, boot=boot)))
    assert repeats(tmp_path) == [Repeat("n1", "GPU-n1-3", "gpu_burn.rate", 2, 5)]


def test_only_the_last_runs_count_for_a_repeat_offender(tmp_path: Path) -> None:
    use = offenders.rules()
    verdicts: Mapping[int, Verdict] = {1: FAIL, 3: FAIL, use.runs + 3: FAIL}
    for day in range(1, use.runs + 4):
        run(tmp_path, day, n1=verdicts.get(day, PASS))
    assert repeats(tmp_path) == []
    run(tmp_path, use.runs + 4, n1=PASS)
    run(tmp_path, use.runs + 5, n1=WARN)
    assert repeats(tmp_path) == [Repeat("n1", "GPU-n1-3", "gpu_burn.rate", 2, use.runs + 5)]


def test_runs_that_were_removed_or_judged_again_are_as_they_are_now(tmp_path: Path) -> None:
    folders = [run(tmp_path, day, n1=PASS, n2=FAIL) for day in (1, 2, 3)]
    shutil.rmtree(folders[0].path)
    (folders[1].path / node_history.VERDICTS).unlink()
    assert said(tmp_path) == {"n1": ["pass"], "n2": ["fail"]}
    run(tmp_path, 3, n1=WARN)
    assert said(tmp_path) == {"n1": ["warn"]}


def test_a_device_is_told_by_its_uuid(tmp_path: Path) -> None:
    """A GPU that was moved to another slot between runs is the same GPU."""
    moved = node("n1", FAIL, gpu=3)
    identity = dataclasses.replace(moved.gpus[3], index=5)
    elsewhere = dataclasses.replace(node("n1", FAIL, gpu=5), gpus=(identity,))
    stored(tmp_path, fleet(1, moved))
    run(tmp_path, 2, n1=PASS)
    stored(tmp_path, fleet(3, elsewhere))
    assert repeats(tmp_path) == [Repeat("n1", "GPU-n1-3", "gpu_burn.rate", 2, 3)]
