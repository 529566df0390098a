"""The same walk over the roles in service: a GPU node under a real Slurm, and a monitoring host.
The exporters are guarded and a Grafana is declared, so that every promise is made."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from gpuprov_lab.spec import NodeSpec
from tests.lab import breakers, slurm_cluster
from tests.lab.gpuprov_up import Operator
from tests.lab.images import Images
from tests.lab.lab_nodes import Lab, running_lab
from tests.lab.walk import Walk

ROLES = {"node_health", "gpu_metrics", "slurm_health", "monitoring"}
# Hash of `password` for the user alice, from NVIDIA/dcgm-exporter tests/integration/testdata/web-config.yml.
HASH = "$2y$10$CWCEbs7mt8QFrToJR9OcG.tduEKpx9SROhWnaDHQgQX4Q6hqWNASa"
DECLARED: dict[str, Any] = {
    "node_health_enabled": True,
    "node_health_interval": 3600,  # keeps its next run from repairing a broken fact before it is observed
    "slurm_health_enabled": True,
    "slurm_health_include": True,
    "gpu_metrics_enabled": True,
    "gpu_metrics_password_hashes": {"alice": HASH},
    "monitoring_user": "alice",
    "monitoring_password": "not the word for a file",
    "monitoring_email_to": ["ops@example.org"],
    "monitoring_email_from": "gpuprov@example.org",
    "monitoring_smtp_server": "mail.example.org:587",
    "monitoring_smtp_user": "gpuprov",
    "monitoring_smtp_password": "another word",
    "monitoring_grafana": True,
}
pytestmark = [pytest.mark.long, pytest.mark.timeout(5400)]


@pytest.fixture(scope="module")
def lab(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = (NodeSpec("gpu-01", "h100-sxm"), NodeSpec("mon", "l40s"))
    disks = {"gpu-01": images.with_slurm()}
    inventory = tmp_path_factory.mktemp("lab") / "lab.yml"
    with running_lab("servicewalk", nodes, inventory, images=disks) as running:
        slurm_cluster.start([running.node("gpu-01")], patience=60)
        # Created before the role runs: an Include of a missing file would keep slurmctld from starting.
        running.node("gpu-01").as_root(
            "touch /etc/slurm/gpuprov.conf; echo 'Include gpuprov.conf' >> /etc/slurm/slurm.conf"
        )
        yield running


@pytest.fixture(scope="module")
def declared(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("pki")
    address = lab.node("gpu-01").address
    made = ["-subj", "/CN=gpu-01", "-addext", f"subjectAltName=IP:{address}", "-days", "2"]
    made += ["-keyout", str(folder / "key"), "-out", str(folder / "crt")]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *made], check=True, capture_output=True
    )
    certificate = (folder / "crt").read_text()
    return DECLARED | {
        "monitoring_ca": certificate,
        "gpu_metrics_tls_certificate": certificate,
        "gpu_metrics_tls_private_key": (folder / "key").read_text(),
    }


@pytest.fixture(scope="module")
def operator(lab: Lab, declared: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Operator:
    """Return an operator of nodes on which Slurm has read the role's lines."""
    document = yaml.safe_load(lab.inventory.read_text())
    document["gpuprov_monitoring"] = {"hosts": {"mon": {}}}
    inventory = tmp_path_factory.mktemp("inventory") / "nodes.yml"
    inventory.write_text(yaml.safe_dump(document))
    one = Operator(inventory, tmp_path_factory.mktemp("runs"))
    one.call("up", "--yes", timeout=1500, **declared)
    lab.node("gpu-01").as_root(breakers.RECONFIGURE)
    return one


def test_every_expectation_in_service_is_noticed_when_broken_and_is_repaired_by_its_role(
    lab: Lab, operator: Operator, declared: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    def say(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(text)
            sys.stdout.flush()

    count, trouble = Walk(lab, operator, declared, ROLES).whole(say)
    assert trouble == []
    assert set(count) == ROLES
