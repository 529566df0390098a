"""Diagnosis from facts: each cause in one line with the next step, and no output if nothing is known."""

from __future__ import annotations

from typing import Any

import pytest

from provision.desired.expectations import Expectation
from provision.drift import diagnosis
from provision.drift.diagnosis import causes, diagnose

GOOD: dict[str, Any] = {
    "kernel.release": "6.12.1",
    "kernel.boot_release": "6.12.1",
    "kernel.headers": ["6.12.1"],
    "kernel.initramfs_stale": False,
    "driver.loaded_version": "580.126.09",
    "driver.installed_version": "580.126.09",
    "driver.userspace_version": "580.126.09",
    "module.nouveau.loaded": False,
    "secure_boot.enabled": True,
    "secure_boot.enrolled": True,
    "dkms.nvidia.built": ["6.12.1"],
    "dkms.nvidia.failed": [],
    "fabric.manager_version": "580.126.09-1",
    "fabric.manager_package": "nvidia-fabricmanager-580",
    "service.nvidia-fabricmanager.active": "active",
}
WANTED = [
    Expectation("nvidia_driver", "driver.loaded_version", "equals", "580.126.09", ""),
    Expectation("nvidia_driver", "dkms.nvidia.failed", "equals", [], ""),
    Expectation("nvidia_repository", "packages.source_problems", "equals", [], ""),
    Expectation("nvlink", "service.nvidia-fabricmanager.active", "equals", "active", ""),
]
COMPILER = "nvidia/nv-pci.c:237: error: too few arguments to function 'pci_resize_resource'"

# rule -> (facts that reveal it, words of the cause, words of the next step)
CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "nouveau-loaded": (
        {"module.nouveau.loaded": True, "driver.loaded_version": None, "kernel.initramfs_stale": True},
        "nouveau is loaded and holds the GPUs",
        "gpuprov up fleet.yml --nodes gpu-07",
    ),
    "package-sources": (
        {"packages.source_problems": ["Malformed entry 1 in list file /etc/apt/sources.list.d/a.list (URI)"]},
        "apt cannot read its sources: Malformed entry 1 in list file /etc/apt/sources.list.d/a.list (URI)",
        "gpuprov changes no file of others",
    ),
    "driver-overruled": (
        {"packages.580.126.09.overruled_by": ["/etc/dnf/dnf.conf: exclude=nvidia*"]},
        "the package manager is kept from the declared driver by /etc/dnf/dnf.conf: exclude=nvidia*",
        "gpuprov changes no file of others",
    ),
    "secure-boot-key": (
        {"driver.loaded_version": None, "secure_boot.enrolled": False},
        "Secure Boot is on and the key that signs DKMS modules is not enrolled",
        "mokutil --import",
    ),
    "dkms-build-failed": (
        {
            "dkms.nvidia.built": [],
            "dkms.nvidia.failed": [f"6.12.1: {COMPILER}"],
            "driver.loaded_version": None,
            "driver.installed_version": None,
            "package.nvidia-open-kernel-dkms.status": "half-configured",
        },
        f"for kernel 6.12.1, which left nvidia-open-kernel-dkms half-configured: {COMPILER}",
        "choose a driver that builds on this kernel",
    ),
    "headers-missing": (
        {"kernel.boot_release": "6.12.9"},
        "the headers of kernel 6.12.9, which the next boot uses, are not installed",
        "gpuprov up fleet.yml --nodes gpu-07",
    ),
    "library-module-split": (
        {"driver.userspace_version": "580.159.03", "driver.installed_version": "580.159.03"},
        "the library is 580.159.03 and the module in memory 580.126.09",
        "drain and reboot",
    ),
    "reboot-pending": (
        {"driver.installed_version": "580.159.03"},
        "the module on disk is 580.159.03 and in memory is 580.126.09",
        "reboots within its wave",
    ),
    "fabric-manager-mismatch": (
        {
            "fabric.manager_version": "580.95.05-1",
            "service.nvidia-fabricmanager.active": "failed",
        },
        "fabric manager is 580.95.05 (nvidia-fabricmanager-580) and the driver 580.126.09",
        "gpuprov up fleet.yml --nodes gpu-07 (brings both to 580.126.09)",
    ),
    "fabric-not-ready": (
        {"nvidia_smi.fabric.state": ["Completed", "In Progress"]},
        "the NVLink fabric of 1 of 2 GPUs is 'In Progress': CUDA programs end with error 802",
        "/var/log/fabricmanager.log",
    ),
}


def test_a_gpu_that_failed_to_join_the_fabric_is_completed_and_explained() -> None:
    status = {"nvidia_smi.fabric.status": ["Success", "Insufficient Resources"]}
    (found,) = diagnose({**GOOD, "nvidia_smi.fabric.state": ["Completed"] * 2, **status}, WANTED)
    assert found.rule == "fabric-not-ready"
    assert "1 GPU failed to join the NVLink fabric: 'Insufficient Resources'" in found.cause


