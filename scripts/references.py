"""Generated pages of the documentation site: help texts, the Python API, the example files."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpuprov
import gpuprov.checks
from provision import cli

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "docs" / "examples"
LANGUAGES = {".py": "python", ".yml": "yaml", ".json": "json", ".toml": "toml", ".csv": "text"}


def pages() -> dict[str, str]:
    """Return the text of each generated page."""
    made = {"cli.md": help_texts(), "api.md": api(), "examples.md": examples()}
    return {name: "\n".join(lines) + "\n" for name, lines in made.items()}


# --- the command line


def help_texts() -> Iterator[str]:
    """Return the lines of the page with the help text of each command."""
    os.environ["COLUMNS"] = "80"  # the width of a terminal, and of the page
    yield "# Help texts\n"
    yield "The `--help` of each command. [The command line](commands.md) introduces them."
    for name, parser in commands(cli.build_parser()):
        yield f"\n## {name}\n\n```text\n{parser.format_help().rstrip()}\n```"


def commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Return (name, parser) of a command and of all commands below it."""
    yield parser.prog, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in dict.fromkeys(action.choices.values()):  # an alias is not another command
                yield from commands(child)


# --- the Python API


def api() -> Iterator[str]:
    """Return the lines of the Python reference."""
    yield "# Python reference\n"
    yield "The public names of `gpuprov`. [gpuprov from Python](python.md) shows their use."
    for module in (gpuprov, gpuprov.checks):
        yield f"\n## {module.__name__}"
        for name in sorted(module.__all__, key=str.lower):
            if name != "__version__":
                yield from described(name, getattr(module, name))


def described(name: str, thing: Any) -> Iterator[str]:
    """Return the section of one public name."""
    yield f"\n### {name}\n"
    if inspect.isclass(thing) or inspect.isfunction(thing):
        yield f"```python\n{signature(name, thing)}\n```\n"
        yield prose(inspect.getdoc(thing) or "")
        yield from own_methods(thing)
    else:
        choices = "\n    | ".join(re.sub(r"[\w.]+\.", "", repr(thing)).split(" | "))
        yield f"```python\n{name} = (\n    {choices}\n)\n```"


def own_methods(thing: Any) -> Iterator[str]:
    """Return a line for each documented public method and property of a class of ours."""
    for name, member in vars(thing).items() if inspect.isclass(thing) else ():
        called = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if name.startswith("_") or not inspect.isfunction(called) or not called.__doc__:
            continue
        call = name if isinstance(member, property) else signature(name, called).replace("\n", " ")
        yield f"\n- `{re.sub(r' +', ' ', call)}`: {prose(inspect.getdoc(called) or '')}"


def signature(name: str, thing: Any) -> str:
    """Return a call with its parameters: on one line if it fits, otherwise one parameter a line."""
    try:
        taken = inspect.signature(thing)
    except (TypeError, ValueError):
        return name
    parameters = [each for each in taken.parameters.values() if each.name != "self"]
    texts = [parameter(each, thing) for each in parameters]
    by_name = [number for number, each in enumerate(parameters) if each.kind is each.KEYWORD_ONLY]
    if by_name:
        texts.insert(by_name[0], "*")
    returned = taken.return_annotation
    end = "" if inspect.isclass(thing) or returned is taken.empty else f" -> {written(returned)}"
    line = f"{name}({', '.join(texts)}){end}"
    return line if len(line) <= 90 else f"{name}(\n" + "".join(f"    {text},\n" for text in texts) + f"){end}"


def parameter(taken: inspect.Parameter, thing: Any) -> str:
    """Return a parameter as in the source; a default that a dataclass makes anew is shown as its value."""
    default = taken.default
    for field in dataclasses.fields(thing) if dataclasses.is_dataclass(thing) else ():
        if field.name == taken.name and field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
    text = taken.name if taken.annotation is taken.empty else f"{taken.name}: {written(taken.annotation)}"
    shown = default.__name__ if inspect.isfunction(default) else repr(default)
    return text if default is taken.empty else f"{text} = {shown}"


def written(annotation: Any) -> str:
    """Return an annotation as in the source."""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def prose(text: str) -> str:
    """Return a docstring for a page: a name in angle brackets is no HTML there."""
    return re.sub(r"<(?=[a-z])", "&lt;", text)


# --- the example files


def files() -> list[Path]:
    return sorted(file for file in EXAMPLES.rglob("*") if file.is_file() and "__pycache__" not in file.parts)


def example_anchors() -> dict[str, str]:
    """Return the anchor of each example file, and of each folder of them, on their page."""
    anchors = {}
    for file in files():
        path = file.relative_to(ROOT).as_posix()
        anchor = slug(file.relative_to(EXAMPLES).as_posix())
        anchors[path] = anchor
        for folder in file.relative_to(EXAMPLES).parents:
            if folder.name:
                anchors.setdefault(f"docs/examples/{folder.as_posix()}", anchor)
    return anchors


def slug(heading: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def examples() -> Iterator[str]:
    """Return the lines of the page with all example files."""
    yield "# Example files\n"
    yield "The files that other pages describe. In the repository they are in `docs/examples/`."
    for file in files():
        text = file.read_text(encoding="utf-8").rstrip("\n")
        yield f"\n## {file.relative_to(EXAMPLES).as_posix()}\n"
        yield f"```{LANGUAGES.get(file.suffix, 'sh')}\n{text}\n```"
