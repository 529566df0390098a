"""The result of a selftest; selftest.json and every view are generated from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from provision import __version__
from provision.checks.judge import Verdict
from provision.errors import ExitCode
from provision.report import html
from provision.terminal import printable
from provision.text import one_line, spelled
from provision.validate.selftest.machine import Tool

FORMAT = 2  # format 1 also had the shapes of the simulator's outputs
PROVEN, NOT_PROVEN, NOT_POSSIBLE = "proven", "not proven", "not possible here"  # stored in selftest.json
NOT_TRIED = "not tried"  # a check that this machine cannot run or that was not requested


@dataclass(frozen=True)
class Checked:
    """One check, proven if it measured this hardware, whatever its verdict. `why`: if it is not proven."""

    check: str
    summary: str
    verdict: str
    state: str
    seconds: float = 0.0
    why: str = ""
    findings: Sequence[Mapping[str, str]] = ()


@dataclass(frozen=True)
class Provoked:
    """One condition: the action taken, the finding a check had to report, and the one it reported."""

    name: str
    done: str
    expected: str
    state: str
    named: str = ""
    why: str = ""
    seconds: float = 0.0


@dataclass
class Result:
    """The whole selftest. `leftovers`: settings and programs that a person has to restore or end."""

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
    leftovers: list[str] = field(default_factory=list)
    serials_masked: bool = False
    archive: str = ""

    @property
    def verdict(self) -> Verdict:
        """The worst verdict; anything that was not proven counts as `error`."""
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
        """The exit status: 0 all proven, 3 machine unhealthy, 5 something not proven, 130 interrupted."""
        if self.interrupted:
            return ExitCode.INTERRUPTED
        codes = {Verdict.FAIL: ExitCode.UNHEALTHY, Verdict.ERROR: ExitCode.INCOMPLETE}
        return codes.get(self.verdict, ExitCode.OK)


def document(result: Result) -> dict[str, Any]:
    """Build selftest.json."""
    head = {
        "format": FORMAT,
        "gpuprov": __version__,
        "verdict": result.verdict.value,
        "exit_code": int(result.code),
    }
    return {**head, **asdict(result)}


# --- selftest.html, one file that needs no network, rendered from selftest.json alone with its texts escaped;
# and the closing text in the terminal


# The verdict that lends a state its colour and mark.
TONES = {
    PROVEN: Verdict.PASS,
    NOT_PROVEN: Verdict.ERROR,
    NOT_POSSIBLE: Verdict.SKIP,
    NOT_TRIED: Verdict.SKIP,
}


def render(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the page in pieces."""
    checks = document["checks"]
    missing = [tool for tool in document["tools"] if not tool["path"]]
    yield from html.page(
        "selftest.html.j2",
        "selftest.css",
        test=document,
        verdict=Verdict(document["verdict"]),
        verdict_of=Verdict,
        tones=TONES,
        headline=headline(document),
        proven=[one for one in checks if one["state"] == PROVEN],
        conditions=[*document["provocations"], *document["changes"]],
        missing=missing,
        unproven=NOT_PROVEN,
        spelled=spelled,
    )


def headline(document: Mapping[str, Any]) -> str:
    """Return the headline: `12 of 16 checks and 5 of 5 conditions proven on gpu-01`."""
    checks, conditions = document["checks"], [*document["provocations"], *document["changes"]]
    done = [sum(one["state"] == PROVEN for one in rows) for rows in (checks, conditions)]
    sentence = f"{done[0]} of {len(checks)} checks and {done[1]} of {len(conditions)} conditions proven"
    sentence += f" on {document['host']}"
    if document["interrupted"]:
        return f"interrupted: {sentence}"
    return f"stopped: {sentence}" if document["stopped"] else sentence


# --- the closing text in the terminal


def summary(found: Result, output: Path) -> str:
    return printable("\n".join(_lines(found, output)), limit=20_000) + "\n"


def _lines(found: Result, output: Path) -> Iterator[str]:
    yield headline(document(found))
    gpus = f"{found.gpu_count} GPUs ({found.sku or 'unknown SKU'})"
    yield f"  {gpus} · driver {found.driver or 'unknown'} · {found.os} · kernel {found.kernel}"
    yield f"  took {spelled(int(found.seconds))}"
    if found.stopped:
        yield f"  stopped: {one_line(found.stopped, 400)}"
    rows: list[Checked | Provoked] = [*found.checks, *found.provocations, *found.changes]
    for state in (NOT_PROVEN, NOT_POSSIBLE, NOT_TRIED):
        if short := [row for row in rows if row.state == state]:
            yield state
        for row in short:
            yield f"  {row.check if isinstance(row, Checked) else row.name}: {one_line(row.why, 200)}"
    wrong = [
        (one.check, each)
        for one in found.checks
        for each in one.findings
        if each["verdict"] in ("fail", "warn")
    ]
    if wrong:
        yield "found"
    for check, finding in wrong:
        message = one_line(finding["message"], 200)
        yield f"  {finding['verdict']} {check} {finding['device']}: {message}"
    for leftover in found.leftovers:
        yield f"NOT PUT BACK  {one_line(leftover, 400)}"
    yield f"page     {output / 'selftest.html'}"
    yield f"json     {output / 'selftest.json'}"
    yield f"archive  {output / found.archive}{' (partial)' if found.interrupted else ''}"
