"""Helpers that open report pages in a real browser, act on them, and check that they are legible.
Legibility is checked on small and large screens, light and dark."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync --disable-extensions "
    "--disable-background-networking --disable-component-update --virtual-time-budget=8000 --hide-scrollbars"
)
# The user's steps on the page, one after another; the visible result becomes the title.
STEPS = """
const seen = {};
const all = (selector, from = document) => Array.from(from.querySelectorAll(selector));
const names = selector => all(selector, document).map(element => element.textContent);
const wait = milliseconds => new Promise(done => setTimeout(done, milliseconds));
async function type(text) {
  const box = document.getElementById("q");
  box.value = text; box.dispatchEvent(new Event("input"));
  await wait(400);
}
addEventListener("load", async () => {
  try { %s } catch (error) { seen.error = String(error); }
  parent.postMessage(JSON.stringify(seen), "*");
});
"""
# A page with frames of several widths, since Chromium's windows are at least 500 pixels wide. The title
# becomes the visible result of each frame, in order.
SCREENS = """<!doctype html>
<meta name="color-scheme" content="light dark"><title></title>
<script>
const seen = [];
addEventListener("message", event => {
  const frames = Array.from(document.querySelectorAll("iframe"));
  seen[frames.findIndex(frame => frame.contentWindow === event.source)] = JSON.parse(event.data);
  document.title = JSON.stringify(seen);
});
</script>
%s
"""
FRAME = '<iframe width="%d" height="900" style="border: 0" src="%s"></iframe>'


def dumped(file: Path, dark: bool = False) -> str:
    """Return the page's DOM after its scripts have run, on a dark or light screen."""
    if CHROMIUM is None:
        pytest.skip("no Chromium: the pages' look, filter, sort and deafness were NOT tried in a browser")
    screen = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    profile = f"--user-data-dir={file.parent / 'profile'}"
    command = [CHROMIUM, *FLAGS.split(), screen, profile, "--dump-dom", file.as_uri()]
    return subprocess.run(command, capture_output=True, timeout=300, check=True).stdout.decode()


def title(dom: str) -> str:
    found = re.search(r"<title>(.*?)</title>", dom, re.DOTALL)
    assert found is not None
    return html.unescape(found[1])


def after(text: str, steps: str, folder: Path, width: int = 1280) -> dict[str, Any]:
    """Return the visible state after these steps on a screen `width` pixels wide."""
    (seen,) = _seen(text, steps, folder, (width,))
    return seen


def _seen(
    text: str, steps: str, folder: Path, widths: Sequence[int], dark: bool = False
) -> list[dict[str, Any]]:
    """Return the visible state after these steps at each width.
    The page is as shipped, except that its policy allows inline scripts, which the steps need."""
    text, changed = re.subn("script-src '[^']+'", "script-src 'unsafe-inline'", text, count=1)
    if not changed:  # the page has no script
        text, changed = re.subn("base-uri", "script-src 'unsafe-inline'; base-uri", text, count=1)
    assert changed
    inner, outer = folder / "report.html", folder / "screens.html"
    inner.write_text(text.replace("</body>", f"<script>{STEPS % steps}</script></body>"), encoding="utf-8")
    frames = "\n".join(
        FRAME % (width, inner.as_uri()) for width in widths
    )  # Chromium's windows are at least 500 pixels wide
    outer.write_text(SCREENS % frames, encoding="utf-8")
    seen: list[dict[str, Any]] = json.loads(title(dumped(outer, dark)))
    assert len(seen) == len(widths)
    for one in seen:
        assert "error" not in one, one["error"]
    return seen


READ = Path(__file__).with_name("readable.js").read_text(encoding="utf-8")


def unreadable(text: str, folder: Path) -> list[str]:
    """Find illegible parts of a page with all details open, at 400 and 1280 pixels, light and dark.
    Problems: text cut off, too small or low in contrast, overlapping labels, sideways scrolling."""
    found, widths = [], (400, 1280)
    for dark in (False, True):
        for width, seen in zip(widths, _seen(text, READ, folder, widths, dark), strict=True):
            where = f"{width} {'dark' if dark else 'light'}"
            found += [f"{where}: {problem}" for problem in seen["problems"]]
    return found
