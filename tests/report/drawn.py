"""Helpers that inspect a report's chart: its texts, its cells' classes and its bytes."""

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
    """Return the markup of a chart or of all its maps, after checking that it is well-formed."""
    images = [drawn] if isinstance(drawn, Image) else [image for _, image in drawn.maps]
    for image in images:
        ElementTree.fromstring(image.source)  # noqa: S314 - our own
    return "".join(image.source for image in images)


def drawing(drawn: Image | Drawn) -> ElementTree.Element:
    return ElementTree.fromstring(f"<div>{source(drawn)}</div>")  # noqa: S314 - our own


def alt(drawn: Drawn) -> str:
    """Return the alternative texts of the maps."""
    return ". ".join(image.alt for _, image in drawn.maps)


def words(drawn: Image | Drawn) -> list[str]:
    """Return the texts of a chart, with rows of marks split; for a map also title and legend."""
    texts = []
    for text in drawing(drawn).iter("text"):
        content = "".join(text.itertext()).strip()
        texts += list(content) if " " in text.get("x", "") else [content]
    if isinstance(drawn, Drawn):
        texts += [title for title, _ in drawn.maps] + [drawn.says]
        texts += [word for entry in drawn.legend for word in (entry.mark, entry.words) if word]
    return texts


def boxes(drawn: Drawn) -> Counter[str]:
    """Return the number of cells by colour class."""
    counts: Counter[str] = Counter()
    for cells in drawing(drawn).iter("g"):
        size = int(cells.get("stroke-width", "")) + 1
        for path in cells:
            if path.get("class") != "hatch":
                lengths = re.findall(r"h(\d+)", path.get("d", ""))
                counts[path.get("class", "")] += sum(map(int, lengths)) // size
    return counts


def written(program: str, *places: tuple[Mapping[str, str], Path | None]) -> bytes:
    """Return a program's output after checking that it is the same in all these environments and folders.
    The program must print nothing on standard error."""
    outputs = set()
    for more, folder in places:
        environment = {**os.environ, "PYTHONPATH": str(Path(provision.__file__).parent.parent), **more}
        words = [sys.executable, "-c", program]
        done = subprocess.run(
            words, capture_output=True, check=True, timeout=300, env=environment, cwd=folder
        )
        assert done.stderr == b""
        outputs.add(done.stdout)
    (only,) = outputs
    return only
