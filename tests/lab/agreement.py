"""Compares a plan with the changes that `up` then makes, according to dpkg and boot ids.

gpuprov's observer reads nothing here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jsonschema

from provision import paths
from provision.desired import versions
from provision.errors import ExitCode
from tests.lab.lab_nodes import Lab, LabNode

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((paths.DATA / "schemas" / "plan.schema.json").read_text())
# Packages that a role installs only if the repository has them, which is unknown before it is configured.
PICKED = re.compile(r"nvidia-driver-pinning-")
INSTALL = "DEBIAN_FRONTEND=noninteractive apt-get install -qy --allow-downgrades --allow-change-held-packages"

Gpuprov = Callable[..., "subprocess.CompletedProcess[str]"]


def command(lab: Lab, runs: Path, roles: Sequence[str], **declared: str) -> Gpuprov:
    """Return a function that runs one gpuprov command on the lab with these roles."""
    given = [word for name, value in declared.items() for word in ("--set", f"{name}={value}")]

    def call(verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        words = [verb, str(lab.inventory), "--set", f"gpuprov_roles=[{', '.join(roles)}]", *given, *arguments]
        return subprocess.run(
            [sys.executable, "-m", "provision.cli", *words],
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT), "GPUPROV_RUNS": str(runs)},
        )

    return call


def said(done: subprocess.CompletedProcess[str]) -> str:
    return f"exit {done.returncode}\n--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"


def installed(node: LabNode) -> dict[str, str]:
    """Return dpkg's package → version for all fully installed packages."""
    lines = node.run("dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\\n'").stdout.splitlines()
    return {name: version for state, name, version in map(str.split, lines) if state == "installed"}


def held(node: LabNode) -> set[str]:
    return set(node.run("apt-mark showhold").stdout.split())


def spoil(node: LabNode, command: str) -> None:
    node.run(f"sudo sh -ec {json.dumps(command)}")


class Agreement:
    """Plans, applies and compares. `told`: the actions of each plan, node by node."""

    def __init__(self, lab: Lab, gpuprov: Gpuprov) -> None:
        self._nodes = lab.nodes
        self._gpuprov = gpuprov
        self.states = 0

    def check(self, *arguments: str) -> dict[str, Any]:
        arguments = ("--no-canary", *arguments)
        planned = self._gpuprov("plan", "--json", *arguments)
        assert planned.returncode == ExitCode.OK, said(planned)
        plan = json.loads(planned.stdout)
        jsonschema.validate(plan, SCHEMA)
        before = {node.name: (installed(node), held(node), node.boot_id()) for node in self._nodes}
        done = self._gpuprov("up", "--json", *arguments)
        assert done.returncode == ExitCode.OK, said(done)
        outcomes = json.loads(done.stdout)["nodes"]
        waved = [name for wave in plan["waves"] for name in wave["nodes"]]
        assert sorted(waved) == sorted(name for name, end in outcomes.items() if end["status"] == "done")
        for node in self._nodes:
            told = plan["nodes"][node.name]
            packages, holds, boot = before[node.name]
            assert outcomes[node.name]["roles"] == told["roles"], said(done)
            self._packages(node, told["packages"], packages)
            self._holds(node, told["packages"], holds)
            rebooted = node.boot_id() != boot
            assert told["reboot"] == "may" or rebooted == (told["reboot"] == "yes"), (
                node.name,
                told,
                said(done),
            )
            assert outcomes[node.name]["rebooted"] == rebooted
            if told["as_declared"]:
                assert (installed(node), held(node), rebooted) == (packages, holds, False)
            self.states += 1
        nodes: dict[str, Any] = plan["nodes"]
        return nodes

    def _packages(self, node: LabNode, told: Sequence[dict[str, Any]], before: dict[str, str]) -> None:
        after = installed(node)
        moved = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        promised = {each["name"]: each for each in told if each["change"] in ("install", "replace", "remove")}
        # A half-installed package is not among dpkg's installed ones before, but is afterwards.
        promised |= {
            each["name"]: each for each in told if each["change"] == "repair" and each["name"] not in before
        }
        automatic = set(node.run("apt-mark showauto").stdout.split())
        assert promised.keys() <= moved, f"{node.name}: promised, and did not move: {promised.keys() - moved}"
        unannounced = {name for name in moved - promised.keys() - automatic if not PICKED.match(name)}
        assert not unannounced, f"{node.name}: moved unannounced: {unannounced}"
        for name, each in promised.items():
            if each["change"] != "repair":
                assert each["before"] == before.get(name)
            if each["change"] == "remove":
                assert name not in after
            elif each["after"] is not None:
                assert versions.same(after[name], each["after"]), (node.name, each, after[name])

    def _holds(self, node: LabNode, told: Sequence[dict[str, Any]], before: set[str]) -> None:
        now = held(node)
        promised = {each["name"] for each in told if each["held"]}
        assert promised <= now
        for each in told:
            if each["change"] == "hold":
                assert each["name"] not in before
