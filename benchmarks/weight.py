"""The modules that one command enters, a measure of its weight for readers and for Python.

A module counts when one of its functions runs in the command's process; importing it is not enough. Code that
runs on nodes or simulates them does not count, nor do templates. Measured are `drift` and `status` of one
node, and a `validate` of two: once over real SSH and Ansible, where nodes without GPUs end each check at
once, and once of simulated 8-GPU nodes behind the two entry points `observe` and `run_sharded`.

    python -m benchmarks.weight
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.costs import ROOT, FailedError, cost_of, environment

GOALS = {"drift": 55, "status": 40, "validate": 95}
_CODE = str(ROOT / "provision") + os.sep
_OF_MACHINES = "validate/selftest/measure.py"  # imported by simulated machines to load gpuprov_run
_FUNCTION = 1  # the code flag of functions, as opposed to modules and classes


@contextmanager
def entered(modules: set[str]) -> Iterator[None]:
    """Record the modules of which a function runs."""

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        file = code.co_filename
        if event == "call" and code.co_flags & _FUNCTION and file.startswith(_CODE) and file.endswith(".py"):
            modules.add(file.removeprefix(_CODE))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def command(words: list[str]) -> dict[str, Any]:
    """Run gpuprov in this process."""
    from provision import cli

    modules: set[str] = set()
    with entered(modules):
        code = cli.main(words)
    ours = {name for name in modules if not name.startswith("node/")}
    return {"code": int(code), "modules": sorted(ours)}


def simulated(words: list[str]) -> dict[str, Any]:
    """Run gpuprov in this process on two simulated nodes."""
    from benchmarks.detection.machine import Machine
    from provision.checks.check import Command
    from provision.remote.ansible.runner import Event, Outcome
    from provision.remote.reach import partitions
    from provision.remote.reach.observe import Observation
    from provision.validate import validation
    from tests.support.machines import programs

    with ExitStack() as stack:
        machines = {
            name: stack.enter_context(Machine("h100-sxm", name, seed)) for seed, name in enumerate(("a", "b"))
        }

        def observe(_nodes: object, facts: Mapping[str, frozenset[str]], **_: Any) -> dict[str, Observation]:
            return {name: Observation(name, *machines[name].observe(facts[name])) for name in facts}

        def run_sharded(
            _playbook: Path, hosts: Mapping[str, Any], *, on_event: Callable[[Event], None], **_: Any
        ) -> dict[str, Outcome]:
            for name, variables in hosts.items():
                for check, commands in programs(variables).items():
                    answer = machines[name].measure([Command(**one) for one in commands])
                    result = {"gpuprov": json.loads(json.dumps(answer)), "item": check}
                    on_event(Event("ok", name, "", "", result))
            return {name: Outcome(name, "ok") for name in hosts}

        validation.observe = observe  # type: ignore[attr-defined, assignment]
        partitions.run_sharded = run_sharded  # type: ignore[assignment]
        found = command(words)
    found["modules"].remove(_OF_MACHINES)
    return found


def _apart(what: str, folder: Path, *words: str) -> dict[str, Any]:
    """Count modules in a separate process."""
    arguments = [sys.executable, "-m", "benchmarks.weight", what, str(folder / "found.json"), *words]
    done = cost_of(arguments, environment=environment(folder / f"{what}-{words[0]}"))
    if done.code:
        raise FailedError(f"{' '.join(words)}: {done.trouble[-2000:]}")
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


def main() -> None:
    from benchmarks.nodes import fleet

    with tempfile.TemporaryDirectory() as name, fleet(2) as nodes:
        folder = Path(name)
        two = folder / "two"
        two.mkdir()
        inventory = ["--inventory", str(nodes.first(1).inventory(folder, gpuprov_expected_gpus=8))]
        drift = _apart("command", folder, "drift", *inventory)["modules"]
        status = _apart("command", folder, "status", *inventory)["modules"]
        inventory = ["--inventory", str(nodes.inventory(two, gpuprov_expected_gpus=8)), "--nodes", "all"]
        reached = _apart("command", folder, "validate", "--stage", "quick", *inventory)["modules"]
        (folder / "simulated.json").write_text(json.dumps({"all": {"hosts": {"a": {}, "b": {}}}}))
        inventory = ["--inventory", str(folder / "simulated.json"), "--nodes", "all"]
        judged = _apart("simulated", folder, "validate", *inventory)["modules"]
    validate = {*reached, *judged}
    found = {"drift": drift, "status": status, "validate": sorted(validate)}
    for name, modules in found.items():
        print(f"{name}: {len(modules)} modules (goal {GOALS[name]})")
    for name, modules in found.items():
        print(f"\n{name}: {' '.join(modules)}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        counting = {"command": command, "simulated": simulated}[sys.argv[1]]
        Path(sys.argv[2]).write_text(json.dumps(counting(sys.argv[3:])))
    else:
        main()
