"""Runner of a check's programs on this machine, judged exactly as `validate` does."""

from __future__ import annotations

import importlib.util
import json
import math
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from provision.checks.check import KERNEL_LOG_DELTA, Command, Raw
from provision.checks.gpu import gpu_burn
from provision.checks.health import CheckResult
from provision.checks.judge import Verdict
from provision.checks.judging import node_judge
from provision.checks.judging.node_facts import NodeFacts
from provision.checks.judging.registry import CHECKS
from provision.paths import MODULES
from provision.validate.plays import node_commands
from provision.validate.selftest.machine import Tool
from provision.validate.selftest.result import NOT_PROVEN, NOT_TRIED, PROVEN, Checked
from provision.validate.selftest.serials import Serials

_CAP = 2 * 1024 * 1024  # bytes kept per stream, as on a node
TIME_OVER = "the selftest's time was over: give it more with --minutes"
_LEAST = 20.0  # seconds that must be left for another check to begin


def runner() -> ModuleType:
    """Load the module that runs programs on nodes, to call it as a library."""
    spec = importlib.util.spec_from_file_location("gpuprov_run_here", MODULES / "gpuprov_run.py")
    if spec is None or spec.loader is None:
        raise ImportError(str(MODULES / "gpuprov_run.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass
class Bench:
    """Context shared by all checks.

    `until`: overall deadline of the checks (time.monotonic); `end`: no condition begins after it; `accused`:
    devices that the check gpu_burn found faulty before anything was provoked."""

    node: NodeFacts
    tools: Mapping[str, Tool]
    archive: Archive
    options: Mapping[str, Any]
    until: float
    end: float = math.inf
    module: ModuleType = field(default_factory=runner)
    accused: set[str] = field(default_factory=set)

    @property
    def vendor(self) -> str:
        """The GPU vendor."""
        return self.node.gpuprov_node["gpu"].get("vendor") or "nvidia"

    def with_variables(self, **variables: Any) -> Bench:
        """Return a copy in which the inventory also declares these variables."""
        return replace(self, node=replace(self.node, variables={**self.node.variables, **variables}))

    def commands(self, check: str, **options: Any) -> list[Command]:
        return node_judge.commands_for(check, self.node.check_node, {**self.options, **options})

    def absent(self, check: str) -> list[Tool]:
        """Return the tools this check needs that are not installed."""
        chosen = CHECKS.of_vendor(check, self.vendor)
        needs = chosen.NEEDS if chosen is not None else ()
        return [self.tools[name] for name in needs if name in self.tools and not self.tools[name].path]

    def run(self, check: str, commands: Sequence[Command], place: str = "checks") -> tuple[Raw, CheckResult]:
        """Run these commands as `check`, archive their output and judge it."""
        boot = str(self.node.facts.get("boot.id") or "")
        raw = Raw(self.node.node, check, boot_id=boot, boot_id_before=boot)
        if commands:
            answer = self._answer(commands)
            names = [*(command.name for command in commands), KERNEL_LOG_DELTA]
            raw = node_judge.raw_from_answer(self.node.node, check, answer, boot, names)
        self.archive.keep(place, raw)
        return raw, node_judge.judge_check(self.node, raw, self.node.limits())

    def _answer(self, commands: Sequence[Command]) -> dict[str, Any]:
        """Build the answer that the module would return from a node."""
        before = self.module.kernel_lines()
        outputs = self.module.run_all([node_commands.plain(command) for command in commands], _CAP)
        outputs.append(self.module.kernel_log_delta(before, _CAP))
        return {"outputs": outputs, "boot_id": self.module.boot_id()}


def one(bench: Bench, check: str) -> tuple[Checked, CheckResult | None]:
    """Run one check as far as this machine and the remaining time allow."""
    summary = CHECKS[check].SUMMARY
    commands = bench.commands(check)
    if commands and (missing := bench.absent(check)):
        why = "; ".join(f"{tool.name} is not installed: {tool.how}" for tool in missing)
        return Checked(check, summary, Verdict.ERROR.value, NOT_PROVEN, why=why), None
    left = bench.until - time.monotonic()
    if commands and left < _LEAST:
        return Checked(check, summary, Verdict.ERROR.value, NOT_PROVEN, why=TIME_OVER), None
    held = [replace(command, deadline=min(command.deadline, left)) for command in commands]
    raw, result = bench.run(check, held)
    if check == gpu_burn.ID:
        bench.accused.update(finding.device for finding in result.wrong)
    checked = _checked(check, summary, raw, result, left)
    if checked.state == NOT_TRIED and (absent := bench.absent(check)):
        checked = replace(checked, why=f"{checked.why}; {absent[0].name} is not installed: {absent[0].how}")
    return checked, result


def _checked(check: str, summary: str, raw: Raw, result: CheckResult, left: float) -> Checked:
    state, why = PROVEN, ""
    verdicts = {finding.verdict for finding in result.findings}
    # A fault on one GPU does not prove another GPU that could not be measured.
    lacking = Verdict.ERROR if Verdict.ERROR in verdicts else result.verdict
    if lacking in (Verdict.ERROR, Verdict.SKIP):
        state = NOT_PROVEN if lacking is Verdict.ERROR else NOT_TRIED
        why = next(f.message for f in result.findings if f.verdict is lacking)
        if any(output.timed_out and output.seconds >= left - 1 for output in raw.outputs):
            why = f"the selftest's time was over ({why}): give it more with --minutes"
    findings = [
        {
            "verdict": finding.verdict.value,
            "device": finding.device,
            "message": finding.message,
            "action": finding.action,
        }
        for finding in result.findings
    ]
    return Checked(check, summary, result.verdict.value, state, round(raw.seconds, 1), why, findings)


# --- the archive: the unchanged output of every program, as a folder and as one file. Each file holds one
# check, in a run folder's format for raw output: arguments, exit status, output and seconds of each program.
# It holds neither their environment nor the declared variables, but the kernel log with the kernel's command
# line. Other users cannot read it, as with a run folder.


FOLDER = "archive"


class Archive:
    """Archive writer; each file is written at once, so that an interrupted selftest keeps its data."""

    def __init__(self, output: Path, *, masked_host: str | None = None) -> None:
        """`masked_host`: mask this host name and every serial number."""
        self.folder = output / FOLDER
        self.folder.mkdir(mode=0o700)
        self._serials = Serials(masked_host) if masked_host is not None else None

    def keep(self, place: str, raw: Raw) -> None:
        """Store the raw output of one check; `place` is its folder in the archive."""
        self.write(f"{place}/{raw.check}.json", {"format": 1, **asdict(raw)})

    def write(self, name: str, document: Mapping[str, Any]) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._serials:
            self._serials.learn_values(document)
            for output in document.get("outputs", ()):
                self._serials.learn(f"{output['stdout']}\n{output['stderr']}")
                self._serials.learn_columns(output["argv"], output["stdout"])
        path.write_text(_text(self.shown(document)), encoding="utf-8")

    def shown(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return a document in the form that may leave this machine."""
        plain: dict[str, Any] = json.loads(json.dumps(document, default=str))
        return self._serials.hidden(plain) if self._serials else plain

    def pack(self) -> Path:
        """Pack the archive into one file next to its folder, masking late-found serials in all of it."""
        if self._serials:
            for path in sorted(self.folder.rglob("*.json")):
                path.write_text(_text(self.shown(json.loads(path.read_text("utf-8")))), encoding="utf-8")
        packed = self.folder.with_suffix(".tar.gz")
        packed.touch(mode=0o600)
        # The output folder's name contains the machine's name.
        inside = "selftest" if self._serials else self.folder.parent.resolve().name
        with tarfile.open(packed, "w:gz") as tar:
            tar.add(self.folder, arcname=inside)
        return packed


def _text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=1) + "\n"
