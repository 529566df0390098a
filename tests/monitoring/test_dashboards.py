"""Dashboards match the code that generates them, have a sane layout, and query with valid PromQL."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from tests.monitoring.panel_queries import (
    BUILT_IN,
    FOLDER,
    NAMES,
    OPTIONAL,
    VARIABLE,
    Panel,
    board,
    fields,
    filled_in,
    legend_labels,
    panels,
    variables,
)
from tests.monitoring.real_prometheus import program

ROOT = FOLDER.parents[3]
PANELS = list(panels())
COLUMNS = 24  # width of Grafana's grid
# Grafana's unit ids (data/valueFormats/categories.ts); all except `short` and `cps` scale automatically.
UNITS = {"short", "percentunit", "s", "celsius", "watt", "hertz", "bytes", "cps"}
SOME_VALUES = {"rack": "r1", "sku": ".*", "instance": "gpu-01", "gpu": "3", "datasource": "p"}

each_board = pytest.mark.parametrize("name", NAMES)
each_panel = pytest.mark.parametrize("panel", PANELS, ids=str)


def test_the_role_brings_every_dashboard_to_grafana() -> None:
    said = yaml.safe_load((FOLDER.parents[1] / "vars" / "main.yml").read_text("utf-8"))
    assert said["__monitoring_dashboards"] == sorted(path.name for path in FOLDER.iterdir())


def test_the_files_are_what_the_script_writes(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "dashboards.py"
    subprocess.run([sys.executable, script, "--write", tmp_path], check=True, timeout=60)
    written, stored = (
        {path.name: path.read_text("utf-8") for path in folder.iterdir()} for folder in (tmp_path, FOLDER)
    )
    assert written == stored, (
        f"write them again: python scripts/dashboards.py --write {FOLDER.relative_to(ROOT)}"
    )


# --- layout ---


@each_board
def test_grafana_10_to_12_read_it(name: str) -> None:
    """Schema 38 belongs to Grafana 10.0: later versions migrate it, while version 10 rejects a newer one."""
    dashboard = board(name)
    assert dashboard["schemaVersion"] == 38
    assert dashboard["uid"] == f"gpuprov-{name}"
    assert dashboard["tags"] == ["gpuprov"]
    assert dashboard["title"].startswith("gpuprov: ")
    assert "id" not in dashboard, "the id of one Grafana's database"


def test_titles_and_uids_are_unique() -> None:
    assert len({board(name)["title"] for name in NAMES}) == len(NAMES)
    assert [str(panel) for panel, times in Counter(map(str, PANELS)).items() if times > 1] == []


@each_board
def test_panels_fill_whole_lines_and_lie_on_no_other(name: str) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in board(name)["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert x < COLUMNS, f"{panel['title']} is wider than the grid"
                assert (x, y) not in taken, f"{panel['title']} lies on {taken[(x, y)]}"
                taken[(x, y)] = panel["title"]
    bottom = max(y for _, y in taken) + 1
    holes = {y for y in range(bottom) for x in range(COLUMNS) if (x, y) not in taken}
    assert holes == set(), f"lines that are not filled: {sorted(holes)}"


@each_board
def test_it_begins_with_a_heading_and_what_is_wrong_now(name: str) -> None:
    kinds = [panel["type"] for panel in board(name)["panels"]]
    assert kinds[0] == "row"
    first = next(i for i, kind in enumerate(kinds) if kind in ("timeseries", "status-history"))
    assert "table" in kinds[:first] or "state-timeline" in kinds[:first]
    ids = [panel["id"] for panel in board(name)["panels"]]
    assert ids == sorted(set(ids))


# --- texts ---


@each_panel
def test_a_panel_says_how_a_healthy_and_a_bad_picture_look(panel: Panel) -> None:
    said = panel.json["description"]
    assert re.search(r"^Healthy: \S.{1,}", said, re.M), said
    assert re.search(r"^Bad: \S.{20,}", said, re.M), said
    assert 4 <= len(panel.title) <= 60


@each_panel
def test_a_colour_that_changes_at_a_value_says_where_the_value_is_from(panel: Panel) -> None:
    steps = re.findall(r'"steps": (\[.*?\])', json.dumps(panel.json))
    coloured = [one for text in steps for one in json.loads(text) if one["value"] not in (None, 0, 1)]
    if coloured:
        assert "\nColours: " in panel.json["description"]


@each_panel
def test_units_are_base_units_that_grafana_knows(panel: Panel) -> None:
    for unit in re.findall(r'"unit": "([^"]*)"', json.dumps(panel.json)) + re.findall(
        r'"id": "unit", "value": "([^"]*)"', json.dumps(panel.json)
    ):
        assert unit in UNITS
    if panel.kind == "timeseries":
        assert panel.json["fieldConfig"]["defaults"]["unit"] in UNITS


@each_panel
def test_a_line_has_a_name(panel: Panel) -> None:
    if panel.kind in ("timeseries", "state-timeline", "status-history"):
        assert [target.ref for target in panel.targets if not target.legend] == []
    if panel.kind in ("timeseries", "state-timeline", "status-history"):
        assert not any(target.instant for target in panel.targets)
    else:
        assert all(target.instant for target in panel.targets), "the present, not the mean of a day"


# --- variables and links ---


@each_board
def test_a_variable_depends_on_those_before_it_and_is_used(name: str) -> None:
    known: list[str] = []
    for one in variables(name):
        assert one["type"] == ("datasource" if one["name"] == "datasource" else "query")
        asked = one["query"] if isinstance(one["query"], str) else one["query"]["query"]
        used = {match["long"] or match["short"] for match in VARIABLE.finditer(asked)}
        assert used <= set(known), f"{one['name']} comes before what it depends on"
        if one["type"] == "query" and len(known) > 1:
            assert used, f"{one['name']} is not chained"
        known.append(one["name"])
    everything = json.dumps(board(name))
    for variable in known:
        assert re.search(rf"\$\{{?{variable}\b", everything), f"{variable} is used nowhere"


@each_board
def test_all_means_targets_without_the_label_too(name: str) -> None:
    for one in variables(name):
        if one["includeAll"]:
            assert one["allValue"] == ".*"
        elif one["type"] == "query":
            expressions = [target.expr for panel in PANELS if panel.board == name for target in panel.targets]
            assert not any(f'=~"${one["name"]}"' in expression for expression in expressions)


@each_panel
def test_a_query_knows_its_variables(panel: Panel) -> None:
    known = {one["name"]: "x" for one in variables(panel.board)}
    for target in panel.targets:
        assert "$" not in re.sub(r"\$\d", "", filled_in(target.expr, known))
    assert panel.json["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert all(target["datasource"] == panel.json["datasource"] for target in panel.json["targets"])


def links(panel: Panel) -> list[str]:
    return re.findall(r'"url": "(/d/[^"]+)"', json.dumps(panel.json))


@each_panel
def test_a_link_leads_to_a_dashboard_with_these_variables(panel: Panel) -> None:
    for url in links(panel):
        uid, _, query = url.removeprefix("/d/").partition("?")
        target = uid.removeprefix("gpuprov-")
        assert target in NAMES
        assert query.startswith("${datasource:queryparam}&${__url_time_range}"), "keeps data source and time"
        given = set(re.findall(r"&var-(\w+)=[^&]+", query))
        assert given
        assert given <= {one["name"] for one in variables(target)}
        for heading in re.findall(r"__data\.fields\.(\w+)", query):
            assert heading in panel.headings().values()
        for label in re.findall(r"__field\.labels\.(\w+)", query):
            assert all(label in legend_labels(target.legend) for target in panel.targets)


def test_a_person_can_go_from_the_fleet_to_one_gpu_and_back() -> None:
    ways = {
        (panel.board, url.split("?")[0].removeprefix("/d/gpuprov-"))
        for panel in PANELS
        for url in links(panel)
    }
    for step in pairwise(("fleet", "rack", "node", "gpu")):
        assert step in ways
    assert {("fleet", "node"), ("rack", "gpu"), ("burnin", "node"), ("burnin", "gpu")} <= ways
    for name in NAMES:
        (back,) = board(name)["links"]
        assert back["type"] == "dashboards"
        assert back["tags"] == ["gpuprov"]
        assert back["includeVars"]
        assert back["keepTime"]


# --- queries ---


@pytest.fixture(scope="session")
def promtool(tmp_path_factory: pytest.TempPathFactory) -> str:
    return program("promtool", tmp_path_factory.getbasetemp() / "programs")


def test_every_query_is_promql(promtool: str, tmp_path: Path) -> None:
    """promtool checks a recording rule for each expression."""
    rules = [
        {
            "record": f"panel_{number}",
            "expr": filled_in(target.expr, SOME_VALUES),
            "labels": {"panel": str(panel)},
        }
        for number, (panel, target) in enumerate(
            (panel, target) for panel in PANELS for target in panel.targets
        )
    ]
    assert len(rules) > 100
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}), encoding="utf-8")
    done = subprocess.run(
        [promtool, "check", "rules", "--lint=none", file],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert f"{len(rules)} rules found" in done.stdout


def test_a_query_that_is_none_is_refused(promtool: str, tmp_path: Path) -> None:
    file = tmp_path / "rules.yml"
    rule = {"record": "a", "expr": "sum by (instance) (up"}
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": [rule]}]}), encoding="utf-8")
    assert subprocess.run(
        [promtool, "check", "rules", file], capture_output=True, timeout=60, check=False
    ).returncode


def shown_fields() -> set[str]:
    return {field for panel in PANELS for target in panel.targets for field in fields(target)}


def test_no_panel_rests_on_fields_that_may_be_missing() -> None:
    assert shown_fields() > OPTIONAL
    for panel in PANELS:
        assert not all(fields(target) and fields(target) <= OPTIONAL for target in panel.targets), panel


def test_the_page_names_every_field_of_the_gpu_exporter() -> None:
    page = (ROOT / "docs" / "dashboards.md").read_text(encoding="utf-8")
    assert set(re.findall(r"DCGM_FI_\w+", page)) == shown_fields()
    optional = page.split("Optional:")[1]
    assert set(re.findall(r"DCGM_FI_\w+", optional)) == OPTIONAL


def test_the_page_describes_every_dashboard() -> None:
    page = (ROOT / "docs" / "dashboards.md").read_text(encoding="utf-8")
    for name in NAMES:
        assert f"`{name}.json`" in page


def test_the_role_has_the_gpu_exporter_export_what_is_shown() -> None:
    """gpu_metrics writes the exporter's field list; a panel with any other field would be empty."""
    lists = sorted((ROOT / "roles" / "gpu_metrics").rglob("*counters*"))
    assert lists
    exported = {
        field for file in lists for field in re.findall(r"^(DCGM_FI_\w+) *,", file.read_text("utf-8"), re.M)
    }
    assert shown_fields() - OPTIONAL - exported == set()


@each_panel
def test_a_rate_spans_enough_scrapes(panel: Panel) -> None:
    """$__rate_interval is at least four scrape intervals; a fixed window misses events when zoomed out."""
    assert "__rate_interval" in BUILT_IN
    for target in panel.targets:
        for window in re.findall(r"\[([^\]]+)\]", target.expr):
            assert window == "$__rate_interval"


@each_panel
def test_a_label_that_exporters_changed_is_not_read(panel: Panel) -> None:
    """DCGM's exporter renamed Hostname to hostname (NVIDIA/dcgm-exporter 655). `instance` is ours."""
    for target in panel.targets:
        assert "hostname" not in target.expr.lower()
