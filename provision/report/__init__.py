"""Report formats, one module each: `write_all` writes files, `terminal.summary` is for terminals."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from provision import atomic_file
from provision.errors import RunFolderError, UsageError

if TYPE_CHECKING:
    from provision.checks.health import FleetHealth
    from provision.report.context import Context
    from provision.runs.store import RunFolder

# Format → (its module here, {file name: its function `(fleet) -> Iterable[str]`}), in the order of writing;
# the formats in _TELLING also take a Context.
FORMATS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "json": ("json", {"report.json": "render"}),
    "html": ("html", {"report.html": "render"}),
    "md": ("markdown", {"report.md": "render"}),
    "junit": ("junit", {"report.junit.xml": "render"}),
    "nodes": (
        "nodes",
        {  # bad nodes first: a kill in between leaves none of them in service
            "nodes.exclude": "excluded",
            "nodes.exclude.folded": "excluded_folded",
            "nodes.fail": "failed",
            "nodes.fail.folded": "failed_folded",
            "nodes.pass": "passed",
            "nodes.pass.folded": "passed_folded",
        },
    ),
    "prometheus": ("prometheus", {"gpuprov-validation.prom": "render"}),
}
_TELLING = ("html", "md")


class _Render(Protocol):
    """Renderer of a report; formats in _TELLING receive a context."""

    def __call__(self, fleet: FleetHealth, /, *context: Context) -> Iterable[str]: ...


def write_all(
    fleet: FleetHealth, folder: Path | RunFolder, formats: Sequence[str], context: Context | None = None
) -> dict[str, Path]:
    """Write the report below `folder` in each of `formats` (names of FORMATS); return format → first file.

    Also writes the node lists that proposed commands name (`--nodes @FILE`). `context`: data beyond the run's
    own health (context.of_run), for formats that show it.

    Each file appears whole or not at all, even if the process is killed. Raises UsageError for an unknown
    format, before anything is written, and RunFolderError if a file cannot be written.
    """
    path = folder if isinstance(folder, Path) else folder.path
    for name in formats:
        if name not in FORMATS:
            raise UsageError(f"unknown report format: {name}", f"known formats: {', '.join(FORMATS)}")
    from provision.report.terminal import node_lists

    for file_name, nodes in node_lists(fleet).items() if formats else ():
        _write(path / file_name, (f"{node}\n" for node in nodes))
    context = context and replace(context, folder=str(path.absolute()))
    written: dict[str, Path] = {}
    for name in dict.fromkeys(formats):
        module, files = FORMATS[name]
        extra = () if context is None or name not in _TELLING else (context,)
        for file_name, function in files.items():
            render: _Render = getattr(importlib.import_module(f"{__name__}.{module}"), function)
            made = _write(path / file_name, render(fleet, *extra))
            written.setdefault(name, made)
    return written


def _write(path: Path, chunks: Iterable[str]) -> Path:
    """Write a report readable by others; until it is copied, the run folder's own mode protects it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return atomic_file.write(path, chunks, private=False)
    except OSError as error:
        raise RunFolderError(
            f"cannot write {path}: {error.strerror or error}", "give a writable folder with --output"
        ) from error
