"""The contract of a check: command → parse → judge. Adding a check: docs in CONTRIBUTING.md.

A check is a module with this file's `Check` shape, with its line in provision/checks/judging/table.py. It is
pure: only the playbooks checks.yml and validate.yml touch a node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from provision.checks.judge import Finding, Threshold
from provision.checks.judge import Measurement as Measurement  # own checks import it from here
from provision.node_names import file_name


@dataclass(frozen=True)
class CheckNode:
    """What a check may know of the node it runs on: its name, `gpuprov_node`, and its resolved variables.

    `facts`: what was observed right before the checks, by dotted name (docs/facts.md): the base facts and
    the check's own FACTS. `problems`: why one of them (or its whole family) could not be read.
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
    """One program to run on the node as root. `deadline` in seconds: then it is killed and the check is
    `error`. `load`: the seconds of it that the program was asked to run. `beside`: the name of another
    command of the check; this one runs while that one does and is ended (TERM, then KILL) with it. `port`: of
    one beside another, the TCP port it listens on: the other waits for that. `retry_on`: it is run again
    while it fails with these words, for `retry_for` seconds: a client, while nobody listens yet. `keep`: of
    what it prints only the lines with one of these words are kept, and the first.
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
    """What came back for one Command. `rc` is None when it was killed at its deadline (`timed_out`) or did
    not start (`not_started` says why). One that ran `beside` another was ended with it: its `rc` is then
    that of the signal, and no fault.
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
    """What came back for one check on one node: raw/<node>/<check>.json. `error`: nothing did, and why."""

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
    """Where the raw output of a check lies in the run folder."""
    return f"raw/{file_name(node)}/{check}.json"


# CUDA numbers GPUs by speed by default; gpu3 is to be nvidia-smi's GPU 3 in every check.
BUS_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
KERNEL_LOG_DELTA = "kernel_log_delta"  # the output with the kernel's messages that came while a check ran


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """Which physical GPU `gpu<index>` was, for the person who must pull it."""

    index: int
    name: str
    serial: str
    uuid: str
    pci_address: str


class Check(Protocol):
    """The shape of a check: a module, or an object of what several checks share."""

    @property
    def SUMMARY(self) -> str:  # noqa: N802
        """One sentence for a user."""

    @property
    def NEEDS(self) -> tuple[str, ...]:  # noqa: N802
        """Programs that must be on the node."""

    # One of ours says in `FINDS` what it finds, for README.md and `gpuprov docs`.
    # Scope and stage are in the table of checks; a user's own check states them as SCOPE and STAGE.
    # Optional: `FACTS: tuple[str, ...]`, the observed facts it reads in `node.facts`. They are looked at
    # before the checks; one that gives no command is judged from them alone, and nothing runs for it.

    def commands(self, node: CheckNode, options: Mapping[str, Any]) -> Sequence[Command]:
        """What to run, in order."""

    def parse(self, node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
        """Text → measurements. Raises ParseError on anything not recognised or incomplete."""

    def judge(
        self, node: CheckNode, measurements: Sequence[Measurement], thresholds: Mapping[str, Threshold]
    ) -> list[Finding]:
        """Measurements + thresholds (by "<check>.<metric>") → findings, at least one. Pure."""


INSTALL = "gpuprov up installs what checks need, unless validation_tools_enabled is false"


def completed(outputs: Mapping[str, Output], name: str, install: str = INSTALL) -> Output:
    """The output called `name`, if its program ran to its end. Raises ParseError with what happened
    otherwise. `install`: what to do where it is not installed.
    """
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
    """The value of an observed fact, None when the node does not have it. Raises ParseError with the reason
    when it could not be read.
    """
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
    """The last line a program wrote, to say why it failed: of stderr first when its status says so."""
    streams = [output.stderr, output.stdout] if output.rc else [output.stdout, output.stderr]
    said = next((text.strip() for text in streams if text.strip()), "")
    return said.split("\n")[-1].strip()[:200] if said else f"nothing printed, exit status {output.rc}"
