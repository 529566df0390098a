"""What is in an image of a report, for tests: its words, the look of its boxes, and its bytes anywhere."""

from __future__ import annotations

import base64
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

SVG = "{http://www.w3.org/2000/svg}"


def source(image: Image) -> str:
    kind, data = image.source.split(",", 1)
    assert kind == "data:image/svg+xml;base64"
    return base64.b64decode(data).decode()


def drawing(image: Image) -> ElementTree.Element:
    """The image, which must be well-formed."""
    return ElementTree.fromstring(source(image))  # noqa: S314 - our own


def words(image: Image) -> list[str]:
    return ["".join(text.itertext()).strip() for text in drawing(image).iter(f"{SVG}text")]


def boxes(image: Image) -> Counter[str]:
    """Fill → how many boxes have it, those of the legend included; "hatched" for all that are."""
    found: Counter[str] = Counter()
    for path in drawing(image).iter(f"{SVG}path"):
        fill = re.search(r"fill: (#\w+|url\()", path.get("style", ""))
        lines, closed = path.get("d", "").count("L"), path.get("d", "").count("z")
        if fill and closed and lines in (3 * closed, 4 * closed):
            found["hatched" if fill[1] == "url(" else fill[1]] += closed
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
