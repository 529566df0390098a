"""States of a node: each command prints the text and advice of the table in docs/ci.md and
returns its exit status."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from provision import cli
from provision.burnin import campaign
from provision.desired import stack
from provision.fleet import Node
from provision.remote.reach import observe
from provision.remote.reach.observe import Observation
from provision.validate import validation
from tests.support.observed import debian, fleet_here, promised, unknown
from tests.support.sshd import Sshd

DOCUMENT = Path(cli.__file__).parent.parent / "docs" / "ci.md"
COMMANDS = {
    "plan": ["plan"],
    "up": ["up", "--yes"],
    "drift": ["drift"],
    "validate": ["validate", "--stage", "quick"],
    "burnin": ["burnin", "plan"],
    "burnin status": ["burnin", "status"],
    "status": ["status"],
    "lock": ["lock"],
    "report history": ["report", "history", "gpu-01"],
}
REAL = ("unreachable", "unreadable")  # through a real sshd
BASE = debian("12", "bookworm", "6.1.0")
FACTS: dict[str, dict[str, Any]] = {
    "no NVIDIA GPU on the PCI bus": {"gpu.count": 0, "gpu.pci": []},
    "GPUs of several vendors": {
        "gpu.count": 2,
        "gpu.pci": [
            {"address": f"0000:{n}5:00.0", "device_id": each}
            for n, each in enumerate(("1002:74a1", "10de:2330"))
        ],
    },
    "refused": {"os.id": "ubuntu", "os.version_id": "20.04", "os.codename": "focal"},
    "never validated": {},
}


def table() -> list[list[str]]:
    """Return the table's cells by row; the first row is the header."""
    text = DOCUMENT.read_text(encoding="utf-8")
    part = text.partition("## The states of a node\n")[2].partition("\n## ")[0]
    rows = [line.strip("|\n").split("|") for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows if not row[0].startswith("---")]


def code(text: str) -> list[str]:
    """Return the texts in backticks; each is cut at an ellipsis."""
    return [quoted.partition("…")[0] for quoted in re.findall(r"`([^`]+)`", text)]


def cases() -> list[Any]:
    head, *rows = table()
    found = []
    for _, words, advice, *codes in rows:
        for verb, cell in zip(head[3:], codes, strict=True):
            for option, number in re.findall(r"(?:with `([^`]+)` )?(\d+)", cell):
                command = [*COMMANDS[verb.strip("`")], *_option(option)]
                (word,), (told,) = code(words), code(advice)
                found.append(pytest.param(word, told, command, int(number), id=f"{word}-{' '.join(command)}"))
    return found


def _option(text: str) -> list[str]:
    return ([text] if text.startswith("--") else ["--set", f"{text}=8"]) if text else []


@pytest.fixture
def node(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sshd: Sshd) -> None:
    """A fleet of one node in the requested state."""
    state = str(request.param)
    if state not in REAL:
        fleet_here(monkeypatch, tmp_path, ["gpu-01"], answer(state))
        monkeypatch.setattr(validation, "observe", observe.observe)
        monkeypatch.setattr(campaign, "observe", observe.observe)
        return
    troubled = sshd.troubled(tmp_path)
    variables = troubled["refused" if state == "unreachable" else "no-python"].variables
    lines = [f"      {name}: {value!r}" for name, value in variables.items()]
    (tmp_path / "inventory.yml").write_text("\n".join(["all:", "  hosts:", "    gpu-01:", *lines, ""]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("GPUPROV_RUNS", str(tmp_path / "runs"))


def answer(state: str) -> Any:
    def of_node(node: Node, asked: Collection[str]) -> Observation:
        wanted = promised(stack.declared(node, {}), BASE)
        return Observation(
            node.name, {**unknown(asked, "6.1.0"), **wanted, **BASE, "boot.id": "b1", **FACTS[state]}
        )

    return of_node


def test_the_table_has_every_state_and_every_command() -> None:
    head, *rows = table()
    assert [name for cell in head[3:] for name in code(cell)] == list(COMMANDS)
    assert [word for row in rows for word in code(row[1])] == [*REAL, *FACTS]
    assert len(cases()) > 25


@pytest.mark.parametrize(("node", "told", "command", "number"), cases(), indirect=["node"])
@pytest.mark.usefixtures("node")
def test_a_command_says_the_state_as_the_others_do(
    told: str,
    command: list[str],
    number: int,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    word = request.node.callspec.params["node"]
    ended = cli.main(command)
    shown = capsys.readouterr()
    text = " ".join((shown.out + shown.err).split())
    # up prints `UNREACHABLE: gpu-01`
    said = re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE)
    assert said, text
    assert told in text
    assert ended == number, text
    assert "Traceback" not in text


def test_where_nobody_answers_it_is_not_said_that_there_is_no_burn_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    host = "{ansible_host: 127.0.0.1, ansible_port: 1}"
    (tmp_path / "inventory.yml").write_text(f"all: {{hosts: {{gpu-01: {host}, gpu-02: {host}}}}}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUPROV_RUNS", str(tmp_path / "runs"))
    assert cli.main(["burnin", "status"]) == 5
    first, second = capsys.readouterr().err.splitlines()[-2:]
    assert first == "gpuprov: whether a node has a burn-in is not known"
    assert second.startswith("  gpu-[01-02]: unreachable: ssh: connect to host 127.0.0.1 port 1: Connection")
