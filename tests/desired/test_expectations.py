"""The expected state of a node, as roles declare it; tested with artificial and with shipped roles."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from provision import paths
from provision.desired import expectations, stack
from provision.desired.expectations import Expectation
from provision.desired.role import all_roles, roles_of
from provision.desired.templating.render_cache import RenderCache
from provision.errors import StackError
from provision.fleet import Node
from tests.support.described import machine

NODE = machine(sku="h100-sxm")
EXPECT = """\
- fact: driver.version
  equals: "{{ tool_version }}"
  why: pinned
- fact: "package.{{ item }}.held"
  loop: "{{ __tool_packages }}"
  equals: true
  why: held
  when: tool_hold
- fact: "package.headers-{{ gpuprov_node.kernel.release }}.status"
  equals: installed
  why: dkms
  reboot: true
- fact: file./etc/tool.conf.content
  template: tool.conf.j2
  why: configured
- fact: service.fabric.active
  equals: active
  why: fabric
  when: gpuprov_node.gpu.fabric != 'none'
"""


@pytest.fixture
def role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a role called `tool` and the playbook that applies it."""
    folder = tmp_path / "roles" / "tool"
    for part in ("defaults", "vars", "meta", "templates"):
        (folder / part).mkdir(parents=True)
    (folder / "expect.yml").write_text(EXPECT)
    (folder / "defaults" / "main.yml").write_text("tool_version: '1.0'\ntool_hold: true\n")
    (folder / "vars" / "debian.yml").write_text(
        "__tool_releases: [debian 13]\n__tool_packages: [a, 'b-{{ tool_version }}']\n"
    )
    (folder / "vars" / "redhat.yml").write_text("__tool_releases: [rocky 9]\n__tool_packages: [c]\n")
    (folder / "templates" / "tool.conf.j2").write_text(
        "v={{ tool_version }}\n{% if tool_hold %}\nhold\n{% endif %}\n"
    )
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "playbooks" / "up.yml").write_text("- hosts: all\n  roles:\n    - role: tool\n")
    monkeypatch.setattr(paths, "ROLES", tmp_path / "roles")
    monkeypatch.setattr(paths, "PLAYBOOKS", tmp_path / "playbooks")
    return folder


def test_every_kind_of_item_is_rendered(role: Path) -> None:
    assert role.is_dir()
    found = {each.fact: each.value for each in expectations.of_node({"tool_version": "2.0"}, NODE)}
    assert found == {
        "driver.version": "2.0",
        "package.a.held": True,
        "package.b-2.0.held": True,
        "package.headers-6.12.107+deb13-amd64.status": "installed",
        "file./etc/tool.conf.content": "v=2.0\nhold\n",
        "service.fabric.active": "active",
    }


@pytest.mark.usefixtures("role")
def test_conditions_leave_items_out() -> None:
    facts = {each.fact for each in expectations.of_node({"tool_hold": False}, machine(fabric="none"))}
    assert facts == {
        "driver.version",
        "package.headers-6.12.107+deb13-amd64.status",
        "file./etc/tool.conf.content",
    }


@pytest.mark.usefixtures("role")
def test_everything_any_machine_could_need_is_asked_for() -> None:
    asked = expectations.facts_to_ask({"tool_version": "2.0"})
    assert {"package.a.held", "package.b-2.0.held", "package.c.held", "service.fabric.active"} <= asked
    assert f"package.headers-{expectations.KERNEL}.status" in asked


def test_role_vars_beat_what_is_declared_and_gpuprov_node_beats_all(role: Path) -> None:
    (role / "expect.yml").write_text(
        "- {fact: a.b, equals: '{{ __tool_packages }}', why: x}\n"
        "- {fact: a.c, equals: '{{ gpuprov_node.os.id }}', why: x}\n"
    )
    declared = {"__tool_packages": ["mine"], "gpuprov_node": {"os": {"id": "mine"}}}
    assert [each.value for each in expectations.of_node(declared, NODE)] == [["a", "b-1.0"], "debian"]


def test_vars_of_the_id_come_before_those_of_the_family(role: Path) -> None:
    (role / "vars" / "ubuntu.yml").write_text("__tool_packages: [u]\n")
    nodes = (machine("ubuntu 13"), machine("rocky 13"))
    held = [{e.fact for e in expectations.of_node({}, each) if "held" in e.fact} for each in nodes]
    assert held == [{"package.u.held"}, {"package.c.held"}]


@pytest.mark.usefixtures("role")
def test_ten_thousand_equal_nodes_are_rendered_once() -> None:
    first = expectations.of_node({"tool_version": "3", "ansible_host": "10.0.0.1"}, NODE)
    assert expectations.of_node({"tool_version": "3", "ansible_host": "10.0.0.2"}, dict(NODE)) is first
    assert expectations.of_node({"tool_version": "4", "ansible_host": "10.0.0.1"}, NODE) is not first


