"""Builders of panels and dashboards: one place for colours, legends, links and layout.

The formats are those of Grafana 10.0 (schema 38), which later versions read and migrate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import yaml
from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, statetimeline, statushistory
from grafana_foundation_sdk.builders import table as tables
from grafana_foundation_sdk.builders import timeseries as lines
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as options
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from boards.promql import CODES, NO_RESULT, UNREACHABLE
from provision.paths import DATA

SCHEMA = 38  # Grafana 10.0
COLUMNS = 24
UIDS = {name: f"gpuprov-{name}" for name in ("fleet", "rack", "node", "gpu", "burnin")}
SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
HERE = "${datasource:queryparam}&${__url_time_range}"

# Severity, always next to a word. Red means broken, purple means unknown.
GREEN, BLUE, YELLOW, PURPLE, RED, ORANGE, GREY = (
    "green", "blue", "yellow", "purple", "red", "orange", "#808080",
)  # fmt: skip
# Value → the text to show and its colour.
States: TypeAlias = Mapping[int, tuple[str, str]] | Mapping[str, tuple[str, str]]
VERDICTS = {
    CODES["pass"]: ("pass", GREEN),
    CODES["skip"]: ("skip", BLUE),
    CODES["warn"]: ("warn", YELLOW),
    CODES["error"]: ("error", PURPLE),
    CODES["fail"]: ("fail", RED),
    NO_RESULT: ("no result", ORANGE),
    UNREACHABLE: ("unreachable", GREY),
}
WORDS = {text: (text, colour) for text, colour in VERDICTS.values()}  # for the label `verdict`
LEVELS = {"fail": RED, "info": BLUE, "program": BLUE}  # of an Xid; all other levels need attention
YES_NO = {0: ("no", GREEN), 1: ("yes", RED)}


@dataclass(frozen=True)
class Query:
    """One query of a panel, and the name of its series."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Words:
    """The title of a panel, and how to read it."""

    title: str
    healthy: str
    bad: str

    def description(self, limits: Limits | None) -> str:
        text = f"Healthy: {self.healthy}\n\nBad: {self.bad}"
        return f"{text}\n\nColours: {limits.source}" if limits else text


@dataclass(frozen=True)
class Limits:
    """The values from which on the colour changes, and the source of these limits."""

    steps: tuple[tuple[float, str], ...]
    source: str


SOME = Limits(((1, RED),), "red from 1: each one is a node that cannot be given work.")
SOME_UNKNOWN = Limits(((1, PURPLE),), "purple from 1: nobody knows how these nodes are.")


def xids() -> States:
    """Return the driver's error numbers with their texts in the checks, without unused numbers."""
    catalogue: dict[int, dict[str, Any]] = yaml.safe_load((DATA / "xid.yml").read_text(encoding="utf-8"))
    known = {
        number: (f"{number}: {entry['meaning']} ({entry['action']})", LEVELS.get(entry["level"], YELLOW))
        for number, entry in catalogue.items()
        if not entry["meaning"].startswith("unused")
    }
    return {0: ("none", GREEN), **known}


Panel = TypeVar("Panel", bound="_AnyPanel")


class _AnyPanel(Protocol):
    """The interface that all builders of panels share."""

    def title(self: Panel, title: str) -> Panel: ...
    def description(self: Panel, description: str) -> Panel: ...
    def datasource(self: Panel, datasource: model.DataSourceRef) -> Panel: ...
    def span(self: Panel, w: int) -> Panel: ...
    def height(self: Panel, h: int) -> Panel: ...
    def with_target(self: Panel, target: Builder[Any]) -> Panel: ...
    def thresholds(self: Panel, thresholds: Builder[Any]) -> Panel: ...
    def color_scheme(self: Panel, color: Builder[Any]) -> Panel: ...
    def unit(self: Panel, unit: str) -> Panel: ...
    def mappings(self: Panel, mappings: list[model.ValueMapping]) -> Panel: ...
    def data_links(self: Panel, links: list[Builder[model.DashboardLink]]) -> Panel: ...


