"""The script that starts a health run when the kernel logs a GPU error, run unchanged with stand-ins
for dmesg and systemctl."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision import paths, shipped
from provision.checks.kernel.kernel_log import events
from provision.checks.kernel.vendors import driver_log
from provision.checks.on_node import entry
from tests.support.processes import until

TEMPLATE = (paths.ROLES / "node_health/templates/gpuprov-node-health-kernel.j2").read_text()
FIXTURES = Path(__file__).parents[1] / "fixtures"
LOST = "NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
OTHERS = [
    "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.",
    "NVRM: The NVIDIA GPU 0000:b3:00.0\n{}NVRM: fallen off the bus and is not responding".format(" " * 15),
    "NVRM: fallen off the bus and is not responding to commands.",
    "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 95, pid=1, name=python, Uncontained: LTC TAG (0x2,0x0).",
    "NVRM: Xid (0000:03:00): 119, pid=4, name=nvidia-smi, Timeout after 6s of waiting for RPC response",
    "nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
    "nvidia 0000:9b:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer",
    "nvidia 0000:9b:00.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
    "nvidia 0000:9b:00.0: AER: can't recover (no error_detected callback)",
    "NVRM: GPU 0000:9b:00.0: RmInitAdapter failed! (0x62:0x40:1784)",
    "NVRM: GPU0 _kgspIsHeartbeatTimedOut: Heartbeat timed out, diff 5201 timeout 5200",
    "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to recover",
]
AMDS = [
    "amdgpu 0000:08:00.0: {1}1 uncorrectable hardware errors detected in umc block",
    "amdgpu 0000:c3:00.0: amdgpu: 12 uncorrectable hardware errors detected in gfx block",
    "amdgpu 0000:05:00.0: {2}poison is consumed by client 27, kick off gpu reset flow",
    "amdgpu 0000:c6:00.0: amdgpu: device lost from bus!",
    "amdgpu 0000:05:00.0: amdgpu: GPU reset(2) failed",
    "amdgpu 0000:05:00.0: amdgpu: Mode1 reset failed",
    "amdgpu: GPU reset(2) failed",
    "amdgpu 0000:65:00.0: {1}socket: 3, die: 0, 2 uncorrectable hardware errors detected in umc block",
    "[drm:amdgpu_device_init.cold [amdgpu]] *ERROR* hw_init of IP block <psp> failed -22",
    "amdgpu 0000:09:00.0: amdgpu: SMU: I'm not done with your previous command: SMN_C2PMSG_66:0x00000012",
    "amdgpu 0000:09:00.0: amdgpu: qcm fence wait loop timeout expired",
    "amdgpu 0000:09:00.0: amdgpu: The cp might be in an unrecoverable state due to an unsuccessful",
    "amdgpu 0000:09:00.0: amdgpu: Saved bad pages 256 reaches threshold value 256",
    "amdgpu 0000:09:00.0: amdgpu: hw_init of IP block <psp> failed -22",
    "amdgpu 0000:09:00.0: amdgpu: Fatal error during GPU init",
    "amdgpu 0000:65:00.0: {1}socket: 3, die: 0, 1 new uncorrectable hardware errors detected in umc block",
    "amdgpu 0000:65:00.0: socket: 3, die: 0, 1 uncorrectable hardware errors detected in total in umc block",
    "amdgpu 0000:68:00.0: {1}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
    "amdgpu 0000:65:00.0: amdgpu: RAS records:300 exceed threshold:256",
    "amdgpu 0000:65:00.0: amdgpu: XGMI: Set topology failure on device 1a2b, hive 3c4d, ret -22",
    "amdgpu 0000:65:00.0: [drm] device wedged, needs recovery",
    "amdgpu: sq_intr: error, se 0, data 0x0, sh 1, priv 0, wave_id 3, simd_id 0, cu_id 2, err_type 0",
    "pcieport 0000:72:00.0: pciehp: Slot(15): Link Down",
    "[drm] ASIC reset failed with error, -62 for drm dev, 0000:65:00.0",
]
HARMLESS = [
    "amdgpu 0000:c3:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block",
    "amdgpu 0000:c3:00.0: amdgpu: 10 correctable hardware errors detected in umc block",
    "amdgpu 0000:c6:00.0: amdgpu: ring comp_1.0.1 timeout, but soft recovered",
    "amdgpu 0000:05:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:24 vmid:3 pasid:32777)",
    "amdgpu 0000:05:00.0: amdgpu: GPU reset(2) succeeded!",
    "amdgpu 0000:9d:00.0: {1}[Hardware Error]: aca entry[00].STATUS=0xd820000000060150",
    "amdgpu 0000:65:00.0: socket: 3, die: 0, 0 uncorrectable hardware errors detected in total in umc block",
    "[drm] amdgpu kernel modesetting enabled.",
    "NVRM: Xid (PCI:0000:18:00): 13, pid=9, name=python, Graphics Exception: ESR 0x504730=0x108000e",
    "NVRM: Xid (PCI:0000:18:00): 45, pid=9, name=python, Ch 00000008 caused by previous Xid 94",
    "nvidia 0000:9b:00.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.126.09",
    "IPv4: martian source 10.0.0.1 from 10.0.0.2, on dev eth0",
]


class Machine:
    """The script's surroundings: a growing kernel log, and a systemctl that records its arguments."""

    def __init__(self, folder: Path, pause: int) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.log.touch()
        self.early = folder / "early"
        self.started = folder / "started"
        self.started.touch()
        self.active = folder / "active"
        self.active.write_text("inactive\n")
        self._program("dmesg", f'[ "$*" = "--follow" ] && exec tail -n +1 -f {self.log}')
        is_active = f"is-active*gpuprov-node-health.service) cat {self.active};;"
        self._program(
            "systemctl", f'case "$*" in {is_active} *) echo "$*" >>{self.started}; ls {self.early};; esac'
        )
        assert "pause=10\n" in TEMPLATE
        assert f"early={entry.RUN}/{entry.EARLY}\n" in TEMPLATE, "the program looks for it there"
        text = TEMPLATE.replace("pause=10\n", f"pause={pause}\n")
        (folder / "script").write_text(re.sub(r"early=\S+", f"early={self.early}", text))

    def _program(self, name: str, text: str) -> None:
        (self.folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.folder / name).chmod(0o755)

    def start(self) -> subprocess.Popen[bytes]:
        path = f"{self.folder}:{os.environ['PATH']}"
        return subprocess.Popen(
            ["/bin/bash", str(self.folder / "script")],
            env={"PATH": path},
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def say(self, *messages: str) -> None:
        self.write(*(f"[ 3277.517443] {message}" for message in messages))

    def write(self, *lines: str) -> None:
        with self.log.open("a", newline="") as file:
            file.write("".join(f"{line}\n" for line in lines))

    @property
    def runs(self) -> int:
        lines = self.started.read_text().splitlines()
        assert set(lines) <= {"start --no-block gpuprov-node-health.service"}
        return len(lines)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path, pause=2)
    process = made.start()
    yield made
    os.killpg(process.pid, 9)
    process.wait()
    assert process.stderr is not None
    process.stderr.close()


