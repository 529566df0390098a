"""Host patterns, compared with `ansible --list-hosts`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from provision.desired import inventory
from provision.errors import InventoryError
from provision.fleet import Fleet
from tests.support.commands import ran

INVENTORY = """\
all:
  hosts:
    login: {}
    fe80::1: {}
  children:
    rack1:
      hosts: {"gpu-[01:04]": {}}
    rack2:
      hosts: {gpu-05: {}, gpu-06.example.org: {}, gpu-10: {}}
    both:
      children: {rack2: {}, rack1: {}}
    h100:
      hosts: {gpu-02: {}, gpu-05: {}}
"""

PATTERNS = [
    "all",
    "*",
    "gpu-01",
    "login",
    "rack1",
    "both",
    "gpu-0*",
    "gpu-0[1-3]*",
    "rack?",
    "rack1:rack2",
    "rack1,rack2",
    "rack1, login",
    "rack1:&h100",
    "both:!h100",
    "both:!gpu-01:!rack2",
    "!rack1",
    "&h100",
    "all,!rack1,&both",
    "~gpu-(01|10)",
    "~(rack1|login)",
    "rack1[0]",
    "rack1[-1]",
    "rack1[0:1]",
    "rack1[2:]",
    "rack1[1:2]:login",
    "gpu-*[0:2]",
    "fe80::1",
    "gpu-06.example.org",
    "*.example.org",
    "rack1:!gpu-0[12]*",
    "h100:rack1",
    "ungrouped",
]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("patterns") / "inventory.yml"
    file.write_text(INVENTORY)
    return file


@pytest.fixture(scope="module")
def fleet(source: Path) -> Fleet:
    return inventory.load(source)


@pytest.fixture(scope="module")
def ansibles(source: Path) -> dict[str, list[str]]:
    """Match each pattern with Ansible, in a single process, since starting one for each takes long."""
    program = (
        "import json, sys\n"
        "from ansible.parsing.dataloader import DataLoader\n"
        "from ansible.inventory.manager import InventoryManager\n"
        "from ansible.plugins.loader import init_plugin_loader\n"
        "init_plugin_loader()\n"
        "manager = InventoryManager(DataLoader(), sources=[sys.argv[1]])\n"
        "print(json.dumps({p: [h.name for h in manager.get_hosts(p)] for p in sys.argv[2:]}))\n"
    )
    answer = ran([sys.executable, "-c", program, str(source), *PATTERNS], check=True)
    return dict(json.loads(answer.stdout))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_names_what_ansible_says(
    pattern: str, fleet: Fleet, ansibles: dict[str, list[str]]
) -> None:
    assert ansibles[pattern], "a pattern that names nothing proves nothing"
    assert sorted(inventory.select(fleet, pattern).nodes) == sorted(ansibles[pattern])


def list_hosts(source: Path, *words: str) -> list[str]:
    """Return the hosts that Ansible's command line lists."""
    ansible = Path(sys.executable).parent / "ansible"
    shown = ran([ansible, "-i", source, "--list-hosts", *words], check=True)
    return [line.strip() for line in shown.stdout.splitlines()[1:]]


def test_the_command_line_of_ansible_agrees(source: Path, fleet: Fleet) -> None:
    assert list_hosts(source, "both:!h100") == list(inventory.select(fleet, "both:!h100").nodes)


@pytest.mark.parametrize(
    ("pattern", "what", "fix"),
    [
        ("rak1", "nothing in the inventory is called 'rak1'", "did you mean rack1"),
        ("all:!gpu-77", "nothing in the inventory is called 'gpu-77'", "did you mean"),
        ("zzz", "nothing in the inventory is called 'zzz'", "there are: both, h100, rack1, rack2"),
        ("rack1[9]", "there are only 4 nodes", "the last one is [3]"),
        ("rack1:!rack1", "no node is left", "widen"),
        ("gpu-0[12]", "nothing in the inventory is called 'gpu-0[12]'", "gpu-0[12]*"),
        ("gpu-[01-04,11]", "not in the inventory: gpu-11", "there are: "),
        ("~(", "is not a pattern", ""),
        ("@file", "file cannot be read: No such file or directory", "node names, one per line"),
    ],
)
def test_a_pattern_that_names_nothing_is_refused(fleet: Fleet, pattern: str, what: str, fix: str) -> None:
    with pytest.raises(InventoryError) as caught:
        inventory.select(fleet, pattern)
    assert what in caught.value.what
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    ("pattern", "nodes"),
    [
        ("gpu-[01-03]", ["gpu-01", "gpu-02", "gpu-03"]),
        ("gpu-[01-03,05,10],login", ["gpu-01", "gpu-02", "gpu-03", "gpu-05", "gpu-10", "login"]),
        ("rack1:!gpu-[02-03]", ["gpu-01", "gpu-04"]),
        ("rack1[0-1]", ["gpu-01", "gpu-02"]),  # positions in a group, as in Ansible
    ],
)
def test_names_folded_as_reports_print_them(fleet: Fleet, pattern: str, nodes: list[str]) -> None:
    assert sorted(inventory.select(fleet, pattern).nodes) == sorted(nodes)


def test_groups_keep_their_members_when_some_nodes_are_selected(fleet: Fleet) -> None:
    assert inventory.select(fleet, "gpu-01").groups == fleet.groups


def test_a_file_of_names_mixes_with_patterns_as_with_ansibles_limit(
    source: Path, fleet: Fleet, tmp_path: Path
) -> None:
    file = tmp_path / "nodes"
    file.write_text("gpu-05\nfe80::1\n\nrack1\n")
    pattern = f"@{file}:login:!h100"
    chosen = list(inventory.select(fleet, pattern).nodes)
    assert sorted(list_hosts(source, "all", "--limit", pattern)) == sorted(chosen)
    assert chosen == ["fe80::1", "gpu-01", "gpu-03", "gpu-04", "login"]


def test_a_file_of_names_that_names_a_file_is_refused(fleet: Fleet, tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    file.write_text(f"@{file}\n")  # a file that includes itself must not loop forever
    with pytest.raises(InventoryError, match=f"@{file} in {file} is another file"):
        inventory.select(fleet, f"@{file}")


def test_comments_in_a_file_of_names_are_left_out(fleet: Fleet, tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    file.write_text("# those of Monday\ngpu-01  # its fan\n  gpu-03\n")
    assert list(inventory.select(fleet, f"@{file}").nodes) == ["gpu-01", "gpu-03"]
    assert "gpu-01" not in inventory.select(fleet, f"rack1:!@{file}").nodes
    odd = tmp_path / "it's, here: 1"
    odd.write_text("gpu-02\n")
    assert list(inventory.select(fleet, f"@{odd}").nodes) == ["gpu-02"]
    file.write_text("# none is left\n")
    with pytest.raises(InventoryError, match="no node is left"):
        inventory.select(fleet, f"@{file}")
    file.write_text("gpu-01\ngpu-77\n")
    unknown = f"@{file}: gpu-77: nothing in the inventory is called 'gpu-77'"
    with pytest.raises(InventoryError, match=unknown):
        inventory.select(fleet, f"login,@{file}")
