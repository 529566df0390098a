"""The exporters on a real node: Debian's unmodified node exporter, and NVIDIA's over simulated GPUs."""

from __future__ import annotations

import base64
import json
import re
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from testinfra.host import Host

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, said
from tests.lab.images import Images
from tests.lab.lab_nodes import Lab, LabNode, running_lab
from tests.support.processes import until

FIELDS = Path(__file__).resolve().parents[1] / "fixtures/gpu_metrics/fields.txt"
ROLES = ["nvidia_repository", "nvidia_driver", "nvlink"]
# Hash of `password` for the user alice, from NVIDIA/dcgm-exporter tests/integration/testdata/web-config.yml.
HASH = "$2y$10$CWCEbs7mt8QFrToJR9OcG.tduEKpx9SROhWnaDHQgQX4Q6hqWNASa"
ALICE = "alice:password"
PORTS = {"node": 9100, "gpus": 9400}
UNITS = ("prometheus-node-exporter.service", "nvidia-dcgm.service", "nvidia-dcgm-exporter.service")
WHAT_IS_THERE = (
    "dpkg-query --show --showformat '${db:Status-Abbrev} ${Package}\\n'",
    "find /etc /usr/local /opt /var/lib/prometheus /var/log/nvidia-dcgm 2>/dev/null | grep -v __pycache__",
    "ss --listening --tcp --numeric --no-header | awk '{print $4}' | sort",
    "apt-mark showhold",
)
pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def lab(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    inventory = tmp_path_factory.mktemp("lab") / "lab.yml"
    nodes = (NodeSpec("gpu-01", "h100-sxm"),)
    with running_lab("gmetrics", nodes, inventory, images={"gpu-01": images.h100()}) as running:
        yield running


@pytest.fixture(scope="module")
def node(lab: Lab) -> LabNode:
    return lab.node("gpu-01")


@pytest.fixture(scope="module")
def pki(node: LabNode, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder with the node's certificate and key."""
    folder = tmp_path_factory.mktemp("pki")
    made = ["-subj", "/CN=gpu-01", "-addext", f"subjectAltName=IP:{node.address}", "-days", "2"]
    made += ["-keyout", str(folder / "key"), "-out", str(folder / "crt")]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *made], check=True, capture_output=True
    )
    return folder


@pytest.fixture(scope="module")
def settings(pki: Path) -> dict[str, Any]:
    return {
        "gpu_metrics_enabled": True,
        "gpuprov_roles": [*ROLES, "gpu_metrics"],
        "gpu_metrics_password_hashes": {"alice": HASH},
        "gpu_metrics_tls_certificate": (pki / "crt").read_text(),
        "gpu_metrics_tls_private_key": (pki / "key").read_text(),
    }


def there(node: LabNode) -> list[list[str]]:
    return [sorted(node.as_root(what).stdout.splitlines()) for what in WHAT_IS_THERE]


def up(operator: Operator, *words: str, **variables: Any) -> str:
    done = operator.call("up", "--yes", *words, timeout=1200, **variables)
    assert done.returncode == ExitCode.OK, said(done)
    return said(done)


@pytest.fixture(scope="module")
def before(node: LabNode) -> list[list[str]]:
    """Return listings of the node before it has exporters."""
    return there(node)


@pytest.fixture(scope="module")
def guarded(before: list[list[str]], operator: Operator, settings: dict[str, Any]) -> dict[str, Any]:
    """Set up exporters with TLS and a user, and return the settings."""
    assert before
    assert "would change" in up(operator, "--check", **settings)
    up(operator, **settings)
    return settings


@pytest.fixture
def host(node: LabNode) -> Host:
    return node.testinfra()


class Pages:
    """Pages that Prometheus scrapes from a node."""

    def __init__(self, node: LabNode, pki: Path) -> None:
        self.address = node.address
        self.context = ssl.create_default_context(cafile=str(pki / "crt"))

    def fetch(self, port: int, user: str = ALICE) -> str:
        request = urllib.request.Request(f"https://{self.address}:{port}/metrics")
        if user:
            request.add_header("Authorization", "Basic " + base64.b64encode(user.encode()).decode())
        with urllib.request.urlopen(request, timeout=30, context=self.context) as page:  # noqa: S310
            return str(page.read().decode())

    def gpus(self, name: str) -> dict[str, float]:
        """Return gpu → value of one metric."""
        lines = [line for line in self.fetch(PORTS["gpus"]).splitlines() if line.startswith(name + "{")]
        return {re.findall(r'gpu="(\d+)"', line)[0]: float(line.rpartition(" ")[2]) for line in lines}


