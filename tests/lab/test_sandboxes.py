"""The units' sandboxes on an H100 and an MI300X node: faults look the same inside and outside.
This holds even while the server of home folders hangs or /tmp is full; settings are applied at boot."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, said
from tests.lab.images import IN_SERVICE, Images
from tests.lab.lab_nodes import Lab, LabNode, running_lab

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]
SERVICE = "gpuprov-node-health.service"
DROPIN = f"/run/systemd/system/{SERVICE}.d"
# (node, fault, its parameters, check and metric of the finding)
FAULTS: list[tuple[str, str, dict[str, Any], str]] = [
    ("gpu-01", "memory_small", {"gpu": 1}, "gpu_inventory.memory_total"),
    ("gpu-01", "nvlink_down", {"gpu": 1, "link": 4}, "gpu_inventory.nvlink_links"),
    ("gpu-01", "pcie_width", {"gpu": 4}, "gpu_inventory.pcie_width"),
    ("gpu-01", "fabric_unhealthy", {"gpu": 1}, "gpu_inventory.fabric_bandwidth"),
    ("gpu-01", "tool_garbage", {"tool": "nvidia-smi"}, "gpu_inventory."),
    ("gpu-01", "memory_errors", {"module": 1}, "host_health.memory_uncorrected"),
    ("gpu-01", "acs_on", {}, "host_health.acs"),
    ("gpu-01", "port_down", {"nic": 1}, "network_ports.state"),
    ("gpu-01", "ecc_uncorrectable", {"gpu": 2}, "gpu_inventory.xid.48"),
    ("gpu-01", "gpu_off_bus", {"gpu": 3}, "gpu_inventory.xid.79"),
    ("amd-01", "gpu_missing", {"gpu": 2}, "gpu_inventory.driver_gpus"),
    ("amd-01", "tool_garbage", {"tool": "amd-smi"}, "gpu_inventory."),
    ("amd-01", "ras_errors", {"gpu": 1}, "gpu_inventory.ecc_uncorrectable"),
    ("amd-01", "gpu_off_bus", {"gpu": 3}, "gpu_inventory.amdgpu.lost"),
]
# A file system in which every call waits for ever, like that of a dead server. Argument: mount point.
DEAD_SERVER = """
import ctypes, os, struct, sys, time
device = os.open("/dev/fuse", os.O_RDWR)
options = "fd=%d,rootmode=40755,user_id=0,group_id=0,allow_other" % device
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"dead-server", sys.argv[1].encode(), b"fuse", 0, options.encode()):
    sys.exit("mount: %d" % ctypes.get_errno())
asked = os.read(device, 1 << 17)
answer = struct.pack("<IIIIHHIIHHI7I", 7, 31, 0, 0, 12, 9, 1 << 16, 1, 0, 0, 0, *[0] * 7)
os.write(device, struct.pack("<IiQ", 16 + len(answer), 0, struct.unpack("<IIQ", asked[:16])[2]) + answer)
print("mounted", flush=True)
time.sleep(600)
"""
WITHOUT_HOME = """
test -e /dev/fuse || mknod /dev/fuse c 10 229
python3 /var/tmp/dead_server.py /home > /run/dead 2>&1 & server=$!
until grep -q mounted /run/dead; do sleep 0.1; done
timeout 3 stat /home/ops > /dev/null; echo "stat $?"
{command}
echo "status $?"
kill -9 $server; umount -l /home; rm -f /run/dead
"""


@pytest.fixture(scope="module")
def lab(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    inventory = tmp_path_factory.mktemp("lab") / "lab.yml"
    nodes = (NodeSpec("gpu-01", "h100-sxm", network="ib"), NodeSpec("amd-01", "mi300x", "ubuntu2404"))
    disks = {"gpu-01": images.h100(), "amd-01": images.mi300x()}
    with running_lab("sandbox", nodes, inventory, images=disks) as running:
        done = Operator(inventory, tmp_path_factory.mktemp("first")).call("up", "--yes", **IN_SERVICE)
        assert done.returncode == ExitCode.OK, said(done)
        for node in running.nodes:
            node.reboot()
            node.as_root("systemctl stop gpuprov-node-health.timer")
        yield running


def health(node: LabNode) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(node.as_root("cat /run/gpuprov/health.json").stdout)
    return told


def inside(node: LabNode) -> dict[str, Any]:
    """Return the result of a run of the unit without earlier state, once a running one has ended."""
    node.as_root(f"while [ $(systemctl is-active {SERVICE}) = activating ]; do sleep 0.2; done")
    node.as_root(f"rm -f /var/lib/gpuprov/node-health/state.json; systemctl start {SERVICE}")
    return health(node)


def findings(told: dict[str, Any]) -> set[tuple[str, str, str]]:
    return {
        (f"{one['check']}.{one['metric']}", one["device"], one["verdict"])
        for one in told["findings"]
        if one["verdict"] != "skip"
    }


def test_settings_are_made_at_boot(lab: Lab) -> None:
    for node in lab.nodes:
        units = ["gpuprov-host-settings", "gpuprov-node-health-kernel", "prometheus-node-exporter"]
        units.append("gpuprov-amd-gpu-settings" if node.name == "amd-01" else "gpuprov-gpu-settings")
        assert node.run(f"systemctl is-active {' '.join(units)}").stdout.split() == ["active"] * len(units)
        size = node.run("stat --file-system --format '%b %S' /dev/shm").stdout.split()
        assert int(size[0]) * int(size[1]) == 2 << 30
    limits = lab.node("gpu-01").run("nvidia-smi --query-gpu=power.limit --format=csv,noheader,nounits").stdout
    assert {float(one) for one in limits.split()} == {600.0}
    caps = lab.node("amd-01").run("cat /sys/bus/pci/devices/*/hwmon/hwmon*/power1_cap").stdout
    assert set(caps.split()) == {"700000000"}


@pytest.mark.parametrize(("name", "fault", "parameters", "expected"), FAULTS)
def test_a_fault_is_seen_inside_as_outside(
    lab: Lab, name: str, fault: str, parameters: dict[str, Any], expected: str
) -> None:
    node = lab.node(name)
    assert not [row for row in findings(inside(node)) if row[0] == expected]
    node.fault(fault, **parameters)
    try:
        outside = json.loads(node.run("sudo gpuprov-node-health json", check=False).stdout)
        seen = findings(inside(node))
    finally:
        node.heal()
    assert [row for row in seen if row[0] == expected], seen
    assert seen == findings(outside)


@pytest.mark.parametrize(
    ("name", "fault", "parameters"),
    [("gpu-01", "xid", {"gpu": 1, "code": 95}), ("amd-01", "ecc_uncorrectable", {"gpu": 2})],
)
def test_an_error_in_the_kernel_log_starts_a_run(
    lab: Lab, name: str, fault: str, parameters: dict[str, Any]
) -> None:
    node = lab.node(name)
    before = inside(node)["uptime"]
    began = time.monotonic()
    node.fault(fault, **parameters)
    while health(node)["uptime"] <= before:
        assert time.monotonic() - began < 25
        time.sleep(0.3)
    node.heal()


def directed(node: LabNode, line: str) -> None:
    """Add this line to the unit; an empty line restores the role's version."""
    node.as_root(
        f"mkdir -p {DROPIN}; printf '[Service]\\n%s\\n' '{line}' > {DROPIN}/x.conf; systemctl daemon-reload"
    )


