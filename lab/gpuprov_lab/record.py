"""The lab's record of its nodes and paths, written before anything is created."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from gpuprov_lab import network
from gpuprov_lab.places import STATE, LabPlace, NodePlace, make_root_only
from gpuprov_lab.spec import NodeSpec
from provision.errors import LabError

VERSION = 1


@dataclass(frozen=True)
class NodeRecord:
    """One node: its properties, and its number in the lab (from 1), which determines its address."""

    name: str
    sku: str
    release: str
    index: int
    containers: bool = False
    network: str = "none"
    real_nvidia_smi: bool = False

    @property
    def spec(self) -> NodeSpec:
        return NodeSpec(
            self.name, self.sku, self.release, self.containers, self.network, self.real_nvidia_smi
        )


@dataclass(frozen=True)
class LabRecord:
    """One lab: `octet` is the N of its network 10.N.0.0/16, `speed` how many times faster its tools run."""

    name: str
    octet: int
    seed: int = 1
    speed: float = 1.0
    inventory: str = ""
    nodes: tuple[NodeRecord, ...] = field(default=())

    @property
    def place(self) -> LabPlace:
        return LabPlace(self.name)

    @property
    def bridge_address(self) -> str:
        return network.bridge_address(self.octet)

    def address(self, node: NodeRecord) -> str:
        return network.node_address(self.octet, node.index)

    def node_place(self, node: NodeRecord) -> NodePlace:
        return self.place.node(node.name)

    def node(self, name: str) -> NodeRecord:
        """Return the node called `name`. Raises LabError that lists the existing names."""
        for node in self.nodes:
            if node.name == name:
                return node
        known = ", ".join(n.name for n in self.nodes)
        raise LabError(f"lab {self.name!r} has no node {name!r}", f"its nodes: {known}")

    def with_nodes(self, wanted: tuple[NodeSpec, ...]) -> LabRecord:
        """Return this lab with the missing nodes of `wanted`. Raises LabError if one exists but differs."""
        nodes = list(self.nodes)
        have = {node.name: node.spec for node in nodes}
        for spec in wanted:
            if spec.name not in have:
                nodes.append(NodeRecord(index=len(nodes) + 1, **asdict(spec)))
            elif have[spec.name] != spec:
                raise LabError(
                    f"lab {self.name!r} already has {have[spec.name]}, but {spec} was requested",
                    "lab up --fresh builds its nodes anew; with another --lab NAME this lab stays as it is",
                )
        return replace(self, nodes=tuple(nodes))

    def save(self) -> None:
        """Write the record atomically; a kill in the middle leaves the old one."""
        make_root_only(STATE)
        make_root_only(self.place.folder)
        text = json.dumps({"version": VERSION, **asdict(self)}, indent=2) + "\n"
        beside = self.place.record.with_suffix(".new")
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.place.record)


def load(name: str) -> LabRecord | None:
    """Load the record of lab `name`; None if it is missing. Raises LabError if it cannot be read."""
    path = LabPlace(name).record
    try:
        data: dict[str, Any] = json.loads(path.read_text())
        if data.pop("version") != VERSION:
            raise ValueError("another version of gpuprov wrote it")
        return LabRecord(**{**data, "nodes": tuple(NodeRecord(**node) for node in data["nodes"])})
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise LabError(f"{path} is not readable: {error}", f"gpuprov lab down --lab {name}") from error


def existing(name: str) -> LabRecord:
    """Load the record of lab `name`. Raises LabError if it is missing."""
    record = load(name)
    if record is None:
        others = ", ".join(lab_names()) or "none"
        raise LabError(f"there is no lab {name!r} on this machine (labs: {others})", "gpuprov lab up")
    return record


def lab_names() -> list[str]:
    """List all labs that have a folder on this machine, including damaged ones."""
    return sorted(path.name for path in STATE.iterdir() if path.is_dir()) if STATE.is_dir() else []


def octets() -> Iterator[int]:
    """Yield the networks of existing labs."""
    for name in lab_names():
        try:
            record = load(name)
        except LabError:
            continue
        if record is not None:
            yield record.octet
