"""Facts amd_cdi.*: amd-ctk's specification, compared with the device files of the machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.node.machine import Tree

NODES = "/sys/class/kfd/kfd/topology/nodes"
FACTS = ("version", "devices", "missing", "stale")


def device_node(path: str, **numbers: int) -> dict[str, Any]:
    """Plain files replace device files here; their numbers are 0:0, and amd-ctk omits a zero."""
    return {"path": path, "type": "c", **numbers, "fileMode": 432, "permissions": "rwm", "uid": 0, "gid": 105}


def specification(*renders: int, every: tuple[int, ...] | None = None, **numbers: int) -> str:
    """Return the output of `amd-ctk cdi generate` 1.3.0 for GPUs with these render nodes."""

    def of(*minors: int) -> list[dict[str, Any]]:
        paths = [path for n in minors for path in (f"/dev/dri/card{n - 128}", f"/dev/dri/renderD{n}")]
        return [device_node(path, **numbers) for path in (*paths, "/dev/kfd")]

    named = [(str(index), of(minor)) for index, minor in enumerate(renders)]
    named.append(("all", of(*(renders if every is None else every))))
    devices = [{"name": name, "containerEdits": {"deviceNodes": nodes}} for name, nodes in named]
    document = {"cdiVersion": "0.6.0", "kind": "amd.com/gpu", "devices": devices, "containerEdits": {}}
    return json.dumps(document, indent=2) + "\n"


class Machine(Tree):
    """A CPU and two GPUs."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.topology(0, 0)
        self.file("/dev/kfd", "")
        for node, minor in ((1, 128), (2, 129)):
            self.topology(node, minor)
            self.file(f"/dev/dri/card{minor - 128}", "")
            self.file(f"/dev/dri/renderD{minor}", "")

    def topology(self, node: int, minor: int) -> None:
        text = f"cpu_cores_count 0\nsimd_count 1216\nsimd_per_cu 4\ndrm_render_minor {minor}\nhive_id 7\n"
        self.file(f"{NODES}/{node}/properties", text)

    def write(self, text: str) -> None:
        self.file("/etc/cdi/amd.json", text)

    def told(self) -> list[Any]:
        return list(self.values(*(f"amd_cdi.{name}" for name in FACTS)).values())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_fresh_specification(machine: Machine) -> None:
    machine.write(specification(128, 129))
    assert machine.told() == ["0.6.0", ["0", "1", "all"], [], []]


def test_without_a_specification_there_is_nothing_to_compare(machine: Machine) -> None:
    assert machine.told() == [None, None, None, None]


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        (specification(128), ["/dev/dri/renderD129"]),
        (specification(128, 129, every=(128,)), ["/dev/dri/renderD129"]),  # `all` does not include every GPU
        (specification(128, every=(128, 129)), ["/dev/dri/renderD129"]),  # it cannot be given out alone
        (specification(), ["/dev/dri/renderD128", "/dev/dri/renderD129", "/dev/kfd"]),
    ],
    ids=["a GPU less", "all is not all", "not alone", "none"],
)
def test_a_gpu_it_lacks_is_named(machine: Machine, text: str, missing: list[str]) -> None:
    machine.write(text)
    assert machine.value("amd_cdi.missing") == missing
    assert machine.value("amd_cdi.stale") == []


def test_a_partition_has_a_render_node_of_its_own(machine: Machine) -> None:
    machine.topology(3, 136)
    machine.write(specification(128, 129))
    assert machine.value("amd_cdi.missing") == ["/dev/dri/renderD136"]


def test_what_it_names_and_the_machine_has_not(machine: Machine) -> None:
    machine.write(specification(128, 129, 130))
    assert machine.value("amd_cdi.stale") == ["/dev/dri/card2", "/dev/dri/renderD130"]
    for name in ("card2", "renderD130"):  # the files persist after a partition is removed
        machine.file(f"/dev/dri/{name}", "")
    assert machine.value("amd_cdi.stale") == ["/dev/dri/renderD130"]


def test_device_files_with_other_numbers_are_stale(machine: Machine) -> None:
    machine.write(specification(128, major=508))
    assert machine.value("amd_cdi.stale") == ["/dev/dri/card0", "/dev/dri/renderD128", "/dev/kfd"]


def test_long_lists_are_cut_and_counted(machine: Machine) -> None:
    for node in range(3, 66):
        machine.topology(node, 128 + node)
    machine.write(specification())
    found = machine.value("amd_cdi.missing")
    assert (len(found), found[-1]) == (33, "and 34 more")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"cdiVersion": "0.6.0", "devices": 7}',
        "[" * 100000,
        '{"cdiVersion": 1, "devices": [[]]}',
    ],
)
def test_what_is_no_specification_is_a_problem(machine: Machine, text: str) -> None:
    machine.write(text)
    assert "/etc/cdi/amd.json is not a CDI specification" in machine.problem("amd_cdi.missing")


def test_of_the_runtimes_docker_alone_has_to_be_told(tree: Tree) -> None:
    names = ("docker.amd_path", "docker.cdi", "all.amd_unconfigured", "all.amd_without_cdi")

    def told() -> list[Any]:
        return list(tree.values(*(f"container_runtime.{name}" for name in names)).values())

    assert told() == [None, None, [], []]
    for name in ("dockerd", "podman", "crio"):
        tree.file(f"/usr/bin/{name}", "", 0o755)
    assert told() == [None, None, ["docker"], ["docker"]]
    settings = {"runtimes": {"amd": {"path": "amd-container-runtime", "args": []}}, "features": {"cdi": True}}
    tree.file("/etc/docker/daemon.json", json.dumps(settings))
    assert told() == ["amd-container-runtime", True, [], []]
