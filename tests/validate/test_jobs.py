"""Checks never load a node that runs a user's job."""

from __future__ import annotations

from typing import Any

import pytest

from provision.errors import ExitCode
from provision.remote.schedulers import chosen
from provision.remote.schedulers.slurm import Slurm
from tests.support.machines import Machines, verdicts
from tests.support.machines import machines as machines
from tests.support.machines import validate as validate
from tests.support.slurm_cluster import Cluster

SLURM = {"gpuprov_scheduler": "slurm"}


@pytest.fixture
def cluster(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    machines.add("gpu-01")
    machines.add("gpu-02")
    known = Cluster({"gpu-01": ["IDLE", ""], "gpu-02": ["MIXED", ""]}, jobs=["123|alice|0:03|gpu-02"])
    monkeypatch.setitem(chosen.MAKERS, "slurm", lambda fleet, names: Slurm(fleet, names, known))
    return known


def test_a_node_with_a_job_is_left_out_with_its_line(cluster: Cluster, validate: Any) -> None:
    code, report, _ = validate(variables=SLURM)
    assert code == ExitCode.INCOMPLETE
    assert verdicts(report) == {"gpu-01": "pass", "gpu-02": "error"}
    why = "not measured: job 123 of alice (3 s) runs on it → --with-jobs loads it all the same"
    assert report["nodes"][1]["error"] == why
    assert report["nodes"][1]["checks"] == []
    assert cluster.updates == []


def test_with_jobs_loads_it_all_the_same(cluster: Cluster, validate: Any) -> None:
    cluster.down = "nobody is to be asked"
    _, report, _ = validate("--with-jobs", variables=SLURM)
    assert verdicts(report) == {"gpu-01": "pass", "gpu-02": "pass"}


def test_checks_that_only_read_do_not_ask(cluster: Cluster, validate: Any) -> None:
    cluster.down = "nobody is to be asked"
    _, report, _ = validate(variables=SLURM, checks=("gpu_inventory",))
    assert verdicts(report) == {"gpu-01": "pass", "gpu-02": "pass"}


def test_not_knowing_is_not_free(cluster: Cluster, validate: Any) -> None:
    cluster.down = "Unable to contact slurm controller"
    code, report, _ = validate(variables=SLURM)
    assert code == ExitCode.INCOMPLETE
    assert verdicts(report) == {"gpu-01": "error", "gpu-02": "error"}
    assert "does not say whether a job runs on it: Unable to contact" in report["nodes"][0]["error"]
