"""Text chosen by unprivileged users, never read as a driver message in the kernel log."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.checks.check import Output
from provision.checks.gpu import gpu_inventory
from provision.checks.judge import Finding, Verdict
from provision.checks.kernel import kernel_incidents, kernel_log
from provision.checks.kernel.vendors import driver_log
from provision.checks.on_node import kernel_since
from provision.checks.vendors.amd import gpu_inventory as amd_gpu_inventory
from provision.node.burnin.amd_gpus import amd_fatal
from provision.node.burnin.tool_output import dmesg_records, message_of
from provision.node.modules import gpuprov_run
from tests.support.checks import make_node, make_output

# dmesg output for crashing programs that an unprivileged user named like driver messages.
CRASHES: list[str] = json.loads(
    (Path(__file__).parents[1] / "fixtures/kernel_log/forged-names.json").read_text(encoding="utf-8")
)["lines"]

# One fault from each source.
FAULTS = [
    "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    "NVRM: Xid (0000:03:00): 14, Channel 00000001",
    "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 95, pid=1, name=python, Uncontained: LTC TAG (0x2,0x0).",
    "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.",
    "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
    "nvidia 0000:9b:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer",
    "pcieport 0000:64:01.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Receiver ID)",
    "amdgpu 0000:08:00.0: {1}1 uncorrectable hardware errors detected in umc block",
    "amdgpu 0000:65:00.0: {1}socket: 3, die: 0, 2 uncorrectable hardware errors detected in umc block",
    "amdgpu 0000:c6:00.0: amdgpu: device lost from bus!",
    "amdgpu 0000:c6:00.0: amdgpu: GPU mode1 reset failed",
    "amdgpu: GPU reset begin!",
    "amdgpu: GPU reset(2) failed",
    "amdgpu: [gfxhub] page fault (src_id:0 ring:24 vmid:3 pasid:32777)",
    "amdgpu: qcm fence wait loop timeout expired",
    "kfd kfd: amdgpu: qcm fence wait loop timeout expired",
    "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring comp_1.0.0 timeout, signaled seq=1, emitted seq=2",
    "amdgpu 0000:c6:00.0: [drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx timeout, signaled seq=1",
]
OTHERS = [
    "NVRM: The NVIDIA GPU 0000:b3:00.0",
    "NVRM: fallen off the bus and is not responding to commands.",
    "Linux version 6.12.107+deb13-amd64 (debian-kernel@lists.debian.org)",
    "pci 0000:64:01.0: PCI bridge to [bus 65]",
    "-- Reboot --",
]

STAMPS = [
    "[ 3277.517443] ",
    "[12345.517443] [ T1234] ",
    "[    1.000000][    C1] ",
    "<3>[ 3277.517443] ",
    "kern  :err   : [ 3277.517443] ",
    "[Sun Feb 23 16:24:18 2025] ",
    "2025-02-23T16:24:18,123456+01:00 ",
    "1763636400.100100 gpu-01 kernel: ",
    "2025-02-23T16:24:18+0100 gpu-01 kernel: ",
    "2025-02-23T16:24:18.123456+01:00 gpu-01 kernel: [ 3277.517443] ",
    "Feb  3 16:24:18 gpu-01 kernel: ",
    "Feb 23 16:24:18 gpu-01 kernel: [ 3277.517443] ",
]

# Messages with a program name ({comm}: at most 15 characters) and with names of files and groups ({name}),
# of Linux (arch/x86/mm/fault.c, arch/x86/kernel/traps.c, mm/page_alloc.c, mm/oom_kill.c, fs/exec.c,
# kernel/hung_task.c, kernel/audit.c), of NVIDIA's driver (nv.c) and of amdgpu (amdgpu_vm.c, amdgpu_job.c).
POSITIONS = [
    "{comm}[11176]: segfault at 0 ip 0000 sp 0000 error 6 in {name}[1132,55867fe64000+1000] likely on CPU 0",
    "{comm}[4711] general protection ip:400 sp:7ff error:0 in {name}[400000+1000]",
    "traps: {comm}[4711] trap divide error ip:400 sp:7ff error:0 in {name}[400000+1000]",
    "{comm}: page allocation failure: order:4, mode:0x0(GFP), nodemask=(null),cpuset={name},mems_allowed=0",
    "{comm} invoked oom-killer: gfp_mask=0x0(GFP), order=0, oom_score_adj=0",
    "{comm} (4711): drop_caches: 3",
    "oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/user.slice/{name},task={comm},pid=4711,uid=1000",
    "Memory cgroup out of memory: Killed process 4711 ({comm}) total-vm:1kB",
    "process '{name}' started with executable stack",
    "INFO: task {comm}:4711 blocked for more than 120 seconds.",
    "CPU: 1 PID: 4711 Comm: {comm} Tainted: P           OE",
    'audit: type=1701 audit(1.1:2): pid=4711 comm="{comm}" exe="{name}" sig=11',
    "overlayfs: failed to resolve '{name}': -2",
    "NVRM: API mismatch: the client '{comm}' (pid 4711)",
    "NVRM: Xid (PCI:0000:0a:00): 13, pid=4711, name={comm}, Graphics Exception: ESR 0x504730=0x108000e",
    "NVRM: Xid (PCI:0000:0a:00): 43, pid=4711, name={comm}",
    "NVRM: Xid (PCI:0000:0a:00): 149, pid=4711, name={comm}, NETIR_BER_EVENT Nonfatal XC0 i0 Link 01 (0x0)",
    "NVRM: Xid (PCI:0000:0a:00): 149, pid=4711, name={comm}, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x0)",
    "NVRM: Xid (PCI:0000:0a:00): 154, pid=4711, name={comm}, GPU recovery action changed from 0x0 (None) to "
    "0x2 (Node Reboot Required)",
    "amdgpu 0000:0b:00.0: amdgpu:  Process {comm} pid 4711 thread {comm} pid 4712",
    "amdgpu 0000:0b:00.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8 pasid:32770, for "
    "process {comm} pid 4711 thread {comm} pid 4712)",
    "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* Process information: process {comm} pid 4711 thread {comm}",
]


def readings(line: str) -> list[object]:
    """Return everything that is parsed from a log with this message between two others."""
    log = f"[    0.500000] NVRM: Xid (PCI:0000:0c:00): 48, DBE\n{line}\n[ 9999.0] usb 1-1: new\n"
    results: list[object] = []
    for event in kernel_log.events(log.split("\n")):
        means = kernel_log.meaning(event.kind, event.code, event.line)
        about = event.kind, event.code, event.address, event.count, event.below
        results.append((*about, means, kernel_log.fatal(event), kernel_log.instance(event.line)))
    for _, text in dmesg_records(log):
        message = message_of(text, driver_log.kept_lines()) or {}
        results += [(message["xid"]["code"], message["xid"]["address"])] if "xid" in message else []
        results += [amd_fatal(text, driver_log.fatal_lines(), {"0000:0b:00": "gpu0"}), driver_log.event(text)]
    return [result for result in results if result]


def as_printed(message: str, stamp: str = "[ 3277.517443] ") -> str:
    """Return a message as dmesg and journalctl print it, with its further lines indented."""
    return stamp + message.replace("\n", "\n" + " " * len(stamp))


def escaped(message: str) -> str:
    """Return a message as /dev/kmsg and dmesg in the C locale print it, with undecodable bytes in hex."""
    data = message.encode("utf-8", "surrogateescape")
    return "".join(chr(one) if 32 <= one < 127 else f"\\x{one:02x}" for one in data)


def filled(position: str, text: str) -> str:
    return position.format(comm=text[:15], name=text[:255])


@pytest.mark.parametrize("stamp", STAMPS)
def test_each_source_is_read_behind_every_stamp(stamp: str) -> None:
    for fault in FAULTS:
        (bare,) = kernel_log.events([fault])
        (event,) = kernel_log.events([f"{stamp}{fault}"])
        assert (event.kind, event.code, event.address, event.line) == (
            bare.kind, bare.code, bare.address, fault
        )  # fmt: skip
        assert kernel_log.concerns_gpus(f"{stamp}{fault}")


def test_crashes_of_a_real_kernel_are_no_faults() -> None:
    assert len(CRASHES) > 40
    assert any("\r[    1.000000] NVRM: Xid" in line for line in CRASHES), "some readers end a line there"
    assert kernel_log.events(CRASHES) == []
    assert not any(kernel_log.concerns_gpus(line) for line in CRASHES)
    text = "\n".join(CRASHES)
    told = [message_of(words) or {} for _, words in dmesg_records(text)]
    assert len(told) > 20
    assert not any("xid" in one for one in told)
    journal, dmesg = (make_output(name, f"{text}\n") for name in ("journal", "dmesg"))
    events, error = kernel_log.read(journal, dmesg)
    assert (events, error) == ([], None)


_BEFORE = ("", "a\n", "a\n[    1.000000] ", "a\r[    1.000000] ", "a\u2028[    1.000000] ", "[T1] ", "<3>")


@pytest.mark.parametrize("position", POSITIONS)
def test_a_forged_name_changes_nothing(position: str) -> None:
    plain = readings(as_printed(filled(position, "python")))
    for fault in [*FAULTS, *OTHERS]:
        texts = [*(before + fault for before in _BEFORE), *(fault[begin:] for begin in range(5, 40, 7))]
        for text in texts:  # the last texts have the middle of the fault within their 15 characters
            assert readings(as_printed(filled(position, text))) == plain, text


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("before", ["\udcc3\udcc3", "\udcff" * 6, "\x01", "é"])
def test_a_name_that_is_no_text_changes_nothing(position: str, before: str) -> None:
    """Two bytes and `to 0x2 (None)` once cancelled the driver's request `reboot the node`."""
    plain = readings(as_printed(filled(position, "python")))
    for text in ("to 0x2 (None)", " Fatal", " Nonfatal", ", Fatal"):
        assert readings(as_printed(escaped(filled(position, before + text)))) == plain, text