def lines(nodes: dict[str, tuple[dict[str, Any], list[Expectation]]]) -> list[str]:
    return diagnosis.lines(causes(nodes), lambda names: f"fleet.yml --nodes {','.join(names)}")


def test_a_good_node_has_no_diagnosis() -> None:
    assert diagnose(GOOD, WANTED) == []


@pytest.mark.parametrize("rule", CASES)
def test_each_cause_is_one_line_with_its_next_step(rule: str) -> None:
    facts, cause, following = CASES[rule]
    (found,) = diagnose({**GOOD, **facts}, WANTED)
    assert found.rule == rule
    (line,) = lines({"gpu-07": ({**GOOD, **facts}, WANTED)})
    assert "\n" not in line
    assert line.startswith("gpu-07  ")
    before, _, after = line.partition("; next: ")
    assert cause in before
    assert following in after
    assert "{" not in line


def test_whichever_package_manager_cannot_read_is_named() -> None:
    said = "failed loading '/etc/yum.repos.d/s.repo', skipping."
    facts = {**GOOD, "os.family": "redhat", "packages.source_problems": [said]}
    assert [found.cause for found in diagnose(facts, WANTED)] == [f"dnf cannot read its repositories: {said}"]


def test_every_rule_has_a_case() -> None:
    assert len(CASES) == len(diagnosis._RULES)


@pytest.mark.parametrize("missing", sorted(GOOD))
def test_what_is_not_known_is_no_cause(missing: str) -> None:
    facts = {name: value for name, value in GOOD.items() if name != missing}
    assert [found.rule for found in diagnose(facts, WANTED)] == []


def test_a_bare_node_has_no_diagnosis() -> None:
    bare = dict.fromkeys(GOOD) | {"kernel.release": "6.12.1", "kernel.headers": [], "dkms.nvidia.built": []}
    assert diagnose(bare) == []


def test_headers_are_missed_where_dkms_has_something_to_build() -> None:
    facts = {**GOOD, "kernel.headers": [], "dkms.nvidia.built": []}
    assert diagnose(facts, WANTED) == [], "a node that is to get its driver is not ill"
    (found,) = diagnose({**facts, "package.nvidia-kernel-open-dkms.status": "installed"}, WANTED)
    assert found.rule == "headers-missing"


def test_a_split_that_took_only_a_part_is_repaired_and_not_rebooted() -> None:
    facts = {**GOOD, "driver.userspace_version": "580.159.03"}
    (found,) = diagnose(facts, WANTED)
    assert "an upgrade took only a part" in found.cause
    assert found.next_step == "gpuprov up {nodes} (brings every part to 580.126.09)"


def test_the_build_for_the_kernel_that_boots_next_is_said_first() -> None:
    failed = ["6.1.0: old.c:1: error: old", "6.12.9: new.c:2: error: new"]
    facts = {**GOOD, "kernel.boot_release": "6.12.9", "kernel.headers": ["6.12.1", "6.12.9"]}
    (found,) = diagnose({**facts, "dkms.nvidia.failed": failed}, WANTED)
    assert "for kernel 6.12.9: new.c:2: error: new" in found.cause


def test_a_module_that_was_signed_by_somebody_trusted_needs_no_key_of_ours() -> None:
    assert diagnose({**GOOD, "secure_boot.enrolled": False}, WANTED) == []


def test_an_inactive_fabric_manager_is_said_where_it_is_wanted_only() -> None:
    facts = {**GOOD, "service.nvidia-fabricmanager.active": "inactive"}
    assert [found.rule for found in diagnose(facts, WANTED)] == ["fabric-not-ready"]
    assert diagnose(facts, WANTED[:2]) == []


def test_nodes_with_the_same_cause_are_said_once() -> None:
    bad = {**GOOD, "module.nouveau.loaded": True}
    found = lines({"gpu-01": (bad, WANTED), "gpu-02": (GOOD, WANTED), "gpu-03": (bad, WANTED)})
    assert len(found) == 1
    assert found[0].startswith("gpu-[01,03]  nouveau is loaded")
    assert "gpuprov up fleet.yml --nodes gpu-01,gpu-03 (" in found[0]


def test_answers_of_another_type_are_no_cause() -> None:
    for value in (7, [None], {"a": 1}, [1, 2], "x" * 10):
        for fact in GOOD:
            diagnose({**GOOD, fact: value}, WANTED)


def test_what_a_node_said_stays_on_one_line() -> None:
    facts = {**GOOD, "driver.userspace_version": "580\x1b[2J\n\nfake: all is well"}
    (line,) = lines({"gpu-01": (facts, WANTED)})
    assert line.isprintable()
