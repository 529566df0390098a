"""GPU settings, GPU users, idle temperatures and the error counters of NVLinks."""

from __future__ import annotations

from typing import Any

import pytest

from provision.checks.gpu import inventory_links, nvidia_smi, nvlink_errors
from provision.checks.judge import Finding, Verdict
from provision.errors import ParseError
from tests.support.checks import make_node, make_output

Told = set[tuple[str, str, str, str]]


def told(findings: list[Finding]) -> Told:
    return {(f.verdict.value, f.device, f.metric, f.action) for f in findings}


def settings(
    gpus: int = 8, declared: dict[str, Any] | None = None, seconds: float = 2.0, **changed: Any
) -> Told:
    """Return the findings on a node of eight equal GPUs; `metric={gpu: value}` changes one of them."""

    usual = {
        "name": "NVIDIA H100 80GB HBM3", "persistence": "Enabled", "compute_mode": "Default",
        "ecc_mode": "Enabled", "mig_mode": "Disabled", "power_limit": 700, "power_default": 700,
        "temperature": 31, "processes": "", "vbios": "96.00.74.00.01",
    }  # fmt: skip
    values: dict[str, dict[str, Any]] = {
        metric: {f"gpu{i}": changed.get(metric, {}).get(i, value) for i in range(gpus)}
        for metric, value in usual.items()
    }
    values["smi_seconds"] = {"node": seconds}
    node = make_node(gpus, **(declared or {}))
    return told(inventory_links.judge_settings(node, values))


ALL = range(8)


def test_what_is_like_its_peers_is_well() -> None:
    assert settings() == set()


@pytest.mark.parametrize(
    ("metric", "value"),
    [("persistence", "Disabled"), ("compute_mode", "Exclusive_Process"), ("mig_mode", "Enabled")],
)
def test_a_mode_unlike_its_peers(metric: str, value: str) -> None:
    changed: dict[str, Any] = {metric: {3: value}}
    assert settings(**changed) == {("warn", "gpu3", metric, "fix configuration")}


def test_firmware_unlike_that_of_its_peers() -> None:
    approved = dict.fromkeys(ALL, "96.00.74.00.01")
    assert settings(vbios=approved) == set()
    assert settings(vbios={**approved, 5: "96.00.61.00.07"}) == {
        ("warn", "gpu5", "vbios", "fix configuration")
    }
    halves = {gpu: "96.00.74.00.01" if gpu < 4 else "96.00.61.00.07" for gpu in ALL}
    assert settings(vbios=halves) == set(), "nobody said which of two is right"
    assert settings(gpus=2, vbios={0: "96.00.74.00.01", 1: "96.00.61.00.07"}) == set()
    other = dict.fromkeys(range(3), "NVIDIA H200")
    assert settings(vbios={**approved, 0: "x", 1: "x", 2: "x"}, name=other) == set(), "another model's own"


def test_a_mode_of_the_whole_site_is_no_fault_unless_declared_otherwise() -> None:
    exclusive = dict.fromkeys(ALL, "Exclusive_Process")
    assert settings(compute_mode=exclusive) == set()
    assert (
        settings(compute_mode=exclusive, declared={"gpu_settings_compute_mode": "exclusive_process"}) == set()
    )
    assert settings(compute_mode=exclusive, declared={"gpu_settings_compute_mode": "default"}) == {
        ("warn", "node", "compute_mode", "fix configuration")
    }
    off = dict.fromkeys(ALL, "Disabled")
    assert settings(persistence=off) == set()
    assert settings(persistence=off, declared={"nvidia_driver_persistence": True}) == {
        ("warn", "node", "persistence", "fix configuration")
    }


def test_mig_that_was_declared_is_said_and_no_fault() -> None:
    on = dict.fromkeys(ALL, "Enabled")
    assert settings(mig_mode=on) == {("skip", "node", "mig_mode", "none")}
    declared = {"gpu_settings_mig": {"enabled": True}}
    assert settings(mig_mode={0: "Enabled"}, declared=declared) == {("skip", "node", "mig_mode", "none")}


def test_power_limits() -> None:
    assert settings(power_limit={2: 420}) == {("fail", "gpu2", "power_limit", "fix configuration")}
    capped = dict.fromkeys(ALL, 560)
    assert settings(power_limit=capped) == set(), "the site's cap"
    assert settings(power_limit=capped, declared={"gpu_settings_power_limit": 560}) == set()
    assert settings(power_limit=capped, declared={"gpu_settings_power_limit": 700}) == {
        ("fail", "node", "power_limit", "fix configuration")
    }


