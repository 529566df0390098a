"""Flags familiar from Ansible, and their meaning here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from provision import cli
from provision.commands import fleet_options
from provision.desired import inventory
from provision.errors import ExitCode

OF_FLEETS = ("plan", "up", "validate", "drift", "burnin start", "burnin stop", "lock", "status")


def parsed(*words: str) -> Any:
    return cli.parsed(words)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the error of a rejected command line, one or two lines."""
    capsys.readouterr()
    assert cli.main(words) == ExitCode.USAGE
    out, err = capsys.readouterr()
    assert not out
    assert "Traceback" not in err
    return err


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enter an empty working folder, as a user without any earlier run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.mark.parametrize("verb", OF_FLEETS)
def test_flags_that_ansible_has_too_go_where_gpuprovs_own_go(verb: str) -> None:
    ours = parsed(*verb.split(), "--inventory", "f.yml", "--nodes", "a:!b", "--set", "x=1")
    assert vars(parsed(*verb.split(), "-i", "f.yml", "-l", "a:!b", "-e", "x=1")) == vars(ours)
    long = parsed(*verb.split(), "--inventory=f.yml", "--limit", "a:!b", "--extra-vars", "x=1")
    assert vars(long) == vars(ours)


@pytest.mark.parametrize("verb", OF_FLEETS)
def test_how_to_log_in_is_said_as_in_ansible(verb: str) -> None:
    long = parsed(*verb.split(), "--user", "ops", "--ask-pass", "--ask-become-pass")
    assert vars(parsed(*verb.split(), "-kKuops")) == vars(long)
    assert (long.user, long.ask_pass, long.ask_become_pass) == ("ops", True, True)


def test_flags_of_up() -> None:
    ours = parsed("up", "--check", "--diff", "--verbose", "--verbose", "--forks", "7")
    assert vars(parsed("up", "-CDvv", "-f", "7")) == vars(ours)
    assert (ours.check, ours.diff, ours.verbose) == (True, True, 2)
    assert parsed("plan", "-v").reasons


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("a=1 b=two", {"a": 1, "b": "two"}),
        ("a='two words' b=\"it's: fine\"", {"a": "two words", "b": "it's: fine"}),
        ("mode=0644 version=12.90 empty= gone=null on=true", {"mode": "0644", "version": "12.90", "empty": ""}
         | {"gone": None, "on": True}),
        ("url='{{ base }}/x' at=@there percent=%h", {"url": "{{ base }}/x", "at": "@there", "percent": "%h"}),
        ("list='[a, 2]'", {"list": ["a", 2]}),
        ("a=b=c", {"a": "b=c"}),
        ('{"a": 1, "b": {"c": [true, "x y"]}}', {"a": 1, "b": {"c": [True, "x y"]}}),
        ("{a: 1, b: 'é\"\\n'}", {"a": 1, "b": 'é"\\n'}),
        ("@vars.yml", {"a": 1, "b": ["x"]}),
        ("@vars.json", {"a": "1"}),
        # As with --set: text variables of a role stay text.
        ("{cuda_toolkit_version: 12.9}", {"cuda_toolkit_version": "12.9"}),
        ("cuda_toolkit_version=12.9", {"cuda_toolkit_version": "12.9"}),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("folder")
def test_extra_vars_in_each_of_ansibles_notations(text: str, meant: dict[str, Any]) -> None:
    Path("vars.yml").write_text("a: 1\nb:\n  - x\n")
    Path("vars.json").write_text('{"a": "1"}')
    assert fleet_options.overrides(parsed("plan", "-e", text)) == meant


