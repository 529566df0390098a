"""report.html in a real browser: filters, sorting, opening, and safety against hostile node text."""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.checks.health import FleetHealth
from provision.checks.judging import registry
from provision.report import html as report_page
from provision.report.context import NOTHING, Context
from provision.report.html import render
from tests.support import samples
from tests.support.browser import after, dumped, title, unreadable


def page(fleet: FleetHealth, context: Context = NOTHING) -> str:
    return "".join(render(fleet, context))


def test_filter_and_sort(tmp_path: Path) -> None:
    steps = """
    await type("SERIAL");
    seen.rows = names("#fleet tbody tr:not([hidden]) th");
    seen.cards = all(".cause:not([hidden])").length;
    seen.details = names("details.node:not([hidden]) .name");
    seen.said = document.getElementById("shown").textContent;
    await type("");
    const byVerdict = document.querySelector("#fleet th:nth-child(2) button");
    byVerdict.click(); byVerdict.click();
    seen.order = names("#fleet tbody tr th");
    seen.sorted = document.querySelector("#fleet th:nth-child(2)").getAttribute("aria-sort");
    document.querySelector("input[value=fail]").click();
    seen.healthy = names("#fleet tbody tr:not([hidden]) th");
    """.replace("SERIAL", samples.BAD_GPU_SERIAL)
    assert after(page(samples.demo()), steps, tmp_path) == {
        "rows": ["gpu-03"],
        "cards": 1,
        "details": ["gpu-03"],
        "said": "1 of 3 nodes",
        "order": ["gpu-01", "gpu-02", "gpu-03"],
        "sorted": "ascending",
        "healthy": ["gpu-01", "gpu-02"],
    }


def test_two_hundred_nodes_with_charts_are_small_and_every_one_is_found(tmp_path: Path) -> None:
    fleet = samples.large(200, 20)
    text = page(fleet, samples.context(fleet))
    assert len(text.encode()) < 5_000_000
    steps = """
    seen.rows = all("#fleet tbody tr").length;
    await type("gpu-040");
    seen.found = names("#fleet tbody tr:not([hidden]) th");
    await type("wrong results");
    seen.burnt = names("#fleet tbody tr:not([hidden]) th");
    await type("");
    document.querySelector("#fleet th:nth-child(1) button").click();
    seen.first = document.querySelector("#fleet tbody th").textContent;
    const link = all("#fleet tbody th a").find(a => a.textContent === "gpu-040");
    link.click();
    await wait(500);
    const node = document.getElementById(link.hash.slice(1)).closest("details");
    seen.open = node.open;
    seen.charts = all("svg.plot", node).filter(chart => chart.clientWidth > 200).length;
    seen.strips = all("svg.strip").filter(strip => strip.clientWidth > 300).length;
    """
    assert after(text, steps, tmp_path) == {
        "rows": 200,
        "found": ["gpu-040"],
        "burnt": ["gpu-040", "gpu-080", "gpu-120", "gpu-160", "gpu-200"],
        "first": "gpu-001",
        "open": True,
        "charts": 3,
        "strips": 5,
    }


def test_heat_maps_have_words(tmp_path: Path) -> None:
    """Uses 200 nodes with a bad leaf, a hanging node and a slow pair of GPUs."""
    fleet, context = samples.clustered(200, 8, {("leaf", "rack-04"): 0.4, ("node", "gpu-100"): None})
    text = page(fleet, context)
    assert len(text.encode()) < 5_000_000
    steps = """
    const maps = all(".maps svg"), said = map => map.getAttribute("aria-label");
    seen.alts = maps.map(map => said(map).slice(0, 40));
    seen.drawn = maps.filter(map => map.clientWidth > 300).length;
    seen.told = names(".to-blame li");
    const bad = maps.find(map => said(map).includes("gpu-003"));
    seen.marked = said(bad).includes("✗ gpu2 to gpu6 61.3");
    const link = bad.closest("figure").querySelector("a");
    link.click();
    await wait(500);
    seen.open = document.getElementById(link.hash.slice(1)).closest("details").open;
    """
    assert after(text, steps, tmp_path) == {
        "alts": [
            "pair_bandwidth between 25 racks: 200 pai",
            "pair_bandwidth between 9 nodes and other",
            "peer bandwidth inside gpu-101. p2p_read:",
            "peer bandwidth inside gpu-101. p2p_write",
            "peer bandwidth inside gpu-003. p2p_read:",
            "peer bandwidth inside gpu-003. p2p_write",
        ],
        "drawn": 6,
        "told": ["✗ leaf of rack rack-04", "✗ gpu-100"],
        "marked": True,
        "open": True,
    }


