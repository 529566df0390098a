"""Options of every command that works on a fleet, and its first steps: load and observe the fleet."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from provision.commands.parser import SHARED
from provision.errors import UsageError
from provision.terminal import say as say  # re-exported for the verbs

if TYPE_CHECKING:
    from provision.api.fleets import LoadedFleet
    from provision.api.source import Limits, Source
    from provision.events import Event, OnEvent
    from provision.fleet import Fleet
    from provision.terminal import Progress


def add_arguments(
    parser: argparse.ArgumentParser,
    *,
    lock: bool = True,
    last_used: bool = True,
    timeout: float = 60.0,
    gpu_only: bool = False,
    word: bool = True,
    json: bool = True,
) -> None:
    """Add the options of a verb that works on a fleet.

    `lock`: the verb uses a lock file; `last_used`: it accepts the inventory last used, as only verbs that
    neither change nor load nodes do; `timeout`: seconds for a node; `gpu_only`: it excludes hosts that are
    not GPU nodes; `word`: the inventory may be a positional argument; `json`: it can print a document."""
    default = "$GPUPROV_INVENTORY, " + (
        "./inventory.yml, or the inventory last used in this folder" if last_used else "or ./inventory.yml"
    )
    parser.set_defaults(inventory=None, lock=None, no_lock=not lock, last_used=last_used, gpu_only=gpu_only)
    if word:
        about = f"any Ansible inventory (default: {default})"
        parser.add_argument("inventory", nargs="?", metavar="INVENTORY", help=about)
    parser.add_argument(
        "-l",
        "--limit",
        "--nodes",
        dest="nodes",
        default="all",
        metavar="PATTERN",
        help="Ansible host pattern: all, gpu-01, rack1:!gpu-07 …, @FILE (node names, one per line)",
    )
    if json:
        add_json(parser)
    rare = parser.add_argument_group(SHARED)
    (rare if word else parser).add_argument(
        "-i",
        "--inventory",
        dest="inventory_option",
        action="append",
        metavar="FILE",
        help="the inventory, as an option (repeatable: Ansible's merging, the last one wins)",
    )
    add_variables(rare, "override a variable on all nodes; the value is YAML (repeatable)")
    add_repeatable(
        rare,
        "--vault-password-file",
        "FILE",
        "file with an Ansible Vault password (repeatable; default: $ANSIBLE_VAULT_PASSWORD_FILE, then "
        "ansible.cfg's)",
    )
    # Login settings for nodes without such settings in the inventory, named as in Ansible.
    add = rare.add_argument
    add("-u", "--user", metavar="NAME", help="log in as this user where the inventory names none")
    add("-k", "--ask-pass", action="store_true", help="ask for the SSH password on the terminal")
    add("-K", "--ask-become-pass", action="store_true", help="ask for sudo's password on the terminal")
    add(
        "--timeout",
        type=seconds,
        default=timeout,
        metavar="S",
        help=f"time limit for each node, in seconds (default {timeout:g})",
    )
    add_count(
        rare,
        "--connections",
        512,
        "maximum concurrent SSH connections; the number in use is tuned automatically",
    )
    if lock:
        where = (
            "require the package versions in this lock file (default: gpuprov.lock.yml beside the inventory)"
        )
        add("--lock", metavar="FILE", help=where)
        add("--no-lock", action="store_true", help="ignore the lock file")


def add_variables(parser: argparse._ActionsContainer, what: str) -> None:
    """Add `--set`, and Ansible's `-e`; both append to `set`, in the order of the command line."""
    add_repeatable(parser, "--set", "KEY=VALUE", what)
    parser.add_argument(
        "-e",
        "--extra-vars",
        dest="set",
        type=extra_vars,
        action="extend",
        metavar="VARS",
        help="the same in Ansible's notation: 'KEY=VALUE KEY=VALUE', '{KEY: VALUE}' or @FILE (repeatable)",
    )


