"""What a worker says is looked at before it is believed; whatever it sends, its hosts are never ok by it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from provision import paths
from provision.errors import GpuprovError
from provision.fleet import Node
from provision.remote.ansible.events import Event, Outcome
from provision.remote.protocol import NodeError
from provision.remote.ssh.config import ConfigFiles
from provision.remote.ssh.connection import route_of
from provision.remote.workers import Share, Worker, worker_link, worker_runs, worker_stream

OBSERVE = paths.PLAYBOOKS / "observe.yml"
HOSTS: dict[str, dict[str, Any]] = {"gpu-01": {}, "gpu-02": {}}
WORKER = Worker(
    "rack-1", "/opt/gpuprov/bin/python", route_of(Node("rack-1", (), {"ansible_host": "::1"}), ConfigFiles())
)


class Script:
    """A channel that says what was written down, then ends; it takes everything and keeps it."""

    def __init__(self, said: bytes, errors: bytes = b"", hello: bool = True) -> None:
        start = f"{worker_stream.HELLO}{json.dumps(worker_stream.versions())}\n".encode() if hello else b""
        self._said = start + said
        self._errors = errors
        self.taken = b""
        self.closed = False

    def settimeout(self, timeout: float) -> None:
        """There is nothing to wait for."""

    def send(self, s: bytes) -> int:
        self.taken += s
        return len(s)

    def shutdown_write(self) -> None:
        self.closed = True

    def recv(self, nbytes: int) -> bytes:
        data, self._said = self._said[:nbytes], self._said[nbytes:]
        return data

    def recv_stderr(self, nbytes: int) -> bytes:
        data, self._errors = self._errors[:nbytes], self._errors[nbytes:]
        return data

    def recv_stderr_ready(self) -> bool:
        return bool(self._errors)


class Silent(Script):
    """It says nothing more, and does not end."""

    def recv(self, nbytes: int) -> bytes:
        if data := super().recv(nbytes):
            return data
        raise TimeoutError


Play = Callable[..., dict[str, Outcome]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    """Have a scripted worker play observe.yml on gpu-01 and gpu-02."""

    def playing(channel: Script, **options: Any) -> dict[str, Outcome]:
        stand_in(monkeypatch, channel)
        return worker_runs.run_playbook(WORKER, OBSERVE, HOSTS, **options)

    return playing


def stand_in(monkeypatch: pytest.MonkeyPatch, channel: Script) -> None:
    @contextlib.contextmanager
    def session(*_: Any) -> Iterator[Script]:
        yield channel

    monkeypatch.setattr("provision.remote.ssh.client.Ssh.session", session)


def lines(*said: Any) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in said)


def event(name: str, number: int, **data: Any) -> dict[str, Any]:
    return {"event": name, "counter": number, "uuid": f"u-{number}", "stdout": "", "event_data": data}


def whole(*between: Mapping[str, Any], **stats: Any) -> tuple[Any, ...]:
    """A run on both hosts from its first event to its last."""
    started = [event("runner_on_start", 2 + n, host=host, task="T") for n, host in enumerate(HOSTS)]
    done = [event("runner_on_ok", 4 + n, host=host, task="T", res={"rc": 0}) for n, host in enumerate(HOSTS)]
    ended = {"dark": {}, "failures": {}, "processed": dict.fromkeys(HOSTS, 1), **stats}
    said = [
        event("playbook_on_play_start", 1),
        *started,
        *between,
        *done,
        event("playbook_on_stats", 9, **ended),
    ]
    return (*said, {"status": "successful", "gpuprov_events": len(said)}, {"eof": True})


def test_a_whole_stream_is_believed(play: Play) -> None:
    heard: list[Event] = []
    outcomes = play(Script(lines(*whole())), on_event=heard.append)
    assert outcomes == {name: Outcome(name, "ok") for name in HOSTS}
    assert [one.kind for one in heard] == ["started", "started", "ok", "ok"]


def test_signs_of_life_and_banners_are_no_events(play: Play) -> None:
    banner = b"Welcome to rack-1!\n\nLast login: never\n"
    channel = Script(
        banner
        + f"{worker_stream.HELLO}{json.dumps(worker_stream.versions())}\n".encode()
        + lines({"event": "keepalive", "counter": 0, "uuid": 0}, *whole()),
        hello=False,
    )
    assert {one.status for one in play(channel).values()} == {"ok"}


@pytest.mark.parametrize("kept", range(len(whole())))
def test_a_stream_that_is_cut_anywhere_leaves_no_host_ok(play: Play, kept: int) -> None:
    channel = Script(lines(*whole()[:kept]), errors=b"Killed\n")
    outcomes = play(channel)
    assert {one.status for one in outcomes.values()} == {"failed"}
    assert "worker rack-1: the connection ended too early: Killed" in outcomes["gpu-01"].message


def test_a_lost_event_is_noticed(play: Play) -> None:
    said = list(whole())
    del said[3]
    outcomes = play(Script(lines(*said)))
    assert {one.status for one in outcomes.values()} == {"failed"}
    assert "5 events arrived of 6" in outcomes["gpu-02"].message


HOSTILE = {
    "no JSON": b"\x00\xff{]\n",
    "deep": b"[" * 100_000 + b"\n",
    "a list": b"[1, 2]\n",
    "a number": b"7\n",
    "an endless number": b'{"event": "x", "counter": ' + b"9" * 5000 + b"}\n",
    "a foreign host": lines(event("runner_on_ok", 3, host="gpu-99", res={})),
    "a host that is a list": lines(event("runner_on_ok", 3, host=["gpu-01"], res={})),
    "foreign statistics": lines(event("playbook_on_stats", 3, dark={"gpu-99": 1}, failures={}, processed={})),
    "statistics of text": lines(event("playbook_on_stats", 3, dark="gpu-01", failures={}, processed={})),
    "no statistics": lines(event("playbook_on_stats", 3)),
    "a result that is text": lines(event("runner_on_ok", 3, host="gpu-01", res="changed")),
    "data that is a list": lines({"event": "runner_on_ok", "counter": 3, "uuid": "x", "event_data": [1]}),
    "an event without a number": lines({"event": "runner_on_ok", "event_data": {"host": "gpu-01"}}),
    "an event that is a number": lines({**event("x", 3), "event": 3}),
    "a path for a name": lines({**event("runner_on_ok", 3), "uuid": {"../../etc": 1}}),
    "files": b'{"zipfile": 1000}\nUEsDB\n',
    "a status that is none": lines({"status": ["successful"]}),
    "a huge status": lines(event("runner_on_failed", 3, host="gpu-01", res={"rc": 1 << 70})),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_no_worker_says_ends_it_and_leaves_no_host_ok(play: Play, name: str) -> None:
    said = list(whole())
    outcomes = play(Script(lines(*said[:2]) + HOSTILE[name] + lines(*said[2:])))
    assert {one.status for one in outcomes.values()} == {"failed"}
    assert outcomes["gpu-01"].message.startswith("worker rack-1: its answer is not understood: ")
    assert "events arrived of" not in outcomes["gpu-01"].message  # it was refused for what it is
    if "foreign" in name:
        assert "it reported on 'gpu-99', which is not one of its nodes" in outcomes["gpu-01"].message
    assert outcomes["gpu-01"].message.isprintable()
    assert len(outcomes["gpu-01"].message) < 400


def test_what_comes_after_the_end_does_not_count(play: Play) -> None:
    late = lines(event("runner_on_failed", 10, host="gpu-01", res={"msg": "late"}))
    assert play(Script(lines(*whole()) + late))["gpu-01"].status == "ok"


def test_a_line_without_end_is_not_kept(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_stream, "LINE_LIMIT", 100_000)
    outcomes = play(Script(b"x" * 1_000_000))
    assert "a line of more than 97 KiB" in outcomes["gpu-01"].message


def test_a_worker_that_falls_silent_is_given_up(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_stream, "SILENCE", 0.2)
    outcomes = play(Silent(lines(*whole()[:3])))
    assert "worker rack-1: it sent nothing for" in outcomes["gpu-01"].message


def test_a_worker_out_of_time_is_told_to_end(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_link, "END", 0.2)
    channel = Silent(lines(*whole()[:3]))
    outcomes = play(channel, timeout=0.2)
    assert channel.closed
    assert {one.message for one in outcomes.values()} == {"did not finish in 0 s"}
    assert {one.status for one in outcomes.values()} == {"failed"}


def test_what_fails_in_the_hearing_ends_the_worker_first(play: Play) -> None:
    channel = Script(lines(*whole()))

    def breaking(_: Event) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        play(channel, on_event=breaking)
    assert channel.closed


@pytest.mark.parametrize("name", ["gpuprov", "ansible-core", "ansible-runner", "contents"])
def test_nothing_is_sent_to_a_worker_that_is_not_as_we_are(play: Play, name: str) -> None:
    theirs = {**worker_stream.versions(), name: "0.0.1"}
    channel = Script(f"{worker_stream.HELLO}{json.dumps(theirs)}\n".encode(), hello=False)
    outcomes = play(channel)
    assert {one.status for one in outcomes.values()} == {"unreachable"}
    assert "install the same" in outcomes["gpu-01"].message
    assert channel.taken == b""


@pytest.mark.parametrize(
    ("errors", "words"),
    [
        (b"/x/python: No module named provision\n", "its /opt/gpuprov/bin/python has no gpuprov"),
        (b"bash: line 1: /opt/gpuprov/bin/python: No such file or directory\n", "there is no /opt/gpuprov"),
        (b"\x1b[31mOut of memory\n", "the connection ended too early: [31mOut of memory"),
        (b"", "the connection ended too early"),
    ],
)
def test_a_worker_that_does_not_begin_says_why(play: Play, errors: bytes, words: str) -> None:
    outcomes = play(Script(b"", errors=errors, hello=False))
    assert {one.status for one in outcomes.values()} == {"unreachable"}
    assert words in outcomes["gpu-01"].message


def test_a_worker_that_could_not_work_says_why(play: Play) -> None:
    error = {"status": "error", "job_explanation": "no space\nleft", "gpuprov_events": 0}
    outcomes = play(Script(lines(error, {"eof": True})))
    assert outcomes["gpu-01"].message.startswith("worker rack-1: no space left")
    assert outcomes["gpu-01"].status == "failed"


def test_a_playbook_of_another_and_a_password_program_stay_here(play: Play, tmp_path: Path) -> None:
    with pytest.raises(GpuprovError, match="workers have no others"):
        worker_runs.run_playbook(WORKER, tmp_path / "own.yml", HOSTS)
    program = tmp_path / "ask"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    with pytest.raises(GpuprovError, match="a program cannot give a vault password"):
        play(Script(b""), vault_password_files=[program])


def test_only_what_is_read_is_sent() -> None:
    raw = {
        **event("runner_on_ok", 1, host="gpu-01", task="T", task_args="password=x", play_pattern="all"),
        "pid": 7,
        "runner_ident": "x",
    }
    raw["event_data"]["res"] = {"rc": 0, "invocation": {"module_args": {"password": "x"}}}
    slim = worker_stream.slim(raw)
    assert slim["event_data"] == {"host": "gpu-01", "task": "T", "res": {"rc": 0}}
    assert "password" not in json.dumps(slim)
    assert worker_stream.message(json.dumps(slim).encode(), HOSTS) == slim


def test_odd_answers_of_programs_are_that_nodes_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    from provision.remote.workers.worker_asks import ask

    def answer(number: int, host: str, **data: Any) -> dict[str, Any]:
        return event(worker_stream.OUTPUT, number, host=host, **data)

    names = [f"gpu-{number}" for number in range(6)]
    said = [
        answer(1, "gpu-0", output="aGVsbG8=", seconds=0.5),
        answer(2, "gpu-0", output="dHdpY2U=", seconds=0.5),
        answer(3, "gpu-1", output="!!", seconds="long"),
        answer(4, "gpu-2", output=["x"]),
        answer(5, "gpu-3", error=["auth", "no key\x1b[2J", "add one"]),
        answer(6, "gpu-4", error=["boom", "x", "y"]),
    ]
    status = {"status": "successful", "gpuprov_events": len(said)}
    stand_in(monkeypatch, Script(lines(*said, status, {"eof": True})))
    found: dict[str, Any] = {}
    share = Share(WORKER, {name: {} for name in names})
    ask(
        share,
        dict.fromkeys(names, ("a", "b")),
        lambda name, output, _seconds: found.setdefault(name, []).append(output),
        timeout=5,
        connections=2,
    )
    assert found.pop("gpu-0") == [b"hello"]
    assert all(len(one) == 1 and isinstance(one[0], NodeError) for one in found.values())
    assert sorted(found) == names[1:]
    assert (found["gpu-3"][0].kind, found["gpu-3"][0].what) == ("auth", "no key [2J")
    assert found["gpu-5"][0].unreachable
    assert "worker rack-1: it did not answer for this node" in found["gpu-5"][0].what
