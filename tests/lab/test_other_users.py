"""An unprivileged user of a node tries to lock, change and replace every path of gpuprov there."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, said
from tests.lab.images import Images
from tests.lab.lab_nodes import Lab, LabNode, running_lab

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]
ENABLED: dict[str, Any] = {"node_health_enabled": True, "gpu_metrics_enabled": True}
# Paths with gpuprov's name, and the folders that it writes to.
OURS = (
    "find / /run /dev/shm /tmp -xdev \\( -path '*gpuprov*' -o -path '/var/lib/prometheus/node-exporter*' \\)"
    " -not -path '/proc/*' -not -path '*/gpuprov-lab*' -print0"
)
ATTACK = r"""
import contextlib, fcntl, json, os, sys, time
done, held = [], []
for path in sys.stdin.read().split("\0"):
    if not path or os.path.islink(path):
        continue
    for kind in (fcntl.LOCK_EX, fcntl.LOCK_SH):
        with contextlib.suppress(OSError):
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            held.append(file)
    tries = {
        "write": lambda: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK)),
        "link": lambda: os.link(path, "/var/tmp/linked"),
        "replace": lambda: os.rename(path, path + ".x"),
        "remove": lambda: os.unlink(path),
        "chmod": lambda: os.chmod(path, 0o777),
        "divert": lambda: os.symlink("/etc/shadow", path + ("/x" if os.path.isdir(path) else ".x")),
        "create": lambda: os.close(os.open(os.path.join(path, "y"), os.O_CREAT | os.O_WRONLY)),
    }
    for name, attempt in tries.items():
        with contextlib.suppress(OSError):
            attempt()
            done.append(name + " " + path)
print(json.dumps({"done": done, "held": len(held)}), flush=True)
with open("/var/tmp/attack.json", "w") as file:
    json.dump({"done": done, "held": len(held)}, file)
time.sleep(240)
"""


@pytest.fixture(scope="module")
def lab(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    inventory = tmp_path_factory.mktemp("lab") / "lab.yml"
    nodes = (NodeSpec("gpu-01", "h100-sxm"),)
    with running_lab("others", nodes, inventory, images={"gpu-01": images.h100()}) as running:
        done = Operator(inventory, tmp_path_factory.mktemp("first")).call("up", "--yes", **ENABLED)
        assert done.returncode == ExitCode.OK, said(done)
        yield running


def health(node: LabNode) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(node.as_root("cat /run/gpuprov/health.json").stdout)
    return found


def test_no_user_can_change_a_file_of_ours_or_stop_a_program_by_a_lock(operator: Operator, lab: Lab) -> None:
    (node,) = lab.nodes
    node.reboot()  # /run begins empty, and the health program writes there first
    node.as_root("systemctl start gpuprov-node-health.service")
    done = operator.call("validate", "--checks", "gpu_inventory")
    assert done.returncode == ExitCode.OK, said(done)
    paths = node.as_root(OURS).stdout
    for place in ("/run/gpuprov/health.json", "/run/gpuprov/private", "/etc/gpuprov/node-health.json"):
        assert place in paths
    node.as_root("cat > /var/tmp/paths && chmod 644 /var/tmp/paths", said=paths)
    node.as_root("cat > /var/tmp/attack.py && chmod 644 /var/tmp/attack.py", said=ATTACK)
    attack = "setsid -f sudo -u nobody python3 /var/tmp/attack.py < /var/tmp/paths > /dev/null 2>&1"
    node.as_root(f"rm -f /var/tmp/attack.json; {attack}; for i in $(seq 60); do"
                 " test -s /var/tmp/attack.json && break; sleep 1; done")  # fmt: skip
    attacked = json.loads(node.as_root("cat /var/tmp/attack.json").stdout)
    assert attacked["done"] == []
    assert attacked["held"] > 4, "what may be read may be locked, and is"

    before = health(node)
    node.as_root("systemctl start gpuprov-node-health.service")
    after = health(node)
    assert after["uptime"] > before["uptime"], "the health program runs"
    assert after["verdict"] == "pass", after["findings"]
    for words in (["validate", "--checks", "gpu_inventory"], ["status"], ["up", "--yes", "--full"]):
        variables: dict[str, Any] = ENABLED if words[0] == "up" else {}
        done = operator.call(words[0], *words[1:], **variables)
        assert done.returncode == ExitCode.OK, said(done)


def test_exporters_and_people_without_root_read_the_result(lab: Lab) -> None:
    (node,) = lab.nodes
    for words in ("cat /run/gpuprov/health.json", "/usr/local/sbin/gpuprov-node-health --last"):
        told = json.loads(node.run(f"sudo -u nobody sh -c {shlex.quote(words)}").stdout)
        assert told["verdict"] == "pass"
    refused = node.run("sudo -u nobody /usr/local/sbin/gpuprov-node-health", check=False)
    assert "only root can run the checks" in refused.stderr
