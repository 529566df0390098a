"""Related errors in the kernel log: one finding, on the part that failed first."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from provision.checks import check
from provision.checks.check import KERNEL_LOG_DELTA, Output
from provision.checks.judge import Finding, Verdict
from provision.checks.judging import node_judge
from provision.checks.judging.node_facts import NodeFacts
from provision.checks.kernel import kernel_incidents, kernel_log
from provision.paths import DATA
from tests.support.checks import make_node, make_output

GPUS = {f"0000:{0x10 + i:02x}:00": f"gpu{i}" for i in range(8)}


def xid(second: float, gpu: int, code: int, text: str = "pid=1, name=python") -> str:
    return f"[{second:12.6f}] NVRM: Xid (PCI:0000:{0x10 + gpu:02x}:00): {code}, {text}"


def verdict(second: float, gpu: int, before: str, after: str) -> str:
    return xid(second, gpu, 154, f"GPU recovery action changed from {before} to {after}")


NONE, RESET, REBOOT = "0x0 (None)", "0x1 (GPU Reset Required)", "0x2 (Node Reboot Required)"


def judged(*lines: str, own_test: bool = False, settled: tuple[str, ...] = ()) -> list[Finding]:
    events = kernel_incidents.named(kernel_log.events(lines), GPUS)
    through: dict[str, dict[str, Any]] = {}
    for measurement in kernel_incidents.measured(events):
        through.setdefault(measurement.metric, {})[measurement.device] = measurement.value
    again = kernel_incidents.remembered(through)
    assert sorted(again, key=repr) == sorted(events, key=repr), "measurements lose nothing"
    return kernel_incidents.judge("gpu_inventory", again, own_test=own_test, settled=settled)


def told(findings: list[Finding]) -> set[tuple[str, str, str, str]]:
    return {(f.verdict.value, f.device, f.metric, f.action) for f in findings}


@pytest.mark.parametrize("root", [48, 79, 95, 119, 109])
def test_what_an_xid_brings_along_is_told_with_it(root: int) -> None:
    findings = judged(xid(100, 3, root), xid(101, 3, 13), xid(101, 3, 43), xid(102, 3, 45))
    assert [(f.device, f.metric) for f in findings] == [("gpu3", f"xid.{root}")]
    assert "Xid 45" in findings[0].message
    assert len(findings[0].evidence) == 4


def test_a_memory_error_with_all_its_lines_is_one() -> None:
    findings = judged(
        xid(99.5, 2, 63), xid(100, 2, 48), xid(100.1, 2, 94), xid(101, 2, 45), verdict(101, 2, NONE, REBOOT)
    )
    assert told(findings) == {("fail", "gpu2", "xid.48", "reboot")}
    assert "Node Reboot Required" in findings[0].message


def test_the_drivers_own_verdict_comes_first() -> None:
    """The catalogue only warns about a contained error and proposes a reset; the driver knows better."""
    assert told(judged(xid(10, 0, 94))) == {("warn", "gpu0", "xid.94", "reset GPU")}
    assert told(judged(xid(10, 0, 94), verdict(11, 0, NONE, REBOOT))) == {
        ("fail", "gpu0", "xid.94", "reboot")
    }
    assert told(judged(xid(10, 0, 31), verdict(11, 0, NONE, RESET))) == {
        ("fail", "gpu0", "xid.31", "reset GPU")
    }
    for demand in (RESET, "0x4 (Drain and Reset)"):
        assert told(judged(verdict(11, 0, NONE, demand))) == {("fail", "gpu0", "xid.154", "reset GPU")}
    assert judged(verdict(11, 0, RESET, NONE)) == []
    assert {one.verdict for one in judged(xid(10, 0, 999))} == {Verdict.WARN}, "one that nobody knows"


def test_a_demand_taken_back_after_a_reset_is_watched() -> None:
    findings = judged(xid(10, 0, 48), verdict(11, 0, NONE, RESET), verdict(500, 0, RESET, NONE))
    assert told(findings) == {("warn", "gpu0", "xid.48", "watch")}
    later = judged(xid(10, 0, 48), verdict(500, 0, RESET, NONE), xid(900, 0, 48))
    assert told(later) == {("fail", "gpu0", "xid.48", "reset GPU")}, "it came again"


def test_a_lost_gpu_takes_its_peers_links_with_it() -> None:
    findings = judged(xid(100, 5, 79), *(xid(100.5, gpu, 74) for gpu in (0, 1, 2, 3)), xid(101, 5, 119))
    assert told(findings) == {("fail", "gpu5", "xid.79", "power-cycle")}
    assert "gpu0" in findings[0].message


@pytest.mark.parametrize("code", [74, 145, 149])
def test_links_of_many_gpus_at_once_are_the_nodes(code: int) -> None:
    fatal = "RLW_SRC_TRACK  Fatal  XC0 i0 Link 03"
    findings = judged(*(xid(100 + gpu / 10, gpu, code, fatal) for gpu in range(8)))
    assert [(f.device, f.metric, f.verdict) for f in findings] == [("node", f"xid.{code}", Verdict.FAIL)]
    apart = judged(xid(100, 0, code, fatal), xid(5000, 1, code, fatal))
    assert {f.device for f in apart} == {"gpu0", "gpu1"}
    two = judged(xid(100, 0, code, fatal), xid(100, 1, code, fatal))
    assert {f.device for f in two} == {"gpu0", "gpu1"}, "the two ends of one link"


def test_a_switchs_own_line_goes_with_the_gpus() -> None:
    switch = "[  100.200000] nvidia-nvswitch0: SXid (PCI:0000:e8:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
    findings = judged(xid(100, 1, 74), switch)
    assert told(findings) == {("fail", "gpu1", "xid.74", "reset GPU")}
    assert "SXid 20034" in findings[0].message
    assert told(judged(switch)) == {("fail", "node", "sxid.20034", "investigate")}


def test_hours_apart_is_not_together() -> None:
    findings = judged(xid(100, 3, 48), xid(9000, 3, 94))
    assert told(findings) == {
        ("fail", "gpu3", "xid.48", "reset GPU"),
        ("warn", "gpu3", "xid.94", "reset GPU"),
    }


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_what_users_programs_do_is_no_fault_of_the_node(code: int) -> None:
    assert judged(xid(100, 3, code)) == []


@pytest.mark.parametrize("code", [13, 31, 43])
def test_but_our_own_tests_do_not_do_such_things(code: int) -> None:
    assert told(judged(xid(100, 3, code), own_test=True)) == {("warn", "gpu3", f"xid.{code}", "investigate")}


def test_a_remap_in_effect_is_settled() -> None:
    assert told(judged(xid(100, 3, 63))) == {("warn", "gpu3", "xid.63", "reset GPU")}
    assert judged(xid(100, 3, 63), settled=("gpu3",)) == []


@pytest.mark.parametrize(
    "between",
    ["-- Boot 0123456789abcdef0123456789abcdef --", "-- Reboot --", "[    0.000000] Linux version 6.1"],
)
def test_errors_before_the_last_boot_are_over(between: str) -> None:
    assert judged(xid(100, 3, 79), between) == []
    assert told(judged(between, xid(100, 3, 79))) == {("fail", "gpu3", "xid.79", "power-cycle")}


def aer(second: float, severity: str = "Corrected", device: str = "0000:13:00.0") -> str:
    return f"[{second:12.6f}] nvidia {device}: PCIe Bus Error: severity={severity}, type=Data Link Layer"


def test_corrected_pcie_errors_count_by_the_minute() -> None:
    assert judged(*(aer(100 * second) for second in range(40))) == [], "forty over an hour"
    assert told(judged(*(aer(100 + second) for second in range(9)))) == {
        ("warn", "gpu3", "aer.0", "reseat or check cable")
    }
    assert told(judged(aer(5, "Uncorrected (Fatal)"))) == {("fail", "gpu3", "aer.1", "reseat or check cable")}
    assert judged(*(aer(100 + i, device="0000:99:00.0") for i in range(99))) == [], "no GPU of ours"


def test_the_catalogue_leads_nowhere_in_a_circle() -> None:
    codes = list(yaml.safe_load((DATA / "xid.yml").read_text()))
    for start in codes:
        reached, edge = set[int](), {start}
        while edge:
            edge = {root for code in edge for root in codes if root != code and kernel_log.brings(root, code)}
            assert start not in edge, start
            edge -= reached
            reached |= edge


# --- in a campaign ---


def measured_node() -> NodeFacts:
    node = make_node(gpuprov_pci_addresses=[f"{address}.0" for address in GPUS])
    return NodeFacts("gpu-01", {}, node.gpuprov_node, node.variables)


def raw(*outputs: Output, **delta: Any) -> check.Raw:
    log = make_output(KERNEL_LOG_DELTA, **delta)
    return check.Raw("gpu-01", "p2p_bandwidth", (*outputs, log))


def test_an_xid_during_a_test_is_a_finding_of_that_test() -> None:
    node = measured_node()
    result = node_judge.judge_check(node, raw(stdout=xid(9, 6, 119)), {})
    (finding,) = [f for f in result.findings if f.metric == "xid.119"]
    assert (finding.check, finding.device, finding.action) == ("p2p_bandwidth", "gpu6", "reset GPU")
    assert "during this test" in finding.message
    assert result.verdict is Verdict.FAIL


def test_a_quiet_kernel_changes_nothing() -> None:
    node = measured_node()
    without = node_judge.judge_check(node, check.Raw("gpu-01", "p2p_bandwidth", ()), {})
    assert node_judge.judge_check(node, raw(), {}).findings == without.findings


def test_a_kernel_log_that_cannot_be_read_is_an_error() -> None:
    node = measured_node()
    refused = raw(not_started="the kernel log could not be read: not permitted", rc=None)
    findings = node_judge.judge_check(node, refused, {}).findings
    assert [f.verdict for f in findings if "kernel log" in f.message] == [Verdict.ERROR]
    flooded = raw(stdout="[ 1.0] noise", truncated=True)
    findings = node_judge.judge_check(node, flooded, {}).findings
    assert [f.verdict for f in findings if "buffer" in f.message] == [Verdict.ERROR]


# --- forms printed by drivers and quoted in public reports


@pytest.mark.parametrize("instance", ["GPU-I:05", "GPU-I:01 GPU-CI:02"])
def test_an_xid_of_a_mig_instance_counts_as_the_gpus_and_names_the_instance(instance: str) -> None:
    (finding,) = judged(
        f"[  1.0] NVRM: Xid (PCI:0000:11:00 {instance}): 95, pid=4711, name=python, Uncontained"
    )
    assert (finding.verdict, finding.device, finding.metric) == (Verdict.FAIL, "gpu1", "xid.95")
    assert f"MIG instance {instance}" in finding.message


def test_the_xid_that_a_cleanup_names_as_its_cause_is_no_second_one() -> None:
    """Format as in NVIDIA/open-gpu-kernel-modules df1c9a3, kernel_rc.c 376 to 393, which only Xid 45 has."""
    cleanup = "pid=4711, name=python, Ch 00000008 caused by previous Xid 94"
    assert not judged(xid(1, 3, 45, cleanup))
    (finding,) = judged(xid(1, 3, 94, "pid=4711, name=python, Contained"), xid(1.1, 3, 45, cleanup))
    assert (finding.device, finding.metric) == ("gpu3", "xid.94")
    (once, cleaned) = kernel_log.events([xid(1, 3, 94), xid(1.1, 3, 45, cleanup)])
    assert {(event.code, event.count) for event in (once, cleaned)} == {(94, 1), (45, 1)}


@pytest.mark.parametrize("code", range(144, 151))
def test_the_fatal_line_of_an_nvlink_5_error_counts_wherever_it_stands(code: int) -> None:
    lines = [
        xid(1, 3, code, "NETIR_BER_EVENT Nonfatal XC0 i0 Link 01 (0x0)"),
        xid(2, 3, code, "NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x0)"),
        xid(3, 3, code, "NETIR_BER_EVENT Nonfatal XC0 i0 Link 01 (0x0)"),
    ]
    (finding,) = judged(*lines)
    assert (finding.verdict, finding.device) == (Verdict.FAIL, "gpu3")
    assert "Fatal" in finding.evidence[0]
    (milder,) = judged(lines[0], lines[2])
    assert milder.verdict is Verdict.WARN


def test_the_three_lines_of_one_sxid_are_one_event() -> None:
    head = "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, "
    (event,) = kernel_log.events(
        [
            f"{head}Non-fatal, Link 32 egress non-posted PRIV error (First)",
            f"{head}Severity 0 Engine instance 32 Sub-engine instance 00",
            f"{head}Data {{0x00000000, 0x00000000, 0x00000000, 0x00000000}}",
        ]
    )
    assert (event.kind, event.code, event.count) == ("sxid", 12028, 1)
    assert "Non-fatal" in event.line


def test_a_gpu_that_fell_off_the_bus_before_the_driver_was_loaded() -> None:
    """NVSentinel #155 shows three lines and no Xid."""
    (finding,) = judged(
        "[  9.1] NVRM: The NVIDIA GPU 0000:15:00.0",
        "[  9.1] NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "[  9.1] NVRM: fallen off the bus and is not responding to commands.",
    )
    assert told([finding]) == {("fail", "gpu5", "xid.79", "power-cycle")}


