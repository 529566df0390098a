"""gpu_inventory: nvidia-smi's XML in three generations, NVLinks, and the kernel log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.checks.check import CheckNode, Output
from provision.checks.gpu import gpu_inventory, nvidia_smi
from provision.checks.host import kernel_log
from provision.checks.judge import Finding, Verdict
from provision.errors import ParseError

Judged = Callable[..., list[Finding]]
Sample = Callable[[str], str]
MakeOutput = Callable[..., Output]
MakeNode = Callable[..., CheckNode]
Answers = Callable[..., list[Output]]


def bad(findings: list[Finding]) -> set[tuple[Verdict, str, str]]:
    return {(f.verdict, f.device, f.metric) for f in findings if f.verdict is not Verdict.PASS}


@pytest.fixture
def answers(sample: Sample, make_output: MakeOutput) -> Answers:
    """The four outputs of a node; a name of a sample, or an Output, replaces one."""

    def make(**other: str | Output) -> list[Output]:
        names: dict[str, Any] = {
            "journal": "journal-clean.txt",
            "dmesg": "dmesg-clean.txt",
            "nvidia_smi": "h100-v13.xml",
            "nvlink": "nvlink-h100.txt",
        }
        names.update(other)
        return [
            value if isinstance(value, Output) else make_output(name, sample(f"gpu_inventory/{value}"))
            for name, value in names.items()
        ]

    return make


@pytest.mark.parametrize("xml", ["h100-v13.xml", "h100-v12.xml"])
def test_a_healthy_node_passes_in_both_generations(xml: str, answers: Answers, judged: Judged) -> None:
    findings = judged("gpu_inventory", *answers(nvidia_smi=xml))
    assert bad(findings) == set()
    assert {f.metric for f in findings} >= {
        "driver_gpus", "name", "memory_total", "ecc_uncorrectable",
        "pcie_width", "nvlink_links", "fabric_state", "xid",
    }  # fmt: skip


def test_both_generations_measure_the_same(sample: Sample, make_output: MakeOutput) -> None:
    new, old = (
        nvidia_smi.parse_xml(make_output("nvidia_smi", sample(f"gpu_inventory/h100-v{v}.xml")))
        for v in (13, 12)
    )
    assert [m for m in new if m.metric != "driver_version"] == [
        m for m in old if m.metric != "driver_version"
    ]


def test_idle_pcie_generation_is_not_a_fault(answers: Answers, judged: Judged, sample: Sample) -> None:
    assert "<current_link_gen>1</current_link_gen>" in sample("gpu_inventory/h100-v13.xml")
    assert bad(judged("gpu_inventory", *answers())) == set()


def test_every_sickness_is_named_with_its_gpu(answers: Answers, judged: Judged) -> None:
    findings = judged("gpu_inventory", *answers(nvidia_smi="h100-sick-v13.xml"))
    assert bad(findings) == {
        (Verdict.FAIL, "gpu1", "pcie_width"),
        (Verdict.FAIL, "gpu2", "ecc_uncorrectable"),
        (Verdict.FAIL, "gpu3", "remap_pending"),
        (Verdict.FAIL, "gpu4", "remap_failure"),
        (Verdict.FAIL, "gpu5", "throttle"),
        (Verdict.FAIL, "gpu6", "recovery"),
        (Verdict.WARN, "gpu7", "remapped_rows"),
    }
    actions = {f.device: f.action for f in findings if f.verdict is not Verdict.PASS}
    assert actions["gpu4"] == "replace part"
    assert actions["gpu1"] == "reseat or check cable"


def test_a_gpu_the_driver_does_not_list(answers: Answers, judged: Judged, make_node: MakeNode) -> None:
    addresses = [f"0000:{0x1A + i:02x}:00.0" for i in range(8)]
    node = make_node(gpuprov_pci_addresses=addresses)
    findings = judged(
        "gpu_inventory", *answers(nvidia_smi="h100-seven-v13.xml", nvlink="nvlink-h100.txt"), node=node
    )
    assert (Verdict.FAIL, "node", "driver_gpus") in bad(findings)
    assert "0000:21:00.0" in findings[0].message


def test_fewer_gpus_than_declared(answers: Answers, judged: Judged, make_node: MakeNode) -> None:
    node = make_node(count=7, gpuprov_expected_gpus=8)
    findings = judged("gpu_inventory", *answers(nvidia_smi="h100-seven-v13.xml"), node=node)
    assert (Verdict.FAIL, "node", "driver_gpus") in bad(findings)
    assert "7 of 8" in findings[0].message


def test_what_all_gpus_share_is_said_once(answers: Answers, judged: Judged) -> None:
    findings = judged("gpu_inventory", *answers(nvidia_smi="h100-fabric-v13.xml"))
    assert bad(findings) == {(Verdict.FAIL, "node", "fabric_state")}
    (finding,) = [f for f in findings if f.verdict is Verdict.FAIL]
    assert "In Progress" in finding.message
    assert finding.action == "fix configuration"


def test_inactive_nvlinks_name_their_gpu(answers: Answers, judged: Judged) -> None:
    findings = judged("gpu_inventory", *answers(nvlink="nvlink-h100-gpu4-down.txt"))
    assert bad(findings) == {(Verdict.FAIL, "gpu4", "nvlink_links")}


def test_a_wrong_model_is_seen(answers: Answers, judged: Judged, make_node: MakeNode) -> None:
    findings = judged("gpu_inventory", *answers(), node=make_node(sku="h200-sxm"))
    assert (Verdict.FAIL, "node", "name") in bad(findings)
    assert (Verdict.FAIL, "node", "memory_total") in bad(findings)


def test_another_name_of_the_same_product_is_looked_at(
    answers: Answers, judged: Judged, sample: Sample, make_output: MakeOutput
) -> None:
    renamed = sample("gpu_inventory/h100-v13.xml").replace("NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe")
    findings = judged("gpu_inventory", *answers(nvidia_smi=make_output("nvidia_smi", renamed)))
    assert bad(findings) == {(Verdict.WARN, "node", "name")}


def test_an_l40s_is_no_l4(
    answers: Answers, judged: Judged, make_node: MakeNode, sample: Sample, make_output: MakeOutput
) -> None:
    other = sample("gpu_inventory/h100-v13.xml").replace("NVIDIA H100 80GB HBM3", "NVIDIA L40S")
    given = answers(nvidia_smi=make_output("nvidia_smi", other))
    findings = judged("gpu_inventory", *given, node=make_node(sku="l4", fabric="none"))
    assert (Verdict.FAIL, "node", "name") in bad(findings)


def test_one_card_unlike_the_others(
    answers: Answers, judged: Judged, sample: Sample, make_output: MakeOutput
) -> None:
    xml = sample("gpu_inventory/h100-v13.xml").replace("NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", 1)
    findings = judged("gpu_inventory", *answers(nvidia_smi=make_output("nvidia_smi", xml)))
    assert bad(findings) == {(Verdict.FAIL, "gpu0", "name")}


def test_mig_and_containers_that_read_not_available(
    answers: Answers, judged: Judged, make_node: MakeNode, make_output: MakeOutput
) -> None:
    node = make_node(4, "a100-sxm-80", "nvswitch", "ampere")
    card = "GPU {0}: NVIDIA A100-SXM4-80GB (UUID: GPU-{0})\n"
    card += "".join(f"\t Link {link}: 25 GB/s\n" for link in range(12))
    links = make_output("nvlink", "".join(card.format(index) for index in range(4)))
    findings = judged("gpu_inventory", *answers(nvidia_smi="a100-mig-v12.xml", nvlink=links), node=node)
    assert bad(findings) == {(Verdict.SKIP, "node", "mig_mode")}, "it says what cannot apply"


def test_an_old_schema_and_an_unknown_sku(
    answers: Answers, judged: Judged, make_node: MakeNode, make_output: MakeOutput
) -> None:
    node = make_node(1, None, "none", "turing")
    findings = judged(
        "gpu_inventory", *answers(nvidia_smi="t4-v11.xml", nvlink=make_output("nvlink")), node=node
    )
    assert bad(findings) == {(Verdict.WARN, "node", "name")}


def test_xids_are_judged_by_the_catalogue(answers: Answers, judged: Judged) -> None:
    findings = judged("gpu_inventory", *answers(journal="journal-xids.txt"))
    assert bad(findings) == {
        (Verdict.FAIL, "gpu2", "xid.119"),
        (Verdict.FAIL, "gpu@0000:99:00", "xid.79"),
        (Verdict.WARN, "node", "sxid.12028"),
    }  # 31 and 43 are a program's fault: nothing to do
    (gsp,) = [f for f in findings if f.metric == "xid.119"]
    assert gsp.value == 2
    assert gsp.action == "reset GPU"
    assert "GSP" in gsp.evidence[0]


def test_dmesg_answers_where_the_journal_has_no_kernel(
    answers: Answers, judged: Judged, make_output: MakeOutput
) -> None:
    empty = make_output("journal", "-- No entries --\n")
    assert bad(judged("gpu_inventory", *answers(journal=empty))) == set()


def test_an_unreadable_kernel_log_is_an_error(
    answers: Answers, judged: Judged, make_output: MakeOutput
) -> None:
    journal = make_output("journal", not_started="journalctl is not installed", rc=None)
    dmesg = make_output("dmesg", "", rc=1, stderr="dmesg: read kernel buffer failed: Operation not permitted")
    findings = judged("gpu_inventory", *answers(journal=journal, dmesg=dmesg))
    assert bad(findings) == {(Verdict.ERROR, "node", "")}


@pytest.mark.parametrize(
    ("output", "verdict", "said"),
    [
        ({"rc": None, "timed_out": True, "seconds": 90.0}, Verdict.ERROR, "did not end within 90 s"),
        ({"rc": None, "not_started": "nvidia-smi is not installed"}, Verdict.ERROR, "not installed"),
        ({"rc": 9, "stdout": "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."},
         Verdict.ERROR, "not loaded"),
        ({"rc": 255, "stdout": "Failed to initialize NVML: Driver/library version mismatch\n"},
         Verdict.ERROR, "reboot the node"),
        ({"rc": 15, "stdout": "Unable to determine the device handle for GPU0000:9B:00.0: GPU is lost.\n"},
         Verdict.FAIL, "GPU is lost"),
        ({"stdout": "\x7fELF garbage"}, Verdict.ERROR, "did not print its document"),
    ],
)  # fmt: skip
def test_a_failing_nvidia_smi_is_told_once_and_the_kernel_log_still_counts(
    output: dict[str, Any],
    verdict: Verdict,
    said: str,
    answers: Answers,
    judged: Judged,
    make_output: MakeOutput,
) -> None:
    broken = [make_output(name, **output, argv=("nvidia-smi",)) for name in ("nvidia_smi", "nvlink")]
    findings = judged(
        "gpu_inventory", *answers(nvidia_smi=broken[0], nvlink=broken[1], journal="journal-xids.txt")
    )
    mine = [f for f in findings if not f.metric.startswith(("xid", "sxid"))]
    assert [f.verdict for f in mine] == [verdict]
    assert said in mine[0].message
    assert any(f.metric == "xid.79" and f.verdict is Verdict.FAIL for f in findings)


@pytest.mark.parametrize("rc", [1, 9, 255, -11])
def test_what_was_printed_whole_before_nvidia_smi_failed_names_the_gpu_beside_the_error(
    rc: int, answers: Answers, judged: Judged, sample: Sample, make_output: MakeOutput
) -> None:
    sick = bad(judged("gpu_inventory", *answers(nvidia_smi="h100-sick-v13.xml")))
    failed = make_output("nvidia_smi", sample("gpu_inventory/h100-sick-v13.xml"), rc=rc)
    found = bad(judged("gpu_inventory", *answers(nvidia_smi=failed)))
    assert found == {*sick, (Verdict.ERROR, "node", "")}
    healthy = make_output("nvidia_smi", sample("gpu_inventory/h100-v13.xml"), rc=rc)
    assert bad(judged("gpu_inventory", *answers(nvidia_smi=healthy))) == {(Verdict.ERROR, "node", "")}


def test_what_a_failed_kernel_log_shows_names_the_gpu_beside_the_error(
    answers: Answers, judged: Judged, sample: Sample, make_output: MakeOutput
) -> None:
    xids = bad(judged("gpu_inventory", *answers(journal="journal-xids.txt")))
    failed = make_output("journal", sample("gpu_inventory/journal-xids.txt"), rc=1)
    found = bad(judged("gpu_inventory", *answers(journal=failed)))
    assert found == {*xids, (Verdict.ERROR, "node", "")}


def test_identities_for_the_person_who_pulls_the_gpu(answers: Answers, make_node: MakeNode) -> None:
    found = gpu_inventory.parse(make_node(), {output.name: output for output in answers()})
    gpus = gpu_inventory.identities(found)
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


def test_the_three_line_form_of_a_lost_gpu() -> None:
    lines = [
        "NVRM: The NVIDIA GPU 0000:19:00.0",
        "NVRM: (PCI ID: 10de:2330) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    ]
    assert [(e.code, e.address) for e in kernel_log.events(lines)] == [(79, "0000:19:00")]


@pytest.mark.parametrize(
    ("line", "level", "action"),
    [
        (
            "Xid 154: GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)",
            "fail",
            "reset GPU",
        ),
        (
            "Xid 154: GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
            "fail",
            "reboot",
        ),
        ("Xid 154: GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", "info", "none"),
    ],
)
def test_xid_154_says_itself_what_to_do(line: str, level: str, action: str) -> None:
    assert kernel_log.meaning("xid", 154, line)[:2] == (level, action)


def test_nvlink5_errors_are_as_bad_as_they_say() -> None:
    assert kernel_log.meaning("xid", 149, "NETIR_LINK_EVT  Fatal   XC0 i0 Link 01")[0] == "fail"
    assert kernel_log.meaning("xid", 149, "NETIR_LINK_EVT  Nonfatal   XC0 i0 Link 01")[0] == "warn"
    assert kernel_log.meaning("xid", 999, "")[0] == "warn"


XML = (Path(__file__).parent.parent / "fixtures/gpu_inventory/h100-sick-v13.xml").read_text()


@given(st.integers(0, len(XML) - 2))
def test_xml_cut_anywhere_is_refused(end: int) -> None:
    with pytest.raises(ParseError):
        nvidia_smi.parse_xml(Output("nvidia_smi", ("nvidia-smi",), 0, XML[:end], "", 1.0))


def test_entities_are_refused() -> None:
    bomb = '<!DOCTYPE a [<!ENTITY a "aaaa">]>' + XML
    with pytest.raises(ParseError, match="entities"):
        nvidia_smi.parse_xml(Output("nvidia_smi", ("nvidia-smi",), 0, bomb, "", 1.0))


def test_the_real_captures(captures: Path) -> None:
    """Each is read fully, or refused with a reason."""
    refused = {}
    for path in sorted(captures.glob("nvidia-smi-q-x.*.xml")):
        try:
            found = nvidia_smi.parse_xml(Output("nvidia_smi", ("nvidia-smi",), 0, path.read_text(), "", 1.0))
        except ParseError as error:
            refused[path.name] = error.what
            continue
        gpus = {m.device for m in found if m.metric in ("memory_total", "unanswered")}
        assert len(gpus) == next(m.value for m in found if m.metric == "driver_gpus")
    # One GPU of a machine with four was asked for; we always ask for all of them.
    assert refused == {
        "nvidia-smi-q-x.a100-sxm4.driver535.mig.xml": "nvidia-smi announces 4 GPUs and describes 1"
    }
    (gsp,) = kernel_log.events((captures / "kernel-log.xid-119.log").read_text().splitlines())
    assert (gsp.code, gsp.address, gsp.count) == (119, "0000:9b:00", 5)


def test_a_gpu_missing_from_the_bus_is_seen_though_nobody_declared_a_number(
    answers: Answers, judged: Judged, make_node: MakeNode
) -> None:
    findings = judged("gpu_inventory", *answers(nvidia_smi="h100-seven-v13.xml"), node=make_node(7))
    assert (Verdict.FAIL, "node", "driver_gpus") in bad(findings)
    told = judged(
        "gpu_inventory", *answers(nvidia_smi="h100-seven-v13.xml"), node=make_node(7, gpuprov_expected_gpus=7)
    )
    assert (Verdict.FAIL, "node", "driver_gpus") not in bad(told)


@pytest.mark.parametrize(("dmesg_seconds", "judged_slow"), [(0.05, True), (7.5, False)])
def test_a_slow_nvidia_smi_says_nothing_on_a_machine_that_is_slow_itself(
    make_node: Any, make_output: Any, sample: Any, dmesg_seconds: float, judged_slow: bool
) -> None:
    outputs = {
        "journal": make_output("journal", sample("gpu_inventory/journal-clean.txt")),
        "dmesg": make_output("dmesg", sample("gpu_inventory/dmesg-clean.txt"), seconds=dmesg_seconds),
        "nvidia_smi": make_output("nvidia_smi", sample("gpu_inventory/h100-v13.xml"), seconds=54.0),
        "nvlink": make_output("nvlink", sample("gpu_inventory/nvlink-h100.txt")),
    }
    node = make_node()
    findings = gpu_inventory.judge(node, gpu_inventory.parse(node, outputs), {})
    assert any(finding.metric == "smi_seconds" for finding in findings) is judged_slow


@pytest.mark.parametrize(("state", "refused"), [("<inactive>", False), ("26.562 GB/s", True)])
def test_a_link_that_is_down_counts_no_errors_and_one_that_is_up_must(
    make_node: Any, make_output: Any, sample: Any, state: str, refused: bool
) -> None:
    down = sample("gpu_inventory/nvlink-h100-gpu4-down.txt")
    link = next(line.split(":")[0].strip() for line in down.splitlines() if "inactive" in line)
    before, gpu, after = sample("gpu_inventory/nvlink-errors-h100.txt").partition("GPU 4:")
    kept = [line for line in after.split("GPU 5:")[0].split("\n") if not line.strip().startswith(f"{link}:")]
    counters = before + gpu + "\n".join(kept) + "GPU 5:" + after.split("GPU 5:")[1]
    outputs = {
        "nvidia_smi": make_output("nvidia_smi", sample("gpu_inventory/h100-v13.xml")),
        "nvlink": make_output("nvlink", down.replace("<inactive>", state)),
        "nvlink_errors": make_output("nvlink_errors", counters),
    }
    found = gpu_inventory.parse(make_node(), outputs)
    said = [str(m.value) for m in found if m.metric == "unreadable.nvlink_errors"]
    assert bool(said) is refused, said


@pytest.mark.parametrize("text", ["", "\n"])
def test_links_that_are_up_have_counters(text: str, answers: Answers, judged: Judged) -> None:
    """Two tools of one driver disagree: nothing printed, and status 0, is not nothing counted."""
    silent = Output("nvlink_errors", ("nvidia-smi", "nvlink", "-e"), 0, text, "", 1.0)
    findings = judged("gpu_inventory", *answers(), silent)
    (told,) = [f for f in findings if f.verdict is not Verdict.PASS]
    assert told.verdict is Verdict.ERROR
    assert "nvlink -e lists no GPU" in told.message


def test_a_gpu_that_is_lost_before_the_links_are_asked_for_is_not_healthy(
    answers: Answers, judged: Judged, sample: Sample
) -> None:
    links = sample("gpu_inventory/nvlink-h100.txt").partition("GPU 7:")[0]
    counters = sample("gpu_inventory/nvlink-errors-h100.txt").partition("GPU 7:")[0]
    seven = Output("nvlink", ("nvidia-smi",), 0, links, "", 1.0)
    findings = judged("gpu_inventory", *answers(nvlink=seven))
    assert (Verdict.ERROR, "gpu7", "") in bad(findings)
    uncounted = Output("nvlink_errors", ("nvidia-smi",), 0, counters, "", 1.0)
    assert (Verdict.ERROR, "gpu7", "") in bad(judged("gpu_inventory", *answers(), uncounted))


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
    element: str,
    value: str,
    words: str,
    sample: Sample,
    answers: Answers,
    judged: Judged,
    make_output: MakeOutput,
) -> None:
    """NVML_ERROR_NOT_SUPPORTED is a matter of the model: a fault may stand behind it on one of eight."""
    text = sample("gpu_inventory/h100-v13.xml")
    whole, none = f"<{element}>{value}</{element}>", f"<{element}>N/A</{element}>"
    head, first, rest = text.partition("<gpu id=")[0], *text.partition("<gpu id=")[1:]
    assert whole in rest
    one = make_output("nvidia_smi", head + first + rest.replace(whole, none, 1))
    (finding,) = [
        f for f in judged("gpu_inventory", *answers(nvidia_smi=one)) if f.verdict is not Verdict.PASS
    ]
    assert (finding.verdict, finding.device) == (Verdict.ERROR, "gpu0")
    assert words in finding.message
    everywhere = make_output("nvidia_smi", text.replace(whole, none))
    errors = [
        f for f in judged("gpu_inventory", *answers(nvidia_smi=everywhere)) if f.verdict is Verdict.ERROR
    ]
    assert errors == []
