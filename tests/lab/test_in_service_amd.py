"""A node with AMD GPUs in service: a real Slurm hands out its dies and drains it when it fails.

Prometheus reads it, and its exporter comes and goes as declared. AMD's exporter is a stand-in of this test: a
package with its name, files and units whose program listens and serves as its configuration says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab import slurm_cluster
from tests.lab.gpuprov_up import Operator, said
from tests.lab.lab_nodes import Lab, LabNode, running_lab
from tests.support.processes import until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
DRIVER = ["amd_repository", "amdgpu_driver", "rocm"]
SERVICE: dict[str, Any] = {
    "gpuprov_roles": [*DRIVER, "gpu_metrics", "node_health", "slurm_health"],
    "node_health_enabled": True,
    "slurm_health_enabled": True,
    "slurm_health_interval": 5,
    "gpu_metrics_enabled": True,
}
EXPORTING: dict[str, Any] = {
    **SERVICE,
    "gpu_metrics_amd_version": "1.5.1",
    "amd_repository_exporter_release": "",  # of the stand-in, which is in a folder of the node
}
FOLDER = "/opt/stand-in"
PROGRAM = """\
#!/usr/bin/python3
import argparse, http.server, json

words = argparse.ArgumentParser()
words.add_argument("-amd-metrics-config", dest="config")
words.add_argument("-bind", default="0.0.0.0")
told = words.parse_args()
config = json.load(open(told.config))
prefix, fields = config["CommonConfig"]["MetricsFieldPrefix"], config["GPUConfig"]["Fields"]
page = "".join("%s%s{gpu_id=\\"0\\"} 1\\n" % (prefix, name.lower()) for name in fields).encode()


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(page)