def test_the_lines_of_a_lost_gpu_with_others_between_them() -> None:
    (finding,) = judged(
        "[  9.1] NVRM: The NVIDIA GPU 0000:15:00.0",
        "[  9.1] mlx5_core 0000:18:00.0: Port module event: module 0, Cable plugged",
        "[  9.1] NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "[  9.2] systemd[1]: Started nvidia-persistenced.service",
        "[  9.2] NVRM: fallen off the bus and is not responding to commands.",
    )
    assert told([finding]) == {("fail", "gpu5", "xid.79", "power-cycle")}


def port_error(address: str, second: int, severity: str = "Corrected") -> str:
    return f"[{second:5}.0] pcieport {address}: PCIe Bus Error: severity={severity}, type=Data Link Layer"


BRIDGES = (
    "[    0.1] pci 0000:00:02.0: PCI bridge to [bus 10]",
    "[    0.1] pci 0000:00:03.0: PCI bridge to [bus 11-13]",
    "[    0.1] pci 0000:00:09.0: PCI bridge to [bus 60]",
)


def test_errors_that_the_port_above_a_gpu_reports_are_the_gpus() -> None:
    storm = [port_error("0000:00:02.0", second) for second in range(50)]
    assert {(f.device, f.metric) for f in judged(*BRIDGES, *storm)} == {("gpu0", "aer.0")}
    assert judged(*BRIDGES, *storm[:2]) == [], "a few corrected errors are normal"