@pytest.fixture
def pages(guarded: dict[str, Any], node: LabNode, pki: Path) -> Pages:
    assert guarded
    return Pages(node, pki)


def test_the_exporters_run_and_come_back_after_a_boot(
    guarded: dict[str, Any], node: LabNode, host: Host
) -> None:
    assert guarded["gpu_metrics_enabled"]
    node.reboot()
    until(lambda: node.run("ss -ltn | grep -c ':9[14]00'", check=False).stdout.strip() == "2", 60)
    for unit in UNITS:
        assert host.service(unit).is_running, unit
        assert host.service(unit).is_enabled, unit
    for port in PORTS.values():
        assert host.socket(f"tcp://{port}").is_listening
    held = set(host.check_output("apt-mark showhold").split())
    assert {"datacenter-gpu-manager-exporter", "datacenter-gpu-manager-4-core"} <= held
    assert "prometheus-node-exporter" not in held
    assert not host.package("prometheus-node-exporter-collectors").is_installed, "its timers run apt"
    for name in ("metrics.key", "metrics-web.yml"):
        file = host.file(f"/etc/gpuprov/{name}")
        assert (file.mode, file.user, file.group) == (0o640, "root", "prometheus")


def test_a_second_run_changes_nothing(guarded: dict[str, Any], operator: Operator) -> None:
    up(operator, "--full", **guarded)
    assert [event["task"] for event in operator.records("events") if event["kind"] == "changed"] == []
    assert operator.call("drift", **guarded).returncode == ExitCode.OK


