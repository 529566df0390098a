"""Work done by a mesh worker ends like work done from here, and leaves nothing behind.

Uses the stand-in for Receptor's control socket, and Receptor itself if this machine has it
(GPUPROV_TEST_RECEPTOR).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provision import paths
from provision.desired.inventory import select
from provision.errors import InventoryError
from provision.remote import workers
from provision.remote.ansible import runner
from provision.remote.ansible.events import Event
from provision.remote.protocol import NodeError
from provision.remote.reach import fleet_lock, partitions
from provision.remote.reach.observe import observe, run_programs
from provision.remote.workers import Link, Worker, assignment, mesh, units
from provision.remote.workers.units import Way
from tests.support.processes import alive, command_of, until
from tests.support.receptor import PROGRAM, RealMesh, StandIn, forget
from tests.support.sshd import Sshd
from tests.support.worker_fleet import asking, interpreter, inventory, linked

ROOT = paths.PACKAGE.parent
OBSERVE = paths.PLAYBOOKS / "observe.yml"
SECRET = "corr3ct-h0rse-battery"
Mesh = StandIn | RealMesh


@pytest.fixture(autouse=True)
def _nothing_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give each test its own state folder and forget what earlier tests learned about a mesh."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    forget()
    yield
    forget()


@pytest.fixture
def standing(tmp_path: Path) -> Iterator[StandIn]:
    """Yield worker-a and worker-b with a stand-in for their Receptor."""
    folder = tmp_path / "m"
    folder.mkdir()
    made = StandIn(folder)
    for name in ("worker-a", "worker-b"):
        made.add(name, interpreter(folder))
    try:
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealMesh | None]:
    if PROGRAM is None:
        yield None
        return
    folder = tmp_path_factory.mktemp("mesh")
    made = RealMesh(folder, interpreter(folder))
    try:
        yield made
    finally:
        made.end()


_REAL = pytest.param("receptor", marks=pytest.mark.skipif(not PROGRAM, reason="no Receptor here"))


@pytest.fixture(params=["stand-in", _REAL])
def meshed(request: pytest.FixtureRequest, standing: StandIn, real: RealMesh | None) -> Mesh:
    """Return a mesh of worker-a and, behind it, worker-b."""
    return real if request.param == "receptor" and real is not None else standing


def nothing_left(made: Mesh, state: Path) -> bool:
    """Check that no unit is left; greetings of workers may stay cached."""
    files = [
        path for path in (state / "gpuprov").rglob("*") if path.is_file() and path.name != "greetings.json"
    ]
    return not files and (not made.units if isinstance(made, StandIn) else not made.left())


# --- assignment of nodes to workers ---


def test_workers_are_no_nodes(sshd: Sshd, standing: StandIn) -> None:
    fleet, apart = workers.apart(inventory(sshd, standing))
    assert list(fleet.nodes) == ["gpu-01", "gpu-02"]
    assert sorted(apart.nodes) == ["worker-a", "worker-b"]
    assert list(select(fleet, "all").nodes) == ["gpu-01", "gpu-02"]
    assert "worker-" not in str(fleet.groups)


def test_hosts_do_not_learn_of_their_workers(sshd: Sshd, standing: StandIn) -> None:
    fleet = linked(inventory(sshd, standing, ["worker-b", "worker-a", "worker-b"]))
    hosts = {name: dict(node.variables) for name, node in fleet.nodes.items()}
    hosts["local"] = {**hosts["gpu-01"], "ansible_connection": "local"}
    hosts["own"] = {"x": 1}
    here, links, away = workers.split(hosts)
    assert sorted(here) == ["local", "own"]
    assert list(away) == ["gpu-01", "gpu-02"]
    assert links["gpu-01"].workers == (
        Worker("worker-b", standing.socket),
        Worker("worker-a", standing.socket),
    )
    assert workers.LINK not in str(here) + str(away)
    json.dumps(hosts)  # plain data, so it can go wherever variables go


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"gpuprov_receptor_node": "x"}, r"gpu-01: gpuprov_receptor_node: 'x' is not in .*\(worker-a, w"),
        ({"gpuprov_receptor_node": ["worker-a", "x"]}, "'x' is not in the group gpuprov_workers"),
        ({"gpuprov_receptor_node": {"a": 1}}, "is neither a name nor a list of names"),
        ({"gpuprov_receptor_socket": ["x"]}, "gpu-01: gpuprov_receptor_socket must be plain text"),
        ({"gpuprov_worker": "worker-a"}, "gpu-01: gpuprov_worker is not known any more"),
    ],
)
def test_a_worker_that_cannot_be_one_is_refused(
    sshd: Sshd, standing: StandIn, variables: dict[str, Any], words: str
) -> None:
    with pytest.raises(InventoryError, match=words) as refused:
        linked(inventory(sshd, standing), **variables)
    if "gpuprov_worker" in variables:
        assert "write gpuprov_receptor_node: worker-a" in refused.value.fix


def test_an_ansible_cfg_that_workers_do_not_have_is_refused(
    sshd: Sshd, standing: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANSIBLE_CONFIG", "/etc/ansible/ansible.cfg")
    with pytest.raises(InventoryError, match="workers are not given that file"):
        linked(inventory(sshd, standing))
    assert linked(inventory(sshd, standing), gpuprov_receptor_node="").nodes  # no node needs a worker


def test_nodes_with_the_same_workers_have_one_list_of_them(sshd: Sshd, standing: StandIn) -> None:
    """A hundred thousand nodes share a few lists, in memory too."""
    fleet = linked(inventory(sshd, standing, ["worker-b", "worker-a"]))
    hosts = {name: node.variables for name, node in fleet.nodes.items()}
    assert hosts["gpu-01"][workers.LINK] is hosts["gpu-02"][workers.LINK]
    _, links, _ = workers.split(hosts)
    assert links["gpu-01"] is links["gpu-02"]


def test_whoever_plays_on_nodes_minds_their_workers() -> None:
    """A new caller of the runner must divide its hosts, or nodes behind a worker are contacted directly."""
    callers = {
        path.relative_to(paths.PACKAGE).as_posix()
        for path in paths.PACKAGE.rglob("*.py")
        if re.search(r"\brun_playbook\b", path.read_text()) and "_packed" not in path.parts
    }
    # observe.py divides its own hosts; resolve.py and selftest/machine.py play on this machine only.
    assert callers == {
        "desired/resolve.py",
        "remote/reach/partitions.py",
        "remote/ansible/runner.py",
        "remote/reach/observe.py",
        "remote/workers/worker_runs.py",
        "validate/selftest/machine.py",
    }


def test_nodes_of_a_lost_worker_are_spread_by_what_the_others_have_already(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def usable(self: mesh.Mesh, wanted: dict[str, Worker]) -> dict[str, Way]:
        return {name: Way(self._control, "", "", name, "") for name in wanted}

    monkeypatch.setattr(mesh.Mesh, "_usable", usable)
    ways = {"a": ["a", "b", "c"], "b": ["b"], "c": ["c"]}
    links = {name: Link(tuple(map(Worker, workers))) for name, workers in ways.items()}
    # First 8 nodes of worker-a that others can do; then 6 of worker-b alone, and 2 of worker-c.
    of = {f"gpu-{number:02d}": links["abc"[(number > 8) + (number > 14)]] for number in range(1, 17)}
    shares, stranded = mesh.assigned({name: {} for name in of}, of, without=("b", "c"))
    assert stranded == {}
    assert [share.worker for share in shares] == ["a"]
    busy, _ = mesh.assigned({name: {} for name in of if len(of[name].workers) == 1}, of)
    again: dict[str, int] = {}
    done = threading.Event()

    def work(share: mesh.Share) -> mesh.Left:
        if share.worker == "a":
            return dict.fromkeys(share.hosts, NodeError("cut", "it was lost", ""))
        if "gpu-01" <= min(share.hosts) <= "gpu-08":
            again[share.worker] = len(share.hosts)
            if len(again) == 2:
                done.set()
        assert done.wait(30)
        return {}

    assert mesh.worked([*busy, *shares], work) == {}
    assert again == {"b": 2, "c": 6}
    later, _ = mesh.assigned({name: {} for name in of}, dict.fromkeys(of, links["a"]), without=("a",))
    assert {share.worker: len(share.hosts) for share in later} == {"b": 8, "c": 8}  # worker a gets no node


# --- work done in the mesh ---


def test_a_playbook_by_workers_ends_as_one_from_here(sshd: Sshd, tmp_path: Path, meshed: Mesh) -> None:
    fleet = linked(inventory(sshd, meshed, ["worker-a", "worker-b"]))
    program = "import sys\nprint('to', len(sys.stdin.read()), 'and out')\nsys.exit(FAILS)\n"
    hosts = asking(fleet, program.replace("FAILS", "0"))
    hosts["gpu-02"]["gpuprov_observe_program"] = program.replace("FAILS", "3")
    plain = {name: {k: v for k, v in one.items() if k != workers.LINK} for name, one in hosts.items()}
    here: list[Event] = []
    away: list[Event] = []
    from_here = runner.run_playbook(OBSERVE, plain, on_event=here.append)
    by_worker = partitions.run_sharded(OBSERVE, hosts, on_event=away.append)
    assert by_worker == from_here
    assert [from_here[name].status for name in fleet.nodes] == ["ok", "failed"]
    order = lambda event: (event.node, event.task, event.kind)  # noqa: E731
    assert sorted(away, key=order) == sorted(here, key=order)
    until(lambda: nothing_left(meshed, tmp_path / "state"))


def test_secrets_are_in_no_argument_no_file_and_no_event(sshd: Sshd, meshed: Mesh) -> None:
    fleet = linked(inventory(sshd, meshed, ansible_become_password=SECRET))
    # The program searches every process's environment on this machine and Receptor's files of the unit on
    # either side: the unit's files exist, but the secret in them is encrypted.
    look = textwrap.dedent(f"""
        import glob, os
        found, units = [], 0
        for pid in glob.glob("/proc/[0-9]*"):
            for name in ("cmdline", "environ"):
                try:
                    data = open(pid + "/" + name, "rb").read()
                except OSError:
                    continue
                if b"corr3ct-h0rse" b"-battery" in data:
                    found.append(data.replace(b"\\0", b" ").decode("utf-8", "replace")[:300])
        for folder, _, names in os.walk({str(meshed.folder)!r}):
            for name in [name for name in names if os.path.isfile(os.path.join(folder, name))]:
                data = open(os.path.join(folder, name), "rb").read()
                units += name == "stdin" and len(data) > 1000
                if b"corr3ct-h0rse" b"-battery" in data or b"gpuprov_observe_" b"program" in data:
                    found.append(os.path.join(folder, name))
        print("LOOKED", found, units > 0)
        """)
    heard: list[Event] = []
    outcomes = partitions.run_sharded(
        OBSERVE, asking(fleet, look), on_event=heard.append, extra_vars={"some_token": SECRET}
    )
    assert {one.status for one in outcomes.values()} == {"ok"}, outcomes
    said = [event.result["stdout"] for event in heard if event.kind == "ok"]
    assert said == ["LOOKED [] True"] * 2
    assert SECRET not in repr(heard)
    for top in (*Path("/dev/shm").glob("gpuprov*"), *Path("/tmp").glob("gpuprov*")):
        for folder, _, names in os.walk(top):
            for file in (Path(folder, name) for name in names):
                with contextlib.suppress(OSError):  # belongs to another run and has vanished
                    assert not (file.is_file() and SECRET in file.read_text(errors="replace")), file


def test_an_observation_by_workers_is_one_from_here(sshd: Sshd, tmp_path: Path, meshed: Mesh) -> None:
    fleet = inventory(sshd, meshed, ["worker-a", "worker-b"])
    ask = {name: ["os.id", "kernel.release", "package.bash.version"] for name in ("gpu-01", "gpu-02")}
    nodes, _ = workers.apart(fleet)
    here = observe(nodes.nodes.values(), ask)
    away = observe(linked(fleet).nodes.values(), ask)
    assert {name: one.error for name, one in away.items()} == dict.fromkeys(ask)
    assert {n: (one.facts, one.problems) for n, one in away.items()} == {
        n: (one.facts, one.problems) for n, one in here.items()
    }
    until(lambda: nothing_left(meshed, tmp_path / "state"))


def test_a_node_that_its_worker_cannot_reach_has_its_own_cause(sshd: Sshd, standing: StandIn) -> None:
    fleet = inventory(sshd, standing)
    dead = replace(fleet.nodes["gpu-02"], variables={**fleet.nodes["gpu-02"].variables, "ansible_port": 1})
    found = observe(linked(replace(fleet, nodes={**fleet.nodes, "gpu-02": dead})).nodes.values(), {})
    assert found["gpu-01"].error is None
    assert found["gpu-02"].unreachable
    assert "127.0.0.1:1 refused the connection" in str(found["gpu-02"].error)


def test_nodes_are_spread_over_the_workers_that_reach_them(sshd: Sshd, standing: StandIn) -> None:
    fleet = linked(inventory(sshd, standing, ["worker-a", "worker-b"]))
    assert all(one.error is None for one in observe(fleet.nodes.values(), {}).values())
    assert sorted(unit.worker for unit in standing.every) == ["worker-a", "worker-a", "worker-b", "worker-b"]


# --- lost workers ---


def broken(folder: Path, program: str) -> Path:
    """Return a worker command that greets correctly and runs `program` instead of its work."""
    path = folder / "broken"
    path.write_text(
        f"#!{sys.executable}\nimport os, signal, sys, time\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from provision.remote.worker_program import worker_entry\n"
        "original = worker_entry._work\n"
        f"def work(about, share):\n    {program}\n"
        "worker_entry._work = work\nsys.exit(worker_entry.main())\n"
    )
    path.chmod(0o755)
    return path


LOST = {
    "it ends before it begins": "print('\\x1b[31mno memory'); return 1",
    "it is killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "it cannot be started": "",
    "its disk is full": "full = os.open('/dev/full', 1); os.dup2(full, 1); os.dup2(full, 2); "
    "return original(about, share)",
}


@pytest.mark.parametrize("name", LOST)
def test_what_a_lost_worker_left_is_done_by_another(
    sshd: Sshd, standing: StandIn, tmp_path: Path, name: str
) -> None:
    fleet = linked(inventory(sshd, standing, ["worker-a", "worker-b"]))
    assert all(one.error is None for one in observe(fleet.nodes.values(), {}).values())  # both greeted
    standing.commands["worker-a"] = broken(tmp_path, LOST[name]) if LOST[name] else tmp_path / "nowhere"
    found = observe(fleet.nodes.values(), {})
    assert {node: one.error for node, one in found.items()} == dict.fromkeys(fleet.nodes)
    assert [unit.worker for unit in standing.every[-1:]] == ["worker-b"]
    assert nothing_left(standing, tmp_path / "state")


def test_a_playbook_that_does_not_begin_at_a_worker_is_played_by_another(
    sshd: Sshd, standing: StandIn, tmp_path: Path
) -> None:
    fleet = linked(inventory(sshd, standing, ["worker-a", "worker-b"]))
    observe(fleet.nodes.values(), {})
    standing.commands["worker-a"] = broken(tmp_path, "return 1")
    outcomes = partitions.run_sharded(OBSERVE, asking(fleet, "print(1)"))
    assert {one.status for one in outcomes.values()} == {"ok"}, outcomes
    assert nothing_left(standing, tmp_path / "state")


def test_a_worker_that_is_lost_in_the_middle_leaves_its_hosts_to_be_looked_at(
    sshd: Sshd, standing: StandIn, tmp_path: Path
) -> None:
    """Nothing is repeated on unobserved hosts, since another worker would redo finished work."""
    fleet = linked(inventory(sshd, standing, ["worker-a", "worker-b"]))
    assert all(one.error is None for one in observe(fleet.nodes.values(), {}).values())
    standing.commands["worker-a"] = broken(
        tmp_path,
        "import base64; speaker = worker_entry._Speaker(worker_entry._Output(base64.b64decode("
        "about['answer_key']))); speaker.begin(); os.kill(os.getpid(), signal.SIGKILL)",
    )
    outcomes = partitions.run_sharded(OBSERVE, asking(fleet, "print(1)"))
    assert {name: one.status for name, one in outcomes.items()} == {"gpu-01": "unreachable", "gpu-02": "ok"}
    assert "worker worker-a: its work ended too early: signal: killed" in outcomes["gpu-01"].message
    assert {name: one.lost for name, one in outcomes.items()} == {"gpu-01": True, "gpu-02": False}
    before = len(standing.every)
    observed = observe(fleet.nodes.values(), {})
    assert {node: one.error for node, one in observed.items()} == dict.fromkeys(fleet.nodes)
    assert [unit.worker for unit in standing.every[before:]] == ["worker-b"]


def test_a_worker_without_a_way_is_named_for_its_nodes_and_costs_others_nothing(
    sshd: Sshd, standing: StandIn
) -> None:
    standing.routes.discard("worker-a")
    fleet = linked(inventory(sshd, standing))
    alone = sshd.node("gpu-03", ansible_become=False)
    programs = dict.fromkeys(("gpu-01", "gpu-02", "gpu-03"), "print('hello')")
    found = run_programs([*fleet.nodes.values(), alone], programs, timeout=20)
    assert found["gpu-03"] == b"" or "answered" in str(found["gpu-03"])  # it was queried
    assert "worker worker-a: the mesh has no way to it" in str(found["gpu-01"])
    outcomes = partitions.run_sharded(OBSERVE, asking(fleet, "print(1)"))
    assert {one.status for one in outcomes.values()} == {"unreachable"}
    # The remedy is in the same line, in case the reader sees only that.
    fix = (
        "is its Receptor running, and are its peers? then run again, up and validate with --resume; "
        "if it stays lost, name others in its nodes' gpuprov_receptor_node"
    )
    assert isinstance(found["gpu-01"], NodeError)
    assert found["gpu-01"].fix == fix
    assert outcomes["gpu-02"].message.endswith(f" → {fix}")


def test_a_worker_that_is_cut_off_after_its_greeting_is_given_nothing(
    sshd: Sshd, standing: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit for it would block until its TTL, and so would the next one, for its neighbour."""
    monkeypatch.setattr(mesh, "_ROUTE", 0.0)
    fleet = linked(inventory(sshd, standing, ["worker-a", "worker-b"]))
    assert all(one.error is None for one in observe(fleet.nodes.values(), {}).values())  # both were greeted
    before = len(standing.every)
    standing.cut("worker-a")
    observed = observe(fleet.nodes.values(), {})
    assert {node: one.error for node, one in observed.items()} == dict.fromkeys(fleet.nodes)
    assert [unit.worker for unit in standing.every[before:]] == ["worker-b"]


