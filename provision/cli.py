"""Command line: parse arguments, import the command's module, map exceptions to exit codes."""

from __future__ import annotations

import argparse
import gc
import importlib
import keyword
import os
import sys

from provision import TYPE_CHECKING, __version__
from provision.commands.parser import Parser, RefusedError, hint, sentence
from provision.errors import ExitCode, GpuprovError, OutputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.metadata import EntryPoints
    from types import ModuleType

# Group → verb → its line in `gpuprov --help`. The module of a verb is provision/commands/<verb>.py.
GROUPS = {
    "bring nodes up": {
        "init": "write a commented starter inventory",
        "plan": "show what `up` would do to each node, and why",
        "up": "install the declared stack on the nodes, and verify it",
    },
    "prove them": {
        "validate": "run the hardware checks, and write a health report",
        "burnin": "load nodes for hours, and write a record of acceptance",
        "selftest": "prove the checks on this GPU machine, without SSH",
    },
    "keep them": {
        "status": "show the state of the fleet now",
        "drift": "compare the fleet with its declared state; made for CI",
        "watch": "replace failed nodes with proven spares, as a service",
        "return": "return a repaired node to the spares",
    },
    "records": {
        "report": "render, judge again, compare or pack stored runs",
        "runs": "list stored runs, and the work of runs at workers",
        "lock": "record the exact packages of good nodes for the fleet",
        "baseline": "derive thresholds from the runs of your own fleet",
    },
    "learn": {
        "docs": "print a page of the documentation, or what a check does",
        "lab": "run a fleet of simulated GPU nodes on this machine",
    },
}
COMMANDS = {verb: what for group in GROUPS.values() for verb, what in group.items()}

# Verbs of other distributions, with modules as entry points of GROUP → distribution, how to install it.
ELSEWHERE = {"lab": ("gpuprov-lab", "in a checkout of gpuprov: pip install ./lab")}
GROUP = "gpuprov.commands"

EPILOG = """\
gpuprov COMMAND --help explains a command. Start with init, plan, up, validate.

exit codes: 0 success, 1 stopped by a named error, 2 wrong command line, 3 unhealthy or a role failed,
4 drift, 5 a node was unreachable or not measured, 70 a bug in gpuprov, 130 interrupted, 141 the reader of
the output has gone.
"""


def _top_parser() -> Parser:
    listed = (
        f"{title}:\n" + "".join(f"  {verb:<10}{what}\n" for verb, what in group.items())
        for title, group in GROUPS.items()
    )
    parser = Parser(
        prog="gpuprov",
        usage="gpuprov [-h] [--version] COMMAND …",
        description="GPU machines from bare Linux to proven ready for production, from one inventory.\n\n"
        + "\n".join(listed),
        epilog=EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"gpuprov {__version__}")
    parser.add_argument(
        "--print-completion",
        choices=["bash", "zsh", "fish", "tcsh"],
        help="print a shell completion script and exit",
    )
    return parser


def _command_module(verb: str) -> ModuleType:
    """Return the module of a verb. Raises GpuprovError if its distribution is not installed."""
    if verb in ELSEWHERE:
        return _installed(verb)
    # `return` is a keyword of Python, so its module's name differs.
    return importlib.import_module(f"provision.commands.{verb}{'_' * keyword.iskeyword(verb)}")


def _installed(verb: str) -> ModuleType:
    distribution, how = ELSEWHERE[verb]
    for entry in _entry_points(verb):
        try:
            module: ModuleType = entry.load()
        except ImportError as error:  # an editable installation without its checkout
            raise GpuprovError(f"{distribution} is damaged: {error}", f"install it again, {how}") from error
        return module
    raise GpuprovError(f"gpuprov {verb} comes with {distribution}, which is not installed", how)


def _entry_points(verb: str) -> EntryPoints:
    from importlib import metadata

    return metadata.entry_points(group=GROUP, name=verb)


def build_parser(verbs: Sequence[str] = tuple(COMMANDS), *, complete: bool = False) -> Parser:
    """Return the parser with the arguments of `verbs`; other verbs are only listed.
    `complete`: for shell completion, which also offers the options of the default verb."""
    parser = _top_parser()
    subparsers = parser.add_subparsers(
        dest="verb",
        help="" if complete else argparse.SUPPRESS,
        prog="gpuprov",  # the top-level help lists the verbs in groups
    )
    for verb, summary in COMMANDS.items():
        subparser = subparsers.add_parser(verb, help=summary, description=sentence(summary))
        if verb in verbs:
            _command_module(verb).add_arguments(subparser)
            if complete and subparser.usual:
                usual = subparser.verbs[subparser.usual]
                for action in usual._get_optional_actions()[1:]:  # except the first, --help
                    subparser._add_action(action)
    return parser


