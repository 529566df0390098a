"""Reading of a stored report node by node, compared with reading it whole."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from provision.checks import health
from provision.checks.check import Measurement
from provision.checks.health import CheckResult, FleetHealth, LazyRows, NodeHealth
from provision.checks.judge import Finding, Verdict
from provision.errors import RunFolderError
from provision.report import json as report_json
from provision.report import junit, terminal
from provision.runs import stored_health
from provision.runs.rows_file import RowsFile
from tests.support import samples

FLEETS: tuple[Callable[[], FleetHealth], ...] = (
    samples.demo,
    samples.between,
    samples.unmeasured,
    samples.interrupted,
    samples.hostile,
    samples.nothing,
)


def stored(fleet: FleetHealth, folder: Path) -> Path:
    path = folder / "report.json"
    path.write_text("".join(report_json.render(fleet)), encoding="utf-8")
    return path


@pytest.mark.parametrize("made", FLEETS)
def test_it_is_what_was_written(made: Callable[[], FleetHealth], tmp_path: Path) -> None:
    path = stored(made(), tmp_path)
    whole = health.from_json(json.loads(path.read_text()))
    read = stored_health.read(path)
    assert isinstance(read.nodes, stored_health.StoredNodes)
    assert read == whole
    assert health.to_json(read) == health.to_json(whole)
    for render in (report_json.render, junit.render, terminal.summary):
        assert "".join(render(read)) == "".join(render(whole))


def test_what_passed_is_left_in_the_file(tmp_path: Path) -> None:
    read = stored_health.read(stored(samples.demo(), tmp_path))
    rows = [
        rows for node in read.nodes for check in node.checks for rows in (check.findings, check.measurements)
    ]
    assert all(isinstance(each, LazyRows) for each in rows)
    whole = samples.demo()
    for mine, other in zip(read.nodes, whole.nodes, strict=True):
        assert [check.wrong for check in mine.checks] == [check.wrong for check in other.checks]
    assert read.nodes[2].checks[1].wrong == (samples.BURN,)


def test_a_changed_node_is_written_as_it_is_now(tmp_path: Path) -> None:
    read = stored_health.read(stored(samples.demo(), tmp_path))
    first = dataclasses.replace(read.nodes[0], error="gone")
    changed = dataclasses.replace(read, nodes=(first, *read.nodes[1:]))
    text = "".join(report_json.render(changed))
    assert health.from_json(json.loads(text)) == dataclasses.replace(
        samples.demo(),
        nodes=(dataclasses.replace(samples.demo().nodes[0], error="gone"), *samples.demo().nodes[1:]),
    )


def test_it_can_be_written_over_the_file_it_is_read_from(tmp_path: Path) -> None:
    path = stored(samples.demo(), tmp_path)
    before = path.read_bytes()
    read = stored_health.read(path)
    beside = tmp_path / "beside"
    with beside.open("w", encoding="utf-8") as out:
        out.writelines(report_json.render(read))
    beside.replace(path)
    assert path.read_bytes() == before
    assert read == samples.demo()


def test_another_layout_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    for indent in (None, 1):
        path.write_text(json.dumps(health.to_json(samples.demo()), indent=indent), encoding="utf-8")
        read = stored_health.read(path)
        assert type(read.nodes) is tuple
        assert read == samples.demo()


def test_a_metric_is_known_without_making_measurements(tmp_path: Path) -> None:
    said = 'says "metric": "samples" and \\"metric\\": \\"samples\\"'
    finding = dataclasses.replace(samples.BURN, message=said)
    result = samples.result("gpu_burn", [finding], [], 1.0)
    plain = samples.fleet(samples.node("gpu-01", (result,)))
    row = dataclasses.replace(samples.checks(1)[0].measurements[0], metric="samples")
    having = samples.fleet(samples.node("gpu-01", (dataclasses.replace(result, measurements=(row,)),)))
    for fleet, expected in ((plain, False), (having, True)):
        (check,) = stored_health.read(stored(fleet, tmp_path)).nodes[0].checks
        assert check.may_have("samples") is expected
        assert fleet.nodes[0].checks[0].may_have("samples") is expected


@pytest.mark.parametrize("separators", [(", ", ": "), (",", ":")])
def test_lines_with_their_fields_in_any_order_are_read(separators: tuple[str, str], tmp_path: Path) -> None:
    """Another program may rewrite the file in this form."""
    rows = samples.checks(1)[0].measurements
    checks = tuple(samples.result(name, [samples.BURN], rows, 2.0) for name in "abc")
    whole = samples.fleet(samples.node("gpu-01", checks), samples.node("gpu-02", checks[:1]))
    document = health.to_json(whole)
    nodes = document.pop("nodes")
    head = json.dumps(document)[:-1] + ', "nodes": [\n'
    for order in itertools.permutations(nodes[0]["checks"][0]):
        for node in nodes:
            node["checks"] = [{name: check[name] for name in order} for check in node["checks"]]
        lines = (json.dumps(node, separators=separators) for node in nodes)
        (tmp_path / "report.json").write_text(head + ",\n".join(lines) + "\n]}\n")
        assert stored_health.read(tmp_path / "report.json") == whole, order


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"verdict": "pass"', '"verdict": "splendid"'),
        ('"checks": [', '"cheques": ['),
        ('"unreachable": false', '"unreached": false'),
        ('{"node": "gpu-02"', '["node", "gpu-02"'),
        ('{"node": "gpu-02"', "7, {"),
        ('"format": 1', '"format": 2'),
        ('"format": 1', '"format": ' + "[" * 5_000),
        ('"checks": [', '"checks": ' + "[" * 5_000),
        ("\n]}", ""),
        ('"unit": "GB/s", "device"', '"unit": "GB/s", device'),
    ],
)
def test_what_is_damaged_is_refused_in_a_sentence(old: str, new: str, tmp_path: Path) -> None:
    path = stored(samples.demo(), tmp_path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises((RunFolderError, ValueError)):
        _ = [node.checks for node in stored_health.read(path).nodes]


def test_a_damaged_row_is_told_with_its_place_when_it_is_shown(tmp_path: Path) -> None:
    path = stored(samples.demo(), tmp_path)
    path.write_text(path.read_text().replace('"unit": "GB/s", "device"', '"device"', 1))
    read = stored_health.read(path)
    with pytest.raises(RunFolderError, match=r"report\.json: not a health report: node 1: KeyError: 'unit'"):
        _ = [list(check.measurements) for node in read.nodes for check in node.checks]


def test_a_file_cut_while_it_is_read_is_told(tmp_path: Path) -> None:
    path = stored(samples.demo(), tmp_path)
    read = stored_health.read(path)
    path.write_text("")
    with pytest.raises(RunFolderError, match="was cut while it was read"):
        list(read.nodes[0].checks[0].measurements)


def test_rows_of_a_run_that_cannot_be_written_to_are_kept_elsewhere(tmp_path: Path) -> None:
    rows = RowsFile(tmp_path / "gone")
    finding = Finding("gpu_inventory", Verdict.FAIL, "gpu3", "lost", action="power-cycle")
    check = CheckResult("gpu_inventory", Verdict.FAIL, (finding,), (Measurement("gpus", 7, "", "node"),), 1.0)
    first, second = (NodeHealth(name, Verdict.FAIL, (check,)) for name in ("a", "b"))
    kept = [rows.kept(first), rows.kept(second)]
    assert kept == [first, second]
    assert rows.kept(kept[0]) == first, "what is there already stays"
    assert kept[1].checks[0].wrong == (finding,)
