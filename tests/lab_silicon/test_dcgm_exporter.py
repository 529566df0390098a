"""The simulated dcgm-exporter and its host engine: the page that Prometheus scrapes."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import signal
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from provision.desired import stack
from provision.desired.expectations import renderer_for
from provision.desired.role import all_roles
from tests.lab_silicon.silicon import Silicon
from tests.support.described import machine
from tests.support.processes import until

Make = Callable[..., Silicon]
LIBRARIES = "usr/lib/x86_64-linux-gnu"
# NVIDIA's page from issue 250, with the label that its templates have added since (render_metrics.go).
LINE = re.compile(
    r'DCGM_FI_[A-Z_]+\{gpu="\d",UUID="GPU-[0-9a-f-]{36}",pci_bus_id="[0-9A-F]{8}:[0-9A-F]{2}:00\.0",'
    r'device="nvidia\d",modelName="NVIDIA H100 80GB HBM3"(?:,GPU_I_PROFILE="[^"]+",GPU_I_ID="\d+")?'
    r'(?:,Hostname="[^"]+")?,DCGM_FI_DRIVER_VERSION="580\.126\.09"(?:,err_code="\d+",err_msg="[^"]+")?\}'
    r" [\d.]+\Z"
)


def counters(**settings: Any) -> str:
    """Return the role's counters file as `up` writes it."""
    role = all_roles()["gpu_metrics"]
    renderer = renderer_for(role, {**stack.load(stack.DEFAULT).variables, **settings}, machine())
    return renderer.file((role.path / "templates/dcgm-counters.csv.j2").read_text())


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Exporter:
    """A node's running exporter and its page."""

    def __init__(self, node: Silicon, *words: str, version: str = "4.8.2") -> None:
        self.node, self.port = node, free_port()
        file = node.root / "counters.csv"
        if not file.exists():
            file.write_text(counters())
        command = node.command("dcgm-exporter", "-f", str(file), "-a", f"127.0.0.1:{self.port}", *words)
        self.process = subprocess.Popen(
            command, env=node.environment(SILICON_VERSION=version), stderr=subprocess.PIPE, text=True
        )

    def fetch(self, path: str = "/metrics", scheme: str = "http", user: str = "") -> str:
        request = urllib.request.Request(f"{scheme}://127.0.0.1:{self.port}{path}")  # noqa: S310
        if user:
            request.add_header("Authorization", "Basic " + base64.b64encode(user.encode()).decode())
        unverified = ssl._create_unverified_context() if scheme == "https" else None  # noqa: S323
        with urllib.request.urlopen(request, timeout=20, context=unverified) as answer:  # noqa: S310
            return str(answer.read().decode())

    def values(self, name: str) -> dict[str, float]:
        """Return gpu → value of one metric."""
        lines = [line for line in self.fetch().splitlines() if line.startswith(name + "{")]
        return {re.findall(r'gpu="(\d+)"', line)[0]: float(line.rpartition(" ")[2]) for line in lines}

    def ready(self) -> Exporter:
        def listens() -> bool:
            with socket.socket() as one:
                return one.connect_ex(("127.0.0.1", self.port)) == 0 or self.process.poll() is not None

        until(listens, 20)
        return self


@contextlib.contextmanager
def engine(node: Silicon) -> Iterator[subprocess.Popen[bytes]]:
    """Run the host engine of a node with DCGM installed."""
    for name in ("libdcgm.so.4", "libdcgmmoduleprofiling.so.4"):
        node.file(f"{LIBRARIES}/{name}", "")
    process = subprocess.Popen(
        node.command("nv-hostengine", "-n", "--service-account", "nvidia-dcgm"), env=node.environment()
    )
    marker = node.state / "run/nv-hostengine"
    try:
        until(lambda: marker.exists() and len(marker.read_text().split()) == 2, 20)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


@contextlib.contextmanager
def serving(node: Silicon, *words: str, version: str = "4.8.2") -> Iterator[Exporter]:
    with engine(node):
        one = Exporter(node, "-r", "localhost:5555", *words, version=version)
        try:
            yield one.ready()
        finally:
            one.process.kill()
            one.process.communicate()