@pytest.mark.parametrize("others", [True, False], ids=["others can do it", "nobody else can"])
def test_a_worker_that_is_cut_off_ends_where_others_take_over_and_goes_on_where_nobody_can(
    sshd: Sshd, standing: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: bool
) -> None:
    fleet = linked(inventory(sshd, standing, ["worker-a", "worker-b"] if others else "worker-a"))
    observe(fleet.nodes.values(), {})
    for name, seconds in (("LEASE", 5.0), ("MARGIN", 3.0)):  # shortens waits of minutes to seconds
        monkeypatch.setattr(assignment, name, seconds)
    quick = "worker_entry._LOOK = worker_entry.worker_stream.BEAT = 0.3; return original(about, share)"
    command = broken(tmp_path, quick)
    standing.commands = dict.fromkeys(standing.commands, command)
    mark = tmp_path / "task"
    program = f"import time; open({str(mark)!r}, 'w').write('x'); time.sleep({40 if others else 15})"
    hosts = asking(fleet, "print('quick')")
    hosts["gpu-01"]["gpuprov_observe_program"] = program
    at_work: list[int] = []

    def cut() -> None:
        until(lambda: mark.exists() and mark.read_text())
        at_work.extend(standing.pids())
        monkeypatch.setattr(assignment, "SILENCE", 1.5)
        monkeypatch.setattr(mesh, "_ROUTE", 0.1)
        for name in ("_POLL", "_LOOK"):
            monkeypatch.setattr(units, name, 0.3)
        standing.cut("worker-a")
        # Unit and controller share a socket here, so renaming the controller cuts the unit's route to it.
        monkeypatch.setattr("tests.support.receptor.CONTROLLER", "elsewhere")
        if not others:
            time.sleep(9)  # longer than a lease and its margin
            standing.routes.add("worker-a")
            time.sleep(4)  # until Receptor requests more output, which is longer than a unit may be silent
            for unit in standing.units.values():
                unit.frozen = False

    thread = threading.Thread(target=cut)
    thread.start()
    said: list[str] = []
    outcomes = partitions.run_sharded(
        OBSERVE, hosts, on_event=lambda one: said.append(one.result.get("detail", ""))
    )
    thread.join()
    lines = [line for line in said if line.startswith("worker worker-a: ")]
    silent = r"worker worker-a: not heard from for \d+ s \(the mesh has no way to it\)"
    if others:
        (line,) = lines
        assert re.fullmatch(rf"{silent}: others go on with its nodes after \d+ s more", line)
        assert outcomes["gpu-01"].status == "unreachable"
        assert "worker worker-a: it was not heard from for" in outcomes["gpu-01"].message
        until(lambda: not any(alive(pid) for pid in at_work))
    else:
        assert {one.status for one in outcomes.values()} == {"ok"}, outcomes
        first, last = lines
        assert re.fullmatch(rf"{silent}, and nobody else reaches its nodes: waiting \d+ s more", first)
        assert re.fullmatch(r"worker worker-a: heard from again after \d+ s", last)


