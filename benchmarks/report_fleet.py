"""A run folder of many nodes with its report.
A few simulated nodes, healthy and broken, are measured and judged for real, then repeated with noise."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.detection import machine, trial
from benchmarks.detection.cases import Case, draw_case, generator
from benchmarks.detection.catalogue import ENTRIES
from benchmarks.detection.machine import Machine
from provision.checks import health
from provision.checks.health import CheckResult, FleetHealth, GpuIdentity, NodeHealth
from provision.checks.judge import Finding, Verdict
from provision.checks.judging import registry
from provision.report import json as report_json
from provision.runs import node_history
from provision.runs.store import RunFolder

SKU = "h100-sxm"
# Classes of benchmarks/detection/catalogue.py that a node's own checks detect; one for each bad node.
FAULTS = ("14", "15", "17", "18", "20c")
BAD, SILENT, UNMEASURED = 100, 400, 500  # one node in this many
CHECKED = tuple(registry.select("burnin"))
_FLOOR = """
import json, sys
with open(sys.argv[1], "rb", buffering=1 << 20) as file:
    for line in file:
        if line.startswith(b'{"node"'):
            json.loads(line.rstrip(b",\\n"))
"""
_NAME = re.compile(r"node-\d+")
_UUID = re.compile(r"GPU-[0-9a-f]{8}")
_STARTED = "2026-05-04T10:{:02d}:00+00:00"


def floor(report: Path) -> list[str]:
    """Return a program that parses a report node by node, the least work of any reader."""
    return [sys.executable, "-c", _FLOOR, str(report)]


def templates() -> tuple[list[str], list[str]]:
    """Return healthy and broken nodes as lines of a report; simulating and judging them takes seconds."""
    with tempfile.TemporaryDirectory(prefix="gpuprov-bench-") as folder:
        machine.PLACE = Path(folder)
        good = [_line(_simulated(number)) for number in range(2)]
        bad = [_line(_simulated(2 + number, key)) for number, key in enumerate(FAULTS)]
    return good, bad


def _simulated(number: int, key: str = "") -> NodeHealth:
    rng = generator("report", number, key)
    case = draw_case(ENTRIES[key], rng, graded=False)[1] if key else Case()
    with Machine(SKU, f"node-{number + 2}", rng.randrange(2**31), **case.machine) as node:
        trial.inject(node, case)
        return trial.validate(node, case.variables, case.event)[0]


def _line(node: NodeHealth) -> str:
    return report_json._encode(node)


def lines(count: int, made: tuple[list[str], list[str]]) -> Iterator[str]:
    """Yield the nodes of a fleet of `count` as JSON lines, about 80 KB each as in a real campaign."""
    good, bad = made
    width = len(str(count))
    for number in range(1, count + 1):
        name = f"gpu-{number:0{width}d}"
        if number % SILENT == 7:
            why = f"ssh: connect to 10.0.{number // 250}.{number % 250} port 22: timed out after 10 s"
            yield _line(NodeHealth(name, Verdict.ERROR, (), error=why, unreachable=True))
        else:
            broken = number % BAD == 3
            text = bad[number // BAD % len(bad)] if broken else good[number % len(good)]
            yield _varied(text, name, number)


def _varied(text: str, name: str, number: int) -> str:
    """Return this node under another name, with its own serial numbers and noise."""
    noise = Random(number)  # noqa: S311 - the same noise every time
    text = _UUID.sub(f"GPU-{number:08x}", _NAME.sub(name, text))
    node: dict[str, Any] = json.loads(text)
    if number % UNMEASURED == 11:
        node["checks"].pop()
        node["verdict"] = "error"
    for gpu in node["gpus"]:
        gpu["serial"] = f"{gpu['serial'][:4]}{number:06d}{gpu['index']:03d}"
    for check in node["checks"]:
        check["seconds"] = round(check["seconds"] * noise.uniform(0.98, 1.02), 3)
        for row in check["measurements"]:
            if isinstance(row["value"], float):
                row["value"] = round(row["value"] * noise.gauss(1, 0.002), 3)
    return json.dumps(node)


def write(home: Path, count: int, made: tuple[list[str], list[str]]) -> Path:
    """Write two runs below `home`: verdicts of an earlier one, and the newest with its whole report.
    Returns the newest run's folder."""
    verdicts(home / "20260503T100000.000Z-validate", count)
    run = home / "20260504T100000.000Z-validate"
    _meta(run)
    head = json.dumps(_head(run.name))[:-1] + ', "nodes": ['
    with (run / "report.json").open("w", encoding="utf-8") as out:
        out.write(head)
        for number, line in enumerate(lines(count, made)):
            out.write((",\n" if number else "\n") + line)
        out.write("\n]}\n")
    return run


def _head(name: str) -> dict[str, Any]:
    document = health.to_json(
        FleetHealth(name, "0.1.0", "/srv/fleet/inventory.yml", _STARTED.format(0), _STARTED.format(40),
                    CHECKED, ())
    )  # fmt: skip
    del document["nodes"]
    return {"format": document.pop("format"), **document}


def _meta(run: Path) -> None:
    run.mkdir(parents=True)
    started = {"started": _STARTED.format(0), "finished": _STARTED.format(40), "exit_code": 3}
    meta = {"format": 1, "verb": "validate", "inventory": "/srv/fleet/inventory.yml", "asked": list(CHECKED)}
    (run / "run.json").write_text(json.dumps({**meta, **started}), encoding="utf-8")


def verdicts(run: Path, count: int, seed: int = 0) -> None:
    """Write the verdicts of an earlier run: most nodes healthy, some repeatedly bad, some bad once."""
    _meta(run)
    width, noise = len(str(count)), Random(seed)  # noqa: S311 - the same noise every time
    nodes = []
    for number in range(1, count + 1):
        name = f"gpu-{number:0{width}d}"
        bad = number % 50 == 3 or noise.random() < 0.01
        nodes.append(_failed(name, number) if bad else NodeHealth(name, Verdict.PASS, ()))
    fleet = health.from_json({**_head(run.name), "nodes": []})
    node_history.record(RunFolder(run), {}, replace(fleet, nodes=tuple(nodes)))


def _failed(name: str, number: int) -> NodeHealth:
    finding = Finding(
        "gpu_burn", Verdict.FAIL, f"gpu{number % 8}", "computed 12 wrong results", action="replace part"
    )
    gpus = tuple(
        GpuIdentity(i, "H100", f"16{number:06d}{i}", f"GPU-{number:08x}-{i}", f"0:{i}") for i in range(8)
    )
    return NodeHealth(
        name, Verdict.FAIL, (CheckResult("gpu_burn", Verdict.FAIL, (finding,), (), 60.0),), gpus
    )
