"""The contract of a check: command → parse → judge.

A check is a module of the shape `Check` with a line in provision/checks/judging/table.py. It is pure: only
the playbooks checks.yml and validate.yml touch a node. CONTRIBUTING.md describes how to add one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from provision.checks.judge import Finding, Threshold
from provision.checks.judge import Measurement as Measurement  # re-exported for users' own checks
from provision.node_names import file_name


@dataclass(frozen=True)
class CheckNode:
    """The node as a check sees it: its name, `gpuprov_node` and its resolved variables.

    `facts`: facts observed right before the checks, by dotted name (docs/facts.md): the base facts and the
    check's own FACTS. `problems`: why a fact or its whole family could not be read.
    """

    name: str
    gpuprov_node: Mapping[str, Any]
    variables: Mapping[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)

    @property
    def gpu_count(self) -> int:
        return int(self.gpuprov_node["gpu"]["count"])

    @property
    def sku(self) -> str | None:
        sku = self.gpuprov_node["gpu"]["sku"]
        return None if sku is None else str(sku)


@dataclass(frozen=True)
class Command:
    """One program to run on the node as root.

    `deadline`: seconds until it is killed and the check is `error`; `load`: seconds of load it produces.
    `beside`: name of another command of the check; this one runs in its background and is ended with it
    (TERM, then KILL). `port`: TCP port of a background command, for which the other waits. `retry_on`:
    failure text on which it is retried for `retry_for` seconds, such as that of a client without a server
    yet. `keep`: texts; only the first line of output and lines with one of them are stored.
    """

    name: str
    argv: tuple[str, ...]
    deadline: float
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    load: float = 0.0
    beside: str = ""
    port: int = 0
    retry_on: str = ""
    retry_for: float = 0.0
    keep: tuple[str, ...] = ()


@dataclass(frozen=True)
class Output:
    """The output of one Command.

    `rc`: None if the program was killed at its deadline (`timed_out`) or did not start (`not_started`:
    why). A background command is ended by a signal: its `rc` is that signal's and no fault.
    """

    name: str
    argv: tuple[str, ...]
    rc: int | None
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool = False
    truncated: bool = False
    not_started: str = ""
    beside: str = ""


@dataclass(frozen=True)
class Raw:
    """Outputs of one check on one node, as raw/<node>/<check>.json; `error`: why there are none."""

    node: str
    check: str
    outputs: tuple[Output, ...] = ()
    seconds: float = 0.0
    boot_id: str = ""
    boot_id_before: str = ""
    error: str = ""
    unreachable: bool = False

    @property
    def path(self) -> str:
        return raw_path(self.node, self.check)


def raw_path(node: str, check: str) -> str:
    """Return the path of a check's raw output within the run folder."""
    return f"raw/{file_name(node)}/{check}.json"


# CUDA numbers GPUs by speed by default; with this, gpu3 is nvidia-smi's GPU 3 in every check.
BUS_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
KERNEL_LOG_DELTA = "kernel_log_delta"  # name of the output with the kernel messages logged during a check


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """Identity of the physical GPU behind `gpu<index>`, for the technician who replaces it."""

    index: int
    name: str
    serial: str
    uuid: str
    pci_address: str


class Check(Protocol):
    """The interface of a check, implemented by a module or by an object shared by several checks."""

    @property
    def SUMMARY(self) -> str:  # noqa: N802
        """One sentence about the check, for users."""

    @property
    def NEEDS(self) -> tuple[str, ...]:  # noqa: N802
        """Programs that the node must have."""

    # Built-in checks state in `FINDS` which faults they find, for docs/validate.md and `gpuprov docs`, and
    # have scope and stage in the table of checks; a user's own check declares SCOPE and STAGE.
    # Optional: `FACTS: tuple[str, ...]`, the observed facts that it reads from `node.facts`. They are
    # collected before the checks; a check without commands is judged from them alone.

    def commands(self, node: CheckNode, options: Mapping[str, Any]) -> Sequence[Command]:
        """Return the commands to run, in order."""

    def parse(self, node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
        """Parse the outputs into measurements; raise ParseError on unrecognised or incomplete text."""

    def judge(
        self, node: CheckNode, measurements: Sequence[Measurement], thresholds: Mapping[str, Threshold]
    ) -> list[Finding]:
        """Judge measurements by thresholds ("<check>.<metric>") and return at least one finding; pure."""


INSTALL = "gpuprov up installs what checks need, unless validation_tools_enabled is false"


def completed(outputs: Mapping[str, Output], name: str, install: str = INSTALL) -> Output:
    """Return a finished program's output or raise ParseError; `install`: advice if it is not installed."""
    from provision.errors import ParseError

    output = outputs.get(name)
    if output is None:
        raise ParseError(f"the output of {name} is missing", "run the check again")
    program = output.argv[0].rsplit("/", 1)[-1]
    if output.not_started:
        raise ParseError(f"{program} did not start: {output.not_started}", install)
    if output.timed_out:
        raise ParseError(
            f"{program} did not end within {output.seconds:.0f} s and was killed",
            "the driver may be stuck: look at the kernel log, drain the node and reboot it",
        )
    return output


def fact(node: CheckNode, name: str) -> Any:
    """Return an observed fact, None if the node lacks it; raise ParseError if it could not be read."""
    from provision.errors import ParseError

    if name in node.facts:
        return node.facts[name]
    family = name.partition(".")[0]
    why = node.problems.get(name) or node.problems.get(name.rpartition(".")[0]) or node.problems.get(family)
    raise ParseError(
        f"{name} could not be read: {why or 'the node did not answer it'}",
        "run the check again; as root, when permission was missing",
    )


def last_words(output: Output) -> str:
    """Return the last line a program wrote: of stderr first if it failed, else of stdout first."""
    streams = [output.stderr, output.stdout] if output.rc else [output.stdout, output.stderr]
    printed = next((text.strip() for text in streams if text.strip()), "")
    return printed.split("\n")[-1].strip()[:200] if printed else f"nothing printed, exit status {output.rc}"
