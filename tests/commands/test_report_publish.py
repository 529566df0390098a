"""`gpuprov report publish`: a stored run's verdicts on Kubernetes nodes, over real HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from provision import cli
from provision.checks.check import Measurement
from provision.checks.health import CheckResult, FleetHealth, NodeHealth
from provision.checks.judge import Finding, Verdict
from provision.errors import ExitCode
from provision.report import json as json_report
from provision.runs.store import RunFolder
from tests.support import kubernetes_api
from tests.support.kubernetes_api import Failure, Served
from tests.support.stored import FIXTURE, limits, measured

LOST = Finding(
    "gpu_inventory", Verdict.FAIL, "gpu3", "GPU has fallen off the bus", "count", action="power-cycle"
)


def check(*findings: Finding, verdict: Verdict = Verdict.PASS) -> CheckResult:
    return CheckResult("gpu_inventory", verdict, findings, (Measurement("count", 8, "", "node"),), 1.0)


def node(name: str, verdict: Verdict, *checks: CheckResult, error: str = "") -> NodeHealth:
    return NodeHealth(name, verdict, checks, facts={"sku": "h100-sxm"}, error=error, unreachable=bool(error))


FLEET = FleetHealth(
    run_id="20260504T095000.000Z-validate",
    gpuprov_version="1",
    inventory="",
    started="2026-05-04T09:50:00.000Z",
    finished="2026-05-04T10:00:00.000Z",
    asked=("gpu_inventory",),
    nodes=(
        node("gpu-01", Verdict.PASS, check()),
        node("gpu-02", Verdict.FAIL, check(LOST, replace(LOST, device="gpu4"), verdict=Verdict.FAIL)),
        node("gpu-03", Verdict.ERROR, error="no route to host"),
        node("gpu-04", Verdict.PASS),  # not measured at all
        node("slurm-01", Verdict.PASS, check()),
    ),
)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with kubernetes_api.serve(tmp_path) as found:
        for number in range(1, 5):
            found.api.add_node(f"gpu-0{number}")
        yield found


@pytest.fixture
def run(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Store a run with an inventory that points to the server, and return the run's name."""
    hosts: dict[str, dict[str, str]] = {
        f"gpu-0{number}": {"gpuprov_scheduler": "kubernetes", "gpuprov_kubeconfig": served.kubeconfig.name}
        for number in range(1, 5)
    }
    inventory = tmp_path / "inventory.yml"
    inventory.write_text(
        yaml.safe_dump({"all": {"hosts": {**hosts, "slurm-01": {"gpuprov_scheduler": "slurm"}}}})
    )
    monkeypatch.setenv("GPUPROV_RUNS", str(tmp_path / "runs"))
    folder = RunFolder.create("validate", {}, runs=tmp_path / "runs")
    fleet = replace(FLEET, inventory=str(inventory))
    (folder.path / "report.json").write_text("".join(json_report.render(fleet)))
    return folder.path.name


def shown(served: Served, name: str) -> tuple[str, str, str]:
    """Return a node's label, and the status and message of its condition."""
    resource = served.api.node(name)
    (condition,) = (one for one in resource["status"]["conditions"] if one["type"] == "GpuHealthy")
    return resource["metadata"]["labels"]["gpuprov.io/verdict"], condition["status"], condition["message"]


def test_each_verdict_stands_on_its_node(
    served: Served, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["report", "publish", run]) == ExitCode.OK
    assert capsys.readouterr().out == "published 4 nodes: gpu-[01-04]\n"
    suffix = f" (run {FLEET.run_id})"
    assert [shown(served, f"gpu-0{number}") for number in range(1, 5)] == [
        ("pass", "True", f"1 check passed: gpu_inventory{suffix}"),
        ("fail", "False", f"gpu3: GPU has fallen off the bus (and 1 more){suffix}"),
        ("error", "Unknown", f"no route to host{suffix}"),
        ("error", "Unknown", f"not measured: gpu_inventory{suffix}"),
    ]
    labels = served.api.node("gpu-01")["metadata"]["labels"]
    assert (labels["gpuprov.io/sku"], labels["gpuprov.io/validated-at"]) == ("h100-sxm", "20260504T100000Z")
    assert labels["gpuprov.io/stack"]
    assert "unschedulable" not in served.api.node("gpu-02")["spec"], "it drains nothing"


def test_what_was_not_written_is_named(served: Served, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    served.api.failures = [Failure("PATCH", "/api/v1/nodes/gpu-02/status", 403)]
    assert cli.main(["report", "publish", run, "--json"]) == ExitCode.INCOMPLETE
    document = json.loads(capsys.readouterr().out)
    assert document["published"] == ["gpu-01", "gpu-03", "gpu-04"]
    assert "patch nodes/status (403)" in document["failed"]["gpu-02"]
    assert cli.main(["report", "publish", run]) == ExitCode.INCOMPLETE
    assert "\nnot published  gpu-02: " in capsys.readouterr().out


@pytest.mark.usefixtures("run")
def test_a_run_is_published_as_it_is_judged_now(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = measured(tmp_path / "runs", {"gpu-01": FIXTURE.read_text(encoding="utf-8")})
    folder.note(inventory=str(tmp_path / "inventory.yml"))
    words = ("--rejudge", "--thresholds", limits(tmp_path / "ours.yml", 60))
    for more, verdict in ((("--rejudge",), "pass"), (words, "fail")):
        assert cli.main(["report", "publish", folder.path.name, *more]) == ExitCode.OK
        assert capsys.readouterr().out == "published 1 node: gpu-01\n"
        assert shown(served, "gpu-01")[0] == verdict


def test_a_fleet_without_kubernetes_has_nowhere_to_publish(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "inventory.yml").write_text("all: {hosts: {gpu-01: {}}}")
    assert cli.main(["report", "publish", run]) == ExitCode.USAGE
    assert "gpuprov_scheduler: kubernetes" in capsys.readouterr().err
