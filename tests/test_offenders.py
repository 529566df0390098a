"""A device that is bad again is asked for more than the last time, with the runs that say so."""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random

import pytest

from provision import offender_history, offenders
from provision.health import CheckResult, GpuIdentity, NodeHealth
from provision.judge import Finding, Verdict
from provision.offenders import Past, escalate
from provision.store import RunFolder


def node(
    device: str = "gpu3",
    verdict: Verdict = Verdict.WARN,
    action: str = "watch",
    uuid: str = "GPU-3",
    name: str = "gpu-01",
) -> NodeHealth:
    finding = Finding("gpu_burn", verdict, device, "slow", "rate", 1.0, action=action, evidence=("a line",))
    gpus = tuple(GpuIdentity(i, "H100", "", uuid if i == 3 else f"GPU-{i}", "") for i in range(8))
    return NodeHealth(name, verdict, (CheckResult("gpu_burn", verdict, (finding,), (), 1.0),), gpus)


def runs(*bad: bool, of: str = "GPU-3") -> dict[str, list[Past]]:
    return {"gpu-01": [Past(f"run{i}", {of} if each else ()) for i, each in enumerate(bad)]}


def judged(one: NodeHealth, past: dict[str, list[Past]]) -> Finding:
    return escalate([one], past)[0].checks[0].findings[0]


@pytest.mark.parametrize(
    ("past", "action"),
    [
        ((), "watch"),
        ((False, False, False, False), "watch"),
        ((True,), "investigate"),
        ((False, True, False), "investigate"),
        ((True, False, True), "replace part"),
        ((True, True, True, True), "replace part"),
        ((True, True, False, False, False, False), "watch"),  # longer ago than what is looked at
    ],
)
def test_watch_becomes_investigate_becomes_replace(past: tuple[bool, ...], action: str) -> None:
    finding = judged(node(), runs(*past))
    assert finding.action == action
    assert finding.verdict is Verdict.WARN, "what was before does not change what was measured"
    if action == "watch":
        assert finding.evidence == ("a line",)


def test_the_earlier_runs_are_the_evidence() -> None:
    finding = judged(node(), runs(True, False, True))
    assert finding.evidence == ("a line", "bad in 3 of the last 4 runs: also in run0, run2")
    assert finding.message == "slow; bad in 3 of the last 4 runs"


def test_a_new_gpu_in_the_same_slot_starts_clean() -> None:
    assert judged(node(uuid="GPU-new"), runs(True, True, True)).action == "watch"
    pair = node("gpu2-gpu3")
    assert judged(pair, runs(True, of="GPU-2-GPU-3")).action == "investigate"
    assert judged(node("mlx5_2"), runs(True, True, of="mlx5_2")).action == "replace part"


def test_a_stronger_action_is_never_weakened_and_a_node_is_no_part() -> None:
    assert judged(node(action="replace part"), runs(True)).action == "replace part"
    assert judged(node(action="reset GPU", verdict=Verdict.FAIL), runs(True)).action == "reset GPU"
    assert judged(node(action="reset GPU", verdict=Verdict.FAIL), runs(True, True)).action == "replace part"
    assert judged(node("node"), runs(True, True, True, of="node")).action == "investigate"


@pytest.mark.parametrize(
    ("verdict", "action"),
    [
        (Verdict.WARN, "fix configuration"),
        (Verdict.ERROR, "run again"),
        (Verdict.FAIL, "restart job"),
        (Verdict.PASS, "none"),
    ],
)
def test_what_is_no_matter_of_hardware_is_neither_counted_nor_raised(verdict: Verdict, action: str) -> None:
    one = node(verdict=verdict, action=action)
    assert offenders.bad(one) == []
    assert judged(one, runs(True, True, True, True)).action == action


def test_history_is_remembered_run_by_run_and_told_again_the_same(tmp_path: Path) -> None:
    actions = []
    for _ in range(4):
        folder = RunFolder.create("validate", {}, runs=tmp_path)
        offender_history.recall(folder, [node()])
        raised = escalate([node()], offender_history.recalled(folder))
        offender_history.remember(folder, raised)
        offender_history.remember(folder, raised)  # a run that was resumed counts once
        actions.append(raised[0].checks[0].findings[0].action)
        again = escalate([node()], offender_history.recalled(RunFolder.open(folder.path)))
        assert again == raised
    assert actions == ["watch", "investigate", "replace part", "replace part"]


