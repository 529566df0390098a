"""Tests of gpu_inventory: nvidia-smi XML of three driver generations, NVLinks, and the kernel log."""

from __future__ import annotations

from typing import Any

import pytest

from provision.checks.check import Output
from provision.checks.gpu import gpu_inventory, nvidia_smi
from provision.checks.judge import Verdict
from provision.checks.kernel import kernel_log
from provision.errors import ParseError
from tests.support.checks import flagged, inventory, make_node, make_output, sample

H100 = sample("gpu_inventory/h100-v13.xml")
LINKS = sample("gpu_inventory/nvlink-h100.txt")
COUNTERS = sample("gpu_inventory/nvlink-errors-h100.txt")
MIG_LINKS = "".join(
    f"GPU {gpu}: NVIDIA A100-SXM4-80GB (UUID: GPU-{gpu})\n"
    + "".join(f"\t Link {link}: 25 GB/s\n" for link in range(12))
    for gpu in range(4)
)
ADDRESSES = [f"0000:{0x1A + i:02x}:00.0" for i in range(8)]


@pytest.mark.parametrize(
    ("old", "new", "metric"),
    [
        ("<pending_ecc>Enabled<", "<pending_ecc>Disabled<", "ecc_pending"),
        # NVML_ERROR_CORRUPTED_INFOROM as nvidia-smi 470.256 to 555.58 print it; the exit status is 0.
        (
            "\t\t<uuid>",
            "\t\t<inforom_version>\n\t\t\t<img_version>Corrupted infoROM</img_version>\n"
            "\t\t</inforom_version>\n\t\t<uuid>",
            "inforom",
        ),
    ],
)
def test_what_the_driver_has_in_store_for_one_gpu(old: str, new: str, metric: str) -> None:
    assert old in H100
    found = inventory(nvidia_smi=make_output("nvidia_smi", H100.replace(old, new, 1)))
    assert flagged(found, "verdict", "device", "metric") == [(Verdict.WARN, "gpu0", metric)]


def test_the_name_of_a_program_is_no_reading() -> None:
    """Any user can name a program like an error."""
    row = "<process_info><pid>7</pid><process_name>Corrupted infoROM</process_name></process_info>"
    xml = H100.replace("</gpu>", f"<processes>{row}</processes></gpu>", 1)
    assert "inforom" not in [f.metric for f in inventory(nvidia_smi=make_output("nvidia_smi", xml))]


def named(model: str, count: int = -1) -> Output:
    return make_output("nvidia_smi", H100.replace("NVIDIA H100 80GB HBM3", model, count))


@pytest.mark.parametrize("xml", ["h100-v13.xml", "h100-v12.xml"])
def test_a_healthy_node_passes_in_both_generations(xml: str) -> None:
    findings = inventory(nvidia_smi=xml)
    assert flagged(findings) == []
    assert {f.metric for f in findings} >= {
        "driver_gpus", "name", "memory_total", "ecc_uncorrectable",
        "pcie_width", "nvlink_links", "fabric_state", "xid",
    }  # fmt: skip
    assert "<current_link_gen>1</current_link_gen>" in H100, "the generation of an idle slot is no fault"


def test_both_generations_measure_the_same() -> None:
    new, old = (
        nvidia_smi.parse_xml(make_output("nvidia_smi", sample(f"gpu_inventory/h100-v{v}.xml")))
        for v in (13, 12)
    )
    assert [m for m in new if m.metric != "driver_version"] == [
        m for m in old if m.metric != "driver_version"
    ]


