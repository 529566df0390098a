"""`gpuprov selftest` on a lab node: the node runs it itself, as root, without SSH.

Only the GPUs are simulated: Python, Ansible, /proc, /sys, processes, signals and the kernel log are the
node's own.
"""

from __future__ import annotations

import base64
import io
import json
import re
import shlex
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import ROOT, Operator, said
from tests.lab.images import Images
from tests.lab.lab_nodes import LabNode, running_lab
from tests.lab.role_playbook import SOURCES
from tests.support.commands import ran

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]
SPEED = 20.0  # a burn of 30 s takes 1.5 s: long enough for another program to be noticed during it
PROGRAM = "cd /opt/gpuprov && exec python3 -m provision.cli selftest"
CONDITIONS = [
    "a foreign process on a GPU",
    "memory taken by another program",
    "a competing load slows one GPU",
    "a tool that is missing",
    "a deadline that is too short",
]
CHANGES = ["power limit", "clock lock", "persistence mode", "compute mode"]
# Not possible on an H100 node with RDMA: no scratch folder, no torch, no DCGM.
NOT_TRIED = {"disk_speed", "ddp_scaling", "dcgm_diag"}
BURNING = "pgrep -f 'run.py gpu_bur[n]'"  # the simulated gpu_burn
CMAKE = """
cmake_minimum_required(VERSION 3.13)
project(nvbandwidth NONE)
file(WRITE "${CMAKE_SOURCE_DIR}/nvbandwidth" "#!/bin/sh\\n")
"""
_SETTINGS = "power.limit,persistence_mode,compute_mode"


@pytest.fixture(scope="module")
def node(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabNode]:
    """Yield an H100 node with RDMA as declared, with gpuprov's own files."""
    folder = tmp_path_factory.mktemp("selftest")
    wanted = (NodeSpec("gpu-01", "h100-sxm", "debian13", network="ib"),)
    declared = {"gpu-01": images.h100()}
    with running_lab("self", wanted, folder / "lab.yml", speed=SPEED, images=declared) as lab:
        done = Operator(lab.inventory, folder / "runs").call("up")
        assert done.returncode == ExitCode.OK, said(done)
        one = lab.node("gpu-01")
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            for name in ("provision", "roles", "playbooks", "pyproject.toml"):
                tar.add(ROOT / name, name, filter=lambda info: None if "__pycache__" in info.name else info)
        text = base64.b64encode(packed.getvalue()).decode()
        one.as_root("mkdir /opt/gpuprov && base64 -d | tar xz -C /opt/gpuprov", said=text)
        install(one, "python3-yaml", "python3-jinja2")  # in addition to Python; no Ansible
        yield one


def install(node: LabNode, *packages: str) -> None:
    node.as_root(
        f"DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends {' '.join(packages)}"
    )


def brought(node: LabNode, folder: str) -> dict[str, str]:
    """Return the texts in a selftest's folder on the node, by path."""
    packed = base64.b64decode(node.as_root(f"tar c -C {folder} . | base64 -w0").stdout)
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        files = {one.name.removeprefix("./"): tar.extractfile(one) for one in tar if one.isfile()}
    return {name: file.read().decode("utf-8", "replace") for name, file in files.items() if file}


