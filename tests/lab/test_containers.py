"""Containers on a lab node get the requested GPUs, by real podman, Docker and containerd."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.container_image import DOCKER, IMAGE, RUN
from tests.lab.lab_nodes import running_lab

if TYPE_CHECKING:
    from tests.lab.lab_nodes import Lab, LabNode

ROOT = Path(__file__).resolve().parents[2]
ROLES = ["nvidia_repository", "nvidia_driver", "container_toolkit"]
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = (NodeSpec("gpu-01", "h100-sxm", containers=True),)
    with running_lab("containers", nodes, tmp_path_factory.mktemp("lab") / "lab.yml") as running:
        yield running


def gpuprov(lab: Lab, verb: str, *words: str, **settings: Any) -> tuple[int, str]:
    told = {
        "gpuprov_roles": ["container_toolkit"],
        "container_toolkit_runtimes": ["docker", "containerd", "podman"],
        **settings,
    }
    sets = [f"{name}={json.dumps(value)}" for name, value in told.items()]
    done = subprocess.run(
        [sys.executable, "-m", "provision.cli", verb, str(lab.inventory), *words]
        + [word for one in sets for word in ("--set", one)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "GPUPROV_RUNS": str(runs(lab))},
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
    )
    return done.returncode, done.stdout + done.stderr


def runs(lab: Lab) -> Path:
    return lab.inventory.parent / "runs"


def changed(lab: Lab) -> list[str]:
    """Return the tasks that changed something in the last run."""
    last = max(path for path in runs(lab).iterdir() if path.is_dir())
    events = [json.loads(line) for line in (last / "events.jsonl").read_text().splitlines()]
    return [event["task"] for event in events if event["kind"] == "changed"]


@pytest.fixture(scope="module")
def node(lab: Lab) -> LabNode:
    """Return a node after `up` with two runtimes, podman from the role, and an image in two of them."""
    node = lab.node("gpu-01")
    node.as_root(f"apt-get -q update && apt-get -qy install --no-install-recommends {DOCKER}", timeout=600)
    node.as_root(
        'printf \'%s\' \'{"log-level": "warn", "features": {"buildkit": true}}\' > /etc/docker/daemon.json'
    )
    code, said = gpuprov(lab, "up", gpuprov_roles=ROLES, container_toolkit_install_runtime="podman")
    assert code == ExitCode.OK, said
    node.as_root(IMAGE, timeout=300)
    return node


def uuids(text: str) -> list[str]:
    return re.findall(r"UUID: ((?:GPU|MIG)-[0-9a-f-]+)", text)


@pytest.mark.parametrize("runtime", RUN)
def test_a_container_sees_the_gpus_it_asked_for(node: LabNode, runtime: str) -> None:
    gpus = uuids(node.run("nvidia-smi -L").stdout)
    assert len(gpus) == 8
    every = node.run(f"{RUN[runtime]} --device nvidia.com/gpu=all lab nvidia-smi -L")
    assert uuids(every.stdout) == gpus
    look = f"nvidia-smi -L; ls /dev; ls -l {LIBRARIES}/libnvidia-ml.so.1"
    one = node.run(f"{RUN[runtime]} --device nvidia.com/gpu={gpus[3]} lab sh -c '{look}'").stdout
    assert uuids(one) == [gpus[3]]
    assert {name for name in one.split() if re.fullmatch(r"nvidia\d+", name)} == {"nvidia3"}
    assert "libnvidia-ml.so.1 -> libnvidia-ml.so.580.126.09" in one, "a hook makes this link"
    none = node.run(f"{RUN[runtime]} lab nvidia-smi -L", check=False)
    assert none.returncode != 0, "without a device there is no driver in it"


def test_docker_gives_gpus_by_the_runtime_too(node: LabNode) -> None:
    gpus = uuids(node.run("nvidia-smi -L").stdout)
    asked = node.run(f"{RUN['docker']} --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=2,5 lab nvidia-smi -L")
    assert uuids(asked.stdout) == [gpus[2], gpus[5]]


def test_what_others_told_docker_is_kept(node: LabNode) -> None:
    settings = json.loads(node.run("cat /etc/docker/daemon.json").stdout)
    assert settings["log-level"] == "warn"
    assert settings["features"] == {"buildkit": True, "cdi": True}


def test_containerd_itself_reads_both_runtimes(node: LabNode) -> None:
    """containerd's built-in runc and the distribution's settings must survive the drop-in."""
    read = tomllib.loads(node.as_root("containerd config dump").stdout)
    cri = read["plugins"]["io.containerd.grpc.v1.cri"]
    runtimes = cri["containerd"]["runtimes"]
    assert runtimes["nvidia"]["options"]["BinaryName"] == "/usr/bin/nvidia-container-runtime"
    assert runtimes[cri["containerd"]["default_runtime_name"]]["runtime_type"] == "io.containerd.runc.v2"
    assert cri["enable_cdi"] is True
    assert cri["cni"]["bin_dir"] == "/usr/lib/cni"


@pytest.mark.usefixtures("node")
def test_a_second_run_changes_nothing(lab: Lab) -> None:
    code, said = gpuprov(lab, "up", "--full")
    assert code == ExitCode.OK, said
    assert changed(lab) == []


OPEN = """\
import errno, os
try:
    os.open("{}", os.O_RDWR)