# An eighth GPU has NVLinks, but nvidia-smi -q -x does not list it.
UNLISTED = ("error", "node", "", "investigate")
MISSING = ("fail", "node", "driver_gpus", "reseat or check cable")
SEVEN = {"nvidia_smi": "h100-seven-v13.xml"}
UNREADABLE = {
    "journal": make_output("journal", not_started="journalctl is not installed", rc=None),
    "dmesg": make_output("dmesg", rc=1, stderr="dmesg: read kernel buffer failed: Operation not permitted"),
}
MIG = {"nvidia_smi": "a100-mig-v12.xml", "nvlink": make_output("nvlink", MIG_LINKS)}
T4 = {"nvidia_smi": "t4-v11.xml", "nvlink": make_output("nvlink")}
FAULTS: dict[str, tuple[dict[str, Any], set[tuple[str, ...]], str]] = {
    "every sickness with its GPU": (
        {"nvidia_smi": "h100-sick-v13.xml"},
        {
            ("fail", "gpu1", "pcie_width", "reseat or check cable"),
            ("fail", "gpu2", "ecc_uncorrectable", "reset GPU"),
            ("fail", "gpu3", "remap_pending", "reset GPU"),
            ("fail", "gpu4", "remap_failure", "replace part"),
            ("fail", "gpu5", "throttle", "investigate"),
            ("fail", "gpu6", "recovery", "reset GPU"),
            ("warn", "gpu7", "remapped_rows", "watch"),
        },
        "power brake",
    ),
    "a GPU that the driver does not list": (
        {"node": make_node(gpuprov_pci_addresses=ADDRESSES), **SEVEN},
        {MISSING, UNLISTED},
        "0000:21:00.0",
    ),
    "fewer than declared": (
        {"node": make_node(7, gpuprov_expected_gpus=8), **SEVEN},
        {MISSING, UNLISTED},
        "7 of 8",
    ),
    "one missing, of undeclared many": (
        {"node": make_node(7), **SEVEN},
        {MISSING, UNLISTED},
        "so one is missing",
    ),
    "as many as declared": ({"node": make_node(7, gpuprov_expected_gpus=7), **SEVEN}, {UNLISTED}, "gpu7"),
    "what all share is told once": (
        {"nvidia_smi": "h100-fabric-v13.xml"},
        {("fail", "node", "fabric_state", "fix configuration")},
        "In Progress",
    ),
    "inactive NVLinks": (
        {"nvlink": "nvlink-h100-gpu4-down.txt"},
        {("fail", "gpu4", "nvlink_links", "reset GPU")},
        "16 links",
    ),
    "another model": (
        {"node": make_node(sku="h200-sxm")},
        {("fail", "node", "name", "investigate"), ("fail", "node", "memory_total", "replace part")},
        "belong to h200-sxm",
    ),
    "another name of the same product": (
        {"nvidia_smi": named("NVIDIA H100 PCIe")},
        {("warn", "node", "name", "investigate")},
        "H100 PCIe",
    ),
    "an L40S is no L4": (
        {"node": make_node(sku="l4", fabric="none"), "nvidia_smi": named("NVIDIA L40S")},
        {("fail", "node", "name", "investigate")},
        "NVIDIA L40S",
    ),
    "one card unlike the others": (
        {"nvidia_smi": named("NVIDIA H100 PCIe", 1)},
        {("fail", "gpu0", "name", "replace part")},
        "among",
    ),
    "MIG, where containers read N/A": (
        {"node": make_node(4, "a100-sxm-80", "nvswitch", "ampere"), **MIG},
        {("skip", "node", "mig_mode", "none")},
        "MIG",
    ),
    "an old schema, an unknown SKU": (
        {"node": make_node(1, None, "none", "turing"), **T4},
        {("warn", "node", "name", "fix configuration")},
        "Tesla T4",
    ),
    "dmesg where the journal has no kernel": (
        {"journal": make_output("journal", "-- No entries --\n")},
        set(),
        "",
    ),
    "an unreadable kernel log": (UNREADABLE, {("error", "node", "", "investigate")}, "not permitted"),
    "a GPU lost before its links are asked for": (
        {"nvlink": make_output("nvlink", LINKS.partition("GPU 7:")[0])},
        {("error", "gpu7", "", "investigate")},
        "does not mention",
    ),
    "a GPU lost before its errors are": (
        {"nvlink_errors": make_output("nvlink_errors", COUNTERS.partition("GPU 7:")[0])},
        {("error", "gpu7", "", "investigate")},
        "does not mention",
    ),
    # Two tools of one driver disagree: an empty output with status 0 does not mean zero errors.
    **{
        f"links that are up have counters, not {text!r}": (
            {"nvlink_errors": make_output("nvlink_errors", text)},
            {("error", "node", "", "investigate")},
            "nvlink -e lists no GPU",
        )
        for text in ("", "\n")
    },
}


@pytest.mark.parametrize(("other", "expected", "said"), FAULTS.values(), ids=FAULTS)
def test_each_fault_has_its_device_and_action(
    other: dict[str, Any], expected: set[tuple[str, ...]], said: str
) -> None:
    findings = inventory(**other)
    assert set(flagged(findings)) == expected
    assert any(said in f.message for f in findings if f.verdict is not Verdict.PASS) or not said


