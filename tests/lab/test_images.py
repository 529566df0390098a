"""Shared and separate data of nodes started from one image; and an image goes with its last user."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuprov_lab import leftovers
from gpuprov_lab.spec import NodeSpec
from tests.lab.images import Images
from tests.lab.lab_nodes import Lab, running_lab

BARE = (NodeSpec("base", "l40s"),)
NAMES = ("one", "two")


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    with Images(tmp_path_factory.mktemp("shared")) as images:
        yield images


def written(lab: Lab, _: Path) -> dict[str, Any]:
    """Write a file as root, remove another, and fetch apt's lists from the lab's own server."""
    lab.node("base").as_root("echo first > /root/kept; rm /etc/motd; apt-get update")
    return {"said": "by the node"}


@pytest.fixture(scope="module")
def lab(ours: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    image = ours.made("written", BARE, {}, written)["images"]["base"]
    nodes = tuple(NodeSpec(name, "l40s") for name in NAMES)
    inventory = tmp_path_factory.mktemp("lab") / "lab.yml"
    with running_lab("over", nodes, inventory, images=dict.fromkeys(NAMES, image)) as running:
        yield running


def test_nodes_begin_with_it_and_keep_to_themselves_what_they_write(lab: Lab) -> None:
    one, two = lab.nodes
    assert one.as_root("cat /root/kept; ls /etc/motd || true").stdout == "first\n"
    one.as_root("echo second > /root/kept")
    one.power_off()
    one.power_on()
    assert one.as_root("cat /root/kept").stdout == "second\n"
    assert two.as_root("cat /root/kept").stdout == "first\n"


def test_identity_and_hardware_are_each_nodes_own(lab: Lab) -> None:
    identity = "cat /etc/hostname /etc/machine-id /etc/ssh/ssh_host_ed25519_key.pub"
    told = [node.as_root(identity).stdout.split() for node in lab.nodes]
    assert not set(told[0]) & set(told[1]) - {"ssh-ed25519"}, told
    gpus = [json.loads((node.place.silicon / "state.json").read_text())["gpus"] for node in lab.nodes]
    assert not {gpu["serial"] for gpu in gpus[0]} & {gpu["serial"] for gpu in gpus[1]}
    assert [node.run("hostname").stdout.strip() for node in lab.nodes] == list(NAMES)


def test_packages_come_from_the_nodes_own_lab(lab: Lab) -> None:
    said = lab.node("one").as_root("apt-get update && apt-get install --yes tree").stdout
    assert {word.split("/")[2] for word in said.split() if word.startswith("http")} == {
        f"{lab.record.bridge_address}:3142"
    }


def test_it_is_made_once_and_goes_with_the_last_that_used_it(tmp_path: Path) -> None:
    calls: list[str] = []

    def work(lab: Lab, _: Path) -> dict[str, Any]:
        calls.append(lab.name)
        return {}

    with Images(tmp_path) as second:
        with Images(tmp_path) as first:
            made = first.made("bare", BARE, {}, work)
            assert second.made("bare", BARE, {}, work) == made
        assert calls == [made["lab"]]
        (disk,) = made["images"]["base"].disks
        assert disk.is_dir(), "the second one uses it still"
    assert leftovers.find(made["lab"]) == []
    assert not disk.exists()


def test_one_that_cannot_be_made_fails_whoever_needs_it_and_is_not_tried_again(tmp_path: Path) -> None:
    calls: list[str] = []

    def work(lab: Lab, _: Path) -> dict[str, Any]:
        calls.append(lab.name)
        raise RuntimeError("no room")

    with Images(tmp_path) as images:
        for _ in range(2):
            with pytest.raises(pytest.fail.Exception, match="bare could not be made: no room"):
                images.made("bare", BARE, {}, work)
    assert len(calls) == 1
    assert leftovers.find(calls[0]) == []
