"""The command table: parses arguments and maps exceptions to exit codes; imports a command only to run it."""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from provision import __version__
from provision.errors import ExitCode, GpuprovError

# verb -> what `gpuprov --help` says. The module is provision/commands/<verb>.py.
COMMANDS = {
    "init": "write a commented starter inventory",
    "plan": "show what `up` would do to each node, and why; changes nothing",
    "up": "install the declared stack on the nodes, and verify the result",
    "validate": "run the hardware checks, judge the results, write one health report",
    "burnin": "load nodes for hours before production, and write a record of acceptance",
    "lock": "record the exact packages of good nodes in a lock file for the whole fleet",
    "baseline": "derive thresholds from the stored runs of your own fleet",
    "drift": "compare the fleet with its declared state; made for CI",
    "report": "render, judge again, compare or pack stored runs",
    "selftest": "prove that the checks work on this GPU machine, without SSH or inventory",
    "lab": "run a fleet of simulated GPU nodes on this machine",
    "docs": "print a page of the documentation, or what is known of a role, check, fact or variable",
}

EPILOG = """\
exit codes:
  0 success                       4 drift
  1 stopped by a named error      5 incomplete: a node was unreachable or not measurable
  2 wrong command line            70 a bug in gpuprov
  3 unhealthy, or a role failed   130 interrupted

start here:
  gpuprov init                    then edit inventory.yml
  gpuprov plan                    show what `up` would do
  gpuprov up                      install the declared stack
  gpuprov validate --nodes all    check the hardware
"""


def _top_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpuprov",
        description="GPU machines from bare Linux to proven ready for production, from one inventory.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gpuprov {__version__}")
    parser.add_argument(
        "--print-completion", choices=["bash", "zsh", "tcsh"], help="print a shell completion script and exit"
    )
    return parser


def _command_module(verb: str) -> ModuleType:
    return importlib.import_module(f"provision.commands.{verb}")


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


def _parsed(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Raises UsageError for what an Ansible user types from habit; argparse's own exit for other mistakes."""
    if arguments and arguments[0] not in COMMANDS:
        from provision.commands import ansible_habits

        ansible_habits.refuse_words(arguments, COMMANDS)
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        from provision.commands import ansible_habits

        ansible_habits.refuse_flags(options.verb, unknown)
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    gc.set_threshold(5_000, 10, 10)  # Python's own, 700, costs drift 5% more CPU; 20,000 would cost memory
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = build_parser(_wanted_verb(arguments))
    try:
        options = _parsed(parser, arguments)
    except GpuprovError as error:
        _complain(error)
        return error.exit_code
    if options.print_completion:
        import shtab

        print(shtab.complete(build_parser(), shell=options.print_completion))  # noqa: T201
        return ExitCode.OK
    if options.verb is None:
        parser.print_help()
        return ExitCode.USAGE
    try:
        return int(_command_module(options.verb).run(options))
    except GpuprovError as error:
        _complain(error)
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("\ngpuprov: interrupted\n")
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has gone: not our error. Keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except Exception:
        return _report_bug()


def _complain(error: GpuprovError) -> None:
    from provision.terminal import printable

    sys.stderr.write(f"gpuprov: {printable(error.what)}\n")
    if error.fix:
        sys.stderr.write(f"  → {printable(error.fix)}\n")


def _report_bug() -> ExitCode:
    """Keep the traceback for the maintainers and print one line for the user."""
    import tempfile
    import traceback

    text = traceback.format_exc()
    with tempfile.NamedTemporaryFile("w", prefix="gpuprov-bug-", suffix=".txt", delete=False) as kept:
        kept.write(text)
    last_line = text.strip().splitlines()[-1]
    sys.stderr.write(f"gpuprov: a bug in gpuprov: {last_line}\n  → please report it with {kept.name}\n")
    return ExitCode.BUG


if __name__ == "__main__":
    raise SystemExit(main())