def test_xids_are_judged_by_the_catalogue() -> None:
    findings = inventory(journal="journal-xids.txt")
    assert set(flagged(findings)) == {
        ("fail", "gpu2", "xid.119", "reset GPU"),
        ("fail", "gpu@0000:99:00", "xid.79", "power-cycle"),
        ("warn", "node", "sxid.12028", "investigate"),
    }  # Xids 31 and 43 are a program's fault and need no action
    (gsp,) = [f for f in findings if f.metric == "xid.119"]
    assert gsp.value == 2
    assert "GSP" in gsp.evidence[0]


@pytest.mark.parametrize(
    ("output", "verdict", "said"),
    [
        ({"rc": None, "timed_out": True, "seconds": 90.0}, Verdict.ERROR, "did not end within 90 s"),
        ({"rc": None, "not_started": "nvidia-smi is not installed"}, Verdict.ERROR, "not installed"),
        ({"rc": 9, "stdout": "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."},
         Verdict.ERROR, "not loaded"),
        ({"rc": 255, "stdout": "Failed to initialize NVML: Driver/library version mismatch\n"},
         Verdict.ERROR, "reboot if `modinfo -F version nvidia` prints the library's version"),
        ({"rc": 15, "stdout": "Unable to determine the device handle for GPU0000:9B:00.0: GPU is lost.\n"},
         Verdict.FAIL, "GPU is lost"),
        ({"stdout": "\x7fELF garbage"}, Verdict.ERROR, "did not print its document"),
    ],
)  # fmt: skip
def test_a_failing_nvidia_smi_is_told_once_and_the_kernel_log_still_counts(
    output: dict[str, Any], verdict: Verdict, said: str
) -> None:
    broken = {name: make_output(name, **output, argv=("nvidia-smi",)) for name in ("nvidia_smi", "nvlink")}
    findings = inventory(node=None, journal="journal-xids.txt", **broken)
    mine = [f for f in findings if not f.metric.startswith(("xid", "sxid"))]
    assert [f.verdict for f in mine] == [verdict]
    assert said in mine[0].message
    assert any(f.metric == "xid.79" and f.verdict is Verdict.FAIL for f in findings)


@pytest.mark.parametrize(
    ("name", "file", "rc"),
    [
        *(("nvidia_smi", f"h100-{kind}v13.xml", rc) for kind in ("sick-", "") for rc in (1, 9, 255, -11)),
        ("journal", "journal-xids.txt", 1),
    ],
)
def test_what_was_printed_whole_before_a_program_failed_counts_beside_the_error(
    name: str, file: str, rc: int
) -> None:
    output = make_output(name, sample(f"gpu_inventory/{file}"), rc=rc)
    failed, shown = (set(flagged(inventory(node=None, **{name: one}))) for one in (output, file))
    (error,) = failed - shown
    assert error[:3] == ("error", "node", "")
    assert failed >= shown


def test_identities_for_the_person_who_pulls_the_gpu() -> None:
    gpus = gpu_inventory.identities(nvidia_smi.parse_xml(make_output("nvidia_smi", H100)))
    assert [gpu.index for gpu in gpus] == list(range(8))
    assert (gpus[3].serial, gpus[3].pci_address) == ("1650124014203", "0000:1d:00")


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("00000000:9B:00.0", "0000:9b:00"),
        ("PCI:0000:9b:00", "0000:9b:00"),
        ("0000:9b:00.0", "0000:9b:00"),
        ("PCI:0009:01:00", "0009:01:00"),
        ("00010000:01:00.0", "10000:01:00"),
    ],
)
def test_bus_addresses_have_one_form(text: str, same: str) -> None:
    assert kernel_log.bus_address(text) == same


@pytest.mark.parametrize(
    ("line", "event"),
    [
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", ("xid", 14, "0000:03:00")),
        ("[  9.1] NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.", ("xid", 79, "0000:18:00")),
        ("nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
         ("sxid", 20034, "0000:00:00")),
    ],
)  # fmt: skip
def test_every_form_of_line_is_read(line: str, event: tuple[str, int, str]) -> None:
    (found,) = kernel_log.events([line])
    assert (found.kind, found.code, found.address) == event


def test_entities_are_refused() -> None:
    bomb = '<!DOCTYPE a [<!ENTITY a "aaaa">]>' + H100
    with pytest.raises(ParseError, match="entities"):
        nvidia_smi.parse_xml(Output("nvidia_smi", ("nvidia-smi",), 0, bomb, "", 1.0))


