"""What is in a chart of a report, for tests: its words, the look of its cells, and its bytes anywhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import provision
from provision.report.canvas import Image
from provision.report.heatmaps import Drawn


def source(drawn: Image | Drawn) -> str:
    """The markup, which must be well-formed."""
    found = [drawn] if isinstance(drawn, Image) else [image for _, image in drawn.maps]
    for image in found:
        ElementTree.fromstring(image.source)  # noqa: S314 - our own
    return "".join(image.source for image in found)


def drawing(drawn: Image | Drawn) -> ElementTree.Element:
    return ElementTree.fromstring(f"<div>{source(drawn)}</div>")  # noqa: S314 - our own


def alt(drawn: Drawn) -> str:
    """What the maps show, in words."""
    return ". ".join(image.alt for _, image in drawn.maps)


def words(drawn: Image | Drawn) -> list[str]:
    """What is written in a chart, each mark of a row of marks alone, and in a map's title and legend."""
    found = []
    for text in drawing(drawn).iter("text"):
        said = "".join(text.itertext()).strip()
        found += list(said) if " " in text.get("x", "") else [said]
    if isinstance(drawn, Drawn):
        found += [title for title, _ in drawn.maps] + [drawn.says]
        found += [word for entry in drawn.legend for word in (entry.mark, entry.words) if word]
    return found


def boxes(drawn: Drawn) -> Counter[str]:
    """Class of a colour → how many cells have it."""
    found: Counter[str] = Counter()
    for cells in drawing(drawn).iter("g"):
        size = int(cells.get("stroke-width", "")) + 1
        for path in cells:
            if path.get("class") != "hatch":
                lengths = re.findall(r"h(\d+)", path.get("d", ""))
                found[path.get("class", "")] += sum(map(int, lengths)) // size
    return found


def written(program: str, *places: tuple[Mapping[str, str], Path | None]) -> bytes:
    """What a program writes with each of these additions to the environment, each in its folder: it must
    be the same, and nothing on standard error."""
    found = set()
    for more, folder in places:
        environment = {**os.environ, "PYTHONPATH": str(Path(provision.__file__).parent.parent), **more}
        words = [sys.executable, "-c", program]
        done = subprocess.run(
            words, capture_output=True, check=True, timeout=300, env=environment, cwd=folder
        )
        assert done.stderr == b""
        found.add(done.stdout)
    (only,) = found
    return only
