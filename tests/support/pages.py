"""Commands in the pages of the documentation, and the output shown for them."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from provision import cli

ROOT = Path(__file__).resolve().parents[2]
_DOCS = (
    "first-hour",
    "validate",
    "reports",
    "burnin",
    "lab",
    "upgrade",
    "watch",
    "schedulers",
    "ansible",
    "status",
)
PAGES = ("README.md", *(f"docs/{name}.md" for name in _DOCS))
DATA = ROOT / "tests" / "documented_runs.yml"
PROMPT = "$ "
SHELLS = ("", "sh", "bash", "console", "text")
# Third-party programs that reach nodes or a cluster.
REACH = {"ansible", "ansible-playbook", "scontrol", "sbatch", "pdsh", "mpirun"}


class Needs(Enum):
    """Requirements for running a command."""

    NOTHING = "nothing"
    RUNS = "stored runs"
    NODES = "nodes"
    LAB = "this machine's lab"


@dataclass(frozen=True)
class Command:
    """One command of a page, without prompt, `sudo` and comment."""

    page: str
    line: int
    text: str
    comment: str = ""
    output: tuple[str, ...] = ()  # the lines shown below it
    root: bool = False  # run with sudo

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"

    @property
    def options(self) -> argparse.Namespace | None:
        """Parse the options of the leading gpuprov call; None if the command runs another program."""
        words = shlex.split(self.text.partition(" | ")[0])
        if words[:1] != ["gpuprov"]:
            return None
        try:
            return cli.parsed(words[1:])
        except SystemExit:  # would otherwise end the collection of all tests
            raise ValueError(f"{self} is no command line of gpuprov") from None

    @property
    def needs(self) -> Needs:
        options = self.options
        if options is None:
            programs = {words.split()[0] for words in re.split(r"&&|\|", self.text) if words.strip()}
            return Needs.NODES if programs & REACH else Needs.NOTHING
        if options.verb == "lab":
            return Needs.LAB
        if hasattr(options, "user") and not getattr(options, "offline", False):
            return Needs.NODES
        return Needs.RUNS if hasattr(options, "runs") or options.verb == "baseline" else Needs.NOTHING

    @property
    def is_endless(self) -> bool:
        """Whether a user has to end the command: a watch, or an hours-long burn-in followed live."""
        if self.does("burnin", "start"):
            return not getattr(self.options, "detach", False)
        return (
            self.does("watch", "run")
            or self.does("burnin", "attach")
            or getattr(self.options, "watch", None) is not None
        )

    def does(self, verb: str, act: str) -> bool:
        """Whether the command is `gpuprov VERB ACT`."""
        options = self.options
        return options is not None and (options.verb, getattr(options, "act", "")) == (verb, act)


def blocks(page: str) -> Iterator[tuple[int, str, list[str]]]:
    """Yield (number of the first line, language, lines) of each fenced block."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for match in re.finditer(r"^```([a-z]*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield text[: match.start()].count("\n") + 2, match[1], match[2].splitlines()


def commands(page: str) -> list[Command]:
    """Return the commands in page order.
    A block whose first line is indented shows output; so does a `text` block without a prompt."""
    found = []
    for first, language, lines in blocks(page):
        prompted = any(line.startswith(PROMPT) for line in lines)
        if language not in SHELLS or (not prompted and (language == "text" or lines[0].startswith(" "))):
            continue
        numbers = [number for number, line in enumerate(lines) if line.startswith(PROMPT) or not prompted]
        for number, following in zip(numbers, [*numbers[1:], len(lines)], strict=True):
            typed, _, comment = lines[number].removeprefix(PROMPT).partition("  #")
            if not prompted and (typed.startswith("#") or not typed.strip()):
                continue
            output = lines[number + 1 : following] if prompted else []
            typed = typed.strip().split(" # ")[0]
            text, root = typed.removeprefix("sudo "), typed.startswith("sudo ")
            shown = tuple(filter(None, output))
            found.append(Command(page, first + number, text, comment.strip(), shown, root))
    return found


def inventories(page: str) -> list[tuple[int, dict[str, Any]]]:
    """Return (line, mapping) of each inventory, or part of one, that a page shows."""
    shown = []
    for first, language, lines in blocks(page):
        document = yaml.safe_load("\n".join(lines)) if language == "yaml" else None
        if isinstance(document, dict) and "hosts" in re.findall(r"\w+(?=:)", "\n".join(lines)):
            shown.append((first, document))
    return shown


def data() -> dict[str, Any]:
    """Load tests/documented_runs.yml."""
    loaded: dict[str, Any] = yaml.safe_load(DATA.read_text(encoding="utf-8"))
    return loaded


def not_run(command: Command) -> str:
    """Return the reason why the command is not run, or ""."""
    return str(data()["not_run"].get(command.page, {}).get(command.text, ""))


def form(line: str) -> str:
    """Return a line's first words without mark and count; names and numbers are made alike."""
    line = re.sub(r"^[\s+~?✗✓!-]*(\d+ )?", "", line)
    line = re.sub(r"[\w-]*\d[\w.,:-]*(\[[^]]*\])?|[\w-]+\[[^]]*\]", "#", line)
    words = [word.rstrip(":,").removesuffix("s") for word in line.split()]
    return " ".join(words[:2])
