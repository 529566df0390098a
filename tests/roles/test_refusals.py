"""Each rule of each role's preflight is reachable, and all violations are reported at once."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from provision import paths, yamlfile
from provision.desired.role import all_roles
from provision.errors import StackError
from tests.roles.refusals import refused, rules
from tests.support.commands import ran
from tests.support.described import machine

TABLE: dict[str, Any] = yamlfile.load(Path(__file__).with_name("refusals.yml"), StackError)
CASES = [(role, case) for role, told in TABLE.items() for case in told["cases"]]


def said(role: str, case: dict[str, Any]) -> str:
    told = TABLE[role]
    gpu = case.get("gpu", told.get("gpu", {}))
    node = machine(case.get("system", "debian 13"), case.get("arch", "x86_64"), **gpu)
    return refused(role, node, **{**told.get("usual", {}), **case.get("set", {})})


@pytest.mark.parametrize(("role", "case"), CASES, ids=[f"{role}-{n}" for n, (role, _) in enumerate(CASES)])
def test_what_is_wrong_is_said_all_of_it_and_nothing_else(role: str, case: dict[str, Any]) -> None:
    text = said(role, case)
    sentences = text.split(" Also: ") if text else []
    assert len(sentences) == len(case["said"]), text
    for words, sentence in zip(case["said"], sentences, strict=True):
        assert words in sentence


@pytest.mark.parametrize("role", TABLE)
def test_a_node_as_it_should_be_is_not_refused(role: str) -> None:
    for release in sorted({f"{os_id} {version}" for os_id, _family, version in all_roles()[role].releases()}):
        assert said(role, {"system": release}) == "", release


@pytest.mark.parametrize("role", TABLE)
def test_of_a_system_that_the_role_does_not_know_nothing_else_is_said(role: str) -> None:
    for system in ("debian 7", "ubuntu 14.04", "rocky 7.9"):
        text = said(role, {"system": system})
        assert re.match(f"The role {role} knows [a-z]+ ", text), text
        way_out = f"take {role} out of its gpuprov_roles, or set {role}_enabled: false"
        assert f"This machine runs {system}: {TABLE[role].get('elsewhere', way_out)}" in text


def test_every_role_has_its_cases() -> None:
    assert set(TABLE) == set(all_roles()) - {
        "package_lock"
    }  # compares with the lock file and queries packages


@pytest.mark.parametrize("role", TABLE)
def test_every_rule_is_reached_by_a_case(role: str) -> None:
    everything = " ".join(said(role, case) for case in TABLE[role]["cases"])
    for condition, sentence in rules(role):
        longest = max(re.split(r"{{.*?}}", sentence), key=len)
        assert longest.strip() in everything, condition
        assert len(sentence) > 40, "a refusal says what to do"


@pytest.mark.parametrize(
    ("system", "wrong", "words"),
    [
        ("debian 13", True, '"first: do a. Also: third: do c."'),
        ("debian 13", False, ""),
        ("debian 12", True, "The role nccl knows debian 13. This machine runs debian 12: take nccl out"),
    ],
)
def test_a_play_ends_with_all_that_is_wrong(tmp_path: Path, system: str, wrong: bool, words: str) -> None:
    text = "{% if wrong %} NAME: do WHAT. {% endif %}"
    rules = [
        text.replace("NAME", name).replace("WHAT", what) for name, what in (("first", "a"), ("third", "c"))
    ]
    rules.insert(1, "{% if wrong is undefined %} second: do b. {% endif %}")
    task = {"ansible.builtin.import_tasks": str(paths.ROLES / "node_facts" / "tasks" / "refuse.yml")}
    given = {
        "role_name": "nccl",
        "__nccl_releases": ["debian 13"],
        "wrong": wrong,
        "gpuprov_node": machine(system),
    }
    play = {"hosts": "localhost", "gather_facts": False, "vars": given}
    play["tasks"] = [{**task, "vars": {"__node_facts_refusals": rules}}]
    (tmp_path / "play.yml").write_text(json.dumps([play]))
    program = str(Path(sys.executable).parent / "ansible-playbook")
    done = ran(
        [program, *["-i", "localhost,", "-c", "local", "play.yml"]],
        cwd=tmp_path,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_LOCALHOST_WARNING": "False"},
    )
    assert (done.returncode != 0) == bool(words), done.stdout + done.stderr
    assert words in " ".join(done.stdout.split())