def extra_vars(text: str) -> list[str]:
    """Convert one `-e TEXT` to the form of `--set`: KEY=VALUE with a YAML value.

    As in Ansible, `@FILE` and `{…}` are YAML; other text is words KEY=VALUE, quoted as in a shell. In these,
    numbers, true, false, null, lists and mappings keep their types, and anything else is text. Raises
    UsageError, which names the file but never a value.
    """
    import json
    import shlex
    from pathlib import Path

    from provision import yamlfile

    if text.startswith(("@", "{")):
        where = Path(text[1:]).expanduser() if text[0] == "@" else "-e {…}"
        body = yamlfile.read_text(where, UsageError) if isinstance(where, Path) else text
        if body.startswith("$ANSIBLE_VAULT") or "!vault" in body:
            raise UsageError(
                f"-e: {where} is vaulted, and gpuprov decrypts only what the inventory holds",
                "put it into group_vars, and give --vault-password-file",
            )
        named = yamlfile.parse(body, str(where), UsageError)
        if not isinstance(named, dict):
            raise UsageError(
                f"-e: {where} must be a mapping of names to values", "for example {a: 1, b: two}"
            )
        if odd := [key for key in named if not str(key).isidentifier()]:
            raise UsageError(f"-e: {where}: {odd[0]!r} is no name of a variable", "letters, digits and _")
        return [f"{key}={json.dumps(value, ensure_ascii=False, default=str)}" for key, value in named.items()]
    try:
        words = shlex.split(text)
    except ValueError as trouble:
        raise UsageError(f"-e: a quote is not closed ({trouble})", "quote as in a shell") from None
    if not words or not all(word.partition("=")[0].isidentifier() and "=" in word for word in words):
        raise UsageError(
            "-e takes KEY=VALUE, several of them in quotes, {KEY: VALUE} or @FILE",
            "a value with a space in it needs quotes of its own: -e 'motd=\"two words\"'",
        )
    return [f"{key}={_yaml_of(value)}" for key, _, value in (word.partition("=") for word in words)]


def _yaml_of(value: str) -> str:
    import json

    from provision import yamlfile

    if value.startswith(("[", "{")) and not value.startswith("{{"):
        return value
    try:
        meant = yamlfile.parse(value, "-e", UsageError) if value else ""
    except UsageError:  # `@file` and `%h` are text for Ansible
        meant = ""
    # `0644` and `12.90` would lose digits as numbers.
    number = isinstance(meant, int | float) and json.dumps(meant) == value
    return value if isinstance(meant, bool | None) or number else json.dumps(value, ensure_ascii=False)


