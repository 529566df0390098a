"""Observation of the machine under selftest, as `validate` observes a node, without a connection."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provision.checks.judging import registry
from provision.checks.judging.node_facts import NodeFacts, node_facts_of
from provision.desired import stack, vendors
from provision.errors import GpuprovError
from provision.paths import PLAYBOOKS
from provision.remote import node_program
from provision.remote.protocol import AnswerError, facts_of, unframed

_SECONDS = 60.0  # for all facts together; the program itself gives up on a probe earlier


class SelftestError(GpuprovError):
    """The selftest cannot run here, or not with these options."""


def _observed(facts: frozenset[str]) -> tuple[Mapping[str, Any], dict[str, str]]:
    """Run the program that observes nodes the way a node runs it, from standard input."""
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


# --- the programs that checks need: their paths on this machine, and how to install or build a missing one


# The search path of the checks' own runner (provision/node/modules/gpuprov_run.py).
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/cuda/bin"
PATH += ":/opt/rocm/bin:/opt/rocm/core/bin"  # the last folder is used by ROCm 7.12 and newer
_BUILT = "`gpuprov up` installs it, role validation_tools; `gpuprov selftest --build` builds it from source"
_COLLECTIVES = ("all_reduce_perf", "all_gather_perf", "reduce_scatter_perf", "alltoall_perf")
_HOW = {
    "nvidia-smi": "it comes with the driver: `gpuprov up`, role nvidia_driver",
    "gpu_burn": _BUILT,
    "nvbandwidth": _BUILT,
    **dict.fromkeys(_COLLECTIVES, _BUILT),
    "ib_write_bw": "install the distribution's package perftest",
    "dcgmi": "install NVIDIA's package datacenter-gpu-manager-4-cuda12 (or -cuda13)",
    "fio": "install the distribution's package fio",
}
_AMD = "`gpuprov up` installs it, role amd_validation_tools"
_OF_AMD = {
    "amd-smi": "it comes with ROCm: `gpuprov up`, role rocm",
    **dict.fromkeys(("rvs", "TransferBench", *_COLLECTIVES), _AMD),
    **{name: _HOW[name] for name in ("ib_write_bw", "fio")},
}
SMI = {"nvidia": "nvidia-smi", "amd": "amd-smi"}  # the one tool that all other data on the GPUs depends on
_ALSO = {"gpu_burn": ("gpu-burn",)}  # names used by distributions
_KERNELS = ("compare.ptx", "compare.fatbin")  # gpu_burn's file until May 2026, and since


@dataclass(frozen=True)
class Tool:
    """One program. `path` is empty if it is not installed; `how` then describes how to get it."""

    name: str
    path: str
    how: str = ""


def variable(tool: str, vendor: str = "nvidia") -> str:
    """Return the inventory variable that holds the tool's path."""
    own = vendor == "amd" and _OF_AMD.get(tool) == _AMD
    return f"{'amd_' if own else ''}validation_tools_{tool.lower()}_path"


@dataclass(frozen=True)
class Machine:
    """The machine under selftest. `path`: search path of its tools; `observe`: reader of its facts."""

    hostname: str = field(default_factory=platform.node)
    is_root: bool = field(default_factory=lambda: os.geteuid() == 0)
    path: str = PATH
    observe: Callable[[frozenset[str]], tuple[Mapping[str, Any], dict[str, str]]] = _observed

    @property
    def name(self) -> str:
        """The host name, made safe for a file name."""
        kept = [letter if letter.isalnum() or letter in "-._" else "-" for letter in self.hostname]
        return "".join(kept).strip("-.") or "localhost"

    def facts(self, asked: Collection[str], declared: Mapping[str, Any]) -> NodeFacts:
        """Return the facts these checks need. Raises SelftestError if they are unreadable or list no GPU."""
        facts, problems = self.observe(registry.facts_for(asked))
        if not isinstance(facts.get("gpu.count"), int):
            why = problems.get("gpu") or problems.get("gpu.count") or "no answer"
            raise SelftestError(f"the PCI devices could not be read: {why}", "is /sys mounted?")
        described = stack.describe_node(facts)
        if not facts["gpu.count"]:
            raise SelftestError(
                "no NVIDIA or AMD Instinct GPU on the PCI bus of this machine",
                "run it on a GPU machine; on one, look at `lspci -d 10de:` or `lspci -d 1002:`, and at the "
                "GPUs' seats and power",
            )
        if vendors.only_observed(described):
            raise SelftestError(vendors.cannot(described, "load"), "run it on a machine with other GPUs")
        if late := registry.facts_of_vendor(asked, described["gpu"]["vendor"]):
            more, unknown = self.observe(late)
            facts, problems = {**facts, **more}, {**problems, **unknown}
        return node_facts_of(self.name, facts, problems, described, declared)

    def find(self, declared: Mapping[str, Any], vendor: str = "nvidia") -> dict[str, Tool]:
        """Return each tool that this vendor's GPUs need, by name, from the variables or else the path."""
        return {
            tool: Tool(tool, path, "" if path else how)
            for tool, how in (_OF_AMD if vendor == "amd" else _HOW).items()
            for path in [self._place(tool, declared, vendor)]
        }

    def _place(self, tool: str, declared: Mapping[str, Any], vendor: str) -> str:
        stated = declared.get(variable(tool, vendor))
        if isinstance(stated, str) and stated:
            return shutil.which(stated) or ""
        names = (tool, *_ALSO.get(tool, ()))
        return next(filter(None, (shutil.which(name, path=self.path) for name in names)), "")


def variables(found: Iterable[Tool], declared: Mapping[str, Any], vendor: str = "nvidia") -> dict[str, Any]:
    """Return the inventory variables for these tools; declared values take precedence."""
    stated: dict[str, Any] = {variable(tool.name, vendor): tool.path for tool in found if tool.path}
    burn = next((tool.path for tool in found if tool.name == "gpu_burn"), "")
    if burn:
        folders = [Path("/usr/share/gpu-burn"), Path(burn).resolve().parent]
        stated["validation_tools_gpu_burn_dir"] = str(
            next((one for one in folders if any((one / name).exists() for name in _KERNELS)), folders[0])
        )
    if any(tool.path for tool in found if tool.name == "dcgmi"):
        stated["validation_tools_dcgm_level"] = 1  # deployment checks only, which take seconds
    return {**stated, **declared}


# --- build of missing tools by the role that builds them on nodes, with this machine as the node


_BUILDING = 900.0
# Tools that the role validation_tools builds; its variables hold the source URLs and SHA-256 sums.
_SOURCES = {
    "gpu_burn",
    "nvbandwidth",
    "all_reduce_perf",
    "all_gather_perf",
    "reduce_scatter_perf",
    "alltoall_perf",
}


def missing(known: Iterable[Tool]) -> list[str]:
    """Return the missing tools that can be built."""
    return [tool.name for tool in known if tool.name in _SOURCES and not tool.path]


def build(node: NodeFacts, declared: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Run the role on this machine; `say` receives the name of each task that begins.

    Raises SelftestError with the failed task's message: an undeclared checksum, a compiler error.
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
        timeout=_BUILDING,
        tags=["validation_tools"],
    )[node.node]
    if done.status != "ok":
        raise SelftestError(
            f"the tools could not be built: {done.task}: {done.message}",
            "correct it, or install the tools and leave out --build",
        )
