"""Logs of fabric manager and IMEX: simulated, read by the program for nodes, judged by gpu_inventory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from provision.checks.check import CheckNode, Output
from provision.checks.gpu import gpu_inventory
from provision.checks.judge import Verdict
from provision.checks.thresholds import for_sku
from provision.desired.skus import all_skus
from tests.lab_silicon.look import look_of

Silicon = Any
CONFIGURE = "fix configuration"
FABRICS = {"h100-sxm": "nvswitch", "a100-sxm-80": "nvswitch", "gb200": "imex"}
ARCHITECTURES = {"a100-sxm-80": "ampere", "h100-sxm": "hopper"}
SWITCHES: dict[str, tuple[str, ...] | None] = {
    "switch_fatal": ("fail", "node", "sxid.20034", "investigate"),
    "switch_non_fatal": None,  # at the same moment, so the same incident
    "topology": ("fail", "node", "fabric_log.missing_switch", "reboot"),
    "multicast": ("warn", "node", "fabric_log.unknown_gpu", "reset GPU"),
}
TROUBLE: dict[str, dict[str, tuple[str, ...] | None]] = {
    "h100-sxm": SWITCHES,
    "a100-sxm-80": SWITCHES,
    "gb200": {
        "imex_peers": ("warn", "node", "fabric_log.peer_lost", "investigate"),
        "imex_address": ("warn", "node", "fabric_log.no_interface", CONFIGURE),  # until a peer connects
    },
}


@pytest.fixture
def flagged(node: Callable[..., Silicon]) -> Callable[..., list[tuple[Any, ...]]]:
    """Return a function that breaks a node of a kind and judges its inventory from observation and tools."""

    def run(sku: str, *faults: str, fields: tuple[str, ...] = (), **more: Any) -> Any:
        machine = node(sku, **more)
        machine.break_(*faults)
        look = look_of(machine, gpu_inventory.FACTS)
        # This folder has no packages, so it is unknown whether their versions match.
        assert set(look.problems) <= {"fabric.manager_matches_driver"}
        known = all_skus()[sku]
        gpu: dict[str, Any] = {"count": 4 if sku == "gb200" else 8, "sku": sku, "fabric": FABRICS[sku]}
        gpu |= {
            "architecture": ARCHITECTURES.get(sku, "blackwell"),
            "product_names": list(known.product_names),
        }
        seen = CheckNode("gpu-01", {"gpu": gpu}, {}, look.facts, look.problems)
        outputs = {}
        for command in gpu_inventory.commands(seen, {}):
            done = machine.run(*command.argv)
            words = (command.name, command.argv, done.returncode, done.stdout, done.stderr, 1.0)
            outputs[command.name] = Output(*words)
        found = gpu_inventory.judge(seen, gpu_inventory.parse(seen, outputs), for_sku(sku))
        names = fields or ("verdict", "device", "metric", "action")
        wrong = [one for one in found if one.verdict not in (Verdict.PASS, Verdict.SKIP)]
        return [tuple(getattr(one, name) for name in names) for one in wrong]

    return run


@pytest.mark.parametrize("sku", sorted(TROUBLE))
def test_trouble_in_the_logs_is_found_on_each_generation(flagged: Any, sku: str) -> None:
    faults = (f"fabric_line kind={kind}" for kind in TROUBLE[sku])
    assert set(flagged(sku, *faults)) == set(filter(None, TROUBLE[sku].values()))


@pytest.mark.parametrize("sku", ["h100-sxm", "gb200"])
def test_logs_of_healthy_machines_are_not_flagged(flagged: Any, sku: str) -> None:
    kinds = ("switch_ignored", "late_driver", "multicast", "imex_address", "imex_peers")
    assert flagged(sku, *(f"fabric_line_harmless kind={kind}" for kind in kinds)) == []


def test_the_log_gives_the_reason_why_gpus_have_not_joined(flagged: Any) -> None:
    fields = ("message", "metric", "action")
    (found,) = flagged("h100-sxm", "fabric_line kind=topology", fabric=False, fields=fields)
    assert found[1:] == ("fabric_state", "reboot")
    assert "has not joined the NVLink fabric" in found[0]
    assert "an NVSwitch is missing" in found[0]
