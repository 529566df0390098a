"""The simulated amd-ctk in the forms of ROCm/container-toolkit 1.3.0.
Also the reading of its specification by the program for nodes."""

from __future__ import annotations

import json
import os
import platform
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuprov_lab.elf import kernel_module
from tests.lab_silicon.silicon import Silicon

Make = Callable[..., Silicon]
SPECIFICATION = "etc/cdi/amd.json"


@pytest.fixture
def node(bare: Make) -> Silicon:
    one = bare("mi300x", network="none")
    place = one.root / "lib/modules" / platform.release() / "updates/dkms"
    place.mkdir(parents=True)
    (place / "amdgpu.ko").write_bytes(kernel_module("amdgpu", "6.16.13", "gpl", platform.release()))
    return one.boot()


def test_the_specification(node: Silicon) -> None:
    done = node.run("amd-ctk", "cdi", "generate")
    assert (done.returncode, done.stdout) == (0, "Generated CDI spec: /etc/cdi/amd.json\n")
    document = json.loads((node.root / SPECIFICATION).read_text())
    assert list(document)[:3] == ["cdiVersion", "kind", "devices"]
    assert (document["cdiVersion"], document["kind"]) == ("0.6.0", "amd.com/gpu")
    named = {one["name"]: one["containerEdits"]["deviceNodes"] for one in document["devices"]}
    assert list(named) == [*(str(index) for index in range(8)), "all"]
    assert [one["path"] for one in named["3"]] == ["/dev/dri/card3", "/dev/dri/renderD131", "/dev/kfd"]
    assert len(named["all"]) == 17
    assert {one["permissions"] for one in named["all"]} == {"rwm"}
    listed = node.run("amd-ctk", "cdi", "list").stdout.splitlines()
    assert listed[:4] == [
        "Found 8 AMD GPU devices",
        "amd.com/gpu=all",
        "amd.com/gpu=0",
        "  /dev/dri/renderD128",
    ]


def test_it_is_compared_with_the_machine(node: Silicon) -> None:
    missing = node.run("amd-ctk", "cdi", "validate")
    assert (missing.returncode, missing.stdout.splitlines()[0]) == (
        1,
        "Validating CDI spec: /etc/cdi/amd.json",
    )
    assert "failed to validate CDI spec: opening CDI spec file /etc/cdi/amd.json" in missing.stdout
    node.run("amd-ctk", "cdi", "generate", "--output", "/tmp/own.json")
    assert "CDI spec is valid\n" in node.run("amd-ctk", "cdi", "validate", "--path=/tmp/own.json").stdout
    node.break_("gpu_off_bus gpu=5")
    wrong = node.run("amd-ctk", "cdi", "validate", "--path=/tmp/own.json")
    assert (wrong.returncode, wrong.stdout.splitlines()[1]) == (0, "CDI spec is invalid")


def test_without_the_driver_it_says_so(bare: Make) -> None:
    node = bare("mi300x", network="none")
    done = node.run("amd-ctk", "cdi", "generate")
    why = "amdgpu driver unavailable: stat /sys/module/amdgpu/drivers/: no such file or directory"
    assert (done.returncode, done.stdout) == (1, f"failed to generate CDI spec: getting GPUs: {why}\n")
    assert not (node.root / SPECIFICATION).exists()
    assert not (node.state / "sys_module/amdgpu").exists()


def test_the_driver_shows_what_the_package_looks_for(node: Silicon) -> None:
    assert (node.state / "sys_module/amdgpu/drivers/pci:amdgpu").is_dir()
    nodes = node.state / "sys/class/kfd/kfd/topology/nodes"
    texts = [(path / "properties").read_text().splitlines() for path in nodes.iterdir()]
    minors = sorted(int(line.split()[1]) for text in texts for line in text if "drm_render_minor" in line)
    assert minors == [0, 0, *range(128, 136)]


def test_configuring_docker_forgets_its_other_features(node: Silicon) -> None:
    """Show why the role does not use the command."""
    before = {"features": {"buildkit": True}, "log-level": "warn", "runtimes": {"other": {"path": "x"}}}
    node.file("etc/docker/daemon.json", json.dumps(before))
    daemon = node.root / "etc/docker/daemon.json"
    assert "Please restart docker daemon" in node.run("amd-ctk", "runtime", "configure").stdout
    amd = {"path": "amd-container-runtime", "args": []}
    assert json.loads(daemon.read_text()) == {
        **before, "features": {"cdi": True}, "runtimes": {"other": {"path": "x"}, "amd": amd},
    }  # fmt: skip
    node.file("etc/cdi/nic.yaml", "kind: vendor.com/nic\n")
    node.run("amd-ctk", "runtime", "configure", "--remove")
    assert json.loads(daemon.read_text()) == {"log-level": "warn", "runtimes": {"other": {"path": "x"}}}
    assert not (node.root / "etc/cdi").exists()
    refused = node.run("amd-ctk", "runtime", "configure", "--runtime=containerd")
    assert (refused.returncode, refused.stdout) == (1, "unsupported runtime engine: containerd\n")


def test_the_runtime_gives_the_gpus_that_the_environment_names(node: Silicon, tmp_path: Path) -> None:
    runc = tmp_path / "bin/runc"
    runc.parent.mkdir()
    runc.write_text('#!/bin/sh\necho "$@"\n')
    runc.chmod(runc.stat().st_mode | stat.S_IXUSR)
    path = f"{runc.parent}:{os.environ['PATH']}"
    bundle = tmp_path / "bundle"
    bundle.mkdir()

    def created(*environment: str) -> tuple[int, list[str]]:
        (bundle / "config.json").write_text(json.dumps({"process": {"env": list(environment)}}))
        words = ("--bundle", str(bundle), "create", "one")
        done = node.run("amd-container-runtime", *words, PATH=path)
        settings = json.loads((bundle / "config.json").read_text())
        return done.returncode, [one["path"] for one in settings.get("linux", {}).get("devices", [])]

    (node.root / "var/log").mkdir(parents=True, exist_ok=True)
    assert created() == (0, [])
    assert created("AMD_VISIBLE_DEVICES=9") == (1, [])
    log = node.root / "var/log/amd-container-runtime.log"
    assert "invalid GPUs: 9" in log.read_text()
