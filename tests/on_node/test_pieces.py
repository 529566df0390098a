"""Parts of the node's health program: the kernel log, hung processes, settings, state, output styles."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from provision.checks.check import Command, Output
from provision.checks.health import CheckResult, GpuIdentity, NodeHealth
from provision.checks.judge import Finding, Verdict
from provision.checks.kernel import kernel_log
from provision.checks.on_node import (
    document,
    entry,
    kernel_since,
    metrics,
    processes,
    run,
    settings,
    state,
    styles,
)
from provision.checks.on_node.debounce import Rule, Tracked
from provision.checks.on_node.kernel_since import Remembered
from provision.checks.on_node.processes import Hung
from provision.checks.on_node.state import State
from provision.errors import GpuprovError
from provision.node import health_result
from provision.node.burnin.processes import stat_fields, stat_of
from provision.node.observe import node_health
from provision.validate.status import health_document

BOOT = "9df8d9ab-1127-46f1-b9a1-8ae74f1bc673"
# Last line of `journalctl --show-cursor` in systemd 257 on Debian 13.
CURSOR = "s=0639a08b9c3c4ef59d5a1b7f8f0e2c11;i=4b1;b=9df8d9ab112746f1b9a18ae74f1bc673;m=2f1c;t=64f1b2;x=8f2a"
XID = "1000.5 host kernel: NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus."
OTHER = "1001.0 host kernel: usb 1-1: new high-speed USB device"


def journal(*lines: str, cursor: str = CURSOR, rc: int = 0) -> Output:
    text = "".join(f"{line}\n" for line in (*lines, f"-- cursor: {cursor}"))
    return Output("journal", ("journalctl",), rc, text, "", 0.1)


def test_the_second_run_reads_on_where_the_first_ended() -> None:
    whole = Command("journal", ("journalctl", "-k"), 60.0)
    assert kernel_since.command(whole, None).argv == ("journalctl", "-k", "--show-cursor")
    first, known = kernel_since.joined(journal(OTHER, XID, OTHER), None, BOOT)
    assert known == Remembered(BOOT, CURSOR, (OTHER, XID))
    assert kernel_since.command(whole, known).argv[-2:] == ("--after-cursor", CURSOR)
    nothing = Output("journal", ("journalctl",), 0, "-- No entries --\n", "", 0.1)
    again, known = kernel_since.joined(nothing, known, BOOT)
    assert known is not None
    assert known.cursor == CURSOR
    events = [kernel_log.read(output, None)[0] for output in (first, again)]
    assert events[0] == events[1]
    assert [event.code for event in events[1]] == [79]
    third, known = kernel_since.joined(journal(OTHER, XID.replace("79,", "119,")), known, BOOT)
    assert [event.code for event in kernel_log.read(third, None)[0]] == [79, 119]


def test_a_log_that_could_not_be_read_on_is_read_whole_the_next_time() -> None:
    known = Remembered(BOOT, CURSOR, (XID,))
    failed = Output("journal", ("journalctl",), 1, "", "Failed to seek to cursor: Invalid argument", 0.1)
    output, remembered = kernel_since.joined(failed, known, BOOT)
    assert remembered is None
    assert kernel_log.read(output, None)[1] is not None, "it is not taken for a log without errors"


def test_a_program_with_other_catalogues_reads_the_whole_log_again() -> None:
    known = Remembered(BOOT, CURSOR, (XID,))
    kept = kernel_since.plain(known)
    assert kept is not None
    assert kernel_since.read(kept, BOOT) == known
    assert kernel_since.read({**kept, "kept_by": "0.0.1 00000000"}, BOOT) is None
    assert kernel_since.read({key: kept[key] for key in ("boot_id", "cursor", "lines")}, BOOT) is None


def test_every_line_that_the_checks_look_at_is_kept() -> None:
    """Compares with the sample lines in kernel_log's docstring."""
    samples = [
        line
        for line in (kernel_log.__doc__ or "").splitlines()
        if (":" in line and "NV" in line) or "PCI" in line
    ]
    assert len(samples) > 12
    lost = [line for line in samples if kernel_log.events([line]) and not kernel_log.concerns_gpus(line)]
    assert lost == []


