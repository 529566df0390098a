"""Data files shipped in provision/data/: YAML, except for the copy on nodes, which is JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from provision.errors import GpuprovError
from provision.paths import DATA


def names(folder: str) -> list[str]:
    """Return the sorted names of a folder's data files without suffix: `skus` → ["a10", …]."""
    return sorted({path.stem for path in (DATA / folder).iterdir() if path.suffix in (".yml", ".json")})


def file_of(name: str) -> Path:
    """Return the path of a data file: `skus/a10` → …/skus/a10.yml."""
    written = DATA / f"{name}.yml"
    return written if written.is_file() else DATA / f"{name}.json"


def load(name: str, error: type[GpuprovError] = GpuprovError) -> Any:
    """Load a data file. Raises `error` if it is missing or damaged."""
    path = file_of(name)
    if path.suffix == ".yml":
        from provision import yamlfile

        return yamlfile.load(path, error)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as trouble:
        raise error(f"{path}: cannot be read: {trouble}", "install gpuprov-node-health again") from None


def load_mapping(name: str, error: type[GpuprovError] = GpuprovError) -> dict[str, Any]:
    """Load a data file that holds a mapping. Raises `error` otherwise."""
    content = load(name, error)
    if not isinstance(content, dict):
        raise error(f"{file_of(name)}: must be a mapping", "install gpuprov again")
    return content