# --- locks of nodes ---


@pytest.fixture
def locking(standing: StandIn, tmp_path: Path) -> Any:
    """Locks of gpu-01 and gpu-02 in separate folders, which worker-a confirms many times a second."""
    homes = {name: tmp_path / "nodes" / name for name in ("gpu-01", "gpu-02")}
    homes["gpu-01"].parent.mkdir()
    program = fleet_lock._program

    def placed(request: dict[str, Any]) -> str:
        return program({**request, "folder": str(homes[request["node"]])})

    def run(programs: Any) -> Any:
        return {
            node: subprocess.run(
                [sys.executable, "-I", "-S", "-"], input=text.encode(), capture_output=True, check=True
            ).stdout
            for node, text in programs.items()
        }

    standing.commands["worker-a"] = broken(
        tmp_path,
        "from provision.remote.reach import fleet_lock; program = fleet_lock._program; "
        f"homes = { {name: str(home) for name, home in homes.items()}!r}; "
        "fleet_lock._program = lambda asked: program({**asked, 'folder': homes[asked['node']]}); "
        "fleet_lock.RENEW = 0.4; return original(about, share)",
    )

    def lock(run_id: str, **options: Any) -> fleet_lock.FleetLock:
        return fleet_lock.FleetLock(run_id, run, since="10:00", **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet_lock, "_program", placed)
        yield lock, {name: home / "private/lock" for name, home in homes.items()}