@pytest.mark.usefixtures("role")
def test_equal_numbers_of_different_types_are_not_the_same_variables() -> None:
    assert expectations.of_node({"tool_version": 1}, NODE)[0].value == 1
    assert expectations.of_node({"tool_version": True}, NODE)[0].value is True


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("- {fact: a.b, equals: 1}", "item 1 needs `fact` and `why`|item 1: needs `fact` and `why`"),
        ("- {fact: a.b, why: x}", "must have one operator"),
        ("- {fact: a.b, equals: 1, matches: b, why: x}", "must have one operator"),
        ("- {fact: a.b, equal: 1, equals: 1, why: x}", "unknown key equal"),
        ("- {fact: a.b, equals: '{{ nope }}', why: x}", r"item 1 \(a.b\): 'nope' is undefined"),
        ("- {fact: a.b, equals: 1, why: x, when: tool_version}", "must be true or false"),
        ("- {fact: a.b, one_of: '{{ tool_version }}', why: x}", "one_of needs a list"),
        ("- {fact: a.b, version: 12.9, why: x}", "version needs text"),
        ("- {fact: a.b, matches: '(', why: x}", "not a regular expression"),
        ("- {fact: a.b, at_least: x, why: x}", "is not a version"),
        ("- {fact: a.b, template: none.j2, why: x}", "none.j2: cannot be read"),
        ("a: 1", "must be a list"),
        ("- [", "expect.yml:2:"),
    ],
)
def test_a_bad_expectation_is_named(role: Path, text: str, what: str) -> None:
    (role / "expect.yml").write_text(text + "\n")
    with pytest.raises(StackError, match=what):
        expectations.of_node({}, NODE)


def test_a_role_the_playbook_forgets_is_refused(role: Path) -> None:
    (role.parent / "other").mkdir()
    (role.parent / "other" / "expect.yml").write_text("[]\n")
    with pytest.raises(StackError, match="applies no role called other"):
        expectations.roles_in_order()


@pytest.mark.usefixtures("role")
def test_the_inventory_may_say_what_the_machine_is() -> None:
    declared = {"gpuprov_expected_gpus": 8, "gpuprov_sku": "h100-sxm"}
    last = expectations.of_node(declared, NODE)[-2:]
    assert [(each.role, each.fact, each.value) for each in last] == [
        (expectations.HARDWARE, "gpu.count", 8),
        (expectations.HARDWARE, "gpu.sku", "h100-sxm"),
    ]


@pytest.mark.usefixtures("role")
def test_declared_memory_processors_and_services_are_expected_and_asked_for() -> None:
    declared = {
        "gpuprov_expected_memory_gib": 1024,
        "gpuprov_expected_cpus": 128,
        "gpuprov_expected_services": ["munge", "slurmd.service", "munge.service"],
    }
    basics = {
        each.fact: each
        for each in expectations.of_node(declared, NODE)
        if each.role == expectations.HARDWARE and each.fact in expectations.facts_to_ask(declared)
    }
    memory, cpus, *services = basics.values()
    assert (memory.fact, memory.holds(1003), memory.holds(1004)) == ("memory.installed_gib", False, True)
    assert (cpus.fact, cpus.holds(127), cpus.holds(128)) == ("cpu.online", False, True)
    assert [one.fact for one in services] == ["service.munge.active", "service.slurmd.active"]
    assert services[0].holds("active")
    assert not services[0].holds("failed")
    assert not services[0].holds(None)
    assert not {each.fact for each in expectations.of_node({}, NODE)} & set(basics)


@pytest.mark.parametrize("name", stack.available())
@pytest.mark.parametrize("fabric", ["none", "nvswitch", "nvlink5"])
@pytest.mark.parametrize("version", ["12", "13"])
def test_the_shipped_roles_ask_for_all_they_expect(name: str, fabric: str, version: str) -> None:
    """One round trip is enough: the facts requested in advance cover every kind of machine."""
    declared = stack.declared(Node("gpu-01", (), {"gpuprov_stack": name}), {})
    architecture = "blackwell" if fabric == "nvlink5" else "hopper"
    node = machine(f"debian {version}", sku="h100-sxm", fabric=fabric, architecture=architecture)
    asked = {
        fact.replace(expectations.KERNEL, NODE["kernel"]["release"])
        for fact in expectations.facts_to_ask(declared)
    }
    expected = expectations.by_fact(expectations.of_node(declared, node))
    assert len(expected) > 50
    assert expected <= asked


