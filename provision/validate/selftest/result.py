"""The result of a selftest; selftest.json and every view are generated from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from provision import __version__
from provision.checks.judge import Verdict
from provision.errors import ExitCode
from provision.validate.selftest.tools import Tool

FORMAT = 1
PROVEN, NOT_PROVEN, NOT_POSSIBLE = "proven", "not proven", "not possible here"  # stored in selftest.json
NOT_TRIED = "not tried"  # a check that this machine gives no occasion for, or that nobody asked for


@dataclass(frozen=True)
class Checked:
    """One check. `state` is proven when it measured this hardware, whatever its verdict: a fault it found is
    a proof too. `why`: why it is not proven."""

    check: str
    summary: str
    verdict: str
    state: str
    seconds: float = 0.0
    why: str = ""
    findings: Sequence[Mapping[str, str]] = ()


@dataclass(frozen=True)
class Provoked:
    """One condition: what was done, what a check had to name, and what it named."""

    name: str
    done: str
    expected: str
    state: str
    named: str = ""
    why: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Shape:
    """One output beside the simulator's: the element paths, columns or lines that only one of them has."""

    output: str
    argv: Sequence[str]
    same: bool
    why: str = ""  # it could not be compared
    only_here: Sequence[str] = ()
    only_simulated: Sequence[str] = ()


@dataclass
class Result:
    """The whole selftest. `leftovers`: what could not be put back or ended, which a person has to do."""

    host: str
    started: str
    finished: str = ""
    seconds: float = 0.0
    interrupted: bool = False
    stopped: str = ""
    sku: str = ""
    gpus: Sequence[Mapping[str, Any]] = ()
    gpu_count: int = 0
    driver: str = ""
    kernel: str = ""
    os: str = ""
    tools: Sequence[Tool] = ()
    checks: list[Checked] = field(default_factory=list)
    provocations: list[Provoked] = field(default_factory=list)
    changes: list[Provoked] = field(default_factory=list)
    settings_asked: bool = False
    shapes: list[Shape] = field(default_factory=list)
    shapes_why: str = ""
    leftovers: list[str] = field(default_factory=list)
    serials_masked: bool = False
    archive: str = ""

    @property
    def verdict(self) -> Verdict:
        """The worst of it; what was not proven is `error`."""
        verdicts = [Verdict(one.verdict) for one in self.checks]
        if Verdict.FAIL in verdicts:
            return Verdict.FAIL
        unnamed = [one for one in (*self.provocations, *self.changes) if one.state == NOT_PROVEN]
        broken_off = self.interrupted or bool(self.stopped) or not self.checks
        if broken_off or unnamed or self.leftovers or Verdict.ERROR in verdicts:
            return Verdict.ERROR
        return Verdict.WARN if Verdict.WARN in verdicts else Verdict.PASS

    @property
    def code(self) -> ExitCode:
        """0 all proven, 3 the machine is unhealthy, 5 something is not proven, 130 interrupted."""
        if self.interrupted:
            return ExitCode.INTERRUPTED
        codes = {Verdict.FAIL: ExitCode.UNHEALTHY, Verdict.ERROR: ExitCode.INCOMPLETE}
        return codes.get(self.verdict, ExitCode.OK)


def document(result: Result) -> dict[str, Any]:
    """selftest.json."""
    head = {
        "format": FORMAT,
        "gpuprov": __version__,
        "verdict": result.verdict.value,
        "exit_code": int(result.code),
    }
    return {**head, **asdict(result)}