def add_count(parser: argparse._ActionsContainer, name: str, default: int, what: str, *short: str) -> None:
    """Add an option that takes a positive integer."""
    parser.add_argument(
        *short, name, type=count, default=default, metavar="N", help=f"{what} (default {default})"
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")


def add_runs(parser: argparse.ArgumentParser) -> None:
    about = "folder of the runs (default: $GPUPROV_RUNS, otherwise the state folder)"
    parser.add_argument("--runs", metavar="DIR", help=about)


def add_resume(parser: argparse.ArgumentParser, what: str) -> None:
    """Add --resume; `what`: the parts of the earlier run that are reused."""
    about = f"continue a run (its folder or name; default: the last run), with its {what}"
    parser.add_argument("--resume", nargs="?", const="", metavar="RUN", help=about)


def add_repeatable(parser: argparse._ActionsContainer, name: str, metavar: str, what: str) -> None:
    """Add an option that may be repeated."""
    parser.add_argument(name, action="append", default=[], metavar=metavar, help=what)


def seconds(text: str) -> float:
    """Parse a positive number of seconds, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError("must be a number of seconds above 0")
    return value


def count(text: str) -> int:
    """Parse a positive integer, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("must be a whole number above 0")
    return int(text)


def overrides(options: argparse.Namespace) -> dict[str, Any]:
    """Return `--set` as a mapping (api.source.overrides)."""
    if not options.set:
        return {}
    from provision.api import source as sources

    return sources.overrides(options.set)


def source(options: argparse.Namespace) -> Source:
    """Return the source that the command line selects. Raises UsageError for a mistake in --set."""
    from pathlib import Path

    from provision.api.source import Source

    if options.lock:
        options.lock = str(Path(options.lock).expanduser().absolute())  # a resumed run may start elsewhere
    return Source(
        inventories=(*filter(None, [options.inventory]), *(options.inventory_option or ())),
        nodes=options.nodes,
        variables=overrides(options),
        vault_password_files=tuple(options.vault_password_file),
        user=options.user or "",
        ask_password=options.ask_pass,
        ask_become_password=options.ask_become_pass,
        lock=options.lock,
        use_lock=not options.no_lock,
        gpu_nodes_only=options.gpu_only,
        last_used=options.last_used,
    )


def loaded(options: argparse.Namespace) -> LoadedFleet:
    """Load the selected nodes, and the overrides left to apply."""
    return loaded_from(source(options))


def loaded_from(chosen: Source) -> LoadedFleet:
    """Load a source's nodes, and the overrides left to apply."""
    from provision import paths
    from provision.api import fleets
    from provision.commands import passwords

    paths.home()  # fails early, with one line, without a home
    return fleets.load(chosen, on_event=Drawn(), ask=passwords.typed)


def settled(options: argparse.Namespace) -> Source:
    """Return the source for a verb that loads it repeatedly, after prompting for passwords."""
    from provision.api import fleets
    from provision.commands import passwords

    return fleets.settled(source(options), passwords.typed)


def load(options: argparse.Namespace) -> tuple[Fleet, dict[str, Any]]:
    """Load the selected nodes as a pair of fleet and overrides."""
    result = loaded(options)
    return result.fleet, result.overrides


def limits(options: argparse.Namespace) -> Limits:
    """Return the limits for observations on the command line."""
    from provision.api.source import Limits

    return Limits(timeout=options.timeout, connections=options.connections)


class Drawn(contextlib.AbstractContextManager["Drawn"]):
    """Display of a use case's events on standard error: progress during work, lines before and after.
    Work nested in other work takes its place."""

    def __init__(self) -> None:
        self._works: list[Progress] = []

    @property
    def total(self) -> int:
        """Return the number of parts of the displayed work."""
        return self._works[-1].total if self._works else 0

    def __exit__(self, *_: object) -> None:
        while self._works:
            self._works.pop().__exit__()

    def __call__(self, event: Event) -> None:
        from provision import events
        from provision.terminal import Progress

        drawn = self._works[-1] if self._works else None
        match event:
            case events.Note(text):
                (drawn.say if drawn else say)(text)
            case events.Began(title, total):
                if drawn:
                    drawn.__exit__()
                self._works.append(Progress(title, total).__enter__())
            case events.Ended():
                self._works.pop().__exit__()
                if self._works:
                    self._works[-1].__enter__()
            case _ if drawn:
                _draw(event, drawn)


def _draw(event: Event, drawn: Progress) -> None:
    from provision import events

    match event:
        case events.Step(text):
            drawn.step(text)
        case events.PartEnded(text):
            drawn.done(text)
        case events.NodeAnswered():
            drawn.done()
        case events.NodeLeftOut(node, why, checks):
            drawn.done(f"{node}: {why}", checks)
        case events.CheckBegan(node, check):
            drawn.at(node, check)
        case events.CheckEnded(node, check, verdict, note):
            outcome = f"{verdict} ({note})" if verdict and note else verdict or note
            drawn.at(node, "")
            drawn.done(f"{node}: {check}: {outcome}")


@contextlib.contextmanager
def progress(title: str, total: int, also: OnEvent = lambda _event: None) -> Iterator[OnEvent]:
    """Show a use case's events: notes, and how many of `total` nodes have answered.
    `also` gets the events as well."""
    from provision.events import Began, Ended

    with Drawn() as draw:
        draw(Began(title, total))

        def both(event: Event) -> None:
            also(event)
            draw(event)

        yield both
        draw(Ended())


def add_break_lock(parser: argparse.ArgumentParser, what: str) -> None:
    """Add --break-lock; `what`: the action on nodes that another run has locked."""
    parser.add_argument(
        "--break-lock", action="store_true", help=f"{what} nodes that another up, validate or burn-in has"
    )


def add_with_jobs(parser: argparse.ArgumentParser) -> None:
    """Add --with-jobs, for verbs that load nodes."""
    parser.add_argument(
        "--with-jobs",
        action="store_true",
        help="also load nodes on which jobs of their scheduler run (gpuprov_scheduler)",
    )


def say_what(fleet: Fleet, *more: str) -> None:
    """Print the inventory, the nodes and `more` to standard error, before a verb starts its work."""
    from provision.node_names import fold
    from provision.text import many

    say(" · ".join([str(fleet.source), fold(fleet.nodes), many(len(fleet.nodes), "node"), *more]))
