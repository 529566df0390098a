"""Twelve nodes behind three workers, one of them two hops away, in a mesh made by the role.

Each command has the results and the report of a single controller. gpuprov runs on separate machines, from
its wheel. The tests run in the order written: each starts from the state that the previous one left.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab import installed
from tests.lab.burnins import LOOK_AND_BURN
from tests.lab.gpuprov_up import said
from tests.lab.images import Images
from tests.lab.installed import GPUPROV, PYTHON
from tests.lab.lab_nodes import Lab, LabNode, running_lab
from tests.lab.worker_machines import UNDO

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

CONTROLLER, WORKERS = "ctl", ("worker-a", "worker-b", "worker-c")
NODES = tuple(f"gpu-{number:02d}" for number in range(1, 13))
# One rack each. Only worker-b can reach worker-c and its nodes.
RACKS = dict(zip(WORKERS, (NODES[:4], NODES[4:8], NODES[8:]), strict=True))
HOME = "/home/ops"
# The controller submits work as a separate user, who may not read the mesh's keys.
GROUP = "mesh"
LOGIN = """\
install -d -m 0700 -o {user} -g {user} {home}/.ssh
cat > {home}/.ssh/login
csplit -s -f {home}/.ssh/part- {home}/.ssh/login '/^# known hosts/'
mv {home}/.ssh/part-00 {home}/.ssh/id_ed25519
mv {home}/.ssh/part-01 {home}/.ssh/known_hosts
rm {home}/.ssh/login
chmod 0600 {home}/.ssh/*
chown {user}:{user} {home}/.ssh/*
"""
# Keys that always differ between two equal runs.
PASSING = frozenset(
    {"run", "run_id", "run_folder", "inventory", "written", "started", "finished", "time", "at", "seconds"}
    | {"age", "age_seconds", "name", "controller"}
)


@dataclass(frozen=True)
class Desk:
    """gpuprov on the lab's controller, with one inventory."""

    node: LabNode
    name: str

    @property
    def inventory(self) -> str:
        return f"{HOME}/{self.name}.yml"

    @property
    def runs(self) -> str:
        return f"{HOME}/runs-{self.name}"

    def words(self, *words: str) -> str:
        settings = f"GPUPROV_RUNS={self.runs} COLUMNS=4000"
        return f"cd {HOME}; {settings} {GPUPROV} {shlex.join(words)}"

    def call(self, verb: str, *words: str, timeout: float = 1500) -> subprocess.CompletedProcess[str]:
        where = () if {"--resume", "collect"} & set(words) else (self.inventory,)
        return self.node.run(self.words(verb, *where, *words), check=False, timeout=timeout)

    def told(self, code: ExitCode, verb: str, *words: str) -> Any:
        """Run the command and return its JSON document."""
        done = self.call(verb, *words, "--json")
        assert done.returncode == code, said(done)
        return json.loads(done.stdout)

    def kept(self, verb: str, file: str) -> str:
        """Return a file of its last run."""
        return self.node.run(f"cat $(ls -d {self.runs}/*-{verb} | tail -n 1)/{file}").stdout

    def rows(self, verb: str, file: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.kept(verb, file).splitlines()]

    def outcomes(self) -> dict[str, str]:
        """Return node → its outcome in the last `up`."""
        return {row["node"]: row["status"] for row in self.rows("up", "outcomes.jsonl")}

    def changes(self) -> Counter[tuple[str, str]]:
        """Return (node, task) → number of changes in the last `up`."""
        rows = self.rows("up", "events.jsonl")
        return Counter((row["node"], row["task"]) for row in rows if row["kind"] == "changed")


@pytest.fixture(scope="module")
def lab(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    machines = tuple(NodeSpec(name, "l40s") for name in (CONTROLLER, *WORKERS))
    nodes = tuple(NodeSpec(name, "h100-sxm") for name in NODES)
    disks = dict.fromkeys(NODES, images.h100())
    inventory = tmp_path_factory.mktemp("lab") / "lab.yml"
    with running_lab("meshall", (*machines, *nodes), inventory, images=disks, speed=20.0) as running:
        yield running


@contextlib.contextmanager
def cut(lab: Lab, here: str, *there: str) -> Iterator[None]:
    """Drop all packets from `here` to these nodes; open connections stall."""
    words = ["ip", "-n", f"{lab.record.place.namespace_prefix}{here}", "route"]
    addresses = [lab.node(name).address for name in there]
    for address in addresses:
        subprocess.run([*words, "add", "blackhole", address], check=True, timeout=30)
    try:
        yield
    finally:
        for address in addresses:
            subprocess.run([*words, "delete", "blackhole", address], check=True, timeout=30)


@contextlib.contextmanager
def apart(lab: Lab) -> Iterator[None]:
    """Put worker-c and its rack behind worker-b, as in the mesh."""
    with contextlib.ExitStack() as stack:
        for name in (CONTROLLER, WORKERS[0]):
            stack.enter_context(cut(lab, name, WORKERS[2], *RACKS["worker-c"]))
        stack.enter_context(cut(lab, WORKERS[1], *RACKS["worker-c"]))
        yield


def fleet(lab: Lab, workers: bool) -> dict[str, Any]:
    """Return the controller's inventory."""
    groups: dict[str, Any] = yaml.safe_load(lab.inventory.read_text())
    group = groups["gpu_nodes"]
    for name in ("ansible_ssh_private_key_file", "ansible_ssh_common_args"):
        del group["vars"][name]
    group["vars"]["node_health_enabled"] = True
    machines = {name: group["hosts"].pop(name) for name in (CONTROLLER, *WORKERS)}
    if workers:
        for worker, rack in RACKS.items():
            for node in rack:
                group["hosts"][node]["gpuprov_receptor_node"] = worker
        shared = {"ansible_user": "ops", "ansible_become": True, "gpuprov_worker_python": PYTHON}
        jump = f"-o ProxyJump=ops@{machines['worker-b']['ansible_host']}"
        machines[CONTROLLER] |= {
            "ansible_connection": "local",
            "receptor_socket_group": GROUP,
            "receptor_peers": ["worker-a", "worker-b"],
        }
        machines["worker-b"] |= {"receptor_peers": ["worker-c"]}
        machines["worker-c"] |= {"ansible_ssh_common_args": jump}
        groups["gpuprov_workers"] = {"hosts": machines, "vars": shared}
    return groups


def given(controller: LabNode, name: str, groups: dict[str, Any]) -> Desk:
    desk = Desk(controller, name)
    controller.run(f"cat > {desk.inventory}", said=yaml.safe_dump(groups))
    return desk


def login(lab: Lab, name: str, user: str, home: str) -> None:
    """Give that user access to the nodes: the lab's key and the known host keys."""
    text = f"{lab.record.place.key.read_text()}# known hosts\n{lab.record.place.known_hosts.read_text()}"
    lab.node(name).as_root(LOGIN.format(user=user, home=home), said=text)


@pytest.fixture(scope="module")
def controller(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabNode]:
    """Install gpuprov on the controller and workers; worker-c and its rack become unreachable from it."""
    machines = [lab.node(name) for name in (CONTROLLER, *WORKERS)]
    archive = installed.packed(machines[0], tmp_path_factory.mktemp("wheel"))
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda machine: installed.install(machine, archive), machines))
    login(lab, CONTROLLER, "ops", HOME)
    machines[0].as_root(f"groupadd {GROUP} && usermod --append --groups {GROUP} ops")
    machines[0].run(f"cat > {HOME}/short.yml", said=LOOK_AND_BURN)
    with apart(lab):
        yield machines[0]


@pytest.fixture(scope="module")
def mesh(lab: Lab, controller: LabNode) -> Desk:
    """Return the fleet as reached through its workers."""
    return given(controller, "mesh", fleet(lab, workers=True))


@dataclass(frozen=True)
class Alone:
    """The fleet as reached by the controller alone, which can then reach every node."""

    lab: Lab
    desk: Desk

    @contextlib.contextmanager
    def sees_all(self) -> Iterator[Desk]:
        words = ["ip", "-n", f"{self.lab.record.place.namespace_prefix}{CONTROLLER}", "route"]
        addresses = [self.lab.node(name).address for name in RACKS["worker-c"]]
        for address in addresses:
            subprocess.run([*words, "delete", "blackhole", address], check=True, timeout=30)
        try:
            yield self.desk
        finally:
            for address in addresses:
                subprocess.run([*words, "add", "blackhole", address], check=True, timeout=30)


@pytest.fixture(scope="module")
def alone(lab: Lab, controller: LabNode) -> Alone:
    return Alone(lab, given(controller, "alone", fleet(lab, workers=False)))


def lasting(document: Any) -> Any:
    """Return a document without values that change each time.
    Measured degrees and seconds are removed, conclusions from them are kept."""
    if isinstance(document, list):
        return [lasting(one) for one in document]
    if not isinstance(document, dict):
        return document
    passing = PASSING | {"value", "message"} if document.get("unit") in ("C", "s") else PASSING
    return {key: lasting(value) for key, value in document.items() if key not in passing}


def differing(one: Any, other: Any, at: str = "") -> Iterator[str]:
    """Yield the paths at which two documents differ."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one:
            yield from differing(one[key], other[key], f"{at}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, pair in enumerate(zip(one, other, strict=True)):
            yield from differing(*pair, f"{at}.{index}")
    elif one != other:
        yield f"{at}: {one!r} and {other!r}"


def both(alone: Alone, mesh: Desk, code: ExitCode, verb: str, *words: str) -> Any:
    """Run the command both ways, and return the document, which must be the same."""

    def told(desk: Desk) -> Any:
        """Replace the inventory's name, which the proposed commands contain."""
        text = json.dumps(lasting(desk.told(code, verb, *words)))
        return json.loads(text.replace(f"/{desk.name}.yml", "/inventory.yml"))

    with alone.sees_all() as desk:
        expected = told(desk)
    found = told(mesh)
    if unlike := list(differing(found, expected)):
        pytest.fail("\n".join(unlike))
    return found


def undo(lab: Lab, nodes: Sequence[str] = NODES) -> None:
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda name: lab.node(name).as_root(UNDO), nodes))


def test_the_role_makes_the_mesh_and_a_second_run_changes_nothing(lab: Lab, mesh: Desk) -> None:
    done = mesh.call("up", "--yes", "--nodes", "gpuprov_workers")
    assert done.returncode == ExitCode.OK, said(done)
    for name in WORKERS:
        login(lab, name, "receptor", "/var/lib/receptor")
    again = mesh.call("up", "--yes", "--full", "--nodes", "gpuprov_workers")
    assert again.returncode == ExitCode.OK, said(again)
    assert set(mesh.outcomes()) == {CONTROLLER, *WORKERS}
    assert not mesh.changes()
    routes = mesh.node.run("sg mesh 'receptorctl --socket /run/receptor/receptor.sock status --json'").stdout
    assert json.loads(routes)["RoutingTable"] == {
        "worker-a": "worker-a",
        "worker-b": "worker-b",
        "worker-c": "worker-b",
    }


def test_up_and_plan_are_the_controllers(lab: Lab, alone: Alone, mesh: Desk) -> None:
    with alone.sees_all() as desk:
        first = desk.call("up", "--yes")  # the image has no health program
        assert first.returncode == ExitCode.OK, said(first)
        undo(lab)
        before = lasting(desk.told(ExitCode.OK, "plan"))
        done = desk.call("up", "--yes")
        assert done.returncode == ExitCode.OK, said(done)
    undo(lab)
    nodes = ("--nodes", "gpu_nodes")
    assert lasting(mesh.told(ExitCode.OK, "plan", *nodes))["nodes"] == before["nodes"]
    marks = {name: lab.node(name).run("date +%s.%6N").stdout.strip() for name in NODES}
    shared = mesh.call("up", "--yes", *nodes)
    assert shared.returncode == ExitCode.OK, said(shared)
    assert mesh.outcomes() == desk.outcomes() == dict.fromkeys(NODES, "done")
    assert mesh.changes() == desk.changes()
    assert set(mesh.changes().values()) == {1}
    for worker, rack in RACKS.items():
        for name in rack:  # only its worker and this connection logged in
            log = lab.node(name).as_root(f"journalctl -q --no-pager -u ssh -S @{marks[name]}").stdout
            logins = {
                line.partition(" from ")[2].split()[0] for line in log.splitlines() if "Accepted" in line
            }
            assert logins == {lab.node(worker).address, lab.record.bridge_address}


def test_validate_drift_and_lock_are_the_controllers(lab: Lab, alone: Alone, mesh: Desk) -> None:
    report = both(alone, mesh, ExitCode.OK, "validate", "--stage", "quick", "--nodes", "gpu_nodes")
    assert [node["node"] for node in report["nodes"]] == list(NODES)
    assert {node["verdict"] for node in report["nodes"]} == {"pass"}
    kept = (lasting(json.loads(desk.kept("validate", "report.json"))) for desk in (mesh, alone.desk))
    assert not list(differing(*kept))
    locks = []
    with alone.sees_all() as desk:
        for one in (desk, mesh):
            done = one.call("lock", "--nodes", "gpu_nodes", "--file", f"{HOME}/{one.name}.lock.yml")
            assert done.returncode == ExitCode.OK, said(done)
            text = one.node.run(f"cat {HOME}/{one.name}.lock.yml").stdout
            locks.append(yaml.safe_load(text)["groups"])
    assert locks[0] == locks[1]
    assert locks[0][0]["packages"]
    undo(lab, ["gpu-03", "gpu-11"])
    found = both(alone, mesh, ExitCode.DRIFT, "drift", "--nodes", "gpu_nodes")
    assert {row["node"] for row in found["drifts"]} == {"gpu-03", "gpu-11"}


def test_a_burn_in_is_the_controllers(alone: Alone, mesh: Desk) -> None:
    records = []
    with alone.sees_all() as desk:
        for one in (desk, mesh):
            words = ("--profile", f"{HOME}/short.yml", "--nodes", "gpu_nodes")
            done = one.call("burnin", "start", *words)
            assert done.returncode == ExitCode.OK, said(done)
            name = one.node.run(f"ls {one.runs} | grep 'Z-burnin$' | tail -n 1").stdout.strip()
            done = one.call("burnin", "collect", name, "--remove", "--json")
            records.append(json.loads(done.stdout))
    alone_record, shared = (
        {node["node"]: (node["verdict"], node["checks"], node["not_measured"]) for node in record["nodes"]}
        for record in records
    )
    assert set(shared) == set(NODES)
    assert {verdict for verdict, _, _ in shared.values()} == {"pass"}
    assert shared == alone_record


def test_the_status_is_the_controllers(lab: Lab, alone: Alone, mesh: Desk) -> None:
    """Run after the burn-in, which would find this test's fault in the kernel log.
    Both commands read the same run of a node's health program: the timer, which would add another, is off."""
    lab.node("gpu-12").fault("gpu_off_bus", gpu=3)
    try:
        for name in NODES:
            lab.node(name).as_root(
                "systemctl stop gpuprov-node-health.timer && systemctl start gpuprov-node-health.service"
            )
        state = both(alone, mesh, ExitCode.UNHEALTHY, "status", "--nodes", "gpu_nodes")
    finally:
        lab.node("gpu-12").heal()
        for name in NODES:
            lab.node(name).as_root("systemctl start gpuprov-node-health.timer")
    assert "gpu-12" in json.dumps(state)


def at_work(lab: Lab, worker: str) -> bool:
    return lab.node(worker).run("pgrep -f ansible-playbook", check=False).returncode == 0


def test_a_mesh_cut_in_half_for_five_minutes_loses_nothing(lab: Lab, controller: LabNode) -> None:
    """Cut the mesh: worker-a takes over the rack that it can reach.
    The unit of worker-c, the only worker that reaches its nodes, finishes alone and is collected."""
    groups = fleet(lab, workers=True)
    for node in RACKS["worker-b"]:
        groups["gpu_nodes"]["hosts"][node]["gpuprov_receptor_node"] = ["worker-b", "worker-a"]
    for node in RACKS["worker-a"]:
        groups["gpu_nodes"]["hosts"][node]["gpuprov_receptor_node"] = ["worker-a"]
    desk = given(controller, "halves", groups)
    undo(lab)
    ended: list[subprocess.CompletedProcess[str]] = []
    words = ("up", "--yes", "--no-canary", "--nodes", "gpu_nodes")
    thread = threading.Thread(target=lambda: ended.append(desk.call(*words, timeout=2400)))
    thread.start()
    deadline = time.monotonic() + 300
    while not (at_work(lab, "worker-b") and at_work(lab, "worker-c")):
        assert time.monotonic() < deadline, "no unit began"
        time.sleep(0.3)
    with cut(lab, CONTROLLER, "worker-b"), cut(lab, "worker-b", CONTROLLER, "worker-a"):
        time.sleep(300)
    thread.join(2400)
    (done,) = ended
    assert done.returncode == ExitCode.OK, said(done)
    assert set(desk.outcomes()) == set(NODES)
    assert set(desk.outcomes().values()) <= {"done", "as declared"}
    assert desk.changes()
    assert set(desk.changes().values()) == {1}, "a task that changes something ran twice"
    for worker in WORKERS:
        left = lab.node(worker).as_root("ls -A /run/receptor/data/*/").stdout
        assert not left.strip(), "a unit is left"


def test_work_outlives_a_restart_of_the_controllers_receptor(lab: Lab, mesh: Desk) -> None:
    undo(lab)
    ended: list[subprocess.CompletedProcess[str]] = []
    words = ("up", "--yes", "--no-canary", "--nodes", "gpu_nodes")
    thread = threading.Thread(target=lambda: ended.append(mesh.call(*words)))
    thread.start()
    deadline = time.monotonic() + 300
    while not at_work(lab, "worker-c"):
        assert time.monotonic() < deadline, "no unit began"
        time.sleep(0.3)
    mesh.node.as_root("systemctl restart receptor")
    thread.join(1500)
    (done,) = ended
    assert done.returncode == ExitCode.OK, said(done)
    assert mesh.outcomes() == dict.fromkeys(NODES, "done")
    assert set(mesh.changes().values()) == {1}
