"""What a report tells beyond the health of one run, read from its run folder and from those before it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from provision import campaign, verdict_history
from provision.checks import telemetry, telemetry_series
from provision.errors import GpuprovError
from provision.health import FleetHealth, NodeHealth
from provision.report.causes import worst_first
from provision.report.context import Context, Load
from provision.store import RunFolder

# A report must not take longer for its plots than for everything else: these many nodes' samples are read,
# and of a GPU as many samples kept as a plot has room for.
_NODES = 16
_SAMPLES = 160


def read(folder: RunFolder, fleet: FleetHealth) -> Context:
    """The context of a stored run. Whatever of it cannot be read is left out, never an error."""
    sampled = [node for node in worst_first(fleet) if any(True for _ in _sampled(node))]
    loads = {node.node: tuple(_loads(folder, node)) for node in sampled[:_NODES]}
    return Context(
        earlier=verdict_history.earlier(folder, fleet),
        loads={name: found for name, found in loads.items() if found},
        not_read=tuple(node.node for node in sampled[_NODES:]),
    )


def _sampled(node: NodeHealth) -> Iterator[str]:
    """The checks that sampled this node's GPUs under load."""
    for check in node.checks:
        if any(row.metric == "samples" for row in check.measurements):
            yield check.check


def _loads(folder: RunFolder, node: NodeHealth) -> Iterator[Load]:
    for check in _sampled(node):
        with contextlib.suppress(GpuprovError):  # what cannot be read again is told by the check's findings
            raw = campaign.read_raw(folder, node.node, check)
            output = next((o for o in raw.outputs if o.name == telemetry.NAME), None) if raw else None
            if raw is not None and output is not None:
                series = telemetry_series.series(output)
                thin = {device: one.thinned(_SAMPLES) for device, one in series.items()}
                yield Load(check, raw.path, thin)
