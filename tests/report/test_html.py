"""report.html: complete without script or network, fast with many nodes, safe against hostile text."""

from __future__ import annotations

import re
import shutil
from functools import cache
from html.parser import HTMLParser

import pytest

from provision.checks.health import FleetHealth
from provision.checks.judge import Finding, Verdict
from provision.report import html, peer_maps, plots
from provision.report.context import NOTHING, Context
from provision.report.html import render
from tests.support import samples

FLEETS = ("healthy", "demo", "unmeasured", "interrupted", "nothing", "hostile", "between")
VOID = {"meta", "br", "input", "img", "wbr"}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def page(fleet: FleetHealth, context: Context = NOTHING) -> str:
    return "".join(render(fleet, context))


@cache
def page_of(name: str) -> str:
    """Return the page of a sample fleet, cached because drawing the charts is slow."""
    return page(getattr(samples, name)())


class Reader(HTMLParser):
    """Parser of a page: tags, attributes, visible text, and whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.within: list[tuple[str, ...]] = []  # ancestors of each tag
        self.words: list[str] = []
        self.feed(text.replace("<wbr>", ""))  # a possible line break is invisible
        self.close()
        self.text = re.sub(r"\s+", " ", " ".join(self.words))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.within.append(tuple(self.open))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in {"style", "script"}:
            self.words.append(data)


@pytest.mark.parametrize("name", FLEETS)
def test_the_page_is_well_formed_and_fetches_nothing(name: str) -> None:
    text = page_of(name)
    reader = Reader(text)
    assert reader.open == []
    fetching = {"srcset", "action", "data", "poster", "background", "style"}
    for number, (tag, attributes) in enumerate(reader.tags):
        assert tag not in {
            "link",
            "iframe",
            "object",
            "embed",
            "base",
            "form",
            "video",
            "img",
            "image",
            "use",
        }
        assert not (fetching | {"src", "xlink:href"}) & set(attributes)
        if attributes.get("role") == "img":
            assert attributes["aria-label"]
        elif tag == "svg":  # inside a chart
            assert "svg" in reader.within[number]
        assert not any(key.startswith("on") for key in attributes)
        assert attributes.get("href", "#").startswith("#")  # type: ignore[union-attr]
    assert not re.search(r"url\(|@import", text.split("</style>")[0])
    assert sum(tag == "script" for tag, _ in reader.tags) == 1
    policy = next(a["content"] for t, a in reader.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert str(policy).startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in str(policy)
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {str(a["href"])[1:] for _, a in reader.tags if "href" in a}
    assert targets <= set(ids)


def test_the_culprits_are_there_with_everything_needed_to_pull_them() -> None:
    shown = Reader(page_of("demo")).text
    for wanted in (
        "1 of 3 nodes unhealthy, 2 healthy",
        "gpu5 computed 12843 wrong results",
        samples.BAD_GPU_SERIAL,
        "GPU-00000003-0000-4000-8000-000000000005",
        "00000000:68:00.0",
        "replace part",
        "gpu2-gpu6",
        "61.3 GB/s",
        "≥ 335 GB/s",
        samples.SOURCE,
        "GPU 5: FAULTY",
        "12 of 12",
        "gpuprov validate /srv/fleet/inventory.yml --nodes gpu-03",
    ):
        assert wanted in shown, wanted


def test_what_was_not_measured_has_its_own_section_tile_and_reason() -> None:
    shown = Reader(page_of("unmeasured")).text
    for wanted in (
        "? Not measured",
        "16 of 27 ? checks measured: 11 were not; 1 skipped (not applicable)",
        "unreachable: ssh: connect to 10.0.3.44",
        "gpu_burn did not end within 180 s and was killed",
        "did not run: nccl_all_reduce",
        "? did not run",
        "one GPU: there is nobody to reduce with",
        "? Not in it: 2 nodes of unknown SKU.",
    ):
        assert wanted in shown, wanted
    skip = samples.result(
        "nccl_all_reduce", [Finding("nccl_all_reduce", Verdict.SKIP, "node", "alone")], [], 0.0
    )
    alone = Reader(page(samples.fleet(samples.node("gpu-01", (skip,)), asked=("nccl_all_reduce",)))).text
    assert "0 of 0 ? nothing that was requested applies, so nothing is known; 1 skipped" in alone
    assert "An empty report is not a healthy fleet." in Reader(page_of("nothing")).text
    assert "This run was interrupted." in Reader(page_of("interrupted")).text


def test_evidence_keeps_its_columns() -> None:
    assert samples.SLOW.evidence[0] in page_of("demo")


def test_hostile_text_is_shown_and_nothing_more() -> None:
    text = page_of("hostile")
    assert "&lt;script&gt;document.title=&#39;pwned&#39;&lt;/script&gt;" in text
    assert "<script>document" not in text
    assert "<img" not in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text)
    assert "עברית" in text


def test_a_verdict_is_told_in_words_and_the_worst_node_comes_first() -> None:
    rows = re.findall(r'<tr data-v="(\w+)" data-n="\d+".*?</tr>', page_of("demo"), re.DOTALL)
    assert rows == ["fail", "pass", "pass"]
    assert page_of("demo").count("✗ fail</td>") == 3


def test_the_charts_of_the_worst_nodes_fit_their_budget_and_the_rest_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = samples.demo()
    whole = Reader(page(fleet, samples.context(fleet)))
    charts = over_time(whole)
    assert len(charts) == 3 * 3
    assert "are drawn for" not in whole.text
    drawn = [
        image
        for load in samples.context(fleet).loads.values()
        for image in plots.telemetry(load[0].series, {})
    ]
    each = sum(len(image.source) for image in drawn) / 3
    monkeypatch.setattr(html, "_PLOTS", int(each * 1.5))
    text = page(fleet, samples.context(fleet, not_read=("gpu-77",)))
    assert "gpu-[01-02,<wbr>77]" in text, "a number in the list of nodes may be broken in two"
    less = Reader(text)
    assert len(over_time(less)) == 3
    assert "drawn for 1 node, worst first; not for gpu-[01-02,77]." in less.text
    assert "gpu5 (fail)" in next(label for label in over_time(less) if "clock" in label)


def test_heat_maps_take_their_room_from_the_charts_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = samples.demo()
    heat = [shown for maps in peer_maps.peers(fleet).skus for shown in maps.shown]
    assert len(heat) == 2
    spent = sum(one.heat.size for one in heat)
    monkeypatch.setattr(html, "_IMAGES", spent)
    reader = Reader(page(fleet, samples.context(fleet)))
    assert over_time(reader) == []
    assert sum("peer bandwidth" in str(a.get("aria-label")) for _, a in reader.tags) == 2 * 2
    assert "drawn for 0 nodes, worst first; not for gpu-[01-03]." in reader.text


def over_time(reader: Reader) -> list[str]:
    """Return the labels of the charts of temperature, power and clock."""
    kinds = ("temperature of", "power of", "SM clock of")
    labels = [str(a.get("aria-label")) for tag, a in reader.tags if tag == "svg"]
    return [label for label in labels if label.startswith(kinds)]


def test_charts_take_nothing_from_the_details(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = samples.large(200, 0)
    monkeypatch.setattr(html, "_DETAILS", 300_000)
    without = page(fleet).count('<details class="node ')
    assert page(fleet, samples.context(fleet, most=3)).count('<details class="node ') == without


def test_a_large_fleet_stays_small_and_no_node_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "_DETAILS", 800_000)
    text = page(samples.large(400, 16))
    assert len(text.encode()) < 1_200_000
    assert len(re.findall(r'<tr data-v="\w+" data-n=', text)) == 400
    detailed = text.count('<details class="node ')
    assert 16 <= detailed < 400
    assert f"the details of {detailed:,} of 400 nodes are here" in text
    red = re.findall(r'<details class="node v-(\w+)"', text)
    assert red[:16] == ["fail"] * 16


def test_what_lies_between_nodes_is_shown_and_links_nowhere() -> None:
    reader = Reader(page_of("between"))
    assert "link gpu-01-gpu-03/rail mlx5_2 is slow" in reader.text
    assert "1 failure between nodes" in reader.text
    assert "→ reseat or check cable between nodes" in " ".join(reader.text.split())
    assert "150 Gb/s, limit 360 Gb/s" in reader.text
    targets = {attributes.get("id") for _, attributes in reader.tags}
    links = {
        str(a.get("href")) for tag, a in reader.tags if tag == "a" and str(a.get("href")).startswith("#")
    }
    assert {link[1:] for link in links} <= targets