# One device with two root ports, each above a GPU, which only the function number tells apart.
TWO_PORTS = (
    "[    0.1] pci 0000:00:01.0: PCI bridge to [bus 10]",
    "[    0.1] pci 0000:00:01.1: PCI bridge to [bus 11]",
)


@pytest.mark.parametrize(("function", "gpu"), [(0, "gpu0"), (1, "gpu1")])
def test_errors_of_one_of_two_root_ports_of_a_device_are_those_of_its_own_gpu(
    function: int, gpu: str
) -> None:
    for ports in (TWO_PORTS, TWO_PORTS[::-1]):
        fatal = port_error(f"0000:00:01.{function}", 5, "Uncorrectable (Fatal)")
        assert [(f.device, f.metric) for f in judged(*ports, fatal)] == [(gpu, "aer.1")]
        firmware = (
            "[    5.0] {1}[Hardware Error]:  Error 0, type: recoverable",
            "[    5.0] {1}[Hardware Error]:   section_type: PCIe error",
            f"[    5.0] {{1}}[Hardware Error]:   device_id: 0000:00:01.{function}",
        )
        assert [(f.device, f.metric) for f in judged(*ports, *firmware)] == [(gpu, "aer.1")]


def test_errors_of_a_gpus_other_functions_are_the_gpus() -> None:
    line = port_error("0000:10:00.1", 5, "Uncorrectable (Fatal)").replace("pcieport", "snd_hda_intel")
    assert [(f.device, f.metric) for f in judged(line)] == [("gpu0", "aer.1")]


