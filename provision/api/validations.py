"""Hardware checks on many nodes at once: one run, one health report."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from provision import report
from provision.api.fleets import LoadedFleet, several
from provision.checks import thresholds
from provision.checks.health import FleetHealth
from provision.checks.judging import registry
from provision.checks.judging.registry import PAIRS
from provision.checks.judging.table import STAGES
from provision.desired import variables
from provision.errors import ExitCode, UsageError
from provision.events import ChecksChosen, Note, OnEvent, RunBegan, ignore
from provision.remote.reach import fleet_lock
from provision.remote.reach.observe import Reach
from provision.remote.schedulers import chosen
from provision.report import context
from provision.report import json as json_report
from provision.report.context import Context
from provision.runs.store import RunFolder
from provision.validate import validation
from provision.validate.validation import Settings

FORMATS = ("html", "md", "junit", "json", "nodes")
STANDARD = "standard"


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """Selection and settings of the checks to run.

    `checks`: only these; otherwise those of the `stage` (quick, standard, burnin). `pairs`: also measure
    between pairs of nodes, "suspects" in a few rounds or "all". `group`: also run NCCL over all nodes.

    `burn_seconds`: duration of gpu_burn; `timeout`: seconds for a node's answer and for a program beyond its
    load (None: each check's own); `forks`: concurrent nodes. `thresholds`: a file that overrides or extends
    the shipped ones. `formats`: the reports to write.

    `resume`: folder or name of a run to resume, "" for the last one; it also sets the checks if neither
    `stage` nor `checks` is given. `break_lock`: also measure nodes that another run has locked; `with_jobs`:
    also load nodes on which scheduler jobs run. `deadline`: seconds after which the caller ends the run,
    which limits the lifetime of its locks."""

    checks: str | Sequence[str] = ()
    stage: str = ""
    pairs: str = ""
    group: bool = False
    burn_seconds: int = 60
    timeout: float | None = None
    connections: int = 512
    forks: int = 50
    thresholds: str | Path | None = None
    formats: str | Sequence[str] = FORMATS
    resume: str | None = None
    break_lock: bool = False
    with_jobs: bool = False
    deadline: float | None = None


@dataclass(frozen=True)
class ValidateResult:
    """The health of each node; `folder`: the run folder; `files`: format → written report.
    `code`: exit status of `gpuprov validate`. `context`: data in reports beyond the run's own health."""

    folder: Path
    health: FleetHealth = field(repr=False)
    code: ExitCode
    files: Mapping[str, Path]
    context: Context = field(repr=False)

    def document(self) -> dict[str, Any]:
        """Return the document of `gpuprov validate --json` (data/schemas/report.schema.json)."""
        found: dict[str, Any] = json.loads("".join(json_report.render(self.health)))
        return found


def asked(campaign: Campaign) -> tuple[str, ...]:
    """Return the checks of a campaign in execution order.
    Raises GpuprovError for unknown checks, a run that cannot be resumed, and other unusable values."""
    _refuse_unknown(campaign)
    checks = several(campaign.checks)
    if campaign.resume is not None and not campaign.stage and not checks:
        meta = validation.to_go_on_with(campaign.resume).meta()
        checks = [str(name) for name in meta.get("asked", ())]
    selected = registry.select(campaign.stage or STANDARD, checks)
    stages = {"pairs": campaign.pairs and not registry.of_pairs(selected), "group": campaign.group}
    added = [name for name, one in PAIRS.entries.items() if stages.get(one.stage)]
    thresholds.for_sku(None, _override(campaign))
    return tuple(dict.fromkeys((*selected, *added)))


def _refuse_unknown(campaign: Campaign) -> None:
    """Raise UsageError for values that would otherwise be rejected only after the measurements."""
    choices: list[tuple[str, list[str], Sequence[str]]] = [
        ("stage", [campaign.stage or STANDARD], STAGES),
        ("choice of pairs", [campaign.pairs or "all"], ("suspects", "all")),
        ("report format", several(campaign.formats), tuple(report.FORMATS)),
    ]
    for what, given, valid in choices:
        if unknown := [value for value in given if value not in valid]:
            raise UsageError(f"unknown {what} {unknown[0]!r}", f"give one of {', '.join(valid)}")
    for name in ("burn_seconds", "timeout", "connections", "forks"):
        number = getattr(campaign, name)
        if number is not None and number <= 0:
            raise UsageError(f"{name}={number}", "give a number above 0")


def _override(campaign: Campaign) -> Path | None:
    return Path(campaign.thresholds) if campaign.thresholds else None


def validate(
    loaded: LoadedFleet,
    campaign: Campaign | None = None,
    on_event: OnEvent = ignore,
    *,
    arguments: Mapping[str, Any] | None = None,
) -> ValidateResult:
    """Run the checks on the nodes, judge the measurements, and write reports into a run folder.
    `arguments`: recorded in the folder as those of this run, for resumption on the command line.

    Measurements are stored as they arrive. An interrupt (Ctrl-C, SIGTERM) ends them cleanly and is reported
    in the result; call this in the main thread, the only one that gets signals. Raises GpuprovError,
    including LockedError if another run has locked a node; errors of a single node are in the result."""
    campaign = campaign or Campaign()
    checks = asked(campaign)
    before = validation.to_go_on_with(campaign.resume) if campaign.resume is not None else None
    fleet, overrides = loaded.fleet, loaded.overrides
    if not fleet.nodes:
        raise UsageError("there is no node to validate", "widen --nodes, or add nodes to the inventory")

    def say(line: str) -> None:
        on_event(Note(line))

    variables.check(fleet, overrides, say)
    schedulers = chosen.load(fleet, overrides)
    settings = Settings(
        burn_seconds=campaign.burn_seconds,
        timeout=campaign.timeout,
        forks=campaign.forks,
        every_pair=campaign.pairs == "all",
        override=_override(campaign),
        vault_password_files=fleet.vault_password_files,
        schedulers=None if campaign.with_jobs else schedulers,
    )
    about = _minutes(checks, loaded, settings), bool(registry.of_pairs(checks))
    on_event(ChecksChosen(loaded.nodes, checks, *about))
    held_as = str((before and before.meta().get("lock")) or fleet_lock.fresh_name())
    timeout, connections = campaign.timeout or 60.0, campaign.connections
    limits = timeout, connections, fleet.vault_password_files
    with (
        Reach(fleet.nodes.values(), *limits, persistent=True) as over,  # logins cost most of a quick run
        fleet_lock.alone(
            "validate",
            held_as,
            fleet,
            timeout=timeout,
            connections=connections,
            say=say,
            over=over,
            broken=campaign.break_lock,
            lease=min(fleet_lock.LEASE, campaign.deadline or fleet_lock.LEASE),
        ),
    ):
        folder = validation.open_folder(before, fleet, checks, settings, arguments)
        folder.note(lock=held_as)
        on_event(RunBegan(folder.path))
        health, code = validation.validate(folder, fleet, overrides, checks, settings, over, on_event)
    return reported(folder, health, code, several(campaign.formats))


def reported(
    folder: RunFolder, health: FleetHealth, code: ExitCode, formats: Sequence[str]
) -> ValidateResult:
    """Write the reports of a run and finish it, even if they cannot be written."""
    try:
        extra = context.of_run(folder, health)
        if files := report.write_all(health, folder, formats, extra):
            extra = replace(extra, folder=str(folder.path.absolute()))
    finally:
        folder.note(counts={verdict.value: count for verdict, count in health.counts.items()})
        folder.finish(code)
    return ValidateResult(folder.path, health, code, files, extra)


# Checks that measure nothing unless their variable is set.
_OPTIONAL = {"dcgm_diag": "validation_tools_dcgm_level", "disk_speed": "validation_tools_scratch_dir"}


def _minutes(asked: Sequence[str], loaded: LoadedFleet, settings: Settings) -> int:
    """Estimate the duration in minutes: checks run one by one on each node, on `forks` nodes at a time."""
    from provision.burnin.plan import cost

    nodes = loaded.fleet.nodes.values()
    declared = {*loaded.overrides, *(name for node in nodes for name in node.variables)}
    checks = [one for one in registry.of_nodes(asked) if one not in _OPTIONAL or _OPTIONAL[one] in declared]
    quick = registry.select("quick")  # these only read state and take about equally long
    seconds = sum(cost("gpu_inventory" if one in quick else one) for one in checks) + max(
        0, settings.burn_seconds - 60
    ) * ("gpu_burn" in checks)
    return max(1, round(math.ceil(len(nodes) / settings.forks) * seconds / 60))
