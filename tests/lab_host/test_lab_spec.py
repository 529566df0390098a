"""Command lines that `gpuprov lab` accepts, and its messages about the others."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from gpuprov_lab import network, node, places, record, silicon_state
from gpuprov_lab import verb as command
from gpuprov_lab.places import LabPlace, NodePlace
from gpuprov_lab.record import LabRecord, NodeRecord
from gpuprov_lab.spec import DEFAULT_NODES, NETWORKS, SKUS, NodeSpec, lab_name, parse_node, wanted_nodes
from provision.cli import main
from provision.errors import ExitCode, LabError, UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu-01=h100-sxm", NodeSpec("gpu-01", "h100-sxm", "debian13")),
        ("gpu-02=l40s:debian12", NodeSpec("gpu-02", "l40s", "debian12")),
        ("a=b200:debian13", NodeSpec("a", "b200", "debian13")),
        ("a=b200+containers", NodeSpec("a", "b200", "debian13", containers=True)),
        ("a=b200:debian12+containers", NodeSpec("a", "b200", "debian12", containers=True)),
        ("a=h100-sxm+ib", NodeSpec("a", "h100-sxm", "debian13", network="ib")),
        ("a=l40s:rhel9+containers+roce", NodeSpec("a", "l40s", "rhel9", containers=True, network="roce")),
    ],
)
def test_a_node_is_name_sku_and_release(text: str, expected: NodeSpec) -> None:
    assert parse_node(text) == expected
    assert parse_node(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "about"),
    [
        ("gpu-01", "is not NAME=SKU"),
        ("=h100-sxm", "is not NAME=SKU"),
        ("gpu-01=", "is not NAME=SKU"),
        ("gpu-01=h100", "no SKU 'h100'"),
        ("gpu-01=h100-sxm:", "no release ''"),
        ("gpu-01=h100-sxm:ubuntu", "no release 'ubuntu'"),
        ("gpu-01=h100-sxm:debian12+boats", "a node cannot be +boats"),
        ("gpu-01=h100-sxm+", "a node cannot be +"),
        ("gpu-01=h100-sxm+none", "a node cannot be +none"),
        ("gpu-01=h100-sxm:+ib", "no release ''"),
        ("gpu-01=h100-sxm+ib+roce", "names its network twice"),
        ("gpu+ib=h100-sxm", "cannot be a host name"),
        ("GPU=l40s", "cannot be a host name"),
        ("-a=l40s", "cannot be a host name"),
        ("a-=l40s", "cannot be a host name"),
        ("a.b=l40s", "cannot be a host name"),
        ("../x=l40s", "cannot be a host name"),
        ("a\n=l40s", "cannot be a host name"),
        (f"{'a' * 33}=l40s", "cannot be a host name"),
    ],
)
def test_a_wrong_node_is_quoted_with_what_is_wrong(text: str, about: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_node(text)
    assert about in refused.value.what
    assert repr(text) in refused.value.what
    assert refused.value.fix


def test_without_options_there_are_three_nodes_of_two_kinds_and_releases() -> None:
    nodes = wanted_nodes(None, None)
    assert nodes == DEFAULT_NODES
    assert {node.release for node in nodes} == {"debian13", "debian12"}


def test_a_number_of_nodes_repeats_the_default_set_under_new_names() -> None:
    nodes = wanted_nodes(7, None)
    assert [node.name for node in nodes] == [f"gpu-0{i}" for i in range(1, 8)]
    assert nodes[:3] == DEFAULT_NODES
    assert nodes[4].sku == DEFAULT_NODES[1].sku


@pytest.mark.parametrize(
    ("count", "texts"),
    [(0, None), (-1, None), (251, None), (2, ["a=l40s"]), (None, ["a=l40s", "b=l40s", "a=b200"])],
)
def test_contradictions_and_impossible_numbers_are_refused(
    count: int | None, texts: list[str] | None
) -> None:
    with pytest.raises(UsageError):
        wanted_nodes(count, texts)


@pytest.mark.parametrize("text", ["", "Lab", "a.b", "../etc", "a b", "1st", "a" * 21, "lab\n"])
def test_a_lab_name_stays_inside_its_folder_and_its_interfaces(text: str) -> None:
    with pytest.raises(UsageError):
        lab_name(text)


def test_every_name_fits_the_kernels_limits() -> None:
    """An interface name has at most 15 characters, a host name 64."""
    assert len(network.host_side(network.LAST_OCTET, 250)) <= 15
    assert len(network.bridge_name(network.LAST_OCTET)) <= 15
    assert len(LabPlace("l" * 20).node("n" * 32).namespace) <= 64


def test_addresses_are_distinct_and_never_the_bridges() -> None:
    addresses = {network.node_address(78, index) for index in range(1, 1001)}
    assert len(addresses) == 1000
    assert network.bridge_address(78) not in addresses


def test_the_help_lists_every_sku_and_network() -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    verbs = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    text = verbs.choices["up"].format_help().replace("\n", " ")
    assert [sku for sku in SKUS if sku not in text] == []
    assert [network for network in NETWORKS if f"+{network}" not in text] == []


@pytest.mark.parametrize(
    ("arguments", "about"),
    [
        (["up", "--node", "x"], "is not NAME=SKU"),
        (["up", "--speed", "0"], "--speed"),
        (["up", "--speed", "nan"], "--speed"),
        (["up", "--seed", "0"], "--seed"),
        (["up", "--lab", "../x"], "--lab"),
        (["fault"], "needs NODE FAULT"),
        (["fault", "gpu-01"], "needs NODE FAULT"),
    ],
)
def test_a_wrong_command_line_ends_with_2_before_anything_is_made(
    arguments: list[str], about: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gpuprov_lab.host.require_root", lambda: None)
    assert main(["lab", *arguments]) == ExitCode.USAGE
    assert about in capsys.readouterr().err


def test_without_root_it_says_so_with_the_command_to_type(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("sys.argv", ["/opt/my tools/gpuprov", "lab", "up", "--nodes", "2"])
    assert main(["lab", "up"]) == ExitCode.ERROR
    said = capsys.readouterr().err
    assert "needs root" in said
    assert "sudo '/opt/my tools/gpuprov' lab up --nodes 2" in said


LAB = LabRecord(
    "mine", 80, nodes=(NodeRecord("one", "l40s", "debian13", 1), NodeRecord("two", "b200", "debian12", 2))
)


def test_a_lab_takes_new_nodes_and_refuses_changed_ones() -> None:
    more = LAB.with_nodes((NodeSpec("two", "b200", "debian12"), NodeSpec("three", "l40s")))
    assert [(n.name, n.index) for n in more.nodes] == [("one", 1), ("two", 2), ("three", 3)]
    with pytest.raises(LabError, match="already has one=l40s:debian13"):
        LAB.with_nodes((NodeSpec("one", "b200"),))


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the folder that holds labs."""
    for module in (places, record):
        monkeypatch.setattr(module, "STATE", tmp_path)
    return tmp_path