except OSError as refused:
    print(errno.errorcode[refused.errno])
"""


def access(node: LabNode, device: str) -> str:
    """Return why a device cannot be opened in the container: EPERM is the cgroup, ENXIO our empty device."""
    return node.run(f"sudo docker exec -i kept python3 - <<'END'\n{OPEN.format(device)}END").stdout.strip()


def test_a_running_container_keeps_its_gpus_at_a_daemon_reload(node: LabNode) -> None:
    node.run(f"{RUN['docker']} -d --name kept --device nvidia.com/gpu=0 lab sleep 7200")
    try:
        node.as_root(
            "docker exec kept python3 -c 'import os; os.mknod(\"/dev/nvidia1\", 0o20666, os.makedev(195, 1))'"
        )
        before = access(node, "/dev/nvidia0"), access(node, "/dev/nvidia1")
        node.as_root("systemctl daemon-reload")
        assert before == ("ENXIO", "EPERM"), "the control group is in force, and lets its own GPU through"
        assert (access(node, "/dev/nvidia0"), access(node, "/dev/nvidia1")) == before
    finally:
        node.run("sudo docker rm -f kept")


def test_docker_is_not_restarted_under_a_container(lab: Lab, node: LabNode) -> None:
    """The settings are repaired; the restart is reported as due until it is harmless."""
    node.as_root("""sed -i 's/"cdi": true/"cdi": false/' /etc/docker/daemon.json; systemctl restart docker""")
    node.run(f"{RUN['docker']} -d --name kept lab sleep 7200")
    invocation = node.run("systemctl show -p InvocationID --value docker").stdout
    code, said = gpuprov(lab, "up")
    assert code == ExitCode.UNHEALTHY, said
    assert re.search(r"container_runtime\.docker\.restart_required\b.*true", said), said
    assert json.loads(node.run("cat /etc/docker/daemon.json").stdout)["features"]["cdi"] is True
    assert node.run("sudo docker ps --format '{{.Names}}'").stdout.split() == ["kept"]
    assert node.run("systemctl show -p InvocationID --value docker").stdout == invocation
    node.run("sudo docker rm -f kept")
    code, said = gpuprov(lab, "up")
    assert code == ExitCode.OK, said
    assert changed(lab) == ["Restart runtimes that still use the old settings"] * 2  # the item, and the loop
    assert uuids(node.run(f"{RUN['docker']} --device nvidia.com/gpu=0 lab nvidia-smi -L").stdout)


def test_a_changed_partition_is_drift_and_up_describes_it(lab: Lab, node: LabNode) -> None:
    node.as_root("nvidia-smi -i 0 -mig 1; nvidia-smi mig -i 0 -cgi 3g.40gb,3g.40gb -C")
    code, said = gpuprov(lab, "drift")
    assert code == ExitCode.DRIFT, said
    drifted = set(re.findall(r"container(?:_runtime)?\.[a-z_.]+", said))
    assert drifted == {"container.cdi.missing", "container.dev_char.missing"}, said
    code, said = gpuprov(lab, "up")
    assert code == ExitCode.OK, said
    assert "Refresh an outdated CDI specification or missing device links" in changed(lab)
    command = "sh -c 'ls /dev /dev/nvidia-caps'"
    files = node.run(f"{RUN['podman']} --device nvidia.com/gpu=0:1 lab {command}").stdout.split()
    assert len([name for name in files if name.startswith("nvidia-cap") and name[-1].isdigit()]) == 2
    assert "nvidia1" not in files


def test_after_a_boot_the_gpus_are_described_before_containers_start(lab: Lab, node: LabNode) -> None:
    node.reboot()
    node.run("sudo timeout 100 systemctl is-system-running --wait", check=False)
    described, *started = times(node)
    assert all(described < each for each in started)
    assert uuids(node.run(f"{RUN['podman']} --device nvidia.com/gpu=all lab nvidia-smi -L").stdout)
    code, said = gpuprov(lab, "drift")
    assert code == ExitCode.OK, said


def times(node: LabNode) -> list[int]:
    shown = [("nvidia-cdi-refresh", "ExecMainExitTimestampMonotonic")]
    shown += [(name, "ActiveEnterTimestampMonotonic") for name in ("docker", "containerd")]
    return [int(node.run(f"systemctl show -p {what} --value {name}").stdout) for name, what in shown]


CRIO = "#!/bin/sh\necho crio version {}\n"


@pytest.mark.parametrize(
    ("prepare", "settings", "sentence"),
    [
        ('printf \'{\\n  "a": 1,\\n  "b" 2\\n}\' > /etc/docker/daemon.json', {}, "line 3 column 7"),
        (
            'printf \'{"lgo-driver": "journald"}\' > /etc/docker/daemon.json',
            {},
            "dockerd refuses what /etc/docker/daemon.json would be",
        ),
        ("true", {"container_toolkit_runtimes": ["crio"]}, "requests crio, which is not installed"),
        (
            f"printf '{CRIO.format('1.29.4')}' > /usr/local/bin/crio; chmod 755 /usr/local/bin/crio",
            {"container_toolkit_runtimes": ["crio"]},
            "crio 1.29.4 on this machine does not read CDI 0.7.0",
        ),
        ("true", {"container_toolkit_version": "1.17.8-1"}, "has no nvidia-cdi-refresh.service"),
        ("true", {"container_toolkit_install_runtime": "crio"}, "No repository offers the package cri-o"),
    ],
    ids=[
        "broken daemon.json",
        "a setting that Docker does not know",
        "no such runtime",
        "an old runtime",
        "an old toolkit",
        "a runtime nobody offers",
    ],
)
def test_what_cannot_work_is_refused_before_anything_changes(
    lab: Lab, node: LabNode, prepare: str, settings: dict[str, Any], sentence: str
) -> None:
    node.as_root(f"cp -p /etc/docker/daemon.json /root/daemon.json; {prepare}")
    try:
        code, said = gpuprov(lab, "up", "--full", **settings)
    finally:
        node.as_root("cp -p /root/daemon.json /etc/docker/daemon.json; rm -f /usr/local/bin/crio")
    assert code == ExitCode.UNHEALTHY, said
    assert sentence in " ".join(said.split())
    assert changed(lab) == []


def test_every_runtime_that_is_installed_can_be_meant(lab: Lab, node: LabNode) -> None:
    """Test `auto` with a CRI-O that only reports a version; the test itself reads its settings back."""
    node.as_root(f"printf '{CRIO.format('1.31.2')}' > /usr/local/bin/crio; chmod 755 /usr/local/bin/crio")
    code, said = gpuprov(lab, "up", container_toolkit_runtimes="auto")
    assert code == ExitCode.OK, said
    assert changed(lab) == ["Add the NVIDIA runtime to CRI-O's configuration"]
    told = tomllib.loads(node.run("cat /etc/crio/conf.d/99-nvidia.toml").stdout)
    assert (
        told["crio"]["runtime"]["runtimes"]["nvidia"]["runtime_path"] == "/usr/bin/nvidia-container-runtime"
    )


def test_a_toolkit_that_is_removed_leaves_the_runtimes_as_they_were_without_it(
    lab: Lab, node: LabNode
) -> None:
    told: dict[str, Any] = {"gpuprov_roles": ROLES[:2], "container_toolkit_runtimes": "auto"}
    node.as_root("chmod 640 /etc/docker/daemon.json; cp -p /etc/docker/daemon.json /root/daemon.json")
    default = 's/"log-level"/"default-runtime": "nvidia", "log-level"/'
    node.as_root(f"sed -i '{default}' /etc/docker/daemon.json")
    code, said = gpuprov(lab, "up", "--yes", "--remove", "container_toolkit", **told)
    assert code == ExitCode.UNHEALTHY, said
    assert "makes nvidia the default runtime" in said
    assert changed(lab) == []
    node.as_root("cp -p /root/daemon.json /etc/docker/daemon.json")

    code, said = gpuprov(lab, "up", "--yes", "--remove", "container_toolkit", **told)
    assert code == ExitCode.OK, said
    settings = json.loads(node.as_root("cat /etc/docker/daemon.json").stdout)
    assert settings == {"log-level": "warn", "features": {"buildkit": True, "cdi": True}, "runtimes": {}}
    assert node.as_root("stat -c %a /etc/docker/daemon.json").stdout.strip() == "640"
    assert "nvidia" not in node.run("sudo docker info --format '{{json .Runtimes}}'").stdout
    read = tomllib.loads(node.as_root("containerd config dump").stdout)
    assert list(read["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]) == ["runc"]
    # The repository belongs to another role.
    elsewhere = "-path /etc/apt/sources.list.d -prune"
    find = f"find /etc /run/cdi {elsewhere} -o -name '*nvidia*' -path '*[cC]*ontainer*' -print"
    assert node.as_root(find).stdout == ""
    for runtime in ("podman", "docker"):
        assert node.run(f"{RUN[runtime]} lab ls /").returncode == 0
