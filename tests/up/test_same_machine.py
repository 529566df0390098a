"""Detection of one machine under two names in an inventory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from provision.errors import InventoryError
from provision.fleet import Fleet, Node
from provision.up import resume


def fleet(tmp_path: Path, text: str = "", /, **nodes: dict[str, Any]) -> Fleet:
    source = tmp_path / "fleet.yml"
    source.write_text(text)
    named = {name.replace("_", "-"): given for name, given in nodes.items()}
    return Fleet(source, {name: Node(name, (), given) for name, given in named.items()}, {})


def test_the_same_address_twice_names_both_and_their_places(tmp_path: Path) -> None:
    text = (
        "all:\n  hosts:\n    gpu-01:\n      ansible_host: 10.0.0.1\n    'gpu-02': {ansible_host: 10.0.0.1}\n"
    )
    twice = fleet(tmp_path, text, gpu_01={"ansible_host": "10.0.0.1"}, gpu_02={"ansible_host": "10.0.0.1"})
    with pytest.raises(InventoryError) as refused:
        resume.refuse_twice_named(twice)
    source = tmp_path / "fleet.yml"
    assert refused.value.what == (
        "the inventory lists one machine under two names: "
        f"gpu-01 ({source}:3) and gpu-02 ({source}:5) are both at 10.0.0.1"
    )


def test_places_are_found_in_an_ini_inventory_too(tmp_path: Path) -> None:
    text = "[gpus]\ngpu-01 ansible_host=h\ngpu-010 ansible_host=x\ngpu-02 ansible_host=h\n"
    twice = fleet(
        tmp_path,
        text,
        gpu_01={"ansible_host": "h"},
        gpu_010={"ansible_host": "x"},
        gpu_02={"ansible_host": "h"},
    )
    with pytest.raises(InventoryError, match=r"gpu-01 \(.*:2\) and gpu-02 \(.*:4\) are both at h"):
        resume.refuse_twice_named(twice)


def test_a_name_that_is_anothers_address_is_the_same_machine(tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match="gpu-01 and login are both at gpu-01"):
        resume.refuse_twice_named(fleet(tmp_path, gpu_01={}, login={"ansible_host": "GPU-01"}))


def test_many_mistakes_are_not_all_told(tmp_path: Path) -> None:
    nodes = {f"n{number}": {"ansible_host": f"h{number // 3}"} for number in range(30)}
    with pytest.raises(InventoryError, match="are all at h0") as refused:
        resume.refuse_twice_named(fleet(tmp_path, **nodes))
    assert "and 5 more" in refused.value.what


@pytest.mark.parametrize(
    "other",
    [
        {"ansible_host": "10.0.0.2"},
        {"ansible_host": "10.0.0.1", "ansible_port": 2222},
        {"ansible_host": "10.0.0.1", "ansible_ssh_common_args": "-o ProxyJump=bastion-2"},
        {"ansible_host": "10.0.0.1", "ansible_connection": "local"},
    ],
)
def test_another_port_another_way_there_or_another_connection_is_another_machine(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    resume.refuse_twice_named(fleet(tmp_path, gpu_01={"ansible_host": "10.0.0.1"}, gpu_02=other))
