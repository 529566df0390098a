"""A node with damaged or malicious JSON is unreadable and leaves the other nodes' results unchanged.
Real sshd, whole commands; the malicious node's python3 prints one answer to everything."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from provision import cli
from provision.remote.reach import fleet_lock
from tests.support.sshd import Sshd

# An answer to every request: the lock, the health result, the facts and the burn-in.
FIELDS = {
    "state": '"taken"',
    "holder": "null",
    "age": "null",
    "busy": "[]",
    "time": "0",
    "problem": '""',
    "detail": '""',
    "boot_id": '"b"',
    "uptime": "1",
    "written": "null",
    "health": '""',
    "slurm": "null",
    "uid": "0",
    "facts": "{}",
    "problems": "{}",
    "changed": "false",
    "gpuprov": '{"now": 1, "up": 1, "boot": "b", "campaign": "run-1", "alive": true, "state": {}}',
}
INNER = '{"now": %s, "up": %s, "boot": "b", "campaign": "run-1", "alive": true, "state": {"segment": %s}}'


def everywhere(value: str) -> str:
    """Return the answer with this value in place of each number."""
    numbers = dict.fromkeys(("age", "time", "uptime", "written", "uid", "facts"), value)
    return _answer(numbers | {"gpuprov": INNER % (value, value, value)})


def held(age: str) -> str:
    """Return the answer of a node that another run has locked for `age` seconds."""
    holder = '{"run": "20261128T100000.000Z-up", "node": "a", "who": "ann", "since": "10:00", "verb": "up"}'
    fields = {"state": '"held"', "holder": holder, "age": age, "time": str(time.time())}
    return _answer(fields | {"gpuprov": INNER % (age, age, age)})


def _answer(fields: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'"{name}": {text}' for name, text in {**FIELDS, **fields}.items()) + "}"


ANSWERS = {
    "NaN": everywhere("NaN"),
    "held for NaN": held("NaN"),
    "held for ever": held("Infinity"),
    "Infinity": everywhere("Infinity"),
    "a word that float() takes": everywhere('"nan"'),
    "an infinite float": everywhere("1e999"),
    "60,000 digits": everywhere("9" * 60_000),
    "400 digits": everywhere("9" * 400),
    "deep": everywhere("[" * 20_000),
    "another type": everywhere('{"a": []}'),
    "not UTF-8": everywhere('"\udcff"'),
}
VERBS = {
    "status": ["status"],
    "drift": ["drift"],
    "validate": ["validate", "--checks", "gpu_inventory"],
    "burnin status": ["burnin", "status"],
}
QUICK = {
    ("status", "NaN"),
    ("status", "60,000 digits"),
    ("status", "deep"),
    ("drift", "NaN"),
    ("drift", "not UTF-8"),
    ("validate", "held for NaN"),
    ("burnin status", "NaN"),
}
CASES = [
    pytest.param(
        words,
        answer,
        id=f"{verb}-{name}",
        marks=[] if (verb, name) in QUICK else [pytest.mark.long],
    )
    for verb, words in VERBS.items()
    for name, answer in ANSWERS.items()
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the inventory. Locks go below it, not into this machine's /run."""
    unpatched = fleet_lock._program

    def elsewhere(request: Any) -> str:
        home = tmp_path / str(request["node"])
        home.mkdir(exist_ok=True)
        return unpatched({**request, "folder": str(home / "locks"), "root": str(home)})

    monkeypatch.setattr(fleet_lock, "_program", elsewhere)
    monkeypatch.setenv("GPUPROV_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fleet(folder: Path, sshd: Sshd, answer: str) -> None:
    """Write an inventory of an honest node and one that always gives this answer."""
    body = answer.encode("utf-8", "surrogateescape")
    (folder / "answer").write_bytes(b"@gpuprov-facts 1 %d\n%s\n@gpuprov-end\n" % (len(body), body))
    python = folder / "python3"
    python.write_text(f"#!/bin/sh\nexec cat {folder}/answer\n")
    python.chmod(0o755)
    of = {"honest": sys.executable, "hostile": str(python)}
    hosts = {
        name: sshd.node(name, ansible_become=False, ansible_python_interpreter=interpreter).variables
        for name, interpreter in of.items()
    }
    variables = {"gpuprov_expected_gpus": 0, "gpuprov_roles": ["node_health"]}
    (folder / "inventory.yml").write_text(json.dumps({"all": {"hosts": hosts, "vars": variables}}))


@pytest.mark.parametrize(("words", "answer"), CASES)
def test_a_hostile_node_ends_no_run(
    words: list[str], answer: str, folder: Path, sshd: Sshd, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet(folder, sshd, answer)
    ended = cli.main(words)
    shown = capsys.readouterr()
    text = shown.out + shown.err
    assert ended in (3, 4, 5), text
    assert "Traceback" not in text
    assert "hostile" in text
    assert "honest" in text or "no node that answered has a burn-in" in text
    assert len(text) < 20_000