@pytest.mark.timeout(300)  # four browser starts
def test_a_report_can_be_read_on_small_and_large_screens_light_and_dark(tmp_path: Path) -> None:
    fleet, context = samples.clustered()
    assert unreadable(page(fleet, context), tmp_path) == []


@pytest.mark.timeout(300)  # four browser starts
def test_no_text_of_a_node_is_too_long_to_be_read(tmp_path: Path) -> None:
    assert unreadable(page(samples.hostile()), tmp_path) == []


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str]]]:
    """Yield a web server's address and the list of paths requested from it."""
    paths: list[str] = []

    class Listener(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Suppress the server's log."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Listener)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", paths
    server.shutdown()
    server.server_close()


def fetching(address: str) -> str:
    """Return markup that tries to fetch in every possible way, and two ways to run code."""
    return (
        f"<img src={address}/img><link rel=stylesheet href={address}/css><script src={address}/js></script>"
        f"<iframe src={address}/frame></iframe><object data={address}/object></object>"
        f"<video src={address}/video></video><div style='background:url({address}/style)'>x</div>"
        f"<link rel=prefetch href={address}/prefetch><form action={address}/form></form>"
        "<script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\">"
    )


def test_the_shipped_policy_lets_the_shipped_script_run_and_nothing_else(
    tmp_path: Path, asked: tuple[str, list[str]]
) -> None:
    address, paths = asked
    file = tmp_path / "report.html"
    text = page(samples.hostile())
    file.write_text(text.replace("<main>", f"<main>{fetching(address)}"), encoding="utf-8")
    dom = dumped(file)
    assert '<html lang="en" class="js">' in dom
    assert "nodes unhealthy" in title(dom)
    assert paths == []


def test_this_test_would_see_a_fetch(tmp_path: Path, asked: tuple[str, list[str]]) -> None:
    """Without the page's policy the same markup fetches and runs."""
    address, paths = asked
    file = tmp_path / "page.html"
    file.write_text(f"<!doctype html><html><title>x</title><body>{fetching(address)}</body></html>")
    assert title(dumped(file)) == "pwned"
    assert {"/img", "/css", "/js", "/frame", "/style"} <= set(paths)


def test_a_page_of_hostile_text_fetches_and_runs_nothing_even_without_its_policy(
    tmp_path: Path, asked: tuple[str, list[str]]
) -> None:
    """Escaping alone must suffice: the policy is the second line of defence."""
    address, paths = asked
    fleet = samples.told(fetching(address), "$x$ <svg onload=\"document.title='pwned'\">")
    text, removed = re.subn(
        r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page(fleet, samples.context(fleet))
    )
    assert removed == 1
    file = tmp_path / "report.html"
    file.write_text(text, encoding="utf-8", errors="replace")
    assert "pwned" not in title(dumped(file))
    assert paths == []


def test_the_heads_of_many_checks_break_after_underscores_only(tmp_path: Path) -> None:
    asked = tuple(name for name in registry.table() if name != "pair_bandwidth")
    assert len(asked) >= 16
    fleet = samples.fleet(*(samples.node(f"gpu-{i:02d}", samples.checks(i), i) for i in (1, 2)), asked=asked)
    steps = """
    const parts = all("#fleet thead th button").flatMap(button => Array.from(button.childNodes))
      .filter(node => node.nodeType === Node.TEXT_NODE);
    seen.words = parts.map(part => part.textContent);
    const range = document.createRange();
    const lines = part => { range.selectNodeContents(part); return range.getClientRects().length; };
    seen.broken = parts.filter(part => lines(part) !== 1).map(part => part.textContent)
      .filter(word => !word.includes(" "));
    """
    seen = after(page(fleet), steps, tmp_path)
    assert {"memory_", "bandwidth", "scatter"} <= set(seen["words"])
    assert seen["broken"] == []


@pytest.fixture(scope="module")
def ten_thousand() -> str:
    """Return the page of 10,000 nodes with eight GPUs: 2,500 with a bad GPU or setting, some silent."""
    fleet = samples.large(10_000, 40)
    nodes = [samples.silent(node.node) if i % 1000 == 500 else node for i, node in enumerate(fleet.nodes)]
    return page(samples.fleet(*nodes))


@pytest.mark.timeout(400)
def test_ten_thousand_nodes_are_filtered_sorted_and_opened(ten_thousand: str, tmp_path: Path) -> None:
    assert len(ten_thousand.encode()) < 15_000_000
    steps = """
    const cells = column => all(`#fleet tbody tr td:nth-child(${column})`).map(cell => cell.textContent);
    const named = () => names("#fleet tbody tr:not(.more) .opener");
    const pager = document.querySelector(".pager");
    const [start, back, on, end] = all("button", pager);
    const said = () => pager.querySelector("output").textContent;
    seen.rows = named().length;
    seen.said = [document.getElementById("shown").textContent, said()];
    seen.first = [named()[0], cells(2)[0]];
    on.click();
    seen.second = said();
    end.click();
    seen.end = [said(), named().at(-1), on.disabled];
    await type("gpu-0777");
    seen.found = [named(), document.getElementById("shown").textContent, said()];
    await type("gpu-04000 wrong results");
    seen.burnt = [named(), names("details.node:not([hidden]) .name")];
    await type("timed out");
    seen.nobody = [named(), said()];
    await type("");
    for (const name of ["fail", "pass"]) document.querySelector(`input[value=${name}]`).click();
    seen.errors = [named().length, new Set(cells(2)).size, cells(2)[0], named()[0]];
    document.querySelector("input[value=pass]").click();
    seen.without = document.getElementById("shown").textContent;
    document.querySelector("input[value=fail]").click();
    const by = (column, times) => {
      const head = document.querySelector(`#fleet thead th:nth-child(${column})`);
      for (let i = 0; i < times; i += 1) head.querySelector("button").click();
      return [head.getAttribute("aria-sort"), named()[0]];
    };
    seen.byName = by(1, 1);
    seen.byNameDown = by(1, 1);
    seen.byBurn = [by(4, 1), cells(4)[0]];
    seen.byGpus = [by(7, 2), cells(7)[0]];
    await type("gpu-09001");
    const opener = document.querySelector("#fleet .opener");
    opener.click();
    seen.opened = document.querySelector("#fleet tr.more").textContent;
    opener.click();
    seen.closed = document.querySelector("#fleet tr.more") === null;
    await type("gpu-01000");
    const link = document.querySelector("#fleet tbody th a");
    link.click();
    await wait(500);
    const section = document.getElementById(link.hash.slice(1)).closest("details");
    seen.section = [section.open, section.querySelector(".name").textContent,
      section.textContent.includes("12843 wrong results"), section.textContent.includes("GPU 5: FAULTY")];
    """
    seen = after(ten_thousand, steps, tmp_path)
    opened = seen.pop("opened")
    assert "16528230" in opened
    assert "gpu_inventory, gpu_burn, p2p_bandwidth, nccl_all_reduce" in opened
    assert "Its measurements are in report.json." in opened
    assert seen == {
        "rows": 100,
        "said": ["10,000 nodes", "rows 1 to 100 of 10,000"],
        "first": ["gpu-00250", "✗ fail"],
        "second": "rows 101 to 200 of 10,000",
        "end": ["rows 9,901 to 10,000 of 10,000", "gpu-09999", True],
        "found": [[f"gpu-0777{digit}" for digit in range(10)], "10 of 10,000 nodes", "rows 1 to 10 of 10"],
        "burnt": [["gpu-04000"], ["gpu-04000"]],
        "nobody": [[], "no node fits"],
        "errors": [10, 1, "? error", "gpu-00501"],
        "without": "9,960 of 10,000 nodes",
        "byName": ["ascending", "gpu-00001"],
        "byNameDown": ["descending", "gpu-10000"],
        "byBurn": [["descending", "gpu-01000"], "✗ fail"],
        "byGpus": [["ascending", "gpu-00501"], "—"],
        "closed": True,
        "section": [True, "gpu-01000", True, True],
    }


def test_the_shipped_policy_lets_a_large_fleets_script_run(ten_thousand: str, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(ten_thousand, encoding="utf-8")
    dom = dumped(file)
    assert dom.count('class="opener"') == 100
    assert "rows 1 to 100 of 10,000" in dom


def test_a_large_fleet_of_hostile_text_runs_nothing_even_without_its_policy(
    tmp_path: Path, asked: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On large pages, node text is data in a script element, rendered by the page's script."""
    monkeypatch.setattr(report_page, "MANY", 0)
    address, paths = asked
    ends = "</script><script>document.title='pwned'</script><!--<script>"
    fleet = samples.told(fetching(address), ends, *samples.HOSTILE)
    text, removed = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page(fleet))
    assert removed == 1
    open_all = "for (const opener of document.querySelectorAll('.opener')) opener.click();"
    text = text.replace("</body>", f"<script>{open_all}</script></body>")
    file = tmp_path / "report.html"
    file.write_text(text, encoding="utf-8", errors="replace")
    dom = dumped(file)
    assert dom.count('aria-expanded="true"') == len(fleet.nodes)
    assert "pwned" not in title(dom)
    assert paths == []
