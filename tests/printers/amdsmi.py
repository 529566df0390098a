"""AMD's own amd-smi, run above a table of values."""

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

# Release → the suite of Debian that has it, in its package amd-smi.
RELEASES = {"6.1.2": "trixie", "10.1": "sid"}
GUEST = " guest"  # of a SKU's name: the GPUs are virtual functions
# ROCm of that number → the SKUs that are new with it.
_SINCE = {
    "6.1": ("mi210", "mi250x", "mi300a", "mi300x", "mi300x guest"),
    "6.3": ("mi325x", "mi325x guest"),
    "7.0": ("mi350x", "mi350x guest", "mi355x", "mi355x guest"),
}
PROGRAM = Path(__file__).with_name("amdsmi_program.py")
# Of the command and of the package amdsmi: in Debian's package, and in AMD's source.
FOLDERS = (("usr/libexec/amdsmi_cli", "usr/share/amd_smi/amdsmi"), ("amdsmi_cli", "py-interface"))
_KEPT = 2  # the first outputs of each command: faults change few commands of a healthy machine
_QUIET_LOG = "[    0.000000] Linux version 6.12.0\n"


def skus_of(release: str) -> tuple[str, ...]:
    """The SKUs that a release knows."""
    known = [skus for since, skus in _SINCE.items() if amdsmi_values.since(release, since)]
    return tuple(sku for skus in known for sku in skus)


# Release → the SKUs that it knows.
SKUS = {release: skus_of(release) for release in RELEASES}


@dataclass(frozen=True)
class _Printed:
    """What a command printed, by the files and the answers of the library that it looked at."""

    output: Output
    files: dict[str, str]
    calls: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class AmdSmi:
    """One release of the program, which a server runs; `place`: a folder for what it prints."""

    server: subprocess.Popen[str]
    place: Path
    printed: dict[tuple[str, ...], list[_Printed]] = field(default_factory=dict)

    @classmethod
    def start(cls, files: Path, place: Path) -> AmdSmi:
        """Import AMD's Python once. `files`: the unpacked package, or the source of a release."""
        folders = next(pair for pair in FOLDERS if (files / pair[0]).is_dir())
        argv = [sys.executable, str(PROGRAM), *(str(files / folder) for folder in folders)]
        return cls(
            subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True),
            place,
        )

    def stop(self) -> None:
        """End the server: its input ends."""
        self.server.communicate(timeout=20)

    def run(self, machine: Machine, *arguments: str) -> Output:
        """What `amd-smi ARGUMENTS` prints on a machine.

        The program is run again when one of its calls is answered in another way: it depends on nothing else.
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
        """Forget what commands printed, before the first machine of another product."""
        self.printed.clear()

    def inventory(self, machine: Machine, later: Change | None = None) -> Printed:
        """What gpu_inventory gets of a machine with a quiet kernel log, and makes of it."""
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
    """The node as the observers find it without amd-smi."""
    known = amdsmi_sysfs.facts(machine)
    return node_facts_of("gpu-01", known, {}, stack.describe_node(known), {})


def machine_of(sku: str, release: str) -> Machine:
    """A healthy machine; `mi300x guest` is one that a hypervisor gave the GPUs of an MI300X board."""
    return amdsmi_values.machine(sku.removesuffix(GUEST), release, guest=sku.endswith(GUEST))


AmdPrinters = Callable[[str], AmdSmi]  # by release
