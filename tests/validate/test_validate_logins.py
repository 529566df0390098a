"""Number of logins of `gpuprov validate` per node; logins dominate the cost of a quick run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from provision import cli
from provision.errors import ExitCode
from provision.remote.reach import fleet_lock
from tests.support.sshd import Sshd


@pytest.fixture
def inventory(own_sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two nodes on this machine that declare more GPUs than exist, so nothing is measured."""
    unpatched = fleet_lock._program

    def elsewhere(request: Any) -> str:
        home = tmp_path / str(request["node"])
        home.mkdir(exist_ok=True)
        return unpatched({**request, "folder": str(home / "locks"), "root": str(home)})

    monkeypatch.setattr(fleet_lock, "_program", elsewhere)
    monkeypatch.setenv("GPUPROV_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "inventory.json"
    hosts = {name: own_sshd.node(name, ansible_become=False).variables for name in ("gpu-01", "gpu-02")}
    path.write_text(json.dumps({"all": {"hosts": hosts, "vars": {"gpuprov_expected_gpus": 99}}}))
    return path


@pytest.mark.parametrize(
    ("checks", "each"), [("gpu_inventory,host_health", 1), ("gpu_inventory,memory_bandwidth", 2)]
)
def test_it_locks_looks_and_unlocks_over_one_connection_unless_a_load_lies_between(
    own_sshd: Sshd, inventory: Path, tmp_path: Path, checks: str, each: int
) -> None:
    before = own_sshd.logins()
    words = ["validate", "-i", str(inventory), "--nodes", "all", "--checks", checks]
    assert cli.main(words) == ExitCode.UNHEALTHY
    assert own_sshd.logins() - before == 2 * each
    for name in ("gpu-01", "gpu-02"):
        assert (tmp_path / name / "locks").is_dir()
        assert not (tmp_path / name / "locks/private/lock").exists(), "the lock was given back"
