"""A run folder of many nodes with its raw output.
Simulated nodes, healthy and broken, are measured for real, then repeated with new names and serials."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.detection import machine, trial
from benchmarks.detection.cases import FOUR, Case, draw_case, generator
from benchmarks.detection.catalogue import ENTRIES
from benchmarks.detection.machine import Machine
from benchmarks.report_fleet import BAD, CHECKED, FAULTS, SILENT, UNMEASURED
from provision.checks.judging.node_facts import NodeFacts
from provision.node_names import file_name

GOOD = 6  # of each SKU, so that values vary across the fleet
_UUID = re.compile(r"GPU-[0-9a-f]{8}")
_WHEN = {"started": "2026-05-04T10:00:00+00:00", "finished": "2026-05-04T10:40:00+00:00"}


@dataclass(frozen=True)
class Template:
    """A measured node: its name, its line of facts.jsonl, and check → its raw output file."""

    name: str
    look: str
    raws: Mapping[str, str]


def measured(sku: str, number: int, key: str = "") -> Template:
    """Run all checks on one simulated node; `key`: its class of fault in the catalogue, if any."""
    rng = generator("judge", sku, number, key)
    case = draw_case(ENTRIES[key], rng, graded=False)[1] if key else Case()
    name = f"template-{number}"
    with Machine(sku, name, rng.randrange(2**31), **case.machine) as node:
        trial.inject(node, case)
        declared = {**trial.DECLARED, **(trial.FOUR_GPUS if sku in FOUR else {}), **case.variables}
        look = trial.looked(node, CHECKED, declared)
        raws = {} if look.error else dict(_raws(node, look))
    return Template(name, json.dumps(asdict(look), default=str), raws)


def _raws(node: Machine, look: NodeFacts) -> Iterable[tuple[str, str]]:
    for check in CHECKED:
        raw = trial.raw_of(node, look, check)
        yield check, json.dumps({"format": 1, **asdict(raw)}, indent=1) + "\n"


@dataclass(frozen=True)
class Templates:
    """Healthy and broken nodes, which are repeated in turn."""

    good: Sequence[Template]
    bad: Sequence[Template]


def templates(skus: Sequence[str], good: int = GOOD, faults: Sequence[str] = FAULTS) -> Templates:
    """Simulate nodes of these SKUs in turn, which takes seconds."""
    with tempfile.TemporaryDirectory(prefix="gpuprov-bench-", dir=machine.memory()) as folder:
        machine.PLACE = Path(folder)
        healthy = [measured(sku, number) for number in range(good) for sku in skus]
        broken = [measured(skus[n % len(skus)], good + n, key) for n, key in enumerate(faults)]
    return Templates(healthy, broken)


def write(
    run: Path, count: int, made: Templates, *, bad: int = BAD, silent: int = SILENT, partly: int = UNMEASURED
) -> Path:
    """Write a run of `count` nodes that was interrupted before its report.
    One in `bad` is broken, one in `silent` unreachable, one in `partly` lacks its last check's output."""
    run.mkdir(parents=True)
    meta = {"format": 1, "verb": "validate", "inventory": "/srv/fleet/inventory.yml", "asked": list(CHECKED)}
    (run / "run.json").write_text(json.dumps({**meta, **_WHEN}), encoding="utf-8")
    width = len(str(count))
    with (run / "facts.jsonl").open("w", encoding="utf-8") as looks:
        for number in range(1, count + 1):
            name = f"gpu-{number:0{width}d}"
            if number % silent == 7 % silent:
                why = f"ssh: connect to 10.0.{number // 250}.{number % 250} port 22: timed out after 10 s"
                looks.write(json.dumps(asdict(NodeFacts(name, {}, {}, {}, why, unreachable=True))) + "\n")
                continue
            broken = number % bad == 3 % bad
            one = made.bad[number // bad % len(made.bad)] if broken else made.good[number % len(made.good)]
            looks.write(_renamed(one.look, one.name, name, number) + "\n")
            folder = run / "raw" / file_name(name)
            folder.mkdir(parents=True)
            for check, text in list(one.raws.items())[: -1 if number % partly == 11 % partly else None]:
                (folder / f"{check}.json").write_text(_renamed(text, one.name, name, number), "utf-8")
    return run


def _renamed(text: str, template: str, name: str, number: int) -> str:
    return _UUID.sub(f"GPU-{number:08x}", text).replace(template, name)
