"""Tests of host_health: faults of the machine around the GPUs, and harmless look-alikes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from provision.checks.host import host_health
from provision.checks.judge import ACTIONS, Finding, Verdict
from tests.support.checks import make_node, make_output

DAY = 86400
SMART = {
    **{"critical_warning": 0, "temperature": 308, "avail_spare": 100, "spare_thresh": 10, "percent_used": 3},
    **{"data_units_read": 12345678, "media_errors": 0, "num_err_log_entries": 12},
}
FACTS: dict[str, Any] = {
    **{"kernel.release": "6.12.107+deb13-amd64", "boot.required": False},
    **{"module.nouveau.loaded": False, "module.nvidia.loaded": True, "module.nvidia_peermem.loaded": False},
    **{"driver.flavour": "open", "driver.broken_libraries": []},
    **{"limits.session.memlock": "unlimited", "memory.shm_bytes": 512 * 2**30},
    **{"hca.ports": [{"device": "mlx5_0", "port": "1"}]},
    **{"pci.hypervisor": None, "pci.acs_harmful": [], "pci.iommu": "passthrough"},
    **{"cpu.governors": ["performance"], "clock.state": "synchronised", "clock.largest_error_us": 900},
    "clock.uptime_s": 10 * DAY,
    "edac.controllers": [{"controller": "mc0", "driver": "i10nm", "corrected": 12, "uncorrected": 0}],
    "edac.modules": [
        {"controller": "mc0", "module": "dimm0", "label": "A1", "corrected": 12, "uncorrected": 0},
        {"controller": "mc0", "module": "dimm1", "label": "A2", "corrected": 0, "uncorrected": 0},
    ],
    "nvme.drives": [
        {"drive": f"nvme{i}", "state": "live", "model": "SAMSUNG", "serial": str(i)} for i in range(2)
    ],
    "container_runtime.all.installed": ["docker"],
}
LISTED = "".join(f"GPU {i}: NVIDIA H100 80GB HBM3 (UUID: GPU-0000000{i}-1111)\n" for i in range(8))
DIMM = "mc0/dimm0 (A1)"
CONFIGURE = "fix configuration"
IMAGE = "nvcr.io/nvidia/cuda:13.0.1-base-ubuntu24.04"


def judge(
    facts: Mapping[str, Any] | None = None,
    unread: tuple[str, ...] = (),
    answers: Mapping[str, Mapping[str, Any]] | None = None,
    **variables: Any,
) -> list[Finding]:
    """Judge a healthy node with changed facts, `unread` ones, and other program outputs."""

    merged = {name: value for name, value in {**FACTS, **(facts or {})}.items() if name not in unread}
    node = replace(make_node(**variables), facts=merged, problems=dict.fromkeys(unread, "permission denied"))
    outputs = {}
    for command in host_health.commands(node, {}):
        healthy = LISTED if command.name == "container" else json.dumps(SMART)
        answer = {"stdout": healthy, **(answers or {}).get(command.name, {})}
        outputs[command.name] = make_output(command.name, argv=command.argv, **answer)
    findings = host_health.judge(node, host_health.parse(node, outputs), {})
    for one in findings:
        assert one.action in ACTIONS
        assert one.verdict in (Verdict.PASS, Verdict.SKIP) or one.action != "none", one
    return findings


def flagged(findings: list[Finding]) -> list[tuple[str, str, str, str]]:
    quiet = (Verdict.PASS, Verdict.SKIP)
    return [(f.verdict.value, f.device, f.metric, f.action) for f in findings if f.verdict not in quiet]


def modules(**counts: int) -> dict[str, Any]:
    row = {"controller": "mc0", "module": "dimm0", "label": "A1", "corrected": 0, "uncorrected": 0, **counts}
    return {"edac.controllers": [], "edac.modules": [row]}


def test_a_healthy_machine_passes() -> None:
    findings = judge()
    assert [f.verdict for f in findings] == [Verdict.PASS]


@pytest.mark.parametrize(
    "facts",
    [
        {"pci.hypervisor": "QEMU Standard PC", "pci.iommu": "translated", "cpu.governors": []},
        {"clock.state": "unsynchronised", "clock.uptime_s": 240, **modules(corrected=1)},
        {"clock.state": "host"},
        {"module.nvidia_peermem.loaded": True, "driver.flavour": "proprietary"},
        {"hca.ports": [], "driver.flavour": "proprietary", "limits.session.memlock": "8192"},
        modules(corrected=99),  # within ten days
        {"nvme.drives": [], "edac.controllers": [], "edac.modules": []},
        {"container_runtime.all.installed": []},
    ],
    ids=[
        "virtual",
        "just booted",
        "container's clock",
        "peermem",
        "no cards",
        "few errors",
        "bare",
        "no runtime",
    ],
)
def test_what_only_looks_broken(facts: Mapping[str, Any]) -> None:
    assert flagged(judge(facts)) == []


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"module.nouveau.loaded": True}, ("fail", "node", "module", CONFIGURE)),
        (
            {"module.nvidia.loaded": False, "driver.flavour": None},
            ("fail", "node", "module", CONFIGURE),
        ),
        ({"driver.broken_libraries": ["/usr/lib64/libcuda.so.1"]}, ("fail", "node", "libraries", CONFIGURE)),
        ({"limits.session.memlock": "8192"}, ("fail", "node", "memlock", CONFIGURE)),
        ({"memory.shm_bytes": 64 * 2**20}, ("fail", "node", "shm_bytes", CONFIGURE)),
        ({"pci.acs_harmful": ["0000:17:01.0"]}, ("fail", "node", "acs", CONFIGURE)),
        ({"pci.iommu": "translated"}, ("warn", "node", "iommu", CONFIGURE)),
        ({"cpu.governors": ["performance", "powersave"]}, ("warn", "node", "governor", CONFIGURE)),
        ({"clock.state": "unsynchronised"}, ("fail", "node", "clock", CONFIGURE)),
        ({"driver.flavour": "proprietary"}, ("fail", "node", "gpudirect", CONFIGURE)),
        ({"kernel.release": "5.4.0-216-generic"}, ("fail", "node", "gpudirect", CONFIGURE)),
        (modules(uncorrected=1), ("fail", DIMM, "memory_uncorrected", "replace part")),
        (modules(corrected=100), ("warn", DIMM, "memory_corrected", "watch")),
        (modules(corrected=1000), ("fail", DIMM, "memory_corrected", "replace part")),
        (
            {"nvme.drives": [{"drive": "nvme0", "state": "dead"}]},
            ("fail", "nvme0", "nvme_state", "replace part"),
        ),
    ],
)
def test_each_fault(facts: Mapping[str, Any], expected: tuple[str, ...]) -> None:
    assert flagged(judge(facts)) == [expected]


def test_errors_that_no_module_admits_are_the_controllers() -> None:
    row = {"controller": "mc1", "driver": "i10nm", "corrected": 0, "uncorrected": 2}
    assert flagged(judge({"edac.controllers": [row], "edac.modules": []})) == [
        ("fail", "mc1", "memory_uncorrected", "replace part")
    ]


def test_what_is_declared_is_what_holds() -> None:
    assert flagged(judge({"cpu.governors": ["powersave"]}, host_settings_cpu_governor="powersave")) == []
    assert flagged(judge({"limits.session.memlock": "67108864"}, rdma_memlock="67108864")) == []
    missing = flagged(judge(gpuprov_expected_nvmes=4))
    assert missing == [("fail", "node", "nvme_drives", "reseat or check cable")]
    peermem = flagged(judge(gpudirect_rdma_method="peermem"))
    assert peermem == [("fail", "node", "gpudirect", CONFIGURE)], "DMA-BUF is not the way that was declared"
    assert flagged(judge({"driver.flavour": "proprietary"}, gpudirect_rdma_method="none")) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"critical_warning": 4}, ("fail", "nvme1", "nvme_critical_warning", "replace part")),
        ({"critical_warning": 2}, ("fail", "nvme1", "nvme_critical_warning", "investigate")),
        ({"avail_spare": 9}, ("fail", "nvme1", "nvme_spare", "replace part")),
        ({"percent_used": 101}, ("warn", "nvme1", "nvme_used", "replace part")),
        ({"media_errors": "3"}, ("warn", "nvme1", "nvme_media_errors", "watch")),
        ({"critical_warning": {"value": 1}}, ("fail", "nvme1", "nvme_critical_warning", "replace part")),
    ],
)
def test_a_worn_drive(change: Mapping[str, Any], expected: tuple[str, ...]) -> None:
    answers = {"smart_nvme1": {"stdout": json.dumps({**SMART, **change})}}
    assert flagged(judge(answers=answers)) == [expected]


def test_without_nvme_cli_the_wear_is_said_to_be_unknown() -> None:
    gone = {
        f"smart_nvme{i}": {"stdout": "", "rc": None, "not_started": "nvme is not installed"} for i in range(2)
    }
    findings = judge(answers=gone)
    assert flagged(findings) == []
    (said,) = [f for f in findings if f.verdict is Verdict.SKIP]
    assert "nvme0, nvme1 is not known" in said.message


@pytest.mark.parametrize(
    "answer",
    [
        {"stdout": json.dumps(SMART)[:40]},
        {"stdout": "[]"},
        {"stdout": json.dumps({**SMART, "percent_used": "N/A"})},
        {"stdout": json.dumps({key: value for key, value in SMART.items() if key != "spare_thresh"})},
        {"stdout": "", "stderr": "NVMe status: INVALID_FIELD", "rc": 1},
        {"stdout": "", "rc": None, "timed_out": True},
    ],
)
def test_half_an_answer_of_a_drive_is_an_error(answer: Mapping[str, Any]) -> None:
    assert flagged(judge(answers={"smart_nvme0": answer})) == [("error", "nvme0", "", "investigate")]


def test_a_container_is_started_only_when_it_is_asked_for() -> None:
    none: dict[str, Any] = {"container_runtime.all.installed": []}
    seven = {"container": {"stdout": LISTED.partition("GPU 7")[0]}}
    assert flagged(judge(answers=seven)) == []
    found = flagged(judge(none, gpuprov_container_image=IMAGE))
    assert found == [("fail", "node", "container_gpus", CONFIGURE)]


MISSED = ("fail", "node", "container_gpus", CONFIGURE)
HEAD, _, LAST = LISTED.rpartition("GPU 7")
SLICE = "  MIG 3g.40gb     Device  0: (UUID: MIG-5f2a1c1e-0a9f-5d3e-8a55-7a3c5b0a7b11)\n"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({}, []),
        ({"stdout": LISTED.replace("GPU 1", SLICE + "GPU 1")}, []),  # MIG does not change the list of GPUs
        ({"stdout": HEAD}, [MISSED]),
        ({"stdout": HEAD + HEAD.splitlines()[-1] + "\n"}, [MISSED]),  # one GPU, listed twice
        ({"stdout": "", "stderr": "docker: Error response from daemon: boom", "rc": 125}, [MISSED]),
        # An incomplete list gives no verdict.
        ({"stderr": "nvidia-container-cli: device error", "rc": 1}, [("error", "node", "", "run again")]),
        ({"stdout": LISTED[:-30]}, [("error", "node", "", "investigate")]),
        ({"truncated": True}, [("error", "node", "", "investigate")]),
    ],
    ids=["healthy", "MIG", "seven", "doubled", "refused", "listed, then failed", "cut in a line", "cut"],
)
def test_a_container_sees_all_gpus(answer: Mapping[str, Any], expected: list[tuple[str, ...]]) -> None:
    assert flagged(judge(answers={"container": answer}, gpuprov_container_image=IMAGE)) == expected


@pytest.mark.parametrize("name", [n for n in FACTS if not n.startswith(("kernel", "boot"))])
def test_what_could_not_be_read_is_an_error_or_does_not_matter(name: str) -> None:
    harmless = {"clock.largest_error_us", "clock.uptime_s", "container_runtime.all.installed"}
    found = flagged(judge(unread=(name,)))
    if name not in harmless:
        assert found
        assert {verdict for verdict, *_ in found} == {"error"}


def test_a_container_that_was_asked_for_and_never_started_is_an_error() -> None:
    node = replace(make_node(gpuprov_container_image=IMAGE), facts={**FACTS, "nvme.drives": []})
    findings = host_health.judge(node, host_health.parse(node, {}), {})
    assert flagged(findings) == [("error", "node", "", "run again")]


@pytest.mark.parametrize(
    "facts",
    [
        {"clock.state": "N/A"},
        {"pci.iommu": "N/A"},
        {"pci.hypervisor": 7},
        {"hca.ports": {}},
        {"module.nvidia_peermem.loaded": "false"},
        modules(uncorrected=-1),
        modules(corrected=10**400),
        {"clock.uptime_s": 10**400},
        {"nvme.drives": [{"drive": "nvme0", "state": "live"}, {"state": "dead"}]},
        *({f"{name}": 7} for name in ("driver.broken_libraries", "pci.acs_harmful", "edac.modules")),
        *({f"{name}": 7} for name in ("nvme.drives", "cpu.governors")),
    ],
    ids=lambda facts: " ".join(facts),
)
def test_a_word_that_nobody_knows_is_no_health(facts: Mapping[str, Any]) -> None:
    found = flagged(judge(facts))
    assert found
    assert {verdict for verdict, *_ in found} == {"error"}


def test_the_reason_of_a_failed_nvme_smart_log_is_named() -> None:
    """Recorded with nvme-cli 2.13 (Debian 13): the reason is JSON, and standard error has the usage text."""
    answer = {
        "stdout": '{\n  "error":"/dev/nvme0: No such file or directory"\n}\n',
        "stderr": "\x1b[1mUsage: nvme smart-log <device> [OPTIONS]\x1b[0m\n  [ --timeout=<NUM> ]\n",
        "rc": 1,
    }
    (found,) = [f for f in judge(answers={"smart_nvme0": answer}) if f.verdict is Verdict.ERROR]
    assert "nvme smart-log failed: /dev/nvme0: No such file or directory" in found.message


def test_docker_without_its_daemon_is_named_and_not_its_hint() -> None:
    """Recorded with Docker 26.1 (Debian 13)."""
    reason = "docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock."
    answer = {"stderr": f"{reason} Is the docker daemon running?.\nSee 'docker run --help'.\n", "rc": 125}
    answers = {"container": {"stdout": "", **answer}}
    (found,) = [f for f in judge(answers=answers, gpuprov_container_image=IMAGE) if f.verdict is Verdict.FAIL]
    assert reason in found.message
    assert "--help" not in found.message