@pytest.mark.parametrize(
    ("line", "starts"),
    [
        ("", True),
        ("ProtectHome=yes", False),
        ("ProtectHome=read-only", False),
        ("ProtectSystem=strict", False),
    ],
)
def test_a_home_folder_whose_server_is_gone_keeps_no_run_from_starting(
    lab: Lab, line: str, starts: bool
) -> None:
    """Also tries the lines that the unit omits for this reason."""
    node = lab.node("gpu-01")
    node.as_root("cat > /var/tmp/dead_server.py", said=DEAD_SERVER)
    before = inside(node)["uptime"]
    directed(node, line)
    done = node.as_root(WITHOUT_HOME.format(command=f"timeout 20 systemctl start {SERVICE}")).stdout
    directed(node, "")
    assert "stat 124" in done
    assert ("status 0" in done) is starts
    assert (health(node)["uptime"] > before) is starts


def test_the_kernel_watcher_starts_without_home(lab: Lab) -> None:
    node = lab.node("gpu-01")
    node.as_root("cat > /var/tmp/dead_server.py", said=DEAD_SERVER)
    watcher = "gpuprov-node-health-kernel"
    again = f"timeout 20 systemctl restart {watcher} && systemctl is-active {watcher}"
    done = node.as_root(WITHOUT_HOME.format(command=again)).stdout
    assert "stat 124" in done
    assert "active" in done.split()


@pytest.mark.parametrize(("line", "seen"), [("", True), ("PrivateTmp=yes", False)])
def test_a_tmp_without_inodes_is_seen(lab: Lab, line: str, seen: bool) -> None:
    node = lab.node("gpu-01")
    directed(node, line)
    node.as_root("mount -t tmpfs -o nr_inodes=1 tmpfs /tmp")
    try:
        found = findings(inside(node))
    finally:
        node.as_root("umount /tmp")
        directed(node, "")
    assert ("host_health.free_inodes_percent" in {row[0] for row in found}) is seen


def test_the_node_exporter_reads_what_one_without_a_sandbox_reads(lab: Lab) -> None:
    program = """
import re, urllib.request
def page(port):
    return urllib.request.urlopen("http://localhost:%d/metrics" % port, timeout=20).read().decode()
pages = [page(port) for port in (9100, 9999)]
names = [set(re.findall(r"^# TYPE ([^ ]+)", one, re.M)) for one in pages]
worked = [set(re.findall(r"^(node_scrape_collector_success[^ ]+ [01])", one, re.M)) for one in pages]
print(len(names[0]), len(worked[0]), sorted(names[0] ^ names[1]) + sorted(worked[0] ^ worked[1]))
"""
    plain = (
        "sudo -u prometheus prometheus-node-exporter --web.listen-address=localhost:9999"
        " --collector.textfile.directory=/var/lib/prometheus/node-exporter > /dev/null 2>&1 & other=$!;"
        " sleep 4; python3 -; kill $other"
    )
    for node in lab.nodes:
        families, collectors, others = node.as_root(plain, said=program).stdout.split(maxsplit=2)
        assert int(families) > 200
        assert int(collectors) > 30
        assert others.strip() == "[]"
