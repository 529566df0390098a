"""gpuprov report --bundle NODE: one node's evidence as an archive for its vendor."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from provision.errors import ExitCode, GpuprovError

if TYPE_CHECKING:
    from provision.checks.health import FleetHealth
    from provision.runs.store import RunFolder


def run(folder: RunFolder, fleet: FleetHealth, options: argparse.Namespace) -> ExitCode:
    """Write the archive beside the run's report, or into --output, and say what is in it and what is not."""
    from provision.report import bundle

    node = bundle.find_node(fleet, options.bundle)
    secrets, others, unread = _declared(fleet.inventory, node.node)
    made = bundle.make(folder, fleet, node, secrets, others)
    path = bundle.write(made, Path(options.output).expanduser() if options.output else folder.path)
    if options.json:
        document = {
            "format": 1,
            "bundle": str(path),
            "node": node.node,
            "files": list(made.files),
            "removed": dict(made.removed),
            "notes": [*made.notes, *([unread] if unread else [])],
        }
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
        return ExitCode.OK
    removed = ", ".join(f"{kind} ({count:,})" for kind, count in made.removed.items())
    lines = [
        f"bundle   {path} ({len(made.files)} files)",
        f"removed  {removed or 'nothing was found to remove'}",
    ]
    lines += [
        *made.notes,
        *([unread] if unread else []),
        "Read the archive before you hand it out, README.txt first.",
    ]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return ExitCode.OK


def _declared(source: str, node: str) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """The secret values the inventory gives the node, its other machines' names and addresses, and why there
    are none."""
    from provision.desired import inventory
    from provision.secrets_mask import secrets_of

    path = Path(source)
    unread = "secrets were searched by name and shape only"
    if not source or not path.exists():
        return (), (), f"The inventory {source or 'of the run'} does not exist on this machine: {unread}."
    try:
        fleet = inventory.load(path)
    except GpuprovError as error:
        return (), (), f"The inventory cannot be read ({error.what}): {unread}."
    own = fleet.nodes[node].variables if node in fleet.nodes else {}
    addresses = {str(other.variables.get("ansible_host") or "") for other in fleet.nodes.values()}
    others = {*fleet.nodes, *addresses} - {node, str(own.get("ansible_host"))}
    return secrets_of(own), tuple(sorted(others)), ""
