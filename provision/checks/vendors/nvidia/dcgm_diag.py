"""NVIDIA's diagnostic dcgmi diag, with the JSON of DCGM 3 and of DCGM 4.

It runs only on request (validation_tools_dcgm_level: 1 to 4), since beyond level 1 it repeats other checks
and takes minutes. Its exit status is DCGM's own code and not a verdict. DCGM gives a severity with each
error: a disabled setting is a matter of configuration, not a broken GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from provision import foreign_json
from provision.checks.check import CheckNode, Command, Measurement, Output, completed, last_words
from provision.checks.judge import Finding, Verdict, finding_on, unmeasured
from provision.checks.thresholds import Threshold
from provision.errors import ParseError

SUMMARY = "NVIDIA's diagnostic (dcgmi diag), on request"
FINDS = "the faults that NVIDIA's own diagnostic finds; off unless `validation_tools_dcgm_level` is set"
NEEDS: tuple[str, ...] = ("dcgmi",)

ID = "dcgm_diag"

_DEADLINES = {1: 120.0, 2: 600.0, 3: 2400.0, 4: 10800.0}  # seconds; NVIDIA: seconds, 2, 15 and 90 minutes

_STATUS = {
    **{"pass": "pass", "fail": "fail", "warn": "warn", "skip": "skip", "skipped": "skip"},
    **{"not run": "not run", "notrun": "not run"},  # scheduled, but did not run
}

# error_severity (DCGM, dcgm_errors.h): 0 none, 1 monitor, 2 isolate, 3 unknown, 4 triage, 5 config, 6 reset
_ACTIONS = {
    1: "watch",
    2: "replace part",
    3: "investigate",
    4: "investigate",
    5: "fix configuration",
    6: "reset GPU",
}


@dataclass(frozen=True)
class _Result:
    """One test on one device: its status, its messages, and DCGM's severity (0: none given)."""

    test: str
    device: str
    status: str
    said: tuple[str, ...] = ()
    severity: int = 0
    deployment: bool = False  # one of the tests that every level runs
    of_all: bool = False  # one result for all GPUs, which names a GPU only if that one is to blame


def _level(node: CheckNode) -> int:
    """Return the requested level; 0: none. Raises ParseError."""
    level = node.variables.get("validation_tools_dcgm_level", 0) or 0
    if not isinstance(level, int) or isinstance(level, bool) or level not in (0, *_DEADLINES):
        raise ParseError(f"validation_tools_dcgm_level is {level!r}", "give 0 (off), 1, 2, 3 or 4")
    return level


def commands(node: CheckNode, options: Mapping[str, Any]) -> Sequence[Command]:  # noqa: ARG001 - the contract
    try:
        level = _level(node)
    except ParseError:
        return []  # `parse` reports it
    if not level:
        return []
    program = str(node.variables.get("validation_tools_dcgmi_path", "/usr/bin/dcgmi"))
    argv = (program, "diag", "-r", str(level), "-j")
    return [Command("dcgmi", argv, _DEADLINES[level], load=_DEADLINES[level] / 2)]