def compared(files: Mapping[str, str], folder: Path) -> list[dict[str, Any]]:
    """Return the result of `gpuprov lab compare` for a selftest's folder."""
    for name, text in files.items():
        if name.endswith(".json"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    words = [sys.executable, "-P", "-m", "provision.cli", "lab", "compare", str(folder), "--json"]
    shapes: list[dict[str, Any]] = json.loads(ran(words, check=True).stdout)["shapes"]
    return shapes


def settings(node: LabNode) -> list[str]:
    query = f"nvidia-smi --query-gpu={_SETTINGS} --format=csv,noheader"
    return node.as_root(query).stdout.splitlines()


def serials(node: LabNode) -> set[str]:
    """Return the identifiers of this node's GPUs, and of its RDMA ports in their addresses."""
    shown = (
        "nvidia-smi --query-gpu=serial,uuid --format=csv,noheader;"
        "nvidia-smi -q | sed -n 's/.*GPU PDI *: //p'; cat /sys/class/infiniband/*/ports/1/gids/0"
    )
    words = re.split(r"[,\s]+", node.as_root(shown).stdout)
    return {word.removeprefix("fe80:0000:0000:0000:") for word in words if word}


def test_the_whole_of_it(node: LabNode, tmp_path: Path) -> None:
    """Prove all that this machine allows; settings are changed and restored, serial numbers masked."""
    before, known = settings(node), serials(node)
    assert len(known) > 2 * 8 + 8
    began = time.monotonic()
    asked = "--output /root/whole --burn-seconds 30 --change-settings --mask-serials --set rdma_memlock=8192"
    done = node.run(f"sudo sh -c {shlex.quote(f'{PROGRAM} {asked}')}", check=False, timeout=300)
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    assert time.monotonic() - began < 180

    files = brought(node, "/root/whole")
    found: dict[str, Any] = json.loads(files["selftest.json"])
    assert found["verdict"] == "pass"
    states = {one["check"]: one["state"] for one in found["checks"]}
    assert {name for name, state in states.items() if state != "proven"} == NOT_TRIED, states
    assert set(states.values()) == {"proven", "not tried"}
    assert [one["name"] for one in found["provocations"]] == CONDITIONS
    assert [one["name"] for one in found["changes"]] == CHANGES
    for one in (*found["provocations"], *found["changes"]):
        assert one["state"] == "proven", one
    for one in (*found["provocations"][:3], *found["changes"]):
        assert "gpu7" in one["named"], one
        assert not re.search(r"gpu[0-6]\b", one["named"]), one
    assert (found["leftovers"], found["interrupted"]) == ([], False)
    assert settings(node) == before

    shapes = compared(files, tmp_path)
    assert len(shapes) >= 15
    assert not [one for one in shapes if not one["same"]]

    assert "archive/checks/gpu_inventory.json" in files
    raw = json.loads(files["archive/checks/gpu_burn.json"])
    assert "Gflop/s" in raw["outputs"][0]["stdout"]
    whole = "\n".join(files.values())
    assert not {serial for serial in known if serial in whole}
    assert "<html" in files["selftest.html"]
    assert "http" not in re.sub(r"http-equiv", "", files["selftest.html"])  # needs no network
    assert node.as_root(f"{BURNING} || echo none").stdout == "none\n"


def test_an_interrupted_one_leaves_nothing_running_and_keeps_what_it_has(node: LabNode) -> None:
    before = settings(node)
    cut = shlex.quote(f"{PROGRAM} --output /root/cut")
    node.as_root(f"rm -rf /root/cut; setsid -f sh -c {cut} > /root/cut.log 2>&1")
    wait(node, BURNING)
    node.as_root("pkill -INT -f '^python3 -m provision.cli selftest'")
    wait(node, "! pgrep -f '^python3 -m provision.cli selftest'")
    wait(node, f"! {BURNING}")
    files = brought(node, "/root/cut")
    found = json.loads(files["selftest.json"])
    assert (found["interrupted"], found["exit_code"]) == (True, ExitCode.INTERRUPTED)
    assert [one["check"] for one in found["checks"]][:2] == ["gpu_inventory", "versions"]
    assert "interrupted" in files["selftest.html"]
    assert settings(node) == before


def wait(node: LabNode, until: str, seconds: float = 60) -> None:
    """Wait until a command succeeds on the node."""
    end = time.monotonic() + seconds
    while node.run(f"sudo sh -c {shlex.quote(until)}", check=False).returncode:
        assert time.monotonic() < end, f"{until}: {node.as_root('cat /root/cut.log').stdout}"
        time.sleep(0.2)


def test_gpus_in_use_are_left_alone(node: LabNode) -> None:
    node.as_root("cd /usr/share/gpu-burn && setsid -f gpu_burn -i 3 4000 > /dev/null 2>&1")
    try:
        wait(node, "nvidia-smi --query-compute-apps=pid --format=csv,noheader | grep .")
        done = node.run(f"sudo sh -c {shlex.quote(f'{PROGRAM} --output /root/used')}", check=False)
        assert done.returncode == ExitCode.INCOMPLETE, done.stdout + done.stderr
        assert re.search(r"GPUs are in use: gpu3 by gpu_burn \(pid \d+", done.stdout), done.stdout
        assert "drain the machine" in done.stdout
    finally:
        node.as_root(BURNING.replace("pgrep", "pkill -KILL") + "; true")
    assert "gpu_burn" not in json.loads(brought(node, "/root/used")["selftest.json"])["checks"]


def test_missing_tools_are_built_from_verified_sources(node: LabNode) -> None:
    """The role runs on this machine itself; the sources are small and their programs do nothing."""
    install(node, "ansible-core", "python3-ansible-runner")
    node.as_root("mkdir -p /srv/sources && mv /usr/bin/nvbandwidth /root/nvbandwidth.kept")
    words = ["--set", "validation_tools_cuda_home=/usr/local/cuda"]
    for name, (version, makefile) in SOURCES.items():
        tree, stem = f"/srv/sources/{name}-{version}", f"validation_tools_{name.replace('-', '_')}"
        node.as_root(f"mkdir -p {tree} && cat > {tree}/Makefile", said=makefile)
        node.as_root(f"cat > {tree}/CMakeLists.txt", said=CMAKE)
        node.as_root(f"cd /srv/sources && tar czf {tree}.tar.gz {name}-{version}")
        digest = node.as_root(f"sha256sum {tree}.tar.gz").stdout.split()[0]
        words += ["--set", f"{stem}_url=file://{tree}.tar.gz", "--set", f"{stem}_sha256={digest}"]
    wrong = [word.replace(word[-8:], "00000000") if "nvbandwidth_sha256" in word else word for word in words]
    asked = f"{PROGRAM} --build --minutes 1 --output /root/built"
    try:
        done = node.run(f"sudo sh -c {shlex.quote(f'{asked} {shlex.join(wrong)}')}", check=False, timeout=300)
        assert done.returncode == ExitCode.ERROR, done.stdout + done.stderr
        assert "the tools could not be built: Download nvbandwidth" in done.stderr
        assert "checksum" in done.stderr
        assert node.as_root("test -e /root/built || echo none").stdout == "none\n"
        done = node.run(f"sudo sh -c {shlex.quote(f'{asked} {shlex.join(words)}')}", check=False, timeout=300)
        assert done.returncode != ExitCode.ERROR, done.stdout + done.stderr
        tools = json.loads(brought(node, "/root/built")["selftest.json"])["tools"]
        assert {"name": "nvbandwidth", "path": "/usr/bin/nvbandwidth", "how": ""} in tools, said(done)
    finally:
        node.as_root("mv /root/nvbandwidth.kept /usr/bin/nvbandwidth")
