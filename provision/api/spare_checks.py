"""Jobs of the watch: quick checks of a spare, and of a failed node as evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from provision.api.apart import GRACE, Apart
from provision.api.source import Source
from provision.errors import ExitCode
from provision.text import one_line
from provision.up.watch.incidents import Incident
from provision.up.watch.steps import Checked

EVIDENCE_SECONDS = 300.0


@dataclass(frozen=True)
class QuickChecks:
    """Job that runs the quick stage of `validate` on one node of the current inventory.

    `seconds`: time limit; if its controller dies, the node stays locked for little longer."""

    source: Source
    seconds: float
    with_jobs: bool = False

    def run(self) -> Mapping[str, Any]:
        """Return the run's folder and exit code, and the worst finding."""
        from provision.api import fleets, validations

        campaign = validations.Campaign(
            stage="quick", with_jobs=self.with_jobs, deadline=self.seconds + 2 * GRACE
        )
        result = validations.validate(fleets.load(self.source), campaign)
        (node,) = result.health.nodes
        findings = [(check.check, finding) for check in node.checks for finding in check.findings]
        bad = [one for one in findings if one[1].verdict in ("fail", "error")]
        first = next((one for one in bad if one[1].verdict == "fail"), bad[0] if bad else None)
        why = f"{first[0]}: {first[1].message}" if first else node.error or f"it is {node.verdict}"
        return {"run": str(result.folder), "code": result.code, "why": why}


@dataclass(frozen=True)
class Evidence:
    """Job that packs the data a vendor needs about a failed node, from the run that measured it."""

    source: Source
    run_folder: str
    target: Path

    def run(self) -> Mapping[str, Any]:
        """Return the path of the archive."""
        from provision.api import bundles
        from provision.runs import stored_health
        from provision.runs.store import RunFolder

        folder = RunFolder.open(Path(self.run_folder))
        self.target.mkdir(mode=0o700, exist_ok=True)
        health = stored_health.of_run(folder)
        packed = bundles.pack(folder, health, self.source.nodes, self.target, self.source)
        return {"bundle": str(packed.path)}


class SpareChecks:
    """Checker of single nodes in separate processes, each with a run folder, locks and a deadline.
    `folder`: of the watch."""

    def __init__(
        self, source: Source, verify_seconds: float, folder: Path, apart: Apart | None = None
    ) -> None:
        self._source = replace(source, use_lock=True, gpu_nodes_only=True)
        self._seconds, self._folder = verify_seconds, folder
        self._apart = apart or Apart()

    def verify(self, spare: str) -> Checked:
        """Check whether a spare may go into service."""
        done = self._apart.run(QuickChecks(replace(self._source, nodes=spare), self._seconds), self._seconds)
        result = done.found or {}
        run, code = Path(result.get("run", "")).name, result.get("code", done.code)
        if code == ExitCode.OK and not done.late:
            return Checked(True, run=run)
        if self._apart.stopped:
            return Checked(False, "this watch was stopped", again=True)
        if done.late:
            late = f"the check did not end within {self._seconds:g} s"
            return Checked(False, late, run, again=True, elsewhere=True)
        why = one_line(result.get("why", done.error), 300)
        if run and code == ExitCode.UNHEALTHY:
            return Checked(False, why, run)
        # A lock, a full disk or a network failure: not the spare's fault.
        return Checked(False, why, run, again=True, elsewhere=code == ExitCode.INCOMPLETE)

    def evidence(self, incident: Incident) -> str:
        """Measure the failed node and pack the data for its vendor; return the error, or ""."""
        source = replace(self._source, nodes=incident.node)
        done = self._apart.run(QuickChecks(source, EVIDENCE_SECONDS, with_jobs=True), EVIDENCE_SECONDS)
        if done.found is None:
            return "the measurement did not end in time" if done.late else one_line(done.error, 300)
        packing = Evidence(source, done.found["run"], self._folder / "bundles")
        done = self._apart.run(packing, EVIDENCE_SECONDS)
        if done.found is None:
            return "the packing did not end in time" if done.late else one_line(done.error, 300)
        return ""

    def stop(self) -> None:
        """End running checks."""
        self._apart.stop()
