"""Drifts are turned into roles, packages, reboots, minutes and waves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from provision import paths
from provision.desired.compatibility import Refusal
from provision.desired.expectations import HARDWARE, Expectation, roles_in_order
from provision.drift.assess import Assessment
from provision.drift.drifts import Drift
from provision.fleet import Fleet, Node
from provision.remote.reach.observe import Observation
from provision.up import plan, plan_report, waves
from provision.up.durations import Minutes
from provision.up.plan import Change, PackageChange
from provision.up.waves import Rollout, Share

SCHEMA = json.loads((paths.DATA / "schemas" / "plan.schema.json").read_text())


def drift(
    node: str, role: str, *, reboot: bool = False, unknown: bool = False, found: Any = None, fact: str = "a.b"
) -> Drift:
    return Drift(node, Expectation(role, fact, "equals", 1, "why", reboot), found, unknown)


def of_package(
    name: str,
    attribute: str,
    found: Any,
    value: Any,
    *,
    operator: str = "equals",
    role: str = "nvidia_driver",
) -> Drift:
    expectation = Expectation(
        role, f"package.{name}.{attribute}", operator, value, "why", restarts=("x.service",)
    )
    return Drift("a", expectation, found)


def make(found: dict[str, list[Drift]], facts: Mapping[str, Any] | None = None, **options: Any) -> plan.Plan:
    return plan.make(found, {node: Observation(node, facts or {}) for node in found}, **options)


def test_roles_run_in_the_playbooks_order_once() -> None:
    made = make({"a": [drift("a", "nccl"), drift("a", "nvidia_driver"), drift("a", "nccl")]})
    assert made.nodes["a"].roles == ("nvidia_driver", "nccl")
    assert len(made.nodes["a"].drifts) == 3


def test_a_node_that_matches_is_in_no_wave() -> None:
    made = make({"a": [], "b": [drift("b", "nccl")]})
    assert made.nodes["a"].as_declared
    assert made.nodes["a"].minutes == 0
    assert made.waves == (("b",),)


def test_what_is_unknown_calls_for_its_role_but_promises_no_reboot() -> None:
    node = make({"a": [drift("a", "nvidia_driver", reboot=True, unknown=True)]}).nodes["a"]
    assert node.roles == ("nvidia_driver",)
    assert not node.reboot


def test_a_reboot_costs_minutes() -> None:
    still = make({"a": [drift("a", "nvidia_driver")]}).nodes["a"]
    perhaps = make({"a": [drift("a", "nvidia_driver", reboot=True)]}).nodes["a"]
    surely = make({"a": [drift("a", "nvidia_driver", reboot=True, found="570.1", fact="driver.x")]}).nodes[
        "a"
    ]
    assert (still.reboot, perhaps.reboot, surely.reboot) == (False, True, True)
    assert (perhaps.reboot_sure, surely.reboot_sure) == (False, True)
    assert perhaps.minutes == still.minutes, "a bare node loads its driver without one"
    assert surely.minutes == still.minutes + 5


@pytest.mark.parametrize(
    ("fact", "found", "word"),
    [
        ("driver.loaded_version", "570.1", "yes"),
        ("module.nouveau.loaded", True, "yes"),
        ("driver.loaded_version", None, "may"),
        ("module.nvidia_peermem.loaded", False, "may"),
        ("nvidia_smi.mig.mode.current", ["Disabled"], "may"),
        ("file./etc/modprobe.d/x.conf.content", "options nvidia x=1", "may"),
    ],
)
def test_a_reboot_is_sure_only_where_the_kernel_has_something_else_in_memory(
    fact: str, found: Any, word: str
) -> None:
    waiting = Drift("a", Expectation("nvidia_driver", fact, "equals", "x", "why", True), found)
    node = make({"a": [waiting]}).nodes["a"]
    assert plan_report.reboot_word(node) == word
    assert node.reboot_because == (f"{fact} (nvidia_driver): why",)


def test_a_node_that_asks_for_a_reboot_gets_one_with_its_roles_and_only_then() -> None:
    asks = {"boot.required": True, "boot.reason": "linux-image-6.12"}
    node = make({"a": [drift("a", "nccl")]}, asks).nodes["a"]
    assert node.reboot_sure
    assert node.reboot_because == ("the node itself requests one: linux-image-6.12",)
    assert not make({"a": []}, asks).nodes["a"].reboot, "up does not touch a node that is as declared"


def test_no_role_repairs_hardware() -> None:
    made = make({"a": [drift("a", HARDWARE)]})
    assert made.nodes["a"].roles == ()
    assert not made.nodes["a"].as_declared
    assert made.waves == ()


def test_full_is_every_role_a_node_takes_part_in() -> None:
    made = make({"a": [], "b": []}, full=True, takes_part={"b": ("nccl",)})
    assert made.nodes["a"].roles == roles_in_order()
    assert made.nodes["b"].roles == ("nccl",)


def test_waves_have_a_size_and_an_order() -> None:
    found = {name: [drift(name, "nccl")] for name in "abcde"}
    pairs = Rollout(Share(2), canary=False)
    assert make(found, rollout=pairs).waves == (("a", "b"), ("c", "d"), ("e",))
    staged = replace(pairs, stages={"a": 9, "c": 1})
    assert make(found, rollout=staged).waves == (("b", "d"), ("e",), ("c",), ("a",))


def test_who_did_not_answer_is_named() -> None:
    said = {"a": Observation("a"), "b": Observation("b", error="no route")}
    assert plan.make({"a": []}, said).unreachable == {"b": "no route"}


def test_waves_add_up_and_a_crowded_wave_takes_as_long_as_its_turns() -> None:
    found = {name: [drift(name, "nccl")] for name in "abcd"}
    one = make(found).nodes["a"].minutes
    assert make(found).minutes().minutes == one
    assert make(found).minutes(forks=2).minutes == 2 * one
    one_by_one = Rollout(Share(1), canary=False)
    assert make(found, rollout=one_by_one).minutes().minutes == 4 * one


def test_what_was_learnt_beats_the_estimate_only_for_that_kind_of_machine_and_work() -> None:
    facts = {"gpu.sku": "h100-sxm", "os.id": "debian", "os.version_id": "13"}
    learnt = Minutes(others={("nccl", "h100-sxm on debian 13", True): (240.0, 60.0, 120.0)})
    packages = {"a": [of_package("libnccl2", "version", "1", "2", role="nccl")]}
    node = make(packages, facts, minutes=learnt).nodes["a"]
    assert (node.minutes, node.learnt_from) == (2.0, 3)
    assert make(packages, {**facts, "gpu.sku": "l40s"}, minutes=learnt).nodes["a"].learnt_from == 0
    assert make({"a": [drift("a", "nccl")]}, facts, minutes=learnt).nodes["a"].learnt_from == 0
    both = make({"a": [*packages["a"], drift("a", "rdma")]}, facts, minutes=learnt).nodes["a"]
    assert both.learnt_from == 0, "a part of it is an estimate"
    assert (
        plan_report.about(make(packages, facts, minutes=learnt).minutes())
        == "about 2 min (learnt from 3 runs)"
    )


PACKAGES = {
    "another version": (
        [of_package("x", "version", "570.1-1", "580.1", operator="version")],
        ("replace", "570.1-1", "580.1", None),
    ),
    "new, and held": (
        [of_package("x", "version", None, "2-1"), of_package("x", "status", "absent", "installed"),
         of_package("x", "held", False, True)],
        ("install", None, "2-1", True),
    ),
    "new, of whatever version": (
        [of_package("x", "status", "absent", "installed")],
        ("install", None, None, None),
    ),
    "half-installed": (
        [of_package("x", "status", "half-configured", "installed")],
        ("repair", "9-1", "9-1", None),
    ),
    "must not be there": ([of_package("x", "version", "1-1", None)], ("remove", "1-1", None, None)),
    "must not be there, but its settings may": (
        [of_package("x", "status", "installed", ["absent", "config-files"], operator="one_of")],
        ("remove", "9-1", None, None),
    ),
    "held": ([of_package("x", "held", False, True)], ("hold", "9-1", "9-1", True)),
    "let go": ([of_package("x", "held", True, False)], ("release", "9-1", "9-1", False)),
    "the most exact version wins": (
        [of_package("x", "version", "2.1-2", "2.1-1", role="package_lock"),
         of_package("x", "version", "2.0", "2.1", operator="version")],
        ("replace", "2.1-2", "2.1-1", None),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PACKAGES)
def test_packages_go_from_one_version_to_another(case: str) -> None:
    drifts, (change, before, after, held) = PACKAGES[case]
    (found,) = make({"a": drifts}, {"package.x.version": "9-1"}).nodes["a"].packages
    assert (found.change, found.before, found.after, found.held) == (Change(change), before, after, held)


def test_an_unreadable_package_promises_nothing() -> None:
    unread = Drift(
        "a", Expectation("nccl", "package.x.version", "equals", "1", "why"), None, True, "timed out"
    )
    (found,) = make({"a": [unread]}).nodes["a"].packages
    assert found == PackageChange("x", Change.UNKNOWN, None, None, None, ("nccl",))


@pytest.mark.parametrize(
    ("family", "name"), [("debian", "linux-headers-6.12"), ("redhat", "kernel-devel-6.12")]
)
def test_the_headers_of_a_kernel_are_a_package_too(family: str, name: str) -> None:
    missing = Drift("a", Expectation("nvidia_driver", "kernel.headers", "contains", "6.12", "why"), [])
    (found,) = make({"a": [missing]}, {"os.family": family}).nodes["a"].packages
    assert (found.name, found.change, found.roles) == (name, Change.INSTALL, ("nvidia_driver",))


# --- the plan as text


def assessment(found: Mapping[str, list[Drift]], **more: Any) -> Assessment:
    nodes = {name: Node(name, (), {}) for name in [*found, *more.get("refused", {})]}
    fleet = Fleet(Path("fleet.yml"), nodes, {"all": tuple(nodes)})
    said = {name: Observation(name) for name in found}
    return Assessment(
        fleet, {}, {}, {}, frozenset(), {**said, **more.pop("silent", {})}, drifts=found, **more
    )


def everything() -> tuple[Assessment, plan.Plan]:
    moved = [
        of_package("libcuda1", "version", "570.1-1", "580.1", operator="version"),
        of_package("libnvidia-ml1", "version", "570.1-1", "580.1", operator="version"),
    ]
    found = {
        "gpu-1": [drift("gpu-1", "nccl")],
        "gpu-2": [*moved, drift("gpu-2", "nvidia_driver", reboot=True, found="570.1", fact="driver.flavour")],
        "gpu-3": [*moved, drift("gpu-3", "nvidia_driver", reboot=True, found="570.1", fact="driver.flavour")],
        "gpu-4": [drift("gpu-4", HARDWARE)],
        "gpu-5": [],
    }
    seen = assessment(
        found,
        refused={"gpu-6": [Refusal("r", "gpu-6: impossible", "do not", "the vendor")]},
        silent={"gpu-7": Observation("gpu-7", error="no route to host")},
    )
    rollout = waves.Rollout(kinds={"gpu-1": "x", "gpu-2": "y", "gpu-3": "y"})
    return seen, plan.make(seen.drifts, seen.observations, rollout=rollout)


def test_the_document_is_as_its_schema_says_and_the_schema_is_strict_enough_to_notice() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    seen, made = everything()
    written = json.loads(json.dumps(plan_report.document(seen, made)))
    jsonschema.validate(written, SCHEMA)
    assert written["nodes"]["gpu-2"]["reboot"] == "yes"
    assert written["nodes"]["gpu-2"]["restarts"] == ["x.service"]
    assert [wave["kind"] for wave in written["waves"]] == ["canary", "batch"]
    assert written["unreachable"] == {"gpu-7": "no route to host"}
    assert list(written["refused"]) == ["gpu-6"]
    damages: list[dict[str, Any]] = [{"format": 1}, {"nodes": {"a": {}}}, {"waves": [["gpu-1"]]}]
    for damage in damages:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**written, **damage}, SCHEMA)


def test_equal_nodes_are_told_once_and_the_worst_first() -> None:
    said = "\n".join(plan_report.lines(*everything()))
    heads = [line for line in said.splitlines() if line.startswith("gpu-") and "node" in line]
    assert [head.split("  ")[0] for head in heads] == ["gpu-4", "gpu-[2-3]", "gpu-1"]
    assert "gpu-[2-3]  (2 nodes)  3 to change, reboot, about 8 min (estimate)" in said
    assert "    ~ 2 packages 570.1-1 → 580.1: libcuda1, libnvidia-ml1\n" in said
    assert "  restarts x.service\n  reboot: NVIDIA kernel module\n" in said
    assert "wave 1 (canary): gpu-[1-2], up to 1 reboot\nwave 2 (batch): gpu-3, up to 1 reboot\n" in said
    last = "1 to add, 6 to change, 0 to remove, 1 no role can change, 2 reboots, about 16 min (estimate)"
    assert said.endswith(f"\ngpuprov up fleet.yml would change 3 nodes in 2 waves: {last}")


def test_markdown_is_one_table_whose_cells_no_node_can_break_out_of() -> None:
    evil = [of_package("x", "version", "1|2<img src=x>`", "3")]
    seen = assessment({"gpu-1": evil})
    said = plan_report.markdown(seen, plan.make(seen.drifts, seen.observations))
    rows = [line for line in said if line.startswith("| gpu-1")]
    assert len(rows) == 1
    assert rows[0].replace("\\|", "").count("|") == 7
    assert "<img" not in rows[0]
    assert rows[0].endswith("| no | about 3 min (estimate) |")


def test_a_plan_to_remove_roles_has_them_in_that_order_and_says_so() -> None:
    found = [
        of_package("libnccl2", "version", "2.29", None, role="nccl"),
        of_package("libcuda1", "version", "580", None),
    ]
    made = make({"a": found}, remove=("nccl", "nvidia_driver"))
    assert made.nodes["a"].roles == ("nccl", "nvidia_driver")
    assert [package.change for package in made.nodes["a"].packages] == [Change.REMOVE] * 2
    fleet = Fleet(Path("f.yml"), {"a": Node("a", (), {}), "b": Node("b", (), {})}, {})
    seen = Assessment(fleet, {}, {}, {}, frozenset(), {}, remove=("nccl", "nvidia_driver"))
    text = "\n".join(plan_report.lines(seen, replace(made, nodes={**made.nodes, **make({"b": []}).nodes})))
    assert "- package libnccl2 2.29" in text
    assert "1 node without anything of nccl, nvidia_driver: b" in text
    assert "gpuprov up f.yml --remove nccl --remove nvidia_driver would change 1 node" in text
    document = json.loads(json.dumps(plan_report.document(seen, made)))
    assert document["remove"] == ["nccl", "nvidia_driver"]
    jsonschema.validate(document, SCHEMA)
