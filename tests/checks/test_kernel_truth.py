"""Incidents: the worst level and action of their lines, and blame for the line that outranks the others."""

from __future__ import annotations

import re

import pytest

from provision.checks.judge import Finding
from provision.checks.kernel import kernel_incidents, kernel_log
from provision.checks.kernel.kernel_meaning import sheet_rows
from provision.checks.vendors import offered
from provision.node.burnin.tool_output import dmesg_records, message_of
from tests.support.checks import make_node

GPUS = {f"0000:{bus}:00": f"gpu{i}" for i, bus in enumerate(("1b", "43", "52", "61", "9d", "c3", "d1", "df"))}
BER = "NETIR_BER_EVENT Nonfatal XC0 i0 Link 00 (0x13 0x0)"
LINK = "NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x025001c6 0x0)"
DOWN = "NETIR_LINK_DOWN Fatal XC0 i0 Link 14 (0x02500011 0x0)"
ECHO = "RLW_SRC_TRACK Fatal XC0 i0 Link 03 (0x00000007 0x00000001)"
TIMEOUT = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 24007, Fatal, Link 28 sourcetrack timeout error (First)"
UVM = "uvm encountered global fatal error 0x60, requiring os reboot to recover."
INIT = "NVRM: GPU 0000:43:00.0: RmInitAdapter failed! "
PRIV = "RLW_RXPIPE interrupt hit on link 11 on GPU0: PRIV Error"


def xid(gpu: int, code: int, text: str, second: float = 100.0) -> str:
    return f"[{second:12.6f}] NVRM: Xid (PCI:{list(GPUS)[gpu]}): {code}, {text}"


def judged(*lines: str, own_test: bool = False, domain: bool = False) -> list[Finding]:
    events = kernel_incidents.named(kernel_log.events(lines), GPUS)
    return kernel_incidents.judge("gpu_inventory", events, own_test=own_test, domain=domain)


def told(*lines: str, domain: bool = False) -> list[tuple[str, str, str, str]]:
    return sorted((f.verdict.value, f.device, f.metric, f.action) for f in judged(*lines, domain=domain))


# --- the worst line counts, and the highest-ranking one is the cause


@pytest.mark.parametrize("reverse", [False, True])
def test_a_fatal_link_error_is_not_hidden_by_lesser_ones_of_its_peers(reverse: bool) -> None:
    lines = [*(xid(gpu, 149, BER) for gpu in range(3)), xid(3, 149, LINK, 110)]
    assert told(*lines[:: -1 if reverse else 1]) == [("fail", "gpu3", "xid.149", "reset GPU")]
    priv = [*(xid(gpu, 137, PRIV) for gpu in range(3)), xid(3, 74, "NVLink: fatal error detected on link 6")]
    assert told(*priv[:: -1 if reverse else 1]) == [("fail", "gpu3", "xid.74", "reset GPU")]


@pytest.mark.parametrize("at", [(100, 110), (110, 100)])
def test_a_fatal_switch_error_is_not_hidden_by_an_error_of_a_gpu(at: tuple[int, int]) -> None:
    (finding,) = judged(xid(0, 137, PRIV, at[0]), f"[{at[1]:12.6f}] {TIMEOUT}")
    assert (finding.verdict.value, finding.metric) == ("fail", "sxid.24007")
    assert "Xid 137 of gpu0" in finding.message


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0)])
def test_the_gpu_that_lost_its_link_is_blamed_for_the_echoes_of_its_peers(order: tuple[int, ...]) -> None:
    lines = [xid(0, 149, DOWN, 105), *(xid(gpu, 145, ECHO, 100 + gpu) for gpu in (1, 2, 3))]
    (finding,) = judged(*(lines[at] for at in order))
    assert (finding.verdict.value, finding.device, finding.metric) == ("fail", "gpu0", "xid.149")
    assert " of gpu0" in finding.message
    assert "Xid 145 of gpu1; Xid 145 of gpu2; Xid 145 of gpu3" in finding.message


@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_echoes_without_a_cause_on_a_tray_point_to_the_other_nodes(gpus: int) -> None:
    """In marin-community/marin issue 9086 one GPU had Xid 149, 63 had Xid 145, and one node was taken out."""
    found = judged(*(xid(gpu, 145, ECHO) for gpu in range(gpus)), domain=True)
    assert {(one.verdict.value, one.action) for one in found} == {("warn", "investigate")}
    assert all("look for Xid 149 on the other nodes" in one.message for one in found)
    assert [one.device for one in found] == (["node"] if gpus > 2 else ["gpu0", "gpu1"][:gpus])


