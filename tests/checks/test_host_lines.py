"""Kernel log lines about the machine around the GPUs: each kind, look-alikes, forgeries, incidents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuprov_lab.places import SILICON
from provision.checks.check import Raw
from provision.checks.host import host_health
from provision.checks.judge import ACTIONS, Finding
from provision.checks.judging.node_facts import NodeFacts
from provision.checks.judging.node_judge import judge_check
from provision.checks.judging.registry import CHECKS
from provision.checks.kernel import host_lines, kernel_log
from provision.checks.on_node import kernel_since
from provision.node.burnin.tool_output import message_of
from provision.shipped import load
from tests.support.checks import make_node, make_output

CRASHES: list[str] = json.loads(
    (Path(__file__).parents[1] / "fixtures/kernel_log/forged-names.json").read_text(encoding="utf-8")
)["lines"]
# Messages of the simulated kernel, which shares no text with the catalogue.
PRINTED = json.loads((SILICON / "host_lines.json").read_text(encoding="utf-8"))
TROUBLE: dict[str, list[str]] = PRINTED["trouble"]
HARMLESS: dict[str, list[str]] = PRINTED["harmless"]
LINES = [line for lines in TROUBLE.values() for line in lines]

# the simulator's kind -> (verdict, device, id of the line, action)
EXPECTED = {
    "hard_lockup": ("fail", "node", "hard_lockup", "reboot"),
    "soft_lockup": ("warn", "node", "soft_lockup", "investigate"),
    "rcu_stall": ("warn", "node", "rcu_stall", "investigate"),
    "hung_task": ("warn", "node", "hung_task", "investigate"),
    "oops": ("fail", "node", "oops", "reboot"),
    "machine_check": ("fail", "node", "mce_uncorrected", "investigate"),
    "edac_uncorrected": ("fail", "mc0", "edac_uncorrected", "replace part"),
    "firmware_fatal": ("fail", "node", "firmware_fatal", "investigate"),
    "cpu_heat": ("warn", "node", "cpu_heat", "watch"),
    "cpu_heat_old": ("warn", "node", "cpu_heat", "watch"),
    "nvme_down": ("warn", "nvme1", "nvme_down", "investigate"),
    "nvme_timeout": ("warn", "nvme1", "nvme_timeout", "watch"),
    "nvme_removed": ("fail", "nvme1", "nvme_removed", "replace part"),
    "io_error": ("warn", "sda", "io_error", "investigate"),
    "io_error_old": ("warn", "sda", "io_error", "investigate"),
    "medium_error": ("warn", "nvme0", "medium_error", "replace part"),
    "raid_member": ("warn", "nvme0", "raid_member_failed", "replace part"),
    "ext4_error": ("warn", "sda", "ext4_error", "investigate"),
    "xfs_corrupt": ("warn", "nvme0", "xfs_corrupt", "investigate"),
    "xfs_shutdown": ("fail", "nvme0", "xfs_shutdown", "investigate"),
    "pcie_contained": ("warn", "0000:00:1c.0", "pcie_contained", "reseat or check cable"),
    "card_health": ("warn", "0000:5e:00.0", "card_health", "investigate"),
    "card_unreachable": ("fail", "0000:5e:00.0", "card_unreachable", "power-cycle"),
    "card_heat": ("warn", "0000:5e:00.0", "card_heat", "investigate"),
    "cable_error": ("warn", "0000:5e:00.0", "cable_error", "reseat or check cable"),
    "peermem_symbols": ("warn", "node", "peermem_symbols", "fix configuration"),
}


def judged(
    texts: list[str], stamp: str = "[ 3277.517443] ", facts: Mapping[str, Any] | None = None
) -> list[Finding]:
    """Return the findings on a log with these messages, parsed as by the check."""
    node = replace(make_node(), facts=facts or {})
    log = "\n".join(stamp + text.replace("\\x0a", "\n" + " " * len(stamp)) for text in texts)
    outputs = {
        "journal": make_output("journal", "-- No entries --\n"),
        "dmesg": make_output("dmesg", log + "\n"),
    }
    return host_lines.judge("host_health", node, host_lines.remembered(host_lines.measured(outputs)))


def told(findings: list[Finding]) -> set[tuple[str, str, str, str]]:
    return {
        (one.verdict.value, one.device, one.metric.removeprefix(host_lines.METRIC), one.action)
        for one in findings
    }


def test_the_catalogue_is_whole() -> None:
    rows = load("host_lines")["lines"]
    assert len({row["id"] for row in rows}) == len(rows)
    for row in rows:
        assert row["level"] in ("fail", "warn", "info"), row["id"]
        assert row["action"] in ACTIONS
        assert (row["action"] == "none") == (row["level"] == "info"), row["id"]
        assert row["meaning"]
        assert row["source"]
    assert TROUBLE.keys() == EXPECTED.keys()
    assert not any("<" in row.line.pattern for row in host_lines.catalogue().values()), (
        "a word without a text"
    )
    for old in ("unable to handle kernel paging request at", "unable to handle page fault for address: 0"):
        assert host_lines.kind_of(f"BUG: {old}") == ("oops", "node")


@pytest.mark.parametrize("kind", sorted(EXPECTED))
def test_each_kind_of_trouble_is_told_once_with_its_action(kind: str) -> None:
    (finding,) = judged(["usb 1-1: new device", *TROUBLE[kind]])
    assert told([finding]) == {EXPECTED[kind]}
    assert finding.evidence
    assert any(message_of(line) for line in TROUBLE[kind]), "a burn-in keeps the line"


@pytest.mark.parametrize(
    "line",
    [
        "Internal error: Oops: 0000000096000004 [#1] SMP",
        "timeout error, dev nvme0n1, sector 5 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2",
        "protection error, dev nvme0n1, sector 5 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2",
    ],
)
def test_a_burn_in_keeps_also_the_rarer_forms_of_a_line(line: str) -> None:
    assert host_lines.kind_of(line)
    assert message_of(line)


@pytest.mark.parametrize("kind", sorted(HARMLESS))
def test_what_a_healthy_machine_logs_is_told_by_nobody(kind: str) -> None:
    assert judged(HARMLESS[kind] * 3) == []


def test_the_lines_of_one_drive_are_one_incident_by_its_cause() -> None:
    (finding,) = judged(TROUBLE["nvme_removed"][::-1])
    assert told([finding]) == {EXPECTED["nvme_removed"]}
    assert "read-only" in finding.message
    later = judged([*TROUBLE["nvme_down"], *TROUBLE["io_error"], *TROUBLE["medium_error"]])
    assert {one.device for one in later} == {"nvme0", "nvme1", "sda"}


def test_an_incident_has_the_worst_verdict_and_the_worst_action_of_its_lines() -> None:
    shut = "XFS (nvme1n1p1): Filesystem has been shut down due to log error (0x2)."
    (finding,) = judged([shut, *TROUBLE["nvme_down"]])
    assert told([finding]) == {("fail", "nvme1", "nvme_down", "investigate")}
    failed = "md/raid1:md0: Disk failure on nvme1n1, disabling device."
    (finding,) = judged([shut, failed])
    assert told([finding]) == {("fail", "nvme1", "raid_member_failed", "replace part")}


def test_symbols_of_a_module_that_is_loaded_by_now_are_of_the_past() -> None:
    lines = TROUBLE["peermem_symbols"]
    assert judged(lines, facts={"module.nvidia_peermem.loaded": True}) == []
    assert judged(lines, facts={"module.nvidia_peermem.loaded": False})


# Messages with a program name ({comm}: at most 15 characters) and with names of files and groups ({name}).
POSITIONS = [
    "{comm}[11176]: segfault at 0 ip 0000 sp 0000 error 6 in {name}[1132,55867fe64000+1000] likely on CPU 0",
    "{comm}[4711] general protection ip:400 sp:7ff error:0 in {name}[400000+1000]",
    "{comm}: page allocation failure: order:4, mode:0x0(GFP), nodemask=(null),cpuset={name},mems_allowed=0",
    "{comm} invoked oom-killer: gfp_mask=0x0(GFP), order=0, oom_score_adj=0",
    "{comm} (4711): drop_caches: 3",
    "{comm}: {name}",
    "process '{name}' started with executable stack",
    "oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/user.slice/{name},task={comm},pid=4711,uid=1000",
    "NVRM: Xid (PCI:0000:0a:00): 43, pid=4711, name={comm}",
    "overlayfs: failed to resolve '{name}': -2",
]


def forged(position: str, text: str) -> str:
    return position.format(comm=text[:15], name=text[:255])


@pytest.mark.parametrize("text", LINES)
def test_a_users_text_is_no_line_of_the_kernel(text: str) -> None:
    for position in POSITIONS:
        for prefix in ("", "a\\x0a", "a\\x0a[    1.000000] "):
            assert judged([forged(position, prefix + text)]) == [], position


@given(st.sampled_from(POSITIONS), st.text(max_size=40), st.sampled_from(LINES), st.integers(0, 15))
def test_no_name_is_a_line_of_the_kernel(position: str, name: str, line: str, cut: int) -> None:
    assert judged([forged(position, line[:cut] + name.replace("\n", "\\x0a"))]) == []


@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=15))
def test_the_name_in_a_real_line_changes_nothing(comm: str) -> None:
    line = f"INFO: task {comm}:4711 blocked for more than 122 seconds."
    assert told(judged([line])) == {EXPECTED["hung_task"]}


@pytest.mark.parametrize("name", ["\\x0aa" * 7, "\\xc3\\xa4" * 7, "\\x5cx0" + "\\x1b" * 12])
def test_no_name_hides_that_its_program_hangs(name: str) -> None:
    """15 unprintable bytes are written as 60 characters."""
    assert told(judged([f"INFO: task {name}:4711 blocked for more than 122 seconds."])) == {
        EXPECTED["hung_task"]
    }


def test_a_journal_in_json_is_read_as_any_other() -> None:
    rows = [
        {"MESSAGE": text.replace("\\x0a", "\n"), "__REALTIME_TIMESTAMP": "1763636400100100"} for text in LINES
    ]
    assert told(judged([json.dumps(row) for row in rows], stamp="")) == told(judged(LINES))


def test_crashes_of_a_real_kernel_are_no_lines_of_the_host() -> None:
    assert host_lines.events(kernel_log.texts(CRASHES)) == []
    assert host_lines.kept(CRASHES, []) == []


def test_a_log_that_nobody_can_read_is_told_and_a_run_without_one_is_not() -> None:
    refused = make_output("dmesg", rc=1, stderr="dmesg: read kernel buffer failed: Operation not permitted")
    (unread,) = host_lines.measured({"dmesg": refused})
    assert unread.metric == "unreadable_log"
    assert host_lines.measured({}) == []


def test_of_memory_the_counters_know_better() -> None:
    rows = [{"controller": "mc0", "module": "dimm0", "label": "A1", "corrected": 0, "uncorrected": 1}]
    counters = {"edac.controllers": [], "edac.modules": rows, "clock.uptime_s": 9, "nvme.drives": []}
    outputs = {"dmesg": make_output("dmesg", f"[    1.0] {TROUBLE['edac_uncorrected'][0]}\n")}
    node = replace(make_node(), facts=counters)
    measurements = host_lines.measured(outputs)
    findings = host_health.judge_by((), node, measurements, ())
    assert [one.metric for one in findings] == ["memory_uncorrected"]


def test_a_line_that_comes_during_a_test_is_told_by_that_test() -> None:
    fresh = make_output("kernel_log_delta", f"[    9.0] {TROUBLE['oops'][0]}\n")
    node = NodeFacts("gpu-01", {}, {"gpu": {"count": 8, "sku": None, "vendor": "nvidia"}}, {})
    result = judge_check(node, Raw("gpu-01", "disk_speed", (fresh,)), {})
    assert ("fail", "node", "oops", "reboot") in told(list(result.findings))


def test_a_node_remembers_each_kind_and_no_more_than_it_counts() -> None:
    log = "".join(f"[{n}.0] {TROUBLE['io_error'][0]}\n[{n}.5] usb\n" for n in range(3 * host_lines.MANY))
    log = f"[    0.1] Linux version 6.12\n{log}[ 9999.0] {TROUBLE['oops'][0]}\n"
    cursor = "-- cursor: s=2f5aab;i=4b1;b=4c9e;m=1;t=1;x=1\n"
    output, known = kernel_since.joined(make_output("journal", log + cursor), None, "boot")
    assert known is not None
    assert len(known.lines) == host_lines.MANY + 2
    output, known = kernel_since.joined(make_output("journal", log + cursor), known, "boot")
    assert known is not None
    assert len(known.lines) == host_lines.MANY + 2 + 1, "what is counted already is not kept again"
    (drive,) = [one for one in judged(output.stdout.split("\n"), "") if one.device == "sda"]
    assert f"{host_lines.MANY} times or more since boot" in drive.message


def test_a_node_sends_each_line_that_is_judged() -> None:
    """A node filters a long journal by these words, and all checks read the same lines."""
    (journal, _) = host_lines.commands()
    printed = [line for lines in (*TROUBLE.values(), *HARMLESS.values()) for line in lines]
    judged = [line for line in printed if host_lines.kind_of(line)]
    printed_kinds = {kind[0] for line in judged if (kind := host_lines.kind_of(line))}
    assert host_lines.catalogue().keys() - printed_kinds == {"firmware_recoverable"}, "of a form like fatal's"
    assert [line for line in judged if not any(word in line for word in journal.keep)] == []
    for check in ("gpu_inventory", "host_health"):
        assert journal in list(CHECKS[check].commands(make_node(), {}))