def sleeper(mark: Path, seconds: float) -> str:
    return f"import time; open({str(mark)!r}, 'w').write('x'); time.sleep({seconds}); print('done')"


def test_a_worker_keeps_the_locks_of_its_nodes_alive_while_it_works(
    sshd: Sshd, standing: StandIn, tmp_path: Path, locking: Any
) -> None:
    """The controller itself confirms only every ten minutes."""
    new, files = locking
    hosts = asking(linked(inventory(sshd, standing)), sleeper(tmp_path / "task", 4))
    fresh: list[bool] = []

    def grow_old() -> None:
        until((tmp_path / "task").exists)
        old = json.dumps({**json.loads(files["gpu-01"].read_text()), "confirmed": 1.0})
        files["gpu-01"].write_text(old)
        until(lambda: json.loads(files["gpu-01"].read_text())["confirmed"] > 1.0, 20)
        fresh.append(files["gpu-02"].exists())

    thread = threading.Thread(target=grow_old)
    with fleet_lock.held(new("run-1"), list(hosts), say=print):
        thread.start()
        outcomes = partitions.run_sharded(OBSERVE, hosts)
        thread.join()
    assert fresh == [True]
    assert {one.status for one in outcomes.values()} == {"ok"}, outcomes
    time.sleep(1)
    assert not any(file.exists() for file in files.values())  # released, and not acquired again


