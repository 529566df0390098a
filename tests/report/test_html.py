"""report.html: complete without script or network, quick with many nodes, deaf to what a node says."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest

from provision.health import FleetHealth
from provision.report import html
from provision.report.html import render

FLEETS = ("healthy", "demo", "unmeasured", "interrupted", "nothing", "hostile")
VOID = {"meta", "br", "input", "img"}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def page(fleet: FleetHealth) -> str:
    return "".join(render(fleet))


class Reader(HTMLParser):
    """Tags, attributes and visible text, and whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        self.text = re.sub(r"\s+", " ", " ".join(self.words))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in {"style", "script"}:
            self.words.append(data)


@pytest.mark.parametrize("name", FLEETS)
def test_the_page_is_well_formed_and_fetches_nothing(samples: ModuleType, name: str) -> None:
    text = page(getattr(samples, name)())
    reader = Reader(text)
    assert reader.open == []
    fetching = {"srcset", "action", "data", "poster", "background", "style"}
    for tag, attributes in reader.tags:
        assert tag not in {"link", "iframe", "object", "embed", "base", "form", "video", "svg"}
        assert not fetching & set(attributes)
        if "src" in attributes:
            assert tag == "img"
            assert str(attributes["src"]).startswith("data:image/svg+xml;base64,")
            assert attributes["alt"]
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


def test_the_culprits_are_there_with_everything_needed_to_pull_them(samples: ModuleType) -> None:
    shown = Reader(page(samples.demo())).text
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
        "gpuprov validate --nodes gpu-03",
    ):
        assert wanted in shown, wanted


def test_what_was_not_measured_has_its_own_section_tile_and_reason(samples: ModuleType) -> None:
    shown = Reader(page(samples.unmeasured())).text
    for wanted in (
        "? Not measured",
        "16 of 28 ? checks measured: 12 were not",
        "unreachable: ssh: connect to 10.0.3.44",
        "gpu_burn did not end within 180 s and was killed",
        "did not run: nccl_all_reduce",
        "? did not run",
        "one GPU: there is nobody to reduce with",
    ):
        assert wanted in shown, wanted
    assert "An empty report is not a healthy fleet." in Reader(page(samples.nothing())).text
    assert "This run was interrupted." in Reader(page(samples.interrupted())).text


def test_evidence_keeps_its_columns(samples: ModuleType) -> None:
    assert samples.SLOW.evidence[0] in page(samples.demo())


def test_hostile_text_is_shown_and_nothing_more(samples: ModuleType) -> None:
    text = page(samples.hostile())
    assert "&lt;script&gt;document.title=&#39;pwned&#39;&lt;/script&gt;" in text
    assert "<script>document" not in text
    assert "<img src=x" not in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text)
    assert "עברית" in text


def test_a_verdict_is_told_in_words_and_the_worst_node_comes_first(samples: ModuleType) -> None:
    rows = re.findall(r'<tr data-v="(\w+)" data-n="\d+".*?</tr>', page(samples.demo()), re.DOTALL)
    assert rows == ["fail", "pass", "pass"]
    assert page(samples.demo()).count("✗ fail</td>") == 3


def test_a_large_fleet_stays_small_and_no_node_is_left_out(
    samples: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html, "_DETAILS", 800_000)
    text = page(samples.large(400, 16))
    assert len(text.encode()) < 1_200_000
    assert len(re.findall(r'<tr data-v="\w+" data-n=', text)) == 400
    detailed = text.count('<details class="node ')
    assert 16 <= detailed < 400
    assert f"the details of {detailed:,} of 400 nodes are here" in text
    red = re.findall(r'<details class="node v-(\w+)"', text)
    assert red[:16] == ["fail"] * 16


# --- in a real browser ---

FILTER = """
addEventListener("load", () => {
  const box = document.getElementById("q");
  box.value = "SERIAL_HERE"; box.dispatchEvent(new Event("input"));
  setTimeout(() => {
    const names = selector => Array.from(document.querySelectorAll(selector), e => e.textContent);
    const seen = names("#fleet tbody tr:not([hidden]) th");
    document.querySelector("#fleet th:nth-child(2) button").click();
    document.querySelector("#fleet th:nth-child(2) button").click();
    const order = names("#fleet tbody tr th");
    const cards = document.querySelectorAll(".cause:not([hidden])").length;
    const said = document.getElementById("shown").textContent;
    document.title = JSON.stringify({ seen, order, cards, said });
  }, 50);
});
"""


def dumped(file: Path) -> str:
    """The page's DOM after its scripts have run, offline."""
    if CHROMIUM is None:
        message = "no Chromium: the report's filter, sort and deafness were NOT tried in a browser"
        pytest.skip(message)
    arguments = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
        "--disable-extensions --disable-background-networking --disable-component-update "
        "--virtual-time-budget=3000"
    )
    command = [
        CHROMIUM,
        *arguments.split(),
        f"--user-data-dir={file.parent / 'profile'}",
        "--dump-dom",
        file.as_uri(),
    ]
    answer = subprocess.run(command, capture_output=True, timeout=90, check=True)
    return answer.stdout.decode()


def test_filter_and_sort_work_in_a_browser(samples: ModuleType, tmp_path: Path) -> None:
    text = page(samples.demo())
    # The test's own script needs a policy that allows it; the page's script is the one that is shipped.
    text = re.sub(r"script-src '[^']+'", "script-src 'unsafe-inline'", text)
    script = FILTER.replace("SERIAL_HERE", samples.BAD_GPU_SERIAL)
    file = tmp_path / "report.html"
    file.write_text(text.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    title = re.search(r"<title>(.*?)</title>", dumped(file))
    assert title is not None
    shown = title[1]
    assert '"seen":["gpu-03"]' in shown
    assert '"order":["gpu-01","gpu-02","gpu-03"]' in shown
    assert '"cards":1' in shown
    assert '"said":"1 of 3 nodes"' in shown


def test_the_shipped_policy_lets_the_shipped_script_run_and_no_other(
    samples: ModuleType, tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    text = page(samples.hostile())
    injected = "<script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\">"
    file.write_text(text.replace("<main>", f"<main>{injected}"), encoding="utf-8")
    dom = dumped(file)
    assert '<html lang="en" class="js">' in dom
    title = re.search(r"<title>(.*?)</title>", dom, re.DOTALL)
    assert title is not None
    assert "pwned" not in title[1]
    assert "nodes unhealthy" in title[1]
