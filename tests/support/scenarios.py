"""Scenarios for every check: its samples as the output of its commands, with the resulting verdict.

Samples are discovered, not listed, so a new check is covered as soon as it is registered. A sample named
after a command (`journal-xids.txt`, `nvlink-h100.txt`) is output of that command; any other may be output of
any command. A sample `*.stderr.txt` is a program's standard error before it exited with status 1. Samples of
facts (`*.json` with the key `facts`) hold a node's observed facts and its variables; outputs are tried on the
nodes of `facts-healthy*`.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from provision.checks.check import CheckNode, Output
from provision.checks.judge import ACTIONS, Verdict, worst
from provision.checks.judging.registry import CHECKS
from provision.checks.thresholds import Threshold, for_sku
from provision.desired.skus import all_skus
from provision.errors import ParseError

FIXTURES = Path(__file__).parent.parent / "fixtures"
# The samples of checks for AMD only are tested in tests/checks/test_amd_acceptance.py.
ON_NVIDIA = [name for name, entry in CHECKS.entries.items() if entry.load_for("nvidia")]

# (GPUs, SKU, fabric, architecture) of the machines that the samples come from.
_MACHINES: tuple[tuple[int, str | None, str, str], ...] = (
    (8, "h100-sxm", "nvswitch", "hopper"),
    (4, "h100-sxm", "nvswitch", "hopper"),
    (2, "h100-sxm", "nvswitch", "hopper"),
    (1, "h100-sxm", "none", "hopper"),
    (7, "h100-sxm", "nvswitch", "hopper"),
    (4, "a100-sxm-80", "nvswitch", "ampere"),
    (1, None, "none", "turing"),
)

# Programs with unread output: a server for another program, and a clean-up.
UNREAD = re.compile(r".*\.server|removed")

# No SKU has limits for a disk: a site that declares a folder declares its limits, too.
_DISK = {
    f"disk_speed.{way}": Threshold(f"disk_speed.{way}", limit, "MB/s", "at_least", "the site", "measured")
    for way, limit in (("write", 1000), ("read", 2000))
}


def limits_of(node: CheckNode) -> dict[str, Threshold]:
    return {**for_sku(node.sku), **_DISK}


@dataclass(frozen=True)
class Scenario:
    """One node's answer to one check. `sample`: its file; `verdict`: the resulting verdict.
    `seconds`: the time that judging takes."""

    check: str
    sample: str
    node: CheckNode
    outputs: tuple[Output, ...]
    verdict: Verdict
    seconds: float

    def __repr__(self) -> str:
        return f"<{self.check} {self.sample} {self.verdict}>"


def machine(
    count: int,
    sku: str | None,
    fabric: str,
    architecture: str,
    variables: Mapping[str, Any] | None = None,
    **more: Any,
) -> CheckNode:
    names = list(all_skus()[sku].product_names) if sku else []
    gpu = {
        "count": count,
        "sku": sku,
        "fabric": fabric,
        "architecture": architecture,
        "product_names": names,
    }
    return CheckNode("gpu-01", {"gpu": gpu}, variables or {}, **more)


def judged(check: str, node: CheckNode, outputs: tuple[Output, ...]) -> Verdict:
    """Return the campaign's verdict, but without its tolerance.
    Any exception except ParseError, and any finding that breaks the contract, is a failure here."""
    module = CHECKS[check]
    try:
        found = module.parse(node, {output.name: output for output in outputs})
    except ParseError:
        return Verdict.ERROR
    for limits in ({}, limits_of(node)):  # the second set decides the verdict
        findings = module.judge(node, found, limits)
        assert findings, "a judge gives at least one finding"
        for finding in findings:
            assert finding.check == check
            assert finding.action in ACTIONS
            if finding.verdict not in (Verdict.PASS, Verdict.SKIP):
                assert finding.action != "none", finding
            assert finding.message, finding
    return worst(finding.verdict for finding in findings)


def command_outputs(check: str, node: CheckNode) -> tuple[Output, ...]:
    """Return empty outputs for a check's commands."""
    return tuple(
        Output(command.name, tuple(command.argv), 0, "", "", 1.0)
        for command in CHECKS[check].commands(node, {})
    )


def _said(name: str, file: str, text: str, outputs: tuple[Output, ...]) -> tuple[Output, ...]:
    if file.endswith(".stderr.txt"):
        said = {"rc": 1, "stdout": "", "stderr": text}
    else:
        said = {"rc": 0, "stdout": text, "stderr": ""}
    return tuple(replace(o, **_of_its_card(o, said)) if o.name == name else o for o in outputs)


