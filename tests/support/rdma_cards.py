"""Facts of a node's RDMA cards, and the findings of network_ports for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from provision.checks.judge import ACTIONS, Finding, Verdict
from provision.checks.network import network_ports
from tests.support.checks import flagged, make_node

DAY = 86400


class Cards:
    """The facts of a node with eight InfiniBand cards and a storage card with Ethernet."""

    def __init__(self) -> None:
        self.ports = [self.port(f"mlx5_{i}") for i in range(8)]
        self.ports.append(
            {
                **self.port(
                    "mlx5_8", link_layer="Ethernet", board_id="MT_0000000359", rate=200, link="4X HDR"
                ),
                **{"sm_lid": 0, "pkeys": "", "netdev": "eth2", "netdev_up": True, "roce_v2_ipv4": ""},
            }
        )
        self.counters = [
            dict.fromkeys(COUNTERS, 0) | {"device": p["device"], "port": "1"} for p in self.ports
        ]
        self.cards = [
            {"device": p["device"], "board_id": p["board_id"], "link_width": 16, "link_width_max": 16}
            for p in self.ports
        ]
        self.functions = [
            {"address": p["address"], "device_id": "1021", "device": p["device"], "link_width_max": 16}
            for p in self.ports
        ]
        self.mtus = {f"{p['device']}/1": 4096 for p in self.ports}
        self.uptime: int | None = 20 * DAY
        self.earlier: Any = None
        self.link_downs: Any = {}
        self.problems: dict[str, str] = {}

    def judge(self, **variables: Any) -> list[Finding]:
        node = replace(make_node(**variables), facts=self.facts(), problems=self.problems)
        findings = network_ports.judge(node, network_ports.parse(node, {}), {})
        assert findings
        for finding in findings:
            assert finding.action in ACTIONS
            assert finding.verdict in (Verdict.PASS, Verdict.SKIP) or finding.action != "none", finding
        return findings

    def flagged(self, **variables: Any) -> list[tuple[Any, ...]]:
        """Return verdict, device, metric and action of each finding that neither passed nor was skipped."""
        quiet = (Verdict.PASS, Verdict.SKIP)
        return flagged(self.judge(**variables), quiet=quiet)

    @staticmethod
    def port(device: str, **more: Any) -> dict[str, Any]:
        return {
            **{"device": device, "port": "1", "link_layer": "InfiniBand"},
            **{"state": "ACTIVE", "phys_state": "LinkUp"},
            **{"rate": 400, "link": "4X NDR", "lid": 42, "sm_lid": 1, "board_id": "MT_0000000838"},
            **{"address": f"0000:{0x18 + int(device[5:]):02x}:00.0", "pkeys": "0x7fff,0x8001", "gids": 1},
            **{"roce_v2_ipv4": "", "netdev": None, "netdev_up": None, "carrier_downs": None, **more},
        }

    def facts(self) -> dict[str, Any]:
        facts = {
            **{"hca.ports": self.ports, "hca.counters": self.counters, "hca.functions": self.functions},
            **{"hca.mtus": self.mtus, "firmware.rdma": self.cards, "clock.uptime_s": self.uptime},
            **{"hca.earlier": self.earlier, "hca.link_downs": self.link_downs},
        }
        return {name: value for name, value in facts.items() if name not in self.problems}

    def roce(self) -> None:
        """Replace all cards with eight RoCE cards."""
        self.ports = [
            {
                **self.port(f"mlx5_{i}", link_layer="Ethernet", sm_lid=0, pkeys=""),
                **{"netdev": f"eth{i}", "netdev_up": True, "carrier_downs": 1},
                **{"roce_v2_ipv4": "3", "gids": 4},
            }
            for i in range(8)
        ]
        del self.functions[8]


COUNTERS = (
    *("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_xmit_discards"),
    *("local_link_integrity_errors", "excessive_buffer_overrun_errors", "port_rcv_remote_physical_errors"),
)