def counts(words: Words, queries: Sequence[tuple[Query, str]], *, height: int = 4) -> stat.Panel:
    """Build a line of numbers, each in its own colour from 1 on; zeros are colourless."""
    panel = _numbers(words, [query for query, _ in queries], COLUMNS, height).decimals(0)
    for query, colour in queries:
        steps = [model.Threshold(None, "transparent"), model.Threshold(1, colour)]
        panel.override_by_name(
            query.legend,
            [
                model.DynamicConfigValue("thresholds", {"mode": "absolute", "steps": steps}),
                model.DynamicConfigValue("color", {"mode": "thresholds"}),
            ],
        )
    return panel


def number(
    words: Words,
    query: Query,
    *,
    unit: str = "short",
    limits: Limits | None = None,
    states: States | None = None,
    width: int = 4,
    height: int = 4,
) -> stat.Panel:
    """Build a panel of one number, or of one state as text."""
    panel = _limited(_numbers(words, [query], width, height, limits), limits).unit(unit)
    if states:
        return panel.mappings([_mapping(states)])
    return panel if limits else panel.color_mode(options.BigValueColorMode.NONE)


def _numbers(
    words: Words, queries: Sequence[Query], width: int, height: int, limits: Limits | None = None
) -> stat.Panel:
    panel = _panel(stat.Panel(), words, limits, width, height)
    for query, ref in _lettered(queries):
        panel.with_target(_target(query, ref).instant())
    return (
        panel.graph_mode(options.BigValueGraphMode.NONE)
        .color_mode(options.BigValueColorMode.BACKGROUND)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .no_value("none")
    )


def graph(
    words: Words,
    queries: Sequence[Query],
    *,
    unit: str = "short",
    limits: Limits | None = None,
    stacked: bool = False,
    colours: Mapping[str, str] | None = None,
    floor: float | None = 0,
    ceiling: float | None = None,
    width: int = 12,
    height: int = 8,
    rows: bool = True,
) -> lines.Panel:
    """Build a graph over time; lines named `… limit` or `… median` are dashed.

    `colours`: of series by name. `rows`: the legend is a table with the last and the extreme values.
    """
    panel = _panel(lines.Panel(), words, limits, width, height)
    for query, ref in _lettered(queries):
        panel.with_target(_target(query, ref).range())
    panel.unit(unit).line_width(1).fill_opacity(60 if stacked else 0).show_points(
        options.VisibilityMode.NEVER
    )
    legend = common.VizLegendOptions().show_legend(True)
    if rows:
        legend.display_mode(options.LegendDisplayMode.TABLE).placement(options.LegendPlacement.RIGHT)
        legend.calcs(["lastNotNull", "min", "max"]).sort_by("Max").sort_desc(True)
    else:
        legend.display_mode(options.LegendDisplayMode.LIST).placement(options.LegendPlacement.BOTTOM)
    panel.legend(legend)
    panel.tooltip(
        common.VizTooltipOptions().mode(options.TooltipDisplayMode.MULTI).sort(options.SortOrder.DESCENDING)
    )
    if floor is not None:
        panel.min(floor)
    if ceiling is not None:
        panel.max(ceiling)
    if stacked:
        panel.stacking(common.StackingConfig().group("A").mode(options.StackingMode.NORMAL))
    if limits:
        style = common.GraphThresholdsStyleConfig().mode(options.GraphTresholdsStyleMode.DASHED)
        panel.thresholds(_steps(limits)).thresholds_style(style)
    for name, colour in (colours or {}).items():
        fixed = {"mode": "fixed", "fixedColor": colour}
        panel.override_by_name(name, [model.DynamicConfigValue("color", fixed)])
    dashed = model.DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [8, 6]})
    grey = model.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": GREY})
    return panel.override_by_regexp("/(limit|median)$/", [dashed, grey])


def timeline(
    words: Words,
    queries: Sequence[Query],
    states: States,
    *,
    width: int = COLUMNS,
    height: int = 8,
    link: str = "",
) -> statetimeline.Panel:
    """Build states over time, a row for each series; each state has a text and a colour."""
    panel = _panel(statetimeline.Panel(), words, None, width, height)
    for query, ref in _lettered(queries):
        panel.with_target(_target(query, ref).range())
    panel.mappings([_mapping(states)]).merge_values(True).show_value(options.VisibilityMode.AUTO)
    panel.row_height(0.85).fill_opacity(80).line_width(0).color_scheme(_colour("thresholds"))
    unknown = [model.Threshold(None, YELLOW)]  # a value without its own text, such as a new Xid
    panel.thresholds(dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(unknown))
    panel.legend(
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(options.LegendDisplayMode.LIST)
        .placement(options.LegendPlacement.BOTTOM)
    )
    return _linked(panel, "this node", link) if link else panel