def test_every_line_that_amds_driver_writes_of_a_broken_gpu_is_tried() -> None:
    tried = {event[0] for line in AMDS if (event := driver_log.event(line))}
    assert tried == {name for name, row in driver_log.MEANINGS.items() if row.level == "fail"}


@pytest.mark.parametrize("line", [LOST, *OTHERS, *AMDS])
def test_an_error_of_a_gpu_starts_a_run_at_once(machine: Machine, line: str) -> None:
    assert events(["NVRM: The NVIDIA GPU 0000:b3:00.0", *line.split("\n")]), "the check reads it, too"
    machine.say(*HARMLESS, line)
    until(lambda: machine.runs == 1)
    assert machine.early.exists(), "rules that count runs do not count this one"


def test_nothing_else_does(machine: Machine) -> None:
    machine.say(*HARMLESS)
    time.sleep(1)
    assert machine.runs == 0


def test_no_name_of_a_users_program_does(machine: Machine) -> None:
    """Crashes from a real kernel, and every error as the name of a crashing program."""
    crashes = json.loads((FIXTURES / "kernel_log/forged-names.json").read_text(encoding="utf-8"))["lines"]
    machine.write(*crashes)
    for line in [LOST, *OTHERS, *AMDS]:
        crash = "{comm}[4711]: segfault at 0 ip 0 sp 0 error 6 in {name}[1132,55867fe64000+1000]"
        for before in ("", "a\n", "a\n[    1.000000] ", "a\r[    1.000000] "):
            name = before + line
            message = crash.format(comm=name[:15], name=name)
            machine.write("[ 3277.517443] " + message.replace("\n", "\n" + " " * 15))
    time.sleep(1)
    assert machine.runs == 0
    machine.say(LOST)
    until(lambda: machine.runs == 1)


def test_a_flood_starts_a_run_now_and_then_and_none_after_its_end(machine: Machine) -> None:
    began = time.monotonic()
    while time.monotonic() - began < 5:
        machine.say(*[LOST] * 20)
        time.sleep(0.05)
    assert machine.runs >= 2, "one at once, then every other second"
    last, ended = -1, 0.0
    while machine.runs != last:  # a slow machine needs longer to read the rest
        last, ended = machine.runs, time.monotonic()
        assert ended - began < 30
        time.sleep(2.5)
    assert last <= 1 + (ended - began) / 2


def test_what_comes_during_a_run_is_looked_at_after_it(machine: Machine) -> None:
    machine.active.write_text("activating\n")
    machine.say(LOST)
    time.sleep(1)
    assert machine.runs == 0
    machine.active.write_text("inactive\n")
    until(lambda: machine.runs == 1)


def test_a_log_that_ends_is_an_error(tmp_path: Path) -> None:
    """systemd restarts it."""
    machine = Machine(tmp_path, pause=2)
    machine._program("dmesg", "exit 1")
    with machine.start() as process:
        _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (1, b"dmesg --follow has ended\n")


def test_what_waits_for_the_timer_is_what_the_catalogue_calls_harmless() -> None:
    (codes,) = re.findall(r"^ +([0-9 |]+)\) continue ;;$", TEMPLATE, re.MULTILINE)
    rows = shipped.load("xid").items()
    harmless = {int(code) for code, row in rows if row["level"] in ("program", "info")}
    assert {int(code) for code in codes.split("|")} == harmless