def test_the_page_has_nvidias_form_and_the_readings_of_nvidia_smi(node: Make) -> None:
    one = node()
    with serving(one) as exporter:
        lines = exporter.fetch().splitlines()
        samples = [line for line in lines if not line.startswith("#")]
        assert samples
        assert not [line for line in samples if not LINE.match(line)]
        assert f'Hostname="{os.uname().nodename}"' in samples[0]
        temperatures = exporter.values("DCGM_FI_DEV_GPU_TEMP")
        for index, text in enumerate(one.column("temperature.gpu")):
            assert abs(temperatures[str(index)] - float(text)) <= 2, "each reading has noise of its own"
        typed = dict(re.findall(r"^# TYPE (\S+) (\S+)$", "\n".join(lines), re.MULTILINE))
        assert typed["DCGM_FI_DEV_GPU_TEMP"] == "gauge"
        assert typed["DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"] == "counter"
        (power,) = {
            line.rpartition(".")[2] for line in samples if "POWER_USAGE" in line and 'gpu="0"' in line
        }
        assert len(power) == 6, "a double has six decimals"


def test_every_counter_of_the_role_has_a_value_or_a_reason(node: Make) -> None:
    names = re.findall(r"^(DCGM_\w+), (?:gauge|counter),", counters(), re.MULTILINE)
    assert len(names) == len(set(names)) > 25
    with serving(node()) as exporter:
        text = exporter.fetch()
    assert set(names) - set(re.findall(r"^(DCGM_\w+)\{", text, re.MULTILINE)) == {"DCGM_FI_DEV_XID_ERRORS"}


def test_the_name_of_the_host_can_be_left_out(node: Make) -> None:
    with serving(node(), "-n") as exporter:
        assert "Hostname" not in exporter.fetch()
        assert exporter.fetch("/health") == "OK"


FAULTS = {
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ("ecc_uncorrectable gpu=3 count=2", 2),
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": ("ecc_aggregate_old gpu=3 count=41", 41),
    "DCGM_FI_DEV_ROW_REMAP_PENDING": ("row_remap_pending gpu=3", 1),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": ("row_remap_failure gpu=3", 1),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": ("remapped_many gpu=3 rows=24", 24),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": ("pcie_replays_old gpu=3 count=7", 7),
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": ("nvlink_errors gpu=3 link=5 count=1234", 1234),
    "DCGM_FI_DEV_POWER_MGMT_LIMIT": ("power_limit gpu=3 percent=60", 420),
    "DCGM_FI_DEV_XID_ERRORS": ("xid gpu=3 code=94", 94),
}


def test_a_fault_shows_on_its_gpu_alone(node: Make) -> None:
    one = node()
    with serving(one) as exporter:
        for name, (fault, value) in FAULTS.items():
            before = exporter.values(name)
            assert before.get("3") != value, name
            one.break_(fault)
            after = exporter.values(name)
            assert after.pop("3") == value, name
            before.pop("3", None)
            assert after == before, name


def test_a_hot_gpu_and_a_throttled_one(node: Make) -> None:
    one = node()
    with serving(one) as exporter:
        cool = exporter.values("DCGM_FI_DEV_GPU_TEMP")["2"]
        one.break_("hot_gpu gpu=2 degrees=40", "throttle gpu=5 reason=hw_thermal")
        assert exporter.values("DCGM_FI_DEV_GPU_TEMP")["2"] > cool + 10
        assert int(exporter.values("DCGM_FI_DEV_CLOCKS_EVENT_REASONS")["5"]) == 0x1, "idle"
        one.loaded(*range(8))
        reasons = exporter.values("DCGM_FI_DEV_CLOCKS_EVENT_REASONS")
        assert int(reasons["5"]) & 0x48 == 0x48
        assert not int(reasons["4"]) & 0x48
        assert exporter.values("DCGM_FI_DEV_THERMAL_VIOLATION")["5"] > 0
        assert exporter.values("DCGM_FI_DEV_GPU_UTIL")["5"] == 100
        assert exporter.values("DCGM_FI_PROF_GR_ENGINE_ACTIVE")["5"] > 0.9


def test_a_gpu_that_is_lost_has_its_last_xid_and_nothing_else(node: Make) -> None:
    one = node()
    with serving(one) as exporter:
        one.break_("gpu_off_bus gpu=6")
        named = {line.partition("{")[0] for line in exporter.fetch().splitlines() if 'gpu="6"' in line}
        assert named == {"DCGM_FI_DEV_XID_ERRORS"}
        assert 'err_code="79",err_msg="GPU has fallen off the bus"} 79' in exporter.fetch()
        one.break_("gpu_missing gpu=7")
        assert set(exporter.values("DCGM_FI_DEV_GPU_TEMP")) == {"0", "1", "2", "3", "4", "5"}


def test_an_xid_from_before_the_host_engine_started_is_unknown_to_it(node: Make) -> None:
    one = node()
    one.break_("xid gpu=1 code=31")
    with serving(one) as exporter:
        assert exporter.values("DCGM_FI_DEV_XID_ERRORS") == {}
    with serving(one, version="4.6.0") as exporter:
        assert exporter.values("DCGM_FI_DEV_XID_ERRORS") == {str(index): 0 for index in range(8)}
        assert 'err_code="0",err_msg="No Error"' in exporter.fetch()


