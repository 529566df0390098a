"""Exposure of each systemd unit written by gpuprov, as counted by systemd-analyze, and valid syntax.
SECURITY.md has the table. tests/lab/test_sandboxes.py tries the sandboxes on lab nodes.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from provision import paths
from provision.desired.expectations import renderer_for
from provision.desired.role import all_roles
from provision.fleet import Fleet
from provision.up.watch import unit
from tests.support.described import machine

ROOT = Path(__file__).resolve().parents[2]
TABLE = (ROOT / "SECURITY.md").read_text()
ROW = re.compile(r"^\| `([a-z.-]+)` \| ([0-9.]+) \| ([0-9.]+) \|", re.MULTILINE)
LIMIT = 5.0
# Settings that would keep a health check from running or hide the inspected state.
BLINDING = {
    *("PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock", "ProtectProc", "ProcSubset"),
    *(
        "ProtectKernelLogs",
        "ProtectKernelModules",
        "ProtectKernelTunables",
        "SystemCallFilter",
        "PrivateUsers",
    ),
    *("MemoryDenyWriteExecute", "InaccessiblePaths", "TemporaryFileSystem", "RootDirectory", "RootImage"),
    *("ProtectHome", "PrivateTmp"),
}
EVERYWHERE = {
    *("NoNewPrivileges", "RestrictSUIDSGID", "RestrictRealtime", "LockPersonality"),
    *("RestrictAddressFamilies", "CapabilityBoundingSet"),
}
# Units that read or configure GPUs, or read the machine.
READERS = [
    *("node_health/gpuprov-node-health.service", "node_health/gpuprov-node-health-kernel.service"),
    *("gpu_settings/gpu-settings.service", "amd_gpu_settings/amd-gpu-settings.service"),
    *(
        "amd_container_toolkit/gpuprov-amd-cdi.service",
        "rdma/roce.service",
        "host_settings/host-settings.service",
    ),
    *("gpu_metrics/node-exporter.conf", "gpu_metrics/dcgm-exporter.conf"),
    *("gpu_metrics/amd-metrics-exporter.conf", "gpu_metrics/gpuagent.conf"),
]
# The packaged unit's most important setting: its user.
PACKAGED = {
    "prometheus.service": "[Service]\nUser=prometheus\n",
    "alertmanager.service": "[Service]\nUser=prometheus\n",
    "receptor.service": "[Service]\n",
}
UNITS = {  # by their names on a node
    **dict(
        zip(
            (
                *("gpuprov-node-health.service", "gpuprov-node-health-kernel.service"),
                *("gpuprov-gpu-settings.service", "gpuprov-amd-gpu-settings.service"),
                *("gpuprov-amd-cdi.service", "gpuprov-rdma-roce.service", "gpuprov-host-settings.service"),
            ),
            (name for name in READERS if name.endswith(".service")),
            strict=True,
        )
    ),
    "prometheus.service": "monitoring/prometheus.service",
    "alertmanager.service": "monitoring/alertmanager.service",
    "receptor.service": "receptor/gpuprov.conf",
}
needs_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def rendered(name: str, **variables: Any) -> str:
    """Return the text of ROLE/UNIT as on a node."""
    role, template = name.split("/")
    of = all_roles()[role]
    declared: dict[str, Any] = {"receptor_authority": {}, "inventory_hostname": "gpu-01", **variables}
    text: str = renderer_for(of, declared, machine()).file(
        (of.path / f"templates/{template}.j2").read_text(), {}
    )
    return text


def texts() -> dict[str, str]:
    """Return unit → text that systemd reads."""
    roles = {name: PACKAGED.get(name, "") + rendered(source) for name, source in UNITS.items()}
    return {**roles, unit.PLACE.name: unit.text(Fleet(Path("/srv/nodes.yml"), {}, {}), [], "ops")}


def settings(text: str) -> set[str]:
    return set(re.findall(r"^([A-Z][A-Za-z]+)=", text, re.MULTILINE))


def analyzed(folder: Path, name: str, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    folder.joinpath(name).write_text(text)
    return subprocess.run(
        ["systemd-analyze", *words, str(folder / name)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_table_has_every_unit() -> None:
    written = {f"{path.parents[1].name}/{path.stem}" for path in paths.ROLES.glob("*/templates/*.service.j2")}
    assert {*UNITS.values()} == {*written, "receptor/gpuprov.conf"}
    assert [row[0] for row in ROW.findall(TABLE)] == [*UNITS, unit.PLACE.name]


@needs_analyze
@pytest.mark.parametrize("name", [*UNITS, unit.PLACE.name])
def test_a_unit_is_as_exposed_as_the_table_says(name: str, tmp_path: Path) -> None:
    text = texts()[name]
    done = analyzed(tmp_path, name, text, "security", "--offline=true", "--no-pager")
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze (before 250) reads no files")
    exposure = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert exposure, done.stderr
    (told,) = [float(row[2]) for row in ROW.findall(TABLE) if row[0] == name]
    assert float(exposure[1]) == pytest.approx(told, abs=0.15), "SECURITY.md"
    assert float(exposure[1]) <= LIMIT or "Exposure above 5.0: " in text, "the reason stands in the unit"


@needs_analyze
@pytest.mark.parametrize("name", [*UNITS, unit.PLACE.name])
def test_systemd_understands_every_line_of_a_unit(name: str, tmp_path: Path) -> None:
    whole = texts()[name].replace("[Service]", "[Service]\nExecStart=/bin/true", 1)
    done = analyzed(tmp_path, name, whole, "verify")
    assert not re.search(rf"{name}:\d+: ", done.stderr), done.stderr


@pytest.mark.parametrize("name", READERS)
def test_no_unit_hides_from_itself_what_it_is_to_see(name: str) -> None:
    text = rendered(name)
    assert not settings(text) & BLINDING
    assert not re.search(r"^ProtectSystem=strict", text, re.MULTILINE)
    assert EVERYWHERE - {"CapabilityBoundingSet"} | {"RestrictNamespaces"} <= settings(text)


@pytest.mark.parametrize("name", [*UNITS, unit.PLACE.name])
def test_every_unit_has_what_hides_nothing(name: str) -> None:
    assert settings(texts()[name]) >= EVERYWHERE


def test_the_health_program_keeps_what_it_reads_the_machine_with() -> None:
    text = rendered("node_health/gpuprov-node-health.service").replace("\\\n", "")
    dropped = re.search(r"^CapabilityBoundingSet=~(.*)$", text, re.MULTILINE)
    assert dropped
    for needed in (
        "SYS_PTRACE",
        "SYSLOG",
        "SYS_ADMIN",
        "SYS_MODULE",
        "SYS_RAWIO",
        "MKNOD",
        "CHOWN",
        "DAC_OVERRIDE",
    ):
        assert f"CAP_{needed}" not in dropped[1].split()


@needs_analyze
@pytest.mark.parametrize("folder", ["/etc/node_exporter/textfile", "/usr/local/100%/text file"])
def test_metrics_are_written_into_a_folder_that_is_protected_otherwise(folder: str, tmp_path: Path) -> None:
    name = "gpuprov-node-health.service"
    text = rendered(f"node_health/{name}", node_health_textfile=folder)
    assert f'ReadWritePaths="-{folder.replace("%", "%%")}"' in text.splitlines()
    done = analyzed(tmp_path, name, re.sub("(?m)^ExecStart=.*", "ExecStart=/bin/true", text), "verify")
    assert not re.search(rf"{name}:\d+: ", done.stderr), done.stderr


@pytest.mark.parametrize("folder", ["", "/var/lib/prometheus/node-exporter", "/srv/usr/metrics"])
def test_no_folder_is_opened_that_is_not_protected(folder: str) -> None:
    unit_text = rendered("node_health/gpuprov-node-health.service", node_health_textfile=folder)
    assert "ReadWritePaths" not in settings(unit_text)