_PIECES = st.sampled_from(
    [
        *FAULTS, *OTHERS, *STAMPS, "\n", " ", ": ", "\r", "\u2028", "\\x0a", "Fatal", "Nonfatal", ", ",
        "to 0x0 (None)", "name=", "ring x timeout,", "GPU reset begin", "[a] page fault", "amdgpu: ",
        "[gpuprov: 1 bytes left out here]",
    ]
)  # fmt: skip


@given(
    st.sampled_from(POSITIONS),
    st.sampled_from(STAMPS[:1] + STAMPS[7:8]),
    st.lists(st.one_of(_PIECES, st.text(max_size=8)), max_size=6),
    st.integers(0, 40),
)
def test_no_text_of_a_users_changes_what_is_read(
    position: str, stamp: str, parts: list[str], cut: int
) -> None:
    text = "".join(parts)[cut:]
    plain = readings(as_printed(filled(position, "python"), stamp))
    assert readings(as_printed(filled(position, text), stamp)) == plain


def test_another_message_does_not_end_the_drivers() -> None:
    """An unsupported GPU, followed by a crash named like the end of another message."""
    refused = as_printed(
        "NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:26b5)\nNVRM: installed in this system is old"
    )
    crash = as_printed(filled(POSITIONS[0], "a\nNVRM: fallen off the bus and is not responding to commands."))
    assert kernel_log.events(f"{refused}\n{crash}".split("\n")) == []
    lost = as_printed(
        "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        "NVRM: fallen off the bus and is not responding to commands."
    )
    for log in (lost.split("\n"), [lost.replace("\n", "\\x0a")]):
        (event,) = kernel_log.events(log)
        assert (event.kind, event.code, event.address) == ("xid", 79, "0000:b3:00")


