"""Parsers of all command lines, with short help, nested verbs, and suggestions for mistyped words."""

from __future__ import annotations

import argparse

from provision import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, NoReturn

# Title of the options that most verbs share: `--help` lists them, `--help all` explains them.
SHARED = "connection and selection"


class RefusedError(Exception):
    """A command line that a parser rejects."""


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Formatter that wraps paragraphs to the terminal's width, except indented ones (examples, tables)."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        import textwrap

        def filled(part: str) -> str:
            if "\n  " in f"\n{part}":
                return part
            words = " ".join(part.split())
            return textwrap.fill(
                words, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
            )

        return "\n\n".join(map(filled, text.rstrip("\n").split("\n\n"))) + "\n"


class Parser(argparse.ArgumentParser):
    """Parser that reports unknown options itself, with its own usage and suggestions.
    (argparse leaves a verb's unknown options to the parser of the program.)"""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"formatter_class": Formatter, "allow_abbrev": False, **settings})
        self._given: set[str] = set()

    @property
    def verbs(self) -> dict[str, Parser]:
        """Return the parsers of nested verbs."""
        groups = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        return dict(groups[0].choices) if groups else {}

    @property
    def usual(self) -> str:
        """Return the default verb, which may be omitted."""
        return next((str(one.default or "") for one in self._actions if one.dest == "act"), "")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        options, unknown = super().parse_known_args(args, namespace)
        options.given = self._given | getattr(options, "given", set())
        if unknown:
            option_names = [name for action in self._actions for name in action.option_strings]
            flag = next((word for word in unknown if word.startswith("-")), "")
            near = hint(flag.partition("=")[0], option_names)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{near}")
        return options, unknown

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        if action.option_strings:  # on the command line, perhaps with its default value
            self._given.add(action.dest)
        return super()._get_values(action, arg_strings)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += hint(str(value), [str(choice) for choice in action.choices or ()])
            raise

    def error(self, message: str) -> NoReturn:
        raise RefusedError(f"{self.format_usage()}{self.prog}: error: {message}\n")

    def format_usage(self) -> str:
        return self._short(super().format_usage)

    def format_help(self) -> str:
        return self._short(super().format_help)

    def whole_help(self) -> str:
        """Return the help including explanations of the shared options."""
        return super().format_help()

    def _short(self, form: Callable[[], str]) -> str:
        """Format a text in which shared options are listed without explanation."""
        shared = next((group for group in self._action_groups if group.title == SHARED), None)
        if shared is None:
            return form()
        explained = [(action, action.help) for action in shared._group_actions]
        names = [f"{action.option_strings[0]} {action.metavar or ''}".strip() for action, _ in explained]
        shared.title, shared.description = f"{SHARED} (--help all explains these)", ", ".join(names)
        for action, _ in explained:
            action.help = argparse.SUPPRESS
        try:
            return form()
        finally:
            shared.title, shared.description = SHARED, None
            for action, text in explained:
                action.help = text


def add_verbs(
    parser: argparse.ArgumentParser, verbs: Mapping[str, str], usual: str = ""
) -> dict[str, argparse.ArgumentParser]:
    """Add nested verbs with their descriptions; return their parsers.
    `usual`: the default verb, with a help that is also the parent's and lists the other verbs."""
    group = parser.add_subparsers(dest="act", metavar="VERB", title="verbs", required=True)
    group.default = usual
    parsers: dict[str, argparse.ArgumentParser] = {}
    for name, what in verbs.items():
        parsers[name] = group.add_parser(name, help=what, description=sentence(what))
    if usual:
        parsers[usual].prog = parser.prog
        width = max(map(len, verbs))
        listed = "".join(
            f"\n  {name:<{width}}  {what}{' (default)' * (name == usual)}" for name, what in verbs.items()
        )
        parsers[usual].description = f"{parser.description}\n\nverbs:{listed}"
    return parsers


def sentence(summary: str) -> str:
    """Return the first sentence of a verb's help."""
    return f"{summary[0].upper()}{summary[1:]}."


def hint(wrong: str, known: Sequence[str]) -> str:
    """Return a line with the known words closest to a mistyped one, or ""."""
    from provision.nearest import did_you_mean

    meant = did_you_mean(wrong, known)
    return f"\n  → {meant}" if meant else ""
