"""The simulated RDMA cards: facts read by the program for nodes, and network_ports' findings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from provision.checks.check import CheckNode
from provision.checks.judge import Verdict
from provision.checks.network import network_ports
from tests.lab_silicon.look import look_of

Silicon = Any
CABLE, CONFIGURE = "reseat or check cable", "fix configuration"


@pytest.fixture
def flagged(bare: Callable[..., Silicon]) -> Callable[..., list[tuple[str, str, str, str]]]:
    """Return a function that breaks a fresh node and judges its network from one observation."""

    def run(*faults: str, network: str = "ib", sku: str = "h100-sxm", **variables: Any) -> Any:
        node = bare(sku, network=network)
        node.break_(*faults)
        look = look_of(node, network_ports.FACTS)
        seen = CheckNode("gpu-01", {"gpu": {"count": 8, "sku": sku}}, variables, look.facts, look.problems)
        findings = network_ports.judge(seen, network_ports.parse(seen, {}), {})
        quiet = (Verdict.PASS, Verdict.SKIP)
        return [(f.verdict.value, f.device, f.metric, f.action) for f in findings if f.verdict not in quiet]

    return run


@pytest.mark.parametrize(("network", "sku", "count"), [("ib", "a100-sxm-80", 8), ("none", "h100-sxm", 0)])
def test_a_healthy_network_has_nothing_to_flag(flagged: Any, network: str, sku: str, count: int) -> None:
    assert flagged(network=network, sku=sku, gpuprov_expected_nics=count) == []


# Each fault is on a different card and of a different kind, since peers are judged by the majority. Interface
# counters keep counting; InfiniBand counters have 8 or 16 bits, so this many losses or errors saturate them.
FLAPS = {"port_flaps nic=4 count=2000": ("fail", "mlx5_4", "link_downed", CABLE)}
EACH = {
    "port_flaps nic=4 count=2000": ("warn", "mlx5_4", "link_downed", "watch"),
    "nic_pcie_width nic=0 width=8": ("fail", "mlx5_0", "pcie_width", CABLE),
    "port_down nic=1": ("fail", "mlx5_1", "state", CABLE),
    "port_down nic=2 how=no_sm": ("fail", "mlx5_2", "state", CONFIGURE),
    "port_slow nic=3 link=2X": ("fail", "mlx5_3", "rate", CABLE),
    "port_errors nic=5": ("warn", "mlx5_5", "symbol_error", "watch"),
    "port_mtu nic=6 mtu=1024": ("fail", "mlx5_6", "mtu", CONFIGURE),
    "port_pkey nic=7": ("fail", "mlx5_7", "pkeys", CONFIGURE),
}
RECEIVED = "port_rcv_errors"
OTHER_FORMS = {
    "port_down nic=1 how=training": ("fail", "mlx5_1", "state", CABLE),
    "port_slow nic=3 link=EDR": ("fail", "mlx5_3", "rate", CABLE),
    f"port_errors nic=5 counter={RECEIVED}": ("fail", "mlx5_5", RECEIVED, CABLE),
    "port_no_sm nic=6": ("fail", "mlx5_6", "sm_lid", CONFIGURE),
    "nic_driver nic=7": ("fail", "hca@0000:e0:00.0", "hcas", "investigate"),
}
ROCE = {
    **FLAPS,
    "port_mtu nic=0 mtu=1024": ("fail", "mlx5_0", "mtu", CONFIGURE),
    "port_down nic=1": ("fail", "mlx5_1", "state", CABLE),
    "port_gid nic=5": ("fail", "mlx5_5", "gid", CONFIGURE),
    "port_gid nic=6 how=absent": ("fail", "mlx5_6", "gid", CONFIGURE),
}
GONE = {"nic_missing nic=2": ("fail", "node", "hcas", CABLE)}


@pytest.mark.parametrize(
    ("faults", "network"),
    [(EACH, "ib"), (OTHER_FORMS, "ib"), (GONE, "ib"), (ROCE, "roce")],
    ids=["each", "other forms of them", "a card that is gone", "of RoCE"],
)
def test_each_fault_is_found_where_it_is(flagged: Any, faults: dict[str, Any], network: str) -> None:
    assert sorted(flagged(*faults, network=network, gpuprov_expected_nics=8)) == sorted(faults.values())


@pytest.mark.parametrize(("network", "layer"), [("ib", "InfiniBand"), ("roce", "Ethernet")])
@pytest.mark.parametrize("declared", [False, True])
def test_a_node_with_all_ports_switched_off_is_flagged(
    flagged: Any, network: str, layer: str, declared: bool
) -> None:
    ports = [{"device": f"mlx5_{number}", "link_layer": layer} for number in range(8)]
    each = [("fail", port["device"], "state", CONFIGURE) for port in ports]
    found = flagged("ports_off", network=network, rdma_expected_ports=ports if declared else [])
    assert found == (each if declared else [("warn", "node", "state", CONFIGURE)])


@pytest.mark.parametrize("network", ["ib", "roce"])
def test_what_only_looks_broken_is_not_flagged(flagged: Any, network: str) -> None:
    oddities = (
        "port_disabled nic=3",
        "port_errors_old nic=4 count=200",
        "port_errors_old nic=5 counter=port_rcv_errors count=200",
        "port_flap_boot nic=6",
        "storage_port_down",
        "cables_split",
    )
    assert flagged(*oddities, network=network, gpuprov_expected_nics=8) == []


def test_a_fault_that_is_healed_leaves_nothing(bare: Callable[..., Silicon]) -> None:
    node = bare()
    before = look_of(node, network_ports.FACTS)
    node.break_("nic_missing nic=0", "nic_driver nic=1", "port_slow nic=2", "port_mtu nic=3")
    assert look_of(node, network_ports.FACTS).facts != before.facts
    node.fault("clear")
    assert look_of(node, network_ports.FACTS).facts == before.facts
