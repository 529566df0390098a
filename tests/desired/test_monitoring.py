"""Monitoring hosts: their knowledge of the fleet, and their separation from GPU nodes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from provision.api import health_gate
from provision.commands import fleet_options
from provision.desired import inventory, monitoring, service_hosts, stack
from provision.fleet import Fleet
from provision.up.options import UpOptions

INVENTORY = """
all:
  vars:
    gpuprov_sku: h100-sxm
    gpuprov_expected_gpus: 8
    gpuprov_roles: [nvidia_driver]
  children:
    gpuprov_monitoring:
      hosts:
        mon-01: {ansible_host: 192.0.2.9}
    gpuprov_workers:
      hosts:
        worker-01: {}
    gpus:
      hosts:
        gpu-01: {ansible_host: "192.0.2.{{ 1 }}", gpuprov_rack: 7}
        gpu-02: {ansible_host: "2001:db8::2", gpuprov_rack: "{{ 'r' ~ 2 }}"}
        net-01: {gpuprov_expected_gpus: 0}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    source = tmp_path / "inventory.yml"
    source.write_text(INVENTORY)
    return source


def loaded(file: Path, *words: str, gpu_only: bool = False) -> tuple[Fleet, dict[str, Any]]:
    parser = argparse.ArgumentParser()
    fleet_options.add_arguments(parser, gpu_only=gpu_only)
    return fleet_options.load(parser.parse_args([str(file), *words]))


def test_a_monitoring_host_is_told_of_every_gpu_node_whatever_was_chosen(file: Path) -> None:
    for words in ((), ("--nodes", "mon-01"), ("--nodes", "mon-01:gpu-02")):
        fleet, _ = loaded(file, *words)
        assert fleet.nodes["mon-01"].variables["monitoring_nodes"] == [
            {"name": "gpu-01", "address": "192.0.2.1", "rack": "7", "sku": "h100-sxm", "gpus": True},
            {"name": "gpu-02", "address": "2001:db8::2", "rack": "r2", "sku": "h100-sxm", "gpus": True},
            {"name": "net-01", "address": "net-01", "rack": "", "sku": "h100-sxm", "gpus": False},
        ]


@pytest.mark.parametrize(
    ("declared", "exporter"),
    [
        ("", ""),
        ("gpu_metrics_amd_version: 1.5.1", "amd"),
        ("gpu_metrics_amd_version: ''", ""),
        ("gpu_metrics_amd_version: 1.5.1, gpu_metrics_password_hashes: {a: b}", ""),
        (
            "gpu_metrics_amd_version: 1.5.1, gpu_metrics_password_hashes: {a: b}, "
            "gpu_metrics_amd_address: 192.0.2.1",
            "amd",
        ),
    ],
)
def test_amds_exporter_is_scraped_where_it_is_declared_and_can_be_reached(
    file: Path, declared: str, exporter: str
) -> None:
    more = f", gpuprov_sku: mi300x, {declared}".rstrip(", ")
    file.write_text(file.read_text().replace("gpuprov_rack: 7", f"gpuprov_rack: 7{more}"))
    fleet, _ = loaded(file)
    amds, others, *_ = fleet.nodes["mon-01"].variables["monitoring_nodes"]
    assert (amds["name"], amds["exporter"]) == ("gpu-01", exporter)
    assert "exporter" not in others


def test_nodes_that_it_declares_itself_stay(file: Path) -> None:
    file.write_text(
        file.read_text().replace("{ansible_host: 192.0.2.9}", "{monitoring_nodes: [{name: a, address: b}]}")
    )
    fleet, _ = loaded(file)
    assert fleet.nodes["mon-01"].variables["monitoring_nodes"] == [{"name": "a", "address": "b"}]


def test_the_fleet_is_not_read_anew_where_nobody_watches(file: Path) -> None:
    whole = inventory.select(inventory.load(file), "gpus")
    assert monitoring.watching(whole, lambda: pytest.fail("nobody watches"), (), print) is whole


def test_variables_of_gpu_nodes_do_not_hold_for_a_monitoring_host(file: Path) -> None:
    fleet, overrides = loaded(file)
    declared = stack.declared(fleet.nodes["mon-01"], overrides)
    assert declared["gpuprov_roles"] == ["monitoring"]
    assert not {"gpuprov_sku", "gpuprov_expected_gpus"} & declared.keys()
    assert declared["monitoring_enabled"] is True


@pytest.mark.parametrize(
    ("said", "overrides", "roles"),
    [
        (["monitoring", "host_settings"], {}, ["monitoring", "host_settings"]),
        (["nccl"], {"gpuprov_roles": ["nccl"]}, []),
        (["nccl", "monitoring"], {"gpuprov_roles": ["nccl", "monitoring"]}, ["nccl", "monitoring"]),
    ],
)
def test_roles_that_name_monitoring_are_meant(
    file: Path, said: list[str], overrides: dict[str, Any], roles: list[str]
) -> None:
    fleet, _ = loaded(file)
    found = service_hosts.declared(fleet.nodes["mon-01"], {"gpuprov_roles": said}, overrides)
    assert found["gpuprov_roles"] == roles


def test_a_gpu_node_never_takes_part_in_monitoring(file: Path) -> None:
    fleet, overrides = loaded(file)
    declared = stack.declared(fleet.nodes["gpu-01"], overrides)
    assert declared["monitoring_enabled"] is False
    assert declared["gpuprov_roles"] == ["nvidia_driver"]
    assert declared["gpuprov_expected_gpus"] == 8


def test_verbs_that_measure_leave_it_out_and_say_so(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet, _ = loaded(file, gpu_only=True)
    assert list(fleet.nodes) == ["gpu-01", "gpu-02", "net-01"]
    assert "mon-01: left out, no GPU node (group gpuprov_monitoring)" in capsys.readouterr().err


def test_unless_nothing_else_was_chosen(file: Path) -> None:
    fleet, _ = loaded(file, "--nodes", "mon-01", gpu_only=True)
    assert list(fleet.nodes) == ["mon-01"]


def test_nodes_that_declare_no_exporter_are_named(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = "gpu-[01-02], net-01: scraped by mon-01, and nothing declares gpu_metrics_enabled"
    loaded(file)
    assert first in capsys.readouterr().err
    loaded(file, "--set", "gpu_metrics_enabled=true")
    loaded(file, "--nodes", "gpu-01")
    assert "gpu_metrics_enabled" not in capsys.readouterr().err
    file.write_text(file.read_text().replace("gpuprov_rack: 7", "gpu_metrics_enabled: false"))
    loaded(file)
    assert "gpu-02, net-01: scraped by mon-01" in capsys.readouterr().err


def test_the_health_gate_asks_no_monitoring_host(file: Path) -> None:
    fleet, overrides = loaded(file)
    never = lambda *_: pytest.fail("nothing is to be measured")  # noqa: E731
    assert health_gate.quick(fleet, overrides, ["mon-01"], UpOptions(), never) == {}
