"""Values in nvidia-smi output of real drivers (public reports, NVIDIA documents), read by gpu_inventory."""

from __future__ import annotations

from typing import Any

import pytest

from provision.checks.check import CheckNode
from provision.checks.judge import Finding, Verdict
from provision.node.observe import nvidia_smi as facts
from tests.support.checks import flagged, inventory, make_node, make_output, sample

H100 = sample("gpu_inventory/h100-v13.xml")
T4 = sample("gpu_inventory/t4-v11.xml")


def replaced(old: str, new: str, count: int = -1, xml: str = H100) -> list[tuple[object, ...]]:
    """Return the flagged findings after replacing `old` in a healthy node's output."""
    return flagged(findings(old, new, count, xml))


def findings(
    old: str, new: str, count: int = -1, xml: str = H100, node: CheckNode | None = None
) -> list[Finding]:
    assert old in xml
    return inventory(nvidia_smi=make_output("nvidia_smi", xml.replace(old, new, count)), node=node)


@pytest.mark.parametrize(
    ("words", "verdict", "action"),
    [
        ("Reset", "fail", "reset GPU"),
        ("Reboot", "fail", "reboot"),
        ("Drain and Reset", "fail", "reset GPU"),
        ("Drain P2P", "fail", "restart job"),  # another action follows once peer-to-peer traffic has stopped
        ("Recover IMEX Domain", "warn", "investigate"),  # a matter of the rack; no GPU is broken
        ("System Reboot", "fail", "reboot"),
        ("GPU Reset", "fail", "reset GPU"),
        ("Node Reboot", "fail", "reboot"),
        ("Recite Poetry", "fail", "investigate"),  # an unknown action promises no remedy
    ],
)
def test_each_recovery_action_has_its_own_remedy(words: str, verdict: str, action: str) -> None:
    old = "<gpu_recovery_action>None<"
    assert replaced(old, old.replace("None", words), 1) == [(verdict, "gpu0", "recovery", action)]


def test_a_fabric_status_of_unknown_error_is_a_gpu_that_has_not_joined() -> None:
    (found,) = [
        f for f in findings("<status>Success<", "<status>Unknown Error<", 1) if f.verdict is not Verdict.PASS
    ]
    assert (found.verdict, found.metric, found.action) == (Verdict.FAIL, "fabric_state", "fix configuration")
    assert "has not joined the NVLink fabric: state Completed, status Unknown Error" in found.message


def test_a_program_named_like_an_error_breaks_no_gpu() -> None:
    process = (
        "<processes><process_info><pid>7</pid><type>C</type><process_name>GPU is lost</process_name>"
        "<used_memory>4 MiB</used_memory></process_info></processes>"
    )
    assert replaced("</gpu>", f"{process}</gpu>", 1) == [("warn", "gpu0", "processes", "investigate")]


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("Unknown Error", ["Unknown Error"]),
        ("status Unknown Error", ["Unknown Error"]),
        ("[Unknown Error]", None),
    ],
)
def test_the_fact_of_the_fabric_status_is_a_value_without_brackets(
    cell: str, value: list[str] | None
) -> None:
    found = facts.parse_query(["nvidia_smi.fabric.status"], f"{cell}, 00000000:1A:00.0, 165\n")
    status = found["nvidia_smi.fabric.status"]
    assert status == value if value else "does not answer" in str(status)


@pytest.mark.parametrize(("count", "device"), [(-1, "node"), (1, "gpu0")])
@pytest.mark.parametrize("state", ["In Progress", "Not Started"])
def test_a_reported_fabric_state_is_judged_without_switches_on_the_bus(
    state: str, count: int, device: str
) -> None:
    node = make_node(fabric="none")
    found = findings("<state>Completed<", f"<state>{state}<", count, node=node)
    assert flagged(found) == [("fail", device, "fabric_state", "fix configuration")]


def test_no_fabric_state_without_switches_is_no_fault() -> None:
    assert flagged(findings("<state>Completed<", "<state>N/A<", node=make_node(fabric="none"))) == []


TOTAL = next(line.strip() for line in T4.split("<fb_memory_usage>")[1].splitlines() if "<total>" in line)


def test_a_gpu_of_an_unknown_product_without_a_memory_size_warns() -> None:
    """A GB10 shares its memory with the CPU."""
    node = make_node(1, None, "none", "turing")
    xml = T4.replace(TOTAL, "<total>N/A</total>", 1)
    found = inventory(nvidia_smi=make_output("nvidia_smi", xml), nvlink=make_output("nvlink"), node=node)
    assert flagged(found) == [
        ("warn", "node", "name", "fix configuration"),
        ("warn", "node", "memory_total", "investigate"),
    ]


