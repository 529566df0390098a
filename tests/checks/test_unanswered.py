"""A GPU that does not answer is named with serial number and address, and its peers are judged."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provision.checks.check import CheckNode, Output
from provision.checks.judge import Finding, Verdict

Judged = Callable[..., list[Finding]]
Sample = Callable[[str], str]
MakeOutput = Callable[..., Output]
MakeNode = Callable[..., CheckNode]
# In place of these 550.163.01 printed the error of a lost GPU; name, serial number and address were right.
ASKED = ("total", "used", "free", "gpu_util", "gpu_temp", "state", "status", "dram_uncorrectable", "sm_clock")


@pytest.fixture
def judge(sample: Sample, make_output: MakeOutput, judged: Judged) -> Callable[..., list[Finding]]:
    def run(document: str, node: CheckNode | None = None, **smi: Any) -> list[Finding]:
        outputs = [
            make_output("journal", sample("gpu_inventory/journal-clean.txt")),
            make_output("dmesg", sample("gpu_inventory/dmesg-clean.txt")),
            make_output("nvidia_smi", document, argv=("nvidia-smi",), **smi),
            make_output("nvlink", sample("gpu_inventory/nvlink-h100.txt")),
        ]
        return judged("gpu_inventory", *outputs, node=node)

    return run


def unhealthy(findings: list[Finding]) -> list[tuple[Verdict, str, str, str]]:
    return [(f.verdict, f.device, f.metric, f.action) for f in findings if f.verdict is not Verdict.PASS]


def struck(document: str, gpu: int, error: str, *tags: str) -> str:
    """The document with an error in place of the readings of one GPU."""
    head, *gpus = re.split(r"(?=\t<gpu id=)", document)
    for tag in tags or ASKED:
        gpus[gpu] = re.sub(rf"<{tag}>[^<]*</{tag}>", f"<{tag}>{error}</{tag}>", gpus[gpu])
    if not tags:
        gpus[gpu] = re.sub(
            r"<remapped_rows>.*?</remapped_rows>",
            f"<remapped_rows>{error}</remapped_rows>",
            gpus[gpu],
            flags=re.S,
        )
    return "".join([head, *gpus])


@pytest.mark.parametrize("xml", ["h100-v13.xml", "h100-v12.xml"])
@pytest.mark.parametrize(
    ("error", "action"),
    [
        ("GPU is lost", "power-cycle"),
        ("Unknown Error", "power-cycle"),
        ("GPU requires reset", "reset GPU"),
        ("ERR!", "power-cycle"),
    ],
)
def test_the_gpu_fails_with_serial_address_and_action(
    xml: str, error: str, action: str, judge: Any, sample: Sample
) -> None:
    document = sample(f"gpu_inventory/{xml}")
    findings = judge(struck(document, 3, error))
    assert unhealthy(findings) == [(Verdict.FAIL, "gpu3", "unanswered", action)]
    (finding,) = [f for f in findings if f.verdict is Verdict.FAIL]
    serial = re.findall(r"<serial>(\d+)</serial>", document)[3]
    assert error in finding.message
    assert serial in finding.message
    assert "PCI 0000:" in finding.message


def test_the_other_gpus_are_judged_beside_it(judge: Any, sample: Sample) -> None:
    document = struck(sample("gpu_inventory/h100-v13.xml"), 3, "GPU is lost")
    document = struck(document, 5, "Yes", "remapped_row_failure")
    assert {(verdict, device) for verdict, device, _, _ in unhealthy(judge(document))} == {
        (Verdict.FAIL, "gpu3"),
        (Verdict.FAIL, "gpu5"),
    }


def test_one_broken_sensor_is_a_warning(judge: Any, sample: Sample) -> None:
    document = sample("gpu_inventory/h100-v13.xml")
    broken = document.replace(
        "<persistence_mode>", "<fan_speed>Unknown Error</fan_speed><persistence_mode>", 1
    )
    assert broken != document
    assert unhealthy(judge(broken)) == [(Verdict.WARN, "gpu0", "unanswered", "investigate")]


def test_one_reading_that_is_judged_fails_its_gpu(judge: Any, sample: Sample) -> None:
    document = struck(sample("gpu_inventory/h100-v13.xml"), 2, "Unknown Error", "remapped_row_pending")
    assert unhealthy(judge(document)) == [(Verdict.FAIL, "gpu2", "unanswered", "power-cycle")]


def test_readings_for_root_alone_are_not_measured(judge: Any, sample: Sample) -> None:
    document = struck(
        sample("gpu_inventory/h100-v13.xml"), 2, "Insufficient Permissions", "remapped_row_pending"
    )
    assert unhealthy(judge(document)) == [(Verdict.ERROR, "gpu2", "", "fix configuration")]


@pytest.mark.parametrize("error", ["GPU is lost", "Unknown Error"])
@pytest.mark.parametrize("where", ["GPU3: 0000:61:00.0", "GPU 0000:61:00.0", "GPU0000:61:00.0"])
def test_one_line_in_place_of_the_answer_names_the_gpu_by_its_address(
    error: str, where: str, judge: Any, make_node: MakeNode
) -> None:
    addresses = [f"0000:{bus}:00.0" for bus in ("18", "2a", "3a", "61", "9a", "ab", "ba", "db")]
    line = f"Unable to determine the device handle for {where}: {error}.  Reboot the system to recover "
    line += "this GPU\n"
    findings = judge(line, node=make_node(gpuprov_pci_addresses=addresses), rc=15)
    assert unhealthy(findings) == [(Verdict.FAIL, "gpu3", "unanswered", "power-cycle")]
    assert "PCI 0000:61:00" in next(f.message for f in findings if f.verdict is Verdict.FAIL)


# --- readings that only older GPUs and drivers have


def test_double_bit_errors_of_gpus_before_turing_fail(judge: Any, sample: Sample) -> None:
    counters = "".join(
        f"<{kind}><device_memory>{n}</device_memory><cbu>N/A</cbu><total>{n}</total></{kind}>"
        for kind, n in (("single_bit", 12), ("double_bit", 7))
    )
    document = re.sub(
        r"<volatile>.*?</volatile>",
        f"<volatile>{counters}</volatile>",
        sample("gpu_inventory/h100-v12.xml"),
        count=1,
        flags=re.S,
    )
    findings = judge(all_gpus_alike(document))
    (finding,) = [f for f in findings if f.metric == "ecc_uncorrectable" and f.device == "gpu0"]
    assert (finding.verdict, finding.value) == (Verdict.FAIL, 7)


def all_gpus_alike(document: str) -> str:
    """The counters of the first GPU on all: one driver describes GPUs of a model in the same words."""
    first = re.search(r"<volatile>.*?</volatile>", document, flags=re.S)
    assert first is not None
    return re.sub(r"<volatile>.*?</volatile>", first[0], document, flags=re.S)


@pytest.mark.parametrize(
    ("double", "verdict"), [(1, None), (15, None), (16, Verdict.WARN), (61, Verdict.WARN), (63, Verdict.FAIL)]
)
def test_retired_pages(double: int, verdict: Verdict | None, judge: Any, sample: Sample) -> None:
    pages = (
        "<retired_pages><multiple_single_bit_retirement><retired_count>0</retired_count>"
        "</multiple_single_bit_retirement><double_bit_retirement><retired_count>{}</retired_count>"
        "</double_bit_retirement><pending_retirement>No</pending_retirement></retired_pages>"
    )
    head, *gpus = re.split(
        r"(?=\t<gpu id=)",
        re.sub(r"<retired_pages>.*?</retired_pages>", "", sample("gpu_inventory/h100-v12.xml"), flags=re.S),
    )
    gpus = [
        gpu.replace("</pci>", "</pci>" + pages.format(double if i == 4 else 0), 1)
        for i, gpu in enumerate(gpus)
    ]
    found = [(f.verdict, f.device) for f in judge("".join([head, *gpus])) if f.metric == "retired_pages"]
    assert found == ([(verdict, "gpu4")] if verdict else [])


def test_the_power_limit_of_old_drivers_is_read(captures: Path) -> None:
    from provision.checks.gpu.nvidia_smi import parse_xml

    text = (captures / "nvidia-smi-q-x.a10g.old-driver.xml").read_text(encoding="utf-8")
    found = {m.metric: m.value for m in parse_xml(Output("smi", ("nvidia-smi",), 0, text, "", 1.0))}
    assert (found["power_limit"], found["power_default"]) == (300, 300)


# --- PCIe at rest


def generation(document: str, tag: str, value: int, *gpus: int) -> str:
    head, *parts = re.split(r"(?=\t<gpu id=)", document)
    for index in gpus or range(len(parts)):
        parts[index] = re.sub(rf"<{tag}>[^<]*</{tag}>", f"<{tag}>{value}</{tag}>", parts[index])
    return "".join([head, *parts])


def test_one_slot_of_a_lower_generation_fails_at_rest(judge: Any, sample: Sample) -> None:
    document = generation(sample("gpu_inventory/h100-v13.xml"), "max_link_gen", 3, 6)
    assert unhealthy(judge(document)) == [(Verdict.FAIL, "gpu6", "pcie_gen_max", "reseat or check cable")]


def test_slots_that_the_firmware_limits_are_a_warning_of_the_node(judge: Any, sample: Sample) -> None:
    document = generation(sample("gpu_inventory/h100-v13.xml"), "max_link_gen", 4)
    document = document.replace("</pcie_gen>", "<max_device_link_gen>5</max_device_link_gen></pcie_gen>")
    assert unhealthy(judge(document)) == [(Verdict.WARN, "node", "pcie_gen_max", "fix configuration")]


@pytest.mark.parametrize("name", ["t4.old-driver", "a10g.old-driver"])
def test_slots_wired_with_fewer_lanes_are_no_reason_to_reseat(
    name: str, captures: Path, judge: Any, make_node: MakeNode
) -> None:
    text = (captures / f"nvidia-smi-q-x.{name}.xml").read_text(encoding="utf-8")
    sku, arch = ("t4", "turing") if name.startswith("t4") else (None, "ampere")
    findings = judge(text, node=make_node(1, sku, fabric="none", arch=arch))
    assert not [f for f in findings if f.metric == "pcie_width" and f.verdict is not Verdict.PASS]


# --- NVLinks beside a GPU that does not answer


def linked(sample: Sample, make_output: MakeOutput, judged: Judged, links: str, **smi: Any) -> list[Finding]:
    addresses = [f"0000:{bus}:00.0" for bus in ("18", "2a", "3a", "5d", "9a", "ab", "ba", "db")]
    gpu = {"count": 8, "sku": "h100-sxm", "fabric": "nvswitch", "architecture": "hopper", "product_names": []}
    return judged(
        "gpu_inventory",
        make_output("journal", sample("gpu_inventory/journal-clean.txt")),
        make_output("nvidia_smi", smi.pop("document"), argv=("nvidia-smi",)),
        make_output("nvlink", links, argv=("nvidia-smi",), **smi),
        node=CheckNode("gpu-01", {"gpu": gpu}, {"gpuprov_pci_addresses": addresses}),
    )


def test_links_that_nvidia_smi_leaves_out_of_a_lost_gpu_hide_no_other_link(
    sample: Sample, make_output: MakeOutput, judged: Judged
) -> None:
    head, *gpus = re.split(r"(?m)^(?=GPU \d)", sample("gpu_inventory/nvlink-h100.txt"))
    gpus[3] = gpus[3].split("\n")[0] + "\n"
    gpus[5] = re.sub(r"\d+\.\d+ GB/s", "<inactive>", gpus[5], count=1)
    document = struck(sample("gpu_inventory/h100-v13.xml"), 3, "GPU is lost")
    findings = linked(sample, make_output, judged, "".join([head, *gpus]), document=document)
    found = {(f.device, f.metric) for f in findings if f.verdict is Verdict.FAIL}
    assert {("gpu3", "unanswered"), ("gpu5", "nvlink_links")} <= found
    assert not [
        f for f in findings if f.verdict is Verdict.ERROR and f.device == "node" and "nvlink -s" in f.message
    ]


def test_a_gpu_lost_after_nvidia_smi_described_it_is_named_by_its_address(
    sample: Sample, make_output: MakeOutput, judged: Judged
) -> None:
    document = sample("gpu_inventory/h100-v13.xml")
    address = re.findall(r'<gpu id="0*([0-9A-Fa-f:.]+)">', document)[3]
    line = f"Unable to determine the device handle for GPU3: 0000{address}: Unknown Error\n"
    findings = linked(sample, make_output, judged, line, document=document, rc=15)
    (finding,) = [f for f in findings if f.verdict is Verdict.FAIL and f.metric == "unanswered"]
    assert (finding.device, finding.action) == ("gpu3", "power-cycle")
    assert not [
        f for f in findings if f.verdict is Verdict.ERROR and f.device == "node" and "nvlink" in f.message
    ]


# --- the highest PCIe generation


def test_a_limit_of_all_slots_accuses_only_the_gpu_below_it(judge: Any, sample: Sample) -> None:
    document = generation(sample("gpu_inventory/h100-v13.xml"), "max_link_gen", 4)
    document = generation(document, "max_link_gen", 3, 2)
    assert unhealthy(judge(document)) == [
        (Verdict.WARN, "node", "pcie_gen_max", "fix configuration"),
        (Verdict.FAIL, "gpu2", "pcie_gen_max", "reseat or check cable"),
    ]


def test_before_driver_530_the_skus_generation_stands_in_for_the_devices(judge: Any, sample: Sample) -> None:
    document = sample("gpu_inventory/h100-v13.xml")
    document = re.sub(r"<max_device_link_gen>\d+</max_device_link_gen>", "", document)
    assert unhealthy(judge(document)) == []
    document = generation(document, "max_link_gen", 4)
    assert unhealthy(judge(document)) == [(Verdict.WARN, "node", "pcie_gen_max", "fix configuration")]
