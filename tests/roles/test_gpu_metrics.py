"""Expectations for a node's exporters: addresses, access, and no secret."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from provision.desired.expectations import renderer_for
from provision.desired.removal import refusals
from provision.desired.resolve import View
from provision.desired.role import all_roles
from provision.secrets_mask import is_secret_name
from tests.roles.promises import promised_by, values
from tests.support.described import machine

AMDS_FIELDS = Path(__file__).resolve().parents[1] / "fixtures/gpu_metrics/amds-fields.txt"
FIELDS = Path(__file__).resolve().parents[1] / "fixtures/gpu_metrics/fields.txt"
NODE_UNIT = "service.prometheus-node-exporter.service"
COUNTERS = "file./etc/gpuprov/dcgm-counters.csv.content"
ARGUMENTS = "file./etc/gpuprov/node-exporter.env.content"
DROPIN = "file./etc/systemd/system/nvidia-dcgm-exporter.service.d/10-gpuprov.conf.content"
SECRETS = ("/etc/gpuprov/metrics-web.yml", "/etc/gpuprov/metrics.crt", "/etc/gpuprov/metrics.key")
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\n"
HASH = "$2y$10$" + "a" * 53
GUARDED = {
    "tls_certificate": CERTIFICATE,
    "tls_private_key": KEY,
    "password_hashes": {"prometheus": HASH},
}


def promised(node: dict[str, Any] | None = None, /, **settings: Any) -> dict[str, Any]:
    return values(promised_by("gpu_metrics", node, enabled=True, **settings))


def counters(**settings: Any) -> list[tuple[str, str, str]]:
    lines = promised(**settings)[COUNTERS].splitlines()
    found = [line.split(",") for line in lines if line and not line.startswith("#")]
    assert {len(each) for each in found} == {3}, "dcgm-exporter ends at a line of another form"
    return [(each[0].strip(), each[1].strip(), each[2].strip()) for each in found]


def test_nothing_is_promised_until_the_role_is_declared() -> None:
    assert promised_by("gpu_metrics") == {}
    assert promised()[f"{NODE_UNIT}.active"] == "active"


def test_every_counter_is_a_field_that_nvidia_names_and_has_its_reason() -> None:
    known = {line for line in FIELDS.read_text().splitlines() if not line.startswith("#")}
    found = counters()
    assert {name for name, _, _ in found} <= known
    assert len({name for name, _, _ in found}) == len(found)
    assert {kind for _, kind, _ in found} == {"gauge", "counter", "label"}
    assert all(help_text and '"' not in help_text for _, _, help_text in found)
    for block in promised()[COUNTERS].split("\n\n"):
        assert block.startswith("# "), f"a group without a reason: {block}"


def test_what_breaks_gpus_is_among_them() -> None:
    names = {name for name, _, _ in counters()}
    for part in ("XID_ERRORS", "ECC_DBE_VOL_TOTAL", "ROW_REMAP_FAILURE", "ROW_REMAP_PENDING", "GPU_TEMP"):
        assert f"DCGM_FI_DEV_{part}" in names
    without = {name for name, _, _ in counters(profiling=False)}
    assert names - without == {name for name in names if name.startswith("DCGM_FI_PROF_")} != set()


def test_a_site_adds_counters_of_its_own() -> None:
    line = "DCGM_FI_DEV_FAN_SPEED, gauge, Fan speed (in %)."
    assert counters(counters=[line])[-1] == ("DCGM_FI_DEV_FAN_SPEED", "gauge", "Fan speed (in %).")


def test_a_node_without_gpus_gets_the_node_exporter_alone() -> None:
    for found in (promised(machine(count=0)), _expecting_none()):
        assert not [fact for fact in found if "dcgm" in fact or "datacenter" in fact or "9400" in fact]
        assert found[f"{NODE_UNIT}.active"] == "active"
        assert found["tcp.9100.listening"] is True


def _expecting_none() -> dict[str, Any]:
    from tests.roles.promises import promised as of_node

    found = of_node(gpuprov_roles=["gpu_metrics"], gpu_metrics_enabled=True, gpuprov_expected_gpus=0)
    return values({fact: each for fact, each in found.items() if each.role == "gpu_metrics"})


def test_gpus_that_are_all_lost_are_still_expected() -> None:
    from tests.roles.promises import promised as of_node

    found = of_node(
        machine(count=0), gpuprov_roles=["gpu_metrics"], gpu_metrics_enabled=True, gpuprov_expected_gpus=8
    )
    assert "service.nvidia-dcgm-exporter.service.active" in found


@pytest.mark.parametrize(
    ("address", "wanted"),
    [("", ":9100"), ("10.0.0.7", "10.0.0.7:9100"), ("[2001:db8::7]", "[2001:db8::7]:9100")],
)
def test_both_listen_where_they_are_told(address: str, wanted: str) -> None:
    found = promised(address=address)
    assert f'ARGS="--web.listen-address={wanted} ' in found[ARGUMENTS]
    assert f" -a {wanted.replace('9100', '9400')} " in found[DROPIN]
    assert {"tcp.9100.listening", "tcp.9400.listening"} <= set(found)


def test_the_exporter_reads_the_one_host_engine_and_comes_back() -> None:
    text = promised(interval=20, cpu_quota="200%")[DROPIN]
    assert " -c 20000 -r localhost:5555 -n\n" in text
    for line in (
        "Requires=nvidia-dcgm.service",
        "Restart=on-failure",
        "CPUQuota=200%",
        "Nice=10",
        "ExecStart=",
    ):
        assert f"\n{line}\n" in text


@pytest.mark.parametrize(
    ("system", "option"),
    [
        ("ubuntu 22.04", "--web.config"),
        ("ubuntu 24.04", "--web.config.file"),
        ("debian 12", "--web.config.file"),
    ],
)
def test_the_web_configuration_is_named_as_the_release_calls_it(system: str, option: str) -> None:
    found = promised(machine(system), **GUARDED)
    assert f" {option}=/etc/gpuprov/metrics-web.yml" in found[ARGUMENTS]
    assert found[DROPIN].count(" --web-config-file /etc/gpuprov/metrics-web.yml\n") == 1
    assert "web" not in promised(machine(system))[ARGUMENTS].replace("--web.listen-address", "")


def test_secrets_are_promised_by_their_hash_alone() -> None:
    found = promised(**GUARDED)
    texts = json.dumps(found)
    for secret in ("MIIE", "MIIB", HASH):
        assert secret not in texts
    for path, text in zip(SECRETS[1:], (CERTIFICATE, KEY), strict=True):
        assert found[f"file.{path}.sha256"] == hashlib.sha256(text.encode()).hexdigest()
    for path in SECRETS:
        assert (found[f"file.{path}.mode"], found[f"file.{path}.owner"]) == ("0640", "root:prometheus")
    open_to_all = promised()
    assert all(open_to_all[f"file.{path}.exists"] is False for path in SECRETS), "what was declared before"


def test_the_web_configuration_is_one_that_exporters_read() -> None:
    role = all_roles()["gpu_metrics"]
    declared = {f"gpu_metrics_{name}": value for name, value in GUARDED.items()}
    text = renderer_for(role, declared, machine()).value("{{ __gpu_metrics_web_config }}")
    read = json.loads(text) if isinstance(text, str) else text
    assert read == {
        "tls_server_config": {"cert_file": SECRETS[1], "key_file": SECRETS[2]},
        "basic_auth_users": {"prometheus": HASH},
    }


@pytest.mark.parametrize("name", ["gpu_metrics_tls_private_key", "gpu_metrics_password_hashes"])
def test_secrets_have_names_by_which_they_are_masked_everywhere(name: str) -> None:
    assert is_secret_name(name)


def test_nvidias_packages_are_held_and_the_distributions_is_not() -> None:
    held = {fact: value for fact, value in promised().items() if fact.endswith(".held")}
    assert set(held.values()) == {True}
    assert {re.sub(r"package\.(.+)\.held", r"\1", fact) for fact in held} == {
        *("datacenter-gpu-manager-4-core", "datacenter-gpu-manager-4-proprietary"),
        "datacenter-gpu-manager-exporter",
    }
    assert {value for fact, value in promised(hold=False).items() if fact.endswith(".held")} == {False}


def test_versions_are_promised_where_they_are_declared() -> None:
    assert not [fact for fact in promised() if fact.endswith(".version")]
    found = promised(version="4.8.2-1", dcgm_version="1:4.5.3-1")
    assert found["package.datacenter-gpu-manager-exporter.version"] == "4.8.2"
    assert found["package.datacenter-gpu-manager-4-core.version"] == "4.5.3"


@pytest.mark.parametrize(
    ("system", "package"),
    [
        ("debian 13", "prometheus-node-exporter"),
        ("ubuntu 22.04", "prometheus-node-exporter"),
        ("rocky 8.10", "golang-github-prometheus-node-exporter"),
        ("rhel 9.4", "node-exporter"),
        ("almalinux 10", "node-exporter"),
    ],
)
def test_the_node_exporters_package_is_called_as_the_system_has_it(system: str, package: str) -> None:
    found = promised(machine(system))
    assert found[f"package.{package}.status"] == "installed"
    assert found[f"{NODE_UNIT}.enabled"] == "enabled"


def test_the_driver_is_not_removed_from_under_it() -> None:
    declared = {"gpuprov_roles": ["nvidia_driver", "gpu_metrics"], "gpu_metrics_enabled": True}
    ((refusal),) = refusals(View({}, declared, {}), ["nvidia_driver"], machine(), "gpu-01")
    assert refusal.what == "gpu-01: gpu_metrics builds on nvidia_driver"
    off = {**declared, "gpu_metrics_enabled": False}
    assert refusals(View({}, off, {}), ["nvidia_driver"], machine(), "gpu-01") == []


# --- AMD's GPUs

AMDS_FILE = "/etc/gpuprov/amd-metrics.json"
AMDS_UNITS = ("gpuagent.service", "amd-metrics-exporter.service")
AMDS_DROPIN = "file./etc/systemd/system/amd-metrics-exporter.service.d/10-gpuprov.conf.content"


def of_amd(system: str = "ubuntu 24.04", /, count: int = 8, **settings: Any) -> dict[str, Any]:
    vendor = "amd" if count else None
    node = machine(system, vendor=vendor, sku="mi300x", architecture="cdna3", fabric="none", count=count)
    return promised(node, **settings)


def test_amds_nodes_get_the_node_exporter_and_nothing_of_nvidias() -> None:
    found = of_amd()
    assert found[f"{NODE_UNIT}.active"] == "active"
    assert not [fact for fact in found if "dcgm" in fact or "datacenter" in fact or "9400" in fact]
    assert not [fact for fact in found if "exporter.service" in fact and "prometheus" not in fact]


def test_amds_exporter_comes_with_its_release_alone_and_goes_without() -> None:
    found = of_amd(amd_version="1.5.1")
    assert found["package.amdgpu-exporter.status"] == "installed"
    assert found["package.amdgpu-exporter.held"] is True
    assert {found[f"service.{unit}.{word}"] for unit in AMDS_UNITS for word in ("active", "enabled")} == {
        *("active", "enabled")
    }
    assert found["tcp.5000.listening"] is True
    assert f"file.{AMDS_FILE}.exists" not in found
    without = of_amd()
    assert without[f"file.{AMDS_FILE}.exists"] is False
    assert not [fact for fact in without if "amdgpu-exporter" in fact or "5000" in fact]
    # A fleet-wide variable installs it on no other node.
    for others in (promised(amd_version="1.5.1"), of_amd(count=0, amd_version="1.5.1")):
        assert not [fact for fact in others if "amd" in fact]


def test_gpus_of_amd_that_are_all_lost_are_still_amds() -> None:
    from tests.roles.promises import promised as of_node

    declared = {"gpuprov_roles": ["gpu_metrics"], "gpu_metrics_enabled": True, "gpuprov_expected_gpus": 8}
    lost = machine("ubuntu 24.04", vendor=None, count=0, fabric="none")
    found = of_node(lost, gpuprov_sku="mi300x", gpu_metrics_amd_version="1.5.1", **declared)
    assert "service.gpuagent.service.active" in found
    assert not [fact for fact in found if "dcgm" in fact]


@pytest.mark.parametrize(
    ("system", "version"),
    [
        ("ubuntu 22.04", "1.5.1~22.04"),
        ("debian 12", "1.5.1~22.04"),
        ("ubuntu 24.04", "1.5.1~24.04"),
        ("debian 13", "1.5.1~24.04"),
    ],
)
def test_a_release_of_amds_exporter_is_the_package_of_the_system(system: str, version: str) -> None:
    node = machine(system, vendor="amd", sku="mi300x", architecture="cdna3", fabric="none")
    found = promised_by("gpu_metrics", node, enabled=True, amd_version="1.5.1")
    expected = found["package.amdgpu-exporter.version"]
    assert expected.holds(version)
    assert not expected.holds(version.replace("1.5.1", "1.5.10"))
    role = all_roles()["gpu_metrics"]
    wanted = renderer_for(role, {"gpu_metrics_amd_version": "1.5.1"}, node).value(
        "{{ __gpu_metrics_amd_full }}"
    )
    assert wanted == version


def test_amds_exporter_is_told_names_that_it_has() -> None:
    known = {line for line in AMDS_FIELDS.read_text().splitlines() if not line.startswith("#")}
    told = json.loads(of_amd(amd_version="1.5.1", amd_port=5001)[f"file.{AMDS_FILE}.content"])
    assert told["ServerPort"] == 5001
    assert told["CommonConfig"]["MetricsFieldPrefix"] == "amd_"
    fields = told["GPUConfig"]["Fields"]
    assert len(set(fields)) == len(fields) > 20
    assert set(fields) <= known
    for part in ("JUNCTION_TEMPERATURE", "PACKAGE_POWER", "CLOCK", "USED_VRAM", "ECC_UNCORRECT_TOTAL"):
        assert f"GPU_{part}" in fields
    assert "PCIE_BANDWIDTH" not in fields, "a second of each GPU on an MI250"


@pytest.mark.parametrize(
    ("settings", "bound"),
    [
        ({}, "-bind="),
        ({"address": "10.0.0.7"}, "-bind=10.0.0.7"),
        ({"address": "10.0.0.7", "password_hashes": {"prometheus": HASH}}, "-bind=127.0.0.1"),
        ({"tls_certificate": CERTIFICATE, "tls_private_key": KEY}, "-bind=127.0.0.1"),
        ({**GUARDED, "amd_address": "10.1.0.7"}, "-bind=10.1.0.7"),
    ],
)
def test_amds_exporter_asks_nobody_and_hides_where_the_others_ask(
    settings: dict[str, Any], bound: str
) -> None:
    text = of_amd(amd_version="1.5.1", **settings)[AMDS_DROPIN]
    command = f"/usr/local/bin/amd-metrics-exporter -amd-metrics-config {AMDS_FILE} {bound}"
    assert f"\nExecStart={command}\n" in text
    assert "web" not in text


def test_amds_driver_is_not_removed_from_under_its_exporter() -> None:
    node = machine("ubuntu 24.04", vendor="amd", sku="mi300x", architecture="cdna3", fabric="none")
    declared = {"gpuprov_roles": ["amdgpu_driver", "gpu_metrics"], "gpu_metrics_enabled": True}
    told = {**declared, "gpu_metrics_amd_version": "1.5.1"}
    ((refusal),) = refusals(View({}, told, {}), ["amdgpu_driver"], node, "gpu-01")
    assert refusal.what == "gpu-01: gpu_metrics builds on amdgpu_driver"
    assert refusals(View({}, declared, {}), ["amdgpu_driver"], node, "gpu-01") == []
