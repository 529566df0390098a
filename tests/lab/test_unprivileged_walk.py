"""An unprivileged user's walk over complete H100 and MI300X nodes in service.
Nothing of gpuprov, or of its packages, can be changed, replaced, stopped or delayed, no secret read, no name
predicted. Findings that a bare machine also has belong to that machine."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, said
from tests.lab.images import IN_SERVICE, Images
from tests.lab.lab_nodes import Lab, LabNode, running_lab
from tests.lab.unprivileged_walk import PROGRAM

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]
BARE = {"gpu-01": "bare-01", "amd-01": "bare-02"}
# Hash of `password` for the user alice, from NVIDIA/dcgm-exporter tests/integration/testdata/web-config.yml.
HASH = "$2y$10$CWCEbs7mt8QFrToJR9OcG.tduEKpx9SROhWnaDHQgQX4Q6hqWNASa"
GIVEN = re.compile(
    r"setid /usr/bin/nvidia-modprobe$"  # NVIDIA's: makes device files for any program that computes
    r"|(write|append) /dev/(nvidia[\w-]*|kfd|dri/\w+|infiniband/\w+)$"  # compute programs need these
    r"|(write|append) /dev/net/tun$"  # udev's mode
)
# Prints each new file in world-writable folders.
SPY = r"""
import ctypes, os, struct
libc = ctypes.CDLL(None)
watch, folders = libc.inotify_init1(0), {}
for folder in ("/tmp", "/var/tmp", "/dev/shm", "/run/lock"):
    folders[libc.inotify_add_watch(watch, folder.encode(), 0x180)] = folder  # created, moved to
print("ready", flush=True)
while True:
    data = os.read(watch, 65536)
    while data:
        number, _, _, length = struct.unpack_from("iIII", data)
        print(folders[number] + "/" + data[16:16 + length].rstrip(b"\0").decode(), flush=True)
        data = data[16 + length:]
"""
# Names made by mkstemp of Python and of C.
RANDOM = re.compile(r"[._/-][A-Za-z0-9_]{6,8}$")


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("pki")
    made = ["-subj", "/CN=gpu-01", "-days", "2", "-keyout", str(folder / "key"), "-out", str(folder / "crt")]
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *made]
    subprocess.run(words, check=True, capture_output=True)
    return {
        "gpu_metrics_password_hashes": {"alice": HASH},
        "gpu_metrics_tls_certificate": (folder / "crt").read_text(),
        "gpu_metrics_tls_private_key": (folder / "key").read_text(),
    }


@pytest.fixture(scope="module")
def lab(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = (
        *(NodeSpec("gpu-01", "h100-sxm"), NodeSpec("amd-01", "mi300x", "ubuntu2404")),
        *(NodeSpec("bare-01", "h100-sxm"), NodeSpec("bare-02", "mi300x", "ubuntu2404")),
    )
    disks = {"gpu-01": images.h100(), "amd-01": images.mi300x()}
    inventory = tmp_path_factory.mktemp("lab") / "lab.yml"
    with running_lab("walked", nodes, inventory, images=disks) as running:
        yield running


@pytest.fixture(scope="module")
def declared(lab: Lab, operator: Operator, secrets: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the nodes in service, which are applied and followed by a reboot."""
    variables = IN_SERVICE | secrets
    done = operator.call("up", "--yes", "--nodes", ",".join(BARE), **variables)
    assert done.returncode == ExitCode.OK, said(done)
    for name in BARE:
        lab.node(name).reboot()
    return variables


def as_ann(node: LabNode, name: str, program: str, words: str) -> None:
    """Put the program on the node, and run `words`, a shell command that starts it as the user ann."""
    node.as_root(f"id ann 2> /dev/null || useradd -m ann; cat > /var/tmp/{name}.py", said=program)
    node.as_root(f"chmod 644 /var/tmp/{name}.py; cd /; {words}", timeout=300)


def walked(node: LabNode, secrets: list[str]) -> dict[str, Any]:
    node.as_root("umask 077; cat > /root/words", said="\n".join(secrets))
    as_ann(node, "walk", PROGRAM, "sudo -u ann python3 /var/tmp/walk.py < /root/words > /root/walk.json")
    told: dict[str, Any] = json.loads(node.as_root("cat /root/walk.json").stdout)
    return told


def test_nothing_can_be_changed_stopped_or_read_that_could_not_before(
    lab: Lab, declared: dict[str, Any]
) -> None:
    hidden = [HASH, declared["gpu_metrics_tls_private_key"].splitlines()[3]]
    for name, bare in BARE.items():
        before, after = walked(lab.node(bare), hidden), walked(lab.node(name), hidden)
        gained = {*after["done"]} - {*before["done"]}
        assert sorted(one for one in gained if not GIVEN.match(one)) == []
        assert "create-in /var/tmp" in before["done"]
        assert after["counts"]["files"] > before["counts"]["files"] + 500
        assert after["counts"]["units"] >= 5
        assert after["counts"]["processes"] > 8
    # The walk detects readable files and their content.
    node = lab.node("gpu-01")
    node.as_root("cp /etc/gpuprov/metrics-web.yml /run/copy; chmod 644 /run/copy")
    assert "secret /run/copy" in walked(node, hidden)["done"]
    node.as_root("rm /run/copy")


def test_locks_on_whatever_can_be_read_stop_nothing(
    lab: Lab, operator: Operator, declared: dict[str, Any]
) -> None:
    hold = "setsid -f sudo -u ann python3 /var/tmp/walk.py --hold < /dev/null > /root/held.json 2>&1"
    for name in BARE:
        as_ann(lab.node(name), "walk", PROGRAM, f"{hold}; until test -s /root/held.json; do sleep 1; done")
        held = json.loads(lab.node(name).as_root("cat /root/held.json").stdout)
        assert held["counts"]["locks"] > 300
        before = lab.node(name).as_root("cat /run/gpuprov/health.json").stdout
        lab.node(name).as_root("systemctl start gpuprov-node-health.service")
        after = json.loads(lab.node(name).as_root("cat /run/gpuprov/health.json").stdout)
        assert after["uptime"] > json.loads(before)["uptime"]
        assert after["verdict"] == "pass", after["findings"]
    for words in (["validate", "--checks", "gpu_inventory"], ["status"], ["up", "--yes", "--full"]):
        variables = declared if words[0] == "up" else {}
        done = operator.call(words[0], "--nodes", ",".join(BARE), *words[1:], timeout=900, **variables)
        assert done.returncode == ExitCode.OK, said(done)
    for name in BARE:
        lab.node(name).as_root("pkill -u ann")


def test_no_name_in_a_shared_folder_can_be_foreseen(
    lab: Lab, operator: Operator, declared: dict[str, Any]
) -> None:
    spy = "pkill -u ann; setsid -f sudo -u ann python3 /var/tmp/spy.py < /dev/null > /root/seen 2>&1"
    for name in BARE:
        as_ann(lab.node(name), "spy", SPY, f"{spy}; until grep -q ready /root/seen; do sleep 0.2; done")
    for _ in range(2):
        for name in BARE:
            lab.node(name).as_root("systemctl start gpuprov-node-health.service")
        operator.call("validate", "--nodes", ",".join(BARE), "--checks", "gpu_inventory,gpu_burn")
        operator.call("drift", "--nodes", ",".join(BARE), **declared)
    for name in BARE:
        seen = lab.node(name).as_root("cat /root/seen; pkill -u ann").stdout.splitlines()[1:]
        assert seen, "modules of Ansible were unpacked there"
        assert [one for one in seen if not RANDOM.search(one) or seen.count(one) > 1] == []
