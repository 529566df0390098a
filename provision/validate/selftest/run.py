"""The steps of a selftest: observe, check, provoke, change (on request).

Results so far are kept, even if the selftest is interrupted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provision.checks.gpu import gpu_inventory
from provision.checks.health import CheckResult
from provision.checks.judge import Verdict
from provision.checks.judging import registry
from provision.errors import GpuprovError, UsageError
from provision.events import OnEvent, PartEnded, Step, ignore, work
from provision.text import now
from provision.validate.selftest import amd, changes, machine, measure, provocations, result, signals
from provision.validate.selftest.machine import Machine, SelftestError
from provision.validate.selftest.measure import Archive, Bench
from provision.validate.selftest.provocations import Condition
from provision.validate.selftest.result import NOT_POSSIBLE, NOT_PROVEN, Checked, Provoked, Result

_KEPT_BACK = 240.0  # seconds that checks leave for the provocations
_AT_LEAST = 60.0  # seconds for the checks, even if --minutes is lower
_PAGE, _DOCUMENT, _BEFORE = "selftest.html", "selftest.json", "settings-before.json"


@dataclass(frozen=True)
class Settings:
    """Options of the selftest. `declared`: variables as an inventory would declare them."""

    output: Path
    burn_seconds: int = 60
    minutes: float = 20.0
    build: bool = False
    change_settings: bool = False
    mask_serials: bool = False
    declared: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Steps:
    """The steps of a selftest: the checks to run, how one runs, and the conditions and settings to try."""

    machine: Machine = field(default_factory=Machine)
    checks: Callable[[], Collection[str]] = lambda: registry.of_nodes(registry.select("burnin"))
    check: Callable[[Bench, str], tuple[Checked, CheckResult | None]] = measure.one
    conditions: Callable[[str], Iterable[Condition]] = lambda vendor: (
        amd.conditions() if vendor == "amd" else provocations.all_of()
    )
    smi: Callable[[Bench], changes.Smi] = lambda bench: (
        amd.Smi(bench) if bench.vendor == "amd" else changes.NVIDIA
    )
    bench: type[Bench] = Bench


def default_output(on: Machine) -> Path:
    """Return `selftest-<hostname>-<date>T<time>Z` in the current folder, unique per second."""
    return Path(f"selftest-{on.name}-{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%SZ}")


def refuse_early(output: Path, on: Machine) -> None:
    """Raise for anything that would stop the selftest, before a check runs."""
    if not on.is_root:
        raise SelftestError("selftest needs root: it reads the kernel log", "run it with sudo")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(f"{output} exists and is not an empty folder", "give another one with --output")


def run(settings: Settings, on_event: OnEvent = ignore, steps: Steps | None = None) -> Result:
    """Run the whole selftest; the output folder holds all results at the end, interrupted or not."""
    steps = steps or Steps()
    refuse_early(settings.output, steps.machine)
    made = _make(settings.output)
    begun = time.monotonic()
    found = Result(steps.machine.name, now("seconds"), serials_masked=settings.mask_serials)
    found.settings_asked = settings.change_settings
    try:
        hidden = steps.machine.hostname if settings.mask_serials else None
        archive = Archive(settings.output, masked_host=hidden)
    except OSError as error:
        raise _unwritable(settings.output, error) from error
    running, broken = signals.running(), None
    with signals.as_interrupts():
        try:
            _course(settings, steps, found, archive, begun, on_event)
        except KeyboardInterrupt:
            found.interrupted = True
        except (GpuprovError, OSError) as error:  # OSError: a full disk, a closed terminal
            found.stopped = _words(error)
            # A closing terminal sends a signal, and then fails further writes.
            found.interrupted = isinstance(error.__context__, KeyboardInterrupt)
            if not found.checks and not found.interrupted:  # nothing was tried: the error line is enough
                _remove(archive.folder, made)
                raise error if isinstance(error, GpuprovError) else SelftestError(found.stopped) from error
        except Exception as error:  # a bug in gpuprov must lose neither results nor leftovers
            found.stopped, broken = f"a bug in gpuprov: {error!r}", error
        with signals.held_back():
            if found.interrupted or found.stopped:
                signals.end_others(running)
            found.finished, found.seconds = now("seconds"), round(time.monotonic() - begun, 1)
            try:
                _write(settings.output, found, archive)
            except OSError as error:
                raise _unwritable(settings.output, error, found.leftovers) from error
    if broken is not None:
        raise broken
    return found


def _words(error: Exception) -> str:
    if isinstance(error, GpuprovError):
        return "; ".join(filter(None, (error.what, error.fix)))
    return str(error)


def _unwritable(output: Path, error: OSError, leftovers: Sequence[str] = ()) -> UsageError:
    fix = "give another folder with --output"
    return UsageError(f"{output} cannot be written: {error.strerror or error}", "; ".join([*leftovers, fix]))


def _remove(folder: Path, made: Sequence[Path]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        for one in made:
            one.rmdir()


def _make(output: Path) -> list[Path]:
    """Create the folder; return the newly created folders, innermost first. Raises UsageError."""
    new = [folder for folder in (output, *output.parents) if not folder.exists()]
    try:
        output.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{output} cannot be made: {error.strerror}", "give another one with --output"
        ) from error
    return new


def _course(
    settings: Settings, steps: Steps, found: Result, archive: Archive, begun: float, on_event: OnEvent
) -> None:
    checks = list(steps.checks())
    conditions = 5 + (4 if settings.change_settings else 0)
    with work("selftest", len(checks) + conditions, on_event):
        on_event(Step("looking at this machine"))
        bench = _bench(settings, steps, found, archive, begun, checks, on_event)
        _checks(bench, steps, found, checks, on_event)
        _provoke(bench, steps, found, on_event)
        if settings.change_settings:
            _change(bench, steps.smi(bench), found, settings.output, on_event)


def _bench(
    settings: Settings,
    steps: Steps,
    found: Result,
    archive: Archive,
    begun: float,
    asked: list[str],
    on_event: OnEvent,
) -> Bench:
    node = steps.machine.facts(asked, settings.declared)
    gpu = node.gpuprov_node["gpu"]
    vendor = gpu.get("vendor") or "nvidia"
    tools = steps.machine.find(settings.declared, vendor)
    if settings.build and machine.missing(tools.values()):
        if vendor != "nvidia":
            raise SelftestError(
                "--build builds the tools of NVIDIA's GPUs alone",
                next(t.how for t in tools.values() if t.how),
            )
        machine.build(node, settings.declared, lambda task: on_event(Step(f"building tools: {task}")))
        tools = steps.machine.find(settings.declared, vendor)
    node = dataclasses.replace(node, variables=machine.variables(tools.values(), node.variables, vendor))
    found.sku, found.gpu_count = gpu["sku"] or "", gpu["count"]
    loaded = "amdgpu.loaded_version" if vendor == "amd" else "driver.loaded_version"
    found.driver = str(node.facts.get(loaded) or "")
    found.kernel = str(node.facts.get("kernel.release") or "")
    found.os = f"{node.facts.get('os.id', '')} {node.facts.get('os.version_id', '')}".strip()
    found.tools = list(tools.values())
    archive.write("facts.json", {"facts": node.facts, "problems": node.problems, "node": node.gpuprov_node})
    smi = machine.SMI[vendor]
    if not tools[smi].path:
        raise SelftestError(f"{smi} is not installed", tools[smi].how)
    options = {"burn_seconds": settings.burn_seconds, "timeout": None}
    end = begun + 60.0 * settings.minutes
    return steps.bench(node, tools, archive, options, max(begun + _AT_LEAST, end - _KEPT_BACK), end)


def _checks(bench: Bench, steps: Steps, found: Result, asked: list[str], on_event: OnEvent) -> None:
    for name in asked:
        on_event(Step(name))
        checked, judged = steps.check(bench, name)
        found.checks.append(checked)
        if judged is not None and name == gpu_inventory.ID:
            found.gpus = [
                dataclasses.asdict(gpu) for gpu in gpu_inventory.identities(list(judged.measurements))
            ]
            _refuse_used(judged, machine.SMI[bench.vendor])
        on_event(PartEnded(f"{name}: {checked.verdict}{f' ({checked.why})' if checked.why else ''}"))


def _refuse_used(inventory: CheckResult, smi: str) -> None:
    """Refuse GPUs in use: the load would disturb their users, and the users the measurement."""
    listed = [one for one in inventory.measurements if one.metric == "processes"]
    if not listed and inventory.verdict in (Verdict.ERROR, Verdict.FAIL):  # it hangs, or reports nothing
        raise SelftestError(
            f"whether the GPUs are in use is unknown: {smi} listed none", "look at gpu_inventory"
        )
    used = [f"{one.device} by {one.value}" for one in listed if one.value]
    if used:
        raise SelftestError(
            f"GPUs are in use: {'; '.join(used[:4])}", "drain the machine, and run the selftest again"
        )


def _provoke(bench: Bench, steps: Steps, found: Result, on_event: OnEvent) -> None:
    gpu = found.gpu_count - 1
    for condition in steps.conditions(bench.vendor):
        on_event(Step(f"provoking: {condition.name}"))
        provoked = _in_time(bench, condition.name) or provocations.provoke(bench, condition, gpu)
        found.provocations.append(provoked)
        on_event(PartEnded(f"{condition.name}: {provoked.state}"))


def _in_time(bench: Bench, name: str) -> Provoked | None:
    """Return the condition as not proven if time has run out, else None."""
    if time.monotonic() < bench.end:
        return None
    return Provoked(name, "nothing", "", NOT_PROVEN, why=measure.TIME_OVER)


def _change(bench: Bench, smi: changes.Smi, found: Result, output: Path, on_event: OnEvent) -> None:
    gpu = amd.last_with_limit(bench) if bench.vendor == "amd" else found.gpu_count - 1
    before = smi.read(gpu)
    # The old settings, in case the selftest is killed.
    (output / _BEFORE).write_text(json.dumps({"gpu": gpu, **before}, indent=1) + "\n", encoding="utf-8")
    for one in smi.planned(before):
        if isinstance(one, tuple):
            provoked = Provoked(one[0], "nothing", f"gpu{gpu}", NOT_POSSIBLE, why=one[1])
        else:
            on_event(Step(f"changing: {one.name} of gpu{gpu}"))
            put_back = found.leftovers.append
            provoked = _in_time(bench, one.name) or changes.change(bench, one, gpu, put_back, smi)
        found.changes.append(provoked)
        on_event(PartEnded(f"{provoked.name}: {provoked.state}"))


def _write(output: Path, found: Result, archive: Archive) -> None:
    """Write the page, the document, and the archive as one file."""
    packed = archive.folder.with_suffix(".tar.gz")
    found.archive = packed.name
    document = result.document(found)
    archive.write(_DOCUMENT, document)
    archive.pack()
    shown = archive.shown(document)
    (output / _DOCUMENT).write_text(json.dumps(shown, indent=1) + "\n", encoding="utf-8")
    (output / _PAGE).write_text("".join(result.render(shown)), encoding="utf-8")
