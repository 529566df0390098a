"""Our own reader of plain inventories, compared with `ansible-inventory --list` on any inventory."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import Phase, given, settings

from provision.desired import inventory
from provision.desired.inventory import plain as plain_inventory
from provision.desired.inventory.ansible import ansible_inventory
from provision.desired.inventory.plain.documents import NotPlainError
from tests.support import vault
from tests.support.random_inventories import AnsibleInventory, inventories, write
from tests.support.seed import times

EXAMPLES = times(30, 600)
READ = ansible_inventory.read  # the original, since the fixture replaces it by one that reads a single file


@pytest.fixture(scope="module")
def ansible(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnsibleInventory]:
    """Return a persistent Ansible that also answers for the cases the reader leaves to it."""
    command = AnsibleInventory(tmp_path_factory.mktemp("answers"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ansible_inventory, "read", command.read)
        yield command
    command.close()


@pytest.mark.timeout(60 + 10 * EXAMPLES)
def test_any_inventory_means_what_ansible_says(ansible: AnsibleInventory) -> None:
    told: Counter[str] = Counter()

    @settings(
        max_examples=EXAMPLES,
        phases=[Phase.explicit, Phase.generate],  # shrinking would take hundreds of runs of Ansible
    )
    @given(files=inventories())
    def compare(files: dict[str, str]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            source = write(Path(folder), files)
            try:
                answer = plain_inventory.read(source)
            except NotPlainError as trouble:
                told[str(trouble)] += 1
                return
            told["plain"] += 1
            assert json.dumps(answer, indent=1) == json.dumps(ansible.listed(source), indent=1)

    compare()
    assert told["plain"] * 8 > told.total(), told  # otherwise the comparison proves nothing


CASES = yaml.safe_load((Path(__file__).parents[1] / "plain_inventories.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("files", CASES["plain"].values(), ids=list(CASES["plain"]))
def test_a_plain_inventory_is_read_without_ansible(
    ansible: AnsibleInventory, tmp_path: Path, files: dict[str, str]
) -> None:
    source = write(tmp_path, files)
    answer = plain_inventory.read(source)
    assert json.dumps(answer, indent=1) == json.dumps(ansible.listed(source), indent=1)


def test_several_inventories_mean_what_ansible_says(tmp_path: Path) -> None:
    for name, files in {
        "one": {"hosts.ini": "[gpus]\na\nb x=0\n[gpus:vars]\nx=1\n", "group_vars/gpus.yml": "y: 1\nz: [1]\n"},
        "two": {"in/h.yml": "gpus: {hosts: {c: {x: 3}, a: }}\n", "in/host_vars/a.yml": "y: 4\n"},
        "three": {
            "more.yml": "all: {children: {gpus: {vars: {x: 5}}}}\n",
            "group_vars/all.yml": "z: 9\nw: 1\n",
        },
    }.items():
        for path, text in files.items():
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_text(text)
    named = [f"{tmp_path}/{path}" for path in ("one/hosts.ini", "two/in", "three/more.yml")]
    for order in (named, named[::-1]):
        joined = Path(",".join(order))
        answer = READ(joined)
        answer["_meta"].pop("profile", None)
        assert plain_inventory.read(joined) == answer


@pytest.mark.usefixtures("ansible")
@pytest.mark.parametrize("files", CASES["left_to_ansible"].values(), ids=list(CASES["left_to_ansible"]))
def test_what_is_unusual_is_left_to_ansible(tmp_path: Path, files: dict[str, str]) -> None:
    with pytest.raises(NotPlainError):
        plain_inventory.read(write(tmp_path, files))


def test_only_the_vaulted_file_is_asked_of_ansible(
    ansible: AnsibleInventory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(
        tmp_path,
        {"i": "[g]\nh\n[other]\nk\n", "group_vars/all": "{a: 1, b: 1}", "group_vars/g.yml": "{b: 2}\n"},
    )
    password = vault.password_file(tmp_path)
    vault.run(password, "encrypt", tmp_path / "group_vars/g.yml")
    asked = []

    def ask(about: Path, files: Sequence[Path]) -> dict[str, Any]:
        asked.append(about)
        return ansible.read(about, files)

    monkeypatch.setattr(ansible_inventory, "read", ask)
    answer = plain_inventory.read(source, [password])
    assert answer["_meta"]["hostvars"] == {"h": {"a": 1, "b": 2}, "k": {"a": 1, "b": 1}}
    assert answer == ansible.listed(source, "--vault-password-file", str(password))
    assert len(asked) == 1
    assert source not in asked
    with pytest.raises(NotPlainError):
        plain_inventory.read(source)


def test_what_is_not_utf8_is_left_to_ansible(tmp_path: Path) -> None:
    (tmp_path / "i").write_bytes(b"h a=\xff\n")
    with pytest.raises(NotPlainError):
        plain_inventory.read(tmp_path / "i")


def test_a_script_is_left_to_ansible(tmp_path: Path) -> None:
    script = write(tmp_path, {"i": "gpu-1\n"})
    script.chmod(0o755)
    with pytest.raises(NotPlainError, match="executed"):
        plain_inventory.read(script)


@pytest.mark.parametrize("source", ["a,b,", "$HOME/i"])
def test_what_is_no_file_is_left_to_ansible(source: str) -> None:
    with pytest.raises(NotPlainError):
        plain_inventory.read(Path(source))


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("[defaults]\nforks = 9\ninventory = x\n[ssh_connection]\npipelining = true\n", True),
        ("[defaults]\nhash_behaviour = merge\n", False),
        ("[defaults]\nfact_caching = jsonfile\n", False),
        ("[defaults]\nvars_plugins_enabled = mine\n", False),
        ("[inventory]\nenable_plugins = ini\n", False),
        ("[DEFAULT]\nhash_behaviour = merge\n[defaults]\n", False),
        ("not a setting\n", False),
    ],
)
def test_a_setting_that_might_matter_leaves_it_to_ansible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, plain: bool
) -> None:
    (tmp_path / "chosen").write_text("[defaults]\n")
    source = write(tmp_path, {"i": "h\n"})
    monkeypatch.chdir(tmp_path)
    for place in ("ansible.cfg", "chosen"):
        (tmp_path / place).write_text(text)
        monkeypatch.setenv("ANSIBLE_CONFIG", place)
        if plain:
            assert plain_inventory.read(source)
        else:
            with pytest.raises(NotPlainError):
                plain_inventory.read(source)
        (tmp_path / place).unlink()


def test_a_variable_of_the_environment_that_might_matter_leaves_it_to_ansible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path, {"i": "h\n"})
    monkeypatch.setenv("ANSIBLE_FORKS", "9")
    monkeypatch.setenv("ANSIBLE_INVENTORY_UNPARSED_FAILED", "1")  # not passed on to Ansible
    assert plain_inventory.read(source)
    monkeypatch.setenv("ANSIBLE_HASH_BEHAVIOUR", "merge")
    with pytest.raises(NotPlainError, match="HASH_BEHAVIOUR"):
        plain_inventory.read(source)


def test_settings_in_a_file_that_is_named_by_a_variable_leave_it_to_ansible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path, {"i": "h\n"})
    monkeypatch.setenv("ANSIBLE_CONFIG", "$HOME/x.cfg")
    with pytest.raises(NotPlainError, match="ANSIBLE_CONFIG"):
        plain_inventory.read(source)


@pytest.mark.usefixtures("ansible")
def test_what_is_nested_very_deeply_is_left_to_ansible(tmp_path: Path) -> None:
    for depth in (300, 900, 100_000):
        value = "[" * depth + "]" * depth
        source = write(tmp_path / str(depth), {"i.yml": f"all: {{hosts: {{h: {{a: {value}}}}}}}\n"})
        with contextlib.suppress(NotPlainError):  # any other exception fails the test
            assert plain_inventory.read(source)


def test_plugins_of_the_users_leave_it_to_ansible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path, {"i": "h\n"})
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ansible/plugins/vars").mkdir(parents=True)
    assert plain_inventory.read(source)
    (tmp_path / ".ansible/plugins/vars/mine.py").touch()
    with pytest.raises(NotPlainError, match="plugins"):
        plain_inventory.read(source)


def test_nodes_share_what_they_have_in_common(tmp_path: Path) -> None:
    source = write(
        tmp_path,
        {"i.yml": "all:\n  hosts: {a: {x: [1, 2]}, b: {x: [1, 2]}, c: , d: }\n  vars: {y: {z: [3]}}\n"},
    )
    hostvars = plain_inventory.read(source)["_meta"]["hostvars"]
    assert hostvars["a"]["x"] is hostvars["b"]["x"]
    assert hostvars["a"]["y"] is hostvars["d"]["y"]
    assert hostvars["c"] is hostvars["d"]


def test_a_load_of_a_plain_inventory_starts_no_ansible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_arguments: object) -> None:
        raise AssertionError("Ansible was started")

    monkeypatch.setattr(ansible_inventory, "read", started)
    source = write(tmp_path, {"i.yml": "g: {hosts: {'gpu-[001:100]': }, vars: {a: 1}}\n"})
    fleet = inventory.load(source)
    assert len(fleet.nodes) == 100
    assert fleet.nodes["gpu-042"].variables == {"a": 1}
    assert fleet.nodes["gpu-042"].groups == ("g",)
