"""Comparison of the NVLink domains of the trays of each rack (pure).

All trays of an NVL72 are in one domain, which is the pair of ClusterUUID and CliqueId. Racks are not compared
with each other: two may have the same clique number (meta-pytorch/torchcomms issue 3612).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from provision.checks.check import CheckNode
from provision.checks.gpu import fabric
from provision.checks.gpu.inventory_rules import ID
from provision.checks.health import NodeHealth
from provision.checks.judge import Finding, Verdict
from provision.text import many

_OWN = "if that is on purpose, give each domain a gpuprov_rack of its own"


@dataclass(frozen=True, slots=True)
class Tray:
    """One tray: its rack, and the NVLink domain of most of its GPUs."""

    rack: str
    domain: str


def tray_of(node: NodeHealth, one: CheckNode | None) -> Tray | None:
    """Return rack and domain of a node; None if it is not a tray with a known rack and domain."""
    rack = one.variables.get("gpuprov_rack") if one else None
    if one is None or rack is None or one.gpuprov_node["gpu"].get("fabric") != "imex":
        return None
    values: dict[str, dict[str, object]] = defaultdict(dict)
    for check in node.checks:
        for m in check.measurements if check.check == ID else ():
            values[m.metric][m.device] = m.value
    domains = Counter(filter(None, (fabric.domain_of(values, device) for device in values["fabric_cluster"])))
    return Tray(str(rack), domains.most_common(1)[0][0]) if domains else None


def judge(trays: Mapping[str, Tray]) -> dict[str, list[Finding]]:
    """Return findings for trays outside the domain of their rack, by node. `trays`: by node name."""
    racks: dict[str, dict[str, str]] = defaultdict(dict)
    for name, tray in trays.items():
        racks[tray.rack][name] = tray.domain
    findings = {}
    for rack, domains in racks.items():
        count = Counter(domains.values())
        (usual, having), *others = count.most_common()
        if not others:
            continue
        split = 2 * having <= len(domains)
        for name, domain in domains.items():
            if split or domain != usual:
                alone = not split and count[domain] == 1
                findings[name] = [_differs(rack, domain, count, alone=alone)]
    return findings


def _differs(rack: str, domain: str, count: Counter[str], *, alone: bool) -> Finding:
    sides = "; ".join(f"{many(trays, 'tray')} in {one}" for one, trays in count.most_common(4))
    message = f"rack {rack} is split into NVLink domains ({sides}), this tray is in {domain}; {_OWN}"
    # A lone tray has not joined its rack. Several trays in another domain may be a deliberate partition, and
    # without a majority the rack is at fault, not a tray.
    verdict, action = (Verdict.FAIL, "fix configuration") if alone else (Verdict.WARN, "investigate")
    return Finding(ID, verdict, "node", message, "rack_domain", domain, action=action)
