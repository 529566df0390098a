"""gpuprov's judgement of each fault in the output of AMD's own amd-smi: right, refused or wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from provision.checks.judge import Finding
from tests.printers import in_service
from tests.printers.amdsmi import AmdSmi, machine_of
from tests.printers.amdsmi_faults import ERROR, FAIL, FAULTS, Fault

RIGHT, REFUSED, WRONG = "right", "refused", "wrong"
# Fault → the exception of some amd-smi releases, and the error that names it: no verdict is possible.
REFUSALS = {
    "one GPU knows no power limit": {
        "UnboundLocalError": "this release of amd-smi ends with an UnboundLocalError",
        "AMDSMI_STATUS_NOT_SUPPORTED": "this release of amd-smi ends with an AmdSmiLibraryException",
    },
    "one GPU knows no link states": {"KeyError": "this release of amd-smi ends with a KeyError"},
}
_UNKNOWN = (FAIL, ERROR)  # for faults that may or may not mean a lost GPU
_RANK = {"pass": 0, "skip": 0, "warn": 1, "error": 2, "fail": 3}


@dataclass(frozen=True)
class Judged:
    """The outcome of one fault, and the findings."""

    fault: str
    outcome: str
    words: str = ""


def judge(fault: Fault, findings: list[Finding]) -> Judged:
    """Compare the worst finding with the expected one."""
    worst = max((one.verdict.value for one in findings), key=_RANK.__getitem__)
    verdict = worst if _RANK[worst] else "pass"
    loud = [one for one in findings if one.verdict.value == worst]
    words = "; ".join(
        f"{one.verdict.value} {one.device} {one.metric} [{one.action}] {one.message}"[:200]
        for one in loud[:2]
    )
    named = not fault.device or fault.device in {one.device for one in loud}
    helps = not fault.actions or {one.action for one in loud} & set(fault.actions)
    if verdict in fault.verdicts and (verdict == "pass" or (named and helps)):
        return Judged(fault.name, RIGHT)
    why = [why for end, why in REFUSALS.get(fault.name, {}).items() if end in words and verdict == "error"]
    return Judged(fault.name, REFUSED, why[0]) if why else Judged(fault.name, WRONG, words)


def judge_all(
    program: AmdSmi, sku: str, release: str, chosen: Callable[[Fault], bool] = lambda _: True
) -> Iterator[Judged]:
    """Judge every fault that applies to the SKU under this release."""
    program.forget()
    healthy = program.inventory(machine_of(sku, release))
    for fault in FAULTS:
        machine = machine_of(sku, release)
        if fault.applies(machine) and chosen(fault):
            fault.change(machine)
            printed = program.inventory(machine, fault.later)
            judged = judge(fault, printed.findings)
            if judged.outcome == RIGHT:
                gone = None if fault.verdicts == _UNKNOWN else "gpu3" if fault.gone else ""
                why = in_service.wrong(healthy, printed, fault.verdicts, gone)
                judged = Judged(fault.name, WRONG, f"in service: {'; '.join(why)}") if why else judged
            yield judged
