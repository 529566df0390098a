"""Expectations of container_toolkit for runtimes, CDI and restarts, on every distribution."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest

from provision import yamlfile
from provision.desired.expectations import renderer_for
from provision.desired.role import all_roles
from tests.roles.promises import promised_by
from tests.support.described import machine

RUNTIMES = ("docker", "containerd", "crio", "podman")
promised = partial(promised_by, "container_toolkit")


def test_a_runtime_is_promised_only_when_it_is_asked_for() -> None:
    assert not [fact for fact in promised() if fact.startswith("container_runtime.") and "nvidia" not in fact]
    for runtime in RUNTIMES:
        facts = promised(runtimes=[runtime])
        named = {fact.split(".")[1] for fact in facts if fact.startswith("container_runtime.")}
        assert named == {runtime, "nvidia"}


def test_a_restart_is_shown_for_what_needs_one_and_docker_reloads_for_the_rest() -> None:
    facts = promised(runtimes=["docker", "containerd"])
    assert facts["container_runtime.docker.path"].restarts == ()
    assert facts["container_runtime.docker.cdi"].restarts == ("docker.service",)
    assert facts["container_runtime.containerd.keeps_runc"].restarts == ("containerd.service",)
    due = facts["container_runtime.docker.restart_required"]
    assert (due.value, due.restarts) == (False, ("docker.service",))


@pytest.mark.parametrize("told", ["auto", ["auto"]])
def test_auto_promises_that_none_was_forgotten(told: Any) -> None:
    facts = promised(runtimes=told)
    assert facts["container_runtime.all.unconfigured"].value == []
    assert facts["container_runtime.all.without_cdi"].value == []
    assert "container_runtime.docker.path" not in facts
    assert "container_runtime.docker.restart_required" in facts


def test_without_cdi_nothing_is_promised_of_it() -> None:
    facts = promised(cdi=False, runtimes=["docker", "containerd"])
    assert not [fact for fact in facts if fact.startswith("container.cdi.") or fact.endswith(".cdi")]
    assert facts["service.nvidia-cdi-refresh.path.enabled"].value == "disabled"
    drop_in = "file./etc/systemd/system/nvidia-cdi-refresh.service.d/10-gpuprov.conf"
    assert facts[f"{drop_in}.exists"].value is False
    assert f"{drop_in}.content" not in facts


def test_a_machine_without_a_gpu_has_no_specification_to_be_true() -> None:
    assert "container.cdi.missing" in promised()
    assert "container.cdi.missing" not in promised(machine(count=0))


@pytest.mark.parametrize(
    ("version", "before"), [("1.18.2-1", True), ("1.19.0-1", False), ("1.19.1-1", True), ("1.20.0-1", True)]
)
def test_the_order_at_boot_where_the_packages_service_allows_it(version: str, before: bool) -> None:
    """1.19.0 starts it after multi-user.target, which waits for Docker: ordering it before is a cycle."""
    fact = "file./etc/systemd/system/nvidia-cdi-refresh.service.d/10-gpuprov.conf.content"
    text = promised(version=version)[fact].value
    assert ("Before=docker.service" in text) is before
    assert "TimeoutStartSec=90s" in text
    assert "create-dev-char-symlinks" in text


@pytest.mark.parametrize("os_id", ["debian", "ubuntu", "rhel", "rocky", "almalinux"])
def test_all_four_packages_are_held_everywhere_and_apt_is_told_on_debian_only(os_id: str) -> None:
    version = {"debian": "12", "ubuntu": "24.04"}.get(os_id, "9.4")
    facts = promised(machine(f"{os_id} {version}"), version="1.19.1-1")
    packages = {fact.split(".")[1] for fact in facts if fact.endswith(".held")}
    assert packages == {
        *("nvidia-container-toolkit", "nvidia-container-toolkit-base"),
        *("libnvidia-container-tools", "libnvidia-container1"),
    }
    assert all(facts[f"package.{name}.version"].value == "1.19.1-1" for name in packages)
    preferences = [fact for fact in facts if fact.startswith("file./etc/apt/")]
    assert bool(preferences) is (os_id in ("debian", "ubuntu"))


@pytest.mark.parametrize(
    ("system", "packages"),
    [
        ("debian 12", {"docker.io"}),
        ("debian 13", {"docker.io", "docker-cli"}),
        ("ubuntu 22.04", {"docker.io"}),
        ("rocky 9.4", set()),
    ],
)
def test_the_distributions_own_docker_where_it_has_one(system: str, packages: set[str]) -> None:
    facts = promised(machine(system), install_runtime="docker")
    found = {fact[len("package.") : -len(".status")] for fact in facts if fact.startswith("package.docker")}
    assert found == packages
    assert "container_runtime.docker.path" in facts, "what is installed is configured, too"


def test_every_runtime_has_a_version_that_reads_the_specification() -> None:
    own = all_roles()["container_toolkit"].own_vars(machine()["os"])
    known = own["__container_toolkit_runtimes"]
    oldest = {"docker": "26.1", "containerd": "1.7.16", "crio": "1.30", "podman": "5.1"}
    assert {name: each["cdi"] for name, each in known.items()} == oldest


# Output of nvidia-ctk 1.19.1 --config-source=file for a config.toml with only runc options.
WITHOUT_TYPE = """\
        [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]

          [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia.options]
            BinaryName = "/usr/bin/nvidia-container-runtime"
            SystemdCgroup = true

        [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
          runtime_type = "io.containerd.runc.v2"
"""


def test_a_type_that_nvidia_ctk_left_out_is_named() -> None:
    tasks = yamlfile.load(all_roles()["container_toolkit"].path / "tasks/containerd.yml")
    (task,) = (one["ansible.builtin.replace"] for one in tasks if "ansible.builtin.replace" in one)
    named = re.sub(task["regexp"], task["replace"], WITHOUT_TYPE, flags=re.MULTILINE)
    table = '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]'
    kind = '          runtime_type = "io.containerd.runc.v2"\n'
    assert named == WITHOUT_TYPE.replace(f"{table}\n", f"{table}\n{kind}")
    assert re.sub(task["regexp"], task["replace"], named, flags=re.MULTILINE) == named


@pytest.mark.parametrize(
    ("disabled", "refused"),
    [('["cri"]', True), ("['io.containerd.grpc.v1.cri']", True), ("[]", False), ('["criu"]', False)],
)
def test_containerd_whose_plugin_is_off_is_refused(disabled: str, refused: bool) -> None:
    own = all_roles()["container_toolkit"]
    (task,) = (
        one
        for one in yamlfile.load(own.path / "tasks/runtimes.yml")
        if "__container_toolkit_refused" in one.get("vars", {})
    )
    said = {"programs": {"containerd_settings": {"rc": 0, "stdout": f"disabled_plugins = {disabled}\n"}}}
    known = {"said": said, "absent": [], "old": []}
    values = {**task["vars"], **{f"__container_toolkit_{name}": value for name, value in known.items()}}
    values |= {"ansible_check_mode": False, "container_toolkit_runtimes": ["containerd"]}
    text = renderer_for(own, values, machine()).value("{{ __container_toolkit_refused }}")
    assert ("Take cri out of disabled_plugins" in text) is refused
