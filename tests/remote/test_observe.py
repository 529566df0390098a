"""Observing many nodes in any state. Nodes are a real sshd on loopback."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from provision.fleet import Node
from provision.remote.protocol import TEXT_LIMIT, AnswerError, facts_of
from provision.remote.reach import observe as module
from provision.remote.reach.observe import Observation, observe
from provision.shared_facts import Pool

ASKED = frozenset({"file./etc/hostname.content", "file./no/such.exists"})


def test_facts_come_back(sshd: Any) -> None:
    node = sshd.node(ansible_become=False)
    found = observe([node], {node.name: ASKED})
    assert list(found) == ["gpu-01"]
    seen = found["gpu-01"]
    assert seen.error is None
    assert seen.problems == {}
    assert seen.facts["file./no/such.exists"] is False
    assert seen.facts["file./etc/hostname.content"] == Path("/etc/hostname").read_text()
    assert seen.facts["os.id"]
    assert seen.seconds > 0


def test_one_bad_node_does_not_stop_the_others(sshd: Any, tmp_path: Path) -> None:
    good = [sshd.node(f"good-{number}", ansible_become=False) for number in range(3)]
    bad = sshd.troubled(tmp_path)
    told: list[Observation] = []
    found = observe([*good, *bad.values()], {}, on_done=told.append, connections=3)
    assert sorted(seen.node for seen in told) == sorted(found)
    assert [found[node.name].error for node in good] == [None] * 3
    assert [found[name].facts for name in bad] == [{}] * 4
    errors = {name: found[name].error or "" for name in bad}
    assert "refused the connection → start sshd there" in errors["refused"]
    assert "ssh-keyscan" in errors["stranger"]
    assert "no-key (does not exist)" in errors["locked-out"]
    assert "/no/python3 is not installed on the node →" in errors["no-python"]
    assert [found[name].unreachable for name in bad] == [True, True, True, False]


def test_a_node_that_hangs_is_given_up_after_its_time(sshd: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        nodes = [sshd.node("silent", ansible_port=silent.getsockname()[1])]
        seen = observe(nodes, {}, timeout=0.5)["silent"]
    assert seen.unreachable
    assert "no answer within 0.5 s" in (seen.error or "") or "said nothing" in (seen.error or "")


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make nodes run a different program than the one they are sent."""
    return lambda text: monkeypatch.setattr("provision.remote.node_program.packed_for", lambda _facts: text)


FRAME = "def main(r): b = {!r}; print('@gpuprov-facts 1 %d\\n%s\\n@gpuprov-end' % (len(b), b))"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ("not json", "its answer is not JSON"),
        ('{"uid":0,"facts":{},"problems":{},"more":1}', "not of the form expected"),
        ('{"uid":0,"facts":{"evil.fact":1},"problems":{}}', "facts that were not requested: 'evil.fact'"),
        ('{"uid":0,"facts":{"os.id":[[1]]},"problems":{}}', "its answer for os.id is not a fact"),
        ('{"uid":0,"facts":{"os.id":1.5},"problems":{}}', "its answer for os.id is not a fact"),
        ('{"uid":0,"facts":{"os.id":"\\\\ud800"},"problems":{}}', "is not JSON as expected"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_an_answer_is_not_believed(sshd: Any, program: Any, answer: str, error: str) -> None:
    program(FRAME.format(answer.replace("\\\\u", "\\u")))
    seen = observe([sshd.node(ansible_become=False)], {})["gpu-01"]
    assert seen.facts == {}
    assert error in (seen.error or "")
    assert not seen.unreachable


@pytest.mark.parametrize("value", ["[[1]]", '{"a":[1]}', f'"{"x" * (TEXT_LIMIT + 1)}"', str(2**63)])
def test_what_a_node_says_is_not_believed_because_another_one_was(value: str) -> None:
    pool, answer = Pool(), '{"uid":0,"facts":{"os.id":%s},"problems":{}}'
    assert facts_of((answer % '"debian"').encode(), (), pool)[0] == {"os.id": "debian"}
    with pytest.raises(AnswerError, match=r"its answer for os\.id is not a fact"):
        facts_of((answer % value).encode(), (), pool)


def test_a_fact_the_node_is_silent_about_is_a_problem(sshd: Any, program: Any) -> None:
    program(
        FRAME.format(
            '{"uid":0,"facts":{"os.id":"debian"},"problems":{"boot.id":"permission denied\\u001b[2J"}}'
        )
    )
    seen = observe([sshd.node(ansible_become=False)], {"gpu-01": {"sysctl.vm.x.value"}})["gpu-01"]
    assert seen.error is None
    assert seen.facts == {"os.id": "debian"}
    assert seen.problems["sysctl.vm.x.value"] == "the node did not answer it"
    assert seen.problems["boot.id"] == "permission denied [2J"


def test_names_of_facts_are_data_and_never_code(sshd: Any) -> None:
    name = "file./x'\"\\\n}}{{ 7 * 7 }}{% raw %}é🙂);import os;os._exit(9)#.exists"
    seen = observe([sshd.node(ansible_become=False)], {"gpu-01": {name}})["gpu-01"]
    assert seen.error is None
    assert seen.facts[name] is False


def test_equal_texts_of_a_fleet_are_kept_once(sshd: Any) -> None:
    nodes = [sshd.node(f"n{number}", ansible_become=False) for number in range(2)]
    found = observe(nodes, {node.name: ASKED for node in nodes})
    first, second = (found[node.name].facts["file./etc/hostname.content"] for node in nodes)
    assert first is second


def test_nodes_only_ansible_can_reach(sshd: Any) -> None:
    """Same program, same facts; next to an SSH node and one that even Ansible cannot reach."""
    tricky = "file./x'{{ 7 * 7 }}{% raw %}\".exists"
    local = {
        "ansible_connection": "local",
        "ansible_become": False,
        "ansible_python_interpreter": sys.executable,
    }
    nodes = [
        Node("local", (), local),
        Node("broken", (), {"ansible_connection": "no.such.plugin", "ansible_become": False}),
        sshd.node("direct", ansible_become=False),
    ]
    reported: list[str] = []
    ask = {node.name: ASKED | {tricky} for node in nodes}
    observed = observe(nodes, ask, on_done=lambda seen: reported.append(seen.node))
    assert sorted(reported) == ["broken", "direct", "local"]
    assert observed["local"].error is None
    assert observed["local"].facts == observed["direct"].facts
    assert observed["local"].facts[tricky] is False
    assert observed["broken"].error
    assert observed["broken"].facts == {}


def test_ansible_finds_no_template_in_what_a_node_is_asked() -> None:
    names = {"file./a{{ 7 }}{% x %}{# y #}.exists", "file./b\\{{.exists"}
    answers = module._Answers({"gpu-01": names}, 60, None)
    call = answers.program("gpu-01").rpartition("main(dict(")[2]
    assert "{" not in call
    assert set(eval("dict(" + call.rstrip().removesuffix(")"))["facts"]) == names  # noqa: S307
