"""30 % of a fleet fail at once under `gpuprov watch` and a real Slurm: drains stop at the breaker's share, a
person gets one page, and once they have closed the breaker the watch goes on as before.

Twenty nodes in service and five spares, which have nothing but Slurm.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from gpuprov_lab.spec import NodeSpec
from provision.desired import inventory
from provision.errors import ExitCode
from provision.remote.schedulers import Scheduler, chosen
from provision.up.watch.incidents import Store, place_of
from tests.lab import slurm_cluster
from tests.lab.gpuprov_up import Operator, said
from tests.lab.images import Images
from tests.lab.lab_nodes import Lab, running_lab
from tests.lab.slurm_ledger import Health, Ledger, bare_fleet
from tests.lab.watches import state_home, until, validated, watching

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
SERVICE = [f"gpu-{number:02d}" for number in range(1, 21)]
SPARES = [f"gpu-{number:02d}" for number in range(21, 26)]
FAILING = SERVICE[3:9]  # 30 %
PERMITS = 2  # 10 % of those in service
LIMITS = {"breaker_share": 10, "breaker_nodes": 1, "share": 50, "hourly": 100, "rack_hourly": 100}
HOOK = """#!/bin/sh
{{ cat; echo; }} >> {0}
"""


@pytest.fixture(scope="module")
def lab(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = tuple(NodeSpec(name, "none") for name in (*SERVICE, *SPARES))
    disks = {node.name: images.slurm_alone() for node in nodes}
    with running_lab("third", nodes, tmp_path_factory.mktemp("lab") / "lab.yml", images=disks) as running:
        yield running


@pytest.fixture
def operator(lab: Lab, tmp_path: Path) -> Iterator[Operator]:
    path = bare_fleet(lab.inventory, tmp_path / "nodes.yml", SPARES, SERVICE[0], **LIMITS)
    hook = tmp_path / "hook"
    hook.write_text(HOOK.format(tmp_path / "pages"))
    hook.chmod(0o755)
    declared = yaml.safe_load(path.read_text())
    declared["gpu_nodes"]["vars"]["gpuprov_watch_hook"] = str(hook)
    path.write_text(yaml.safe_dump(declared))
    with state_home(tmp_path / "state"):
        yield Operator(path, tmp_path / "runs")


def pages(folder: Path) -> Counter[str]:
    """How many notifications of each kind the hook got."""
    lines = (folder / "pages").read_text().splitlines() if (folder / "pages").exists() else []
    return Counter(json.loads(line)["kind"] for line in lines if line)


def test_a_third_fails_at_once_and_a_person_closes_the_breaker(
    lab: Lab, operator: Operator, tmp_path: Path
) -> None:
    nodes = {name: lab.node(name) for name in (*SERVICE, *SPARES)}
    ledger = Ledger(slurm_cluster.start(list(nodes.values()), gpus=0, patience=180))
    health = Health(nodes)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(health.write, nodes))
    for name in SPARES:
        ledger.leave(name)
    done = operator.call("watch", "spare", "--nodes", ",".join(SPARES))
    assert done.returncode == ExitCode.OK, said(done)
    fleet = inventory.load(operator.inventory)
    slurm, store = chosen.only(fleet, {})[0], Store(place_of(fleet))
    with watching(operator, tmp_path / "watch.log") as log:
        until(lambda: len(validated(store)) == len(SPARES), 300, "the spares are validated", log)
        for name in FAILING:  # within seconds, as the health programs of nodes notice it
            health.write(name, lost=3)
        until(lambda: "breaker-open" in pages(tmp_path), 120, "people are told", log)
        until(lambda: not any(one.is_open and one.drained for one in store.incidents()), 180, "it rests", log)
        time.sleep(45)  # another question to the scheduler, and more than one try of each incident
        drained = out_of_service(ledger)
        assert len(drained) <= PERMITS
        assert drained <= set(FAILING)
        assert in_service(slurm) >= set(SERVICE) - drained, "those beyond the share keep their jobs"
        told = pages(tmp_path)
        assert told == Counter({"breaker-open": 1, "replaced": len(drained)}), told
        assert breaker(operator).startswith("open: ")

        # The cause is found and mended on all but one of them, and a person closes the breaker.
        last, *mended = sorted(set(FAILING) - drained)
        for name in mended:
            health.write(name)
        time.sleep(5)
        assert breaker(operator, "--close").startswith("closed: ")
        until(lambda: serves(store, last), 180, "the node that still fails is replaced", log)
        health.write(SERVICE[15], lost=1)
        until(lambda: serves(store, SERVICE[15]), 180, "so is one that fails later", log)
        assert out_of_service(ledger) == {*drained, last, SERVICE[15]}
        assert breaker(operator).startswith("closed: ")
        told = pages(tmp_path)
        assert told == Counter({"breaker-open": 1, "replaced": len(drained) + 2}), told
    assert len(in_service(slurm)) == len(SERVICE)
    assert not [one for one in store.incidents() if one.is_open]


def serves(store: Store, node: str) -> bool:
    """Whether a spare is in the place of this node, and the incident has come to its end."""
    return any(one.node == node and one.placed and not one.is_open for one in store.incidents())


def out_of_service(ledger: Ledger) -> set[str]:
    """The nodes of the partition that were ever drained, and no waiting spare."""
    return {one.node for one in ledger.changes() if one.kind == "drain"} - set(SPARES)


def in_service(slurm: Scheduler) -> set[str]:
    return {name for name, word in slurm.look([*SERVICE, *SPARES]).items() if word.takes_jobs}


def breaker(operator: Operator, *arguments: str) -> str:
    """What `gpuprov watch breaker` prints."""
    done = operator.call("watch", "breaker", *arguments)
    assert done.returncode == ExitCode.OK, said(done)
    return done.stdout
