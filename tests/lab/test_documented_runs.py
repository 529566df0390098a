"""The documentation's commands, run on real nodes in the order of each page, in a fresh folder.

Everything shown is read from the pages; here are only the nodes behind names and a site's additions. Commands
that are not run, and exit codes other than 0, are in tests/documented_runs.yml with their reasons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov_lab.places import STATE
from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab import slurm_cluster
from tests.lab.gpuprov_up import Operator, said
from tests.lab.images import Images
from tests.lab.lab_nodes import Lab, LabNode, running_lab
from tests.support import page_runs, pages
from tests.support.page_runs import Folder, Ran, Site
from tests.support.pages import Command

pytestmark = [pytest.mark.long, pytest.mark.timeout(5400)]
TWO = ("gpu-01", "gpu-02")
SERVICE, SPARES = ("gpu-01", "gpu-03"), ("gpu-65", "gpu-66")  # names of nodes in docs/watch.md
# The pages leave one decision to the reader, and name racks; the MPI programs are for `--group`.
EDITS = {
    "all": {"vars": {"validation_tools_enabled": True, "validation_tools_mpi": True}},
    **{f"rack{number}": {"hosts": {name: {}}} for number, name in enumerate(TWO, start=1)},
}


def site(lab: Lab, **more: Any) -> Site:
    """Return the addresses and mirrors of a lab."""
    declared = yaml.safe_load(lab.inventory.read_text())["gpu_nodes"]
    return Site(hosts=declared["hosts"], variables=declared["vars"], **more)


def play(page: str, folder: Folder, *, cluster: Callable[[Folder], LabNode] | None = None) -> list[Ran]:
    """Run all commands of a page, and compare each exit code and the output shown below a command.
    `cluster`: starts Slurm for its own commands, and returns the node to run them on."""
    done: list[Ran] = []
    times: Counter[str] = Counter()
    wrong: list[str] = []
    shown = pages.inventories(page)
    for command in pages.commands(page):
        while shown and shown[0][0] < command.line:
            folder.add(shown.pop(0)[1])
        if pages.not_run(command):
            if command.does("watch", "install"):  # the unit's command
                folder.run(Command(page, command.line, "gpuprov watch fleet.yml"), look=90)
            continue
        if command.text.split()[0] in ("test", "sbatch"):
            assert cluster is not None
            ran = on_cluster(command, folder, cluster(folder))
        else:
            ran = folder.run(command)
        print(f"{ran}\n")  # noqa: T201 - pytest shows it when something is wrong
        if ran.code != page_runs.expected(command, times[command.text]) or "Traceback" in ran.err:
            wrong.append(str(ran))
        wrong += [f"{command}: not printed: {line}" for line in unlisted(ran)]
        times[command.text] += 1
        done.append(ran)
        if command.does("burnin", "collect") or (command.does("burnin", "start") and command.is_endless):
            # The burn-in continues by itself, and may take a day.
            stopped = folder.run(Command(page, command.line, "gpuprov burnin stop latest"))
            assert stopped.code in (0, ExitCode.UNHEALTHY, ExitCode.INCOMPLETE), str(stopped)
    assert not wrong, "\n\n".join(wrong)
    return done


def unlisted(ran: Ran) -> list[str]:
    """Return lines shown below a command that were neither printed nor listed in the data file.
    Listed lines that were printed are also returned."""
    listed = pages.data()["not_printed"].get(ran.command.page, {})
    missing = page_runs.not_printed(ran, ran.out + ran.err)
    stale = [line for line in ran.command.output if line in listed and line not in missing]
    return [line for line in missing if line not in listed] + [
        f"listed, and printed: {line}" for line in stale
    ]


def on_cluster(command: Command, folder: Folder, node: LabNode) -> Ran:
    """Run a Slurm command on a cluster node, in a folder with the node lists of the newest report."""
    report = max(folder.runs.glob("*-validate"))
    lists = {path.name: path.read_text() for path in report.iterdir() if path.name.startswith("nodes.")}
    words = "".join(f"cat > {name} <<'END'\n{text}END\n" for name, text in lists.items())
    job = "printf '#!/bin/sh\\ntrue\\n' > job.sh"
    script = f"mkdir -p /tmp/report && cd /tmp/report && {job}\n{words}{command.text}\n"
    ended = node.run("sudo bash -s", check=False, said=script)
    return Ran(command, ended.returncode, ended.stdout, ended.stderr, 0)


@pytest.fixture(scope="module")
def fleet(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Yield four nodes after `up`, in a Slurm cluster, that check themselves."""
    names = (*SERVICE, *SPARES)
    nodes = tuple(NodeSpec(name, "h100-sxm") for name in names)
    disks = dict.fromkeys(names, images.with_slurm())
    with running_lab("fleet", nodes, tmp_path_factory.mktemp("lab") / "lab.yml", images=disks) as running:
        slurm_cluster.start(running.nodes, patience=120)
        operator = Operator(running.inventory, tmp_path_factory.mktemp("runs"))
        done = operator.call("up", "--yes", "--no-canary", timeout=2400, node_health_enabled=True)
        assert done.returncode == ExitCode.OK, said(done)
        yield running


