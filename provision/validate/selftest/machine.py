"""Observation of the machine under selftest, as `validate` observes a node, without a connection."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Collection, Mapping
from typing import Any

from provision.desired import stack
from provision.errors import GpuprovError
from provision.remote import node_program
from provision.remote.protocol import AnswerError, facts_of, unframed
from provision.runs.node_facts import NodeFacts, node_facts_of

_SECONDS = 60.0  # for all facts together; the program itself gives up on a probe before that


class SelftestError(GpuprovError):
    """The selftest cannot run here, or not as it was asked to."""


def name() -> str:
    """This machine's name, as it may stand in a file's name."""
    kept = [letter if letter.isalnum() or letter in "-._" else "-" for letter in platform.node()]
    return "".join(kept).strip("-.") or "localhost"


def look(facts: Collection[str], declared: Mapping[str, Any]) -> NodeFacts:
    """What a check may know of this machine. Raises SelftestError without GPUs, or when it cannot be read."""
    known, problems = _observed(frozenset(facts))
    if not isinstance(known.get("gpu.count"), int):
        why = problems.get("gpu") or problems.get("gpu.count") or "no answer"
        raise SelftestError(f"the PCI devices could not be read: {why}", "is /sys mounted?")
    node = node_facts_of(name(), known, problems, stack.describe_node(known), declared)
    if not known["gpu.count"]:
        raise SelftestError(
            "no NVIDIA GPU on the PCI bus of this machine",
            "run it on a GPU machine; on one, look at `lspci -d 10de:` and at the GPUs' seats and power",
        )
    return node


def _observed(facts: frozenset[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Run the program that observes nodes, as a node runs it: from its standard input."""
    program = f"{node_program.text_for(facts)}\n\nmain({{'facts': {sorted(facts)!r}}})\n"
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-"],
            input=program.encode(),
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
        return facts_of(unframed(done.stdout), facts)
    except subprocess.TimeoutExpired:
        what = f"this machine could not be observed within {_SECONDS:.0f} s"
        raise SelftestError(what, "the driver may be stuck: look at dmesg") from None
    except AnswerError as error:
        raise SelftestError(f"the observation of this machine failed: {error}", "please report it") from error
