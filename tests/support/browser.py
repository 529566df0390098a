"""Pages of reports in a real browser: what is seen after a person's steps, and whether a page can be read on
a small and a large screen, light and dark."""

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
# What a person does with the page, a step after the other; what they then see becomes the title.
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
# A page in frames of several widths (Chromium's windows have 500 or more); the title becomes what was seen in
# each, in their order.
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
    """The page's DOM after its scripts have run, on a screen that is dark or not."""
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
    """What is seen after these steps on a screen of so many pixels."""
    (seen,) = _seen(text, steps, folder, (width,))
    return seen


def _seen(
    text: str, steps: str, folder: Path, widths: Sequence[int], dark: bool = False
) -> list[dict[str, Any]]:
    """What is seen after these steps at each width. Only they need a policy that allows them; the rest is as
    shipped."""
    text, changed = re.subn("script-src '[^']+'", "script-src 'unsafe-inline'", text, count=1)
    if not changed:  # a page without a script
        text, changed = re.subn("base-uri", "script-src 'unsafe-inline'; base-uri", text, count=1)
    assert changed
    inner, outer = folder / "report.html", folder / "screens.html"
    inner.write_text(text.replace("</body>", f"<script>{STEPS % steps}</script></body>"), encoding="utf-8")
    frames = "\n".join(
        FRAME % (width, inner.as_uri()) for width in widths
    )  # Chromium's windows have 500 or more
    outer.write_text(SCREENS % frames, encoding="utf-8")
    seen: list[dict[str, Any]] = json.loads(title(dumped(outer, dark)))
    assert len(seen) == len(widths)
    for one in seen:
        assert "error" not in one, one["error"]
    return seen


READ = Path(__file__).with_name("readable.js").read_text(encoding="utf-8")


def unreadable(text: str, folder: Path) -> list[str]:
    """What of a page with charts cannot be read at 400 or 1280 pixels, light or dark, all its details open:
    what scrolls the page, is cut off, too small, or has too little contrast; labels over each other."""
    found, widths = [], (400, 1280)
    for dark in (False, True):
        for width, seen in zip(widths, _seen(text, READ, folder, widths, dark), strict=True):
            where = f"{width} {'dark' if dark else 'light'}"
            found += [f"{where}: {problem}" for problem in seen["problems"]]
    return found