@pytest.mark.usefixtures("state")
def test_a_lab_remembers_what_joins_its_nodes() -> None:
    LAB.with_nodes((NodeSpec("three", "h100-sxm", network="roce"),)).save()
    known = record.load("mine")
    assert known is not None
    assert known.node("three").spec == NodeSpec("three", "h100-sxm", network="roce")
    assert (known.node("three").index, known.node("one").network) == (3, "none")
    with pytest.raises(LabError, match=r"already has three=h100-sxm:debian13\+roce, but three=h100-sxm"):
        known.with_nodes((NodeSpec("three", "h100-sxm"),))


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize(("network", "cards"), [("none", 0), ("ib", 9), ("roce", 9)])
def test_a_node_is_made_with_its_cards(network: str, cards: int) -> None:
    place = NodePlace("mine", "one")
    silicon_state.create(place, "h100-sxm", 7, 100.0, network)
    shown = sorted(path.name for path in (place.silicon / "sys/class/infiniband").iterdir())
    assert len(shown) == cards
    if cards:
        layer = (place.silicon / "sys/class/infiniband/mlx5_0/ports/1/link_layer").read_text()
        assert layer == ("InfiniBand\n" if network == "ib" else "Ethernet\n")


def test_only_a_node_for_containers_gets_what_they_need(state: Path) -> None:
    plain, roomy = (NodeRecord(name, "l40s", "debian13", 1, name == "roomy") for name in ("plain", "roomy"))
    assert "--capability=all" not in node.nspawn(LAB, plain, state)
    command = node.nspawn(LAB, roomy, state)
    assert "--capability=all" in command
    assert f"--bind={state}/mine/nodes/roomy/volumes/docker:/var/lib/docker" in command


def test_one_word_for_the_node_is_shell_and_several_are_an_argument_list() -> None:
    assert node.remote_text(["ls | wc -l"]) == "ls | wc -l"
    assert node.remote_text(["printf", "%s", "a b", "$(reboot)"]) == "printf %s 'a b' '$(reboot)'"
