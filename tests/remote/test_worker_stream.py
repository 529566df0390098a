"""A worker's stream is verified before use; whatever it sends, its hosts are never ok because of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from provision import paths
from provision.errors import GpuprovError
from provision.remote.ansible.events import Event, Outcome
from provision.remote.protocol import NodeError
from provision.remote.workers import (
    Link,
    Worker,
    assignment,
    greetings,
    mesh,
    sealed,
    units,
    worker_runs,
    worker_stream,
)
from provision.remote.workers.worker_asks import Away, ask
from tests.support.receptor import TLS_CLIENT, StandIn, forget
from tests.support.scripted_worker import HOSTS, Script, event, lines, whole

OBSERVE = paths.PLAYBOOKS / "observe.yml"


@pytest.fixture
def standing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    forget()
    made = StandIn(tmp_path)
    try:
        yield made
    finally:
        made.end()
        forget()


def share(standing: StandIn, script: Any, hosts: Mapping[str, Any] = HOSTS) -> mesh.Share:
    """Return these hosts as the share of one worker, which sends the events of the script."""
    standing.add("rack-1", said=script)
    worker = Worker("rack-1", standing.socket, "/opt/gpuprov/bin/python")
    link = Link((worker,), standing.socket, TLS_CLIENT)
    shares, stranded = mesh.assigned(hosts, dict.fromkeys(hosts, link))
    if stranded:
        raise next(iter(stranded.values()))
    return shares[0]


Play = Callable[..., dict[str, Outcome]]


@pytest.fixture
def play(standing: StandIn) -> Play:
    """Return a function that has a scripted worker play observe.yml on gpu-01 and gpu-02."""

    def playing(script: Script, **options: Any) -> dict[str, Outcome]:
        done = worker_runs.run_playbook(share(standing, script), OBSERVE, HOSTS, **options)
        assert standing.units == {}  # whatever the outcome
        return done

    return playing


def test_a_whole_stream_is_believed(play: Play) -> None:
    heard: list[Event] = []
    outcomes = play(Script(lines(*whole())), on_event=heard.append)
    assert outcomes == {name: Outcome(name, "ok") for name in HOSTS}
    assert [one.kind for one in heard] == ["started", "started", "ok", "ok"]


def test_signs_of_life_and_noise_are_no_events(play: Play) -> None:
    alive = {"event": "keepalive", "counter": 0, "uuid": 0}
    script = Script(lines(alive, *whole()), noise=b"warning: \x1b[2J\n")
    assert {one.status for one in play(script).values()} == {"ok"}


@pytest.mark.parametrize("kept", range(len(whole())))
def test_a_stream_that_is_cut_anywhere_leaves_no_host_ok(play: Play, kept: int) -> None:
    """The hosts did not fail for certain either: `up` observes them and continues with another worker."""
    outcomes = play(Script(lines({"event": "keepalive"}, *whole()[:kept]), noise=b"Killed\n"))
    assert {one.status for one in outcomes.values()} == {"unreachable"}
    assert "worker rack-1: its work ended too early: Killed" in outcomes["gpu-01"].message


def test_what_is_not_encrypted_for_us_is_not_believed(play: Play) -> None:
    outcomes = play(Script(b"", noise=lines(*whole()) + sealed.Sealer(bytes(32)).frame(lines(*whole()))))
    assert {one.status for one in outcomes.values()} == {"failed"}
    assert "its answer is not understood: frame 1 cannot be decrypted" in outcomes["gpu-01"].message


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
    assert "events arrived of" not in outcomes["gpu-01"].message  # it was refused because of its content
    if "foreign" in name:
        assert "it reported on 'gpu-99', which is not one of its nodes" in outcomes["gpu-01"].message
    assert outcomes["gpu-01"].message.isprintable()
    assert len(outcomes["gpu-01"].message) < 400


def test_what_an_event_costs_does_not_grow_with_the_nodes_of_its_unit() -> None:
    class Names(tuple[str, ...]):
        def __contains__(self, name: object) -> bool:
            raise AssertionError(f"all of them are compared with {name!r}")

    heard: list[Mapping[str, Any]] = []
    key = bytes(sealed.KEY_BYTES)
    stream = worker_stream.Reader(Names(HOSTS), sealed.Opener(key), heard.append)
    stream.feed(sealed.Sealer(key).frame(lines(*whole())))
    assert stream.whole
    assert len(heard) == 6


def test_what_comes_after_the_end_does_not_count(play: Play) -> None:
    late = lines(event("runner_on_failed", 10, host="gpu-01", res={"msg": "late"}))
    assert play(Script(lines(*whole()) + late))["gpu-01"].status == "ok"


def test_a_line_without_end_is_not_kept(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_stream, "LINE_LIMIT", 100_000)
    outcomes = play(Script(b"x" * 1_000_000))
    assert "a line of more than " in outcomes["gpu-01"].message


def test_a_unit_that_prints_without_end_is_ended(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "_EACH", 10_000)
    outcomes = play(Script(lines(*whole()[:3]), noise=b"flood\n" * 20_000))
    assert "it prints without end" in outcomes["gpu-01"].message


def test_what_fails_in_the_hearing_is_raised_and_nothing_is_left(play: Play, standing: StandIn) -> None:
    def breaking(_: Event) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        play(Script(lines(*whole())), on_event=breaking)
    assert standing.units == {}


@pytest.mark.parametrize("name", ["gpuprov", "ansible-core", "ansible-runner", "contents"])
def test_nothing_is_sent_to_a_worker_that_is_not_as_we_are(standing: StandIn, name: str) -> None:
    script = Script(b"", b"", **{name: "0.0.1"})
    with pytest.raises(NodeError, match="worker rack-1: it") as refused:
        share(standing, script)
    assert "install the same" in refused.value.fix
    assert script.units == []


def test_a_worker_that_was_changed_after_its_greeting_opens_nothing(play: Play) -> None:
    refusal = (
        f"{worker_stream.REFUSED}{json.dumps({'kind': 'python', 'what': 'it was changed', 'fix': 'x'})}\n"
    )
    script = Script(b"", noise=refusal.encode())
    outcomes = play(script)
    assert {one.status for one in outcomes.values()} == {"unreachable"}
    assert "worker rack-1: it was changed" in outcomes["gpu-01"].message


class Booted(Script):
    """A worker that reboots after its greeting: its new key cannot open anything sealed for the old one."""

    booted = False

    def __call__(self, given: bytes) -> bytes:
        if self.booted or b'{"hello"' in given:
            return super().__call__(given)
        self.booted = True
        refusal = {"kind": "key", "what": "it was started anew since it greeted", "fix": "run again"}
        return f"{worker_stream.REFUSED}{json.dumps(refusal)}\n".encode()


def submitted(standing: StandIn) -> int:
    return sum("submit" in line for line in standing.asked)


def test_a_worker_that_booted_after_its_greeting_is_greeted_again(standing: StandIn, play: Play) -> None:
    outcomes = play(Booted(lines(*whole())))
    assert {one.status for one in outcomes.values()} == {"ok"}
    assert submitted(standing) == 4  # a greeting and a refused unit, twice


def test_a_greeting_is_remembered_by_the_next_command(standing: StandIn, play: Play) -> None:
    for units_so_far in (2, 3):  # a greeting and a unit; a unit
        forget()  # as in another process
        assert {one.status for one in play(Script(lines(*whole()))).values()} == {"ok"}
        assert submitted(standing) == units_so_far


@pytest.mark.usefixtures("standing")
def test_workers_that_are_greeted_at_once_are_all_remembered() -> None:
    names = [f"rack-{number}" for number in range(20)]
    with ThreadPoolExecutor(len(names)) as threads:
        list(threads.map(lambda name: greetings.remember("a key", name), names))
    assert [greetings.recalled(name) for name in names] == ["a key"] * len(names)


def test_a_worker_that_was_lost_is_greeted_by_the_next_command(standing: StandIn, play: Play) -> None:
    lost = play(Script(lines({"event": "keepalive"}), noise=b"Killed\n"))
    assert {one.status for one in lost.values()} == {"unreachable"}
    before = submitted(standing)
    forget()
    play(Script(lines(*whole())))
    assert submitted(standing) == before + 2


def damaged(file: Path) -> None:
    file.write_text('{"a": [1', encoding="utf-8")


def of_another_gpuprov(file: Path) -> None:
    file.write_text(file.read_text(encoding="utf-8").replace(worker_stream.digest(), "0" * 16))


def an_hour_old(file: Path) -> None:
    known = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({name: {**said, "until": time.time() - 1} for name, said in known.items()}))


@pytest.mark.parametrize("spoilt", [damaged, of_another_gpuprov, an_hour_old])
def test_a_greeting_that_cannot_be_relied_on_is_asked_for_again(
    standing: StandIn,
    play: Play,
    tmp_path: Path,
    spoilt: Callable[[Path], None],
) -> None:
    play(Script(lines(*whole())))
    spoilt(tmp_path / "gpuprov" / "greetings.json")
    forget()
    assert {one.status for one in play(Script(lines(*whole()))).values()} == {"ok"}
    assert submitted(standing) == 4


# Messages of Receptor 1.5.5 and their explanations.
TLS = "TLS error connecting to remote service: CRYPTO_ERROR 0x12a (local)"
REFUSALS = {
    "unknown work type gpuprov-worker": "its Receptor does not allow the work type gpuprov-worker",
    "could not verify signature: signature is empty": "does not accept the signature of our work",
    "could not verify signature: crypto/rsa: verification error": "does not accept the signature of our work",
    "work type did not expect a signature": "not have the work type gpuprov-worker, or takes it unsigned",
    "cannot sign work: signing key is empty": "the Receptor of this machine has no key to sign work with",
    f"{TLS}: x509: certificate signed by unknown authority": "its certificate, or ours there, is not acc",
    f"{TLS}: x509: certificate is valid for Receptor node ID rogue, not rack-1": "is not accepted",
    f"{TLS}: x509: certificate has expired or is not yet valid": "a certificate has expired",
    "no route to node": "the mesh has no way to it",
    "Work unit expired on Thu Nov 26 08:38:01": "it did not answer in time",
    "write /var/lib/receptor/a/b/stdin: no space left on device": "its disk is full",
    "something nobody has seen": "its unit was not begun: something nobody has seen",
}


@pytest.mark.parametrize("said", REFUSALS)
def test_what_a_workers_receptor_refuses_is_said_with_the_worker(standing: StandIn, said: str) -> None:
    standing.refusals["rack-1"] = said
    with pytest.raises(NodeError) as refused:
        share(standing, Script(b""))
    assert refused.value.what.startswith("worker rack-1: ")
    assert REFUSALS[said] in refused.value.what
    assert refused.value.fix
    assert standing.units == {}


def test_a_worker_the_mesh_has_no_way_to_is_not_asked(standing: StandIn) -> None:
    script = Script(b"")
    standing.add("rack-2")
    standing.routes.discard("rack-1")
    standing.add = lambda *_, **__: None  # type: ignore[method-assign]
    with pytest.raises(NodeError, match="worker rack-1: the mesh has no way to it"):
        share(standing, script)
    assert not any("submit" in line for line in standing.asked)


@pytest.mark.parametrize(
    ("types", "words"),
    [
        ([{"WorkType": "other", "Secure": True}], "does not allow the work type gpuprov-worker"),
        ([{"WorkType": "gpuprov-worker", "Secure": False}], "or takes it unsigned"),
    ],
)
def test_what_a_worker_advertises_is_believed(standing: StandIn, types: list[Any], words: str) -> None:
    standing.adverts = [{"NodeID": "rack-1", "WorkCommands": types}]
    with pytest.raises(NodeError, match=words):
        share(standing, Script(b""))


@pytest.mark.parametrize(
    ("stopped", "words"),
    [(True, "the Receptor of this machine cannot be reached at .*No such file"), (False, "no tls-client")],
)
def test_a_receptor_of_ours_that_is_not_there_or_not_set_up_is_said(
    standing: StandIn, monkeypatch: pytest.MonkeyPatch, stopped: bool, words: str
) -> None:
    if stopped:
        standing.stop()
    else:
        words = "has no such tls-client"
        monkeypatch.setattr("tests.support.receptor.TLS_CLIENT", "another")
    with pytest.raises(NodeError, match=f"worker rack-1: .*{words}") as refused:
        share(standing, Script(b""))
    assert "gpuprov_receptor_" in refused.value.fix


def test_a_socket_that_may_not_be_used_is_said(standing: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("provision.remote.workers.control.socket.socket.connect", refuse)
    with pytest.raises(NodeError, match="Permission denied") as refused:
        share(standing, Script(b""))
    assert "a user who may use that socket" in refused.value.fix


def test_a_worker_that_does_not_see_the_mesh_is_not_used(standing: StandIn) -> None:
    with pytest.raises(NodeError, match="gpuprov there cannot use its Receptor's control socket") as refused:
        share(standing, Script(b"", socket="Permission denied"))
    assert "gpuprov_receptor_socket of rack-1" in refused.value.fix


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        (b"/x/python: No module named provision\n", "its Python has no gpuprov"),
        (
            b"/x/python: Error while ... (ModuleNotFoundError: No module named 'provision')\n",
            "its Python has no gpuprov",
        ),
        # Its Receptor is set up for an older gpuprov, or for a newer one.
        (
            b"/x/python: No module named provision.remote.worker_program.worker_entry\n",
            "its gpuprov does not have",
        ),
        (
            b"/x/python: ... (ModuleNotFoundError: No module named 'provision.remote.new')\n",
            "its gpuprov does not have",
        ),
        (b"/bin/sh: 1: /x/python: not found\n", "its interpreter cannot be started"),
        (b"\x1b[31mOut of memory\n", "it ended before it began: [31mOut of memory"),
        (b"", "it ended before it began: exit status 0"),
    ],
)
def test_a_worker_that_does_not_begin_says_why(standing: StandIn, noise: bytes, words: str) -> None:
    with pytest.raises(NodeError) as refused:
        share(standing, lambda _: noise)
    assert words in refused.value.what


def test_a_worker_that_could_not_work_says_why(play: Play) -> None:
    error = {"status": "error", "job_explanation": "no space\nleft", "gpuprov_events": 0}
    outcomes = play(Script(lines(error, {"eof": True})))
    assert outcomes["gpu-01"].message.startswith("worker rack-1: no space left")
    assert outcomes["gpu-01"].status == "failed"


@pytest.fixture
def hung(standing: StandIn, monkeypatch: pytest.MonkeyPatch) -> mesh.Share:
    """Return the share of a worker whose units fall silent after their first events."""
    for name, seconds in (("_POLL", 0.05), ("_LOOK", 0.1)):
        monkeypatch.setattr(units, name, seconds)
    monkeypatch.setattr(assignment, "SILENCE", 0.5)
    script = Script(lines({"event": "keepalive"}, *whole()[:3]))
    one = share(standing, script)

    def hangs(given: bytes) -> bytes:
        unit = next(unit for unit in standing.units.values() if unit.started)
        unit.size = lambda: 1 << 20  # type: ignore[method-assign]
        standing.hanging.add(unit.id)
        return script(given)

    standing.said["rack-1"] = hangs
    return one


def test_a_look_whose_worker_hangs_says_so(hung: mesh.Share) -> None:
    said: list[str] = []
    programs = dict.fromkeys(HOSTS, ("a", "b"))
    left: list[str] = []
    with Away(
        hung.hosts,
        hung.links,
        programs,
        lambda name, _output, _seconds: left.append(name),
        said.append,
        timeout=5,
        connections=2,
    ) as away:
        away.finish()
    assert sorted(left) == sorted(HOSTS)
    assert [line.rpartition(": ")[2] for line in said] == ["its work is ended"]


def test_a_unit_that_hangs_is_ended(standing: StandIn, hung: mesh.Share) -> None:
    heard: list[str] = []
    outcomes = worker_runs.run_playbook(
        hung, OBSERVE, HOSTS, on_event=lambda said: heard.append(said.result.get("detail", ""))
    )
    assert {one.status for one in outcomes.values()} == {"unreachable"}
    assert "worker rack-1: it was not heard from for" in outcomes["gpu-01"].message
    silent = [line for line in heard if line.startswith("worker rack-1: not heard from for ")]
    assert [line.rpartition(": ")[2] for line in silent] == ["its work is ended"]
    assert any(line.startswith("work cancel") for line in standing.asked)
    assert standing.units == {}


def test_a_worker_out_of_time_is_told_to_end(standing: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_POLL", 0.05), ("_LOOK", 0.1), ("_ENDING", 0.3)):
        monkeypatch.setattr(units, name, seconds)
    script = Script(lines({"event": "keepalive"}, *whole()[:3]))
    one = share(standing, script)

    def hangs(given: bytes) -> bytes:
        standing.hanging.update(standing.units)
        return script(given)

    standing.said["rack-1"] = hangs
    outcomes = worker_runs.run_playbook(one, OBSERVE, HOSTS, timeout=0.2)
    assert any(line.startswith("work cancel") for line in standing.asked)
    assert {one.message for one in outcomes.values()} == {"did not finish in 0 s"}
    assert {one.status for one in outcomes.values()} == {"failed"}


def test_a_playbook_of_another_and_a_password_program_stay_here(
    play: Play, standing: StandIn, tmp_path: Path
) -> None:
    with pytest.raises(GpuprovError, match="workers have no others"):
        worker_runs.run_playbook(share(standing, Script(b"")), tmp_path / "own.yml", HOSTS)
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


def test_odd_answers_of_programs_are_that_nodes_trouble(standing: StandIn) -> None:
    def answer(number: int, host: str, **data: Any) -> dict[str, Any]:
        return event(worker_stream.OUTPUT, number, host=host, **data)

    names = [f"gpu-{number}" for number in range(6)]
    said = [
        answer(1, "gpu-0", output="hello", seconds=0.5),
        answer(2, "gpu-0", output="twice", seconds=0.5),
        answer(3, "gpu-1", bytes="!!", seconds="long"),
        answer(4, "gpu-2", output=["x"]),
        answer(5, "gpu-3", error=["auth", "no key\x1b[2J", "add one"]),
        answer(6, "gpu-4", error=["boom", "x", "y"]),
    ]
    status = {"status": "successful", "gpuprov_events": len(said)}
    found: dict[str, Any] = {}
    left = ask(
        share(standing, Script(lines(*said, status, {"eof": True})), {name: {} for name in names}),
        dict.fromkeys(names, ("a", "b")),
        lambda name, output, _seconds: found.setdefault(name, []).append(output),
        lambda _line: None,
        timeout=5,
        connections=2,
    )
    assert found.pop("gpu-0") == [b"hello"]
    assert all(len(one) == 1 and isinstance(one[0], NodeError) for one in found.values())
    assert sorted(found) == names[1:5]
    assert (found["gpu-3"][0].kind, found["gpu-3"][0].what) == ("auth", "no key [2J")
    assert list(left) == ["gpu-5"]  # another worker may query it
    assert "worker rack-1: it did not answer for this node" in left["gpu-5"].what


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"like": 7, "parts": []}, "an answer like 7, which it never gave"),
        ({"like": "0", "parts": []}, "an answer like '0', which it never gave"),
        ({"like": 0, "parts": [[9, "x"]]}, "part 9 of an answer that has 2"),
    ],
)
def test_an_answer_like_none_that_there_was_is_for_another_worker(
    standing: StandIn, data: dict[str, Any], words: str
) -> None:
    """Events before it count; events after it are unreliable."""
    names = [f"gpu-{number}" for number in range(3)]
    events = [
        event(worker_stream.OUTPUT, 1, host="gpu-0", output='{"a":1,"b":2}', seconds=0.5),
        event(worker_stream.OUTPUT, 2, host="gpu-1", seconds=0.5, **data),
        event(worker_stream.OUTPUT, 3, host="gpu-2", like=0, parts=[], seconds=0.5),
    ]
    outputs: dict[str, Any] = {}
    left = ask(
        share(standing, Script(lines(*events)), {name: {} for name in names}),
        dict.fromkeys(names, ("a", "b")),
        lambda name, output, _seconds: outputs.update({name: output}),
        lambda _line: None,
        timeout=5,
        connections=2,
    )
    assert outputs == {"gpu-0": b'{"a":1,"b":2}'}
    assert list(left) == names[1:]
    assert {trouble.what for trouble in left.values()} == {
        f"worker rack-1: its answer is not understood: {words}"
    }
    assert standing.units == {}


def test_a_unit_that_holds_more_than_such_work_can_is_ended(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few bytes it needs on the wire."""
    monkeypatch.setattr(units, "_EACH", 10_000)
    outcomes = play(Script(lines({"event": "keepalive", "x": "x" * 100_000}, *whole()[:3])))
    assert "it prints without end" in outcomes["gpu-01"].message
