"""AMD's own amd-smi, run on top of a table of values."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from provision.checks.check import Output, Raw
from provision.checks.judging.node_facts import NodeFacts, node_facts_of
from provision.checks.judging.registry import CHECKS
from provision.desired import stack
from tests.printers import amdsmi_sysfs, amdsmi_values
from tests.printers.amdsmi_faults import Change
from tests.printers.amdsmi_program import find
from tests.printers.amdsmi_values import Machine
from tests.printers.in_service import Printed
from tests.support.checks import make_output

# Release → the Debian suite with that release in its package amd-smi.
RELEASES = {"6.1.2": "trixie", "10.1": "sid"}
GUEST = " guest"  # suffix of a SKU's name: the GPUs are virtual functions
# ROCm release → the SKUs that it introduced.
_SINCE = {
    "6.1": ("mi210", "mi250x", "mi300a", "mi300x", "mi300x guest"),
    "6.3": ("mi325x", "mi325x guest"),
    "7.0": ("mi350x", "mi350x guest", "mi355x", "mi355x guest"),
}
PROGRAM = Path(__file__).with_name("amdsmi_program.py")
# Folders of the command and of the package amdsmi: in Debian's package, and in AMD's source.
FOLDERS = (("usr/libexec/amdsmi_cli", "usr/share/amd_smi/amdsmi"), ("amdsmi_cli", "py-interface"))
_KEPT = 2  # cached outputs per command, the first ones: a fault changes few commands of a healthy machine
_QUIET_LOG = "[    0.000000] Linux version 6.12.0\n"


def skus_of(release: str) -> tuple[str, ...]:
    """Return the SKUs that a release supports."""
    known = [skus for since, skus in _SINCE.items() if amdsmi_values.since(release, since)]
    return tuple(sku for skus in known for sku in skus)


# Release → the SKUs that it supports.
SKUS = {release: skus_of(release) for release in RELEASES}


@dataclass(frozen=True)
class _Printed:
    """A command's output, with the files and library answers that it used."""

    output: Output
    files: dict[str, str]
    calls: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class AmdSmi:
    """One release of the program, run by a server; `place`: a folder for its output."""

    server: subprocess.Popen[str]
    place: Path
    printed: dict[tuple[str, ...], list[_Printed]] = field(default_factory=dict)

    @classmethod
    def start(cls, files: Path, place: Path) -> AmdSmi:
        """Start a server that imports AMD's Python once. `files`: the unpacked package or a source tree."""
        folders = next(pair for pair in FOLDERS if (files / pair[0]).is_dir())
        argv = [sys.executable, str(PROGRAM), *(str(files / folder) for folder in folders)]
        return cls(
            subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True),
            place,
        )

    def stop(self) -> None:
        """End the server by closing its input."""
        self.server.communicate(timeout=20)

    def run(self, machine: Machine, *arguments: str) -> Output:
        """Return the output of `amd-smi ARGUMENTS` on a machine.

        The output depends only on the answers to the program's calls: it runs again only if one differs.
        """
        for known in self.printed.get(arguments, ()):
            if known.files == machine.files and all(
                _answer(machine, call) == answer for call, answer in known.calls.items()
            ):
                return known.output
        printed = self._run(machine, arguments)
        kept = self.printed.setdefault(arguments, [])
        kept.append(printed)
        del kept[_KEPT:]
        return printed.output

    def _run(self, machine: Machine, arguments: tuple[str, ...]) -> _Printed:
        paths = {name: self.place / name for name in ("stdout", "stderr", "calls")}
        request = {"table": machine.rows, "files": machine.files, "argv": arguments}
        request |= {name: str(path) for name, path in paths.items()}
        _stream(self.server.stdin).write(json.dumps(request) + "\n")
        _stream(self.server.stdin).flush()
        status = json.loads(_stream(self.server.stdout).readline())["rc"]
        out, err, calls = (path.read_text(errors="replace") for path in paths.values())
        assert status != 99, f"the table does not fit the library: {err}"
        output = make_output("amd_smi", out, argv=("amd-smi", *arguments), rc=status, stderr=err)
        answers = {call: _answer(machine, call) for call in calls.split("\n")}
        return _Printed(output, dict(machine.files), copy.deepcopy(answers))

    def forget(self) -> None:
        """Clear the cached outputs, before the first machine of another product."""
        self.printed.clear()

    def inventory(self, machine: Machine, later: Change | None = None) -> Printed:
        """Run gpu_inventory on a machine with a quiet kernel log, and return its outputs and judgement."""
        node = node_of(machine)
        outputs = []
        check = CHECKS.of_vendor("gpu_inventory", "amd")
        assert check
        for command in check.commands(node.check_node, {}):
            if command.argv[0] == "amd-smi":
                if command.name.endswith("later") and later:
                    later(machine)
                printed = self.run(machine, *command.argv[1:])
                outputs.append(
                    Output(command.name, command.argv, printed.rc, printed.stdout, printed.stderr, 1.0)
                )
            elif command.name == "dmesg":
                outputs.append(make_output("dmesg", _QUIET_LOG, argv=command.argv))
        return Printed.of(node, Raw(node.node, "gpu_inventory", tuple(outputs)))


def _answer(machine: Machine, call: str) -> dict[str, Any]:
    name, *arguments = call.split()
    return find(machine.rows, name, arguments)


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def node_of(machine: Machine) -> NodeFacts:
    """Return the node as the observers see it without amd-smi."""
    known = amdsmi_sysfs.facts(machine)
    return node_facts_of("gpu-01", known, {}, stack.describe_node(known), {})


def machine_of(sku: str, release: str) -> Machine:
    """Return a healthy machine; `mi300x guest` is a virtual machine with the GPUs of an MI300X board."""
    return amdsmi_values.machine(sku.removesuffix(GUEST), release, guest=sku.endswith(GUEST))


AmdPrinters = Callable[[str], AmdSmi]  # by release
