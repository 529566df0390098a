"""The complete assessment of a simulated fleet: refusals, requests, resolved values and drift."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provision.desired import expectations, inventory, resolve, stack
from provision.drift import assess, drift_report, drift_text
from provision.drift.formats import text as text_format
from provision.errors import CompatibilityError, StackError
from provision.fleet import Fleet, Node
from provision.remote.reach.observe import Observation
from tests.support import vault
from tests.support.observed import debian, promised, unknown

KERNEL = "6.12.107+deb13-amd64"
BASE = debian("13", "trixie", KERNEL)


def fleet(**variables: Mapping[str, Any]) -> Fleet:
    nodes = {name.replace("_", "-"): each for name, each in variables.items()}
    return Fleet(
        Path("inventory.yml"),
        {name: Node(name, ("gpus",), each) for name, each in nodes.items()},
        {"all": tuple(nodes), "gpus": tuple(nodes)},
    )


class Nodes:
    """Nodes without drift except in `changed` (node → facts), which record the requested facts."""

    def __init__(self, changed: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self.changed = changed or {}
        self.asked: list[dict[str, set[str]]] = []
        self.declared: Mapping[str, Any] = {}

    def observe(
        self,
        nodes: Collection[Node],
        ask: Mapping[str, Collection[str]],
        *,
        timeout: float = 0.0,
        connections: int = 0,
        on_done: Callable[[Observation], None] | None = None,
    ) -> dict[str, Observation]:
        assert timeout > 0
        assert connections > 0
        self.asked.append({name: set(facts) for name, facts in ask.items()})
        answers = {node.name: self._answer(node, set(ask[node.name])) for node in nodes}
        for answer in answers.values():
            if on_done is not None:
                on_done(answer)
        return answers

    def _answer(self, node: Node, asked: set[str]) -> Observation:
        changed = dict(self.changed.get(node.name, {}))
        if "error" in changed:
            return Observation(node.name, error=changed["error"], unreachable=True)
        base = {**BASE, **{name: value for name, value in changed.items() if name in BASE}}
        facts = unknown(asked, KERNEL)
        wanted = promised(self.declared or stack.declared(node, {}), base)
        facts |= {fact: value for fact, value in wanted.items() if fact in facts}
        return Observation(node.name, {**facts, **base, **changed})


def test_a_fleet_as_declared_is_asked_once_and_nothing_is_found() -> None:
    nodes = Nodes()
    seen = assess.assess(fleet(gpu_01={}, gpu_02={}), {}, observe=nodes.observe)
    assert seen.drifts == {"gpu-01": [], "gpu-02": []}
    assert seen.as_declared == ("gpu-01", "gpu-02")
    assert len(nodes.asked) == 1
    assert seen.described["gpu-01"]["gpu"]["sku"] == "l40s"
    assert seen.expectations == 2 * len(seen.expected["gpu-01"]) > 100


def test_what_differs_is_found_on_its_node() -> None:
    nodes = Nodes({"gpu-02": {"driver.loaded_version": "570.124.06"}})
    seen = assess.assess(fleet(gpu_01={}, gpu_02={}), {}, observe=nodes.observe)
    assert seen.drifts["gpu-01"] == []
    (drift,) = seen.drifts["gpu-02"]
    told = (drift.expectation.fact, drift.expectation.value, drift.found)
    assert told == ("driver.loaded_version", "580.126.09", "570.124.06")


def test_a_node_in_trouble_is_named_and_the_others_go_on() -> None:
    nodes = Nodes({"gpu-01": {"error": "no route to host"}, "gpu-02": {"gpu.count": 0, "gpu.pci": []}})
    said: list[str] = []
    seen = assess.assess(
        fleet(gpu_01={}, gpu_02={}, gpu_03={}),
        {},
        observe=nodes.observe,
        on_done=lambda o: said.append(o.node),
    )
    assert seen.unreachable == {"gpu-01": "no route to host"}
    assert [each.rule for each in seen.refused["gpu-02"]] == ["no-gpu"]
    assert seen.drifts == {"gpu-03": []}
    assert said == ["gpu-01", "gpu-02", "gpu-03"]


MI300X = [{"address": "0000:05:00.0", "device_id": "1002:74a1"}]


def test_the_roles_follow_from_the_gpus_that_were_seen() -> None:
    """With both vendors in one inventory, the facts of a node's vendor are requested once it is known."""
    nodes = Nodes({"gpu-01": {"gpu.count": 1, "gpu.pci": MI300X, "amdgpu.loaded_version": None}})
    seen = assess.assess(fleet(gpu_01={}, gpu_02={}), {}, observe=nodes.observe)
    roles = {node: {each.role for each in found} for node, found in seen.expected.items()}
    assert "amdgpu_driver" in roles["gpu-01"]
    assert "nvidia_driver" not in roles["gpu-01"]
    assert "nvidia_driver" in roles["gpu-02"]
    assert "amdgpu_driver" not in roles["gpu-02"]
    assert set(seen.roles["gpu-01"]) >= {"amd_repository", "amdgpu_driver", "rocm", "rccl", "host_settings"}
    assert not {"rocm", "rccl"} & set(seen.roles["gpu-02"])
    assert not {fact for fact in nodes.asked[0]["gpu-02"] if "amdgpu" in fact or "rocm" in fact}
    assert list(nodes.asked[1]) == ["gpu-01"]
    (drift,) = seen.drifts["gpu-01"]
    assert (drift.expectation.fact, drift.expectation.value) == ("amdgpu.loaded_version", "6.16.13")
    assert seen.drifts["gpu-02"] == []