def test_heat_at_rest() -> None:
    assert settings(temperature={5: 48}) == {("warn", "gpu5", "temperature", "investigate")}
    assert settings(temperature={i: 30 + i for i in ALL}) == set(), "the airflow"
    assert settings(temperature={2: 60, 5: 60}, processes={5: "python3"}) == {
        ("warn", "gpu2", "temperature", "investigate"),
        ("warn", "gpu5", "processes", "investigate"),
    }
    assert settings(temperature={5: 60}, processes={5: "python3"}) == {
        ("warn", "gpu5", "processes", "investigate")
    }, "it does not rest"


def test_a_slow_answer() -> None:
    assert settings(seconds=40.0) == {("warn", "node", "smi_seconds", "investigate")}
    assert settings(seconds=20.0, persistence=dict.fromkeys(ALL, "Disabled")) == set(), (
        "the driver is loaded anew"
    )


@pytest.mark.parametrize(
    ("name", "agent"),
    [
        ("/usr/bin/nv-hostengine", True),
        ("nvidia-smi", True),
        ("/usr/bin/dcgm-exporter -f x", True),
        ("nvidia-persistenced", True),
        ("/usr/bin/python3", False),
        ("nvidia-smi-evil", False),
        ("", False),
    ],
)
def test_who_only_watches(name: str, agent: bool) -> None:
    assert nvidia_smi.is_agent(name) is agent


# --- counters of links ---

HEAD = "GPU {}: NVIDIA H100 80GB HBM3 (UUID: GPU-{})\n"


def old(gpu: int, *, replay: int = 0, recovery: int = 0, crc: int = 0) -> str:
    counters = (("Replay", replay), ("Recovery", recovery), ("CRC", crc))
    lines = [
        f"\t Link {link}: {kind} Errors: {count if link == 2 else 0}"
        for link in (0, 2)
        for kind, count in counters
    ]
    return HEAD.format(gpu, gpu) + "\n".join(lines) + "\n\n"


def links(text: str) -> tuple[Told, list[Finding]]:
    values: dict[str, dict[str, Any]] = {}
    for m in nvlink_errors.parse(make_output("nvlink_errors", text)):
        values.setdefault(m.metric, {})[m.device] = m.value
    findings = nvlink_errors.judge("gpu_inventory", values)
    return told(findings), findings


@pytest.mark.parametrize("one", [{"replay": 1234}, {"crc": 100}, {"recovery": 1}])
def test_a_link_that_counts_errors_is_named(one: dict[str, int]) -> None:
    found, findings = links(old(0) + old(1, **one))
    assert found == {("fail", "gpu1", "nvlink_errors", "reset GPU")}
    if "recovery" not in one:
        assert "link 2" in findings[0].message


def test_a_few_from_training_are_no_fault() -> None:
    assert links(old(0, crc=20, replay=3))[0] == set()
    assert links("")[0] == set(), "no NVLink"


def test_the_counters_of_the_fifth_generation() -> None:
    healthy = HEAD.format(0, 0) + (
        "\t Link 0: Tx packets: 36140749276\n\t Link 0: Rx Errors: 0\n\t Link 0: Effective BER: 15e-255\n"
        "\t Link 0: FEC Errors - 0: 36140749276\n\t Link 0: Link recovery failed events: 0\n"
    )
    assert links(healthy)[0] == set(), "bucket 0 counts what needed no correction"
    failed = healthy.replace("failed events: 0", "failed events: 1")
    assert links(failed)[0] == {("fail", "gpu0", "nvlink_errors", "reset GPU")}
    assert links(healthy.replace("Rx Errors: 0", "Rx Errors: 900"))[0] == {
        ("fail", "gpu0", "nvlink_errors", "reset GPU")
    }


def test_joined_links() -> None:
    text = HEAD.format(2, 2) + "\t Link 0: CRC Errors: 65535\n\t Links 1-5: CRC Errors: 0\n"
    assert links(text)[0] == {("fail", "gpu2", "nvlink_errors", "reset GPU")}


@pytest.mark.parametrize(
    "text", ["garbage", "\t Link 0: CRC Errors: 0\n", HEAD.format(0, 0) + "\t Link 0: CRC Errors: 1e\n"]
)
def test_what_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        nvlink_errors.parse(make_output("nvlink_errors", text))


def test_a_verdict_is_never_worse_than_a_warning_for_who_uses_a_gpu() -> None:
    assert {verdict for verdict, *_ in settings(processes={0: "python3 (pid 1, 5 MiB)"})} == {
        Verdict.WARN.value
    }