def test_errors_of_a_port_above_several_gpus_are_the_nodes() -> None:
    assert [f.device for f in judged(*BRIDGES, port_error("0000:00:03.0", 5, "Uncorrectable (Fatal)"))] == [
        "node"
    ]


def test_errors_of_a_port_without_gpus_are_left_to_others() -> None:
    assert judged(*BRIDGES, port_error("0000:00:09.0", 5, "Uncorrectable (Fatal)")) == []
    assert judged(port_error("0000:00:02.0", 5, "Uncorrectable (Fatal)")) == [], (
        "nothing says what is below it"
    )


def test_a_fatal_line_that_one_of_the_logs_lacks_counts() -> None:
    """The journal drops lines in a burst, while dmesg keeps them."""
    mild, fatal = (
        xid(10, 3, 149, "NETIR_BER_EVENT  Nonfatal XC0"),
        xid(20, 3, 149, "NETIR_LINK_EVT  Fatal   XC0"),
    )
    events, _ = kernel_log.read(make_output("journal", mild), make_output("dmesg", f"{mild}\n{fatal}\n"))
    (finding,) = kernel_incidents.judge("gpu_inventory", kernel_incidents.named(events, GPUS))
    assert (finding.verdict, finding.device) == (Verdict.FAIL, "gpu3")


def test_a_fatal_error_of_one_nvswitch_is_not_hidden_by_those_of_another() -> None:
    line = "[{0}] nvidia-nvswitch{1}: SXid (PCI:0000:0{1}:00.0): 20034, {2}, Link 30 LTSSM Fault Up"
    lines = [line.format(f"    {second}.000000", 1, "Non-fatal") for second in range(5)]
    (finding,) = judged(*lines, line.format("    6.000000", 2, "Fatal"))
    assert finding.verdict is Verdict.FAIL
