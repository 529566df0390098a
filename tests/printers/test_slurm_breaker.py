"""The breaker of all drains in a real Slurm: 30 % of the nodes, each with its program, fail at once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from provision import paths
from provision.checks.on_node import packed_program
from provision.fleet import Fleet, Node
from provision.remote.schedulers.commands import Done
from provision.remote.schedulers.slurm import Slurm
from provision.up.watch.incidents import Incident, Store
from provision.up.watch.policy import SPARES, Policy
from provision.up.watch.service import Watch
from provision.up.watch.steps import Checked, Message
from provision.up.watch.surroundings import Pace
from provision.validate.status.status import NodeStatus
from tests.printers import root
from tests.printers.root import Root
from tests.support.watched import healths

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
PACKAGES = ("slurmctld", "slurm-client", "munge", "dash", "coreutils", "grep", "findutils", "python3")
NODES, FAILING, LIMIT = 200, 60, 20
NAMES = [f"gpu-{number:03d}" for number in range(1, NODES + 1)]
CONFIGURATION = f"""\
ClusterName=t
SlurmctldHost=controller(10.99.0.1)
SlurmUser=root
AuthType=auth/munge
StateSaveLocation=/var/spool/controller
SlurmctldPidFile=/run/controller.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SlurmdTimeout=0
PartitionName=gpu Nodes=gpu-[001-{NODES}] Default=YES State=UP
NodeName=gpu-[001-{NODES}] NodeAddr=127.0.0.1 State=UNKNOWN
"""
# slurmctld needs an interface with an address to resolve names. Nothing leaves this network namespace.
NETWORK = """\
hostname controller; ip link set lo up; ip link add br0 type bridge
ip addr add 10.99.0.1/24 dev br0; ip link set br0 up
"""
RUN = """\
mkdir -p /var/spool/controller /run/munge /etc/munge /var/log/munge /run/bin
ln -s /usr/sbin/slurmctld-wlm /run/bin/slurmctld
head -c 128 /dev/urandom > /etc/munge/munge.key; chmod 400 /etc/munge/munge.key
munged --force --socket=/run/munge/munge.socket.2 --pid-file=/run/munge.pid --log-file=/tmp/munge.log \\
    --seed-file=/tmp/seed > /dev/null 2>&1
echo $$ > /run/ready
while :; do /run/bin/slurmctld -D < /dev/null >> /tmp/controller.log 2>&1; sleep 0.2; done
"""
LOST: dict[str, Any] = {
    **{"verdict": "fail", "device": "gpu3", "state": "active", "action": "power-cycle"},
    "message": "GPU has fallen off the bus",
}


@dataclass(frozen=True)
class Cluster:
    """A cluster with only slurmctld: the commands under test need no slurmd."""

    own: Path
    pid: int

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        inside = ("nsenter", f"--target={self.pid}", "--mount", "--net", "--uts", "--pid", "--root", "--wd")
        given = (f"{name}={value}" for name, value in environment.items())
        return subprocess.run(
            [*inside, "env", *given, *words],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def ask(self, commands: Sequence[Sequence[str]]) -> list[Done]:
        """Run commands as provision.remote.schedulers.commands.Commands does."""
        done = [self.run(*words) for words in commands]
        return [Done(one.returncode, one.stdout, one.stderr) for one in done]

    def health_check(self, node: str) -> str:
        """Run the node's health program as Slurm's HealthCheckProgram does, and return its messages."""
        words = ("python3", "-IS", "/tmp/gpuprov-node-health", "slurm", "check")
        return self.run(*words, "--share", "10", "--least", "3", SLURMD_NODENAME=node).stderr

    def drained(self) -> list[str]:
        text = self.run("scontrol", "-o", "show", "nodes").stdout
        assert text.count("NodeName=") == NODES, text
        return re.findall(r"NodeName=(\S+) .*State=\S*DRAIN", text)

    def reservations(self) -> list[str]:
        return re.findall(r"ReservationName=(\S+)", self.run("scontrol", "-o", "show", "reservation").stdout)

    def health(self) -> None:
        """Write the result that all failing nodes read: recent, and from this boot."""
        found = {
            "verdict": "fail",
            "error": "",
            "gpus": [{"index": 3, "serial": "1650"}],
            "findings": [LOST],
            "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "uptime": time.clock_gettime(time.CLOCK_BOOTTIME),
            "interval": 3600,
        }
        (self.own / "run/gpuprov").mkdir(exist_ok=True)
        (self.own / "run/gpuprov/health.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Root:
    if os.geteuid() != 0:
        pytest.skip("a network of its own wants root")
    made = root.make(tmp_path_factory.mktemp("slurm"), "slurm-breaker", "trixie", *PACKAGES)
    (made.own / "etc/slurm").mkdir(exist_ok=True)
    (made.own / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (made.own / "etc/group").write_text("root:x:0:\n")
    (made.own / "etc/hosts").write_text("127.0.0.1 localhost\n10.99.0.1 controller\n")
    (made.own / "etc/slurm/cgroup.conf").write_text("CgroupPlugin=disabled\n")
    (made.own / "etc/slurm/slurm.conf").write_text(CONFIGURATION)
    (made.own / "tmp/gpuprov-node-health").write_bytes(packed_program.build())
    return made


@pytest.fixture
def cluster(programs: Root) -> Iterator[Cluster]:
    words = ["unshare", "--mount", "--pid", "--net", "--uts", "--fork", "--kill-child", "sh", "-c"]
    words += [NETWORK + root.ENTER, "sh", str(programs.packages), str(programs.own), "", "sh", "-c", RUN]
    with subprocess.Popen(words, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}) as process:
        try:
            until((programs.own / "run/ready").exists, 20, "started")
            child = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0]
            made = Cluster(programs.own, int(child))
            until(lambda: made.run("scontrol", "ping").returncode == 0, 30, "slurmctld answers")
            made.health()
            yield made
        finally:
            process.kill()


def until(true: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.2)


def close_command() -> str:
    """Return the command in docs/watch.md for a host without gpuprov."""
    page = (paths.DOCS / "watch.md").read_text()
    (line,) = re.findall(r"^\$ (scontrol -o show reservation .*)$", page, re.MULTILINE)
    return str(line)


class Surroundings:
    """The fleet's health, checks that pass everywhere, and the sent messages."""

    def __init__(self, of: Fleet) -> None:
        self._next, self.messages = healths(of, NAMES[:FAILING]), dict[str, Message]()

    def changes(self, seconds: float) -> list[NodeStatus]:
        found, self._next = self._next, []
        time.sleep(0.0 if found else min(seconds, 0.01))
        return found

    def verify(self, spare: str) -> Checked:
        return Checked(True, run=spare)

    def evidence(self, incident: Incident) -> str:
        return f"none of {incident.node}"

    def stop(self) -> None: ...

    def tell(self, message: Message) -> None:
        self.messages[message.id] = message

    def settle(self, over: Callable[[Message], bool]) -> None: ...


