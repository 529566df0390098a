"""Every panel shows data from a real Prometheus with real node exporters, and a broken node's panels
differ from a healthy node's."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.monitoring.panel_queries import (
    ALIKE,
    NAMES,
    Panel,
    Series,
    answers,
    api,
    choice,
    filled_in,
    legend_labels,
    panels,
    picture,
    unanswered,
    variables,
)
from tests.monitoring.panel_queries import shown as shown_by
from tests.monitoring.real_prometheus import Fleet, scraped_fleet
from tests.monitoring.two_nodes import SICK

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="LAB TESTS DID NOT RUN: they need root (sudo scripts/test)"),
]

PANELS = list(panels())
each_panel = pytest.mark.parametrize("panel", PANELS, ids=str)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with scraped_fleet(tmp_path_factory.mktemp("prometheus")) as running:
        yield running


CHOSEN = {"healthy": choice("healthy", "r1", SICK), "broken": choice("broken", "r2", SICK)}


def shown(fleet: Fleet, panel: Panel, node: str) -> dict[str, list[Series]]:
    return shown_by(fleet.address, panel, CHOSEN[node], fleet.now)


@each_panel
def test_every_query_returns_series(fleet: Fleet, panel: Panel) -> None:
    healthy, broken = (shown(fleet, panel, node) for node in ("healthy", "broken"))
    assert unanswered(panel, healthy, broken) == [], f"{panel} shows nothing"


@each_panel
def test_the_broken_node_looks_different(fleet: Fleet, panel: Panel) -> None:
    healthy, broken = (picture(shown(fleet, panel, node)) for node in ("healthy", "broken"))
    if panel.title in ALIKE:
        assert [(ref, labels) for ref, labels, _ in healthy] == [(ref, labels) for ref, labels, _ in broken]
    else:
        assert healthy != broken


@each_panel
def test_legends_and_columns_name_labels_that_are_there(fleet: Fleet, panel: Panel) -> None:
    found = shown(fleet, panel, "broken")
    for target in panel.targets:
        for one in found[target.ref]:
            assert legend_labels(target.legend) <= one.labels.keys()
    if panel.kind == "table":
        labels = {label for several in found.values() for one in several for label in one.labels}
        values = {f"Value #{target.ref}" for target in panel.targets} if len(panel.targets) > 1 else {"Value"}
        fields = panel.headings().keys()
        assert fields - {"Value"} <= labels | values
        if len(panel.targets) > 1:
            assert values <= fields, "a query whose value no column shows"


@each_panel
def test_a_line_is_one_line_whatever_happens_to_its_node(fleet: Fleet, panel: Panel) -> None:
    """Two series with one legend would be two indistinguishable lines."""
    for target in panel.targets:
        if panel.kind in ("timeseries", "state-timeline", "status-history"):
            everything = {**CHOSEN["broken"], "rack": ".*"}
            series = answers(fleet.address, target, everything, fleet.now)
            names = [
                tuple(one.labels.get(label, "") for label in sorted(legend_labels(target.legend)))
                for one in series
            ]
            assert len(names) == len(set(names)), target.expr


@pytest.mark.parametrize("name", NAMES)
def test_variables_offer_what_is_there(fleet: Fleet, name: str) -> None:
    """Grafana turns `label_values(SELECTOR, LABEL)` into a query for the label's values."""
    offered = {}
    values = {**CHOSEN["broken"], "rack": ".*"}
    for one in variables(name)[1:]:
        selector, label = (
            one["query"]["query"].removeprefix("label_values(").removesuffix(")").rsplit(", ", 1)
        )
        offered[one["name"]] = api(
            fleet.address, f"label/{label}/values", **{"match[]": filled_in(selector, values)}
        )
    expected = {
        "rack": ["r1", "r2"],
        "sku": ["h100-sxm"],
        "instance": ["broken", "healthy", "off", "silent"],
        "gpu": ["0", "1", "2", "3", "4", "5", "7"],
    }
    assert offered == {key: expected[key] for key in offered}


# --- the first things to see at three in the morning ---


def panel_of(board: str, title: str) -> Panel:
    return next(panel for panel in PANELS if (panel.board, panel.title) == (board, title))


def whole_fleet(fleet: Fleet, panel: Panel) -> dict[str, list[Series]]:
    values = {"datasource": "p", "rack": ".*", "sku": ".*"}
    return {
        target.legend or target.ref: answers(fleet.address, target, values, fleet.now)
        for target in panel.targets
    }


def test_each_node_counts_once(fleet: Fleet) -> None:
    counts = whole_fleet(fleet, panel_of("fleet", "Nodes by verdict now"))
    assert {name: [one.value for one in found] for name, found in counts.items()} == {
        "pass": [1],
        "warn": [0],
        "fail": [1],
        "not measured": [0],
        "no result": [1],  # its last verdict, an hour old, is pass
        "unreachable": [1],
    }


def test_the_share_of_bad_nodes_counts_those_of_whom_nobody_knows(fleet: Fleet) -> None:
    parts = whole_fleet(fleet, panel_of("fleet", "Share of nodes not known to be healthy, by reason"))
    assert {name: [one.value for one in found] for name, found in parts.items()} == {
        "fail": [0.25],
        "not measured": [0],
        "no result": [0.25],
        "unreachable": [0.25],
    }


def test_the_matrix_has_one_row_for_each_node(fleet: Fleet) -> None:
    states = whole_fleet(fleet, panel_of("rack", "Verdict of each node over time"))["{{instance}}"]
    assert {one.labels["instance"]: one.value for one in states} == {
        "healthy": 0,
        "broken": 4,
        "silent": 5,
        "off": 6,
    }


def test_causes_name_the_action_and_how_many_nodes_and_racks(fleet: Fleet) -> None:
    causes = whole_fleet(fleet, panel_of("fleet", "Causes: what failed, and what to do"))
    nodes = {
        (one.labels["metric"], one.labels["action"], one.labels["verdict"]): one.value for one in causes["A"]
    }
    assert nodes == {
        ("xid", "reset GPU", "fail"): 1,
        ("nvlink_down", "reseat or check cable", "fail"): 1,
        ("port_state", "reseat or check cable", "fail"): 1,
        ("clock", "run again", "error"): 1,
    }


def test_a_sick_gpu_stands_out_on_its_own_dashboard(fleet: Fleet) -> None:
    findings = panel_of("gpu", "Findings of this GPU, and of pairs with it")
    found = answers(fleet.address, findings.targets[0], CHOSEN["broken"], fleet.now)
    assert sorted(one.labels["device"] for one in found) == ["gpu0-gpu3", "gpu3", "gpu3"]
    reasons = shown(fleet, panel_of("gpu", "Slowed down, by reason"), "broken")
    assert {
        target.legend: reasons[target.ref][0].value
        for target in panel_of("gpu", "Slowed down, by reason").targets
    } == {
        "Hardware slowdown": 1,
        "Software thermal slowdown": 1,
        "Hardware thermal slowdown": 1,
        "Power brake": 0,
    }
    heat = shown(fleet, panel_of("gpu", "Temperature"), "broken")
    assert [one.value for ref in "ABC" for one in heat[ref]] == [88, 66, 86]


def test_a_burn_in_that_stopped_before_its_end_is_counted(fleet: Fleet) -> None:
    panel = panel_of("burnin", "Burn-ins")
    values = {"datasource": "p", "rack": ".*", "sku": ".*", "instance": ".*"}
    found = {
        target.legend: answers(fleet.address, target, values, fleet.now)[0].value for target in panel.targets
    }
    assert found == {"running": 2, "failed check": 1, "stopped before the end": 1}
