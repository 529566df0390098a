"""The `--help` of every verb, stored as text, so that wording changes are visible in reviews."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision import cli
from provision.commands.parser import Parser

FOLDER = Path(__file__).parent / "fixtures" / "help"
RENEW = "python tests/test_help.py"
ENVIRONMENT = {"COLUMNS": "80", "PYTHON_COLORS": "0"}  # Python 3.14 colours help


def parsers() -> dict[str, list[Parser]]:
    """Return file name → parsers with their help in that file: a verb's own and its subverbs'.
    The verb's own is left out if it equals the help of the usual subverb."""
    top = cli.build_parser()
    return {"gpuprov": [top], **{verb: [*own(parser)] for verb, parser in top.verbs.items()}}


def own(parser: Parser) -> Iterator[Parser]:
    if not parser.usual:
        yield parser
    yield from parser.verbs.values()


def same_in_every_python(help_text: str) -> str:
    """Python 3.13 wraps usage differently, and prints `-o, --output FILE` for `-o FILE, --output FILE`."""
    usage, _, rest = help_text.partition("\n\n")
    usage = textwrap.fill(" ".join(usage.split()), 78, subsequent_indent="    ", break_on_hyphens=False)

    def one_metavar(match: re.Match[str]) -> str:
        names, metavar, text = match.groups()
        name = f"  {names.replace(f' {metavar}', '')} {metavar}"
        return f"{name:<24}{text}" if len(name) <= 22 else f"{name}\n{'':<24}{text}"

    several = r"^  ((?:-\S+ (\S+), )(?:--\S+ \2, )*--\S+) \2(?:\n {24}|  +)(\S.*)$"
    rest = re.sub(several, one_metavar, rest, flags=re.MULTILINE)
    return f"{usage}\n\n{rest}"


def helps() -> dict[str, str]:
    """Return the help of all verbs, plus `--help all` of a verb with every option group."""
    texts = {
        name: "\n".join(same_in_every_python(parser.format_help()) for parser in group)
        for name, group in parsers().items()
    }
    return texts | {"all": same_in_every_python(cli.build_parser(["drift"]).verbs["drift"].whole_help())}


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return helps()


@pytest.mark.parametrize("name", ["gpuprov", "all", *cli.COMMANDS])
def test_help_is_the_text_that_was_reviewed(name: str, shown: dict[str, str]) -> None:
    file = FOLDER / f"{name}.txt"
    expected = file.read_text(encoding="utf-8") if file.exists() else ""
    assert shown[name] == expected, f"the help of {name} has changed; read it, then renew {file}: {RENEW}"


def test_no_file_is_left_of_a_verb_that_is_gone(shown: dict[str, str]) -> None:
    assert {file.stem for file in FOLDER.iterdir()} == set(shown)


@pytest.mark.parametrize("name", ["gpuprov", "all", *cli.COMMANDS])
def test_help_fits_a_terminal(name: str, shown: dict[str, str]) -> None:
    assert [line for line in shown[name].splitlines() if len(line) > 80] == []


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("  -o FILE, --output FILE\n                        to write", "  -o, --output FILE     to write"),
        ("  -f N, --forks N       at once", "  -f, --forks N         at once"),
        (
            "  -l NODES, --limit NODES, --nodes NODES\n                        which",
            "  -l, --limit, --nodes NODES\n                        which",
        ),
    ],
)
def test_older_pythons_give_the_same_text(older: str, newer: str) -> None:
    assert same_in_every_python(f"usage: x\n\n{older}") == same_in_every_python(f"usage: x\n\n{newer}")


if __name__ == "__main__":
    os.environ.update(ENVIRONMENT)
    FOLDER.mkdir(exist_ok=True)
    for file_name, help_text in helps().items():
        (FOLDER / f"{file_name}.txt").write_text(help_text, encoding="utf-8")
