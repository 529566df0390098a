"""GPUs that do not answer: named with serial number and address, while their peers are judged."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from provision.checks.check import CheckNode
from provision.checks.judge import Finding, Verdict
from tests.support.checks import flagged, inventory, make_node, make_output, sample

# 550.163.01 replaced these by the error of a lost GPU; name, serial number and address stayed right.
ASKED = (
    *("total", "used", "free", "gpu_util", "gpu_temp", "state", "status", "dram_uncorrectable", "sm_clock"),
    "remapped_rows",
)


H100, H100_V12 = (sample(f"gpu_inventory/h100-v{number}.xml") for number in (13, 12))
LINKS = sample("gpu_inventory/nvlink-h100.txt")


def judge(document: str, node: CheckNode | None = None, **smi: Any) -> list[Finding]:
    return inventory(nvidia_smi=make_output("nvidia_smi", document, argv=("nvidia-smi",), **smi), node=node)


def struck(document: str, value: str, *tags: str, gpus: Collection[int] = range(8)) -> str:
    """Return the document with `value` in these tags of some GPUs (default: all tags in ASKED)."""
    head, *parts = re.split(r"(?=\t<gpu id=)", document)
    for gpu in gpus:
        for tag in tags or ASKED:
            inside = rf"<{tag}>([^<]*|\s.*?)</{tag}>"
            parts[gpu] = re.sub(inside, f"<{tag}>{value}</{tag}>", parts[gpu], flags=re.S)
    return "".join([head, *parts])


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
def test_the_gpu_fails_with_serial_address_and_action(xml: str, error: str, action: str) -> None:
    document = sample(f"gpu_inventory/{xml}")
    findings = judge(struck(document, error, gpus=[3]))
    assert flagged(findings) == [(Verdict.FAIL, "gpu3", "unanswered", action)]
    (finding,) = [f for f in findings if f.verdict is Verdict.FAIL]
    serial = re.findall(r"<serial>(\d+)</serial>", document)[3]
    assert error in finding.message
    assert serial in finding.message
    assert "PCI 0000:" in finding.message


CAPPED = struck(H100, "4", "max_link_gen")
NO_DEVICE_GENERATION = re.sub(r"<max_device_link_gen>\d+</max_device_link_gen>", "", H100)
RESEAT, CONFIGURE = "reseat or check cable", "fix configuration"


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (
            struck(struck(H100, "GPU is lost", gpus=[3]), "Yes", "remapped_row_failure", gpus=[5]),
            [
                ("fail", "gpu3", "unanswered", "power-cycle"),
                ("fail", "gpu5", "remap_failure", "replace part"),
            ],
        ),
        (
            H100.replace("<persistence_mode>", "<fan_speed>Unknown Error</fan_speed><persistence_mode>", 1),
            [("warn", "gpu0", "unanswered", "investigate")],
        ),
        (
            struck(H100, "Unknown Error", "remapped_row_pending", gpus=[2]),
            [("fail", "gpu2", "unanswered", "power-cycle")],
        ),
        (
            struck(H100, "Insufficient Permissions", "remapped_row_pending", gpus=[2]),
            [("error", "gpu2", "", CONFIGURE)],
        ),
        (struck(H100, "3", "max_link_gen", gpus=[6]), [("fail", "gpu6", "pcie_gen_max", RESEAT)]),
        (
            CAPPED.replace("</pcie_gen>", "<max_device_link_gen>5</max_device_link_gen></pcie_gen>"),
            [("warn", "node", "pcie_gen_max", CONFIGURE)],
        ),
        (
            struck(CAPPED, "3", "max_link_gen", gpus=[2]),
            [("warn", "node", "pcie_gen_max", CONFIGURE), ("fail", "gpu2", "pcie_gen_max", RESEAT)],
        ),
        # Before driver 530, the generation of the SKU is printed instead of the device's.
        (NO_DEVICE_GENERATION, []),
        (struck(NO_DEVICE_GENERATION, "4", "max_link_gen"), [("warn", "node", "pcie_gen_max", CONFIGURE)]),
    ],
    ids=[
        "others beside a lost GPU",
        "one sensor",
        "a reading that is judged",
        "a reading for root alone",
        "one slot of a lower generation",
        "slots that the firmware limits",
        "a lower slot among limited ones",
        "no generation of the device",
        "no generation of the device, limited",
    ],
)
def test_one_reading_that_is_an_error_or_low(document: str, expected: list[tuple[str, ...]]) -> None:
    assert flagged(judge(document)) == expected


@pytest.mark.parametrize("error", ["GPU is lost", "Unknown Error"])
@pytest.mark.parametrize("where", ["GPU3: 0000:61:00.0", "GPU 0000:61:00.0", "GPU0000:61:00.0"])
def test_one_line_in_place_of_the_answer_names_the_gpu_by_its_address(error: str, where: str) -> None:
    addresses = [f"0000:{bus}:00.0" for bus in ("18", "2a", "3a", "61", "9a", "ab", "ba", "db")]
    line = f"Unable to determine the device handle for {where}: {error}.  Reboot the system to recover "
    line += "this GPU\n"
    findings = judge(line, node=make_node(gpuprov_pci_addresses=addresses), rc=15)
    assert flagged(findings) == [(Verdict.FAIL, "gpu3", "unanswered", "power-cycle")]
    assert "PCI 0000:61:00" in next(f.message for f in findings if f.verdict is Verdict.FAIL)


# --- readings that only older GPUs and drivers have


def test_double_bit_errors_of_gpus_before_turing_fail() -> None:
    counters = "".join(
        f"<{kind}><device_memory>{n}</device_memory><cbu>N/A</cbu><total>{n}</total></{kind}>"
        for kind, n in (("single_bit", 12), ("double_bit", 7))
    )
    # On all GPUs, since one driver uses the same words for all GPUs of a model.
    document = re.sub(r"<volatile>.*?</volatile>", f"<volatile>{counters}</volatile>", H100_V12, flags=re.S)
    (finding,) = [f for f in judge(document) if f.metric == "ecc_uncorrectable" and f.device == "gpu0"]
    assert (finding.verdict, finding.value) == (Verdict.FAIL, 7)


@pytest.mark.parametrize(
    ("double", "verdict"), [(1, None), (15, None), (16, Verdict.WARN), (61, Verdict.WARN), (63, Verdict.FAIL)]
)
def test_retired_pages(double: int, verdict: Verdict | None) -> None:
    pages = (
        "<retired_pages><multiple_single_bit_retirement><retired_count>0</retired_count>"
        "</multiple_single_bit_retirement><double_bit_retirement><retired_count>{}</retired_count>"
        "</double_bit_retirement><pending_retirement>No</pending_retirement></retired_pages>"
    )
    head, *gpus = re.split(
        r"(?=\t<gpu id=)",
        re.sub(r"<retired_pages>.*?</retired_pages>", "", H100_V12, flags=re.S),
    )
    gpus = [
        gpu.replace("</pci>", "</pci>" + pages.format(double if i == 4 else 0), 1)
        for i, gpu in enumerate(gpus)
    ]
    found = [(f.verdict, f.device) for f in judge("".join([head, *gpus])) if f.metric == "retired_pages"]
    assert found == ([(verdict, "gpu4")] if verdict else [])


@pytest.mark.parametrize("name", ["t4.old-driver", "a10g.old-driver"])
def test_slots_wired_with_fewer_lanes_are_no_reason_to_reseat(name: str, captures: Path) -> None:
    text = (captures / f"nvidia-smi-q-x.{name}.xml").read_text(encoding="utf-8")
    sku, arch = ("t4", "turing") if name.startswith("t4") else (None, "ampere")
    findings = judge(text, node=make_node(1, sku, fabric="none", arch=arch))
    assert not [f for f in findings if f.metric == "pcie_width" and f.verdict is not Verdict.PASS]


# --- NVLinks next to a GPU that does not answer


def linked(links: str, document: str = H100, **smi: Any) -> list[Finding]:
    addresses = [f"0000:{bus}:00.0" for bus in ("18", "2a", "3a", "5d", "9a", "ab", "ba", "db")]
    return inventory(
        nvidia_smi=make_output("nvidia_smi", document),
        nvlink=make_output("nvlink", links, argv=("nvidia-smi",), **smi),
        node=make_node(gpuprov_pci_addresses=addresses),
    )


def test_links_that_nvidia_smi_leaves_out_of_a_lost_gpu_hide_no_other_link() -> None:
    head, *gpus = re.split(r"(?m)^(?=GPU \d)", LINKS)
    gpus[3] = gpus[3].split("\n")[0] + "\n"
    gpus[5] = re.sub(r"\d+\.\d+ GB/s", "<inactive>", gpus[5], count=1)
    findings = linked("".join([head, *gpus]), struck(H100, "GPU is lost", gpus=[3]))
    found = {(f.device, f.metric) for f in findings if f.verdict is Verdict.FAIL}
    assert {("gpu3", "unanswered"), ("gpu5", "nvlink_links")} <= found
    assert not [
        f for f in findings if f.verdict is Verdict.ERROR and f.device == "node" and "nvlink -s" in f.message
    ]


def test_a_gpu_lost_after_nvidia_smi_described_it_is_named_by_its_address() -> None:
    address = re.findall(r'<gpu id="0*([0-9A-Fa-f:.]+)">', H100)[3]
    line = f"Unable to determine the device handle for GPU3: 0000{address}: Unknown Error\n"
    findings = linked(line, rc=15)
    (finding,) = [f for f in findings if f.verdict is Verdict.FAIL and f.metric == "unanswered"]
    assert (finding.device, finding.action) == ("gpu3", "power-cycle")
    assert not [
        f for f in findings if f.verdict is Verdict.ERROR and f.device == "node" and "nvlink" in f.message
    ]
