"""Fleets from any Ansible inventory, and the refusal of anything else with its file and line."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from provision.desired import inventory, lockfile
from provision.errors import InventoryError
from provision.fleet import Fleet, Node
from provision.up import hooks
from provision.up.watch import incidents
from tests.support import vault
from tests.support.random_inventories import write


def test_yaml_with_groups_ranges_and_variables(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "i.yml": "gpus:\n  hosts:\n    gpu-[1:3]:\n    gpu-9: {a: 2}\n  vars: {a: 1, b: '{{ a }}'}\n"
            "  children:\n    old: {hosts: {gpu-0: {}}}\n"
        },
    )
    fleet = inventory.load(tmp_path / "i.yml")
    assert list(fleet.nodes) == ["gpu-1", "gpu-2", "gpu-3", "gpu-9", "gpu-0"]
    assert fleet.nodes["gpu-9"].variables == {"a": 2, "b": "{{ a }}"}
    assert fleet.groups["gpus"] == ("gpu-1", "gpu-2", "gpu-3", "gpu-9", "gpu-0")
    assert set(fleet.nodes["gpu-0"].groups) == {"gpus", "old"}


def test_ini_directory_and_host_vars_win_over_group_vars(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "hosts": "[rack1]\ngpu-01 from=ini\ngpu-02\n",
            "group_vars/rack1.yml": "who: group\nboth: group\n",
            "host_vars/gpu-02/x.yml": "both: host\n",
        },
    )
    fleet = inventory.load(tmp_path)
    assert fleet.nodes["gpu-01"].variables == {"from": "ini", "who": "group", "both": "group"}
    assert fleet.nodes["gpu-02"].variables == {"who": "group", "both": "host"}


def test_an_executable_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f'#!{sys.executable}\nprint(\'{{"gpus": {{"hosts": ["gpu-01"], "vars": {{"a": 1}}}}}}\')\n'
    )
    script.chmod(0o755)
    fleet = inventory.load(script)
    assert fleet.nodes["gpu-01"].variables["a"] == 1
    assert fleet.groups["gpus"] == ("gpu-01",)


def test_an_inventory_without_a_file() -> None:
    assert list(inventory.load(Path("gpu-01,gpu-02,")).nodes) == ["gpu-01", "gpu-02"]


def test_vaulted_files_need_their_password(tmp_path: Path) -> None:
    password = vault.password_file(tmp_path)
    write(tmp_path / "i", {"hosts": "gpu-01\n", "group_vars/all.yml": "token: hidden\n"})
    vault.run(password, "encrypt", tmp_path / "i/group_vars/all.yml")
    assert inventory.load(tmp_path / "i", [password]).nodes["gpu-01"].variables == {"token": "hidden"}
    with pytest.raises(InventoryError) as caught:
        inventory.load(tmp_path / "i")
    assert "--vault-password-file" in caught.value.fix
    assert "hidden" not in caught.value.what


def test_a_missing_password_file_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"hosts": "gpu-01\n"})
    with pytest.raises(InventoryError, match=r"nowhere.*cannot be read"):
        inventory.load(tmp_path / "hosts", [tmp_path / "nowhere"])


def test_what_changes_ansibles_output_does_not_change_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"hosts": "[g]\ngpu-01\n[g:vars]\na=1\n"})
    monkeypatch.setenv("ANSIBLE_INVENTORY_EXPORT", "1")
    monkeypatch.setenv("ANSIBLE_FORCE_COLOR", "1")
    monkeypatch.setenv("ANSIBLE_VERBOSITY", "3")
    assert inventory.load(tmp_path / "hosts").nodes["gpu-01"].variables == {"a": 1}


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("i.yml", "all:\n  hosts:\n    gpu-01: {a: [}\n", "i.yml:3:"),
        ("i.yml", "all:\n  hosts:\n    gpu-01:\n   gpu-02:\n", "i.yml:4:"),
        ("i.yml", "just text\n", "i.yml"),
        ("i.yml", "all: {hosts: [gpu-01]}\n", "i.yml"),
        ("hosts", "[gpus\ngpu-01 x y\n", "hosts"),
    ],
)
def test_a_malformed_inventory_is_refused_with_its_place(
    tmp_path: Path, name: str, text: str, place: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InventoryError) as caught:
        inventory.load(tmp_path / name)
    assert f"{tmp_path}/{place}" in caught.value.what
    assert "\n" not in caught.value.what


def test_half_an_inventory_is_none(tmp_path: Path) -> None:
    """Ansible continues with the part it understood and exits with 0, silently dropping nodes."""
    write(tmp_path, {"a.yml": "all: {hosts: {gpu-01: {}}}\n", "b.yml": "all:\n  hosts:\n  - [\n"})
    with pytest.raises(InventoryError, match=r"b\.yml"):
        inventory.load(tmp_path)


def test_bad_group_vars_are_named(tmp_path: Path) -> None:
    write(tmp_path, {"hosts": "gpu-01\n", "group_vars/all.yml": "a: [\n"})
    with pytest.raises(InventoryError, match=r"group_vars/all\.yml:"):
        inventory.load(tmp_path / "hosts")


@pytest.mark.parametrize("text", ["all: {}\n", "all: {hosts: {}}\n", "gpus: {vars: {a: 1}}\n"])
def test_an_empty_fleet_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "i.yml").write_text(text)
    with pytest.raises(InventoryError, match="no nodes"):
        inventory.load(tmp_path / "i.yml")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("GPUPROV_INVENTORY", raising=False)
    return tmp_path


def test_which_inventory_is_used(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c", "d"):
        (here / name).touch()
    with pytest.raises(InventoryError, match="no inventory"):
        inventory.find(None, None)
    inventory.remember(Fleet(Path("d"), {}, {}))
    assert inventory.find(None, None) == here / "d"
    with pytest.raises(InventoryError, match="does not take the inventory last used") as caught:
        inventory.find(None, None, last_used=False)
    assert str(here / "d") in caught.value.fix
    (here / "inventory.yml").touch()
    assert inventory.find(None, None) == inventory.find(None, None, last_used=False) == Path("inventory.yml")
    monkeypatch.setenv("GPUPROV_INVENTORY", "c")
    assert inventory.find(None, None) == Path("c")
    assert inventory.find(None, ["b"]) == Path("b")
    assert inventory.find("a", None) == Path("a")
    assert inventory.find("a", ["b", "a"]) == Path("a,b")


def test_the_last_used_one_is_remembered_for_each_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "a").touch()
    inventory.remember(Fleet(Path("a"), {}, {}))
    (here / "other").mkdir()
    monkeypatch.chdir(here / "other")
    with pytest.raises(InventoryError):
        inventory.find(None, None)


def test_a_remembered_inventory_that_is_gone_says_where_it_was(here: Path) -> None:
    (here / "a").touch()
    inventory.remember(Fleet(Path("a"), {}, {}))
    (here / "a").unlink()
    with pytest.raises(InventoryError, match="the one last used in this folder"):
        inventory.find(None, None)


@pytest.mark.usefixtures("here")
def test_a_list_of_hosts_is_remembered_as_it_is() -> None:
    inventory.remember(Fleet(Path("gpu-01,gpu-02,"), {}, {}))
    assert inventory.find(None, None) == Path("gpu-01,gpu-02,")


def _fleet(*nodes: str, source: str = "fleet.yml", **groups: tuple[str, ...]) -> Fleet:
    return Fleet(Path(source), {name: Node(name, (), {}) for name in nodes}, {"all": nodes, **groups})


GPUS = tuple(f"gpu-{number:03}" for number in range(1, 401))


@pytest.mark.parametrize(
    ("fleet", "chosen", "expected"),
    [
        (_fleet(*GPUS), GPUS, "fleet.yml"),
        (_fleet(*GPUS), ["gpu-010", "gpu-009"], "fleet.yml --nodes gpu-009,gpu-010"),
        (_fleet(*GPUS, source="a b.yml"), ["gpu-001"], "'a b.yml' --nodes gpu-001"),
        (_fleet(*GPUS), [*GPUS[:40], "gpu-100"], "fleet.yml --nodes 'gpu-[001-040,100]'"),
        (_fleet(*GPUS, "login"), [*GPUS[:40], "login"], "fleet.yml --nodes 'gpu-[001-040],login'"),
    ],
)
def test_a_command_names_inventory_and_nodes(fleet: Fleet, chosen: list[str], expected: str) -> None:
    assert inventory.arguments(fleet, chosen) == expected
    words = shlex.split(expected)
    pattern = words[2] if len(words) > 1 else "all"
    assert set(inventory.select(fleet, pattern).nodes) == set(chosen)


def test_a_command_for_the_nodes_that_were_chosen_repeats_the_choice() -> None:
    fleet = inventory.select(_fleet(*GPUS, rack1=GPUS[:20]), "rack1:!gpu-003")
    assert inventory.arguments(fleet) == "fleet.yml --nodes 'rack1:!gpu-003'"
    assert inventory.arguments(fleet, ["gpu-004"]) == "fleet.yml --nodes gpu-004"


@pytest.mark.parametrize(
    "fleet",
    [
        # positions in the group
        _fleet(
            *(f"gpu{number:02}" for number in range(41)),
            gpu=tuple(f"gpu{number:02}" for number in range(2, 41)),
        ),
        # a character class
        _fleet(*(f"gpu{number}.dc" for number in range(41))),
    ],
)
def test_folded_names_that_ansible_reads_as_something_else_are_not_proposed(fleet: Fleet) -> None:
    chosen = list(fleet.nodes)[1:21]
    assert inventory.arguments(fleet, chosen) == f"fleet.yml --nodes {','.join(chosen)}"


@pytest.mark.usefixtures("here")
def test_an_inventory_that_does_not_exist() -> None:
    with pytest.raises(InventoryError, match=r"fleet\.yml: no such inventory") as caught:
        inventory.find("fleet.yml", None)
    assert "gpuprov init" in caught.value.fix


def test_several_inventories_are_one_state_whichever_is_named_first(here: Path) -> None:
    (here / "a").mkdir()
    for name in ("a/hosts.ini", "b.ini"):
        (here / name).write_text("gpu-01\n")
    (here / "a/drain").touch()
    (here / "gpuprov.lock.yml").touch()
    one, other = (inventory.load(Path(named)) for named in ("a/hosts.ini,b.ini", "b.ini,a/hosts.ini"))
    assert incidents.place_of(one) == incidents.place_of(other)
    assert incidents.place_of(one) != incidents.place_of(inventory.load(Path("b.ini")))
    # Relative names resolve next to the first source that has the file.
    for fleet in (one, other):
        assert hooks.placed("drain", fleet.source) == here / "a/drain"
        assert lockfile.beside(fleet.source) == here / "gpuprov.lock.yml"


UNUSABLE = [
    "a b",
    "gpu\x1b[2J",
    "a\tb",
    "",
    " ",
    "-x",
    "@file",
    "!gpu",
    "&gpu",
    "~gpu",
    "a,b",
    "gpu\u202e10",
    "a\nb",
]


@pytest.mark.parametrize("name", UNUSABLE)
@pytest.mark.parametrize("form", ["yaml", "script"])
def test_a_host_that_no_command_could_name_is_refused_with_its_file(
    tmp_path: Path, name: str, form: str
) -> None:
    file = tmp_path / ("i.yml" if form == "yaml" else "script.py")
    if form == "yaml":
        file.write_text(json.dumps({"gpus": {"hosts": {"gpu-01": {}, name: {"ansible_host": "10.0.0.1"}}}}))
    else:
        listed = json.dumps({"gpus": {"hosts": ["gpu-01", name]}})
        file.write_text(f"#!{sys.executable}\nprint({listed!r})\n")
        file.chmod(0o755)
    if name not in ("", "gpu\x1b[2J"):  # Ansible itself refuses an empty name and reads brackets as a range
        fleet = inventory.select(inventory.load(file), "gpu-01")
        assert list(fleet.nodes) == ["gpu-01"], "what is not chosen may have any name"
    with pytest.raises(InventoryError) as refused:
        inventory.select(inventory.load(file), "all")
    assert str(file) in refused.value.what
    assert refused.value.what.isprintable()
    assert name in ("", "gpu\x1b[2J") or repr(name) in refused.value.what


@pytest.mark.parametrize("address", ["10.0.0.1 ", "a b", "10.0.0.1\x00", "gpu\n01"])
def test_an_address_that_is_none_is_refused_with_its_host(tmp_path: Path, address: str) -> None:
    file = tmp_path / "i.yml"
    file.write_text(json.dumps({"gpus": {"hosts": {"gpu-01": {"ansible_host": address}}}}))
    with pytest.raises(InventoryError, match="gpu-01: ansible_host"):
        inventory.select(inventory.load(file), "all")


@pytest.mark.parametrize(
    "name", ["gpu_01.pod-3", "10.0.0.1", "fe80::1", "gpu#1", "knoten-ä", "r1/gpu;1", "a=b"]
)
def test_an_odd_name_that_can_be_named_is_one(tmp_path: Path, name: str) -> None:
    file = tmp_path / "i.yml"
    file.write_text(json.dumps({"gpus": {"hosts": {name: {"ansible_host": "{{ a }} {{ b }}"}}}}))
    assert list(inventory.select(inventory.load(file), "all").nodes) == [name]


@pytest.mark.parametrize("pattern", ["", " ", ",", " , "])
def test_a_pattern_of_nothing_is_not_all_nodes(pattern: str) -> None:
    """The case of `--nodes "$NODES"` in a script that forgot to set it."""
    fleet = Fleet(Path("i.yml"), {"gpu-01": Node("gpu-01", (), {})}, {"all": ("gpu-01",)})
    with pytest.raises(InventoryError, match="names no node"):
        inventory.select(fleet, pattern)