def test_a_healthy_run_is_one_of_the_last_runs_too(tmp_path: Path) -> None:
    healthy = node(verdict=Verdict.PASS, action="none")
    for one in [node(), healthy, healthy, healthy, healthy]:
        folder = RunFolder.create("validate", {}, runs=tmp_path)
        offender_history.remember(folder, [one])
    folder = RunFolder.create("validate", {}, runs=tmp_path)
    offender_history.recall(folder, [node()])
    assert judged(node(), offender_history.recalled(folder)).action == "watch"


@pytest.mark.parametrize("damage", ["not json\nnor this\n", '{"run": 1}\n', '[1]\n{"bad": 3, "run": "x"}\n'])
def test_a_damaged_history_costs_no_report(tmp_path: Path, damage: str) -> None:
    (tmp_path / offender_history.FOLDER).mkdir()
    (tmp_path / offender_history.FOLDER / "gpu-01.jsonl").write_text(damage)
    folder = RunFolder.create("validate", {}, runs=tmp_path)
    offender_history.recall(folder, [node()])
    assert judged(node(), offender_history.recalled(folder)).action == "watch"


def read_whole(path: Path, present: str) -> list[Past]:
    """What the end of a history says, by reading all of it, as plainly as can be."""
    runs: dict[str, Past] = {}
    for line in path.read_bytes().split(b"\n"):
        try:
            record = json.loads(line)
            past = Past(record["run"], frozenset(record["bad"]))
        except (ValueError, KeyError, TypeError):
            continue
        if past.run != present:
            runs.pop(past.run, None)
            runs[past.run] = past
    return list(runs.values())[-(offenders.rules().runs - 1) :]


@pytest.mark.parametrize("seed", range(40))
def test_the_end_of_a_history_says_what_all_of_it_says(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = Random(seed)  # noqa: S311 - the same histories every time
    monkeypatch.setattr(offender_history, "_BLOCK", noise.choice((1, 7, 100, 4096)))
    folder = RunFolder.create("validate", {}, runs=tmp_path)
    home, expected = tmp_path / offender_history.FOLDER, {}
    home.mkdir()
    for name in ("gpu-01", "gpu-02", "gpu-03"):
        lines = []
        for number in range(noise.randrange(15)):
            run = noise.choice((f"run{number}", f"run{max(0, number - 1)}", folder.path.name))  # some go on
            lines.append(json.dumps({"run": run, "bad": noise.sample(["GPU-1", "GPU-2", "nvlink é"], 2)}))
        for damage in noise.sample(
            ["[1]", '{"run": "x"}', '{"run": "run3", "bad": 3}', "", "\0\0", '{"run": "'], 2
        ):
            lines.insert(noise.randrange(len(lines) + 1), damage)
        text = "\n".join(lines).encode()
        (home / f"{name}.jsonl").write_bytes(text[: len(text) - noise.choice((0, 0, 9))])  # a torn tail
        if found := read_whole(home / f"{name}.jsonl", folder.path.name):
            expected[name] = found
    offender_history.recall(folder, [node(name=name) for name in ("gpu-01", "gpu-02", "gpu-03", "unknown")])
    assert offender_history.recalled(folder) == expected


def test_only_the_end_of_a_long_history_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder.create("validate", {}, runs=tmp_path)
    rows = [json.dumps({"run": f"run{number}", "bad": ["GPU-3"]}) + "\n" for number in range(10_000)]
    (tmp_path / offender_history.FOLDER).mkdir()
    (tmp_path / offender_history.FOLDER / "gpu-01.jsonl").write_text("".join(rows))
    taken, honest = [], os.pread
    monkeypatch.setattr(
        os, "pread", lambda file, size, place: taken.append(size) or honest(file, size, place)
    )
    offender_history.recall(folder, [node()])
    assert [past.run for past in offender_history.recalled(folder)["gpu-01"]] == [
        "run9996", "run9997", "run9998", "run9999"
    ]  # fmt: skip
    assert 0 < sum(taken) < 10_000


def test_a_strange_name_stays_in_the_history_folder(tmp_path: Path) -> None:
    folder = RunFolder.create("validate", {}, runs=tmp_path)
    offender_history.remember(folder, [node(name="../../evil")])
    (file,) = (tmp_path / offender_history.FOLDER).iterdir()
    assert json.loads(file.read_text())["bad"] == ["GPU-3"]


def test_the_rules_are_in_order() -> None:
    use = offenders.rules()
    assert 1 < use.investigate < use.replace <= use.runs