def test_an_error_of_a_tray_itself_fails_beside_echoes() -> None:
    echoes = [xid(gpu, 145, ECHO) for gpu in range(4)]
    for line in (
        xid(2, 149, DOWN, 105),
        xid(2, 145, "RLW_REMAP Fatal XC0 i0 Link 03 (0x00000004 0x00000040)", 105),
        xid(2, 48, "pid=1, name=python, DBE (double bit error) ECC Error", 101),
        xid(2, 154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", 101),
    ):
        found = told(*echoes, line, domain=True)
        assert ("fail", "reset GPU") in {(verdict, action) for verdict, _, _, action in found}, line


def test_echoes_of_many_gpus_on_a_node_with_its_own_switches_are_of_that_node() -> None:
    (finding,) = judged(*(xid(gpu, 145, ECHO) for gpu in range(4)))
    assert (finding.verdict.value, finding.device, finding.action) == ("fail", "node", "reset GPU")
    assert "other nodes" not in finding.message
    assert "NVSwitch" in finding.message
    assert " of gpu0" in finding.message


@pytest.mark.parametrize(("fabric", "stops"), [("nvlink5", True), ("imex", False)])
def test_an_echo_ends_no_burn_in_of_a_tray(fabric: str, stops: bool) -> None:
    domain = kernel_incidents.spans_nodes(make_node(fabric=fabric))
    patterns = offered("nvidia").fatal_lines(domain)
    for code, text, expected in ((145, ECHO, stops), (149, DOWN, True)):
        line = xid(0, code, text).partition("] ")[2]
        assert any(re.match(pattern, line) for pattern in patterns) is expected


def test_links_that_many_gpus_lost_are_no_echoes() -> None:
    (joint,) = judged(*(xid(gpu, 149, DOWN) for gpu in range(4)))
    assert "an echo" not in joint.message
    assert " of gpu0" in joint.message


def test_the_worst_action_of_an_incident_counts() -> None:
    assert told(xid(0, 79, "fallen"), xid(0, 154, "changed from 0x0 (None) to 0x1 (PF FLR)", 101)) == [
        ("fail", "gpu0", "xid.79", "power-cycle")
    ]


# --- driver requests by number


@pytest.mark.parametrize(
    ("requested", "verdict", "action"),
    [
        ("0x1 (GPU Reset Required)", "fail", "reset GPU"),
        ("0x1 (PF FLR)", "fail", "reset GPU"),
        ("0x2 (Node Reboot Required)", "fail", "reboot"),
        ("0x2 (OS Reboot)", "fail", "reboot"),
        ("0x2 (words of a driver to come)", "fail", "reboot"),
        ("0x3 (Drain P2P)", "fail", "restart job"),
        ("0x4 (Drain and Reset)", "fail", "reset GPU"),
        ("0x6 (Bus Reset)", "fail", "reset GPU"),
        ("0x7 (System Reboot)", "fail", "reboot"),
        ("0x9f (Node Reboot Required)", "fail", "reboot"),
        ("0x9f (something new)", "fail", "investigate"),
    ],
)
def test_the_number_of_a_requested_action_decides(requested: str, verdict: str, action: str) -> None:
    line = xid(1, 154, f"GPU recovery action changed from 0x0 (None) to {requested}")
    assert told(line) == [(verdict, "gpu1", "xid.154", action)]


def test_a_domain_that_has_to_be_recovered_breaks_no_gpu() -> None:
    text = "GPU recovery action changed from 0x0 (None) to 0x5 (Recover IMEX Domain)"
    (finding,) = judged(*(xid(gpu, 154, text) for gpu in range(4)))
    assert (finding.verdict.value, finding.device, finding.action) == ("warn", "node", "investigate")
    assert "nvidia-imex" in finding.message


def test_the_worst_request_since_the_last_one_taken_back_counts() -> None:
    changed = "GPU recovery action changed from 0x0 (None) to "
    reboot, reset, none = (
        xid(0, 154, f"{changed}{to}", at)
        for at, to in enumerate(("0x2 (OS Reboot)", "0x1 (PF FLR)", "0x0 (None)"))
    )
    assert told(reboot, reset) == [("fail", "gpu0", "xid.154", "reboot")]
    assert told(reboot, none) == []
    assert told(reboot, none, xid(0, 154, changed + "0x1 (PF FLR)", 4)) == [
        ("fail", "gpu0", "xid.154", "reset GPU")
    ]


# --- Xid 45 lines that name a cause


def test_a_cleanup_that_names_a_hardware_cause_counts_where_the_cause_is_gone() -> None:
    cleanup = "pid=4711, name=python, Ch 00000008 caused by previous Xid 149"
    (finding,) = judged(xid(2, 45, cleanup))
    assert (finding.verdict.value, finding.device, finding.action) == ("warn", "gpu2", "investigate")
    assert "Xid 149" in finding.message
    assert told(xid(2, 45, cleanup, 9000), xid(2, 149, DOWN)) == [("fail", "gpu2", "xid.149", "reset GPU")]
    assert told(xid(2, 45, "pid=4711, name=python, Ch 00000008 caused by previous Xid 13")) == []


def test_a_user_cannot_name_a_cause() -> None:
    assert told(xid(2, 45, "pid=4711, name=evious Xid 149")) == []


# --- PCIe errors in all their forms


@pytest.mark.parametrize(
    "line",
    [
        "nvidia 0000:52:00.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
        "nvidia 0000:52:00.0: AER: can't recover (no error_detected callback)",
    ],
)
def test_each_form_of_an_uncorrected_pcie_error_counts(line: str) -> None:
    assert told(f"[ 5.0] {line}") == [("fail", "gpu2", "aer.1", "reseat or check cable")]
    assert kernel_log.concerns_gpus(f"[ 5.0] {line}")


def test_registers_without_their_record_keep_the_line_of_their_severity() -> None:
    """The kernel rate-limits firmware records, but not the registers that belong to them."""
    lines = [
        "[ 100.1] nvidia 0000:52:00.0: AER: aer_status: 0x00100000, aer_mask: 0x00000000",
        "[ 100.1] nvidia 0000:52:00.0: AER: aer_uncor_severity: 0x00062030",
    ]
    sent = [line for line in lines if any(word in line for word in kernel_log.KEPT)]
    remembered = [line for line in lines if kernel_log.concerns_gpus(line)]
    for kept in (lines, sent, remembered):
        assert ("fail", "gpu2", "aer.1", "reseat or check cable") in told(*kept)


def firmware(kind: str, device: str = "0000:52:00.0", section: str = "PCIe error") -> list[str]:
    record = [
        "Hardware error from APEI Generic Hardware Error Source: 4",
        f"event severity: {kind}",
        f" Error 0, type: {kind}",
        f"  section_type: {section}",
        "  port_type: 0, PCIe end point",
        f"  device_id: {device}",
    ]
    return [
        *(f"[ 100.0] {{3}}[Hardware Error]: {line}" for line in record),
        f"[ 100.1] nvidia {device}: AER: aer_status: 0x00100000, aer_mask: 0x00000000",
        f"[ 100.1] nvidia {device}: AER:    [20] UnsupReq               (First)",
    ]


def test_pcie_errors_that_the_firmware_handles_first_count_once() -> None:
    for kind in ("recoverable", "fatal"):
        (finding,) = judged(*firmware(kind))
        assert (finding.verdict.value, finding.device, finding.metric) == ("fail", "gpu2", "aer.1")
        assert finding.value == 1
    assert told(*firmware("corrected")) == []
    assert told(*firmware("corrected") * 9) == [("warn", "gpu2", "aer.0", "reseat or check cable")]
    assert told(*firmware("fatal", section="memory error")[:-2]) == []


# --- smaller cases


def test_a_gpu_that_fell_off_the_bus_once_counts_once() -> None:
    lost = "[ 100.1] NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus."
    (finding,) = judged(xid(0, 79, "GPU has fallen off the bus."), lost)
    assert "1 time " in finding.message
    assert told(lost) == [("fail", "gpu0", "xid.79", "power-cycle")]


def test_the_callers_stamp_of_the_kernel_is_read() -> None:
    line = "[ 100.0][ T1234] NVRM: Xid (PCI:0000:1b:00): 79, pid=1, name=x, GPU has fallen off the bus."
    assert told(line) == [("fail", "gpu0", "xid.79", "power-cycle")]
    ((moment, text),) = dmesg_records(line)
    assert moment == 100.0
    assert message_of(text)["xid"]["code"] == 79


# --- registers take precedence over text


@pytest.mark.parametrize(
    ("code", "text", "verdict", "action"),
    [
        (149, BER, "warn", "investigate"),
        (149, LINK, "fail", "reset GPU"),
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x0)", "warn", "investigate"),
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x028001c6 0x0)", "warn", "investigate"),
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 00", "fail", "reset GPU"),
        (145, "RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004 0x00000040 0x0 0x0)", "fail", "reset GPU"),
        (145, "RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004 0x00000001 0x0 0x0)", "warn", "investigate"),
        (145, "RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004 0x00000100 0x0 0x0)", "warn", "none"),
        (145, "RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004 0x00000140 0x0 0x0)", "fail", "reset GPU"),
        (145, "RLW_RXPIPE Fatal XC0 i0 Link 00 (0x00000006 0x00000001 0x0 0x0)", "fail", "reset GPU"),
        (145, "RLW_RXPIPE Nonfatal XC0 i0 Link 00 (0x00000006 0x00000001 0x0 0x0)", "warn", "investigate"),
        (74, "NVLink: fatal error detected on link 6", "fail", "reset GPU"),
        (74, "NVLink: fatal error on link 6(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)", "fail",
         "reseat or check cable"),
        (74, "NVLink: fatal error on link 6(0x10, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)", "fail", "reset GPU"),
        (74, "NVLink: fatal error on link 6(0x4, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)", "fail", "reset GPU"),
        (74, "NVLink: fatal error on link 6(0x0, 0x0, 0x0, 0x0, 0x100000, 0x0, 0x0)", "warn", "watch"),
    ],
)  # fmt: skip
def test_an_nvlink_error_is_read_by_its_registers(code: int, text: str, verdict: str, action: str) -> None:
    assert told(xid(1, code, text)) == [(verdict, "gpu1", f"xid.{code}", action)]


