"""Build of missing tools by the role that builds them on nodes, with this machine as the node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from provision.paths import PLAYBOOKS
from provision.runs.node_facts import NodeFacts
from provision.validate.selftest.machine import SelftestError
from provision.validate.selftest.tools import Tool

_SECONDS = 900.0
# What the role validation_tools builds: its variables say from where, and with which SHA-256.
_SOURCES = {
    "gpu_burn",
    "nvbandwidth",
    "all_reduce_perf",
    "all_gather_perf",
    "reduce_scatter_perf",
    "alltoall_perf",
}


def missing(known: Iterable[Tool]) -> list[str]:
    """The tools that can be built and are not here."""
    return [tool.name for tool in known if tool.name in _SOURCES and not tool.path]


def build(node: NodeFacts, declared: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Run the role on this machine; `say` is told each task that begins.

    Raises SelftestError with the words of the task that failed: a checksum that is not declared, a
    compiler's line.
    """
    from provision.remote.ansible.runner import run_playbook

    variables = {
        **declared,
        "ansible_connection": "local",
        "gpuprov_node": node.gpuprov_node,
        "gpuprov_roles": ["validation_tools"],
        "validation_tools_method": "source",
    }
    done = run_playbook(
        PLAYBOOKS / "up.yml",
        {node.node: variables},
        on_event=lambda event: say(event.task) if event.kind == "started" else None,
        timeout=_SECONDS,
        tags=["validation_tools"],
    )[node.node]
    if done.status != "ok":
        raise SelftestError(
            f"the tools could not be built: {done.task}: {done.message}",
            "correct it, or install the tools and leave out --build",
        )
