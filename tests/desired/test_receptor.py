"""The mesh of an inventory: its members, its connections, and inventories that are refused."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from provision.commands import fleet_options
from provision.desired import receptor, stack
from provision.desired.role import all_defaults
from provision.errors import InventoryError
from provision.fleet import Fleet, Kind
from provision.remote.schedulers import chosen
from tests.support import modules

TWO_HOPS: dict[str, Any] = {
    "controller": {"ansible_connection": "local", "receptor_peers": ["worker-a"]},
    "worker-a": {"ansible_host": "192.0.2.{{ 10 + 1 }}", "receptor_peers": ["worker-b"]},
    "worker-b": {"ansible_host": "10.0.0.12", "gpuprov_address": "192.0.2.12", "receptor_port": 27200},
}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def loaded(folder: Path, members: dict[str, Any], *words: str, gpu_only: bool = False) -> Fleet:
    inventory = {
        "gpus": {"hosts": {"gpu-01": {"ansible_host": "192.0.2.1"}}},
        "gpuprov_workers": {"hosts": members},
        "all": {
            "vars": {"gpuprov_expected_gpus": 8, "gpuprov_roles": ["nccl"], "gpuprov_scheduler": "slurm"}
        },
    }
    file = folder / "inventory.yml"
    file.write_text(yaml.safe_dump(inventory))
    parser = argparse.ArgumentParser()
    fleet_options.add_arguments(parser, gpu_only=gpu_only)
    return fleet_options.load(parser.parse_args([str(file), *words]))[0]


def entry(name: str, address: str, port: int, peers: list[str], controller: bool = False) -> dict[str, Any]:
    return {"name": name, "address": address, "port": port, "controller": controller, "peers": peers}


def test_every_member_gets_the_list_of_all_whatever_was_chosen(tmp_path: Path) -> None:
    for words in ((), ("--nodes", "worker-b")):
        fleet = loaded(tmp_path, TWO_HOPS, *words)
        assert fleet.nodes["worker-b"].variables["receptor_nodes"] == [
            entry("controller", "controller", 27199, ["worker-a"], controller=True),
            entry("worker-a", "192.0.2.11", 27199, ["worker-b"]),
            entry("worker-b", "192.0.2.12", 27200, []),
        ]
    assert "receptor_nodes" not in loaded(tmp_path, TWO_HOPS).nodes["gpu-01"].variables


def test_without_peers_the_controller_connects_to_all(tmp_path: Path) -> None:
    fleet = loaded(tmp_path, {"a": {}, "ctl": {"receptor_controller": True}, "b": {}})
    peers = {each["name"]: each["peers"] for each in fleet.nodes["a"].variables["receptor_nodes"]}
    assert peers == {"a": [], "ctl": ["a", "b"], "b": []}


def test_members_take_part_in_the_role_alone_and_gpu_nodes_never_do(tmp_path: Path) -> None:
    fleet = loaded(tmp_path, TWO_HOPS)
    member = stack.declared(fleet.nodes["worker-a"], {})
    assert (member["gpuprov_roles"], member["receptor_enabled"]) == (["receptor"], True)
    assert "gpuprov_expected_gpus" not in member
    node = stack.declared(fleet.nodes["gpu-01"], {})
    assert (node["gpuprov_roles"], node["receptor_enabled"]) == (["nccl"], False)
    assert list(fleet.where(Kind.GPU)) == ["gpu-01"]
    assert set(chosen.load(fleet, {}).of) == {"gpu-01"}


def test_verbs_that_measure_know_no_members(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert list(loaded(tmp_path, TWO_HOPS, gpu_only=True).nodes) == ["gpu-01"]
    assert "controller, worker-a, worker-b: left out, no GPU node" in capsys.readouterr().err


def test_a_group_without_a_controller_is_left_alone(tmp_path: Path) -> None:
    assert list(loaded(tmp_path, {"worker-a": {}, "worker-b": {}}).nodes) == ["gpu-01"]


@pytest.mark.parametrize("pattern", ["worker-a", "gpu-01,worker-a", "gpuprov_workers", "worker-*"])
@pytest.mark.parametrize("more", [{}, {"receptor_enabled": False}], ids=["no controller", "not managed"])
def test_a_worker_without_a_mesh_is_not_called_unknown(
    tmp_path: Path, pattern: str, more: dict[str, Any]
) -> None:
    group = {"worker-a": more, "worker-b": more} | ({"ctl": {"receptor_controller": True}} if more else {})
    if more and pattern == "gpuprov_workers":
        return  # the pattern selects its controller as well
    with pytest.raises(InventoryError) as refused:
        loaded(tmp_path, group, "--nodes", pattern)
    assert "worker-a" in refused.value.what.removeprefix(f"--nodes {pattern}")
    assert ("receptor_enabled is false" if more else "has no controller") in refused.value.what
    assert f"gpuprov up {tmp_path}/inventory.yml --nodes gpuprov_workers" in refused.value.fix
    assert "did you mean" not in refused.value.fix


def test_a_member_that_somebody_else_sets_up_is_left_out_of_the_mesh(tmp_path: Path) -> None:
    fleet = loaded(
        tmp_path, {"ctl": {"receptor_controller": True}, "a": {}, "b": {"receptor_enabled": False}}
    )
    assert set(fleet.nodes) == {"gpu-01", "ctl", "a"}
    assert [each["name"] for each in fleet.nodes["a"].variables["receptor_nodes"]] == ["a", "ctl"]


def test_the_controller_reaches_a_member_itself(tmp_path: Path) -> None:
    for words in ((), ("--set", "gpuprov_receptor_node=worker-a")):
        fleet = loaded(tmp_path, TWO_HOPS, *words)
        assert not [name for name in TWO_HOPS if "_through_worker" in fleet.nodes[name].variables]


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"ctl": {"receptor_peers": ["worker_a"]}}, r"ctl: receptor_peers: 'worker_a' is not in the group"),
        ({"ctl": {"receptor_peers": ["gpu-01"]}}, r"'gpu-01' is not in the group gpuprov_workers"),
        ({"worker-a": {"receptor_peers": ["worker-a"]}}, r"worker-a: receptor_peers names worker-a itself"),
        ({"ctl": {"receptor_peers": [{"a": 1}]}}, r"receptor_peers must be a list of names, not"),
        ({"ctl": {"receptor_peers": []}}, r"worker-a, worker-b: no way leads there from ctl"),
        ({"ctl": {"receptor_peers": ["worker-a"]}}, r"worker-b: no way leads there from ctl"),
        ({"worker-b": {"ansible_host": "192.0.2.7"}}, r"and worker-b have one address, 192.0.2.7 port 27199"),
        ({"localhost": {}}, r"localhost: a node of Receptor cannot have this name"),
        ({"worker-a": {"receptor_port": 70000}}, r"receptor_port must be a TCP port, not 70000"),
        ({"ctl": {"receptor_authority_folder": "mesh"}}, r"must be an absolute path, not 'mesh'"),
    ],
)  # fmt: skip
def test_a_mesh_that_cannot_be_is_refused_in_a_sentence(
    tmp_path: Path, members: dict[str, Any], words: str
) -> None:
    usual: dict[str, Any] = {
        "ctl": {"receptor_controller": True},
        "worker-a": {"ansible_host": "192.0.2.7"},
        "worker-b": {},
    }
    wrong = {name: {**usual.get(name, {}), **members.get(name, {})} for name in {**usual, **members}}
    with pytest.raises(InventoryError, match=words) as refused:
        loaded(tmp_path, wrong)
    assert "\n" not in str(refused.value)


def test_two_workers_behind_one_address_have_ports_of_their_own(tmp_path: Path) -> None:
    both = {"a": {"ansible_host": "192.0.2.7"}, "b": {"ansible_host": "192.0.2.7", "receptor_port": 27200}}
    assert len(loaded(tmp_path, {"ctl": {"receptor_controller": True}, **both}).nodes) == 4


def test_a_hop_counts_whoever_connects(tmp_path: Path) -> None:
    """A worker behind a firewall without open ports connects to the one before it."""
    members = {
        "ctl": {"receptor_controller": True, "receptor_peers": ["a"]},
        "a": {},
        "b": {"receptor_peers": ["a"]},
    }
    assert len(loaded(tmp_path, members).nodes) == 4


def test_what_is_known_of_the_authority_has_no_private_key(tmp_path: Path, state: Path) -> None:
    assert loaded(tmp_path, TWO_HOPS).nodes["worker-a"].variables["receptor_authority"] == {}
    folder = state / "gpuprov" / "receptor"
    module: Any = modules.load("gpuprov_receptor_authority")
    module.BITS = 2048
    module.opened(str(folder), 3650, False)
    variables = loaded(tmp_path, TWO_HOPS).nodes["worker-a"].variables
    assert variables["receptor_authority_folder"] == str(folder)
    known = variables["receptor_authority"]
    assert known["certificate"] == (folder / "ca.crt").read_text()
    assert known["work_public_key"] == (folder / "work-public-key.pem").read_text()
    private = (folder / "work-private-key.pem").read_bytes()
    assert known["work_private_key_sha256"] == hashlib.sha256(private).hexdigest()
    assert "PRIVATE" not in str(known)
    (folder / "work-public-key.pem").unlink()
    with pytest.raises(InventoryError, match=r"the authority of the mesh cannot be read"):
        loaded(tmp_path, TWO_HOPS)


def test_the_port_is_the_roles() -> None:
    assert all_defaults()["receptor_port"] == receptor.PORT
