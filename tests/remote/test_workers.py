"""A share done by a worker of a mesh ends as one done from here, and leaves nothing.

With the stand-in for Receptor's control socket, and with Receptor itself where this machine has it
(GPUPROV_TEST_RECEPTOR).
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provision import paths
from provision.desired.inventory import select
from provision.errors import InventoryError
from provision.fleet import Fleet, Node
from provision.remote import workers
from provision.remote.ansible import partitions, runner
from provision.remote.ansible.events import Event
from provision.remote.observe import observe
from provision.remote.workers import leftovers, mesh, register
from tests.support.processes import until
from tests.support.receptor import PROGRAM, TLS_CLIENT, RealMesh, StandIn
from tests.support.sshd import Sshd

ROOT = paths.PACKAGE.parent
OBSERVE = paths.PLAYBOOKS / "observe.yml"
SECRET = "corr3ct-h0rse-battery"
ENTRY = "-P -m provision.remote.workers.worker_entry"
Mesh = StandIn | RealMesh


def interpreter(folder: Path, before: str = "") -> Path:
    """What a worker's Receptor starts: it has this gpuprov."""
    path = folder / "worker"
    path.write_text(f"#!/bin/sh\n{before}\nPYTHONPATH={ROOT} exec {sys.executable} {ENTRY}\n")
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def _nothing_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process knows of a mesh, and names units in, is each test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(mesh, "_meshes", {})
    monkeypatch.setattr(register, "_current", [])
    monkeypatch.setattr(leftovers, "_swept", set())


@pytest.fixture
def standing(tmp_path: Path) -> Iterator[StandIn]:
    """worker-a and worker-b, whose Receptor is stood in for."""
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
    """worker-a, and worker-b behind it."""
    return real if request.param == "receptor" and real is not None else standing


def inventory(sshd: Sshd, made: Mesh, names: Any = "worker-a", **variables: Any) -> Fleet:
    """Two nodes, both of them this sshd, and the workers."""
    more = {
        "gpuprov_receptor_node": names,
        "gpuprov_receptor_socket": made.socket,
        "gpuprov_receptor_tls_client": TLS_CLIENT,
        "ansible_python_interpreter": sys.executable,
        "ansible_become": False,
    }
    nodes = {name: sshd.node(name, **{**more, **variables}) for name in ("gpu-01", "gpu-02")}
    both = {
        name: Node(name, (), {"gpuprov_receptor_socket": made.worker_socket(name)})
        for name in ("worker-a", "worker-b")
    }
    groups = {"all": (*nodes, *both), "gpu_nodes": tuple(nodes), workers.GROUP: tuple(both)}
    return Fleet(Path("inventory.yml"), {**nodes, **both}, groups)


def linked(fleet: Fleet, **overrides: Any) -> Fleet:
    nodes, apart = workers.apart(fleet)
    return workers.linked(nodes, apart, overrides)


def asking(fleet: Fleet, program: str, **variables: Any) -> dict[str, dict[str, Any]]:
    """What observe.yml is given: a program for each node."""
    return {
        name: {**node.variables, "gpuprov_observe_program": program, **variables}
        for name, node in fleet.nodes.items()
    }


def nothing_left(made: Mesh, state: Path) -> bool:
    files = [path for path in (state / "gpuprov").rglob("*") if path.is_file()]
    return not files and (not made.units if isinstance(made, StandIn) else not made.left())


# --- who does what ---


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
    assert links["gpu-01"].workers == ("worker-b", "worker-a")
    assert links["gpu-01"].sockets == (standing.socket,) * 2
    assert workers.LINK not in str(here) + str(away)
    json.dumps(hosts)  # plain data, wherever variables go


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
    assert linked(inventory(sshd, standing), gpuprov_receptor_node="").nodes  # nobody needs it then


def test_whoever_plays_on_nodes_minds_their_workers() -> None:
    """A new caller of the runner must divide its hosts, or nodes behind a worker are reached from here."""
    callers = {
        path.relative_to(paths.PACKAGE).as_posix()
        for path in paths.PACKAGE.rglob("*.py")
        if re.search(r"\brun_playbook\b", path.read_text()) and "_packed" not in path.parts
    }
    # observe.py divides by itself; resolve.py and selftest/machine.py play on this machine alone.
    assert callers == {
        "desired/templating/resolve.py",
        "remote/ansible/partitions.py",
        "remote/ansible/runner.py",
        "remote/observe.py",
        "remote/workers/worker_runs.py",
        "validate/selftest/machine.py",
    }


# --- done in the mesh ---


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
    # The program on the node looks at what all of this machine's processes were started with, and at what
    # Receptor keeps of the unit on either side: it is there, and cannot be read.
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
    for folder in (Path("/dev/shm"), Path("/tmp")):
        for file in folder.glob("gpuprov*/**/*"):
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
