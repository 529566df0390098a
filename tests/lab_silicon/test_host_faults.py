"""The simulated host: facts read by the program for nodes and the tools, and host_health's findings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from provision.checks.check import CheckNode, Output
from provision.checks.host import host_health
from provision.checks.judge import Verdict
from tests.lab_silicon.look import look_of

Silicon = Any
CONFIGURE = "fix configuration"
IMAGE = "nvcr.io/nvidia/cuda:13.0.1-base-ubuntu24.04"


@pytest.fixture
def flagged(node: Callable[..., Silicon]) -> Callable[..., list[tuple[str, str, str, str]]]:
    """Return a function that breaks a fresh node and judges its host from one observation and its tools."""

    def run(*faults: str, **variables: Any) -> Any:
        machine = node(fabric=False)
        machine.break_(*faults)
        look = look_of(machine, host_health.FACTS)
        known = {"boot.required": False, "kernel.release": "6.12.107+deb13-amd64", **look.facts}
        seen = CheckNode("gpu-01", {"gpu": {"count": 8, "sku": "h100-sxm"}}, variables, known, look.problems)
        outputs = {}
        for command in host_health.commands(seen, {}):
            done = machine.run(*command.argv)
            words = (command.name, command.argv, done.returncode, done.stdout, done.stderr, 1.0)
            outputs[command.name] = Output(*words)
        findings = host_health.judge(seen, host_health.parse(seen, outputs), {})
        quiet = (Verdict.PASS, Verdict.SKIP)
        return [(f.verdict.value, f.device, f.metric, f.action) for f in findings if f.verdict not in quiet]

    return run


def test_a_healthy_host_has_nothing_to_flag(flagged: Any) -> None:
    assert flagged(gpuprov_expected_nvmes=4, gpuprov_container_image=IMAGE) == []


def test_each_fault_is_found_where_it_is(flagged: Any) -> None:
    controller = "CPU_SrcID#{}_MC#{}_Chan#0_DIMM#{}"
    faults = {
        "memlock_small": ("fail", "node", "memlock", CONFIGURE),
        "iommu_translated": ("warn", "node", "iommu", CONFIGURE),
        "governor name=ondemand": ("warn", "node", "governor", CONFIGURE),
        "memory_errors module=3": (
            *("fail", f"mc1/dimm1 ({controller.format(0, 1, 1)})", "memory_uncorrected", "replace part"),
        ),
        "memory_errors module=15 kind=corrected count=100000": (
            *("fail", f"mc7/dimm1 ({controller.format(1, 3, 1)})", "memory_corrected", "replace part"),
        ),
        "nvme_missing drive=3": ("fail", "node", "nvme_drives", "reseat or check cable"),
        "nvme_worn drive=1": ("warn", "nvme1", "nvme_used", "replace part"),
        "nvme_warning drive=2 of=read_only": ("fail", "nvme2", "nvme_critical_warning", "replace part"),
        "clock_unsynchronised": ("fail", "node", "clock", CONFIGURE),
        "gpudirect_absent": ("fail", "node", "gpudirect", CONFIGURE),
        "library_empty name=libcuda": ("fail", "node", "libraries", CONFIGURE),
        "acs_on": ("fail", "node", "acs", CONFIGURE),
        "container_broken": ("fail", "node", "container_gpus", CONFIGURE),
    }
    found = flagged(*faults, gpuprov_expected_nvmes=4, gpuprov_container_image=IMAGE)
    assert sorted(found) == sorted(faults.values())


def test_what_only_looks_broken_is_not_flagged(flagged: Any) -> None:
    # A freshly booted guest with access control on, a translating IOMMU and one corrected error.
    oddities = "virtual_machine, acs_on, fresh_boot, memory_corrected_few module=0, nvme_missing drive=0"
    assert flagged(*oddities.split(", ")) == []


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ((), []),
        (("memory_module_missing module=5",), [("fail", "node", "installed_gib", "reseat or check cable")]),
        (("cpus_offline count=56",), [("fail", "node", "online", CONFIGURE)]),
    ],
)
def test_memory_and_processors_are_judged_against_declared_values(
    flagged: Any, faults: tuple[str, ...], expected: list[tuple[str, str, str, str]]
) -> None:
    assert flagged(*faults, gpuprov_expected_memory_gib=1024, gpuprov_expected_cpus=112) == expected


def test_lines_that_the_kernel_logs_are_judged_and_look_alikes_are_not(flagged: Any) -> None:
    trouble = [f"host_line kind={kind}" for kind in ("nvme_removed", "hung_task", "cable_error")]
    harmless = [f"host_line_harmless kind={kind}" for kind in ("out_of_memory", "edac_corrected")]
    found = flagged(*trouble, *harmless)
    assert {(verdict, device) for verdict, device, *_ in found} == {
        ("fail", "nvme1"),
        ("warn", "node"),
        ("warn", "0000:5e:00.0"),
    }


def test_a_dead_drive_is_told_by_kernel_and_tool(flagged: Any) -> None:
    assert {(verdict, device) for verdict, device, *_ in flagged("nvme_dead drive=2")} == {
        ("fail", "nvme2"),
        ("error", "nvme2"),
    }