def heat(
    words: Words,
    query: Query,
    *,
    unit: str,
    span: tuple[float, float] | None = None,
    width: int = COLUMNS,
    height: int = 8,
    link: str = "",
) -> statushistory.Panel:
    """Build a matrix: a row for each series, a cell for each moment, coloured by the value.

    `span`: the values of the coldest and the hottest colour; by default the panel's own extremes.
    """
    panel = _panel(statushistory.Panel(), words, None, width, height)
    panel.with_target(_target(query, "A").range())
    panel.unit(unit).color_scheme(_colour("continuous-GrYlRd")).max_data_points(60)
    panel.show_value(options.VisibilityMode.NEVER).row_height(0.9).col_width(0.95).fill_opacity(90)
    panel.legend(
        common.VizLegendOptions()
        .show_legend(False)
        .display_mode(options.LegendDisplayMode.LIST)
        .placement(options.LegendPlacement.BOTTOM)
    )
    if span:
        panel.min(span[0]).max(span[1])
    return _linked(panel, "this node", link) if link else panel


@dataclass(frozen=True)
class Column:
    """A column of a table: the label or `Value #A` that it shows, its heading, and its format."""

    field: str
    heading: str
    unit: str = ""
    link: str = ""
    limits: Limits | None = None
    states: States | None = None  # of a value: the text to show and its colour
    width: int | None = None


def table(
    words: Words,
    queries: Sequence[Query],
    columns: Sequence[Column],
    *,
    order: str,
    falling: bool = True,
    empty: str = "none",
    width: int = COLUMNS,
    height: int = 9,
) -> tables.Panel:
    """Build a table of the present state, sorted by the column `order`; other labels are left out."""
    limits = next((column.limits for column in columns if column.limits), None)
    panel = _panel(tables.Panel(), words, limits, width, height)
    for query, ref in _lettered(queries):
        panel.with_target(_target(query, ref).instant().format(PromQueryFormat.TABLE))
    panel.show_header(True).cell_height(options.TableCellHeight.SM).no_value(empty)
    panel.footer(common.TableFooterOptions().show(False).enable_pagination(True).reducer([]))
    panel.sort_by([common.TableSortByFieldState().display_name(order).desc(falling)])
    panel.with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
    shown = [column.field for column in columns]
    panel.with_transformation(
        model.DataTransformerConfig(
            id_val="filterFieldsByName",
            options={"include": {"names": shown}},
        )
    )
    panel.with_transformation(
        model.DataTransformerConfig(
            id_val="organize",
            options={
                "excludeByName": {},
                "indexByName": {name: place for place, name in enumerate(shown)},
                "renameByName": {column.field: column.heading for column in columns},
            },
        )
    )
    panel.override_by_regexp("/.*/", [model.DynamicConfigValue("custom.filterable", True)])
    for column in columns:
        if cell := _cell(column):
            panel.override_by_name(column.heading, cell)
    return panel


def _cell(column: Column) -> list[model.DynamicConfigValue]:
    found: list[tuple[str, object]] = []
    if column.unit:
        found.append(("unit", column.unit))
    if column.width:
        found.append(("custom.width", column.width))
    if column.link:
        found.append(("links", [_link(column.heading, column.link)]))
    if column.limits:
        found.append(("thresholds", _steps(column.limits).build()))
        found.append(("custom.cellOptions", {"type": "color-text"}))
    if column.states:
        found.append(("mappings", [_mapping(column.states)]))
        found.append(("custom.cellOptions", {"type": "color-background", "mode": "basic"}))
    return [model.DynamicConfigValue(name, value) for name, value in found]


# --- what all panels have ---


def _panel(panel: Panel, words: Words, limits: Limits | None, width: int, height: int) -> Panel:
    description = words.description(limits)
    return panel.title(words.title).description(description).datasource(SOURCE).span(width).height(height)