def test_a_name_cannot_end_the_boot() -> None:
    """`Linux version 6` has 15 characters; a program of this name must not make earlier errors obsolete."""
    fault = as_printed(FAULTS[0], "[   10.000000] ")
    crash = as_printed(filled(POSITIONS[0], "Linux version 6.1.0-1 (x@y)"))
    assert [event.code for event in kernel_log.events([fault, crash])] == [79]


def test_what_is_left_of_a_cut_line_is_no_message() -> None:
    """Long output loses its middle, so the text after the mark may be the end of a user's name."""
    log = [
        "[ 1.0] usb 1-1: new",
        "[gpuprov: 4711 bytes left out here]",
        f"[ 1.0] {FAULTS[0]}",
        f"[ 9.0] {FAULTS[3]}",
    ]
    assert [event.address for event in kernel_log.events(log)] == ["0000:18:00"]


def test_crashes_do_not_push_errors_out_of_what_the_health_program_remembers() -> None:
    crash = as_printed(filled(POSITIONS[0], FAULTS[0]), STAMPS[7])
    fault = STAMPS[7] + FAULTS[3]
    cursor = "-- cursor: s=0639a08b9c3c4ef59d5a1b7f8f0e2c11;i=4b1;m=2f1c;t=64f1b2"
    lines = [*[crash] * 3000, fault, *[crash] * 3000, cursor]
    output = Output("journal", ("journalctl",), 0, "\n".join(lines) + "\n", "", 0.1)
    _, known = kernel_since.joined(output, None, "9df8d9ab-1127-46f1-b9a1-8ae74f1bc673")
    assert known is not None
    assert known.lines == (crash, fault)


