"""The command table: parses arguments and maps exceptions to exit codes; imports a command only to run it."""

from __future__ import annotations

import argparse
import gc
import importlib
import keyword
import os
import sys

from provision import TYPE_CHECKING, __version__
from provision.errors import ExitCode, GpuprovError, OutputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.metadata import EntryPoints
    from types import ModuleType

# verb -> what `gpuprov --help` says. The module is provision/commands/<verb>.py.
COMMANDS = {
    "init": "write a commented starter inventory",
    "plan": "show what `up` would do to each node, and why; changes nothing",
    "up": "install the declared stack on the nodes, and verify the result",
    "validate": "run the hardware checks, judge the results, write one health report",
    "status": "show the state of the fleet now, from the nodes' own health programs",
    "watch": "replace failed nodes with proven spares; runs as a service on the controller",
    "return": "return a repaired node to the spares, after up, validate and a burn-in",
    "burnin": "load nodes for hours before production, and write a record of acceptance",
    "lock": "record the exact packages of good nodes in a lock file for the whole fleet",
    "baseline": "derive thresholds from the stored runs of your own fleet",
    "drift": "compare the fleet with its declared state; made for CI",
    "runs": "list the work that runs have given to workers of a mesh, and cancel it",
    "report": "render, judge again, compare or pack stored runs",
    "selftest": "prove that the checks work on this GPU machine, without SSH or inventory",
    "lab": "run a fleet of simulated GPU nodes on this machine",
    "docs": "print a page of the documentation, or what is known of a role or check",
}

# Verbs of other distributions, which name their module in the entry point group GROUP -> how one gets them.
ELSEWHERE = {"lab": ("gpuprov-lab", "in a checkout of gpuprov: pip install ./lab")}
GROUP = "gpuprov.commands"

EPILOG = """\
exit codes:
  0 success                       4 drift
  1 stopped by a named error      5 incomplete: a node was unreachable or not measurable
  2 wrong command line            70 a bug in gpuprov
  3 unhealthy, or a role failed   130 interrupted
                                  141 the reader of the output has gone (| head)

start here:
  gpuprov init                    then edit inventory.yml
  gpuprov plan                    show what `up` would do
  gpuprov up                      install the declared stack
  gpuprov validate --nodes all    check the hardware
"""


class _Parser(argparse.ArgumentParser):
    """Refuses what it does not know itself, with its own usage and the nearest that it knows: argparse leaves
    a verb's unknown options to the parser of the program."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            known = [name for action in self._actions for name in action.option_strings]
            flag = next((word for word in unknown if word.startswith("-")), "")
            hint = _hint(flag.partition("=")[0], known)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return options, unknown

    def _check_value(self, action: argparse.Action, value: object) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += _hint(str(value), [str(choice) for choice in action.choices or ()])
            raise


def _hint(wrong: str, known: Sequence[str]) -> str:
    from provision.nearest import did_you_mean

    meant = did_you_mean(wrong, known)
    return f"\n  → {meant}" if meant else ""


def _top_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="gpuprov",
        description="GPU machines from bare Linux to proven ready for production, from one inventory.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gpuprov {__version__}")
    parser.add_argument(
        "--print-completion",
        choices=["bash", "zsh", "fish", "tcsh"],
        help="print a shell completion script and exit",
    )
    return parser


def _command_module(verb: str) -> ModuleType:
    """The module of a verb. Raises GpuprovError where its distribution is not installed."""
    if verb in ELSEWHERE:
        return _installed(verb)
    # `return` is no name that a module of Python's may have.
    return importlib.import_module(f"provision.commands.{verb}{'_' * keyword.iskeyword(verb)}")


def _installed(verb: str) -> ModuleType:
    distribution, how = ELSEWHERE[verb]
    for entry in _entry_points(verb):
        try:
            module: ModuleType = entry.load()
        except ImportError as error:  # an editable installation whose checkout has gone
            raise GpuprovError(f"{distribution} is damaged: {error}", f"install it again, {how}") from error
        return module
    raise GpuprovError(f"gpuprov {verb} comes with {distribution}, which is not installed", how)


def _entry_points(verb: str) -> EntryPoints:
    from importlib import metadata

    return metadata.entry_points(group=GROUP, name=verb)


def build_parser(verbs: Sequence[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """The parser with the arguments of `verbs` filled in; the others are listed only."""
    parser = _top_parser()
    subparsers = parser.add_subparsers(dest="verb", metavar="COMMAND", title="commands")
    for verb, summary in COMMANDS.items():
        subparser = subparsers.add_parser(
            verb,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if verb in verbs:
            _command_module(verb).add_arguments(subparser)
    return parser


def _wanted_verb(argv: Sequence[str]) -> list[str]:
    """The verb on the command line: only its module is imported."""
    return [word for word in argv if word in COMMANDS][:1]


def _command(arguments: Sequence[str]) -> int:
    verbs = _wanted_verb(arguments)
    parser = build_parser(verbs)
    if verbs and arguments[0].startswith("-"):
        first = arguments[0].partition("=")[0]
        if first not in (name for action in parser._actions for name in action.option_strings):
            raise UsageError(f"the command comes first: `gpuprov {verbs[0]} {first} …`")
    options = parser.parse_args(arguments)
    if options.print_completion:
        import shtab

        here = [verb for verb in COMMANDS if verb not in ELSEWHERE or _entry_points(verb)]
        print(shtab.complete(build_parser(here), shell=options.print_completion))  # noqa: T201
        return ExitCode.OK
    if options.verb is None:
        parser.print_help()
        return ExitCode.USAGE
    return int(_command_module(options.verb).run(options))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Raises SystemExit where argparse ends it."""
    try:
        if argv is None:
            from provision import terminal

            terminal.take_streams()
        os.umask(os.umask(0o022) | 0o022)  # with a umask of 000 everyone could change what a run keeps
        gc.set_threshold(
            5_000, 10, 10
        )  # Python's own, 700, costs drift 5% more CPU; 20,000 would cost memory
        try:
            return _command(sys.argv[1:] if argv is None else argv)
        finally:
            sys.stdout.flush()  # while a failure can still be told
    except OutputError as error:
        if error.exit_code is not ExitCode.CLOSED_PIPE:  # the reader has what it wanted
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
