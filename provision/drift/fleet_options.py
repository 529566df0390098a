"""The options of every command that works on a fleet, and its first steps: load the fleet, observe it."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from provision.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Unpack

    from provision.drift.assess import Assessment, LookOptions
    from provision.fleet import Fleet


def add_arguments(parser: argparse.ArgumentParser, *, lock: bool = True) -> None:
    """`lock`: whether the verb holds nodes to a lock file."""
    # A verb may give one of these a meaning of its own by defining it again afterwards.
    parser.conflict_handler = "resolve"
    parser.add_argument(
        "inventory",
        nargs="?",
        metavar="INVENTORY",
        help="any Ansible inventory (default: $GPUPROV_INVENTORY, ./inventory.yml, or the inventory last "
        "used in this folder)",
    )
    parser.add_argument(
        "--inventory", dest="inventory_option", metavar="FILE", help="the inventory, as an option"
    )
    parser.add_argument(
        "--nodes",
        default="all",
        metavar="PATTERN",
        help="Ansible host pattern: all, gpu-01, rack1:!gpu-07 …, @FILE (node names, one per line)",
    )
    add_repeatable(
        parser, "--set", "KEY=VALUE", "override a variable on all nodes; the value is YAML (repeatable)"
    )
    add_repeatable(
        parser,
        "--vault-password-file",
        "FILE",
        "file with an Ansible Vault password (repeatable; default: $ANSIBLE_VAULT_PASSWORD_FILE)",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=60.0,
        metavar="S",
        help="time limit for each node, in seconds (default 60)",
    )
    add_count(
        parser,
        "--connections",
        512,
        "maximum concurrent SSH connections; the number in use is tuned automatically",
    )
    parser.set_defaults(lock=None, no_lock=not lock)
    if lock:
        where = (
            "require the package versions in this lock file (default: gpuprov.lock.yml beside the inventory)"
        )
        parser.add_argument("--lock", metavar="FILE", help=where)
        parser.add_argument("--no-lock", action="store_true", help="ignore the lock file")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")


def add_count(parser: argparse.ArgumentParser, name: str, default: int, what: str) -> None:
    """An option that takes a whole number above 0."""
    parser.add_argument(name, type=count, default=default, metavar="N", help=f"{what} (default {default})")


def add_repeatable(parser: argparse.ArgumentParser, name: str, metavar: str, what: str) -> None:
    """An option that may be given several times."""
    parser.add_argument(name, action="append", default=[], metavar=metavar, help=what)


def seconds(text: str) -> float:
    """A number of seconds above 0, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError("must be a number of seconds above 0")
    return value


def count(text: str) -> int:
    """A whole number above 0, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("must be a whole number above 0")
    return int(text)


def vault_password_files(options: argparse.Namespace) -> tuple[Path, ...]:
    """The vault password files given, or the one Ansible's own environment variable names."""
    from pathlib import Path

    named = options.vault_password_file or [os.environ.get("ANSIBLE_VAULT_PASSWORD_FILE")]
    return tuple(Path(name).expanduser() for name in named if name)


def overrides(options: argparse.Namespace) -> dict[str, Any]:
    """`--set KEY=VALUE` as a mapping; values are YAML, except that text variables take the text as it stands.

    (`--set cuda_toolkit_version=12.9` means the version, not a number.) Raises UsageError for anything else.
    """
    from provision import yamlfile
    from provision.desired import variables

    found: dict[str, Any] = {}
    for text in options.set:
        key, sign, value = text.partition("=")
        if not sign or not key.isidentifier():
            raise UsageError(f"--set {text}: must be KEY=VALUE, with a variable name before the =", "")
        if not value:
            raise UsageError(
                f"--set {text}: no value", f"for empty text: --set {key}='\"\"', for nothing: {key}=null"
            )
        found[key] = yamlfile.parse(value, f"--set {key}", UsageError)
        if variables.is_text(key) and found[key] is not None and not isinstance(found[key], str):
            found[key] = value
    return found


def load(options: argparse.Namespace) -> tuple[Fleet, dict[str, Any]]:
    """The chosen nodes, held to their lock file, with their connection variables and gpuprov's own rendered;
    and the overrides that are left to apply."""
    from pathlib import Path

    from provision.desired import inventory, lockfile
    from provision.desired.templating import resolve
    from provision.remote import workers

    chosen = overrides(options)
    source = inventory.find(options.inventory, options.inventory_option)
    fleet = inventory.load(source, vault_password_files(options))
    inventory.remember(source)
    if options.lock:
        options.lock = str(Path(options.lock).expanduser().absolute())  # a resumed run may start elsewhere
    fleet = lockfile.held(fleet, options.lock, ignored=options.no_lock)
    fleet, others = workers.apart(fleet)
    fleet = resolve.reachable(inventory.select(fleet, options.nodes), chosen)
    chosen = resolve.without_templates(chosen)
    return workers.linked(fleet, resolve.reachable(others, {}), chosen), chosen


def assess(options: argparse.Namespace, title: str, **more: Unpack[LookOptions]) -> Assessment:
    """Load the fleet and look at it, with progress shown. Nodes in trouble are said as they come."""
    from provision.drift import assess as assessing

    fleet, chosen = load(options)
    more |= {"timeout": options.timeout, "connections": options.connections}
    return assessing.with_progress(title, fleet, chosen, **more)
