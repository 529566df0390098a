"""Slurm hosts without GPUs: no verb works on them, yet they can be queried for Slurm."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from provision.commands import fleet_options
from provision.errors import InventoryError
from provision.fleet import GROUPS, Fleet, Kind
from provision.remote.schedulers.commands import Commands

INVENTORY = """
all:
  vars:
    gpuprov_scheduler: slurm
    gpuprov_sku: h100-sxm
    address: 192.0.2.4
  children:
    gpuprov_slurm:
      hosts:
        slurm-1: {ansible_host: "{{ address }}"}
        gpu-02: {}
        mon-01: {}
    gpuprov_monitoring:
      hosts:
        mon-01: {}
    gpus:
      hosts:
        gpu-01: {}
        gpu-02: {}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    source = tmp_path / "inventory.yml"
    source.write_text(INVENTORY)
    return source


def loaded(file: Path, *words: str) -> Fleet:
    parser = argparse.ArgumentParser()
    fleet_options.add_arguments(parser)
    return fleet_options.load(parser.parse_args([str(file), *words]))[0]


def test_a_host_of_slurm_alone_is_no_node_and_that_is_said(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(loaded(file).nodes) == ["gpu-02", "mon-01", "gpu-01"]
    assert "slurm-1: left out, no GPU node (its only group is gpuprov_slurm)" in capsys.readouterr().err
    assert list(loaded(file, "--nodes", "gpuprov_slurm").nodes) == ["gpu-02", "mon-01"]


def test_nothing_is_said_of_one_that_was_not_chosen(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert list(loaded(file, "--nodes", "gpus").nodes) == ["gpu-01", "gpu-02"]
    assert capsys.readouterr().err == ""


def test_chosen_alone_it_is_refused(file: Path) -> None:
    with pytest.raises(InventoryError, match="slurm-1: no GPU node: its only group is gpuprov_slurm"):
        loaded(file, "--nodes", "slurm-1")


@pytest.mark.parametrize("words", [(), ("--nodes", "gpu-01")])
def test_slurm_is_asked_there_all_the_same(file: Path, words: tuple[str, ...]) -> None:
    """The address is rendered, since the host is reached without Ansible."""
    commands = Commands(loaded(file, *words), GROUPS[Kind.SLURM], lambda _: False)
    first = commands._hosts[0]
    assert (first.name, first.variables["ansible_host"]) == ("slurm-1", "192.0.2.4")


def test_it_is_not_watched_as_a_gpu_node(file: Path) -> None:
    targets = loaded(file, "--nodes", "mon-01").nodes["mon-01"].variables["monitoring_nodes"]
    assert [one["name"] for one in targets] == ["gpu-02", "gpu-01"]