def _wanted_verb(argv: Sequence[str]) -> list[str]:
    """Return the verb on the command line; no other verb's module is imported."""
    return [word for word in argv if word in COMMANDS][:1]


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line. Raises UsageError; SystemExit after help and on errors of a parser."""
    verbs = _wanted_verb(arguments)
    parser = build_parser(verbs)
    if verbs and arguments[0].startswith("-"):
        first = arguments[0].partition("=")[0]
        if first not in (name for action in parser._actions for name in action.option_strings):
            raise UsageError(f"the command comes first: `gpuprov {verbs[0]} {first} …`")
    words, innermost = _with_usual(parser, arguments)
    if words[-2:] in (["-h", "all"], ["--help", "all"]):
        sys.stdout.write(innermost.whole_help())
        raise SystemExit(ExitCode.OK)
    try:
        options = parser.parse_args(words)
    except RefusedError as refused:
        from provision.commands import moved

        if advice := moved.answer(arguments, parser.verbs[verbs[0]].verbs if verbs else ()):
            raise UsageError(advice) from None
        sys.stderr.write(str(refused))
        raise SystemExit(ExitCode.USAGE) from None
    if words != list(arguments):
        _refuse_late_verb(options, innermost, parser.verbs[verbs[0]])
    return options


def _refuse_late_verb(options: argparse.Namespace, innermost: Parser, command: Parser) -> None:
    """Raise UsageError for a verb after options, which was parsed as an inventory or a run."""
    from pathlib import Path

    for action in innermost._get_positional_actions():
        word = getattr(options, action.dest, None)
        if isinstance(word, str) and word in command.verbs and not Path(word).exists():
            raise UsageError(f"the verb comes first: `{command.prog} {word} …`, then options")


def _with_usual(parser: Parser, arguments: Sequence[str]) -> tuple[list[str], Parser]:
    """Return the command line with omitted default verbs inserted, and the innermost parser."""
    words, place = list(arguments), 0
    while parser.verbs:
        word = words[place] if place < len(words) else ""
        if word not in parser.verbs and (usual := parser.usual):
            _refuse_mistyped(parser, word)
            words.insert(place, word := usual)
        if word not in parser.verbs:
            break
        parser, place = parser.verbs[word], place + 1
    return words, parser


def _refuse_mistyped(parser: Parser, word: str) -> None:
    """Raise UsageError for a word that is more likely a mistyped verb than an argument."""
    if word and not word.startswith("-") and (meant := hint(word, [*parser.verbs])):
        from pathlib import Path

        if not Path(word).exists():
            raise UsageError(f"{parser.prog} {word}: no such verb, and no such file", meant.strip(" \n→"))


def _command(arguments: Sequence[str]) -> int:
    options = parsed(arguments)
    if options.print_completion:
        import shtab

        here = [verb for verb in COMMANDS if verb not in ELSEWHERE or _entry_points(verb)]
        print(shtab.complete(build_parser(here, complete=True), shell=options.print_completion))  # noqa: T201
        return ExitCode.OK
    if options.verb is None:
        _top_parser().print_help()
        return ExitCode.USAGE
    return int(_command_module(options.verb).run(options))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code. Raises SystemExit if argparse exits."""
    try:
        if argv is None:
            from provision import terminal

            terminal.take_streams()
        os.umask(os.umask(0o022) | 0o022)  # with a umask of 000 every user could change the files of a run
        gc.set_threshold(
            5_000, 10, 10
        )  # the default of 700 costs drift 5% more CPU; 20,000 would cost memory
        try:
            return _command(sys.argv[1:] if argv is None else argv)
        finally:
            sys.stdout.flush()  # while a failure can still be reported
    except OutputError as error:
        if error.exit_code is not ExitCode.CLOSED_PIPE:  # the reader has enough
            _complain(error)
        return error.exit_code
    except GpuprovError as error:
        _complain(error)
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("\ngpuprov: interrupted\n")
        return ExitCode.INTERRUPTED
    except Exception as error:
        from provision import bug_file

        named = bug_file.named(error)
        _complain(named)
        return named.exit_code


def _complain(error: GpuprovError) -> None:
    from provision.terminal import complain

    complain(error)


if __name__ == "__main__":
    raise SystemExit(main())