def test_the_last_of_set_and_extra_vars_counts() -> None:
    assert fleet_options.overrides(parsed("plan", "-e", "a=1 b=1", "--set", "a=2")) == {"a": 2, "b": 1}
    assert fleet_options.overrides(parsed("plan", "--set", "a=2", "-e", "{a: 1}")) == {"a": 1}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("novalue", "-e takes KEY=VALUE"),
        ("a=1 lost", "-e takes KEY=VALUE"),
        ("a='open", "a quote is not closed"),
        ("@nowhere.yml", "nowhere.yml: cannot be read: No such file"),
        ("@list.yml", "list.yml must be a mapping"),
        ("@broken.yml", "broken.yml:2:1: not valid YAML"),
        ("@vault.yml", "vault.yml is vaulted"),
        ("{a: !vault x}", "is vaulted"),
        ("{a: [1}", "-e {…}:1:"),
        ("{a b: s3cret-word}", "'a b' is no name of a variable"),
    ],
)
def test_extra_vars_that_cannot_be_meant_are_one_error_without_the_values(
    text: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("inventory.yml").write_text("all: {hosts: {gpu-01: }}\n")
    Path("list.yml").write_text("- a\n")
    Path("broken.yml").write_text("a: [s3cret-word\n")
    Path("vault.yml").write_text("$ANSIBLE_VAULT;1.1;AES256\n61\n")
    answer = said(capsys, "plan", "-e", text)
    assert words in answer
    assert "s3cret-word" not in answer


def test_several_inventories_are_merged_as_ansible_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("common.ini").write_text("[gpus]\na\n[gpus:vars]\nx=1\ny=1\n")
    Path("site").mkdir()
    Path("site/hosts.yml").write_text("gpus: {hosts: {b: }, vars: {y: 2}}\n")
    for words in (
        ("plan", "-i", "common.ini", "-i", "site"),
        ("plan", "common.ini", "-i", "site"),
        ("plan", "common.ini,site"),
    ):
        options = parsed(*words)
        fleet = inventory.load(inventory.find(options.inventory, options.inventory_option))
        assert {name: dict(node.variables) for name, node in fleet.nodes.items()} == {
            "a": {"x": 1, "y": 2},
            "b": {"x": 1, "y": 2},
        }
        assert fleet.place == f"{tmp_path}/common.ini,{tmp_path}/site"
        assert inventory.load(inventory.find(fleet.place)).nodes == fleet.nodes


@pytest.mark.usefixtures("folder")
def test_a_missing_one_of_several_inventories_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("common.ini").write_text("a\n")
    for words in (("-i", "common.ini", "-i", "sit"), ("sit", "-i", "common.ini"), ("common.ini,sit",)):
        assert cli.main(("plan", *words)) == ExitCode.ERROR
        assert "sit: no such inventory" in capsys.readouterr().err
    assert cli.main(("plan", "-i", "common.ini", "-i", "a,b,")) == ExitCode.ERROR
    assert "a,b,: a list of hosts cannot be one of several inventories" in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_inventories_of_ansible_cfg_are_used(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("conf").mkdir()
    Path("conf/ansible.cfg").write_text("[defaults]\ninventory = ../common.ini, site.yml\n")
    Path("common.ini").write_text("a\n")
    Path("conf/site.yml").write_text("all: {hosts: {b: }}\n")
    monkeypatch.setenv("ANSIBLE_CONFIG", "conf")
    assert list(inventory.load(inventory.find(None, last_used=False)).nodes) == ["a", "b"]
    Path("conf/site.yml").unlink()
    assert cli.main(("plan",)) == ExitCode.ERROR
    assert re.search(
        r"conf/site.yml: no such inventory \(from .*conf/ansible.cfg:2\)", capsys.readouterr().err
    )


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("up site.yml", "site.yml is a playbook, not an inventory"),
        ("up -i fleet.yml site.yml", "site.yml is a playbook, not an inventory"),
        ("plan -i imports.yml", "imports.yml is a playbook, not an inventory"),
    ],
)
def test_a_playbook_in_place_of_an_inventory_is_named(
    line: str, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("fleet.yml").write_text("all: {hosts: {gpu-01: }}\n")
    Path("site.yml").write_text("---\n# ours\n- name: All\n  hosts: all\n  roles: [x]\n")
    Path("imports.yml").write_text("- ansible.builtin.import_playbook: site.yml\n")
    assert said(capsys, *line.split()).startswith(f"gpuprov: {answer}")


@pytest.mark.parametrize(
    "line",
    ["frobnicate", "up --nonsense", "--nonsense", "lab -x", "up --tags=nccl", "-m ping all", "fleet.yml"],
)
def test_what_no_command_takes_is_refused_with_the_usage(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(line.split())
    assert ended.value.code == ExitCode.USAGE
    assert "usage: gpuprov" in capsys.readouterr().err
