"""Status text of a fleet: nodes by verdict, one line per cause, and commands that name the nodes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from provision import paths
from provision.fleet import Fleet, Node
from provision.remote.protocol import NodeError
from provision.validate.status import document, text
from provision.validate.status.status import FleetStatus, Watched, judged
from tests.support.health_results import failed, finding, printed, result
from tests.support.slurm import sample

NAMES = [f"gpu-{number:02}" for number in range(1, 31)]
VALIDATOR = jsonschema.Draft202012Validator(
    json.loads((paths.DATA / "schemas/status.schema.json").read_text())
)


def fleet(**outputs: bytes | NodeError) -> FleetStatus:
    """Return thirty nodes, healthy except for the given ones (`gpu_03=…`)."""
    given = {name.replace("_", "-"): output for name, output in outputs.items()}
    nodes = {name: judged(name, given.get(name, printed())) for name in NAMES}
    machines = {name: Node(name, (), {}) for name in NAMES}
    return FleetStatus(Fleet(Path("fleet.yml"), machines, {}), "2026-11-25T10:00:30Z", nodes)


def shown(status: FleetStatus, width: int = 200) -> str:
    VALIDATOR.validate(json.loads(document.line(status)))
    return text.render(status, width)


def slurm(name: str, state: str, reason: str = "") -> dict[str, str]:
    return {"name": name, "text": sample(name, state, reason), "problem": ""}


def test_a_healthy_fleet_takes_four_lines() -> None:
    assert shown(fleet()) == (
        "fleet.yml · 30 nodes · 2026-11-25 10:00:30 UTC\n"
        "all 30 nodes healthy\n"
        "oldest health result: 30 s (gpu-01)\n"
        "✓ PASS      30  gpu-[01-30]\n"
    )


def test_one_cause_is_shown_once_for_all_its_nodes() -> None:
    lost = NodeError("unreachable", "no route to host", "is it powered on?")
    text = shown(fleet(gpu_04=lost, gpu_05=lost, gpu_06=lost, gpu_09=printed(b"", problem="absent")))
    assert "4 of 30 nodes not proven (could not be measured), 26 healthy" in text
    assert "· 3 nodes unreachable" in text
    assert "? ERROR      4  gpu-[04-06,09]" in text
    assert text.count("no route to host") == 1
    assert (
        "  ? ERROR  3 nodes: unreachable: no route to host → is it powered on?\n      gpu-[04-06]\n" in text
    )


def test_a_failed_node_is_shown_with_its_part() -> None:
    text = shown(fleet(gpu_03=printed(failed())))
    assert "1 of 30 nodes unhealthy, 29 healthy" in text
    assert "✗ FAIL  gpu_inventory: gpu3 has fallen off the bus (Xid 79) → power-cycle" in text
    assert "gpu-03 gpu3 (serial 1650923004321, 00000000:18:00.0)" in text
    assert "next: gpuprov validate fleet.yml --nodes gpu-03 --stage quick\n" in text


def test_a_reason_that_outlived_its_drain_is_not_shown() -> None:
    """Slurm keeps the reason after RESUME."""
    stale = "gpuprov: up [root@2026-11-25T10:00:00]"
    text = shown(
        fleet(
            gpu_03=printed(slurm=slurm("gpu-03", "IDLE", stale)),
            gpu_04=printed(slurm=slurm("gpu-04", "IDLE+DRAIN", "broken fan [root@2026-11-25T10:00:00]")),
            gpu_05=printed(slurm=slurm("gpu-05", "MIXED+COMPLETING", stale)),
        )
    )
    assert "gpuprov: up" not in text
    assert "  gpu-04: IDLE+DRAIN: broken fan" in text


def test_results_of_many_ages_are_one_cause() -> None:
    old = {f"gpu_{number:02}": printed(uptime=86400 + 600 * number) for number in range(1, 21)}
    text = shown(fleet(**old))
    assert "20 nodes: the health result is … min old: systemctl status gpuprov-node-health.timer" in text
    assert "oldest health result: 30 s (gpu-21)" in text, "a stale result is none that counts"


def test_the_command_that_applies_the_role_names_inventory_and_nodes() -> None:
    absent = printed(b"", problem="absent")
    text = shown(fleet(**{f"gpu_{number:02}": absent for number in range(1, 21)}), width=60)
    assert "no health result: the role node_health is not applied" in " ".join(text.split())
    assert "\nnext: gpuprov up fleet.yml --nodes 'gpu-[01-20]'\n" in text, "it is one line, at any width"


def test_pending_findings_are_one_line() -> None:
    pending = [finding(state="pending"), finding(state="pending", device="gpu4")]
    text = shown(
        fleet(gpu_02=printed(result(findings=pending)), gpu_07=printed(result(findings=pending[:1])))
    )
    assert "all 30 nodes healthy" in text
    line = "pending: 3 findings not seen often enough to count yet, on gpu-[02,07]: gpu_inventory xid (3)"
    assert f"\n{line}\n" in text


def test_other_versions_are_a_note() -> None:
    text = shown(fleet(gpu_02=printed(result(gpuprov="0.0.9")), gpu_03=printed(result(gpuprov="0.0.9"))))
    assert "all 30 nodes healthy" in text
    assert "note: the health program of gpu-[02-03] is gpuprov 0.0.9, this is " in text


def test_what_slurm_says_and_whom_it_should_not_use() -> None:
    drained = slurm("gpu-04", "IDLE+DRAIN", "gpuprov: xid [root@2026-11-25T10:00:00]")
    text = shown(
        fleet(
            gpu_01=printed(slurm=slurm("gpu-01", "MIXED")),
            gpu_03=printed(failed(), slurm=slurm("gpu-03", "MIXED")),
            gpu_04=printed(failed(), slurm=drained),
            gpu_05=printed(slurm={"name": "gpu-05", "text": "Node gpu-05 not found\n", "problem": ""}),
        )
    )
    assert "\nSlurm: 2 MIXED, 1 IDLE+DRAIN\n" in text
    assert "  gpu-04: IDLE+DRAIN: gpuprov: xid [root@2026-11-25T10:00:00]\n" in text
    assert "  gpu-05: no answer of Slurm's: Node gpu-05 not found\n" in text
    assert "\nnext: scontrol update NodeName=gpu-03 State=DRAIN Reason=gpuprov\n" in text


def test_no_command_takes_a_name_that_is_none() -> None:
    """The name comes from a node."""
    evil = {"name": "x;reboot", "text": sample("x;reboot", "IDLE"), "problem": ""}
    text = shown(fleet(gpu_03=printed(failed(), slurm=evil)))
    assert "scontrol update" not in text


def test_nothing_of_a_node_moves_the_cursor() -> None:
    text = shown(
        fleet(
            gpu_01=printed(b"\x1b[2J"),
            gpu_02=b"\x1b[2J",
            gpu_03=printed(b"", problem="refused", detail="\x1b[2J"),
            gpu_04=printed(slurm={"name": "\x1b[2J", "text": "\x1b[2J", "problem": "\x1b[2J"}),
            gpu_05=printed(slurm=slurm("gpu-05", "IDLE\x1b[2J", "\x1b[2J")),
            gpu_06=NodeError("garbage", "it said �[2J", "look"),
        )
    )
    assert "\x1b" not in text
    assert all(line.isprintable() for line in text.splitlines())


def test_colours_add_nothing_else() -> None:
    import re

    status = fleet(gpu_03=printed(failed()))
    coloured = text.render(status, 200, color=True)
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == text.render(status, 200)


@pytest.mark.parametrize(
    ("before", "after", "differs"),
    [
        ({}, {"gpu_03": printed(failed())}, True),
        ({"gpu_03": printed(failed())}, {"gpu_03": printed(failed(), uptime=86444.0)}, False),
        ({"gpu_03": printed(uptime=87400)}, {"gpu_03": printed(uptime=87500)}, False),
        ({}, {"gpu_03": printed(uptime=87500)}, True),
        ({}, {"gpu_03": printed(result(findings=[finding(state="pending")]))}, True),
        (
            {"gpu_03": printed(slurm=slurm("gpu-03", "IDLE"))},
            {"gpu_03": printed(slurm=slurm("gpu-03", "DOWN"))},
            True,
        ),
    ],
)
def test_what_counts_as_a_change(before: dict[str, Any], after: dict[str, Any], differs: bool) -> None:
    assert (fleet(**before).signature != fleet(**after).signature) is differs


def repaired(node: str) -> Watched:
    return Watched("repair", f"id-{node}", "repair", next=f"gpuprov return {node} fleet.yml")


def test_who_replaced_whom_and_what_to_type_next() -> None:
    watched = {
        "gpu-05": Watched("failed", "id-5", "choose", next="gpuprov watch spare fleet.yml --nodes NODE"),
        "gpu-06": Watched("failed", "id-6", "place", "gpu-29", next="gpuprov status fleet.yml -l gpu-29"),
        "gpu-03": Watched("repair", "id-3", "repair", "gpu-30", "Xid 79", "gpuprov return gpu-03 fleet.yml"),
        "gpu-30": Watched("replaces", "id-3", "repair", "gpu-03", "Xid 79"),
        "gpu-28": Watched("spare"),
    }
    status = replace(fleet(gpu_03=printed(failed()), gpu_05=printed(failed())), watched=watched)
    told = shown(status)
    assert (
        "failed: gpu-05, it has no spare yet; next step: choose (id-5)\n"
        "failed: gpu-06, gpu-29 takes its place; next step: place (id-6)\n"
        "in repair: gpu-03, gpu-30 took its place (id-3)\n"
        "spares: gpu-28\n" in told
    )
    commands = [line.removeprefix("next: ") for line in told.splitlines() if line.startswith("next: ")]
    assert commands == ["gpuprov watch spare fleet.yml --nodes NODE", "gpuprov return gpu-03 fleet.yml"]
    nodes = {one["node"]: one["watch"] for one in document.document(status)["nodes"]}
    assert (nodes["gpu-30"]["role"], nodes["gpu-30"]["other"]) == ("replaces", "gpu-03")
    assert nodes["gpu-03"]["next"] == "gpuprov return gpu-03 fleet.yml"
    assert nodes["gpu-06"]["next"] == "gpuprov status fleet.yml -l gpu-29"
    assert nodes["gpu-01"] is None


def test_many_nodes_in_repair_take_few_lines() -> None:
    told = shown(replace(fleet(), watched={name: repaired(name) for name in NAMES[:10]}))
    assert told.count("in repair: ") == 6
    assert "  … and 4 more out of service: gpuprov watch state lists them\n" in told
    assert told.count("next: gpuprov return ") == 3
    assert "next: gpuprov watch state fleet.yml\n" in told