def parse(node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
    """Return `level`, and each `<test>` of a device as pass, fail, warn, skip or "not run".

    `<test>.said` and `<test>.severity` hold DCGM's message and severity. Raises ParseError.
    """
    level = _level(node)
    rows = [Measurement("level", level, "")]
    if not level:
        return rows
    output = completed(outputs, "dcgmi")
    if output.truncated:
        raise ParseError("dcgmi: the output was cut at its size limit", "run the check again")
    results = _not_run(_results(output))
    ran = [one for one in results if not one.deployment and one.status != "skip"]
    if level > 1 and not ran and not _accused(results):
        raise ParseError(f"dcgmi diag ran none of the tests of level {level}{_why(results)}", "investigate")
    tested = {
        one.device for one in results if one.device != "node" and one.status != "skip" and not one.of_all
    }
    failed = any(one.status == "fail" for one in results)
    if len(tested) != node.gpu_count and not all(one.of_all for one in results) and not failed:
        raise ParseError(
            f"dcgmi diag tested {len(tested)} GPUs, the node has {node.gpu_count}",
            "look at the gpu_inventory check, and at what dcgmi discovery -l lists",
        )
    if failed:  # the failure is reported, and so is any GPU that no test covered
        tested |= {f"gpu{index}" for index in range(node.gpu_count)}
    for result in _worst_of_each([*results, *_left_out(results, tested)]):
        rows.append(Measurement(result.test, result.status, "", result.device))
        if result.said:
            rows.append(Measurement(f"{result.test}.said", "; ".join(result.said)[:500], "", result.device))
        if result.severity:
            rows.append(Measurement(f"{result.test}.severity", result.severity, "", result.device))
    return rows


def _not_run(results: Sequence[_Result]) -> list[_Result]:
    """Mark a test as not run on a GPU that skipped it while its peers passed."""
    passed = {one.test for one in results if one.status in ("pass", "warn") and one.device != "node"}
    passed -= {one.test for one in results if one.status == "fail"}  # a failure may end the test
    return [
        replace(one, status="not run")
        if one.status == "skip" and one.test in passed and one.device != "node" and not one.deployment
        else one
        for one in results
    ]


def _why(results: Sequence[_Result]) -> str:
    """Describe the skipped tests, with the reason if DCGM gives one."""
    skipped = [one for one in results if one.status == "skip" and not one.deployment]
    names = ", ".join(dict.fromkeys(one.test for one in skipped))
    reason = next((one.said[0] for one in skipped if one.said), "")
    return (f": it skipped {names}" if names else "") + (f" ({reason})" if reason else "")


def _accused(results: Sequence[_Result]) -> bool:
    """Return whether a test failed or did not run; a failure may end the run."""
    return any(one.status in ("fail", "not run") for one in results)


def _worst_of_each(results: Iterable[_Result]) -> list[_Result]:
    """Keep the worse of two results of a test on a device."""
    order = ("skip", "pass", "warn", "not run", "fail")
    kept: dict[tuple[str, str], _Result] = {}
    for one in results:
        other = kept.setdefault((one.test, one.device), one)
        if order.index(one.status) > order.index(other.status):
            kept[one.test, one.device] = one
    return list(kept.values())


def _left_out(results: Sequence[_Result], tested: Iterable[str]) -> Iterable[_Result]:
    """Yield the GPUs that a test with results per GPU leaves out; they may have been lost before it."""
    for test in dict.fromkeys(one.test for one in results):
        named = {
            one.device for one in results if one.test == test and one.device != "node" and not one.of_all
        }
        for device in sorted(set(tested) - named) if named else ():
            yield _Result(test, device, "not run")


def _results(output: Output) -> list[_Result]:
    begin = output.stdout.find("{")
    if begin < 0:
        raise ParseError(
            f"dcgmi diag printed no JSON: {last_words(output)}",
            "look whether nvidia-dcgm (nv-hostengine) runs",
        )
    try:
        document = foreign_json.read(output.stdout[begin:], unique=True)
        body = document.get("DCGM Diagnostic") or document.get("DCGM GPU Diagnostic") or document
        if error := body.get("runtime_error") or document.get("runtime_error"):
            raise ParseError(f"dcgmi diag: {str(error)[:200]}", "look whether nvidia-dcgm runs")
        results = [
            result
            for category in body["test_categories"]
            for test in category["tests"]
            if test is not None  # DCGM 3 writes a null after each test
            for result in _of_test(test, str(category["category"]))
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}"[:200]
        raise ParseError(f"dcgmi: its JSON was not understood: {problem}", "run the check again") from error
    if not results:
        raise ParseError("dcgmi diag ran no test", "run the check again")
    return results


def _of_test(test: Mapping[str, Any], category: str) -> Iterable[_Result]:
    """Yield the results of one test by device, and its summary if that adds anything.

    DCGM 4: `entity_group` and `entity_id`, and no `results` if a test did not get that far. DCGM 3 (its
    dcgmi/Diag.cpp, HelperJsonAddBasicTests and HelperJsonAddResult): one result for all GPUs for each
    software test, with `gpu_id` if one is to blame; one result per GPU for the other tests, and null for a
    GPU that did not run it.
    """
    name = str(test["name"]).lower().replace(" ", "_")
    deployment = category.strip().lower() == "deployment"
    given = [result for result in test.get("results") or [] if result is not None]
    of_all = deployment and not any("entity_group" in result for result in given)
    summary = test.get("test_summary") or {}
    whole = _status(summary) if summary else ""
    if whole == "fail" and not any(_status(result) == "fail" for result in given):
        yield _Result(name, "node", "fail", _said(summary), _severity(summary), deployment)
    texts = _said(summary)
    if whole in ("pass", "warn") and (texts or whole == "warn") and not any(map(_told, given)):
        yield _Result(name, "node", "warn", texts, _severity(summary), deployment, of_all)
    if not given and not deployment and whole in ("", "pass"):
        yield _Result(name, "node", "not run")
    for result in given:
        status, texts = _status(result), _said(result)
        if status == "pass" and texts:
            status = "warn"  # an error is attached to a test that passed (DCGM issue 284)
        for device in _devices(result):
            yield _Result(name, device, status, texts, _severity(result), deployment, of_all)


def _told(result: Mapping[str, Any]) -> bool:
    """Return whether a result reports more than a passed or a skipped test."""
    return bool(_said(result)) or _status(result) in ("fail", "warn")


def _devices(result: Mapping[str, Any]) -> list[str]:
    if "entity_group" in result:
        group = str(result["entity_group"]).lower()
        return [f"gpu{int(result['entity_id'])}"] if group == "gpu" else ["node"]
    ids = str(result.get("gpu_ids", result.get("gpu_id", ""))).replace(",", " ").split()
    return [f"gpu{int(word)}" for word in ids] or ["node"]


def _status(result: Mapping[str, Any]) -> str:
    status = str(result["status"]).strip().lower()
    if status not in _STATUS:
        raise ValueError(f"unknown status {status!r}")
    return _STATUS[status]


def _warnings(result: Mapping[str, Any]) -> list[Any]:
    """Return the warnings: objects in DCGM 4; objects, one text or a list of texts in DCGM 3."""
    given = result.get("warnings", [])
    return [one for one in given if one is not None] if isinstance(given, list) else [given]


def _said(result: Mapping[str, Any]) -> tuple[str, ...]:
    # DCGM 3 also uses the key `warnings` for the text of a software test's warning.
    texts = (
        one.get("warning", one.get("warnings")) if isinstance(one, Mapping) else one
        for one in _warnings(result)
    )
    return tuple(str(text).strip()[:300] for text in texts)


def _severity(result: Mapping[str, Any]) -> int:
    severities = [int(one.get("error_severity", 0)) for one in _warnings(result) if isinstance(one, Mapping)]
    # Worst first: a GPU to isolate, to reset, to triage, unknown, to monitor; then configuration.
    order = (2, 6, 4, 3, 1, 5)
    return next((severity for severity in order if severity in severities), 0)


def judge(
    node: CheckNode,  # noqa: ARG001 - the contract
    measurements: Sequence[Measurement],
    thresholds: Mapping[str, Threshold],  # noqa: ARG001 - DCGM has its own limits
) -> list[Finding]:
    values = {(m.device, m.metric): m.value for m in measurements}
    level = int(values["node", "level"])
    if not level:
        reason = "not requested: set validation_tools_dcgm_level to 1, 2, 3 or 4"
        return [Finding(ID, Verdict.SKIP, "node", reason, "level")]
    findings = []
    for (device, test), status in values.items():
        if status not in ("fail", "warn", "not run") or "." in test:
            continue
        if status == "not run":
            findings.append(unmeasured(ID, f"dcgmi diag did not come to run {test}", device=device))
            continue
        detail = str(values.get((device, f"{test}.said"), "no reason given"))
        severity = int(values.get((device, f"{test}.severity"), 0))
        # A disabled setting (severity 5) breaks nothing.
        verdict = Verdict.FAIL if status == "fail" and severity != 5 else Verdict.WARN
        measured, action = Measurement(test, str(status), "", device), _ACTIONS.get(severity, "investigate")
        message = f"dcgmi diag, {test}: {detail}"
        findings.append(finding_on(ID, verdict, measured, message, "= pass", "NVIDIA DCGM", action, [detail]))
    ran = {m.metric for m in measurements if m.value == "pass"}
    if findings or not ran:
        return findings or [
            Finding(ID, Verdict.ERROR, "node", "dcgmi diag skipped every test", "level", action="investigate")
        ]
    message = f"dcgmi diag at level {level}: {len(ran)} tests passed ({', '.join(sorted(ran))})"
    return [Finding(ID, Verdict.PASS, "node", message, "level", level, source="NVIDIA DCGM")]
