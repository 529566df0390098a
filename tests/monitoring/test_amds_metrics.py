"""Rules and panels for AMD's exporter: they read only metrics that the role exports, and every panel
with a counterpart works for a node with only AMD GPUs."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from provision.paths import ROLES
from tests.monitoring.panel_queries import Target, choice, filled_in, panels
from tests.monitoring.real_prometheus import program
from tests.monitoring.rule_files import ALERTS, RECORDING, groups

METRIC = re.compile(r"(?<![:\w])amd_(?:gpu|pcie)_\w+")
REASONS = re.compile(r"amd_gpu_violation_\(([\w|]+)\)_residency_percentage")
QUERIES = [(str(panel), target) for panel in panels() for target in panel.targets if "amd_" in target.expr]
INPUT = (
    'instance="amd-01", job="amd", rack="r1", sku="mi300x", gpu_id="3", gpu_partition_id="0", '
    'serial_number="692251001114", card_model="AMD Instinct MI300X OAM"'
)
# initial value, growth per scrape
SERIES = {
    "amd_gpu_junction_temperature": (61, 0),
    "amd_gpu_memory_temperature": (55, 0),
    "amd_gpu_package_power": (700, 0),
    "amd_gpu_clock": (2100, 0),
    "amd_gpu_gfx_activity": (98, 0),
    "amd_gpu_used_vram": (1024, 0),
    "amd_gpu_ecc_uncorrect_total": (0, 0),
    "amd_gpu_ecc_correct_total": (4, 0),
    "amd_pcie_replay_count": (0, 30),
    "amd_gpu_violation_hbm_thermal_residency_percentage": (20, 0),
    "amd_gpu_violation_socket_thermal_residency_percentage": (0, 0),
    "amd_gpu_violation_vr_thermal_residency_percentage": (0, 0),
    "amd_gpu_violation_processor_hot_residency_percentage": (0, 0),
}


def read(expression: str) -> set[str]:
    """Return the metrics of AMD's exporter that an expression reads."""
    several = {
        f"amd_gpu_violation_{one}_residency_percentage"
        for match in REASONS.finditer(expression)
        for one in match[1].split("|")
    }
    return several | set(METRIC.findall(REASONS.sub("", expression)))


def test_the_role_has_the_exporter_export_what_rules_and_panels_read() -> None:
    template = (ROLES / "gpu_metrics" / "templates" / "amd-metrics.json.j2").read_text("utf-8")
    exported = {
        f"amd_{name.lower()}" for name in re.findall(r'"((?:GPU|PCIE)_\w+)"', template) if name != "GPU_UUID"
    }
    rules = " ".join(
        rule["expr"] for file in (ALERTS, RECORDING) for g in groups(file) for rule in g["rules"]
    )
    shown = read(" ".join(target.expr for _, target in QUERIES))
    assert len(shown) > 10
    assert (read(rules) | shown) - exported == set()


def series(name: str) -> dict[str, str]:
    value, growth = SERIES[name]
    more = ', clock_type="system", clock_index="0"' if name == "amd_gpu_clock" else ""
    return {"series": f"{name}{{{INPUT}{more}}}", "values": f"{value}+{growth}x40"}


NODE = {
    "series": 'up{instance="amd-01", job="node", rack="r1", sku="mi300x"}',
    "values": "1x40",
}
RUNS = {
    "series": 'gpuprov_burnin_running{instance="amd-01", job="node", rack="r1", sku="mi300x"}',
    "values": "1x40",
}


def asked(target: Target) -> str:
    variables = {**choice("amd-01", "r1", 3), "__rate_interval": "5m"}
    return filled_in(target.expr.replace("$__rate_interval", "5m"), variables)


@pytest.fixture(scope="module")
def promtool(tmp_path_factory: pytest.TempPathFactory) -> str:
    return program("promtool", tmp_path_factory.getbasetemp() / "programs")


def answered(
    promtool: str, folder: Path, questions: list[dict[str, Any]], *left_out: str
) -> subprocess.CompletedProcess[str]:
    there = [series(name) for name in SERIES if name not in left_out]
    test = {"interval": "30s", "input_series": [*there, NODE, RUNS], "promql_expr_test": questions}
    (folder / "test.yml").write_text(json.dumps({"rule_files": [], "tests": [test]}))
    return subprocess.run(
        [promtool, "test", "rules", folder / "test.yml"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def some(target: Target) -> dict[str, Any]:
    """Return a promtool test that the query returns a series."""
    expected = [{"labels": "{}", "value": 1}]
    return {"expr": f"clamp_max(count({asked(target)}), 1)", "eval_time": "15m", "exp_samples": expected}


def test_every_panel_with_a_counterpart_shows_a_node_with_amds_gpus_alone(
    promtool: str, tmp_path: Path
) -> None:
    assert len({name for name, _ in QUERIES}) > 20
    done = answered(promtool, tmp_path, [some(target) for _, target in QUERIES])
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_panel_without_its_metric_would_be_seen(promtool: str, tmp_path: Path) -> None:
    questions = [some(target) for name, target in QUERIES if name == "node: GPU temperatures"]
    assert answered(promtool, tmp_path, questions).returncode == 0
    assert answered(promtool, tmp_path, questions, "amd_gpu_junction_temperature").returncode != 0


@pytest.mark.parametrize(
    ("panel", "value", "legend"),
    [
        ("gpu: Temperature", 61, "GPU {{gpu}}"),
        ("gpu: SM clock", 2.1e9, "GPU {{gpu}}"),
        ("gpu: PCIe replays per second", 1, "GPU {{gpu}}"),
        ("gpu: Slowed down, by reason", 1, "Hardware thermal slowdown"),
        ("gpu: Slowed down, by reason", 0, "Software thermal slowdown"),
    ],
)
def test_a_panel_shows_the_gpu_by_its_number(
    promtool: str, tmp_path: Path, panel: str, value: float, legend: str
) -> None:
    (target,) = (one for name, one in QUERIES if name == panel and one.legend == legend)
    wanted = [{"labels": '{gpu="3", instance="amd-01"}', "value": value}]
    question = {"expr": asked(target), "eval_time": "15m", "exp_samples": wanted}
    done = answered(promtool, tmp_path, [question])
    assert done.returncode == 0, done.stdout + done.stderr