def _of_its_card(output: Output, said: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the card mlx5_0 of samples to the card on the program's command line, if that differs."""
    cards = [word for word in output.argv if word.startswith("mlx5_")]
    card = cards[0] if cards else "mlx5_0"
    return {key: said[key].replace("mlx5_0", card) if key != "rc" else said[key] for key in said}


def _files(check: str) -> dict[str, str]:
    folder = FIXTURES / check
    return {path.name: path.read_bytes().decode("utf-8", "replace") for path in sorted(folder.glob("*.*"))}


def _is_facts(file: str, text: str) -> bool:
    return file.endswith(".json") and '"facts":' in text[:100]


def _owners(files: Mapping[str, str], commands: list[str]) -> dict[str, list[str]]:
    """Return command → the samples that may be its output."""
    files = {name: text for name, text in files.items() if not _is_facts(name, text)}
    claimed: dict[str, list[str]] = {name: [] for name in commands}
    for file in files:
        stem = file.replace("-", "_")
        named = [name for name in commands if stem.startswith(name)]
        if named:
            claimed[max(named, key=len)].append(file)
    taken = {file for owned in claimed.values() for file in owned}
    free = [file for file in files if file not in taken]
    return {name: owned or free for name, owned in claimed.items()}


def _nodes(files: Mapping[str, str]) -> Iterator[tuple[str, CheckNode]]:
    """Yield the machines, then the first of them with each sample of facts."""
    for kind in _MACHINES:
        yield "", machine(*kind)
    for name, text in files.items():
        if _is_facts(name, text):
            yield name, machine(*_MACHINES[0], **json.loads(text))


@cache
def scenarios(check: str) -> tuple[Scenario, ...]:
    """Return every sample of a check in place, once for each verdict on some machine, best first."""
    files = _files(check)
    found: dict[tuple[str, Verdict], Scenario] = {}
    for facts_of, node in _nodes(files):
        outputs = command_outputs(check, node)
        owners = _owners(files, [o.name for o in outputs if not UNREAD.fullmatch(o.name)])
        base = _best_answer(check, node, outputs, owners, files)
        if facts_of:
            _note(found, facts_of, check, node, base)
            if not facts_of.startswith("facts-healthy"):
                continue
        for name, owned in owners.items():
            for file in owned:
                _note(found, file, check, node, _said(name, file, files[file], base))
        _note_hybrids(found, check, node, files, owners, base)
    understood = {file for file, verdict in found if verdict is not Verdict.ERROR}
    kept = [
        one
        for (file, verdict), one in found.items()
        if verdict is not Verdict.ERROR or file not in understood
    ]
    if not kept:  # a check without samples is still tried with arbitrary text and facts
        node = machine(*_MACHINES[0])
        outputs = command_outputs(check, node)
        kept = [Scenario(check, "", node, outputs, judged(check, node, outputs), 0.0)]
    return tuple(sorted(kept, key=lambda one: (one.verdict.badness, one.sample)))


def _note_hybrids(
    found: dict[tuple[str, Verdict], Scenario],
    check: str,
    node: CheckNode,
    files: Mapping[str, str],
    owners: Mapping[str, list[str]],
    base: tuple[Output, ...],
) -> None:
    """Add healthy answers with one line of a faulty sample, to isolate one of its faults."""
    for name, owned in owners.items():
        for well, file in itertools.permutations(owned, 2):
            healthy, other = (files[one].splitlines(keepends=True) for one in (well, file))
            differing = [
                at for at, (ours, theirs) in enumerate(zip(healthy, other, strict=False)) if ours != theirs
            ]
            if len(other) != len(healthy) or not 1 < len(differing) <= 40:
                continue
            if judged(check, node, _said(name, well, files[well], base)) is not Verdict.PASS:
                continue
            for at in differing:
                one = "".join([*healthy[:at], other[at], *healthy[at + 1 :]])
                _note(found, f"{file}:{at + 1}", check, node, _said(name, file, one, base))


def _best_answer(
    check: str,
    node: CheckNode,
    outputs: tuple[Output, ...],
    owners: Mapping[str, list[str]],
    files: Mapping[str, str],
) -> tuple[Output, ...]:
    """Choose the best sample for each command in turn, to form the healthiest possible answer."""
    for _ in range(2):  # outputs are read in each other's context, so a second pass may improve them
        for name, owned in owners.items():
            tried = [*(_said(name, file, files[file], outputs) for file in owned), outputs]
            outputs = min(tried, key=lambda answer: _errors(check, node, answer))
    return outputs


def _errors(check: str, node: CheckNode, outputs: tuple[Output, ...]) -> tuple[int, int, int]:
    """Rank an answer by its errors, then by how bad its verdicts are, then by how little was measured."""
    module = CHECKS[check]
    try:
        found = module.parse(node, {output.name: output for output in outputs})
        verdicts = [finding.verdict for finding in module.judge(node, found, limits_of(node))]
    except ParseError:
        return 99, 0, 0
    bad = sum(verdict.badness for verdict in verdicts)
    return sum(verdict is Verdict.ERROR for verdict in verdicts), bad, -len(found)


def _note(
    found: dict[tuple[str, Verdict], Scenario],
    file: str,
    check: str,
    node: CheckNode,
    outputs: tuple[Output, ...],
) -> None:
    """Keep one answer for each verdict."""
    started = time.process_time()
    verdict = judged(check, node, outputs)
    seconds = time.process_time() - started
    found.setdefault((file, verdict), Scenario(check, file, node, outputs, verdict, seconds))
