"""Reader of YAML files with errors that name file, line and column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from provision.errors import GpuprovError

# libyaml's loader is about five times faster than PyYAML's, with the same result.
Loader: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_text(path: Path, error: type[GpuprovError]) -> str:
    """Return the text of a file. Raises `error` if it is missing, unreadable or not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as trouble:
        raise error(f"{path}: not UTF-8 text (byte {trouble.start})", "save it as UTF-8") from None
    except OSError as trouble:
        reason = trouble.strerror or type(trouble).__name__
        raise error(f"{path}: cannot be read: {reason}", "check the path and its permissions") from None


def parse(text: str, where: str, error: type[GpuprovError] = GpuprovError) -> Any:
    """Parse a YAML text. Raises `error` naming `where`, line and column."""
    try:
        return yaml.load(text, Loader=Loader)  # noqa: S506 - both are safe loaders
    except yaml.YAMLError as trouble:
        raise _named(trouble, where, error) from None


def load(path: Path, error: type[GpuprovError] = GpuprovError) -> Any:
    """Load a YAML file. Raises `error` with file, line, column and problem."""
    return parse(read_text(path, error), str(path), error)


def load_mapping(path: Path, error: type[GpuprovError] = GpuprovError) -> dict[str, Any]:
    """Load a YAML file that must hold a mapping with text keys; an empty file is an empty mapping."""
    value = load(path, error)
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise error(
            f"{path}: must be a mapping of names to values, not {type(value).__name__}", "see a shipped file"
        )
    return value


def check_syntax(text: str, where: str, error: type[GpuprovError]) -> None:
    """Raise `error` if the text is not YAML. Nothing is constructed, so tags (`!vault`) do not matter."""
    try:
        for _event in yaml.parse(text, Loader=Loader):
            pass
    except yaml.YAMLError as trouble:
        raise _named(trouble, where, error) from None


def _named(trouble: yaml.YAMLError, where: str, error: type[GpuprovError]) -> GpuprovError:
    mark = getattr(trouble, "problem_mark", None)
    problem = getattr(trouble, "problem", None) or str(trouble).splitlines()[0]
    location = f"{where}:{mark.line + 1}:{mark.column + 1}" if mark is not None else where
    return error(
        f"{location}: not valid YAML: {problem}",
        "look at that line and the one above: indentation, quotes, colons",
    )


def lines_of(text: str, where: str, error: type[GpuprovError]) -> dict[tuple[str, ...], int]:
    """Return the line of each key and list item: `("groups", "0", "packages", "libnccl2")` → 17.

    Raises `error` for a duplicate key, of which YAML would silently use the last."""
    try:
        root = yaml.compose(text, Loader=Loader)
    except yaml.YAMLError as trouble:
        raise _named(trouble, where, error) from None
    lines: dict[tuple[str, ...], int] = {}

    def walk(node: Any, way: tuple[str, ...]) -> None:
        if isinstance(node, yaml.MappingNode):
            inside = [(str(key.value), key.start_mark.line + 1, value) for key, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            inside = [(str(number), item.start_mark.line + 1, item) for number, item in enumerate(node.value)]
        else:
            return
        for name, line, value in inside:
            if (*way, name) in lines:
                raise error(f"{where}:{line}: {name} is there twice", "keep one of them")
            lines[*way, name] = line
            walk(value, (*way, name))

    if root is not None:
        walk(root, ())
    return lines
