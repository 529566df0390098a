"""Scripts of the role slurm_health, run as Slurm runs them, and the role's expectations."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from provision.desired.expectations import Expectation
from tests.roles.promises import promised, promised_by
from tests.support.described import machine

WORDS = ("check", "prolog", "epilog")
NODE_LINE = "file./etc/slurm/gpuprov-node.txt.content"


def of_amd(sku: str | None, **declared: Any) -> dict[str, Expectation]:
    """Return the expectations for a node with eight AMD devices on the PCI bus."""
    node = machine("ubuntu 24.04", vendor="amd", sku=sku, architecture=None, fabric="none")
    return promised(node, slurm_health_enabled=True, gpuprov_stack="amdgpu30.30-rocm7.2", **declared)


def script(tmp_path: Path, word: str, python: str, **declared: Any) -> Path:
    """Return the role's script, with another Python in place of the node's."""
    facts = promised(
        slurm_health_enabled=True, slurm_health_python=python, slurm_health_path="/usr/bin:/bin", **declared
    )
    names = {"check": "slurm-health-check", "prolog": "slurm-prolog", "epilog": "slurm-epilog"}
    file = tmp_path / names[word]
    file.write_text(facts[f"file./usr/libexec/gpuprov/{names[word]}.content"].value)
    file.chmod(0o755)
    return file


@pytest.mark.parametrize("word", WORDS)
def test_only_a_verdict_fails_a_script_of_slurm(tmp_path: Path, word: str) -> None:
    """A failed Prolog drains its node, so one that cannot run must not drain the fleet."""
    for status in (0, 1, 2, 3, 5, 70, 126, 127, 139):
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\necho "$*" > {tmp_path}/asked\nexit {status}\n')
        python.chmod(0o755)
        done = subprocess.run([script(tmp_path, word, str(python))], check=False, env={})
        assert (done.returncode != 0) == (status == 3), status
        asked = f"-IS /usr/local/sbin/gpuprov-node-health slurm {word} --share 10 --least 3\n"
        assert (tmp_path / "asked").read_text() == asked
    gone = subprocess.run(
        [script(tmp_path, word, "/nowhere/python")], check=False, env={}, capture_output=True
    )
    assert gone.returncode == 0
    crashed = tmp_path / "crash"
    crashed.write_text("#!/bin/sh\nkill -SEGV $$\n")
    crashed.chmod(0o755)
    assert subprocess.run([script(tmp_path, word, str(crashed))], check=False, env={}).returncode == 0


def test_the_watchs_limit_of_drains_is_the_nodes_own(tmp_path: Path) -> None:
    keys = {"gpuprov_watch": {"breaker_share": 2.5, "breaker_nodes": 7}}
    assert (
        "slurm check --share 2.5 --least 7\n"
        in script(tmp_path, "check", "/usr/bin/python3", **keys).read_text()
    )


def test_the_prolog_refuses_the_unknown_where_that_is_declared(tmp_path: Path) -> None:
    told_to = {"slurm_health_unknown": "refuse"}
    assert (
        "slurm prolog --share 10 --least 3 --refuse-unknown\n"
        in script(tmp_path, "prolog", "/usr/bin/python3", **told_to).read_text()
    )
    for word in ("check", "epilog"):
        assert "--refuse" not in script(tmp_path, word, "/usr/bin/python3", **told_to).read_text()


RUNNING = {
    "slurm.health_check_program",
    "slurm.health_check_interval",
    "slurm.prolog",
    "slurm.epilog",
    "slurm.gpus",
}


def test_slurms_own_configuration_is_held_only_where_it_has_the_lines() -> None:
    """The programs must be on all nodes before slurm.conf names them."""
    without = promised_by("slurm_health", enabled=True)
    assert not {fact for fact in without if fact.startswith("slurm.")}
    expected = promised_by("slurm_health", enabled=True, include=True, interval=120)
    assert {fact for fact in expected if fact.startswith("slurm.")} == RUNNING
    assert expected["slurm.health_check_interval"].value == 120
    assert expected["slurm.gpus"].value == machine()["gpu"]["count"]


def test_the_number_of_mig_devices_is_not_that_of_gpus() -> None:
    told = {"slurm_health_enabled": True, "slurm_health_include": True}
    assert "slurm.gpus" not in promised(gpu_settings_mig={"all": ["3g.40gb", "3g.40gb"]}, **told)
    assert promised(gpuprov_expected_gpus=4, **told)["slurm.gpus"].value == 4


@pytest.mark.parametrize(
    ("mig", "devices"),
    [
        ({"enabled": True, "profiles": {"all": ["3g.40gb", "3g.40gb"]}}, 16),
        ({"enabled": True, "profiles": {0: ["1g.10gb"] * 7, 1: ["3g.40gb"] * 2}}, 7 + 2 + 6),
        ({"enabled": True, "profiles": {"all": [], "7": ["7g.80gb"]}}, 1),
        ({"enabled": False, "profiles": {"all": ["3g.40gb", "3g.40gb"]}}, 8),
    ],
)
def test_slurm_hands_out_the_declared_mig_devices(mig: dict[str, Any], devices: int) -> None:
    """Gres has as many GPUs as gpu_settings creates MIG devices; any other number is drift."""
    expected = promised(gpu_settings_mig=mig, slurm_health_enabled=True, slurm_health_include=True)
    assert expected["slurm.gpus"].value == devices
    assert f" Gres=gpu:{devices}\n" in expected[NODE_LINE].value


@pytest.mark.parametrize(
    ("sku", "partition", "devices"),
    [
        ("mi300x", "", 8),
        ("mi250x", "", 8),  # four modules of two dies; each die is a PCI device
        ("mi300x", "SPX", 8),
        ("mi300x", "dpx", 16),
        ("mi300x", "CPX", 64),
        ("mi355x", "QPX", 32),
        ("mi300a", "TPX", 24),
        ("mi300a", "CPX", 48),
    ],
)
def test_each_die_and_each_partition_of_amds_gpus_is_a_device(sku: str, partition: str, devices: int) -> None:
    told = {"slurm_health_include": True, "amd_gpu_settings_compute_partition": partition}
    found = of_amd(sku, **told)
    assert found["slurm.gpus"].value == devices
    assert f" Gres=gpu:{devices} Feature={sku},amdgpu30.30-rocm7.2\n" in found[NODE_LINE].value
    half = of_amd(sku, gpuprov_expected_gpus=4, **told)
    assert half["slurm.gpus"].value == devices / 2
    off = of_amd(sku, amd_gpu_settings_enabled=False, **told)
    assert off["slurm.gpus"].value == 8, "then nobody divides them"


@pytest.mark.parametrize(("sku", "partition"), [(None, "CPX"), ("mi250x", "CPX"), ("mi300x", "XPX")])
def test_devices_that_nobody_can_count_are_not_compared(sku: str | None, partition: str) -> None:
    found = of_amd(sku, slurm_health_include=True, amd_gpu_settings_compute_partition=partition)
    assert "slurm.gpus" not in found
    assert "Gres=" not in found[NODE_LINE].value


def test_a_variable_for_amds_gpus_divides_no_others() -> None:
    told = {"slurm_health_enabled": True, "slurm_health_include": True}
    assert promised(amd_gpu_settings_compute_partition="CPX", **told)["slurm.gpus"].value == 8


def test_what_every_node_includes_is_the_same_everywhere_and_the_rest_is_the_nodes() -> None:
    told = {"slurm_health_enabled": True, "gpuprov_stack": "r580-cuda12.9"}
    nodes = machine(sku="h100-sxm"), machine("rocky 9.4", sku="l40s", count=4, architecture="ada")
    kinds = [promised(node, **told) for node in nodes]
    one, other = (kind["file./etc/slurm/gpuprov.conf.content"].value for kind in kinds)
    assert one == other
    assert "\nProlog=/usr/libexec/gpuprov/slurm-prolog\n" in one
    own = [kind["file./etc/slurm/gpuprov-node.txt.content"].value.splitlines()[-1] for kind in kinds]
    assert own == [
        "NodeName=NAME Gres=gpu:8 Feature=h100-sxm,r580-cuda12.9",
        "NodeName=NAME Gres=gpu:4 Feature=l40s,r580-cuda12.9",
    ]
