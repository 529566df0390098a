"""host_health of nodes with AMD's GPUs; the host itself is judged as for any vendor.

Whether RDMA cards reach the GPUs is not measured yet, and reported as such. In a container, rocminfo lists
the visible GPUs: it opens the compute driver and each GPU, and is in every image with ROCm's runtime.
Programs see a partition of a GPU as a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from provision.checks.check import CheckNode, Command, Measurement, Output
from provision.checks.host import host_health, host_rules
from provision.checks.host.host_health import ID as ID
from provision.checks.host.host_rules import finding
from provision.checks.judge import Finding, Verdict
from provision.checks.kernel import host_lines
from provision.checks.network.rdma_port import entries
from provision.checks.thresholds import Threshold
from provision.checks.vendors.amd.devices import entries as devices
from provision.checks.vendors.amd.devices import loaded
from provision.errors import ParseError

SUMMARY = "the module amdgpu, memlock, /dev/shm, ACS, IOMMU, governor, clock, memory errors, NVMe, containers"
NEEDS: tuple[str, ...] = ()
FACTS: tuple[str, ...] = ("amdgpu.loaded_version", "amdgpu.devices")

_AGENT = re.compile(r"^Agent \d{1,4} *$", re.MULTILINE)
_TYPE = re.compile(r"^  Device Type: +(\w+) *$", re.MULTILINE)
_END = "*** Done ***"
_NO_DRIVER = re.compile(r"ROCk module is NOT loaded|Unable to open /dev/kfd")
_NOT_FOUND = 127  # of Docker and podman if the image lacks the program


def commands(node: CheckNode, options: Mapping[str, Any]) -> Sequence[Command]:  # noqa: ARG001 - the contract
    container = host_health.of_container(node, "amd.com/gpu=all", "rocminfo")
    return [*host_health.of_drives(node), *container, *host_lines.commands()]


def parse(node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
    container = outputs.get("container")
    if container is not None and container.rc == _NOT_FOUND:
        rest = {name: output for name, output in outputs.items() if name != "container"}
        image = node.variables.get("gpuprov_container_image")
        why = f"the container: {image} has no rocminfo, which an image with ROCm's runtime has"
        return [*host_health.parse(node, rest), Measurement("unreadable", why, "")]
    return host_health.parse_by(listed_by_rocminfo, node, outputs)


def listed_by_rocminfo(text: str) -> int:
    """Count the GPUs among the agents. Raises ParseError if the list is incomplete."""
    if not _AGENT.search(text) or _NO_DRIVER.search(text):
        return 0
    agents, types = _AGENT.findall(text), _TYPE.findall(text)
    if len(agents) != len(types) or _END not in text:
        raise ParseError("rocminfo lists an agent without its type, or not all", "run the check again")
    return types.count("GPU")


def visible(node: CheckNode) -> int:
    """Return the GPUs that programs see on the node, or the GPUs on the bus if the driver shows none."""
    try:
        parts = [one.get("partitions") for one in devices(node)]
    except ParseError:
        parts = []
    return sum(part for part in parts if isinstance(part, int) and 0 < part < 1000) or node.gpu_count


def judge_module(check: str, node: CheckNode) -> list[Finding]:
    """Judge whether the driver is loaded."""
    if loaded(node) is not None:
        return []
    message = "the kernel module amdgpu is not loaded: no program can use the GPUs"
    return [finding(check, Verdict.FAIL, message, "module", "none")]


def judge_gpudirect(check: str, node: CheckNode) -> list[Finding]:
    """Report GPUDirect as not measured if there are cards that could reach GPU memory."""
    if not entries(node, "hca.ports") or node.variables.get("gpudirect_rdma_method") == "none":
        return []
    message = "not measured on AMD GPUs yet: whether RDMA cards reach GPU memory"
    return [finding(check, Verdict.SKIP, message, "gpudirect")]


RULES: tuple[host_rules.Rule, ...] = (
    judge_module,
    judge_gpudirect,
    *(host_rules.judge_memlock, host_rules.judge_shm, host_rules.judge_pci),
    *(host_rules.judge_governor, host_rules.judge_clock),
)


def judge(
    node: CheckNode,
    measurements: Sequence[Measurement],
    thresholds: Mapping[str, Threshold],  # noqa: ARG001 - the contract
) -> list[Finding]:
    container = host_health.judge_container(node, measurements, visible(node))
    return host_health.judge_by(RULES, node, measurements, container)