def _target(query: Query, ref: str) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).ref_id(ref).datasource(SOURCE)
    return target.legend_format(query.legend) if query.legend else target


def _lettered(queries: Sequence[Query]) -> list[tuple[Query, str]]:
    return [(query, chr(ord("A") + place)) for place, query in enumerate(queries)]


def _limited(panel: Panel, limits: Limits | None) -> Panel:
    if limits:
        return panel.thresholds(_steps(limits)).color_scheme(_colour("thresholds"))
    plain = dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE)
    return panel.thresholds(plain.steps([model.Threshold(None, "transparent")])).color_scheme(
        _colour("thresholds")
    )


def _steps(limits: Limits) -> dashboard.ThresholdsConfig:
    steps = [model.Threshold(None, GREEN), *(model.Threshold(value, name) for value, name in limits.steps)]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps)


def _colour(mode: str) -> dashboard.FieldColor:
    return dashboard.FieldColor().mode(model.FieldColorModeId(mode))


def _mapping(states: States) -> model.ValueMap:
    return model.ValueMap(
        {
            str(value): model.ValueMappingResult(text=text, color=colour, index=place)
            for place, (value, (text, colour)) in enumerate(states.items())
        }
    )


def _link(title: str, url: str) -> dict[str, object]:
    return {"title": f"Open {title}", "url": url}


def _linked(panel: Panel, title: str, url: str) -> Panel:
    return panel.data_links([dashboard.DashboardLink(f"Open {title}").url(url)])


def link_to(board: str, **variables: str) -> str:
    """Return the address of another dashboard with these variables, the same data source and time."""
    chosen = "".join(f"&var-{name}={value}" for name, value in variables.items())
    return f"/d/{UIDS[board]}?{HERE}{chosen}"


# --- dashboards ---


def variable(name: str, label: str, values: str, *, several: bool = False, every: bool = False) -> Any:
    """Build a variable with values from Prometheus: `label_values(METRIC, LABEL)`.

    `every`: adds All, the initial choice, which also matches targets without that label.
    """
    query: dict[str, object] = {"query": values, "refId": f"variable-{name}"}
    made = (
        dashboard.QueryVariable(name)
        .label(label)
        .query(query)
        .datasource(SOURCE)
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_CASE_INSENSITIVE_ASC)
        .multi(several)
        .include_all(every)
    )
    if every:
        made.all_value(".*").current(model.VariableOption(True, ["All"], ["$__all"]))
    return made


def racks(*, single: bool = False) -> list[Any]:
    """Build the variables rack and SKU, of all targets, reachable or not."""
    return [
        variable("rack", "Rack", 'label_values(up{job="node"}, rack)', several=not single, every=True),
        variable("sku", "SKU", 'label_values(up{job="node",rack=~"$rack"}, sku)', several=True, every=True),
    ]


def instances(*, several: bool) -> Any:
    """Build the variable node, of the chosen racks and SKUs."""
    values = 'label_values(up{job="node",rack=~"$rack",sku=~"$sku"}, instance)'
    return variable("instance", "Node", values, several=several, every=several)


def board(
    name: str,
    title: str,
    description: str,
    variables: Sequence[Any],
    rows: Mapping[str, Sequence[Any]],
    since: str,
) -> dict[str, Any]:
    """Build a dashboard for import by Grafana. `rows`: heading → panels, in lines of 24 columns."""
    made = (
        dashboard.Dashboard(title)
        .uid(UIDS[name])
        .description(description)
        .tags(["gpuprov"])
        .timezone("browser")
        .editable()
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .time(f"now-{since}", "now")
        .refresh("1m")
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .link(
            dashboard.DashboardLink("gpuprov")
            .type(model.DashboardLinkType.DASHBOARDS)
            .tags(["gpuprov"])
            .include_vars(True)
            .keep_time(True)
        )
    )
    for each in variables:
        made.with_variable(each)
    for heading, panels in rows.items():
        made.with_row(dashboard.Row(heading))
        for panel in panels:
            made.with_panel(panel)
    built = made.build()
    built.schema_version = SCHEMA
    built.annotations = model.AnnotationContainer([])
    for place, panel in enumerate(built.panels or [], start=1):
        panel.id_val = place
    found = built.to_json()
    del found["style"]  # leaves the style to the reader
    return found