def test_a_flood_is_bounded() -> None:
    lines = [
        f"{number}.0 host kernel: pcieport 0000:64:01.0: PCIe Bus Error: severity=Corrected"
        for number in range(9000)
    ]
    _, known = kernel_since.joined(journal(*lines), None, BOOT)
    assert known is not None
    assert len(known.lines) == 4000
    assert (known.lines[0], known.lines[-1]) == (lines[0], lines[-1])
    output, known = kernel_since.joined(journal(*lines[:4500], XID, *lines[4500:]), None, BOOT)
    assert known is not None
    assert len(known.lines) == 4000
    codes = {event.code for event in kernel_log.read(output, None)[0]}
    assert 79 in codes, "a flood of corrected errors pushes out no other error"


def test_what_children_leave_behind_is_killed_and_what_cannot_be_is_named() -> None:
    """A separate process adopts the orphans, so that the test runner does not."""
    program = (
        "import subprocess, sys, time\n"
        "from provision.checks.on_node import processes\n"
        "processes.adopt_children()\n"
        "subprocess.run(['sh', '-c', 'sleep 300 & exit 0'], check=True)\n"
        "print(processes.left(5.0))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout == "[]\n", "a sleep is killed"


def test_a_process_is_known_by_its_start_and_not_by_its_number_alone() -> None:
    child = subprocess.Popen(["sleep", "300"])
    try:
        name, fields = stat_fields(child.pid)
        one = Hung(child.pid, int(fields[19]), name, 1.0)
        assert processes.still([one]) == [one]
        assert processes.still([Hung(child.pid, int(fields[19]) + 1, "sleep", 1.0)]) == []
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert processes.still([one]) == []


def test_what_is_left_is_called_by_the_program_that_was_started() -> None:
    script, binary = Hung(7, 1, "python3", 1.0), Hung(8, 1, "nvidia-smi", 1.0)
    told = processes.named([script, binary], ("nvidia-smi", "dmesg"))
    assert [one.program for one in told] == ["nvidia-smi", "nvidia-smi"]
    assert processes.named([script], ()) == [script]


def test_a_name_with_brackets_is_read_whole() -> None:
    program = 'printf "a) b (c)" > /proc/$$/comm; echo; read end'
    with subprocess.Popen(["sh", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout
        assert child.stdout.readline() == b"\n"
        name, _, parent = stat_of(child.pid)
        assert (name, parent) == ("a) b (c)", os.getpid())


@pytest.mark.parametrize(
    ("document_", "words"),
    [
        ("{", "not JSON"),
        ("[]", "format must be 1, not 'list'"),
        ({"format": 2}, "format must be 1, not 2"),
        ({"format": 1, "colour": "red"}, "unknown key 'colour'"),
        ({"format": 1, "interval": 5}, "interval must be whole seconds from 10 to 86400, not 5"),
        ({"format": 1, "textfile": "here"}, "textfile a folder's absolute path"),
        ({"format": 1, "checks": ["gpu_burn"]}, "checks must name some of gpu_inventory"),
        (
            {"format": 1, "limits": {"any": {"gpu_inventory.pcie_widt": {}}}},
            "did you mean gpu_inventory.pcie_width?",
        ),
        ({"format": 1, "limits": {"h100": {}}}, "is not one of"),
        ({"format": 1, "debounce": [{"name": "a"}]}, "debounce rule 1"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_with_file_and_key(
    document_: Any, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "node-health.json"
    file.write_text(document_ if isinstance(document_, str) else json.dumps(document_))
    with pytest.raises(settings.SettingsError) as refused:
        settings.read(file)
    assert str(file) in refused.value.what
    assert words in refused.value.what


def test_no_settings_are_the_shipped_ones_and_a_password_is_no_setting(tmp_path: Path) -> None:
    assert settings.read(tmp_path / "none.json") == settings.Settings()
    file = tmp_path / "node-health.json"
    variables = {"gpuprov_expected_gpus": 8, "ansible_password": "x", "gpuprov_container_image": "cuda"}
    file.write_text(json.dumps({"format": 1, "variables": variables}))
    assert settings.read(file).variables == {"gpuprov_expected_gpus": 8}


def test_limits_of_an_operator_are_over_those_that_are_shipped(tmp_path: Path) -> None:
    file = tmp_path / "node-health.json"
    row = {
        "limit": 8,
        "unit": "lanes",
        "direction": "at_least",
        "kind": "derived",
        "source": "our risers have eight",
    }
    file.write_text(json.dumps({"format": 1, "limits": {"h100-sxm": {"gpu_inventory.pcie_width": row}}}))
    known = settings.read(file)
    assert known.limits_for("h100-sxm", None)["gpu_inventory.pcie_width"].limit == 8
    assert known.limits_for("h200-sxm", None)["gpu_inventory.pcie_width"].limit == 16


def tracked(verdict: Verdict = Verdict.FAIL, *, active: bool = True) -> Tracked:
    finding = Finding("gpu_inventory", verdict, "gpu3", "Xid 79 | lost", "xid.79", action="power-cycle")
    return Tracked(finding, Rule("r", 1, 1, 3), "2026-11-25T10:00:00Z", (True,), active)


def test_the_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    lost = GpuIdentity(3, "H100", "1650", "GPU-1", "9b")
    hung = (Hung(7, 9, "nvidia-smi", 3.0),)
    known = State((tracked(),), Remembered(BOOT, CURSOR, (XID,)), hung, gpus=(lost,))
    state.write(tmp_path, known, BOOT)
    again = state.read(tmp_path, BOOT)
    assert again.kernel == known.kernel
    assert again.hung == known.hung
    assert [one.finding for one in again.tracked or ()] == [tracked().finding]
    other = state.read(tmp_path, "another boot")
    assert (other.kernel, other.hung, len(other.tracked or ())) == (None, (), 1)
    assert (again.rebooted, other.rebooted) == (False, True)
    assert (again.gpus, other.gpus) == ((lost,), ())


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 9}', '{"format": 1, "boot_id": 1, "tracked": [{}]}']
)
def test_a_damaged_state_is_none_and_says_so(text: str, tmp_path: Path) -> None:
    (tmp_path / state.FILE).write_text(text)
    found = state.read(tmp_path, BOOT)
    assert found.tracked is None
    assert "is damaged, and begun anew" in found.trouble
    assert state.read(tmp_path / "nowhere", BOOT) == State()


def test_the_history_has_a_line_for_each_change_of_the_verdict(tmp_path: Path) -> None:
    for number, verdict in enumerate(["pass", "pass", "fail", "fail", "pass"]):
        state.note(tmp_path, verdict, f"2026-11-25T10:0{number}:00Z", [])
    lines = (tmp_path / state.HISTORY).read_text().splitlines()
    assert [json.loads(line)["verdict"] for line in lines] == ["pass", "fail", "pass"]


def told(*findings: dict[str, Any], verdict: str = "fail", error: str = "") -> dict[str, Any]:
    gpus = [
        {"index": 3, "name": "H100", "serial": "1650", "uuid": "GPU-1", "pci_address": "9b", "lost": False}
    ]
    rows = [
        {"state": "active", "verdict": "fail", "device": "gpu3", "action": "reboot", **row}
        for row in findings
    ]
    about = {
        "boot_id": BOOT,
        "uptime": 5.0,
        "interval": 60,
        "seconds": 1.5,
        "facts": {"gpus": 8},
        "checks": [{}] * 4,
    }
    return {"format": 1, "verdict": verdict, "error": error, "gpus": gpus, "findings": rows, **about}


EIGHT = tuple(GpuIdentity(index, "H100", f"165{index}", f"GPU-{index}", f"1{index}") for index in range(8))
SILENT = Finding("gpu_inventory", Verdict.FAIL, "gpu3", "does not answer", "unanswered", action="power-cycle")


@pytest.mark.parametrize(
    ("listed", "found", "lost"),
    [
        (EIGHT, (), []),
        ((*EIGHT[:3], *EIGHT[4:]), (SILENT,), [3]),
        # All its readings are errors, including its name.
        ((*EIGHT[:3], GpuIdentity(3, "", "", "", "13"), *EIGHT[4:]), (SILENT,), [3]),
        # AMD's driver still knows its serial number.
        ((*EIGHT[:3], GpuIdentity(3, "", "1653", "GPU-3", ""), *EIGHT[4:]), (SILENT,), [3]),
        # It has no handle, and nvidia-smi prints nothing about it.
        ((), (SILENT,), [3]),
        ((), (), list(range(8))),
    ],
)
def test_a_lost_gpu_keeps_the_serial_number_that_it_had(
    listed: tuple[GpuIdentity, ...], found: tuple[Finding, ...], lost: list[int]
) -> None:
    checks = (CheckResult("gpu_inventory", Verdict.FAIL, found, (), 0.0),)
    health = NodeHealth("n1", Verdict.FAIL, checks, listed, {}, "")
    told = document.document(health, [], {"started": "", "boot_id": BOOT}, 60, EIGHT)
    assert [gpu["index"] for gpu in told["gpus"] if gpu["lost"]] == lost
    assert [gpu["serial"] for gpu in told["gpus"]] == [gpu.serial for gpu in EIGHT]
    assert document.identified(health, EIGHT) == list(EIGHT)


def test_nagios_gets_the_worst_first_and_its_numbers() -> None:
    lost = {"message": "lost | gone"}
    text, status = styles.nagios(
        told(lost, {"message": "hot", "verdict": "warn"}, {"message": "new", "state": "pending"})
    )
    assert status == 2
    assert text.splitlines() == [
        "GPUPROV CRITICAL - gpu3: lost / gone (serial 1650): reboot (and 1 more) | findings=2 seconds=1.5s",
        "gpu3: hot (serial 1650): reboot",
    ]
    assert styles.nagios(told(verdict="pass")) == (
        "GPUPROV OK - 8 GPUs, 4 checks | findings=0 seconds=1.5s",
        0,
    )
    assert styles.nagios(told(verdict="error", error="no GPU"))[1] == 3


def test_nhc_drains_for_failures_and_for_what_nobody_could_look_at() -> None:
    assert styles.nhc(told({"message": "hot", "verdict": "warn"}, verdict="warn")) == ("", 0)
    assert styles.nhc(told({"message": "lost"})) == ("gpuprov: gpu3: lost (serial 1650): reboot", 1)
    assert styles.nhc(told(verdict="error", error="the last result is 9 min old")) == (
        "gpuprov: the last result is 9 min old",
        1,
    )


@pytest.mark.parametrize(
    ("result", "text", "status"),
    [
        (told(verdict="pass"), "no GPU problem", 0),
        (told({"message": "hot", "verdict": "warn"}, verdict="warn"), "no GPU problem", 0),
        (told({"message": "lost"}), "gpu3: lost (serial 1650): reboot", 1),
        (told(verdict="error", error="the last result is 9 min old"), "the last result is 9 min old", 2),
        (told({"message": "ü" * 80}), "gpu3: " + "ü" * 35 + "...", 1),
    ],
)
def test_node_problem_detector_gets_a_message_and_a_status(
    result: dict[str, Any], text: str, status: int
) -> None:
    assert styles.npd(result) == (text, status)
    assert len(text.encode()) <= 80


def test_to_node_problem_detector_no_result_is_not_known_and_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """To node-problem-detector status 1 is a broken GPU, so an error of the program must not exit with 1."""
    folder = tmp_path / ("long" * 20)  # its path alone exceeds the 80 bytes of a message
    folder.mkdir()
    monkeypatch.setattr(entry, "RUN", folder)
    assert entry.main(["npd", "--last"]) == 2
    printed = capsys.readouterr()
    assert printed.out.strip().endswith("...")
    assert (str(folder)[:20] in printed.out, printed.err) == (True, "")
    (folder / "health.json").write_text('{"uptime": "x"}')
    assert entry.main(["npd", "--last"]) == 2


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ([], ["json"]),
        (["--last"], ["json", "--last"]),
        (["--write"], ["write"]),
        (["--last", "--nhc"], ["nhc", "--last"]),
        (["--last", "--npd"], ["npd", "--last"]),
        (["--slurm", "prolog", "--refuse-unknown"], ["slurm", "prolog", "--refuse-unknown"]),
        (["--write", "--slurm", "check"], ["write", "slurm", "check"]),
        (["--slurm=prolog", "--refuse-unknown"], ["slurm", "prolog", "--refuse-unknown"]),
        (["--last", "nhc"], ["nhc", "--last"]),
        (["--settings", "json"], ["json", "--settings", "json"]),
        (["age"], ["age"]),
        (["--version"], ["--version"]),
    ],
)
def test_the_flags_that_units_and_other_programs_still_have_are_words(
    given: list[str], meant: list[str]
) -> None:
    assert entry._worded(given) == meant


def test_an_old_result_and_one_of_another_boot_are_no_result(tmp_path: Path) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    file = tmp_path / "health.json"

    def said(**change: Any) -> tuple[str, str]:
        file.write_text(json.dumps({**told(verdict="pass"), "boot_id": boot, "uptime": now, **change}))
        found = entry.last(file)
        return found["verdict"], found["error"]

    assert said() == ("pass", "")
    assert said(uptime=now - 170) == ("pass", "")
    assert said(uptime=now - 500) == (
        "error",
        "the last result is 8 min old: systemctl status gpuprov-node-health.timer",
    )
    assert said(boot_id="other")[1].startswith("the last result is of another boot")
    assert said(uptime=now + 1000)[1].startswith("the last result is of another boot")
    for text in ("", "[]", "{}", "\x00" * 300):
        file.write_text(text)
        with pytest.raises(GpuprovError, match="not a result of this program"):
            entry.last(file)


def test_a_document_stays_within_its_size() -> None:
    rows = [{"message": "x" * 900, "evidence": ["y" * 300] * 5} for _ in range(200)]
    made = document.text(told(*rows))
    assert len(made) <= document.LARGEST + 1
    assert len(json.loads(made)["findings"]) >= 100


def test_only_root_may_run_the_checks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert entry.main(["write", "--settings", "/nowhere.json"]) == 1
    said = "gpuprov-node-health: only root can run the checks → run it as root; without root: --last\n"
    assert capsys.readouterr().err == said


def test_a_lost_gpu_has_its_serial_number_and_is_not_counted() -> None:
    lost = {"message": "gone", "check": "gpu_inventory", "metric": "xid.79"}
    document_ = {**told(lost), "gpuprov": "0.1.0", "measured": "fail", "checks": []}
    here = {"index": 0, "name": "H100", "serial": "7", "uuid": "GPU-0", "pci_address": "18", "lost": False}
    document_["gpus"] = [here, {**document_["gpus"][0], "lost": True}]
    found = {one.name: one.samples for one in metrics.families(document_, 1.0, {})}
    assert [sample.labels["gpu"] for sample in found["gpuprov_gpu_info"]] == ["0"]
    assert [sample.labels["serial"] for sample in found["gpuprov_finding"]] == ["1650"]


def test_what_a_tool_printed_does_not_reach_a_terminal_and_a_lost_gpu_is_marked() -> None:
    finding = Finding("gpu_inventory", Verdict.FAIL, "gpu3", "said \x1b[2J", "xid.79", action="power-cycle")
    one = Tracked(finding, Rule("r", 1, 1, 3), "2026-11-25T10:00:00Z", (True,), True)
    here, lost = (GpuIdentity(index, "H100", str(index), f"GPU-{index}", "9b") for index in (0, 3))
    result = CheckResult("gpu_inventory", Verdict.FAIL, (finding,), (), 1.0)
    health = NodeHealth("a", Verdict.FAIL, (result,), (here,))
    about = {"boot_id": BOOT, "uptime": 5.0, "started": "s", "finished": "f", "seconds": 1.0}
    made = document.document(health, [one], about, 60, (here, lost))
    assert made["findings"][0]["message"] == "said \N{REPLACEMENT CHARACTER}[2J"
    assert [(gpu["index"], gpu["lost"]) for gpu in made["gpus"]] == [(0, False), (3, True)]
    assert health_document.read(document.text(made).encode()).gpus == (here, lost)


def test_drift_and_the_program_call_the_same_result_stale() -> None:
    """The program sent to nodes imports nothing from the checks, so each has its own limit."""
    for interval in (15, 60, 3600):
        limit = max(node_health.LATE * interval, node_health.LEAST_LATE)
        assert not document.stale(limit, interval)
        assert document.stale(limit + 1, interval)
    assert document.LARGEST == node_health.LARGEST == health_result.HEALTH_LIMIT


def test_what_one_vendors_nodes_alone_have_is_looked_at_there(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[frozenset[str]] = []

    def look(names: frozenset[str], *_: object) -> tuple[dict[str, Any], dict[str, str]]:
        asked.append(names)
        if "amdgpu.devices" in names:
            return {"amdgpu.loaded_version": "6.12.12"}, {"amdgpu.devices": "no answer within 8 s"}
        pci = [{"address": "0000:05:00.0", "device_id": device}]
        return {"gpu.count": 1, "gpu.pci": pci, "os.id": "debian"}, {}

    monkeypatch.setattr(run, "look", look)
    known = settings.Settings(checks=("versions",))
    for device, looks in (("1002:74a1", 2), ("10de:2330", 1)):
        asked.clear()
        found = run.measure("gpu-01", known, None, (), 100.0)
        assert len(asked) == looks, device
    device = "1002:74a1"
    found = run.measure("gpu-01", known, None, (), 100.0)
    assert found.problems == {"amdgpu.devices": "no answer within 8 s"}
    judged = run.judged("gpu-01", found, known)
    assert judged.verdict is Verdict.ERROR, "amdgpu.rocm was not answered"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run the checks")
def test_a_user_who_holds_whatever_can_be_opened_stops_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test locks every file and folder that others may open, as any user could."""
    runs: list[bool] = []
    monkeypatch.setattr(entry, "RUN", tmp_path / "gpuprov")
    monkeypatch.setattr(entry, "_fresh", lambda _known, write: runs.append(write))
    entry.fresh(settings.Settings(), write=True)
    with contextlib.ExitStack() as stack:
        for path in (tmp_path / "gpuprov", *(tmp_path / "gpuprov").rglob("*")):
            closed = any(
                one.is_dir() and not one.stat().st_mode & 0o005
                for one in (path, *path.parents)
                if one.is_relative_to(tmp_path / "gpuprov")
            )
            if not closed and path.stat().st_mode & 0o004:
                held = os.open(path, os.O_RDONLY)
                stack.callback(os.close, held)
                fcntl.flock(held, fcntl.LOCK_EX)
        entry.fresh(settings.Settings(), write=True)
    assert runs == [True, True]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_a_folder_that_another_user_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "RUN", tmp_path / "gpuprov")
    (tmp_path / "gpuprov").mkdir()
    os.chown(tmp_path / "gpuprov", 1000, 1000)
    with pytest.raises(GpuprovError, match="is not a folder that root alone may change"):
        entry.fresh(settings.Settings(), write=True)


def test_the_program_knows_every_fact_that_its_checks_read() -> None:
    """A separate Python, since here the other families of facts are loaded as well."""
    told = subprocess.run([sys.executable, "-P", "-c", _UNKNOWN], capture_output=True, text=True, check=True)
    assert told.stdout.split() == []


_UNKNOWN = """
from provision.checks.judging import registry
from provision.checks.on_node import parts
from provision.node.observe import answer
checks = ("gpu_inventory", "versions", "host_health", "network_ports")
names = set(registry.facts_for(checks))
for vendor in ("nvidia", "amd"):
    names |= registry.facts_of_vendor(checks, vendor)
assert len(names) > 30, names
print(*sorted(answer.plan(names)[1]))
"""