def nodes_of(lab: Lab, *names: str, scheduler: str = "slurm") -> Site:
    """Return these nodes in the inventory that a page omits; the first runs Slurm's controller."""
    declared = {"gpuprov_scheduler": scheduler, "node_health_enabled": True, "validation_tools_enabled": True}
    members = {"hosts": {name: {} for name in names}, "vars": declared}
    one = site(lab, edits={"gpuprov_slurm": {"hosts": {SERVICE[0]: {}}}})
    quiet = {**one.variables, "gpuprov_watch_webhooks": []}  # sends nothing to the page's example address
    return replace(one, variables=quiet, fleet={"gpu_nodes": members, **one.edits})


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Yield two bare nodes with network cards."""
    nodes = tuple(NodeSpec(name, "h100-sxm", network="ib") for name in TWO)
    with running_lab("pages", nodes, tmp_path_factory.mktemp("lab") / "lab.yml") as running:
        yield running


def cluster_of(lab: Lab) -> Callable[[Folder], LabNode]:
    """Return a function that starts Slurm on a lab's nodes and makes a report with the last one failed."""

    @cache
    def begun(folder: Folder) -> LabNode:
        controller, last = slurm_cluster.start(lab.nodes, patience=120), lab.nodes[-1]
        last.fault("gpu_off_bus", gpu=3)
        try:
            judged = folder.run(Command("README.md", 0, "gpuprov validate --stage quick"))
        finally:
            last.heal()
            last.reboot()
        assert judged.code == ExitCode.UNHEALTHY, str(judged)
        return controller

    return begun


def drained(node: LabNode) -> list[str]:
    words = node.run("sinfo --noheader --Node --format='%N %T'").stdout.splitlines()
    return sorted(word.split()[0] for word in words if "drain" in word)


def test_the_pages_from_bare_nodes_to_reports(bare: Lab, tmp_path: Path) -> None:
    assert not (STATE / "lab").exists(), "docs/lab.md removes the lab called lab: gpuprov lab down"
    folder = Folder(tmp_path, site(bare, nodes={"gpu-03": TWO[-1]}, edits=EDITS))
    for page in ("README.md", "docs/validate.md", "docs/burnin.md", "docs/reports.md", "docs/first-hour.md"):
        play(page, folder, cluster=cluster_of(bare))
    assert drained(bare.node(TWO[0])) == [TWO[-1]]
    play("docs/lab.md", folder)
    assert {file.name for file in (folder.place / "inventory").iterdir()} == {"lab.yml", "net.yml"}


def test_the_roles_in_playbooks(fleet: Lab, tmp_path: Path) -> None:
    ran = play("docs/ansible.md", Folder(tmp_path, nodes_of(fleet, SERVICE[0])))
    assert '"driver.loaded_version"' in ran[-1].out


def test_spares_and_the_watch(fleet: Lab, tmp_path: Path) -> None:
    play("docs/watch.md", Folder(tmp_path, nodes_of(fleet)))
    assert drained(fleet.node(SERVICE[0])) == [*SPARES]


def test_the_state_of_a_fleet_with_faults(fleet: Lab, tmp_path: Path) -> None:
    """One node has a lost GPU, one is off, one has no result, and one is healthy."""
    failed, absent, off = fleet.node(SERVICE[1]), fleet.node(SPARES[0]), fleet.node(SPARES[1])
    failed.fault("gpu_off_bus", gpu=3)
    failed.as_root("systemctl start gpuprov-node-health.service || true")
    absent.as_root("systemctl stop gpuprov-node-health.timer && rm /run/gpuprov/health.json")
    fleet.node(SERVICE[0]).as_root(f"scontrol update nodename={absent.name} state=drain reason=ours")
    off.power_off()
    try:
        play("docs/status.md", Folder(tmp_path, nodes_of(fleet, *SERVICE, *SPARES)))
    finally:
        off.power_on()
        failed.heal()
        failed.reboot()
        absent.as_root("systemctl start gpuprov-node-health.timer")


def test_upgrade_and_removal(fleet: Lab, tmp_path: Path) -> None:
    """The last test: removes all roles from its nodes and reboots them, Slurm's controller included."""
    play("docs/upgrade.md", Folder(tmp_path, nodes_of(fleet, *SERVICE, scheduler="none")))
