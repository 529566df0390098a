"""Kernel messages during a burn-in: the reported ones, their rate, and no duplicates."""

from __future__ import annotations

import re
from typing import Any

import pytest

from provision.checks.kernel import kernel_meaning
from provision.node.burnin.tool_output import KernelWatch, dmesg_records, kmsg_record, message_of

XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def watched(seen: float | None, told: list[dict[str, Any]], now: list[float]) -> KernelWatch:
    return KernelWatch(seen, told.append, lambda: now[0], [r"device lost from bus"])


def test_an_xid_is_told_with_its_code_and_address() -> None:
    assert message_of(XID) == {"xid": {"code": 79, "address": "0000:9b:00", "line": XID}}


@pytest.mark.parametrize(
    "line",
    [
        "Out of memory: Killed process 4711 (gpu_burn) total-vm:1kB",
        "pcieport 0000:97:01.0: AER: Corrected error message received from 0000:98:00.0",
        "EDAC MC1: 1 CE memory read error on CPU_SrcID#1",
        "INFO: task nvidia-smi:4711 blocked for more than 120 seconds.",
    ],
)
def test_lines_of_faults_are_told(line: str) -> None:
    assert message_of(line) == {"kernel": {"line": line}}


@pytest.mark.parametrize("line", ["NVRM: loading NVIDIA UNIX Open Kernel Module", "usb 1-1: new device", ""])
def test_others_are_not(line: str) -> None:
    assert message_of(line) is None


def test_a_first_look_tells_of_nothing_that_was_there() -> None:
    told: list[dict[str, Any]] = []
    watch = watched(None, told, [0.0])
    watch.take([(5.0, XID)])
    assert told == [{"kernel_at": 5.0}]
    watch.take([(5.0, XID), (6.0, XID)])
    assert [one["kernel_at"] for one in told if "xid" in one] == [6.0]


def test_after_a_restart_it_goes_on_where_it_was() -> None:
    told: list[dict[str, Any]] = []
    watched(5.0, told, [0.0]).take([(4.0, XID), (5.0, XID), (5.5, XID)])
    assert [one["kernel_at"] for one in told] == [5.5]


def test_a_flood_is_counted() -> None:
    told: list[dict[str, Any]] = []
    now = [100.0]
    watch = watched(0.0, told, now)
    watch.take([(1.0 + number / 1000, XID) for number in range(500)])
    assert len([one for one in told if "xid" in one]) == 60
    now[0] = 161.0
    watch.take([(9.0, XID)])
    assert told[-2]["kernel"]["line"] == "440 more messages of that kind within a minute"
    assert "xid" in told[-1]


def test_lines_that_users_cause_leave_room_for_the_drivers() -> None:
    told: list[dict[str, Any]] = []
    watch = watched(0.0, told, [100.0])
    crash = f"NVRM: Xid (PCI:[4711]: segfault at 0 ip 0 sp 0 error 6 in {XID}[1132,1+1]"
    watch.take([(1.0 + number / 1000, crash) for number in range(500)])
    assert len(told) == 30
    watch.take([(2.0, XID), (2.1, "amdgpu 0000:c6:00.0: amdgpu: device lost from bus!")])
    assert [one["kernel_at"] for one in told[30:]] == [2.0, 2.1]


def test_both_forms_of_the_log_are_read() -> None:
    assert kmsg_record(b"4,339,5140900,-;NVRM: x; y\n SUBSYSTEM=pci\n") == (5.1409, "NVRM: x; y")
    assert kmsg_record(b"nonsense") is None
    assert dmesg_records("[    5.140900] NVRM: x\nnonsense\n[ 1234.5] y") == [
        (5.1409, "NVRM: x"),
        (1234.5, "y"),
    ]


@pytest.mark.parametrize("instance", ["", " GPU-I:05", " GPU-I:01 GPU-CI:02"])
def test_an_xid_of_a_mig_instance_is_an_xid(instance: str) -> None:
    found = message_of(f"NVRM: Xid (PCI:0000:9b:00{instance}): 95, pid=4711, name=python, Uncontained")
    assert found is not None
    assert (found["xid"]["code"], found["xid"]["address"]) == (95, "0000:9b:00")


NUMBERLESS = [
    "NVRM: GPU 0000:9b:00.0: GPU does not have the necessary power cables connected.",
    "NVRM: installed in this system requires use of the NVIDIA open kernel modules.",
    "NVRM: BAR1 is 0M @ 0x0 (PCI:0000:9b:00.0)",
    "NVRM: GPU0 _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP",
    "NVRM: _kgspIsHeartbeatTimedOut: Heartbeat timed out",
    "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to recover",
    "NVRM: GPU 0000:9b:00.0: RmInitAdapter failed! (0x62:0x40:1784)",
]


@pytest.mark.parametrize("line", NUMBERLESS)
def test_every_line_without_a_number_that_the_check_judges_is_kept(line: str) -> None:
    kept = kernel_meaning.kept_lines()
    assert message_of(line, kept) == {"kernel": {"line": line}}
    said: list[dict[str, Any]] = []
    watch = KernelWatch(1.0, said.append, clock=lambda: 1.0, lines=kept)
    flood = [(2.0 + number / 100, "EXT4-fs error (device sda1)") for number in range(200)]
    watch.take([*flood, (9.0, line)])
    assert said[-1]["kernel"]["line"] == line, "what users can make the kernel write leaves room for it"


def test_each_line_without_a_number_has_an_example() -> None:
    for name, row in kernel_meaning.lines().items():
        if name != "iommu_fault":
            assert any(re.match(row["pattern"], line) for line in NUMBERLESS), name
    kept = kernel_meaning.kept_lines()
    assert [message_of(f"my program {line}", kept) for line in NUMBERLESS[:3]] == [None] * 3