@pytest.mark.parametrize("page", PORTS)
def test_who_has_no_password_reads_nothing(pages: Pages, page: str) -> None:
    for user in ("", "alice:Password", "root:password"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            pages.fetch(PORTS[page], user)
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        urllib.request.urlopen(f"http://{pages.address}:{PORTS[page]}/metrics", timeout=10).read()


def test_prometheus_reads_the_machine_and_what_others_leave_in_its_folder(
    pages: Pages, node: LabNode
) -> None:
    text = pages.fetch(PORTS["node"])
    assert re.search(r'^node_uname_info\{.*nodename="gpu-01"', text, re.MULTILINE)
    assert "left_by_somebody" not in text
    node.as_root("echo 'left_by_somebody 42' > /var/lib/prometheus/node-exporter/test.prom")
    try:
        assert "left_by_somebody 42" in pages.fetch(PORTS["node"])
    finally:
        node.as_root("rm /var/lib/prometheus/node-exporter/test.prom")


def test_prometheus_reads_the_gpus_under_nvidias_names(pages: Pages, node: LabNode) -> None:
    text = pages.fetch(PORTS["gpus"])
    served = set(re.findall(r"^(\w+)\{", text, re.MULTILINE))
    assert served <= {line for line in FIELDS.read_text().splitlines() if not line.startswith("#")}
    assert len(served) > 30
    listed = node.run("nvidia-smi --query-gpu=uuid --format=csv,noheader").stdout.split()
    assert set(re.findall(r'UUID="([^"]+)"', text)) == set(listed)
    query = "nvidia-smi --query-gpu=index,temperature.gpu --format=csv,noheader"
    temperatures = pages.gpus("DCGM_FI_DEV_GPU_TEMP")
    for line in node.run(query).stdout.splitlines():
        index, _, degrees = line.partition(", ")
        assert abs(temperatures[index] - float(degrees)) <= 2, "each reading has noise of its own"


def test_a_fault_of_a_gpu_is_on_the_page_at_once(pages: Pages, node: LabNode) -> None:
    try:
        node.fault("hot_gpu", gpu=2, degrees=50)
        node.fault("ecc_uncorrectable", gpu=4, count=3)
        node.fault("gpu_off_bus", gpu=6)
        temperatures = pages.gpus("DCGM_FI_DEV_GPU_TEMP")
        assert set(temperatures) == {"0", "1", "2", "3", "4", "5", "7"}
        assert max(temperatures, key=lambda gpu: temperatures[gpu]) == "2"
        assert pages.gpus("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL")["4"] == 3
        assert pages.gpus("DCGM_FI_DEV_XID_ERRORS") == {"4": 48, "6": 79}
    finally:
        node.heal()


def test_what_was_changed_by_hand_is_drift_and_mended_without_a_word_of_the_secret(
    guarded: dict[str, Any], operator: Operator, node: LabNode, host: Host, pages: Pages
) -> None:
    other = HASH.replace("CWCE", "AAAA")
    node.as_root(f"sed -i 's|{HASH}|{other}|' /etc/gpuprov/metrics-web.yml")
    node.as_root("systemctl disable --now nvidia-dcgm-exporter")
    drifted = operator.drifted(**guarded)
    assert set(drifted) == {
        "file./etc/gpuprov/metrics-web.yml.sha256",
        "service.nvidia-dcgm-exporter.service.active",
        "service.nvidia-dcgm-exporter.service.enabled",
        "tcp.9400.listening",
    }
    assert "AAAAbs7mt8QFr" not in json.dumps(drifted)
    text = up(operator, "--diff", **guarded)
    assert HASH not in text
    assert "AAAAbs7mt8QFr" not in text
    kept = "".join(file.read_text() for file in operator.newest().rglob("*.jsonl"))
    assert "AAAAbs7mt8QFr" not in kept
    assert operator.call("drift", **guarded).returncode == ExitCode.OK
    assert host.service("nvidia-dcgm-exporter").is_enabled
    assert pages.gpus("DCGM_FI_DEV_GPU_TEMP")


def test_the_exporter_follows_the_host_engine(pages: Pages, node: LabNode) -> None:
    node.as_root("systemctl stop nvidia-dcgm")
    assert node.run("systemctl is-active nvidia-dcgm-exporter", check=False).stdout.strip() == "inactive"
    node.as_root("systemctl start nvidia-dcgm-exporter")
    assert node.run("systemctl is-active nvidia-dcgm").stdout.strip() == "active"
    until(lambda: node.run("ss -ltn | grep -q :9400", check=False).returncode == 0, 30)
    node.as_root("pkill -KILL -f '[n]v-hostengine -n'")
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        pages.gpus("DCGM_FI_DEV_GPU_TEMP")
    node.as_root("systemctl start nvidia-dcgm")
    until(lambda: node.run("ss -ltn | grep -q :9400", check=False).returncode == 0, 60)
    assert pages.gpus("DCGM_FI_DEV_GPU_TEMP"), "it came back by itself"


def test_without_tls_and_users_nothing_secret_is_left(
    guarded: dict[str, Any], operator: Operator, host: Host
) -> None:
    bare = {name: guarded[name] for name in ("gpu_metrics_enabled", "gpuprov_roles")}
    up(operator, **bare)
    assert not [name for name in host.file("/etc/gpuprov").listdir() if name.startswith("metrics")]
    address = host.backend.hostname
    with urllib.request.urlopen(f"http://{address}:9400/metrics", timeout=30) as page:
        assert b"DCGM_FI_DEV_GPU_TEMP{" in page.read()
    assert operator.call("drift", **bare).returncode == ExitCode.OK


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"gpu_metrics_password_hashes": {"bob": "hunter2hunter2"}}, "has no bcrypt hash for bob"),
        ({"gpu_metrics_tls_certificate": "-----BEGIN CERTIFICATE-----\nx"}, "without its other half"),
        ({"gpu_metrics_counters": ["DCGM_FI_DEV_FAN_SPEED, gage, x"]}, "gpu_metrics_counters has"),
        ({"gpu_metrics_port": 9100}, "are both 9100"),
        ({"gpu_metrics_address": "10.0.0.1:9400"}, "gpu_metrics_address is 10.0.0.1:9400"),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(
    guarded: dict[str, Any], operator: Operator, wrong: dict[str, Any], sentence: str
) -> None:
    bare = {name: guarded[name] for name in ("gpu_metrics_enabled", "gpuprov_roles")}
    done = operator.call("up", "--yes", "--full", timeout=900, **bare, **wrong)
    assert done.returncode == ExitCode.UNHEALTHY, said(done)
    assert sentence in said(done)
    assert "hunter2" not in said(done)


def test_removing_the_role_leaves_the_node_as_it_was(
    before: list[list[str]], guarded: dict[str, Any], operator: Operator, node: LabNode
) -> None:
    up(operator, "--remove", "gpu_metrics", **{**guarded, "gpuprov_roles": ROLES})
    assert there(node) == before
    assert node.run("systemctl is-system-running", check=False).stdout.strip() in ("running", "degraded")