def test_an_inventory_that_names_the_product_saves_the_second_look() -> None:
    nodes = Nodes({"gpu-01": {"gpu.count": 1, "gpu.pci": MI300X}})
    seen = assess.assess(fleet(gpu_01={"gpuprov_sku": "mi300x"}), {}, observe=nodes.observe)
    assert len(nodes.asked) == 1
    assert not {fact for fact in nodes.asked[0]["gpu-01"] if "cuda" in fact}
    assert seen.drifts["gpu-01"] == []


@pytest.mark.parametrize(("declared", "looks"), [({"gpuprov_sku": "mi300x"}, 1), ({}, 2)])
def test_what_the_fleet_compares_of_one_vendors_gpus_is_asked_of_no_other_node(
    declared: dict[str, Any], looks: int
) -> None:
    nodes = Nodes({"gpu-01": {"gpu.count": 1, "gpu.pci": MI300X}})
    also_of = {"amd": {"amdgpu.devices"}, "nvidia": frozenset[str]()}
    given = fleet(gpu_01=declared, gpu_02={})
    assess.assess(given, {}, observe=nodes.observe, also_of=also_of)
    asked = [{name for name, facts in each.items() if "amdgpu.devices" in facts} for each in nodes.asked]
    assert asked == [set()] * (looks - 1) + [{"gpu-01"}]


def test_roles_of_another_vendor_are_refused_after_one_look() -> None:
    nodes = Nodes({"gpu-01": {"gpu.count": 1, "gpu.pci": MI300X}})
    seen = assess.assess(fleet(gpu_01={"gpuprov_roles": ["nccl"]}, gpu_02={}), {}, observe=nodes.observe)
    assert len(nodes.asked) == 1
    (refusal,) = seen.refused["gpu-01"]
    assert refusal.what == (
        "gpu-01: gpuprov_roles lists nccl, for NVIDIA's GPUs, and the machine has 1 AMD Instinct MI300X"
    )
    assert seen.drifts == {"gpu-02": []}
    assert seen.observations["gpu-01"].facts["gpu.sku"] == "mi300x"


def test_the_host_of_mixed_gpus_is_compared_where_only_its_roles_take_part() -> None:
    pci = [*MI300X, {"address": "0000:06:00.0", "device_id": "10de:2330"}]
    declared = {"gpuprov_roles": ["host_settings"]}
    nodes = Nodes({"gpu-01": {"gpu.count": 2, "gpu.pci": pci}})
    seen = assess.assess(fleet(gpu_01=declared), {}, observe=nodes.observe)
    assert (seen.refused, seen.drifts) == ({}, {"gpu-01": []})
    words = (
        "compared without its GPUs: GPUs of several vendors (1002:74a1, 10de:2330): observed; gpuprov cannot "
        "provision them"
    )
    (line, _) = drift_text.trouble(seen.refused, seen.troubles, seen.host_only)
    assert line.startswith(f"gpu-01  {words}")
    report = drift_report.make(seen)
    (note,) = (each for each in drift_report.findings(report) if each.rule == "gpus/observed")
    assert (note.level, note.text.startswith(words)) == ("note", True)
    assert words in text_format.render(report)