def test_nvlink_bits_that_nvidia_ignores_are_no_fault() -> None:
    assert told(xid(1, 74, "NVLink: fatal error on link 6(0x1, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)")) == []


def test_both_encodings_of_the_unit_are_read() -> None:
    for first in (0x025001C6, 0x02500011):
        (row,) = sheet_rows(149, [first, 0])
        assert row["unit"] == ["NETIR_LINK_EVT", "NETIR_LINK_DOWN"]
        assert row["nvidia"] == ["RESET_GPU", "INVESTIGATE_PEER_DEVICE"]


# --- codes of the catalogue


@pytest.mark.parametrize("code", [8, 14, 32, 39, 70, 104, 135, 141, 153])
def test_what_nvidia_ignores_or_leaves_to_the_program_marks_no_node(code: int) -> None:
    assert told(xid(0, code, "pid=2280636, name=train.3, Channel ID 0000000d intr0 00040000")) == []


def test_a_switch_error_is_read_by_nvidias_guide() -> None:
    head = "[  12.0] nvidia-nvswitch3: SXid (PCI:0000:04:00.0): "
    assert told(f"{head}22013, Non-fatal, Link 44 Minion Link DLREQ interrupt") == []
    assert told(f"{head}22003, Fatal, Link 44 Minion Halt") == [("fail", "node", "sxid.22003", "reboot")]
    assert told(f"{head}11012, Non-fatal, Link 44 ingress header ECC") == [
        ("warn", "node", "sxid.11012", "watch")
    ]
    assert told(f"{head}99999, Non-fatal, Link 44 new") == [("warn", "node", "sxid.99999", "investigate")]


