"""A share done by a worker over a real SSH connection ends as one done from here, and leaves nothing."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
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
from provision.remote.observe import observe, run_programs
from provision.remote.protocol import NodeError
from tests.support.processes import alive, command_of, until
from tests.support.sshd import Sshd

ROOT = paths.PACKAGE.parent
OBSERVE = paths.PLAYBOOKS / "observe.yml"
SECRET = "corr3ct-h0rse-battery"
WHO = "import os; print('I was asked by', os.environ.get('GPUPROV_TEST_WORKER', 'the controller'))"


def interpreter(folder: Path, before: str = "") -> Path:
    """A worker's interpreter: it has this gpuprov."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\n{before}\nPYTHONPATH={ROOT} exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


def inventory(sshd: Sshd, python: Path | str, **variables: Any) -> Fleet:
    """Two nodes and the worker they name, all of them this sshd."""
    worker = sshd.node("rack-1")
    worker = replace(worker, variables={**worker.variables, workers.PYTHON: str(python)})
    more = {"gpuprov_worker": "rack-1", "ansible_python_interpreter": sys.executable, "ansible_become": False}
    nodes = {name: sshd.node(name, **more, **variables) for name in ("gpu-01", "gpu-02")}
    groups = {"all": (*nodes, "rack-1"), "gpu_nodes": tuple(nodes), workers.GROUP: ("rack-1",)}
    return Fleet(Path("inventory.yml"), {**nodes, "rack-1": worker}, groups)


def linked(fleet: Fleet, **overrides: Any) -> Fleet:
    nodes, apart = workers.apart(fleet)
    return workers.linked(nodes, apart, overrides)


def asking(fleet: Fleet, program: str, **variables: Any) -> dict[str, dict[str, Any]]:
    """What observe.yml is given: a program for each node."""
    return {
        name: {**node.variables, "gpuprov_observe_program": program, **variables}
        for name, node in fleet.nodes.items()
    }


# --- who does what ---


def test_workers_are_no_nodes(sshd: Sshd) -> None:
    fleet, apart = workers.apart(inventory(sshd, "python3"))
    assert list(fleet.nodes) == ["gpu-01", "gpu-02"]
    assert list(apart.nodes) == ["rack-1"]
    assert list(select(fleet, "all").nodes) == ["gpu-01", "gpu-02"]
    assert "rack-1" not in str(fleet.groups)


def test_hosts_are_divided_by_their_worker_and_do_not_learn_the_way_there(sshd: Sshd) -> None:
    fleet = linked(inventory(sshd, "python3"))
    hosts = {name: dict(node.variables) for name, node in fleet.nodes.items()}
    hosts["local"] = {**hosts["gpu-01"], "ansible_connection": "local"}
    hosts["own"] = {"x": 1}
    here, away = workers.shares(hosts)
    assert sorted(here) == ["local", "own"]
    assert list(away["rack-1"].hosts) == ["gpu-01", "gpu-02"]
    assert away["rack-1"].worker.route.target.port == sshd.port
    assert workers.LINK not in str(here) + str(away["rack-1"].hosts)


@pytest.mark.parametrize(
    ("python", "overrides", "words"),
    [
        ("python3", {"gpuprov_worker": "rack-2"}, r"gpu-01: gpuprov_worker: 'rack-2' is not in .*\(rack-1\)"),
        ("python3", {"gpuprov_worker": ["rack-1"]}, "is not in the group gpuprov_workers"),
        ("python3; reboot", {}, "rack-1: gpuprov_worker_python must be the path of an interpreter"),
    ],
)
def test_a_worker_that_cannot_be_one_is_refused(
    sshd: Sshd, python: str, overrides: dict[str, Any], words: str
) -> None:
    with pytest.raises(InventoryError, match=words):
        linked(inventory(sshd, python), **overrides)


def test_a_worker_that_only_ansible_reaches_is_refused(sshd: Sshd) -> None:
    fleet = inventory(sshd, "python3")
    nodes = {**fleet.nodes, "rack-1": Node("rack-1", (), {"ansible_connection": "community.docker.docker"})}
    with pytest.raises(InventoryError, match="rack-1: a worker is reached over plain SSH, and ansible_conn"):
        linked(replace(fleet, nodes=nodes))