def test_where_nodes_differ_in_one_role_the_others_are_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _forget(monkeypatch)
    spies = {name: Mock(wraps=getattr(expectations, name)) for name in ("_promised", "_names_anywhere")}
    for name, spy in spies.items():
        monkeypatch.setattr(expectations, name, spy)
    for number in range(20):
        declared = {"host_settings_sysctls": {"net.core.somaxconn": number}}
        expectations.of_node(declared, NODE)
        expectations.facts_to_ask(declared)
    computed = [call.args[0].name for spy in spies.values() for call in spy.call_args_list]
    assert computed.count("host_settings") == 40
    assert computed.count("nvidia_driver") == 2
    assert len(computed) == 40 + 2 * (len(roles_of({}, NODE)) - 1)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_remembered_is_what_would_be_computed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that differ in some options give the same results with a warm cache and with an empty one."""
    rng = random.Random(seed)  # noqa: S311 - a test
    choices = [
        (name, other)
        for role in all_roles().values()
        for name, value in role.defaults.items()
        for other in _others(value)
    ]
    assert len(choices) > 50
    for _ in range(8):
        declared = dict(rng.sample(choices, rng.randint(0, 3)))
        remembered = _said(declared)
        with monkeypatch.context() as fresh:
            _forget(fresh)
            assert remembered == _said(declared), declared


@pytest.mark.parametrize("gpuprov_roles", [None, ["receptor"]])
def test_nodes_that_differ_in_name_alone_are_one_computation(
    monkeypatch: pytest.MonkeyPatch, gpuprov_roles: list[str] | None
) -> None:
    """This includes disabled roles; otherwise each of ten thousand nodes costs as much as the first."""
    _forget(monkeypatch)
    chosen = {} if gpuprov_roles is None else {"gpuprov_roles": gpuprov_roles}
    for number in range(3):
        declared = {"inventory_hostname": f"gpu-{number}", "ansible_host": f"10.0.0.{number}", **chosen}
        expectations.facts_to_ask(declared)
        expectations.of_node(declared, NODE)
    for cache in (expectations._facts, expectations._of_node):
        assert [len(results) for results in cache._by_names.values()] == [1]


def _others(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, str):
        return ["9.9", "{{ inventory_hostname | default('x') }}"]
    return [[], ["other"]] if isinstance(value, list) else []


def _said(declared: Mapping[str, Any]) -> list[Any]:
    """Return the expectations and the facts to request, or the errors."""
    results: list[Any] = []
    for ask in (lambda: expectations.of_node(declared, NODE), lambda: expectations.facts_to_ask(declared)):
        try:
            results.append(ask())
        except StackError as error:
            results.append(str(error))
    return results


def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_of_node", "_facts"):
        monkeypatch.setattr(expectations, name, RenderCache())
    for name in ("_of_role", "_facts_of_role"):
        monkeypatch.setattr(expectations, name, defaultdict(RenderCache))


@pytest.mark.parametrize(
    ("operator", "value", "found", "holds"),
    [
        ("equals", "a", "a", True),
        ("equals", True, True, True),
        ("equals", True, 1, False),
        ("equals", 1, True, False),
        ("equals", "1", 1, False),
        ("equals", [1, "a"], [1, "a"], True),
        ("equals", [1], [True], False),
        ("equals", {"a": 1}, {"a": 1}, True),
        ("equals", {"a": 1}, {"a": 1, "b": 2}, False),
        ("equals", None, None, True),
        ("equals", "a", None, False),
        ("version", "2.29.7", "2.29.7-1+cuda12.9", True),
        ("version", "2.29.7", None, False),
        ("version", "2.29.7", 2, False),
        ("at_least", "5.17", "6.12.107+deb13-amd64", True),
        ("at_least", "6.13", "6.12.107+deb13-amd64", False),
        ("at_least", 60, 60, True),
        ("at_least", 60, 59, False),
        ("at_least", 60, "61", False),
        ("at_least", 0, True, False),
        ("one_of", ["a", "b"], "b", True),
        ("one_of", [1], True, False),
        ("one_of", [None], None, False),
        ("contains", "b", "abc", True),
        ("contains", "b", ["b"], True),
        ("contains", "b", ["abc"], False),
        ("contains", "b", 3, False),
        ("matches", "^b", "abc", False),
        ("matches", "b", "abc", True),
        ("matches", "b", None, False),
        ("template", "a\n", "a\n", True),
        ("template", "a\n", "a", False),
        ("template", "", None, False),
    ],
)
def test_holds(operator: str, value: Any, found: Any, holds: bool) -> None:
    assert Expectation("r", "f", operator, value, "why").holds(found) is holds
