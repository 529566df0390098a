"""The specification of a lab: the SKU and the operating system of each node, and valid names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpuprov_lab.releases import RELEASES
from provision.errors import UsageError

SKUS = (
    *("h100-sxm", "h200-sxm", "a100-sxm-80", "a100-pcie-80", "l40s", "b200", "gb200"),
    *("mi210", "mi250", "mi250x", "mi300a", "mi300x", "mi325x", "mi355x"),
    "none",  # a machine without GPUs
)
DEFAULT_RELEASE = "debian13"
MOST_NODES = 250
# Suffixes of a node, each after a plus.
CONTAINERS = "containers"  # containers can be started on it
NETWORKS = ("ib", "roce")  # it has RDMA cards, for InfiniBand or for Ethernet
REAL_SMI = "real-nvidia-smi"  # it has NVIDIA's own nvidia-smi, for the drivers that Debian packages

# Both appear in interface aliases, namespace names, host names and paths; the dot is their separator.
_NODE_NAME = re.compile(r"[a-z]([a-z0-9-]{0,30}[a-z0-9])?\Z")
_LAB_NAME = re.compile(r"[a-z][a-z0-9-]{0,19}\Z")


@dataclass(frozen=True)
class NodeSpec:
    """A requested node: `name`, `sku` (one of SKUS), `release` (a key of RELEASES).

    `containers`: containers can be started on it, which weakens its isolation from this host. `network`: the
    type of its RDMA cards, one of NETWORKS, or "none" without cards. `real_nvidia_smi`: see REAL_SMI.
    """

    name: str
    sku: str
    release: str = DEFAULT_RELEASE
    containers: bool = False
    network: str = "none"
    real_nvidia_smi: bool = False

    def __str__(self) -> str:
        words = [self.network] if self.network in NETWORKS else []
        words += [CONTAINERS] if self.containers else []
        words += [REAL_SMI] if self.real_nvidia_smi else []
        return "+".join([f"{self.name}={self.sku}:{self.release}", *words])


DEFAULT_NODES = (
    NodeSpec("gpu-01", "h100-sxm"),
    NodeSpec("gpu-02", "l40s", "debian12"),
    NodeSpec("gpu-03", "h100-sxm"),
)


def parse_node(text: str) -> NodeSpec:
    """Parse a node written as `NAME=SKU` or `NAME=SKU:RELEASE`, with suffixes such as `+roce`.

        >>> str(parse_node("gpu-02=l40s+roce"))
        'gpu-02=l40s:debian13+roce'

    Raises UsageError that quotes the text and names the wrong part.
    """
    where = f"--node {text!r}"
    name, equals, rest = text.partition("=")
    kind, *extras = rest.split("+")
    sku, _, release = kind.partition(":")
    if not equals or not name or not sku:
        raise UsageError(
            f"{where} is not NAME=SKU[:RELEASE][+ib|+roce][+containers][+{REAL_SMI}]",
            "for example --node gpu-01=h100-sxm:debian12",
        )
    if not _NODE_NAME.match(name):
        raise UsageError(
            f"{where}: {name!r} cannot be a host name",
            "a lower-case letter, then letters, digits and dashes, at most 32",
        )
    if sku not in SKUS:
        raise UsageError(f"{where}: there is no SKU {sku!r} in the lab", f"known: {', '.join(SKUS)}")
    if ":" in kind and release not in RELEASES:
        raise UsageError(
            f"{where}: there is no release {release!r} in the lab", f"known: {', '.join(RELEASES)}"
        )
    network = _network(where, extras)
    return NodeSpec(name, sku, release or DEFAULT_RELEASE, CONTAINERS in extras, network, REAL_SMI in extras)


def _network(where: str, extras: Sequence[str]) -> str:
    """Return the network among a node's suffixes, or "none"."""
    known = (*NETWORKS, CONTAINERS, REAL_SMI)
    for extra in extras:
        if extra not in known:
            raise UsageError(
                f"{where}: a node cannot be +{extra}", f"known: {', '.join(f'+{word}' for word in known)}"
            )
    networks = [extra for extra in extras if extra in NETWORKS]
    if len(networks) > 1:
        raise UsageError(
            f"{where} names its network twice", f"give one of {', '.join(f'+{n}' for n in NETWORKS)}"
        )
    return networks[0] if networks else "none"


def wanted_nodes(count: int | None, texts: Sequence[str] | None) -> tuple[NodeSpec, ...]:
    """Return the requested nodes: `--node` ones, or `--nodes N` of a repeating default set."""
    if texts and count is not None:
        raise UsageError("--nodes and --node contradict each other", "give one of them")
    if texts:
        nodes = tuple(parse_node(text) for text in texts)
        twice = sorted({node.name for node in nodes if sum(n.name == node.name for n in nodes) > 1})
        if twice:
            raise UsageError(f"--node names {', '.join(twice)} twice", "each node needs its own name")
    elif count is None:
        nodes = DEFAULT_NODES
    elif 1 <= count <= MOST_NODES:
        pattern = [DEFAULT_NODES[i % len(DEFAULT_NODES)] for i in range(count)]
        nodes = tuple(
            NodeSpec(f"gpu-{i:02d}", node.sku, node.release) for i, node in enumerate(pattern, start=1)
        )
    else:
        raise UsageError(f"--nodes {count}: a lab has between 1 and {MOST_NODES} nodes", "")
    if len(nodes) > MOST_NODES:
        raise UsageError(f"{len(nodes)} nodes: a lab has at most {MOST_NODES}", "")
    return nodes


def lab_name(text: str) -> str:
    """Return `text` if it can name a lab; raises UsageError otherwise."""
    if not _LAB_NAME.match(text):
        raise UsageError(
            f"--lab {text!r} cannot name a lab",
            "a lower-case letter, then letters, digits and dashes, at most 20",
        )
    return text