def test_an_ansible_cfg_that_workers_do_not_have_is_refused(
    sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANSIBLE_CONFIG", "/etc/ansible/ansible.cfg")
    with pytest.raises(InventoryError, match="workers are not given that file"):
        linked(inventory(sshd, "python3"))
    assert linked(inventory(sshd, "python3"), gpuprov_worker="").nodes  # nobody needs it then


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


# --- done over SSH ---


def test_a_playbook_by_a_worker_ends_as_one_from_here(sshd: Sshd, tmp_path: Path) -> None:
    fleet = linked(inventory(sshd, interpreter(tmp_path)))
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


def test_secrets_are_in_no_argument_no_file_and_no_event(sshd: Sshd, tmp_path: Path) -> None:
    spy = tmp_path / "seen"
    # The worker's interpreter notes all arguments and the environment it was started with.
    python = interpreter(tmp_path, f'{{ echo "$@"; env; }} >> {spy}')
    fleet = linked(inventory(sshd, python, ansible_become_password=SECRET))
    # The program on the node looks at what all of this machine's processes were started with.
    look = textwrap.dedent("""
        import glob, os
        found = []
        for pid in glob.glob("/proc/[0-9]*"):
            for name in ("cmdline", "environ"):
                try:
                    data = open(pid + "/" + name, "rb").read()
                except OSError:
                    continue
                if b"corr3ct-h0rse" b"-battery" in data:
                    found.append(data.replace(b"\\0", b" ").decode("utf-8", "replace")[:300])
        print("LOOKED", found)
        """)
    heard: list[Event] = []
    outcomes = partitions.run_sharded(
        OBSERVE, asking(fleet, look), on_event=heard.append, extra_vars={"some_token": SECRET}
    )
    assert {one.status for one in outcomes.values()} == {"ok"}, outcomes
    said = [event.result["stdout"] for event in heard if event.kind == "ok"]
    assert said == ["LOOKED []"] * 2
    assert SECRET not in repr(heard)
    assert "-P -m provision.remote.workers.worker_entry" in spy.read_text()
    assert SECRET not in spy.read_text()
    for folder in (Path("/dev/shm"), Path("/tmp")):
        for file in folder.glob("gpuprov-*/**/*"):
            assert not (file.is_file() and SECRET in file.read_text(errors="replace")), file


def test_an_observation_by_a_worker_is_one_from_here(sshd: Sshd, tmp_path: Path) -> None:
    fleet = inventory(sshd, interpreter(tmp_path))
    ask = {name: ["os.id", "kernel.release", "package.bash.version"] for name in ("gpu-01", "gpu-02")}
    nodes, _ = workers.apart(fleet)
    here = observe(nodes.nodes.values(), ask)
    away = observe(linked(fleet).nodes.values(), ask)
    assert {name: one.error for name, one in away.items()} == dict.fromkeys(ask)
    assert {n: (one.facts, one.problems) for n, one in away.items()} == {
        n: (one.facts, one.problems) for n, one in here.items()
    }


def test_a_node_that_its_worker_cannot_reach_has_its_own_cause(sshd: Sshd, tmp_path: Path) -> None:
    fleet = inventory(sshd, interpreter(tmp_path))
    dead = replace(fleet.nodes["gpu-02"], variables={**fleet.nodes["gpu-02"].variables, "ansible_port": 1})
    found = observe(linked(replace(fleet, nodes={**fleet.nodes, "gpu-02": dead})).nodes.values(), {})
    assert found["gpu-01"].error is None
    assert found["gpu-02"].unreachable
    assert "127.0.0.1:1 refused the connection" in str(found["gpu-02"].error)


def test_a_worker_that_is_not_there_is_named_for_its_nodes_and_costs_others_nothing(sshd: Sshd) -> None:
    fleet = linked(inventory(sshd, "/nowhere/python"))
    alone = sshd.node("gpu-03", ansible_become=False)
    programs = dict.fromkeys(("gpu-01", "gpu-02", "gpu-03"), "print('hello')")
    found = run_programs([*fleet.nodes.values(), alone], programs, timeout=20)
    assert found["gpu-03"] == b"" or "answered" in str(found["gpu-03"])  # it was asked
    assert "worker rack-1: there is no /nowhere/python" in str(found["gpu-01"])
    hosts = asking(fleet, "print(1)")
    outcomes = partitions.run_sharded(OBSERVE, hosts)
    assert {one.status for one in outcomes.values()} == {"unreachable"}
    assert "worker rack-1: there is no /nowhere/python" in outcomes["gpu-02"].message
    # What to do is said in the same line, to whoever reads only that.
    fix = (
        f"set {workers.PYTHON} to one that has gpuprov, then run again, up and validate with --resume; "
        "if it stays lost, name another in its nodes' gpuprov_worker"
    )
    assert isinstance(found["gpu-01"], NodeError)
    assert found["gpu-01"].fix == fix
    assert outcomes["gpu-02"].message.endswith(f" → {fix}")


# --- the end ---


def folders_of(worker: int) -> list[Path]:
    """The private folders that a worker holds."""
    links = []
    for link in Path(f"/proc/{worker}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            links.append(link.readlink())
    return [link.parent for link in links if link.name.startswith("lock")]


@pytest.fixture
def at_work(sshd: Sshd, tmp_path: Path) -> Any:
    """A controller of its own, whose worker is in the middle of a task that takes minutes."""
    python = interpreter(tmp_path, f"echo $$ > {tmp_path}/worker")
    program = (
        f"import os, time; open({str(tmp_path / 'task')!r}, 'w').write(str(os.getpid())); time.sleep(300)"
    )
    script = tmp_path / "controller.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\nfrom provision import paths\n"
        "from provision.remote import workers\nfrom provision.remote.ansible import partitions as shards\n"
        "from provision.fleet import Fleet, Node\n"
        f"nodes = { {n: dict(v.variables) for n, v in inventory(sshd, python).nodes.items()}!r}\n"
        "nodes = {name: Node(name, (), found) for name, found in nodes.items() if name != 'gpu-02'}\n"
        f"fleet = Fleet(Path('x'), nodes, {{'all': tuple(nodes), {workers.GROUP!r}: ('rack-1',)}})\n"
        "fleet = workers.linked(*workers.apart(fleet), {})\n"
        f"asked = {{'gpuprov_observe_program': {program!r}}}\n"
        "hosts = {name: {**node.variables, **asked} for name, node in fleet.nodes.items()}\n"
        "try: print(shards.run_sharded(paths.PLAYBOOKS / 'observe.yml', hosts)['gpu-01'])\n"
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
            worker = int((tmp_path / "worker").read_text())
            held = folders_of(worker)
            yield process, worker
        finally:
            process.kill()
    assert len(held) == 2
    assert {folder.parent for folder in held} == {Path("/dev/shm")}
    until(lambda: not any(folder.exists() for folder in held))


def plays_of(worker: int) -> list[int]:
    """Ansible's processes below a worker's."""
    return [pid for pid, _ in runner._descendants(worker) if "ansible-playbook" in command_of(pid)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_a_worker_ends_ansible_and_itself_with_its_controller(at_work: Any, number: int) -> None:
    """The fixture sees to the folders: none is left."""
    process, worker = at_work
    plays = plays_of(worker)
    assert plays
    process.send_signal(number)
    process.wait(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else -9)
    until(lambda: not alive(worker))
    until(lambda: not any(alive(pid) for pid in plays))


def test_hosts_of_a_killed_worker_are_failed_with_its_name(at_work: Any) -> None:
    process, worker = at_work
    plays = plays_of(worker)
    os.kill(worker, signal.SIGKILL)
    said, _ = process.communicate(timeout=60)
    assert "status='failed'" in said
    assert "worker rack-1: the connection ended too early → look at that machine (memory, its log)" in said
    until(lambda: not any(alive(pid) for pid in plays))
    from provision.remote.ansible.handover import remove_orphans

    remove_orphans()  # as the next worker there does before anything else