@pytest.mark.parametrize(("dmesg_seconds", "judged_slow"), [(0.05, True), (7.5, False)])
def test_a_slow_nvidia_smi_says_nothing_on_a_machine_that_is_slow_itself(
    dmesg_seconds: float, judged_slow: bool
) -> None:
    dmesg = make_output("dmesg", sample("gpu_inventory/dmesg-clean.txt"), seconds=dmesg_seconds)
    findings = inventory(dmesg=dmesg, nvidia_smi=make_output("nvidia_smi", H100, seconds=54.0))
    assert any(finding.metric == "smi_seconds" for finding in findings) is judged_slow


@pytest.mark.parametrize(("state", "refused"), [("<inactive>", False), ("26.562 GB/s", True)])
def test_a_link_that_is_down_counts_no_errors_and_one_that_is_up_must(state: str, refused: bool) -> None:
    down = sample("gpu_inventory/nvlink-h100-gpu4-down.txt")
    link = next(line.split(":")[0].strip() for line in down.splitlines() if "inactive" in line)
    before, gpu, after = COUNTERS.partition("GPU 4:")
    kept = [line for line in after.split("GPU 5:")[0].split("\n") if not line.strip().startswith(f"{link}:")]
    counters = before + gpu + "\n".join(kept) + "GPU 5:" + after.split("GPU 5:")[1]
    outputs = {
        "nvidia_smi": make_output("nvidia_smi", H100),
        "nvlink": make_output("nvlink", down.replace("<inactive>", state)),
        "nvlink_errors": make_output("nvlink_errors", counters),
    }
    measured = gpu_inventory.parse(make_node(), outputs)
    said = [str(m.value) for m in measured if m.metric == "unreadable.nvlink_errors"]
    assert bool(said) is refused, said


@pytest.mark.parametrize(
    ("element", "value", "words"),
    [
        ("remapped_row_pending", "No", "pending row remap"),
        ("remapped_row_failure", "No", "row remap failure"),
        ("current_link_width", "16x", "PCIe width"),
        ("dram_uncorrectable", "0", "uncorrectable ECC errors"),
        ("gpu_recovery_action", "None", "recovery action"),
    ],
)
def test_a_reading_that_is_not_available_on_one_gpu_alone_is_an_error_of_it(
    element: str, value: str, words: str
) -> None:
    """NVML_ERROR_NOT_SUPPORTED holds for a whole model, so on one GPU of eight it may hide a fault."""
    whole, none = f"<{element}>{value}</{element}>", f"<{element}>N/A</{element}>"
    head, first, rest = H100.partition("<gpu id=")
    assert whole in rest
    one = make_output("nvidia_smi", head + first + rest.replace(whole, none, 1))
    (finding,) = [f for f in inventory(nvidia_smi=one) if f.verdict is not Verdict.PASS]
    assert (finding.verdict, finding.device) == (Verdict.ERROR, "gpu0")
    assert words in finding.message
    everywhere = inventory(nvidia_smi=make_output("nvidia_smi", H100.replace(whole, none)))
    assert Verdict.ERROR not in {f.verdict for f in everywhere}


def test_a_serial_number_with_a_newline_stays_on_one_line() -> None:
    hostile = H100.replace("<serial>", "<serial>1\n2\u202e", 1)
    assert hostile != H100
    found = gpu_inventory.identities(nvidia_smi.parse_xml(make_output("nvidia_smi", hostile)))
    assert [gpu.serial.isprintable() for gpu in found] == [True] * 8


@pytest.mark.parametrize(
    ("reason", "action"),
    [
        ("NVRM: GPU 0000:21:00.0: RmInitAdapter failed! (0x62:0x40:1784)", "reset GPU"),
        ("NVRM: _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting gsp", "reset GPU"),
        ("NVRM: BAR1 is 0M @ 0x0 (PCI:0000:21:00.0)", "fix configuration"),
        ("NVRM: installed in this system is not supported by the", "fix configuration"),
        ("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.126.09", "reseat or check cable"),
    ],
)
def test_the_drivers_reason_decides_the_advice_for_a_gpu_that_it_does_not_list(
    reason: str, action: str
) -> None:
    log = make_output("dmesg", f"[    9.1] {reason}\n")
    quiet = make_output("journal", "-- No entries --\n")
    findings = inventory(node=make_node(gpuprov_pci_addresses=ADDRESSES), journal=quiet, dmesg=log, **SEVEN)
    (count,) = [one for one in findings if one.metric == "driver_gpus"]
    assert count.action == action
    gone = inventory(node=make_node(7, gpuprov_expected_gpus=8), journal=quiet, dmesg=log, **SEVEN)
    (count,) = [one for one in gone if one.metric == "driver_gpus"]
    assert count.action == "reseat or check cable", "it is not on the PCI bus"