http.server.HTTPServer((told.bind, config["ServerPort"]), Page).serve_forever()
"""
PACKAGE = f"""\
set -e
rm -rf {FOLDER} && mkdir -p {FOLDER}/tree && cd {FOLDER}/tree
mkdir -p DEBIAN usr/local/bin usr/lib/systemd/system
cat > usr/local/bin/amd-metrics-exporter
printf '#!/bin/sh\\nexec sleep infinity\\n' > usr/local/bin/gpuagent
chmod 0755 usr/local/bin/*
for unit in gpuagent amd-metrics-exporter; do
    printf '[Service]\\nExecStart=/usr/local/bin/%s\\n[Install]\\nWantedBy=multi-user.target\\n' $unit \\
        > usr/lib/systemd/system/$unit.service
done
fields='Package: amdgpu-exporter\\nVersion: 1.5.1~24.04\\nArchitecture: amd64\\n'
fields="$fields"'Maintainer: nobody\\nDescription: stand-in\\n'
printf "$fields" > DEBIAN/control
printf '#!/bin/bash\\nsystemctl stop amd-metrics-exporter.service gpuagent.service\\n' > DEBIAN/prerm
printf 'systemctl disable gpuagent.service amd-metrics-exporter.service\\n' >> DEBIAN/prerm
chmod 0755 DEBIAN/prerm
cd .. && dpkg-deb --build tree amdgpu-exporter.deb > /dev/null && rm -rf tree
printf "$fields" > Packages
echo "Filename: ./amdgpu-exporter.deb" >> Packages
echo "Size: $(stat -c %s amdgpu-exporter.deb)" >> Packages
echo "SHA256: $(sha256sum amdgpu-exporter.deb | cut -d' ' -f1)" >> Packages
echo "deb [trusted=yes] file:{FOLDER} ./" > /etc/apt/sources.list.d/stand-in.list
apt-get -qq update
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = (NodeSpec("amd-01", "mi250x"),)
    with running_lab("amdserve", nodes, tmp_path_factory.mktemp("lab") / "lab.yml") as running:
        yield running


def up(operator: Operator, *words: str, **variables: Any) -> str:
    done = operator.call("up", "--yes", *words, timeout=1200, **variables)
    assert done.returncode == ExitCode.OK, said(done)
    return said(done)


@pytest.fixture(scope="module")
def node(lab: Lab, operator: Operator) -> LabNode:
    """Return a node in service with only the node exporter."""
    up(operator, gpuprov_roles=DRIVER)
    (made,) = lab.nodes
    slurm_cluster.start(lab.nodes, patience=60, files="/dev/dri/renderD[128-135]")
    up(operator, **SERVICE)
    return made


def state(node: LabNode) -> tuple[str, str]:
    """Return the node's (state, reason) in Slurm."""
    text = node.as_root("scontrol show node amd-01").stdout
    reason = re.search(r"^ +Reason=(.*?)(?: \[\S+\])?$", text, re.MULTILINE)
    return re.findall(r"State=(\S+)", text)[0], reason[1] if reason else ""


def test_slurm_hands_out_each_die_and_drift_holds_it_to_that(node: LabNode, operator: Operator) -> None:
    line = node.run("grep ^NodeName= /etc/slurm/gpuprov-node.txt").stdout
    assert line.startswith("NodeName=amd-01 Gres=gpu:8 Feature=mi250x"), line
    node.as_root(
        "printf '# gpuprov\\nInclude gpuprov.conf\\n' >> /etc/slurm/slurm.conf && scontrol reconfigure"
    )
    until(lambda: state(node)[0] == "IDLE", 60)
    assert node.run("srun --gres=gpu:8 hostname").stdout == "amd-01\n"
    told = {**SERVICE, "slurm_health_include": True}
    assert operator.drifted(**told) == {}
    fewer = operator.drifted(**told, gpuprov_expected_gpus=8, amd_gpu_settings_compute_partition="DPX")
    assert fewer["slurm.gpus"]["found"] == 8, "of sixteen that would be declared"


def test_a_node_that_fails_is_drained_with_its_cause(node: LabNode) -> None:
    node.fault("ecc_uncorrectable", gpu=3, count=2)
    node.as_root("systemctl start gpuprov-node-health.service")
    until(lambda: "DRAIN" in state(node)[0], 30)
    cause = r"gpuprov: gpu3: .*uncorrectable hardware errors.* \(serial \S+\): reset GPU( \(and 1 more\))?$"
    assert re.match(cause, state(node)[1]), state(node)
    node.heal()
    node.as_root("systemctl start gpuprov-node-health.service")


def listening(node: LabNode) -> set[str]:
    lines = node.as_root("ss --listening --tcp --numeric --no-header").stdout.splitlines()
    return {line.split()[3] for line in lines if line.split()[3].endswith((":9100", ":9400", ":5000"))}


def read(node: LabNode, port: int) -> str:
    """Fetch the metrics page at this port from the node itself."""
    asked = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{port}/metrics').read().decode())"
    return node.run(f'python3 -c "{asked}"').stdout


def test_amds_exporter_comes_and_goes_as_it_is_declared(node: LabNode, operator: Operator) -> None:
    assert listening(node) == {"*:9100"}
    page = read(node, 9100)
    assert re.search(r'^gpuprov_gpu_info\{gpu="7",', page, re.MULTILINE)
    node.as_root(PACKAGE, said=PROGRAM)
    up(operator, **EXPORTING, gpu_metrics_amd_address="127.0.0.1")
    assert listening(node) == {"*:9100", "127.0.0.1:5000"}
    page = read(node, 5000)
    assert 'amd_gpu_ecc_uncorrect_total{gpu_id="0"} 1\n' in page
    assert "amdgpu-exporter" in node.as_root("apt-mark showhold").stdout.split()
    for unit in ("gpuagent", "amd-metrics-exporter"):
        assert node.run(f"systemctl is-enabled {unit}").stdout == "enabled\n"
    assert "as declared" in up(operator, **EXPORTING, gpu_metrics_amd_address="127.0.0.1")
    emptied = {**SERVICE, "amd_repository_exporter_release": ""}
    assert set(operator.drifted(**emptied)) == {"file./etc/gpuprov/amd-metrics.json.exists"}
    up(operator, **emptied)
    assert listening(node) == {"*:9100"}
    dropins = "/etc/systemd/system/amd-metrics-exporter.service.d /etc/systemd/system/gpuagent.service.d"
    left = f"dpkg-query --show amdgpu-exporter; find /etc/gpuprov/amd* {dropins} -type f"
    assert node.as_root(f"{{ {left}; }} 2>/dev/null || true").stdout == ""
    assert "as declared" in up(operator, **emptied)
