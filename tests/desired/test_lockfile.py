"""Lock files: parse errors name the line, and a lock file is made only from nodes that agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provision.desired import expectations, lockfile, skus, stack
from provision.desired.expectations import Expectation
from provision.desired.lockfile import Group, Lock
from provision.desired.role import all_roles
from provision.drift import lock_sources
from provision.drift.assess import Assessment
from provision.drift.drifts import Drift
from provision.errors import CompatibilityError, StackError
from provision.fleet import Fleet, Node
from provision.remote.reach.observe import Observation
from tests.support import described

GOOD = """\
# comment
---
format: 1
written: "2026-03-01T12:00:00Z"
source:
  inventory: "inventory.yml"
groups:
  - os: "debian 13"
    arch: "x86_64"
    skus: ["h100-sxm"]
    from: "gpu-[01-02]"
    packages:
      "libnccl2": "2.29.7-1+cuda12.9"
      "rdma-core": "56.1-1~deb13u1"
"""


def a_file(tmp_path: Path, text: str) -> Path:
    file = tmp_path / lockfile.NAME
    file.write_text(text)
    return file


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    lock = lockfile.read(a_file(tmp_path, GOOD))
    assert lock.groups[0].packages == {"libnccl2": "2.29.7-1+cuda12.9", "rdma-core": "56.1-1~deb13u1"}
    again = lockfile.read(a_file(tmp_path, lockfile.render(lock)))
    assert again == lock
    tricky = replace(lock, origin={"inventory": 'a "name": {{ x }}\n- é'})
    assert lockfile.read(a_file(tmp_path, lockfile.render(tricky))).origin == tricky.origin


MISTAKES = {
    "format: 1": ("format: 2", 3, "format", "upgrade gpuprov"),
    "format: 1 ": ("format: true", 3, "format", "create it again"),
    'os: "debian 13"': ('os: "debian"', 8, "groups.0.os", "for example debian 13"),
    'arch: "x86_64"': ("arch: 3", 9, "groups.0.arch", "for example x86_64"),
    '["h100-sxm"]': ("[]", 10, "groups.0.skus", "list of SKUs"),
    '"56.1-1~deb13u1"': ("56.1", 14, "groups.0.packages.rdma-core", "quote it"),
    '"2.29.7-1+cuda12.9"': (r'"1\nPin: x"', 13, "groups.0.packages.libnccl2", "not an exact version"),
    '"libnccl2"': ('"lib nccl2"', 13, "groups.0.packages.lib nccl2", "not a package name"),
    "    from:": ("    form:", 11, "groups.0.form", "not a key of a lock file"),
    "    packages:": ("    packages: 7\nx:", 12, "", ""),
    "groups:": ("groups: {}\nmore:", 7, "", ""),
    '      "rdma-core"': ('      "libnccl2"', 14, "", "libnccl2 is there twice"),
    "---": ("\t---", 2, "", "not valid YAML"),
}


@pytest.mark.parametrize("before", MISTAKES)
def test_a_mistake_is_named_with_its_line_and_key(tmp_path: Path, before: str) -> None:
    after, line, key, words = MISTAKES[before]
    file = a_file(tmp_path, GOOD.replace(before.strip() if before.startswith("format") else before, after, 1))
    with pytest.raises(StackError) as caught:
        lockfile.read(file)
    said = f"{caught.value.what} → {caught.value.fix}"
    assert words in said
    if key:
        assert said.startswith(f"{file}:{line}: {key}: "), said
    else:
        assert said.startswith(f"{file}:"), said
    assert caught.value.fix


def test_a_missing_key_and_two_groups_for_one_kind_are_named(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r":8: groups\.0: arch is missing"):
        lockfile.read(a_file(tmp_path, GOOD.replace('    arch: "x86_64"\n', "")))
    twice = GOOD + GOOD.partition("groups:\n")[2]
    with pytest.raises(StackError, match=r"debian 13 x86_64 h100-sxm is in two groups"):
        lockfile.read(a_file(tmp_path, twice))
    for nothing in ("", "[]", "7"):
        with pytest.raises(StackError, match="must be a mapping"):
            lockfile.read(a_file(tmp_path, nothing))


# --- effects of a lock file on a node


def machine(sku: str | None = "h100-sxm", system: str = "debian 13") -> dict[str, Any]:
    known = skus.all_skus().get(sku or "")
    shape = (known.architecture, known.fabric) if known else (None, "none")
    gpu: dict[str, Any] = {"sku": sku, "product_names": [], "architecture": shape[0], "fabric": shape[1]}
    return {**described.machine(system, **gpu), "kernel": {"release": "6.12", "boot_release": "6.12"}}


RED_HAT = machine(system="rhel 9.4")


def lock_of(*groups: Group) -> Lock:
    return Lock("2026", {}, groups)


H100 = Group(
    "debian 13", "x86_64", ("h100-sxm",), "gpu-01", {"libnccl2": "2.29.7-1+cuda12.9", "libibverbs1": "56-1"}
)
L40S = Group("debian 13", "x86_64", ("l40s",), "gpu-09", {"libnccl2": "2.29.7-1+cuda12.9"})
RHEL = Group("rhel 9", "x86_64", ("h100-sxm",), "gpu-11", {"libnccl": "2.29.7-1+cuda12.9"})


def declared(lock: Lock | None, **more: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"gpuprov_roles": ["nvidia_driver", "package_lock"]}
    given |= {lockfile.VARIABLE: lock.variable} if lock else {}
    return stack.declared(Node("a", (), {**given, **more}), {})


def promised(lock: Lock | None, node: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    found = expectations.of_node(declared(lock, **{"gpuprov_roles": ["package_lock"], **more}), node)
    return {each.fact: each.value for each in found if each.role == lockfile.ROLE}


def test_a_lock_file_becomes_exact_expectations_of_its_own_machines() -> None:
    lock = lock_of(H100, L40S, RHEL)
    found = promised(lock, machine())
    assert found["package.libnccl2.version"] == "2.29.7-1+cuda12.9"
    assert found["package.libibverbs1.version"] == "56-1"
    assert "package.libnccl.version" not in found
    pins = found["file./etc/apt/preferences.d/gpuprov-lock.content"]
    assert "\nPackage: libibverbs1\nPin: version 56-1\nPin-Priority: 1002\n" in pins
    assert "package.libibverbs1.version" not in promised(lock, machine("l40s"))
    red = promised(lock, RED_HAT)
    assert red["package.libnccl.version"] == "2.29.7-1+cuda12.9"
    assert red["package.libnccl.held"] is True
    assert "libnccl 2.29.7-1+cuda12.9\n" in red["file./etc/dnf/gpuprov-lock.list.content"]


def test_everything_a_lock_file_promises_is_asked_in_the_first_round() -> None:
    lock = lock_of(H100, L40S, RHEL)
    asked = expectations.facts_to_ask(declared(lock, gpuprov_roles=["package_lock"]))
    for node in (machine(), machine("l40s"), RED_HAT):
        assert promised(lock, node).keys() <= asked


def test_without_a_lock_file_only_the_pins_of_an_earlier_one_must_be_gone() -> None:
    assert promised(None, machine()) == {"file./etc/apt/preferences.d/gpuprov-lock.content": None}
    assert promised(lock_of(H100), machine(), package_lock_enabled=False) == {}


def test_a_site_may_lock_one_package_more_or_in_another_version() -> None:
    found = promised(
        lock_of(H100), machine(), package_lock_versions={"libnccl2": "2.29.3-1", "mft": "4.30-1"}
    )
    assert (found["package.libnccl2.version"], found["package.mft.version"]) == ("2.29.3-1", "4.30-1")
    assert found["package.libibverbs1.version"] == "56-1"


@pytest.mark.parametrize("node", [machine(), machine(None), RED_HAT], ids=str)
def test_the_role_and_the_controller_call_a_machine_the_same(node: dict[str, Any]) -> None:
    renderer = expectations.renderer_for(all_roles()[lockfile.ROLE], declared(None), node)
    assert renderer.value("{{ __package_lock_place }}") == " ".join(lockfile.place_of(node))


def test_a_machine_no_group_is_for_is_refused() -> None:
    given = declared(lock_of(H100))
    assert lockfile.uncovered(given, machine(), "a") == []
    (refusal,) = lockfile.uncovered(given, machine("l40s"), "a")
    assert refusal.what == "a: the lock file has no packages for debian 13 x86_64 l40s"
    assert lockfile.uncovered(given, machine(system="debian 12"), "a")
    assert lockfile.uncovered(given, machine(None), "a")
    assert lockfile.uncovered(declared(None), machine("l40s"), "a") == []
    assert lockfile.uncovered({**given, "gpuprov_roles": ["nccl"]}, machine("l40s"), "a") == []


def test_a_lock_file_that_contradicts_the_stack_is_refused_with_nodes_package_and_both_versions() -> None:
    old = replace(H100, packages={"nvidia-driver-cuda": "570.124.06-1", "libcuda1": "570.124.06-1"})
    expected = expectations.of_node(declared(lock_of(old)), machine())
    with pytest.raises(CompatibilityError) as caught:
        lockfile.refuse_contradictions({"gpu-01": expected, "gpu-02": expected})
    assert caught.value.what == (
        "gpu-[01-02]: the lock file has nvidia-driver-cuda 570.124.06-1,"
        " nvidia_driver declares version 580.126.09 (and 1 more package)"
    )
    assert "gpuprov lock again" in caught.value.fix
    same = replace(H100, packages={"nvidia-driver-cuda": "580.126.09-1", "libnccl2": "2.29.7-1+cuda12.9"})
    lockfile.refuse_contradictions({"gpu-01": expectations.of_node(declared(lock_of(same)), machine())})


def fleet(source: Path) -> Fleet:
    return Fleet(source, {"a": Node("a", (), {"x": 1}), "b": Node("b", (), {})}, {"all": ("a", "b")})


def test_the_lock_file_beside_the_inventory_is_found_and_another_can_be_named_or_it_left_aside(
    tmp_path: Path,
) -> None:
    inventory = tmp_path / "inventory.yml"
    inventory.touch()
    assert lockfile.held(fleet(inventory), None) == fleet(inventory)
    a_file(tmp_path, GOOD)
    found = lockfile.held(fleet(inventory), None)
    assert found.nodes["a"].variables["x"] == 1
    assert "libnccl2" in found.nodes["b"].variables[lockfile.VARIABLE]
    assert lockfile.held(fleet(inventory), None, ignored=True) == fleet(inventory)
    other = tmp_path / "other.yml"
    other.write_text(GOOD.replace("libnccl2", "libnccl9"))
    assert "libnccl9" in lockfile.held(fleet(inventory), str(other)).nodes["a"].variables[lockfile.VARIABLE]
    with pytest.raises(StackError, match="cannot be read"):
        lockfile.held(fleet(inventory), str(tmp_path / "none.yml"))
    folder = tmp_path / "inventory"
    folder.mkdir()
    assert lockfile.beside(folder) == tmp_path / lockfile.NAME, "in the folder Ansible would read it"


# --- sources of the packages


def seen(nodes: Mapping[str, tuple[dict[str, Any], Mapping[str, str]]], **more: Any) -> Assessment:
    """Return an assessment without drift. `nodes`: name → (node description, packages)."""
    members = {name: Node(name, (), {}) for name in nodes}
    observed = {
        name: Observation(name, {"kernel.release": "6.12", "packages.*.versions": dict(packages)})
        for name, (_, packages) in nodes.items()
    }
    fleet = Fleet(Path("inventory.yml"), members, {"all": tuple(nodes)})
    return Assessment(
        *(fleet, {}, {}, {}, frozenset(), observed),
        described={name: node for name, (node, _) in nodes.items()},
        expected={name: [] for name in nodes},
        drifts={name: [] for name in nodes},
        **more,
    )


ONE, OTHER = {"libnccl2": "1-1", "mft": "4-1"}, {"libnccl2": "1-2", "mft": "4-1"}


def test_kinds_with_the_same_packages_are_one_group_and_others_are_not() -> None:
    same = {name: (machine(), ONE) for name in "ab"}
    nodes = {**same, "c": (machine("l40s"), ONE), "d": (machine("b200"), OTHER)}
    found = lock_sources.groups(seen(nodes), list(nodes)).groups
    assert {(group.os, group.skus, group.nodes) for group in found} == {
        ("debian 13", ("h100-sxm", "l40s"), "a, b, c"),
        ("debian 13", ("b200",), "d"),
    }
    assert found[-1].packages == ONE


def test_nodes_of_a_kind_that_disagree_are_an_error_naming_packages_and_nodes() -> None:
    packages = {"gpu-01": ONE, "gpu-02": OTHER, "gpu-03": {"libnccl2": "1-1"}}
    nodes = {name: (machine(), each) for name, each in packages.items()}
    with pytest.raises(StackError) as caught:
        lock_sources.groups(seen(nodes), list(nodes))
    assert "debian 13 x86_64 h100-sxm: libnccl2 is 1-1 on gpu-[01,03], 1-2 on gpu-02" in caught.value.what
    assert "mft is 4-1 on gpu-[01-02], absent on gpu-03" in caught.value.what
    with pytest.raises(StackError):
        lock_sources.groups(seen(nodes), list(nodes), majority=True)  # no set has a majority
    nodes["gpu-04"] = nodes["gpu-05"] = (machine(), ONE)
    found = lock_sources.groups(seen(nodes), list(nodes), majority=True)
    assert found.groups[0].packages == ONE
    assert found.overruled == ("gpu-02", "gpu-03")
    assert found.groups[0].nodes == "gpu-[01,04-05]"


def test_kernels_are_not_locked_and_promised_packages_are() -> None:
    packages = {"linux-image-6.12": "1", "nvidia-kernel-6.12": "1", "kernel-devel": "1", "mft": "4-1"}
    assessment = seen({"a": (machine(), packages)})
    promises = [
        Expectation("rdma", "package.odd.status", "equals", "installed", "why"),
        Expectation("rdma", "package.gone.version", "equals", None, "why"),
    ]
    facts = {**assessment.observations["a"].facts, "package.odd.version": "3-1", "package.gone.version": None}
    assessment = replace(assessment, expected={"a": promises}, observations={"a": Observation("a", facts)})
    assert lock_sources.packages_of(assessment, "a") == {"mft": "4-1", "odd": "3-1"}


def test_what_a_node_says_cannot_become_a_line_of_a_file() -> None:
    hostile = seen({"a": (machine(), {"libnccl2": "1\nPin-Priority: 9999"})})
    with pytest.raises(StackError, match="is not a package with a version"):
        lock_sources.groups(hostile, ["a"])


def test_who_cannot_be_a_source_is_said_why() -> None:
    nodes = {name: (machine(), ONE) for name in ("good", "drifted", "locked", "unread", "silent")}
    assessment = seen(nodes)
    drift = Drift("drifted", Expectation("nccl", "package.libnccl2.version", "equals", "9", "why"), "1-1")
    own = Drift("locked", Expectation("package_lock", "package.mft.version", "equals", "9", "why"), "4-1")
    observed = {
        **assessment.observations,
        "unread": Observation("unread", {}, {"packages.*.versions": "timed out"}),
        "silent": Observation("silent", error="no route"),
    }
    drifts = {**assessment.drifts, "drifted": [drift], "locked": [own]}
    assert lock_sources.unfit(replace(assessment, observations=observed, drifts=drifts)) == {
        "silent": "unreadable: no route",
        "drifted": "1 expectation not held, the first is package.libnccl2.version (nccl)",
        "unread": "its packages could not be read: timed out",
    }


def test_patterns_and_promised_packages_are_asked_in_the_same_round_trip() -> None:
    asked: dict[str, Any] = {}

    def observe(_nodes: Any, ask: Mapping[str, Any], **_options: Any) -> dict[str, Observation]:
        asked.update(ask)
        return {}

    given = Fleet(
        Path("x"), {"a": Node("a", (), {}), "b": Node("b", (), {"package_lock_patterns": ["x*"]})}, {}
    )
    lock_sources.asking_also(observe, given, {})([], {"a": {"package.odd.status"}, "b": {"os.id"}})
    assert {"package.odd.status", "package.odd.version", "packages.libnccl*.versions"} <= asked["a"]
    assert asked["b"] == {"os.id", "packages.x*.versions"}
    for wrong in ("x*", ["{{ y }}"], [1]):
        with pytest.raises(StackError, match="list of shell patterns"):
            lock_sources.asking_also(observe, given, {"package_lock_patterns": wrong})
