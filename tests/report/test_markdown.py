"""report.md: a ticket that shows node text without letting it act as markup."""

from __future__ import annotations

import re

import pytest

from provision.checks.health import FleetHealth
from provision.report.markdown import escape, render
from tests.support import samples


def text(fleet: FleetHealth) -> str:
    return "".join(render(fleet))


def cells(line: str) -> list[str]:
    return re.split(r"(?<!\\)\|", line)[1:-1]


def test_the_ticket_names_the_culprits_with_serial_value_limit_action_and_source() -> None:
    ticket = text(samples.demo())
    assert ticket.startswith("# GPU fleet health: 1 of 3 nodes unhealthy, 2 healthy\n")
    row = next(line for line in ticket.splitlines() if "gpu2-gpu6" in line)
    shown = [cell.strip() for cell in cells(row)]
    assert shown[:2] == ["gpu-03", "gpu2-gpu6"]
    assert "1652823055002, 1652823055006" in shown
    assert "61.3 GB/s" in shown
    assert "≥ 335 GB/s" in shown
    assert "Action: **replace part**" in ticket
    assert "conf/nd96isr_h100_v5.conf" in ticket
    assert "    GPU 5: FAULTY" in ticket
    assert "2 nodes: gpu-\\[01-02\\]" in ticket


def test_what_was_not_measured_is_there() -> None:
    ticket = text(samples.unmeasured())
    assert "## ? Not measured" in ticket
    assert "unreachable: ssh: connect to 10.0.3.44" in ticket
    assert "did not run: nccl_all_reduce" in ticket
    assert "16 of 27 checks measured, 1 skipped (not applicable)" in ticket
    assert "no node" in text(samples.nothing())


def test_hostile_text_stays_text() -> None:
    ticket = text(samples.hostile())
    outside = [line for line in ticket.splitlines() if not line.startswith("    ")]
    assert not any(re.search(r"<\s*(script|img|!--)", line) for line in outside)
    assert not any(re.search(r"(?<!\\)\]\(", line) for line in outside)
    assert not any(re.search(r"@\w|(?<!\\)#\d|https?://", line) for line in outside)
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e\ud800-\udfff]", ticket)
    for line in outside:
        if line.startswith("| "):
            assert len(cells(line)) in (2, 7), line


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("a|b", "a\\|b"),
        ("gpu_burn", "gpu_burn"),
        ("_gpu_", "\\_gpu\\_"),
        ("`x` *y*", "\\`x\\` \\*y\\*"),
        ("one\ntwo", "one two"),
        ("<b>&", "&lt;b\\>&amp;"),
        ("[a](b)", "\\[a\\](b)"),
    ],
)
def test_escape(said: str, shown: str) -> None:
    assert escape(said) == shown


def test_a_ticket_fits_into_a_ticket() -> None:
    assert len(text(samples.hostile())) < 65_536
    ticket = text(samples.large(2000, 200))
    assert len(ticket) < 65_536
    assert "150 nodes: gpu\\_inventory" in ticket or "150 nodes: gpu_inventory" in ticket


def test_what_lies_between_nodes_is_there() -> None:
    ticket = text(samples.between())
    assert ticket.startswith(
        "# GPU fleet health: 2 of 3 nodes with warnings, 1 healthy; 1 failure between nodes"
    )
    failed = ticket.partition("## ✗ Failed")[2].partition("\n## ")[0]
    assert "link gpu-01-gpu-03/rail mlx5_2 is slow" in failed
    assert "    gpu-01 and gpu-03 on rail mlx5_2 in round 1: 150 Gb/s" in failed
    assert (
        "`gpuprov validate /srv/fleet/inventory.yml --checks pair_bandwidth`: after the repair of the fabric"
        in ticket
    )
