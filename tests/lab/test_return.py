"""A failed node on its way back into service under a real Slurm.

It is drained by the watch, measured with its fault, repaired, and a spare again. Slurm's controller runs on
the node that replaces it. The tests run in the order written: each builds on the previous one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.desired import inventory
from provision.errors import ExitCode
from provision.remote.schedulers import PREFIX, Holder, Scheduler, chosen
from provision.up.watch.incidents import SPARE, Step, Store, place_of
from tests.lab import slurm_cluster
from tests.lab.gpuprov_up import Operator, said
from tests.lab.images import Images
from tests.lab.lab_nodes import Lab, running_lab
from tests.lab.watches import declare, newest, state_home, until, validated, watching

pytestmark = [pytest.mark.long, pytest.mark.timeout(2700)]
NODE, STANDBY = "gpu-01", "gpu-02"
# For simulated tools at a hundred times their speed.
PROFILE = """\
summary: a few minutes, for tools that are simulated
minutes: 15
sample_seconds: 100
space_mib: 64
ramp_steps: 2
ramp_seconds: 2
abort: {gpu_celsius: 120, xids: fatal, failed_steps: 2}
segments:
  - {name: look, kind: load, checks: [gpu_inventory], repeat: 1}
  - {name: heat, kind: soak, checks: [gpu_burn], minutes: 12, step_minutes: 4}
"""


@pytest.fixture(scope="module")
def lab(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = (NodeSpec(NODE, "h100-sxm"), NodeSpec(STANDBY, "h100-sxm"))
    disks = dict.fromkeys((NODE, STANDBY), images.with_slurm())
    with running_lab("return", nodes, tmp_path_factory.mktemp("lab") / "lab.yml", images=disks) as running:
        yield running


@pytest.fixture(scope="module")
def operator(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Operator:
    """slurm.conf puts the spare in no partition, so only the watch can add it."""
    folder = tmp_path_factory.mktemp("inventory")
    (folder / "short.yml").write_text(PROFILE)
    declare(lab.inventory, folder / "nodes.yml", [STANDBY], STANDBY, gpuprov_watch={"return_hours": 0})
    one = Operator(folder / "nodes.yml", tmp_path_factory.mktemp("runs"))
    controller = slurm_cluster.start([lab.node(STANDBY), lab.node(NODE)], patience=120)
    for node in lab.nodes:
        node.as_root(f"sed -i '/^PartitionName=gpu/s/Nodes=[^ ]*/Nodes={NODE}/' /etc/slurm/slurm.conf")
    controller.as_root("scontrol reconfigure")
    done = one.call("up", "--yes", timeout=1200)
    assert done.returncode == ExitCode.OK, said(done)
    return one


@pytest.fixture(scope="module")
def slurm(operator: Operator) -> Scheduler:
    return chosen.only(inventory.load(operator.inventory), {})[0]


@pytest.fixture(scope="module")
def store(operator: Operator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with state_home(tmp_path_factory.mktemp("state")):
        yield Store(place_of(inventory.load(operator.inventory)))


@pytest.fixture(scope="module")
def log(
    operator: Operator, store: Store, lab: Lab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Yield the log of a running watch that has replaced a node with a lost GPU by the spare."""
    aside = operator.call("watch", "spare", "--nodes", STANDBY)
    assert aside.returncode == ExitCode.OK, said(aside)
    with watching(operator, tmp_path_factory.mktemp("log") / "watch.log") as found:
        until(lambda: validated(store) == {STANDBY}, 300, "the spare is validated", found)
        lab.node(NODE).fault("gpu_off_bus", gpu=3)
        until(lambda: (one := newest(store)) is not None and one.step is Step.REPAIR, 600, "in repair", found)
        yield found


def test_the_spare_serves_and_stays_in_the_partition_when_slurm_reads_its_file_again(
    log: Path, lab: Lab, slurm: Scheduler
) -> None:
    words = slurm.look([NODE, STANDBY])
    assert (words[NODE].holder, words[STANDBY].holder) == (Holder.US, Holder.NOBODY)
    assert words[STANDBY].pools == ("gpu",)
    lab.node(STANDBY).as_root("scontrol reconfigure")
    line = f"{STANDBY} was in gpu no longer, and was put back: was slurm.conf read again?"
    until(lambda: line in log.read_text(), 120, "put back", log)
    assert slurm.look([STANDBY])[STANDBY].pools == ("gpu",)
    assert lab.node(STANDBY).as_root("srun --partition=gpu hostname").stdout.split() == [STANDBY]


def test_with_its_fault_it_stays_in_repair_and_the_part_that_failed_is_named(
    log: Path, operator: Operator, store: Store, slurm: Scheduler
) -> None:
    (incident,) = store.incidents()
    done = operator.call("return", NODE, "--profile", str(operator.inventory.with_name("short.yml")))
    assert done.returncode == ExitCode.UNHEALTHY, said(done)
    assert f"{NODE}: up did not pass; the node stays drained" in done.stdout, said(done)
    assert "GPU is lost" in done.stdout
    assert "repair it, and run this command again: it begins anew" in done.stdout
    assert store.incidents() == [incident]
    word = slurm.look([NODE])[NODE]
    assert word.reason.startswith(f"{PREFIX}{incident.id} "), word.reason
    state = json.loads(operator.call("watch", "state", "--json").stdout)
    assert (state["repair"], state["spares"], state["service"]) == ([NODE], [], [STANDBY])
    assert f"{NODE} is a spare" not in log.read_text()


def test_repaired_it_is_provisioned_validated_burnt_in_and_a_spare_again(
    log: Path, lab: Lab, operator: Operator, store: Store, slurm: Scheduler
) -> None:
    node = lab.node(NODE)
    node.heal()
    node.reboot()  # until then, the kernel's messages about the GPU count
    node.as_root("systemctl start munge slurmd")
    node.as_root("rm -f /etc/sysctl.d/*gpuprov*")  # as if the repair had replaced the disk
    done = operator.call(
        "return", NODE, "--profile", str(operator.inventory.with_name("short.yml")), timeout=1800
    )
    assert done.returncode == ExitCode.OK, said(done)
    assert done.stdout.splitlines()[-1] == f"{NODE} is a spare now"
    runs = [path.name.rpartition("-")[2] for path in sorted(operator.runs.iterdir())]
    assert [verb for verb in ("up", "validate", "burnin") if verb not in runs] == []
    (incident,) = store.incidents()
    assert list(incident.returning) == ["up", "validate", "burnin"]
    assert slurm.look([NODE])[NODE].reason.startswith(f"{PREFIX}{SPARE}")
    state = json.loads(operator.call("watch", "state", "--json").stdout)
    assert (state["repair"], [one["node"] for one in state["spares"]]) == ([], [NODE])
    until(lambda: NODE in validated(store), 300, "the watch validates its new spare", log)
    again = operator.call("return", NODE)
    assert (again.returncode, again.stdout) == (ExitCode.USAGE, "")
    assert f"gpuprov watch did not take {NODE} out of service" in again.stderr