def test_mig_instances_have_lines_of_their_own(node: Make) -> None:
    one = node()
    one.smi("-i", "0", "-mig", "1")
    one.smi("mig", "-i", "0", "-cgi", "3g.40gb,3g.40gb", "-C")
    with serving(one) as exporter:
        lines = [line for line in exporter.fetch().splitlines() if 'gpu="0"' in line]
        of = {name: [line for line in lines if line.startswith(name + "{")] for name in
              ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_GPU_UTIL")}  # fmt: skip
        assert len(of["DCGM_FI_DEV_GPU_TEMP"]) == len(of["DCGM_FI_DEV_FB_USED"]) == 2
        assert of["DCGM_FI_DEV_GPU_UTIL"] == []
        assert all('GPU_I_PROFILE="3g.40gb",GPU_I_ID="' in line for line in lines)
        assert len(exporter.values("DCGM_FI_DEV_GPU_UTIL")) == 7


def ends(node: Silicon, *words: str) -> str:
    one = Exporter(node, *words)
    _, text = one.process.communicate(timeout=30)
    assert one.process.returncode == 1
    return str(text)


def test_it_does_not_start_without_what_it_needs(node: Make) -> None:
    one = node()
    assert "libdcgm.so.4 library was not found" in ends(one, "-r", "localhost:5555")
    one.file(f"{LIBRARIES}/libdcgm.so.4", "")
    assert "Failed to connect to remote hostengine" in ends(one, "-r", "localhost:5555")
    with engine(one):
        for line, why in (
            ("DCGM_FI_DEV_GPU_TEMPERATURE, gauge, x", "unknown ExporterCounter field"),
            ("DCGM_FI_DEV_GPU_TEMP, gauge", "expected 3 fields"),
            ("DCGM_FI_DEV_GPU_TEMP, gage, x", "could not find Prometheus metric type 'gage'"),
        ):
            one.file("counters.csv", line + "\n")
            assert why in ends(one, "-r", "localhost:5555")


def test_without_the_profiling_module_its_fields_are_left_out(node: Make) -> None:
    one = node()
    with engine(one):
        (one.root / LIBRARIES / "libdcgmmoduleprofiling.so.4").unlink()
        exporter = Exporter(one, "-r", "localhost:5555").ready()
        try:
            text = exporter.fetch()
        finally:
            exporter.process.kill()
            _, log = exporter.process.communicate()
    assert "DCGM_FI_PROF" not in text
    assert "DCGM_FI_DEV_GPU_TEMP{" in text
    assert "('DCGM_FI_PROF_GR_ENGINE_ACTIVE'): metric not enabled" in log


def test_it_ends_when_the_host_engine_is_gone(node: Make) -> None:
    one = node()
    with serving(one) as exporter:
        os.kill(int((one.state / "run/nv-hostengine").read_text().split()[0]), signal.SIGTERM)
        until(lambda: not (one.state / "run/nv-hostengine").exists(), 20)
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            exporter.fetch()
        assert exporter.process.wait(20) == 1


# Hash of `password` for the user alice, from NVIDIA/dcgm-exporter tests/integration/testdata/web-config.yml.
ALICE = "$2y$10$CWCEbs7mt8QFrToJR9OcG.tduEKpx9SROhWnaDHQgQX4Q6hqWNASa"


def test_users_and_tls(node: Make, tmp_path: Path) -> None:
    one = node()
    key, certificate = tmp_path / "key", tmp_path / "crt"
    made = ["-subj", "/CN=gpu-01", "-days", "1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *made], check=True, capture_output=True
    )
    config = tmp_path / "web.yml"
    config.write_text(
        f"tls_server_config:\n  cert_file: {certificate}\n  key_file: {key}\n"
        f"basic_auth_users:\n  # password: password\n  alice: {ALICE}\n"
    )
    with serving(one, "--web-config-file", str(config)) as exporter:
        for user in ("", "alice:Password", "bob:password"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                exporter.fetch(scheme="https", user=user)
        assert "DCGM_FI_DEV_GPU_TEMP{" in exporter.fetch(scheme="https", user="alice:password")
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            exporter.fetch(user="alice:password")
    config.write_text("basic_auth_user:\n  alice: x\n")
    with engine(one):
        assert "field basic_auth_user not found" in ends(
            one, "-r", "localhost:5555", "--web-config-file", str(config)
        )