def test_a_third_of_the_fleet_fails_and_drains_stop_at_the_share(cluster: Cluster, tmp_path: Path) -> None:
    lines: list[str] = []
    with ThreadPoolExecutor(FAILING) as threads:  # Slurm runs it repeatedly
        for _ in range(4):
            lines += threads.map(cluster.health_check, NAMES[:FAILING])
            assert len(cluster.drained()) <= LIMIT
            if "gpuprov-breaker" in cluster.reservations():
                break
    counted = Counter("is drained" in line for line in lines)
    assert "gpuprov-breaker" in cluster.reservations(), lines[-1]
    drained = cluster.drained()
    assert LIMIT / 2 <= len(drained) <= LIMIT
    assert counted[True] == len(drained)
    last = cluster.health_check(next(name for name in NAMES[:FAILING] if name not in drained))
    assert "left in service: the breaker of all drains is open (gpu has had 20 of its 200 nodes" in last

    # The breaker survives a restart of slurmctld; the watch obeys it and reports it once.
    assert cluster.run("scontrol", "shutdown").returncode == 0
    until(lambda: cluster.run("scontrol", "ping").returncode == 0, 60, "slurmctld is back")
    nodes = {name: Node(name, ("gpu_nodes",), {"gpuprov_scheduler": "slurm"}) for name in NAMES}
    fleet = Fleet(Path("/inventory/nodes.yml"), nodes, {"gpu_nodes": tuple(NAMES), SPARES: ()})
    slurm = Slurm(fleet, {name: name for name in NAMES}, cluster.ask)
    around, store = Surroundings(fleet), Store(tmp_path / "watch")
    with store.alone():
        pace = Pace(least=0.0, ask_all=1.0)
        watch = Watch(fleet, Policy(), store, around, slurm, around, around, lines.append, pace=pace)
        for _ in range(40):
            watch.round(0.05)
        watch.stop()
    kinds = Counter(one.kind for one in around.messages.values())
    assert kinds["breaker-open"] == 1, kinds
    assert cluster.drained() == drained

    # A user closes it on a host without gpuprov, and the same number may be drained again.
    cluster.run("scontrol", "create", "reservation", "ReservationName=ours", "Nodes=gpu-200", "StartTime=now",
                "Duration=5", "Users=root")  # fmt: skip
    assert cluster.run("sh", "-c", close_command()).returncode == 0
    assert cluster.reservations() == ["ours"]
    cluster.health()
    assert "is drained" in cluster.health_check(next(name for name in NAMES if name not in drained))
    slurm.open_breaker("ann looks into it")
    assert slurm.breaker() == "ann looks into it"
    assert "(ann looks into it)" in slurm.permit(NAMES[-1], 10, 3)
    slurm.close_breaker()
    assert cluster.reservations() == ["ours"]
    assert slurm.permit(NAMES[-1], 10, 3) == ""