def test_a_worker_ends_its_work_when_the_lock_of_a_node_is_anothers(
    sshd: Sshd, standing: StandIn, tmp_path: Path, locking: Any
) -> None:
    new, files = locking
    hosts = asking(linked(inventory(sshd, standing)), sleeper(tmp_path / "task", 60))

    def take() -> None:
        until((tmp_path / "task").exists)
        new("run-2", who="bob@ctl-2 (process 7)", force=True).take(["gpu-01"])

    thread = threading.Thread(target=take)
    began = time.monotonic()
    with fleet_lock.held(new("run-1"), list(hosts), say=print):
        thread.start()
        outcomes = partitions.run_sharded(OBSERVE, hosts)
        thread.join()
    assert time.monotonic() - began < 50
    why = "the lock of gpu-01 was taken for gpuprov up by bob@ctl-2 (process 7), since 10:00"
    assert outcomes["gpu-01"].status == "failed"
    assert outcomes["gpu-01"].message == f"{why}: work on it was ended"
    # The unit's other nodes may continue after an observation.
    assert outcomes["gpu-02"].status == "unreachable"
    assert f"worker worker-a: it was stopped: {why} → run again" in outcomes["gpu-02"].message
    assert json.loads(files["gpu-01"].read_text())["run"] == "run-2"
    assert not files["gpu-02"].exists()
    assert nothing_left(standing, tmp_path / "state")