def test_hardware_that_is_not_what_the_inventory_says_is_drift() -> None:
    nodes = Nodes()
    declared = {"gpuprov_expected_gpus": 8, "gpuprov_sku": "h100-sxm"}
    seen = assess.assess(fleet(gpu_01=declared), {}, observe=nodes.observe)
    assert [(each.expectation.fact, each.found) for each in seen.drifts["gpu-01"]] == [
        ("gpu.count", 1),
        ("gpu.sku", "l40s"),
    ]
    assert "gpu.sku" not in nodes.asked[0]["gpu-01"]


def test_facts_named_after_the_machine_are_asked_for_once_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fact that no hypothetical machine needed, here a file, is requested once the machine is known."""
    late = "file./etc/modprobe.d/blacklist-nouveau.conf.content"
    foreseen = expectations.facts_to_ask
    monkeypatch.setattr(assess, "facts_to_ask", lambda view: foreseen(view) - {late})
    nodes = Nodes()
    seen = assess.assess(fleet(gpu_01={}), {}, observe=nodes.observe)
    assert nodes.asked[1:] == [{"gpu-01": {late}}]
    assert seen.drifts == {"gpu-01": []}


@pytest.mark.parametrize(
    ("variables", "overrides", "error", "words"),
    [
        ({"nvidia_driver_verison": "1"}, {}, StackError, "unknown variable nvidia_driver_verison"),
        ({"gpuprov_stack": "nope"}, {}, StackError, "no stack called 'nope'"),
        ({"nvidia_driver_version": "new"}, {}, CompatibilityError, "gpu-01: nvidia_driver_version: 'new'"),
        ({}, {"cuda_toolkit_version": "12.7"}, CompatibilityError, "no release 12.7"),
    ],
)
def test_what_is_wrong_in_the_inventory_is_said_before_a_node_is_touched(
    variables: dict[str, Any], overrides: dict[str, Any], error: type[Exception], words: str
) -> None:
    nodes = Nodes()
    with pytest.raises(error, match=words):
        assess.assess(fleet(gpu_01=variables), overrides, observe=nodes.observe)
    assert nodes.asked == []


def test_an_impossible_version_is_refused_with_the_place_where_it_stands(tmp_path: Path) -> None:
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "inventory.yml").write_text("gpus: {hosts: {gpu-01: }}\nold: {hosts: {gpu-02: }}\n")
    (tmp_path / "group_vars/gpus.yml").write_text('nvidia_driver_version: "580.126.09"\n')
    (tmp_path / "group_vars/old.yml").write_text('# older\nnvidia_driver_version: "384.111"\n')
    known = inventory.load(tmp_path / "inventory.yml")
    with pytest.raises(CompatibilityError) as caught:
        assess.assess(known, {}, observe=Nodes().observe)
    place = f"{tmp_path}/group_vars/old.yml:2"
    assert caught.value.what.startswith(
        f"{place}: gpu-02: nvidia_driver_version: there is no driver branch 384"
    )
    with pytest.raises(CompatibilityError) as caught:
        assess.assess(known, {"nvidia_driver_version": "384.111"}, observe=Nodes().observe)
    assert caught.value.what.startswith("--set: gpu-[01-02]: nvidia_driver_version: there is no")


def test_an_impossible_combination_is_said_once_for_all_its_nodes() -> None:
    bad = {f"gpu_{number:02}": {"nvidia_driver_version": "new"} for number in range(1, 41)}
    with pytest.raises(CompatibilityError) as caught:
        assess.assess(fleet(**bad), {}, observe=Nodes().observe)
    assert caught.value.what.count("'new'") == 1
    assert "gpu-[01-40]" in caught.value.what


def test_looking_again_asks_only_who_is_named() -> None:
    nodes = Nodes({"gpu-02": {"driver.loaded_version": None}})
    first = assess.assess(fleet(gpu_01={}, gpu_02={}), {}, observe=nodes.observe)
    nodes.changed = {}
    again = assess.look(first, ["gpu-02"], observe=nodes.observe)
    assert again.drifts == {"gpu-02": []}
    assert set(nodes.asked[-1]) == {"gpu-02"}


def test_ansible_is_given_the_declared_variables_and_the_machine() -> None:
    nodes = Nodes()
    seen = assess.assess(fleet(gpu_01={"x": "{{ y }}"}), {"y": 1}, observe=nodes.observe)
    given = seen.hosts({"gpu-01": seen.described["gpu-01"]})["gpu-01"]
    assert (given["x"], given["y"], given["gpuprov_node"]["gpu"]["count"]) == ("{{ y }}", 1, 1)
    assert given["nvidia_driver_version"] == "580.126.09"


def test_templates_lookups_and_vaulted_values_are_resolved_as_ansible_does(tmp_path: Path) -> None:
    """The inventory, the vault and Ansible are real."""
    password = vault.password_file(tmp_path)
    vaulted = vault.variable(password, "ansible_become_password", "become-hidden")
    (tmp_path / "version.txt").write_text("580.95.05\n")
    (tmp_path / "hosts").write_text("[gpus]\ngpu-01\ngpu-02\n")
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "gpus.yml").write_text(
        f"{vaulted}"
        "ansible_host: '{{ inventory_hostname }}.cluster'\n"
        f"nvidia_driver_version: \"{{{{ lookup('file', '{tmp_path}/version.txt') }}}}\"\n"
        "nvidia_driver_module_options: {NVreg_Secret: '{{ ansible_become_password }}'}\n"
    )
    loaded = inventory.load(tmp_path, [password])
    reachable = resolve.reachable(loaded, {})
    assert reachable.nodes["gpu-02"].variables["ansible_host"] == "gpu-02.cluster"
    assert reachable.nodes["gpu-02"].variables["ansible_become_password"] == "become-hidden"

    nodes = Nodes()
    nodes.declared = stack.declared(Node("any", (), {}), {})
    kept: dict[str, Collection[str]] = {}
    seen = assess.assess(
        reachable,
        {},
        observe=nodes.observe,
        on_judged=lambda said, _, secrets: kept.__setitem__(said.node, secrets),
    )
    assert seen.views["gpu-01"]["nvidia_driver_version"] == "580.95.05"
    assert "NVreg_Secret=become-hidden" in str(seen.expected["gpu-01"])
    assert "become-hidden" in seen.secrets  # it was vaulted, and has the name of a secret
    assert all("become-hidden" in kept[node] for node in ("gpu-01", "gpu-02"))
    assert {each.value for each in seen.expected["gpu-01"] if each.fact == "driver.loaded_version"} == {
        "580.95.05"
    }

    with pytest.raises(StackError, match="vaulted") as caught:
        resolve.reachable(replace(loaded, vault_password_files=()), {})
    assert "--vault-password-file" in caught.value.fix


def test_what_ansible_cannot_say_either_is_an_error_naming_the_variable() -> None:
    broken = fleet(gpu_01={"nccl_version": "{{ lookup('file', '/nonexistent/file') }}"})
    with pytest.raises(StackError, match=r"gpu-01: Ansible cannot resolve nccl_version: .*nonexistent"):
        assess.assess(broken, {}, observe=Nodes().observe)


def test_what_removed_roles_left_is_all_that_is_asked_and_found() -> None:
    nodes = Nodes({"gpu-01": {"package.libnccl2.version": "2.29", "file./etc/nccl.conf.exists": True}})
    declared: dict[str, Any] = {"gpuprov_roles": ["rdma"]}
    seen = assess.assess(fleet(gpu_01=declared), {}, observe=nodes.observe, remove=("nccl",))
    assert {each.expectation.fact for each in seen.drifts["gpu-01"]} >= {
        "package.libnccl2.version",
        "file./etc/nccl.conf.exists",
    }
    assert {each.expectation.role for each in seen.drifts["gpu-01"]} == {"nccl"}
    assert len(nodes.asked) == 1
    assert not [fact for fact in nodes.asked[0]["gpu-01"] if "rdma" in fact]
    assert seen.roles == {"gpu-01": ("nccl",)}


def test_a_role_that_is_needed_is_refused_on_its_nodes_and_the_others_go_on() -> None:
    without: dict[str, Any] = {"gpuprov_roles": ["nvidia_driver"]}
    seen = assess.assess(
        fleet(gpu_01={}, gpu_02=without), {}, observe=Nodes().observe, remove=("nvidia_driver",)
    )
    assert [each.rule for each in seen.refused["gpu-01"]] == ["role-needed"]
    assert list(seen.drifts) == ["gpu-02"]