# --- lines without a number


@pytest.mark.parametrize(
    ("lines", "device", "metric", "action"),
    [
        ([f"{INIT}(0x24:0x1c:1447)"], "gpu1", "nvrm.init_failed", "reset GPU"),
        (["NVRM: _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting gsp",
          f"{INIT}(0x62:0x40:1784)"], "gpu1", "nvrm.wpr2", "reset GPU"),
        (["NVRM: GPU0 _kgspIsHeartbeatTimedOut: Heartbeat timed out, diff 5201 timeout 5200"], "node",
         "nvrm.heartbeat", "reset GPU"),
        ([f"NVRM: nvGpuOpsReportFatalError: {UVM}"], "node", "nvrm.uvm_fatal", "reboot"),
        (["NVRM: BAR1 is 0M @ 0x0 (PCI:0000:43:00.0)",
          f"{INIT}(0x22:0x56:742)"], "gpu1", "nvrm.no_bar", "fix configuration"),
    ],
)  # fmt: skip
def test_a_line_of_the_driver_without_a_number_is_a_finding(
    lines: list[str], device: str, metric: str, action: str
) -> None:
    stamped = [f"[ {at}.0] {line}" for at, line in enumerate(lines)]
    assert told(*stamped) == [("fail", device, metric, action)]
    assert all(kernel_log.concerns_gpus(line) for line in stamped)


def test_a_driver_that_took_its_demand_back_has_started_the_gpu() -> None:
    """AMD's kind of the same name persists across a reset, unlike this one."""
    back = xid(1, 154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", 200.0)
    assert told(f"[ 100.0] {INIT}") == [("fail", "gpu1", "nvrm.init_failed", "reset GPU")]
    assert told(f"[ 100.0] {INIT}", back) == [("warn", "gpu1", "nvrm.init_failed", "watch")]
    firmware = "[ 99.9] NVRM: _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP"
    assert told(firmware, f"[ 100.0] {INIT}") == [("fail", "gpu1", "nvrm.wpr2", "reset GPU")]
    assert told(firmware, f"[ 100.0] {INIT}", back) == [("warn", "gpu1", "nvrm.wpr2", "watch")]


def test_an_access_that_the_iommu_refused_is_a_setting() -> None:
    line = "nvidia 0000:43:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0013 address=0xf flags=0x0020]"
    assert told(f"[ 1.0] {line}") == [("warn", "gpu1", "nvrm.iommu_fault", "fix configuration")]
