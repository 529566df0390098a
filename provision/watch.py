"""An assessment with its progress shown: what `plan` and `drift` begin with."""

from __future__ import annotations

import argparse

from provision import assess as assessing
from provision.assess import Assessment
from provision.commands import fleet_options
from provision.observe import Observation
from provision.terminal import Progress


def assess(options: argparse.Namespace, title: str) -> Assessment:
    """Load the fleet the options name and look at it. Nodes in trouble are said as they come."""
    fleet, overrides = fleet_options.load(options)
    with Progress(title, total=len(fleet.nodes)) as progress:

        def note(observation: Observation) -> None:
            progress.done(f"{observation.node}: {observation.error}" if observation.error else "")

        return assessing.assess(
            fleet, overrides, timeout=options.timeout, connections=options.connections, on_done=note
        )
