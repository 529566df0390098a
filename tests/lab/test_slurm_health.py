"""The role slurm_health under a real Slurm: each of its three programs drains a failing node.
The reason names the cause, a job is refused, and another user's drain stays untouched."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab import slurm_cluster
from tests.lab.gpuprov_up import Operator, said
from tests.lab.images import Images
from tests.lab.lab_nodes import Lab, LabNode, running_lab

LOG = logging.getLogger(__name__)
INTERVAL = 5  # seconds; a site uses more
ENABLED = {"node_health_enabled": True, "slurm_health_enabled": True, "slurm_health_interval": INTERVAL}
RUN = "systemctl start gpuprov-node-health.service"
FOLDER = "/usr/libexec/gpuprov"
# Everything that the role could leave, except Python's own caches.
PLACES = "find /usr/libexec/gpuprov /etc/slurm /usr/local/sbin 2>/dev/null | sort"
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Cluster:
    """Two nodes that run jobs; the first is also the controller."""

    lab: Lab
    before: str  # PLACES of the first node before the role

    @property
    def controller(self) -> LabNode:
        return self.lab.nodes[0]

    def scontrol(self, *words: str) -> str:
        return self.controller.as_root(" ".join(("scontrol", *words))).stdout

    def state(self, name: str) -> tuple[str, str]:
        """Return a node's (state, reason)."""
        text = self.scontrol("show", "node", name)
        reason = re.search(r"^ +Reason=(.*?)(?: \[\S+\])?$", text, re.MULTILINE)
        return re.findall(r"State=(\S+)", text)[0], reason[1] if reason else ""

    def drained(self, name: str) -> bool:
        return "DRAIN" in self.state(name)[0]

    def configure(self, *wanted: str) -> None:
        """End slurm.conf with those lines of the role's snippet that begin with these words."""
        pattern = "|".join(wanted) or "nothing"
        for node in self.lab.nodes:
            node.as_root(
                "sed -i '/^# gpuprov$/,$d' /etc/slurm/slurm.conf; echo '# gpuprov' >> /etc/slurm/slurm.conf;"
                f" grep -E '^({pattern})' /etc/slurm/gpuprov.conf >> /etc/slurm/slurm.conf || true"
            )
        self.reconfigure()

    def include(self) -> None:
        """Include the role's file, as its README describes."""
        for node in self.lab.nodes:
            node.as_root(
                "sed -i '/^# gpuprov$/,$d' /etc/slurm/slurm.conf;"
                " printf '# gpuprov\\nInclude gpuprov.conf\\n' >> /etc/slurm/slurm.conf"
            )
        self.reconfigure()

    def reconfigure(self) -> None:
        self.scontrol("reconfigure")
        self.wait_idle("scontrol reconfigure")

    def wait_idle(self, after: str) -> None:
        began = time.monotonic()
        while not self.all_idle():
            if time.monotonic() - began > 60:
                states = {node.name: self.state(node.name) for node in self.lab.nodes}
                pytest.fail(f"not idle 60 s after {after}: {states}")
            time.sleep(0.3)

    def all_idle(self) -> bool:
        states = self.controller.run("sinfo --noheader --Node --format=%T", check=False).stdout.split()
        return states == ["idle"] * len(self.lab.nodes)

    def submit(self, node: str, command: str) -> str:
        """Submit a batch job and return its number."""
        words = f"sbatch --parsable --output=/tmp/job-%j --nodelist={node} --wrap='{command}'"
        return self.controller.as_root(f"cd /tmp && {words}").stdout.strip()

    def job(self, number: str) -> str:
        return self.controller.run(f"squeue --noheader --job={number} --format='%T %r'", check=False).stdout


def until(true: Callable[[], bool], seconds: float, what: str) -> float:
    """Wait until the condition holds, and return the seconds."""
    began = time.monotonic()
    while not true():
        if time.monotonic() - began > seconds:
            pytest.fail(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.3)
    return time.monotonic() - began


