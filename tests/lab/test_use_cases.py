"""Commands and options that no other lab test runs, each once by an operator (tests/use_cases.yml)."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.burnins import LOOK_AND_BURN, Burnins
from tests.lab.gpuprov_up import Operator, said
from tests.lab.images import Images
from tests.lab.lab_nodes import Lab, running_lab

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
ONE = ("--nodes", "gpu-01")
# A small role that has work once its file is gone.
ROLE: dict[str, Any] = {"gpuprov_roles": ["host_settings"], "host_settings_time_sync": "none"}
FORMATS = ("text", "json", "junit", "sarif", "github", "markdown", "prometheus")


@pytest.fixture(scope="module")
def lab(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = (NodeSpec("gpu-01", "h100-sxm"), NodeSpec("gpu-02", "h100-sxm"))
    declared = {node.name: images.h100() for node in nodes}
    inventory = tmp_path_factory.mktemp("lab") / "lab.yml"
    with running_lab("uses", nodes, inventory, images=declared) as running:
        yield running


def ok(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == ExitCode.OK, said(done)
    return done.stdout


def test_plan(operator: Operator) -> None:
    assert "as declared" in ok(operator.call("plan"))
    assert "nvidia_driver" in ok(operator.call("plan", "--full", *ONE))
    assert ok(operator.call("plan", "--diff", *ONE))
    assert "no mistake found" in ok(operator.call("plan", "--offline"))


@pytest.mark.parametrize("form", ["text", "json", "github", "markdown"])
def test_plan_in_a_pipeline(form: str, operator: Operator) -> None:
    ok(operator.call("plan", "--exit-code", "--format", form))
    changed = operator.call("plan", "--exit-code", "--format", form, "--full", *ONE)
    assert changed.returncode == ExitCode.DRIFT, said(changed)
    assert "nvidia_driver" in changed.stdout


def test_a_lock_file_is_used_and_left_out(operator: Operator, tmp_path: Path) -> None:
    file = tmp_path / "lock.yml"
    ok(operator.call("lock", "--majority", "--file", str(file)))
    text = said(operator.call("plan", "--lock", str(file)))
    assert "package_lock" in text
    assert "package_lock" not in ok(operator.call("plan", "--no-lock"))
    drifted = operator.call("drift", "--lock", str(file), "--json")
    assert drifted.returncode == ExitCode.DRIFT, said(drifted)
    assert {one["role"] for one in json.loads(drifted.stdout)["drifts"]} == {"package_lock"}


def test_up(lab: Lab, operator: Operator) -> None:
    lab.node("gpu-01").as_root("rm -f /etc/sysctl.d/*gpuprov*")
    words = ("--no-canary", *ONE)
    checked = ok(operator.call("up", "--check", "--diff", *words, **ROLE))
    assert "would change" in checked
    assert "/etc/sysctl.d/" in checked
    more = ("--gate", "expectations", "--break-lock", "--no-reboot")
    done = ok(operator.call("up", *more, *words, **ROLE))
    assert "1 done" in done


@pytest.mark.parametrize("form", FORMATS)
def test_drift_in_each_format(form: str, operator: Operator, tmp_path: Path) -> None:
    file, junit = tmp_path / "drift", tmp_path / "drift.xml"
    done = operator.call("drift", "--format", f"{form}={file},junit={junit}", "--no-lock")
    ok(done)
    assert file.exists()
    assert "<testsuite" in junit.read_text()


@pytest.mark.parametrize("stage", ["standard", "burnin"])
def test_validate_by_stage(stage: str, operator: Operator) -> None:
    done = operator.call("validate", "--stage", stage, "--json", *ONE, timeout=1500)
    (node,) = json.loads(done.stdout)["nodes"]
    checks = {one["check"]: one["verdict"] for one in node["checks"]}
    assert checks["gpu_burn"] in ("pass", "warn"), said(done)
    assert node["verdict"] in ("pass", "warn"), said(done)


def test_validate_resumes_a_run_and_measures_nothing_twice(operator: Operator) -> None:
    ok(operator.call("validate", "--stage", "quick", *ONE))
    run = operator.newest("validate")
    done = operator.call("validate", "--resume", run.name)
    ok(done)
    assert "measured before" in done.stderr
    assert operator.newest("validate") == run


@pytest.mark.parametrize(
    ("words", "checks"),
    [
        (("--pairs", "suspects"), {"pair_bandwidth", "pair_latency"}),
        (("--pairs", "all"), {"pair_bandwidth", "pair_latency"}),
        (("--group",), {"nccl_group"}),
    ],
)
def test_validate_between_nodes(words: tuple[str, ...], checks: set[str], operator: Operator) -> None:
    done = operator.call("validate", "--json", "--with-jobs", "--stage", "quick", *words, timeout=900)
    nodes = json.loads(done.stdout)["nodes"]
    assert len(nodes) == 2, said(done)
    for node in nodes:
        assert checks <= {one["check"] for one in node["checks"]}, said(done)
    assert done.returncode in (ExitCode.OK, ExitCode.UNHEALTHY, ExitCode.INCOMPLETE), said(done)


def test_status_once_and_again_and_again(operator: Operator) -> None:
    text = operator.call("status")
    assert "gpu-01" in said(text) or "gpu-[01-02]" in said(text)
    with operator.began("status", "--watch", "1", "--json") as process:
        assert process.stdout is not None
        states = (line for line in iter(process.stdout.readline, "") if line.startswith("{"))
        first, second = next(states), next(states)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert "gpu-02" in first
    assert "gpu-02" in second


def test_report_of_runs_that_measured_nodes(operator: Operator, tmp_path: Path) -> None:
    for _ in range(2):
        ok(operator.call("validate", "--stage", "quick"))
    first, second = sorted(operator.runs.glob("*-validate"))[-2:]

    def report(*words: str) -> subprocess.CompletedProcess[str]:
        return operator.bare("report", *words, "--runs", str(operator.runs))

    assert "gpu" in ok(report())
    ok(report(second.name, "--rejudge", "--changes"))
    ok(report("compare", first.name, second.name))
    assert "gpu-01" in ok(report("history", "gpu-01"))
    ok(report("bundle", "gpu-01", "--output", str(tmp_path / "case.tar.gz")))


def test_a_burn_in_is_resumed(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "short.yml").write_text(LOOK_AND_BURN)
    burnins = Burnins(lab.inventory, tmp_path, tmp_path / "short.yml")
    assert "smoke" in ok(burnins.call("burnin", "profiles"))
    planned = burnins.call("burnin", "plan", str(lab.inventory), "--duration", "6h", "--with-jobs")
    ok(planned)
    ok(burnins.begin("--detach", "--with-jobs", "--break-lock", *ONE, verb="start"))
    resumed = burnins.call("burnin", "resume", burnins.first, "--break-lock", timeout=1200)
    assert resumed.returncode in (ExitCode.OK, ExitCode.UNHEALTHY), said(resumed)
    assert "gpu-01" in said(resumed)
