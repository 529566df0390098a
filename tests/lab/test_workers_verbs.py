"""Every command that contacts nodes, through two workers of a mesh: same output as from a controller.

The tests run in the order written: each starts from the state that the previous one left.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab import gpu_programs
from tests.lab.burnins import LOOK_AND_BURN, Burnins
from tests.lab.gpuprov_up import Operator, said
from tests.lab.lab_nodes import running_lab
from tests.lab.worker_machines import (
    ROLE,
    UNDO,
    Machines,
    begin,
    halves,
    newest,
    operator,
    outcomes,
    wait_for,
    workers_of,
)

if TYPE_CHECKING:
    from tests.lab.lab_nodes import Lab

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

# worker-a has gpu-01 and gpu-03, worker-b has gpu-02 and gpu-04.
NODES = tuple(NodeSpec(f"gpu-{number:02d}", "h100-sxm", network="ib") for number in range(1, 5))
PAIRS_OF_ONE_WORKER = {("gpu-01", "gpu-03"), ("gpu-02", "gpu-04")}
PAIRS_OF_TWO = {("gpu-01", "gpu-02"), ("gpu-01", "gpu-04"), ("gpu-02", "gpu-03"), ("gpu-03", "gpu-04")}
DECLARED = {**ROLE, "gpuprov_expected_nics": ["mlx5_0"]}  # one of eight rails, since each takes time

VAULT_PASSWORD = "l0ng-vault-passphrase"
SECRET = "sud0-s3cret-of-deploy"
# A user with full sudo rights, after entering its password.
DEPLOY = """\
useradd --create-home --shell /bin/bash deploy
chpasswd
mkdir -p /home/deploy/.ssh
cp /home/ops/.ssh/authorized_keys /home/deploy/.ssh/
chown -R deploy:deploy /home/deploy/.ssh
echo 'deploy ALL=(ALL) ALL' > /etc/sudoers.d/deploy
"""

# The patterns come on standard input, because sudo logs command lines in the journal.
LEFT_ON_A_NODE = """\
cat > /dev/shm/patterns
journalctl --no-pager -q | grep -cFf /dev/shm/patterns
grep -rlaFf /dev/shm/patterns /home /root /tmp /var/log /run /etc
rm /dev/shm/patterns
"""

PROFILE = f"""\
{LOOK_AND_BURN}  - {{name: between, kind: fleet, checks: [pair_bandwidth], minutes: 10, attended: only}}
"""
# Keys that always differ between two equal runs.
PASSING = frozenset(
    {"run", "run_id", "run_folder", "inventory", "written", "started", "finished", "time", "at", "seconds"}
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab("meshverbs", NODES, tmp_path_factory.mktemp("lab") / "lab.yml", speed=20.0) as running:
        gpu_programs.bring(running, "nvidia-fabricmanager", "gpu-burn", "perftest")
        for node in running.nodes:
            node.as_root("systemctl enable --now nvidia-fabricmanager")
        yield running


@pytest.fixture(scope="module")
def workers(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with workers_of(lab, tmp_path_factory.mktemp("workers")) as machines:
        yield machines


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("operators")


@pytest.fixture(scope="module")
def one(lab: Lab, folder: Path) -> Operator:
    """Return the controller alone."""
    return operator(lab, folder, "one", {}, None, DECLARED)


@pytest.fixture(scope="module")
def two(lab: Lab, folder: Path, workers: Machines) -> Operator:
    """Return the same fleet with a worker for each half."""
    return with_workers(lab, folder, workers, DECLARED)


def with_workers(lab: Lab, folder: Path, workers: Machines, declared: Mapping[str, Any]) -> Operator:
    return operator(lab, folder, "two", halves(lab, workers), workers, declared)


def lasting(document: Any) -> Any:
    """Return a document without keys that change each time."""
    if isinstance(document, dict):
        return {key: lasting(value) for key, value in document.items() if key not in PASSING}
    return [lasting(value) for value in document] if isinstance(document, list) else document


def document(done: subprocess.CompletedProcess[str], code: ExitCode) -> Any:
    assert done.returncode == code, said(done)
    return json.loads(done.stdout)


# --- plan


def test_a_plan_by_two_workers_is_the_controllers(one: Operator, two: Operator) -> None:
    alone, shared = (document(stands.call("plan", "--json"), ExitCode.OK) for stands in (one, two))
    assert [alone["nodes"][node.name]["roles"] for node in NODES] == [["host_settings"]] * len(NODES)
    assert lasting(shared) == lasting(alone)


# --- secrets


class Spy:
    """Reader of the arguments and environment of all processes on this machine, in a loop.

    They include those of the controller, the workers and the nodes."""

    def __init__(self, *secrets: str) -> None:
        self.told: set[str] = set()
        self.commands: set[str] = set()
        self._secrets = [secret.encode() for secret in secrets]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Spy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.05):
            for process in Path("/proc").glob("[0-9]*"):
                for name in ("cmdline", "environ"):
                    try:
                        data = (process / name).read_bytes()
                    except OSError:
                        continue
                    if any(secret in data for secret in self._secrets):
                        self.told.add(f"{name}: {data.replace(bytes(1), b' ')[:200]!r}")
                    if name == "cmdline":
                        self.commands.add(data.replace(b"\0", b" ").decode("utf-8", "replace"))


def files_with(secrets: tuple[str, ...], *folders: Path) -> list[str]:
    """Return the files below these folders that contain one of the secrets."""
    patterns = [word for secret in secrets for word in ("-e", secret)]
    places = [str(place) for place in folders if place.exists()]
    found = subprocess.run(
        ["grep", "-rlaF", "-D", "skip", *patterns, "--", *places], capture_output=True, text=True, check=False
    )
    return found.stdout.splitlines()


@pytest.fixture
def vaulted(lab: Lab, workers: Machines, tmp_path: Path) -> tuple[Operator, Path]:
    """Return an inventory with a vaulted sudo password for its nodes, and the vault password's file."""
    for node in lab.nodes:
        node.as_root(DEPLOY, said=f"deploy:{SECRET}\n")
    stands = with_workers(lab, tmp_path, workers, {**DECLARED, "ansible_user": "deploy"})
    password = tmp_path / "vault-password"
    password.write_text(VAULT_PASSWORD + "\n")
    program = [str(Path(sys.executable).with_name("ansible-vault")), "encrypt_string"]
    encrypted = subprocess.run(
        [*program, "--vault-password-file", str(password), "--stdin-name", "ansible_become_password"],
        input=SECRET, capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    group_vars = tmp_path / "group_vars"
    group_vars.mkdir()
    (group_vars / "gpu_nodes.yml").write_text(encrypted)
    return stands, password


def test_a_vaulted_password_reaches_nodes_through_workers_and_is_nowhere_to_be_read(
    lab: Lab, vaulted: tuple[Operator, Path], workers: Machines, tmp_path: Path
) -> None:
    stands, password = vaulted
    with Spy("sparrow", "in-the-mine") as canary:
        subprocess.run(["sleep", "2"], env={"NAME": "sparrow"}, check=True)
        subprocess.run(["sh", "-c", "sleep 2", "in-the-mine"], check=True)
    assert {line.partition(":")[0] for line in canary.told} == {"environ", "cmdline"}
    given = ("--vault-password-file", str(password))
    with Spy(SECRET, VAULT_PASSWORD) as spy:
        refused = stands.call("plan")  # without the password
        done = stands.call("up", "--yes", *given)
        again = stands.call("drift", *given)
        measured = stands.call("validate", "--checks", "gpu_inventory", *given)
    assert "--vault-password-file" in said(refused)
    assert done.returncode == ExitCode.OK, said(done)
    assert {one["status"] for one in outcomes(newest(stands.runs, "up")).values()} == {"done"}
    assert again.returncode == ExitCode.OK, said(again)
    assert measured.returncode == ExitCode.OK, said(measured)
    # It saw the processes that had the secrets, each started in a different way.
    for words in (
        "-P -m provision.remote.worker_program.worker_entry",
        "ansible-playbook",
        "-m provision.cli up",
        "sudo ",
    ):
        assert any(words in command for command in spy.commands), words
    assert spy.told == set()
    password.unlink()
    secrets = (SECRET, VAULT_PASSWORD)
    places = [tmp_path, workers.mesh.folder, Path.home() / ".ansible", Path("/dev/shm")]
    places += [*Path("/tmp").glob("ansible*"), *Path("/tmp").glob("gpuprov-*")]
    assert files_with(secrets, *places) == []
    for node in lab.nodes:
        left = node.as_root(LEFT_ON_A_NODE, said="\n".join(secrets)).stdout
        assert left.split() == ["0"], node.name


# --- drift


def test_drift_by_two_workers_is_the_controllers_with_a_drifted_and_a_dead_node(
    lab: Lab, one: Operator, two: Operator
) -> None:
    lab.node("gpu-03").as_root(UNDO)
    lab.node("gpu-04").power_off()
    try:
        alone, shared = (
            document(stands.call("drift", "--json", "--timeout", "20"), ExitCode.DRIFT)
            for stands in (one, two)
        )
    finally:
        lab.node("gpu-04").power_on()
    assert {row["node"] for row in alone["drifts"]} == {"gpu-03"}
    assert "gpu-04" in json.dumps(alone)
    assert lasting(shared) == lasting(alone)


# --- lock


def test_a_lock_by_two_workers_is_the_controllers(one: Operator, two: Operator, folder: Path) -> None:
    done = two.call("up", "--yes")  # gpu-03 is not as declared
    assert done.returncode == ExitCode.OK, said(done)
    found = []
    for stands, name in ((one, "one.lock.yml"), (two, "two.lock.yml")):
        written = stands.call(
            "lock", "--file", str(folder / name), package_lock_patterns=["perftest", "nccl*"]
        )
        assert written.returncode == ExitCode.OK, said(written)
        found.append(yaml.safe_load((folder / name).read_text())["groups"])
    alone, shared = found
    assert "perftest" in alone[0]["packages"]
    assert shared == alone
    # Both enforce it on nodes; the nodes not yet locked are the same.
    held: dict[str, Any] = {"gpuprov_roles": ["host_settings", "package_lock"]}
    asked = ("--json", "--lock", str(folder / "two.lock.yml"))
    first, second = (document(stands.call("drift", *asked, **held), ExitCode.DRIFT) for stands in (one, two))
    assert {row["role"] for row in first["drifts"]} == {"package_lock"}
    assert lasting(second) == lasting(first)


# --- checks between nodes


def test_pairs_of_one_worker_and_of_two_are_measured(
    lab: Lab, one: Operator, two: Operator, workers: Machines, folder: Path
) -> None:
    # worker-a has three nodes: with two forks, one of two simultaneous pairs must wait for its turn.
    chosen = {node: ["worker-b" if node == "gpu-04" else "worker-a"] for node in halves(lab, workers)}
    uneven = operator(lab, folder, "uneven", chosen, workers, DECLARED)
    asked = ("--json", "--checks", "pair_bandwidth", "--pairs", "all")
    alone = document(one.call("validate", *asked), ExitCode.OK)
    assert {node["verdict"] for node in alone["nodes"]} == {"pass"}
    for stands, forks in ((two, "50"), (uneven, "2")):
        shared = document(stands.call("validate", *asked, "--forks", forks), ExitCode.OK)
        kept = (newest(stands.runs, "validate") / "pairs.jsonl").read_text().splitlines()
        pairs = {tuple(sorted(row["nodes"])) for row in map(json.loads, kept)}
        assert pairs == PAIRS_OF_ONE_WORKER | PAIRS_OF_TWO
        verdicts = {node["node"]: node["verdict"] for node in shared["nodes"]}
        assert verdicts == {node["node"]: node["verdict"] for node in alone["nodes"]}
        assert shared["fabric"] == alone["fabric"] == []


# --- burn-in


def test_a_burn_in_by_two_workers_ends_in_a_whole_record(one: Operator, two: Operator, folder: Path) -> None:
    profile = folder / "short.yml"
    profile.write_text(PROFILE)
    ours = Burnins(two.inventory, folder, profile)
    done = ours.begin("--json")
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    record = json.loads(ours.call("burnin", "collect", ours.first, "--json").stdout)
    # A controller without workers, on a machine without history, collects the same from the nodes.
    there = ("--inventory", str(one.inventory), "--json", "--remove")
    other = json.loads(ours.call("burnin", "collect", ours.first, *there, runs="elsewhere").stdout)
    assert [node["node"] for node in record["nodes"]] == [node.name for node in NODES]
    for node in record["nodes"]:
        assert node["verdict"] == "pass"
        assert node["checks"] == dict.fromkeys(
            ("burnin", "gpu_inventory", "gpu_burn", "pair_bandwidth"), "pass"
        )
        assert node["not_measured"] == []
    measured = {node["node"]: (node["checks"]["gpu_burn"], node["steps"]) for node in record["nodes"]}
    assert measured == {node["node"]: (node["checks"]["gpu_burn"], node["steps"]) for node in other["nodes"]}


# --- a worker is lost


def test_up_resumes_after_the_only_worker_of_some_nodes_died_with_those_alone(
    lab: Lab, two: Operator, workers: Machines
) -> None:
    for node in lab.nodes:
        node.as_root(UNDO)
    process = begin(two, "--no-canary", "--max-failures", "100%")
    wait_for(workers[1], "ansible-playbook")
    workers.stop(workers[1])
    try:
        text, _ = process.communicate(timeout=1500)  # waits for its unit, which may be running
    finally:
        process.kill()
        workers.start(workers[1])
    assert process.returncode == ExitCode.INCOMPLETE, text
    run = newest(two.runs, "up")
    assert f"gpuprov up --resume {run}" in " ".join(text.split())
    again = two.call("up", "--yes", "--resume", str(run))
    assert again.returncode == ExitCode.OK, said(again)
    ended = {node: one["status"] for node, one in outcomes(newest(two.runs, "up")).items()}
    assert {ended[node] for node in ("gpu-02", "gpu-04")} <= {"done", "as declared"}
    assert {ended.get(node, "as declared") for node in ("gpu-01", "gpu-03")} == {"as declared"}


def test_a_worker_that_is_gone_for_good_is_replaced_by_a_word_on_the_command_line(
    lab: Lab, two: Operator, workers: Machines
) -> None:
    for node in lab.nodes:
        node.as_root(UNDO)
    workers.stop(workers[1])
    time.sleep(30)  # Receptor considers a peer lost after 21 s
    try:
        done = two.call("up", "--yes", "--no-canary")
        assert done.returncode == ExitCode.INCOMPLETE, said(done)
        ended = {node: one["status"] for node, one in outcomes(newest(two.runs, "up")).items()}
        assert ended == {"gpu-01": "done", "gpu-02": "unreachable", "gpu-03": "done", "gpu-04": "unreachable"}
        (told,) = {one["message"] for one in outcomes(newest(two.runs, "up")).values() if one["message"]}
        assert told.startswith("worker worker-b: the mesh has no way to it")
        assert "run again, up and validate with --resume; if it stays lost, name others in" in told
        nodes = ("--nodes", "gpu-02,gpu-04")
        again = two.call("up", "--yes", "--resume", *nodes, gpuprov_receptor_node="worker-a")
        assert again.returncode == ExitCode.OK, said(again)
    finally:
        workers.start(workers[1])
    ended = {node: one["status"] for node, one in outcomes(newest(two.runs, "up")).items()}
    assert {ended[node] for node in ("gpu-02", "gpu-04")} == {"done"}
