"""The variables of a node, and variables that are refused before any node is touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from provision.desired import inventory, stack
from provision.desired.variables import check
from provision.errors import StackError
from provision.fleet import Fleet, Node


def fleet(*nodes: dict[str, Any], source: Path = Path("inventory.yml")) -> Fleet:
    named = {
        f"gpu-{number:02}": Node(f"gpu-{number:02}", (), each) for number, each in enumerate(nodes, start=1)
    }
    return Fleet(source, named, {"all": tuple(named)})


def test_inventory_beats_the_stack_and_set_beats_both() -> None:
    shipped = stack.load(stack.DEFAULT).variables["nvidia_driver_version"]
    node = Node("gpu-01", (), {"cuda_toolkit_version": "12.8", "x": 1})
    declared = stack.declared(node, {"x": 2})
    assert declared["nvidia_driver_version"] == shipped
    assert declared["cuda_toolkit_version"] == "12.8"
    assert declared["x"] == 2


def test_a_node_chooses_its_stack_and_set_overrides_that() -> None:
    node = Node("gpu-01", (), {"gpuprov_stack": "r595-cuda13.2"})
    assert stack.node_stack(node, {}).name == "r595-cuda13.2"
    assert stack.node_stack(node, {"gpuprov_stack": "r570-cuda12.8"}).name == "r570-cuda12.8"
    assert stack.node_stack(Node("gpu-01", (), {}), {}).name == stack.DEFAULT


def test_the_default_is_that_of_the_gpus() -> None:
    """Until its GPUs are known a node has both defaults, which share no variable."""
    bare = Node("gpu-01", (), {})
    assert stack.node_stack(bare, {}, {"gpu": {"vendor": "amd"}}).name == stack.DEFAULT_STACKS["amd"]
    assert stack.node_stack(bare, {}, {"gpu": {"vendor": None}}).name == stack.DEFAULT
    assert (
        stack.node_stack(Node("gpu-01", (), {"gpuprov_sku": "mi300x"}), {}).name
        == stack.DEFAULT_STACKS["amd"]
    )
    declared = stack.declared(bare, {})
    for name in stack.DEFAULT_STACKS.values():
        assert stack.load(name).variables.items() <= declared.items()
    one = stack.declared(Node("gpu-01", (), {"gpuprov_stack": stack.DEFAULT}), {})
    assert "rocm_version" not in one


def test_every_shipped_stack_loads_and_the_default_is_one_of_them() -> None:
    assert stack.DEFAULT in stack.available()
    for name in stack.available():
        assert stack.load(name).name == name


def test_an_unknown_stack_is_refused_with_the_near_ones() -> None:
    with pytest.raises(StackError, match=r"no stack called 'r580-cuda12\.8'") as caught:
        stack.load("r580-cuda12.8")
    assert "did you mean" in caught.value.fix
    with pytest.raises(StackError) as caught:
        stack.load("zzz")
    assert stack.DEFAULT in caught.value.fix


def test_a_stack_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.yml"
    file.write_text("name: mine\nvariables: {nvidia_driver_version: '580.95.05'}\n")
    assert stack.load(str(file)).variables == {"nvidia_driver_version": "580.95.05"}
    for text, what in [
        ("name: mine\nvariables: {nvidia_drivers_version: '1'}\n", "unknown variable nvidia_drivers_version"),
        ("name: mine\nvariable: {}\n", "unknown key variable"),
        ("- a\n", "must be a mapping"),
        ("name: [\n", ":2:"),
    ]:
        bad = tmp_path / f"bad{len(what)}.yml"
        bad.write_text(text)
        with pytest.raises(StackError, match=what):
            stack.load(str(bad))


@pytest.mark.parametrize(
    ("variable", "fix"),
    [
        ("nvidia_driver_verison", "did you mean nvidia_driver_version"),
        ("nvida_driver_version", "did you mean nvidia_driver_version"),
        ("gpuprov_stak", "did you mean gpuprov_stack"),
        ("nccl_verion", "did you mean nccl_version"),
    ],
)
def test_a_mistyped_variable_is_refused(variable: str, fix: str) -> None:
    with pytest.raises(StackError) as caught:
        check(fleet({}, {variable: 1}, {variable: 1}), {})
    assert f"unknown variable {variable}" in caught.value.what
    assert "gpu-[02-03]" in caught.value.what
    assert fix in caught.value.fix
    with pytest.raises(StackError, match="--set"):
        check(fleet({}), {variable: 1})


def test_other_peoples_variables_are_let_be() -> None:
    check(fleet({"ansible_host": "x", "site": 1, "driver_version": 2, "nvidia_version": 3}), {})


def test_another_collections_variable_is_named_and_ignored(tmp_path: Path) -> None:
    """The variable has the prefix of one of our roles and resembles none of its options."""
    (tmp_path / "hosts").write_text("[g]\ngpu-01\ngpu-02 nvidia_driver_package_state=present\n")
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "g.yml").write_text("a: 1\nnvidia_driver_branch: '580'\n")
    said: list[str] = []
    found = inventory.load(tmp_path)
    check(found, {}, said.append)
    assert [line.removeprefix(f"{tmp_path}/").partition(" is no variable")[0] for line in said] == [
        "group_vars/g.yml:2: nvidia_driver_branch",
        "hosts:3: nvidia_driver_package_state",
    ]
    with pytest.raises(StackError, match="unknown variable nvidia_driver_branch"):
        check(found, {"nvidia_driver_branch": "580"})


def test_the_line_of_a_mistyped_variable_is_named(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("[g]\ngpu-01\n")
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "g.yml").write_text("a: 1\nnccl_verison: '2'\n")
    with pytest.raises(StackError, match=r"group_vars/g\.yml:2: unknown variable nccl_verison \(gpu-01\)"):
        check(inventory.load(tmp_path), {})


@pytest.mark.parametrize(
    ("variables", "what"),
    [
        ({"gpuprov_node": {}}, "is a fact that gpuprov observes"),
        ({"gpuprov_expected_gpus": "8"}, "must be a whole number"),
        ({"gpuprov_expected_gpus": True}, "must be a whole number"),
        ({"gpuprov_sku": "h100"}, "no SKU called 'h100'"),
        ({"gpuprov_accelerator": "turbo"}, "gpuprov_accelerator must be mitogen, or absent, not 'turbo'"),
        ({"gpuprov_roles": "nccl"}, "must be a list"),
        ({"gpuprov_ignore_majority": "firmware.gpu_vbios"}, "must be a list"),
        ({"gpuprov_ignore_majority": ["firmware.vbios"]}, "is not compared"),
        ({"gpuprov_roles": ["nvidia_drivers"]}, "no role called 'nvidia_drivers'"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(variables: dict[str, Any], what: str) -> None:
    with pytest.raises(StackError, match=what):
        check(fleet(variables), {})


def test_a_stack_named_by_a_template_is_refused() -> None:
    with pytest.raises(StackError, match="must be plain text"):
        stack.node_stack(Node("gpu-01", (), {"gpuprov_stack": "{{ x }}"}), {})