def test_what_asks_for_no_lock_gives_its_workers_none(sshd: Sshd, standing: StandIn, locking: Any) -> None:
    _, files = locking
    outcomes = partitions.run_sharded(
        OBSERVE, asking(linked(inventory(sshd, standing)), sleeper(Path("/dev/null"), 2))
    )
    assert {one.status for one in outcomes.values()} == {"ok"}, outcomes
    assert not any(file.parent.exists() for file in files.values())


# --- interrupted and killed controllers ---


def folders_of(worker: int) -> list[Path]:
    """Return the private folders that a worker holds open."""
    links = []
    for link in Path(f"/proc/{worker}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed in the meantime
            links.append(link.readlink())
    return [link.parent for link in links if link.name.startswith("lock")]


@pytest.fixture
def at_work(sshd: Sshd, standing: StandIn, tmp_path: Path) -> Any:
    """Yield a controller process whose worker is in the middle of a task of several minutes."""
    standing.commands["worker-a"] = interpreter(tmp_path, f"echo $$ > {tmp_path}/pid")
    program = (
        f"import os, time; open({str(tmp_path / 'task')!r}, 'w').write(str(os.getpid())); time.sleep(300)"
    )
    fleet = linked(inventory(sshd, standing))
    hosts = {"gpu-01": {**fleet.nodes["gpu-01"].variables, "gpuprov_observe_program": program}}
    script = tmp_path / "controller.py"
    script.write_text(
        "import sys\nfrom provision import paths\nfrom provision.remote.reach import partitions\n"
        f"hosts = {hosts!r}\n"
        "try: print(partitions.run_sharded(paths.PLAYBOOKS / 'observe.yml', hosts)['gpu-01'])\n"
        "except KeyboardInterrupt: sys.exit(130)\n"
    )
    with subprocess.Popen(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            until(lambda: (tmp_path / "task").exists() and (tmp_path / "task").read_text())
            worker = int((tmp_path / "pid").read_text())
            held = folders_of(worker)
            yield process, worker
        finally:
            process.kill()
            with contextlib.suppress(OSError, ValueError):  # the task outlives its parent
                os.kill(int((tmp_path / "task").read_text()), signal.SIGKILL)
    assert len(held) == 2
    assert {folder.parent for folder in held} == {Path("/dev/shm")}
    until(lambda: not any(folder.exists() for folder in held))


def plays_of(worker: int) -> list[int]:
    """Return the PIDs of the ansible-playbook processes below a worker."""
    return [pid for pid, _ in runner._descendants(worker) if "ansible-playbook" in command_of(pid)]


def test_a_worker_ends_ansible_and_itself_when_its_controller_is_interrupted(
    at_work: Any, standing: StandIn, tmp_path: Path
) -> None:
    """The fixture checks that no private folder is left."""
    process, worker = at_work
    plays = plays_of(worker)
    assert plays
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    until(lambda: not alive(worker))
    until(lambda: not any(alive(pid) for pid in plays))
    assert nothing_left(standing, tmp_path / "state")


def test_work_outlives_its_controller_and_the_next_run_ends_it(
    at_work: Any, sshd: Sshd, standing: StandIn, tmp_path: Path
) -> None:
    """Without a run folder its results are not collected. (Those of `up` are: tests/up/test_collect.py.)"""
    process, worker = at_work
    plays = plays_of(worker)
    process.kill()
    process.wait(timeout=60)
    time.sleep(1)
    assert alive(worker)
    assert all(alive(pid) for pid in plays)
    observe(linked(inventory(sshd, standing)).nodes.values(), {})
    until(lambda: not alive(worker))
    until(lambda: not any(alive(pid) for pid in plays))
    assert nothing_left(standing, tmp_path / "state")


def test_hosts_of_a_killed_worker_are_named_with_it(at_work: Any) -> None:
    process, worker = at_work
    plays = plays_of(worker)
    os.kill(worker, signal.SIGKILL)
    said, _ = process.communicate(timeout=60)
    assert "status='unreachable'" in said
    assert "worker worker-a: its work ended too early: signal: killed → look at that machine" in said
    until(lambda: not any(alive(pid) for pid in plays))
    from provision.remote.ansible.handover import remove_orphans

    remove_orphans()  # as the next worker there does first


def test_a_receptor_of_ours_that_is_restarted_costs_nothing(
    sshd: Sshd, standing: StandIn, tmp_path: Path
) -> None:
    fleet = linked(inventory(sshd, standing))
    mark = tmp_path / "task"
    slow = f"import time; open({str(mark)!r}, 'w').write('x'); time.sleep(4); print('done')"

    def restart() -> None:
        until(mark.exists)
        standing.restart()

    thread = threading.Thread(target=restart)
    thread.start()
    outcomes = partitions.run_sharded(OBSERVE, asking(fleet, slow))
    thread.join()
    assert {one.status for one in outcomes.values()} == {"ok"}, outcomes
    assert nothing_left(standing, tmp_path / "state")
