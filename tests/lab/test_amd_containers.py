"""Containers on a lab node with AMD GPUs get the requested ones, by real podman and Docker.
This also holds after a reboot and after another release of the toolkit, whose scripts remove the settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.container_image import DOCKER, IMAGE, RUN
from tests.lab.gpuprov_up import Operator, said
from tests.lab.lab_nodes import Lab, LabNode, running_lab

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
ROLE = "amd_container_toolkit"
DECLARED: dict[str, Any] = {
    "gpuprov_roles": ["amd_repository", "amdgpu_driver", ROLE],
    f"{ROLE}_runtimes": ["docker", "podman"],
    f"{ROLE}_install_runtime": "podman",
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = (NodeSpec("amd-01", "mi300x", containers=True),)
    with running_lab("ctk", nodes, tmp_path_factory.mktemp("lab") / "lab.yml") as running:
        yield running


def up(operator: Operator, *words: str, rc: int = ExitCode.OK, **variables: Any) -> str:
    done = operator.call("up", "--yes", *words, timeout=1500, **{**DECLARED, **variables})
    assert done.returncode == rc, said(done)
    return said(done)


def changed(operator: Operator) -> list[str]:
    """Return the tasks that changed something in the last run."""
    run = max(Path(operator.runs).glob("*-up"), key=lambda folder: folder.name)
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [event["task"] for event in events if event["kind"] == "changed"]


@pytest.fixture
def node(lab: Lab, operator: Operator) -> LabNode:
    """Return a node after `up` with Docker, podman from the role, and an image in both."""
    node = lab.node("amd-01")
    if node.run("test -e /tmp/image.tar", check=False).returncode:
        node.as_root(
            f"apt-get -q update && apt-get -qy install --no-install-recommends {DOCKER}", timeout=600
        )
        settings = '{"log-level": "warn", "features": {"buildkit": true}}'
        node.as_root(f"printf '%s' '{settings}' > /etc/docker/daemon.json; systemctl restart docker")
        up(operator)
        node.as_root(IMAGE, timeout=300)
    return node


def gpus(node: LabNode, command: str) -> int:
    return node.run(command).stdout.count("Device Type:             GPU")


@pytest.mark.parametrize("runtime", RUN)
def test_a_container_sees_the_gpus_it_asked_for(node: LabNode, runtime: str) -> None:
    assert gpus(node, f"{RUN[runtime]} --device amd.com/gpu=all lab rocminfo") == 8
    assert gpus(node, f"{RUN[runtime]} --device amd.com/gpu=3 lab rocminfo") == 1
    shown = node.run(f"{RUN[runtime]} --device amd.com/gpu=3 lab ls /dev/dri /dev/kfd").stdout.split()
    assert {name for name in shown if name[0] != "/"} == {"card3", "renderD131"}
    none = node.run(f"{RUN[runtime]} lab rocminfo", check=False)
    assert none.returncode != 0, "without a device there is no driver in it"


def test_docker_gives_gpus_by_the_runtime_too(node: LabNode) -> None:
    words = f"{RUN['docker']} --runtime=amd -e AMD_VISIBLE_DEVICES"
    assert gpus(node, f"{words}=2,5 lab rocminfo") == 2
    assert gpus(node, f"{words}=all lab rocminfo") == 8


def test_what_others_told_docker_is_kept_and_a_second_run_changes_nothing(
    node: LabNode, operator: Operator
) -> None:
    settings = json.loads(node.run("cat /etc/docker/daemon.json").stdout)
    assert settings["log-level"] == "warn"
    assert settings["features"] == {"buildkit": True, "cdi": True}
    assert settings["runtimes"] == {"amd": {"args": [], "path": "amd-container-runtime"}}
    up(operator, "--full")
    assert changed(operator) == []


def test_validate_starts_a_container_and_counts(node: LabNode, operator: Operator) -> None:
    def found() -> list[tuple[str, str]]:
        words = ("--checks", "host_health", "--json")
        done = operator.call("validate", *words, timeout=600, gpuprov_container_image="lab")
        (checked,) = json.loads(done.stdout)["nodes"][0]["checks"]
        return [
            (one["verdict"], one["message"]) for one in checked["findings"] if "container" in one["message"]
        ]

    assert found() == []
    node.as_root("sed -i 's/renderD135/renderD199/' /etc/cdi/amd.json")
    try:
        ((verdict, message),) = found()
    finally:
        node.as_root("systemctl restart gpuprov-amd-cdi")
    assert verdict == "fail"
    assert message == "a container of lab sees 7 of 8 GPUs"


def test_the_specification_is_written_at_each_boot(lab: Lab, node: LabNode, operator: Operator) -> None:
    node.as_root("echo '{}' > /etc/cdi/amd.json")
    lab.node("amd-01").reboot()
    assert "CDI spec is valid" in node.as_root("amd-ctk cdi validate").stdout
    done = operator.call("drift", "--json", **DECLARED)
    assert json.loads(done.stdout)["drifts"] == []


def test_another_release_and_back(node: LabNode, operator: Operator) -> None:
    """The toolkit's script removes /etc/cdi and Docker's settings, even on an upgrade."""
    before = node.run("systemctl show -p InvocationID --value docker").stdout
    node.as_root("echo 'kind: vendor.com/nic' > /etc/cdi/nic.yaml")
    refused = up(operator, rc=ExitCode.UNHEALTHY, amd_container_toolkit_version="1.2.0")
    assert "with it nic.yaml: these are not AMD's" in " ".join(refused.split())
    assert node.run("cat /etc/cdi/nic.yaml").stdout == "kind: vendor.com/nic\n"
    node.as_root("rm /etc/cdi/nic.yaml")
    for release in ("1.2.0", "1.3.0"):
        up(operator, amd_container_toolkit_version=release)
        assert gpus(node, f"{RUN['docker']} --device amd.com/gpu=all lab rocminfo") == 8
        settings = json.loads(node.run("cat /etc/docker/daemon.json").stdout)
        assert settings["features"] == {"buildkit": True, "cdi": True}
    assert node.run("systemctl show -p InvocationID --value docker").stdout == before, "it knew all that"


def test_docker_is_as_before_when_the_role_is_removed(node: LabNode, operator: Operator) -> None:
    rest = [role for role in DECLARED["gpuprov_roles"] if role != ROLE]
    up(operator, "--remove", ROLE, gpuprov_roles=rest)
    settings = json.loads(node.run("cat /etc/docker/daemon.json").stdout)
    assert settings["log-level"] == "warn"
    assert "amd" not in settings.get("runtimes", {})
    assert node.run("ls /etc/cdi/amd.json /usr/local/bin/amd-ctk", check=False).returncode != 0
    assert node.run(f"{RUN['docker']} lab ls /", check=False).returncode == 0, "others' containers start"