def test_only_messages_of_the_kernel_are_read_from_the_journal() -> None:
    """`journalctl -k` filters by `_TRANSPORT=kernel`, a field that no client of the journal can set."""
    for check in (gpu_inventory, amd_gpu_inventory):
        (journal,) = [one.argv for one in check.commands(make_node(), {}) if one.name == kernel_since.NAME]
        assert "-k" in journal


def test_what_a_node_sends_of_its_journal_has_every_message_that_is_read() -> None:
    for check in (gpu_inventory, amd_gpu_inventory):
        (journal,) = [one for one in check.commands(make_node(), {}) if one.name == kernel_since.NAME]
        for line in [*FAULTS, *OTHERS[:-1]]:
            assert any(word in line for word in journal.keep), line


def test_the_journal_hides_no_message_with_a_name_that_is_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --all, journalctl prints such a message as `[81B blob data]`."""
    for check in (gpu_inventory, amd_gpu_inventory):
        (journal,) = [one.argv for one in check.commands(make_node(), {}) if one.name == kernel_since.NAME]
        assert "--all" in journal
    (tmp_path / "dmesg").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "journalctl").write_text('#!/bin/sh\necho "$@"\n')
    for name in ("dmesg", "journalctl"):
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(gpuprov_run, "PATH", str(tmp_path))
    assert "--all" in gpuprov_run.kernel_lines()[2][0].split()


def test_a_fault_of_the_log_alone_is_called_so() -> None:
    gpus = {"0000:1b:00": "gpu3"}
    events = kernel_incidents.named(kernel_log.events([as_printed(FAULTS[0])]), gpus)
    for other, alone in (
        (Finding("c", Verdict.PASS, "gpu3", "all is well"), True),
        (Finding("c", Verdict.WARN, "node", "a setting"), True),
        (Finding("c", Verdict.FAIL, "gpu2", "another"), True),
        (Finding("c", Verdict.FAIL, "gpu3", "does not answer"), False),
        (Finding("c", Verdict.WARN, "gpu3", "does not answer"), False),
        (Finding("c", Verdict.FAIL, "node", "7 of 8 GPUs"), False),
    ):
        (finding,) = kernel_incidents.judge("c", events, others=[other])
        assert finding.verdict is Verdict.FAIL, "another reading takes nothing away"
        assert finding.message.endswith("; by the kernel log alone") is alone, other


@pytest.mark.parametrize(
    "line",
    [
        "a\n" * 100_000,
        "\\x0a " * 100_000,
        "[ 1.0] NVRM: Xid (PCI:0000:1b:00)" + " " * 1_000_000,
        "[ 1.0] NVRM: The NVIDIA GPU 0000:1b:00.0" + "\\x0a     " * 100_000,
        "[ 1.0] amdgpu 0000:1b:00.0: [drm:" + "a" * 1_000_000,
        "[ 1.0] amdgpu: " + "{1}" * 300_000,
        "1.0 " + "kernel: " * 125_000,
        "[ 1.0] NVRM: Xid (PCI:0000:1b:00): 149, " + ", name=" * 140_000,
        "0" * 1_000_000,
    ],
)
def test_a_long_line_takes_no_long_time(line: str) -> None:
    began = time.process_time()
    for event in kernel_log.events(line.split("\n")):
        kernel_log.meaning(event.kind, event.code, event.line)
    assert kernel_log.concerns_gpus(line) in (True, False)
    assert time.process_time() - began < 5