@pytest.fixture(scope="module")
def lab(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    both = dict.fromkeys(("gpu-01", "gpu-02"), images.with_slurm())
    nodes = (NodeSpec("gpu-01", "h100-sxm"), NodeSpec("gpu-02", "h100-sxm"))
    inventory = tmp_path_factory.mktemp("lab") / "lab.yml"
    with running_lab("slurmhealth", nodes, inventory, images=both) as running:
        yield running


@pytest.fixture(scope="module")
def made(lab: Lab, operator: Operator) -> Cluster:
    """Return a cluster that ran before the role was applied."""
    slurm_cluster.start(lab.nodes, patience=60)
    before = lab.nodes[0].as_root(PLACES).stdout
    done = operator.call("up", "--yes", **ENABLED)
    assert done.returncode == ExitCode.OK, said(done)
    return Cluster(lab, before)


@pytest.fixture
def cluster(made: Cluster) -> Iterator[Cluster]:
    """Yield the cluster, intact and in service before and after."""
    yield made
    made.controller.as_root("scancel --user=root")
    # Each drain of these tests counts for an hour, and two nodes may have three.
    made.controller.as_root(
        "scontrol -o show reservation | grep -Eo 'gpuprov-(breaker|drain[.][^ ]*)' | sort -r"
        " | xargs -rI{} scontrol delete ReservationName={}"
    )
    for node in made.lab.nodes:
        node.heal()
        node.as_root(
            "systemctl stop gpuprov-node-health.timer; rm -f /var/lib/gpuprov/node-health/state.json;"
            f" {RUN}; systemctl start gpuprov-node-health.timer"
        )
        if made.drained(node.name):
            made.scontrol("update", f"NodeName={node.name}", "State=RESUME")
    made.wait_idle("a test")


def broken(node: LabNode, fault: str = "gpu_silent", **more: object) -> None:
    """Break a GPU of the node, and let the node's program detect it.
    The usual fault logs no Xid, which would count until the next boot."""
    node.fault(fault, **(more or {"gpu": 2}))
    node.as_root(RUN)
    found = node.run("sudo gpuprov-node-health nhc --last", check=False)
    assert found.returncode == 1, found.stdout
    assert re.match(r"gpuprov: gpu\d: ", found.stdout), found.stdout


@pytest.mark.usefixtures("cluster")
def test_a_second_up_changes_nothing(operator: Operator) -> None:
    done = operator.call("up", "--yes", "--full", **ENABLED)
    assert done.returncode == ExitCode.OK, said(done)
    assert not [event for event in operator.records("events") if event["kind"] == "changed"]
    drift = operator.call("drift", **ENABLED)
    assert drift.returncode == ExitCode.OK, said(drift)


def test_a_job_runs_on_a_healthy_node_and_the_programs_cost_little(cluster: Cluster) -> None:
    cluster.configure("Prolog=", "Epilog=")
    assert cluster.controller.run("srun --nodelist=gpu-02 hostname").stdout == "gpu-02\n"
    assert not cluster.drained("gpu-02")
    for program in ("slurm-health-check", "slurm-prolog", "slurm-epilog"):
        timed = f"bash -c 'TIMEFORMAT=\"%U %S %R\"; for i in 1 2 3; do time {FOLDER}/{program}; done' 2>&1"
        runs = [
            list(map(float, row.split())) for row in cluster.controller.as_root(timed).stdout.splitlines()
        ]
        LOG.info("%s: user, system, wall seconds: %s", program, runs)
        assert min(user + system for user, system, _ in runs) <= 0.6, runs
        assert min(wall for _, _, wall in runs) <= 1, runs


def test_the_epilog_drains_before_the_next_job(cluster: Cluster) -> None:
    cluster.configure("Prolog=", "Epilog=")
    job = cluster.submit("gpu-01", "sleep 600")
    until(lambda: cluster.job(job).startswith("RUNNING"), 30, "the job runs")
    broken(cluster.lab.node("gpu-01"))
    assert not cluster.drained("gpu-01"), "only its end tells"
    cluster.controller.as_root(f"scancel {job}")
    until(lambda: cluster.drained("gpu-01"), 30, "the epilog drains")
    assert re.match("gpuprov: gpu2: ", cluster.state("gpu-01")[1]), cluster.state("gpu-01")
    following = cluster.submit("gpu-01", "echo ran")
    time.sleep(3)
    assert cluster.job(following).startswith("PENDING"), cluster.job(following)
    assert not cluster.drained("gpu-02")


def test_where_nothing_is_known_a_job_runs_and_a_line_tells_of_it(cluster: Cluster) -> None:
    cluster.include()
    node = cluster.lab.node("gpu-02")
    node.as_root("systemctl stop gpuprov-node-health.timer; rm /run/gpuprov/health.json")
    assert cluster.controller.run("srun --nodelist=gpu-02 hostname").stdout == "gpu-02\n"
    line = node.as_root("journalctl --no-pager -t gpuprov-slurm-prolog -o cat").stdout
    assert "nothing is drained: /run/gpuprov/health.json: there is no result yet" in line
    time.sleep(2 * INTERVAL)
    assert not cluster.drained("gpu-02")


def test_the_health_check_drains_within_its_interval(cluster: Cluster) -> None:
    cluster.include()
    broken(cluster.lab.node("gpu-02"))
    seconds = until(lambda: cluster.drained("gpu-02"), INTERVAL + 8, "drained by the health check")
    LOG.info("drained %.1f s after the verdict, at an interval of %d s", seconds, INTERVAL)
    assert re.match("gpuprov: gpu2: ", cluster.state("gpu-02")[1]), cluster.state("gpu-02")
    assert not cluster.drained("gpu-01")
    cluster.lab.node("gpu-02").heal()
    cluster.lab.node("gpu-02").as_root(RUN)
    time.sleep(2 * INTERVAL)
    assert cluster.drained("gpu-02"), "nobody has resumed it"


def test_nothing_is_drained_and_jobs_run_while_the_breaker_is_open(cluster: Cluster) -> None:
    cluster.include()
    cluster.scontrol(
        "create reservation ReservationName=gpuprov-breaker StartTime=now Duration=UNLIMITED Users=root"
        " Flags=ANY_NODES BurstBuffer=1"
    )
    node = cluster.lab.node("gpu-02")
    broken(node)
    assert cluster.controller.run("srun --nodelist=gpu-02 hostname").stdout == "gpu-02\n"
    time.sleep(2 * INTERVAL)
    assert not cluster.drained("gpu-02")
    for program in ("check", "prolog", "epilog"):
        lines = node.as_root(f"journalctl --no-pager -t gpuprov-slurm-{program} -o cat").stdout
        assert "gpu-02 is left in service: the breaker of all drains is open" in lines, program
    cluster.scontrol("delete ReservationName=gpuprov-breaker")
    until(lambda: cluster.drained("gpu-02"), INTERVAL + 8, "drained once it is closed")


def test_a_node_drained_by_a_person_keeps_their_reason(cluster: Cluster) -> None:
    cluster.include()
    cluster.scontrol("update", "NodeName=gpu-02", "State=DRAIN", "Reason='new memory, ann'")
    broken(cluster.lab.node("gpu-02"))
    time.sleep(2 * INTERVAL)
    for program in ("slurm-health-check", "slurm-epilog"):
        cluster.lab.node("gpu-02").as_root(f"SLURMD_NODENAME=gpu-02 {FOLDER}/{program}")
    assert cluster.state("gpu-02")[1] == "new memory, ann"


def test_drift_holds_slurm_to_what_is_declared(operator: Operator, cluster: Cluster) -> None:
    told = {**ENABLED, "slurm_health_include": True}
    cluster.include()
    assert operator.drifted(**told) == {}
    line = cluster.controller.run("grep ^NodeName= /etc/slurm/gpuprov-node.txt").stdout
    feature = re.findall(r"Feature=(\S+)", line)[0]
    for node in cluster.lab.nodes:
        node.as_root(
            f"sed -i -e 's/Gres=gpu:8/Gres=gpu:4 Feature={feature}/' /etc/slurm/slurm.conf;"
            " sed -i 's/0-7/0-3/' /etc/slurm/gres.conf"
        )
    cluster.configure("HealthCheck", "Prolog=")
    found = operator.drifted(**told)
    assert {fact: row["found"] for fact, row in found.items()} == {"slurm.epilog": [], "slurm.gpus": 4}
    assert cluster.controller.run(f"srun --constraint={feature} hostname").stdout.startswith("gpu-0")
    for node in cluster.lab.nodes:
        node.as_root("sed -i 's/Gres=gpu:4/Gres=gpu:8/' /etc/slurm/slurm.conf")
        node.as_root("sed -i 's/0-3/0-7/' /etc/slurm/gres.conf")
    cluster.reconfigure()


def test_the_prolog_refuses_a_job_where_a_gpu_is_lost(made: Cluster) -> None:
    """The last test with jobs: the kernel's messages about the GPU stay until a reboot."""
    made.configure("Prolog=", "Epilog=")
    broken(made.lab.node("gpu-01"), "gpu_off_bus", gpu=3)
    assert not made.drained("gpu-01"), "only a job tells"
    job = made.submit("gpu-01", "echo ran")
    until(lambda: made.drained("gpu-01"), 30, "drained by the prolog")
    assert re.match(r"gpuprov: gpu3: .*serial", made.state("gpu-01")[1]), made.state("gpu-01")
    until(lambda: made.job(job).startswith("PENDING"), 30, "requeued")
    assert "held" in made.job(job), made.job(job)
    assert "ran" not in made.controller.as_root(f"cat /tmp/job-{job} 2>/dev/null || true").stdout
    assert made.controller.run("srun --nodelist=gpu-02 hostname").stdout == "gpu-02\n"
    made.controller.as_root(f"scancel {job}")


def test_it_goes_without_a_trace_once_slurm_does_not_name_it(operator: Operator, made: Cluster) -> None:
    refused = operator.call("up", "--yes", "--remove", "slurm_health", **ENABLED)
    assert refused.returncode == ExitCode.UNHEALTHY, said(refused)
    assert f"Slurm's running configuration names {FOLDER}/slurm-prolog, {FOLDER}/slurm-epilog" in said(
        refused
    )
    assert made.controller.as_root(PLACES).stdout != made.before
    for node in made.lab.nodes:
        node.as_root("sed -i '/^# gpuprov$/,$d' /etc/slurm/slurm.conf")
    made.scontrol("reconfigure")
    until(lambda: "gpuprov" not in made.scontrol("show config"), 30, "the configuration is read")
    both = ("--remove", "slurm_health", "--remove", "node_health")
    done = operator.call("up", "--yes", *both, **ENABLED)
    assert done.returncode == ExitCode.OK, said(done)
    assert made.controller.as_root(PLACES).stdout == made.before