def test_a_gb10_has_no_memory_size_and_nothing_is_wrong_with_it() -> None:
    node = make_node(1, "gb10", "none", "blackwell")
    xml = T4.replace(TOTAL, "<total>N/A</total>", 1)
    found = inventory(nvidia_smi=make_output("nvidia_smi", xml), nvlink=make_output("nvlink"), node=node)
    assert "memory_total" not in [metric for _, _, metric, _ in flagged(found)]


def test_a_known_product_without_a_memory_size_is_not_measured() -> None:
    total = next(
        line.strip() for line in H100.split("<fb_memory_usage>")[1].splitlines() if "<total>" in line
    )
    everywhere = [f for f in findings(total, "<total>N/A</total>") if f.verdict is Verdict.ERROR]
    one = [f for f in findings(total, "<total>N/A</total>", 1) if f.verdict is Verdict.ERROR]
    assert [f.device for f in everywhere] == ["node"]
    assert [f.device for f in one] == ["gpu0"]


@pytest.mark.parametrize(("count", "device"), [(-1, "node"), (1, "gpu0")])
def test_ecc_that_is_off_is_reported_of_an_unknown_product_too(count: int, device: str) -> None:
    node = make_node(sku=None)
    found = findings("<current_ecc>Enabled<", "<current_ecc>Disabled<", count, node=node)
    assert ("warn", device, "ecc_mode", "fix configuration") in flagged(found)


@pytest.mark.parametrize(
    ("level", "banks", "words"), [("low", 1, "1 memory bank with few"), ("none", 2, "2 memory banks without")]
)
def test_a_memory_bank_that_runs_out_of_spare_rows_is_a_warning(level: str, banks: int, words: str) -> None:
    element = f"row_remapper_histogram_{level}"
    histogram = f"<row_remapper_histogram><{element}>{banks} bank(s)</{element}></row_remapper_histogram>"
    same = histogram.replace(f"{banks} bank", "0 bank")
    xml = H100.replace("</remapped_rows>", f"{same}</remapped_rows>")
    (found,) = [f for f in findings(same, histogram, 1, xml) if f.verdict is not Verdict.PASS]
    assert flagged([found]) == [("warn", "gpu0", f"remap_banks_{level}", "watch")]
    assert found.message.startswith(words)


@pytest.mark.parametrize(
    ("declared", "reported"),
    [
        ({"nvidia_driver_persistence": True}, True),
        ({"nvidia_driver_version": "580.126.09"}, True),  # the role's default applies
        ({"nvidia_driver_version": "580.126.09", "nvidia_driver_persistence": False}, False),
        ({"nvidia_driver_version": "580.126.09", "nvidia_driver_enabled": False}, False),  # unmanaged
        ({}, False),
    ],
)
def test_persistence_mode_off_on_all_gpus_is_reported_where_the_driver_is_declared(
    declared: dict[str, Any], reported: bool
) -> None:
    old, new = "<persistence_mode>Enabled<", "<persistence_mode>Disabled<"
    found = flagged(findings(old, new, node=make_node(**declared)))
    assert found == ([("warn", "node", "persistence", "fix configuration")] if reported else [])


@pytest.mark.parametrize("code", [48, 64])
def test_a_gpu_with_a_failed_row_remap_is_to_be_replaced_and_not_reset(code: int) -> None:
    old = "<remapped_row_failure>No<"
    smi = make_output("nvidia_smi", H100.replace(old, old.replace("No", "Yes"), 1))
    text = {
        48: "An uncorrectable double bit error (DBE) has been detected",
        64: "Row Remapper: Failed to remap row.",
    }
    head = f"100.000000 gpu-01 kernel: NVRM: Xid (PCI:0000:1a:00): {code}, pid='<unknown>', name=<unknown>"
    log = f"{head}, {text[code]}\n"
    found = inventory(nvidia_smi=smi, journal=make_output("journal", log))
    bad = [f for f in found if f.verdict is not Verdict.PASS]
    assert {(f.device, f.action) for f in bad} == {("gpu0", "replace part")}
    assert [f.metric for f in bad] == (["remap_failure"] if code == 64 else ["remap_failure", "xid.48"])
    assert any(f"{code}, pid=" in line for f in bad for line in f.evidence)
