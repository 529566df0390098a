"""Partitions and power limits of AMD GPUs on a lab node: changes at once and at boot, and refusals.
The node's files show the settings, but not how many GPUs a program would find."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, said
from tests.lab.lab_nodes import Lab, running_lab

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
ROLE = "amd_gpu_settings"
ROLES = ["amd_repository", "amdgpu_driver", ROLE]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = (NodeSpec("amd-01", "mi300x"),)
    with running_lab("ctk", nodes, tmp_path_factory.mktemp("lab") / "lab.yml") as running:
        yield running


def up(operator: Operator, rc: int = ExitCode.OK, *words: str, **settings: Any) -> str:
    declared = {"gpuprov_roles": ROLES, **{f"{ROLE}_{name}": value for name, value in settings.items()}}
    done = operator.call("up", "--yes", *words, timeout=1500, **declared)
    assert done.returncode == rc, said(done)
    return " ".join(said(done).split())


def modes(lab: Lab, name: str) -> set[str]:
    return set(lab.node("amd-01").run(f"cat /sys/bus/pci/devices/*/{name}").stdout.split())


def test_a_power_limit_and_compute_partitions_come_at_once(lab: Lab, operator: Operator) -> None:
    up(operator, compute_partition="CPX", power_limit=600)
    assert modes(lab, "current_compute_partition") == {"CPX"}
    assert modes(lab, "hwmon/hwmon*/power1_cap") == {"600000000"}
    lab.node("amd-01").reboot()  # an MI300X returns to SPX at boot
    assert modes(lab, "current_compute_partition") == {"CPX"}
    assert modes(lab, "hwmon/hwmon*/power1_cap") == {"600000000"}


def test_memory_partitions_come_with_a_boot(lab: Lab, operator: Operator) -> None:
    told = up(operator, compute_partition="CPX", memory_partition="NPS4", power_limit=600)
    assert "rebooting 1 node" in told
    assert modes(lab, "current_memory_partition") == {"NPS4"}
    assert modes(lab, "current_compute_partition") == {"CPX"}
    again = up(operator, compute_partition="CPX", memory_partition="NPS4", power_limit=600)
    assert "rebooting" not in again


def test_what_a_gpu_cannot_do_is_refused_before_anything_changes(lab: Lab, operator: Operator) -> None:
    before = lab.node("amd-01").run("cat /usr/local/sbin/gpuprov-amd-gpu-settings").stdout
    told = up(operator, ExitCode.UNHEALTHY, compute_partition="TPX", power_limit=900)
    assert "GPU 0000:05:00.0 cannot be TPX: it offers SPX, DPX, QPX, CPX." in told
    assert "cannot be limited to 900 W: it allows 0 to 750 W." in told
    assert lab.node("amd-01").run("cat /usr/local/sbin/gpuprov-amd-gpu-settings").stdout == before


def test_removed_it_sets_nothing_at_boot(lab: Lab, operator: Operator) -> None:
    rest = [role for role in ROLES if role != ROLE]
    settings = {"gpuprov_roles": rest, f"{ROLE}_compute_partition": "CPX", f"{ROLE}_memory_partition": "NPS4"}
    done = operator.call("up", "--yes", "--remove", ROLE, timeout=1500, **settings)
    assert done.returncode == ExitCode.OK, said(done)
    lab.node("amd-01").reboot()
    assert modes(lab, "current_compute_partition") == {"SPX"}
    drift = operator.call("drift", "--json", "--no-majority", gpuprov_roles=rest)
    assert json.loads(drift.stdout)["drifts"] == []
