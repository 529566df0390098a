"""Agreement of health program and controller in all single-node trials of the detection benchmark.

The packed program runs under each Python that it supports. The seed is that of all tests. CI tries one class
in three under the oldest and the newest Python, the long run tries all.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.detection.catalogue import ENTRIES
from provision import paths
from provision.checks import exposition
from provision.checks.on_node import debounce, document, metrics, packed_program, run, settings
from provision.validate.status import health_document
from tests.on_node import recorded
from tests.support.pythons import python
from tests.support.seed import SEED, times

pytestmark = pytest.mark.timeout(900)

PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13")
KEYS = [*list(ENTRIES)[:: times(3, 1)], *[recorded.HEALTHY] * times(3, 20)]

# Judges each line of standard input with the program's own code.
REPLAY = """
import json, sys
sys.path.insert(0, sys.argv[1])
from dataclasses import asdict
from provision.checks.check import Output, Raw
from provision.checks.on_node import run, settings

def raw_of(row):
    outputs = tuple(Output(**{**one, "argv": tuple(one["argv"])}) for one in row["outputs"])
    return Raw(**{**row, "outputs": outputs})

for line in sys.stdin:
    one = json.loads(line)
    raws = {check: raw_of(row) for check, row in one["raws"].items()}
    known = settings.Settings(variables=one["variables"])
    health = run.judged("node-1", run.Measured(one["facts"], one["problems"], raws), known)
    findings = [{**asdict(f), "verdict": f.verdict.value} for check in health.checks for f in check.findings]
    print(json.dumps({"verdict": health.verdict.value, "error": health.error, "findings": findings}))
"""


@pytest.fixture(scope="module")
def trials() -> list[dict[str, Any]]:
    return recorded.of([(key, SEED + number) for number, key in enumerate(KEYS)])


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    with zipfile.ZipFile(io.BytesIO(packed_program.build())) as archive:
        archive.extractall(folder)
    return folder


@pytest.mark.parametrize("version", PYTHONS if times(0, 1) else (PYTHONS[0], PYTHONS[-1]))
def test_the_program_judges_as_the_controller_does(
    version: str, trials: list[dict[str, Any]], unpacked: Path
) -> None:
    interpreter = python(version)
    if interpreter is None:
        pytest.skip(f"this machine has no Python {version}")
    lines = "".join(json.dumps(one) + "\n" for one in trials)
    ran = subprocess.run(
        [interpreter, "-I", "-S", "-c", REPLAY, str(unpacked)],
        input=lines,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    for one, line in zip(trials, ran.stdout.splitlines(), strict=True):
        assert json.loads(line) == one["controller"], f"class {one['key']} on {one['sku']}, seed {SEED}"


def test_the_trials_are_of_many_verdicts(trials: list[dict[str, Any]]) -> None:
    assert {one["controller"]["verdict"] for one in trials} >= {"pass", "warn", "fail"}


def test_what_it_writes_is_what_the_controller_reads(trials: list[dict[str, Any]]) -> None:
    """The document is read by `status`, and the metrics by Prometheus' own parser, in every trial."""
    for one in trials:
        known = settings.Settings(variables=one["variables"])
        raws = {check: recorded.raw_of(row) for check, row in one["raws"].items()}
        health = run.judged("node-1", run.Measured(one["facts"], one["problems"], raws), known)
        findings = [finding for check in health.checks for finding in check.findings]
        tracked = debounce.followed(None, findings, known.rules, "2026-11-25T10:00:00Z")
        about = {"boot_id": "b", "uptime": 9.0, "started": "s", "finished": "f", "seconds": 1.0}
        told = document.document(health, tracked, about, 60)
        read = health_document.read(document.text(told).encode())
        assert read.verdict.value == told["verdict"], one["key"]
        assert read.measured.value == one["controller"]["verdict"]
        assert len(read.findings) == len(told["findings"])
        text = exposition.render(metrics.families(told, 1.0, {"running": 1, "progress": 0.5, "end": 2.0}))
        families = {family.name: family for family in text_string_to_metric_families(text)}
        (verdict,) = [s.labels["verdict"] for s in families["gpuprov_health_verdict"].samples if s.value]
        assert verdict == told["verdict"]
        assert set(families) <= DOCUMENTED


DOCUMENTED = set(re.findall(r"^\| `(gpuprov_\w+)", (paths.DOCS / "metrics.md").read_text("utf-8"), re.M))
