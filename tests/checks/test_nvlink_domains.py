"""NVLink domains of an NVL72: trays outside any domain, and racks with trays in different domains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import pytest

from provision.checks import check
from provision.checks.fleet import nvlink_domains
from provision.checks.fleet.nvlink_domains import Tray
from provision.checks.judge import Verdict
from provision.checks.judging.node_facts import NodeFacts
from provision.node.observe import nvidia_smi as facts
from provision.runs import store
from provision.runs.store import RunFolder
from provision.validate import campaign
from tests.support.checks import flagged, inventory, make_node, make_output, sample

H100 = sample("gpu_inventory/h100-v13.xml")
RACK = "4bbd4d4f-1f1a-4c8b-8c0e-0b5b1c5e7a11"
OTHER = "0c1d2e3f-1f1a-4c8b-8c0e-0b5b1c5e7a11"
ZERO = "00000000-0000-0000-0000-000000000000"


def answer(cluster: str, clique: str, count: int = -1, base: str = H100) -> str:
    """Return nvidia-smi's document with this NVLink domain on the first `count` GPUs (-1: all)."""
    end = "<status>Success</status>\n\t\t</fabric>"
    assert end in base
    pair = f"<cliqueId>{clique}</cliqueId><clusterUuid>{cluster}</clusterUuid>"
    return base.replace(end, f"<status>Success</status>{pair}</fabric>", count)


def judged(xml: str, fabric: str = "imex") -> list[tuple[object, ...]]:
    return flagged(inventory(nvidia_smi=make_output("nvidia_smi", xml), node=make_node(fabric=fabric)))


@pytest.mark.parametrize(("cluster", "clique"), [(ZERO, "0"), (ZERO, "32766"), (RACK, "0")])
def test_a_tray_with_zeros_is_in_no_domain(cluster: str, clique: str) -> None:
    assert judged(answer(cluster, clique)) == [("fail", "node", "fabric_domain", "fix configuration")]


def test_a_board_with_switches_of_its_own_has_zeros_when_healthy() -> None:
    assert judged(answer(ZERO, "0"), "nvswitch") == []
    assert judged(answer(ZERO, "0"), "nvlink5") == []


def test_a_healthy_tray_passes_and_one_odd_gpu_of_it_is_named() -> None:
    assert judged(answer(RACK, "32766")) == []
    odd = answer(RACK, "32766", base=answer(RACK, "4026", 1))
    assert judged(odd) == [("fail", "gpu0", "fabric_domain", "fix configuration")]


def test_a_tray_whose_domain_is_unknown_is_not_measured() -> None:
    assert {row[0] for row in judged(H100)} == {"error"}


def racks(trays: Mapping[str, tuple[str, str]]) -> dict[str, Verdict]:
    found = nvlink_domains.judge({name: Tray(*each) for name, each in trays.items()})
    return {name: finding.verdict for name, (finding,) in found.items()}


def test_trays_are_compared_within_their_rack_by_the_whole_pair() -> None:
    one, two = f"{RACK}, clique 32766", f"{OTHER}, clique 32766"
    whole = {f"a{number}": ("a", one) for number in range(3)}
    assert racks({**whole, "b0": ("b", two), "b1": ("b", two)}) == {}
    assert racks({**whole, "a9": ("a", two)}) == {"a9": Verdict.FAIL}
    assert racks({**whole, "a9": ("a", f"{RACK}, clique 4026")}) == {"a9": Verdict.FAIL}
    part = {"a8": ("a", two), "a9": ("a", two)}
    assert racks({**whole, **part}) == dict.fromkeys(part, Verdict.WARN), "a partition on purpose"
    half = {"a0": ("a", one), "a1": ("a", one), "a2": ("a", two), "a3": ("a", two)}
    assert racks(half) == dict.fromkeys(half, Verdict.WARN)


def test_a_run_names_the_tray_that_is_in_another_domain_than_its_rack(tmp_path: Path) -> None:
    folder = RunFolder.create("validate", {}, runs=tmp_path / "runs")
    folder.note(inventory="inventory.yml", asked=["gpu_inventory"])
    gpu = {**make_node(fabric="imex").gpuprov_node["gpu"], "vendor": "nvidia"}
    for number in range(1, 5):
        name, xml = f"tray-{number}", answer(OTHER if number == 3 else RACK, "32766")
        variables = {"gpuprov_rack": "r1"}
        folder.append("facts", asdict(NodeFacts(name, {}, {"gpu": gpu}, variables)))
        outputs = (
            make_output("journal", sample("gpu_inventory/journal-clean.txt")),
            make_output("nvidia_smi", xml),
            make_output("nvlink", sample("gpu_inventory/nvlink-h100.txt")),
        )
        store.keep_raw(folder, check.Raw(name, "gpu_inventory", outputs, 2.0))
    fleet = campaign.rejudge(folder)
    assert {node.node: node.verdict for node in fleet.nodes if node.verdict is not Verdict.PASS} == {
        "tray-3": Verdict.FAIL
    }
    (finding,) = fleet.nodes[2].checks[0].wrong
    assert finding.message.startswith(
        f"rack r1 is split into NVLink domains (3 trays in {RACK}, clique 32766; "
    )


@pytest.mark.parametrize(
    ("row", "outside"),
    [
        (f"{RACK}, 32766", [[], []]),
        (f"{ZERO}, 0", [["GPU 0"], ["GPU 0"]]),
        # nvidia-smi 550.163.01 and 555.58.02 print the label into the cell.
        (f"clusterUuid {RACK}, cliqueId 32766", [[], []]),
        (f"clusterUuid {ZERO}, cliqueId 0", [["GPU 0"], ["GPU 0"]]),
    ],
)
def test_the_facts_name_the_gpus_without_a_domain(row: str, outside: list[list[str]]) -> None:
    names = list(facts.WITHOUT)
    (probe,) = facts.nvidia_smi_probes(names)
    assert probe.command[1] == "--query-gpu=fabric.clusterUuid,fabric.cliqueId,pci.bus_id,serial"
    found = facts.parse_query(names, f"{row}, 00000000:01:00.0, 165\n")
    assert [found[name] for name in names] == outside
    lost = facts.parse_query(names, "[GPU is lost], [GPU is lost], 00000000:01:00.0, 165\n")
    assert all("does not answer" in str(lost[name]) for name in names)


@pytest.mark.parametrize(
    ("fabric", "expected"),
    [
        ("imex", ("warn", "node", "xid.145", "investigate")),
        ("nvlink5", ("fail", "node", "xid.145", "reset GPU")),
    ],
)
def test_a_tray_is_not_blamed_for_the_echo_of_a_link_that_another_node_lost(
    fabric: str, expected: tuple[str, ...]
) -> None:
    echo = "145, RLW_SRC_TRACK Fatal XC0 i0 Link 03 (0x00000007 0x00000001)"
    buses = ("04", "23", "43", "64")
    lines = [
        f"1700000{at}.000000 n kernel: NVRM: Xid (PCI:0000:{bus}:00): {echo}"
        for at, bus in enumerate(buses, 100)
    ]
    journal = make_output("journal", "\n".join(lines) + "\n")
    node = make_node(fabric=fabric)
    found = inventory(journal=journal, nvidia_smi=make_output("nvidia_smi", answer(RACK, "32766")), node=node)
    assert flagged(found) == [expected]
