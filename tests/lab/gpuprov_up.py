"""Runner for gpuprov on lab nodes as an operator runs it, and parser of its output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]


class Operator:
    """One inventory and its folder of runs."""

    def __init__(self, inventory: Path, runs: Path) -> None:
        self.inventory = inventory
        self.runs = runs

    def call(
        self, verb: str, *arguments: str, timeout: int = 600, **variables: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run `gpuprov VERB` with `--set` for each variable, and return the finished process."""
        return subprocess.run(
            self._words(verb, arguments, variables),
            capture_output=True, text=True, timeout=timeout, check=False, env=self._environment,
        )  # fmt: skip

    def bare(self, *words: str, timeout: int = 60) -> subprocess.CompletedProcess[str]:
        """Run a gpuprov command that takes no inventory, and return the finished process."""
        return subprocess.run(
            [sys.executable, "-m", "provision.cli", *words],
            capture_output=True, text=True, timeout=timeout, check=False, env=self._environment,
        )  # fmt: skip

    def began(
        self, verb: str, *arguments: str, out: IO[str] | None = None, **variables: Any
    ) -> subprocess.Popen[str]:
        """Start `gpuprov VERB`, with stdout and stderr merged into a file (`out`) or a pipe."""
        return subprocess.Popen(
            self._words(verb, arguments, variables),
            stdout=out or subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self._environment,
        )  # fmt: skip

    def _words(self, verb: str, arguments: tuple[str, ...], variables: dict[str, Any]) -> list[str]:
        chosen = [
            word for name, value in variables.items() for word in ("--set", f"{name}={json.dumps(value)}")
        ]
        where = [] if "--resume" in arguments else [str(self.inventory)]
        if verb == "return":  # its positional argument is a node
            where = ["--inventory", *where]
        has_verbs = verb in ("burnin", "watch") and bool(arguments) and not arguments[0].startswith("-")
        act = arguments[:1] if has_verbs else ()
        rest = arguments[len(act) :]
        return [sys.executable, "-m", "provision.cli", verb, *act, *where, *rest, *chosen]

    def newest(self, verb: str = "up") -> Path:
        """Return the run folder of this verb's last run."""
        return max(self.runs.glob(f"*-{verb}"))

    def records(self, name: str) -> list[dict[str, Any]]:
        """Return the records of the last `up`, such as events, outcomes or boots."""
        file = self.newest() / f"{name}.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), "GPUPROV_RUNS": str(self.runs), "COLUMNS": "4000"}

    def drifted(self, **variables: Any) -> dict[str, Any]:
        """Return fact → drift from `drift --json`."""
        done = self.call("drift", "--json", **variables)
        return {drift["fact"]: drift for drift in json.loads(done.stdout)["drifts"]}


def flagged(done: subprocess.CompletedProcess[str], *spared: str) -> set[tuple[str, str, str]]:
    """Return (check, device, verdict) of the findings of `validate --json` on one node.
    Passes and the verdicts `spared` are left out."""
    assert done.stdout.strip(), done.stderr
    (node,) = json.loads(done.stdout)["nodes"]
    return {
        (check["check"], finding["device"], finding["verdict"])
        for check in node["checks"]
        for finding in check["findings"]
        if finding["verdict"] not in ("pass", *spared)
    }


def said(done: subprocess.CompletedProcess[str]) -> str:
    """Return all output of a process with white space collapsed."""
    return " ".join((done.stdout + done.stderr).split())
