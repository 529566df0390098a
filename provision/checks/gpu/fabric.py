"""Rules of gpu_inventory for the NVLink fabric of NVSwitches and GPUs (pure)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

from provision.checks.check import CheckNode
from provision.checks.gpu.inventory_rules import ID, Values, all_good, shared
from provision.checks.judge import Finding, Verdict, unmeasured
from provision.text import one_line


def judge_fabric(node: CheckNode, values: Values) -> list[Finding]:
    """Judge whether GPUs behind NVSwitches joined the fabric, without which cuInit fails with 802.

    nvidia-smi looks fine even then. A reported state is always judged, as a virtual machine may have GPUs of
    a shared fabric but no switch on its own PCI bus. It is N/A without a fabric, and before Hopper.
    """
    states, statuses = values.get("fabric_state", {}), values.get("fabric_status", {})
    gpu = node.gpuprov_node["gpu"]
    expected = gpu.get("fabric", "none") != "none" and gpu.get("architecture") != "ampere"
    if not states and not expected:
        return []
    findings = []
    for device in values["name"]:
        if device in values.get("unanswered", {}):
            continue  # reported separately
        state, status = states.get(device), statuses.get(device)
        if (state, status) == ("Completed", "Success") or (state is None and not expected):
            continue
        if state is None:
            findings.append(
                unmeasured(ID, "the driver reports no fabric state", device=device, action="investigate")
            )
            continue
        words = f"has not joined the NVLink fabric: state {state}, status {status or 'N/A'} (fabric manager)"
        findings.append(
            Finding(ID, Verdict.FAIL, device, words, "fabric_state", state, action="fix configuration")
        )
    findings += _fabric_health(values, {finding.device for finding in findings})
    if gpu.get("fabric") == "imex":
        findings += _domain(values, {finding.device for finding in findings})
    return shared(findings, len(values["name"])) or [
        all_good("fabric_state", "every GPU has joined the NVLink fabric")
    ]


# metric → (healthy value, words for any other value)
_HEALTH = {
    "fabric_bandwidth": ("Full", "it has less than its bandwidth"),
    "fabric_route": ("False", "a route is unhealthy"),
    "fabric_timeout": ("False", "an access timed out"),
    "fabric_configuration": ("None", "its configuration is wrong"),
    "fabric_summary": ("Healthy", "the driver calls it unhealthy"),
}


def _fabric_health(values: Values, told: Collection[str]) -> list[Finding]:
    """Judge the health of GPUs that have joined: one finding per GPU, for its most important field."""
    findings = []
    for device in values["name"]:
        wrong = [
            (metric, str(values[metric][device]), words)
            for metric, (good, words) in _HEALTH.items()
            if values.get(metric, {}).get(device, good) != good
        ]
        if not wrong or device in told:
            continue
        metric, shown, words = wrong[0]
        action = "fix configuration" if metric == "fabric_configuration" else "reset GPU"
        message = f"joined the NVLink fabric, and {words}: {shown}"
        findings.append(Finding(ID, Verdict.FAIL, device, message, metric, shown, action=action))
    return findings


# --- the NVLink domain of a rack. On an NVL72 membership is the pair ClusterUUID and CliqueId. A tray in no
# domain has zeros with state Completed and status Success (Azure/azhpc-images issue 506); a healthy one has a
# UUID and a clique such as 32766 (leptonai/gpud issue 1106). An HGX board prints zeros when healthy.


_ZERO = re.compile(r"[0-]*")


def domain_of(values: Values, device: str) -> str | None:
    """Return a GPU's NVLink domain as `ClusterUUID, clique CliqueId`.

    Empty if the GPU is in no domain; None if nvidia-smi does not print these values."""
    cluster, clique = (values.get(f"fabric_{part}", {}).get(device) for part in ("cluster", "clique"))
    if cluster is None or clique is None:
        return None
    if _ZERO.fullmatch(str(cluster)) or _ZERO.fullmatch(str(clique)):
        return ""
    return f"{one_line(str(cluster), 40)}, clique {one_line(str(clique), 12)}"


def _domain(values: Values, told: Collection[str]) -> list[Finding]:
    """Fail GPUs of a tray that are in no NVLink domain, or in a different domain from most of the tray."""
    joined = [d for d in values.get("fabric_state", {}) if d not in told]
    domains = {device: domain_of(values, device) for device in joined}
    usual = Counter(filter(None, domains.values())).most_common(1)
    findings = []
    for device, domain in domains.items():
        if domain is None:
            what = "nvidia-smi gives no ClusterUUID and CliqueId of it"
            findings.append(unmeasured(ID, what, device=device, action="investigate"))
            continue
        if not domain:
            cluster, clique = (
                one_line(str(values[f"fabric_{part}"][device]), 40) for part in ("cluster", "clique")
            )
            words = f"is in no NVLink domain: ClusterUUID {cluster}, CliqueId {clique}"
        elif domain != usual[0][0]:
            words = f"is in NVLink domain {domain}, other GPUs of this tray in {usual[0][0]}"
        else:
            continue
        findings.append(
            Finding(ID, Verdict.FAIL, device, words, "fabric_domain", domain, action="fix configuration")
        )
    return findings
