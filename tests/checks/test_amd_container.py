"""GPU access from containers on AMD nodes, tested with rocminfo.
Forms: an MI250X in ROCm/rocm_smi_lib issue 165, and rocminfo 5.2 of Debian."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from provision.checks.judge import ACTIONS, Finding, Verdict
from provision.checks.vendors.amd import host_health
from tests.support.checks import make_node, make_output

IMAGE = "rocm/dev-ubuntu-24.04:7.2.3"
FACTS: dict[str, Any] = {
    **{"amdgpu.loaded_version": "6.16.13", "limits.session.memlock": "unlimited"},
    **{"amdgpu.devices": [{"address": f"0000:{bus}5:00.0", "partitions": 1} for bus in range(8)]},
    **{"memory.shm_bytes": 512 * 2**30, "hca.ports": [], "pci.hypervisor": None, "pci.acs_harmful": []},
    **{"pci.iommu": "passthrough", "cpu.governors": ["performance"], "clock.state": "synchronised"},
    **{"clock.largest_error_us": 900, "clock.uptime_s": 864000, "nvme.drives": []},
    **{"edac.controllers": [], "edac.modules": [], "container_runtime.all.installed": ["docker"]},
}


def agent(number: int, kind: str) -> str:
    name, maker = ("gfx942", "AMD") if kind == "GPU" else ("AMD EPYC 9654", "CPU")
    return (
        f"*******                  \nAgent {number}                  \n*******                  \n"
        f"  Name:                    {name}                            \n"
        f"  Vendor Name:             {maker}                               \n"
        f"  Device Type:             {kind}                                \n"
    )


def listed(gpus: int) -> str:
    kinds = ["CPU"] * 2 + ["GPU"] * gpus
    agents = "".join(agent(number, kind) for number, kind in enumerate(kinds, 1))
    return (
        f"ROCk module is loaded\n==========               \nHSA Agents               \n{agents}*** Done ***\n"
    )


def judge(answer: Mapping[str, Any], facts: Mapping[str, Any] | None = None) -> list[Finding]:
    """Return the findings of a healthy node on which the container printed this."""
    node = replace(make_node(gpuprov_container_image=IMAGE), facts={**FACTS, **(facts or {})})
    (command,) = (one for one in host_health.commands(node, {}) if one.name == "container")
    assert command.argv == ("docker", "run", "--rm", "--device", "amd.com/gpu=all", IMAGE, "rocminfo")
    outputs = {"container": make_output("container", argv=command.argv, **answer)}
    findings = host_health.judge(node, host_health.parse(node, outputs), {})
    assert all(one.action in ACTIONS for one in findings)
    return [one for one in findings if one.verdict not in (Verdict.PASS, Verdict.SKIP)]


MISSED = ("fail", "container_gpus", "fix configuration")
UNRESOLVED = "docker: CDI device injection failed: unresolvable CDI devices amd.com/gpu=all"
NO_PROGRAM = 'exec: "rocminfo": executable file not found in $PATH'


@pytest.mark.parametrize(
    ("answer", "expected", "words"),
    [
        ({"stdout": listed(8)}, None, ""),
        ({"stdout": listed(7)}, MISSED, f"a container of {IMAGE} sees 7 of 8 GPUs"),
        ({"stdout": listed(0)}, MISSED, "sees 0 of 8 GPUs"),
        ({"stdout": "", "stderr": UNRESOLVED, "rc": 125}, MISSED, "unresolvable CDI devices"),
        (
            {"stdout": "ROCk module is loaded\nUnable to open /dev/kfd read-write: No such file", "rc": 255},
            MISSED,
            "Unable to open /dev/kfd",
        ),
        # Truncated output, or an image that cannot answer, proves nothing about the node.
        (
            {"stdout": listed(8)[:-20]},
            ("error", "", "investigate"),
            "lists an agent without its type, or not all",
        ),
        (
            {"stdout": listed(8).replace("Device Type", "Type", 1)},
            ("error", "", "investigate"),
            "without its type",
        ),
        ({"stdout": listed(8), "rc": 1}, ("error", "", "run again"), "sees all GPUs, and failed"),
        ({"stdout": "", "stderr": NO_PROGRAM, "rc": 127}, ("error", "", "investigate"), "has no rocminfo"),
        ({"stdout": "", "timed_out": True, "rc": None}, ("error", "", "investigate"), "did not end within"),
    ],
    ids=[
        *(
            "healthy",
            "seven",
            "none",
            "no specification",
            "no kfd",
            "cut",
            "other form",
            "failed",
            "no program",
        ),
        "no end",
    ],
)
def test_a_container_sees_all_gpus(
    answer: Mapping[str, Any], expected: tuple[str, str, str] | None, words: str
) -> None:
    found = judge(answer)
    assert [(one.verdict.value, one.metric, one.action) for one in found] == ([expected] if expected else [])
    assert all(words in one.message for one in found)


def test_partitions_are_gpus_of_their_own() -> None:
    parts = {"amdgpu.devices": [{**one, "partitions": 8} for one in FACTS["amdgpu.devices"]]}
    assert judge({"stdout": listed(64)}, parts) == []
    (found,) = judge({"stdout": listed(8)}, parts)
    assert "sees 8 of 64 GPUs" in found.message


def test_where_the_driver_shows_none_those_on_the_bus_count() -> None:
    nothing = {"amdgpu.devices": [{"address": "0000:05:00.0", "partitions": None}]}
    (found,) = judge({"stdout": listed(1)}, nothing)
    assert "sees 1 of 8 GPUs" in found.message


def test_no_container_is_started_unless_it_is_asked_for() -> None:
    commands = host_health.commands(replace(make_node(), facts=FACTS), {})
    assert [one.name for one in commands] == ["journal", "dmesg"]
