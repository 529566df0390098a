"""Silences that are no fault of a node, under a real Slurm: nodes switched off for repair, and a minute
without a network on this machine. Twelve nodes, two of them spares.

The tests run in the order written, because each builds on the one before.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuprov_lab import network
from gpuprov_lab.spec import NodeSpec
from provision.desired import inventory
from provision.errors import ExitCode
from provision.remote.schedulers import Holder, Scheduler, chosen
from provision.up.watch.incidents import Step, Store, place_of
from tests.lab import slurm_cluster
from tests.lab.gpuprov_up import Operator, said
from tests.lab.images import Images
from tests.lab.lab_nodes import Lab, running_lab
from tests.lab.watches import declare, newest, state_home, until, validated, watching

pytestmark = [pytest.mark.long, pytest.mark.timeout(5400)]
NODES = [f"gpu-{number:02d}" for number in range(1, 13)]
CONTROLLER, REPAIR, SPARES = NODES[0], NODES[7:10], NODES[10:]
GOAL = 30.0  # seconds from the fault to the drain
CUT = 60.0  # seconds without a network; the check of a spare gives up sooner


@pytest.fixture(scope="module")
def lab(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = tuple(NodeSpec(name, "h100-sxm") for name in NODES)
    disks = dict.fromkeys(NODES, images.with_slurm())
    with running_lab("blips", nodes, tmp_path_factory.mktemp("lab") / "lab.yml", images=disks) as running:
        yield running


@pytest.fixture(scope="module")
def operator(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Operator:
    path = tmp_path_factory.mktemp("inventory") / "nodes.yml"
    limits = {"share": 50, "verify_seconds": 45}
    one = Operator(
        declare(lab.inventory, path, SPARES, CONTROLLER, gpuprov_watch=limits),
        tmp_path_factory.mktemp("runs"),
    )
    slurm_cluster.start([lab.node(name) for name in NODES], patience=120)
    done = one.call("up", "--yes", timeout=2400)
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
def watch(operator: Operator, store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    aside = operator.call("watch", "spare", "--nodes", ",".join(SPARES))
    assert aside.returncode == ExitCode.OK, said(aside)
    with watching(operator, tmp_path_factory.mktemp("log") / "watch.log") as log:
        until(lambda: len(validated(store)) == len(SPARES), 600, "the spares are validated", log)
        yield log


def told(log: Path) -> Counter[str]:
    """Count the messages to people by kind."""
    return Counter(re.findall(r"^\S+Z ([a-z.-]+): ", log.read_text(), re.MULTILINE))


def test_three_nodes_switched_off_for_repair_stop_no_drain(
    lab: Lab, slurm: Scheduler, store: Store, watch: Path
) -> None:
    down = f"scontrol update NodeName={','.join(REPAIR)} State=DRAIN Reason='in repair'"
    lab.node(CONTROLLER).as_root(down)
    for name in REPAIR:
        lab.node(name).power_off()
    rows = store.path / "history.jsonl"
    until(lambda: rows.read_text().count('"silent": true') >= len(REPAIR), 300, "they are silent", watch)
    assert {slurm.look([name])[name].holder for name in REPAIR} == {Holder.OTHERS}
    began = time.monotonic()
    lab.node("gpu-03").fault("gpu_off_bus", gpu=3)
    until(lambda: (one := newest(store)) is not None and one.drained is not None, 120, "drained", watch)
    took = time.monotonic() - began
    print(f"drained {took:.1f} s after the fault")  # noqa: T201
    until(lambda: (one := newest(store)) is not None and not one.is_open, 600, "replaced", watch)
    (incident,) = store.incidents()
    assert (incident.node, incident.spare in SPARES) == ("gpu-03", True)
    assert not [kind for kind in told(watch) if kind.startswith("held.")], watch.read_text()
    assert took <= GOAL


def test_a_network_that_is_down_for_a_minute_costs_no_spare(
    lab: Lab, slurm: Scheduler, store: Store, watch: Path
) -> None:
    lab.node("gpu-05").fault("gpu_off_bus", gpu=5)

    def verifies() -> bool:
        one = newest(store)
        return one is not None and one.node == "gpu-05" and one.step is Step.VERIFY

    until(verifies, 120, "the spare is checked", watch)
    bridge = network.bridge_name(lab.record.octet)
    subprocess.run(["ip", "link", "set", bridge, "down"], check=True)
    try:
        time.sleep(CUT)
    finally:
        subprocess.run(["ip", "link", "set", bridge, "up"], check=True)
    until(lambda: (one := newest(store)) is not None and not one.is_open, 600, "replaced", watch)
    incidents = store.incidents()
    assert [one.node for one in incidents] == ["gpu-03", "gpu-05"], "no spare and no other node was taken"
    assert {one.spare for one in incidents} == set(SPARES)
    assert {word.takes_jobs for word in slurm.look(SPARES).values()} == {True}
    kinds = told(watch)
    # If the connections of a check survive the minute, it passes and there is nothing to report.
    assert kinds["spare-unchecked"] <= 1, watch.read_text()
    assert not kinds["no-spare"]
    assert not kinds["spare-failed"]
    assert {count for kind, count in kinds.items() if kind != "replaced"} == {1}, kinds
    assert kinds["last-spare"] == 1
