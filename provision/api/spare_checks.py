"""What the watch runs: the quick checks of a spare, and of a failed node for the evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from provision.api.apart import Apart
from provision.api.source import Source
from provision.errors import ExitCode
from provision.text import one_line
from provision.up.watch.incidents import Incident
from provision.up.watch.steps import Checked

EVIDENCE_SECONDS = 300.0


@dataclass(frozen=True)
class QuickChecks:
    """A job: the quick stage of `validate` on one node of the inventory as it is then."""

    source: Source
    with_jobs: bool = False

    def run(self) -> Mapping[str, Any]:
        """The run's folder and code, and the worst that was found."""
        from provision.api import fleets, validations

        campaign = validations.Campaign(stage="quick", with_jobs=self.with_jobs)
        result = validations.validate(fleets.load(self.source), campaign)
        (node,) = result.health.nodes
        found = [(check.check, finding) for check in node.checks for finding in check.findings]
        bad = [one for one in found if one[1].verdict in ("fail", "error")]
        first = next((one for one in bad if one[1].verdict == "fail"), bad[0] if bad else None)
        why = f"{first[0]}: {first[1].message}" if first else node.error or f"it is {node.verdict}"
        return {"run": str(result.folder), "code": result.code, "why": why}


@dataclass(frozen=True)
class Evidence:
    """A job: what a vendor asks for of a failed node, packed from the run that measured it."""

    source: Source
    run_folder: str
    target: Path

    def run(self) -> Mapping[str, Any]:
        """The archive."""
        from provision.api import bundles
        from provision.runs import stored_health
        from provision.runs.store import RunFolder

        folder = RunFolder.open(Path(self.run_folder))
        self.target.mkdir(mode=0o700, exist_ok=True)
        health = stored_health.of_run(folder)
        packed = bundles.pack(folder, health, self.source.nodes, self.target, self.source)
        return {"bundle": str(packed.path)}


class SpareChecks:
    """Checks nodes of one inventory, each in a process of its own, with its own run folder and its own locks,
    and a deadline after which it is ended. `folder`: of the watch."""

    def __init__(
        self, source: Source, verify_seconds: float, folder: Path, apart: Apart | None = None
    ) -> None:
        self._source = replace(source, use_lock=True, gpu_nodes_only=True)
        self._seconds, self._folder = verify_seconds, folder
        self._apart = apart or Apart()

    def verify(self, spare: str) -> Checked:
        """Whether a spare may go into service."""
        done = self._apart.run(QuickChecks(replace(self._source, nodes=spare)), self._seconds)
        found = done.found or {}
        run, code = Path(found.get("run", "")).name, found.get("code", done.code)
        if code == ExitCode.OK and not done.late:
            return Checked(True, run=run)
        if self._apart.stopped:
            return Checked(False, "this watch was stopped", again=True)
        if done.late:
            late = f"the check did not end within {self._seconds:g} s"
            return Checked(False, late, run, again=True, elsewhere=True)
        why = one_line(found.get("why", done.error), 300)
        if run and code == ExitCode.UNHEALTHY:
            return Checked(False, why, run)
        # A lock, a full disk, a network that is down: not the spare's fault.
        return Checked(False, why, run, again=True, elsewhere=code == ExitCode.INCOMPLETE)

    def evidence(self, incident: Incident) -> str:
        """Measure the failed node as it is now, and pack what a vendor asks for. Why that did not work."""
        source = replace(self._source, nodes=incident.node)
        done = self._apart.run(QuickChecks(source, with_jobs=True), EVIDENCE_SECONDS)
        if done.found is None:
            return "the measurement did not end in time" if done.late else one_line(done.error, 300)
        packing = Evidence(source, done.found["run"], self._folder / "bundles")
        done = self._apart.run(packing, EVIDENCE_SECONDS)
        if done.found is None:
            return "the packing did not end in time" if done.late else one_line(done.error, 300)
        return ""

    def stop(self) -> None:
        """End what runs."""
        self._apart.stop()
