"""The collection on bare nodes, from a controller without gpuprov.

Covers each role alone in a plain playbook, all of them in one play, a user's mistakes, and every supported
ansible-core. gpuprov's own expectations judge the result of a role.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.desired.role import all_roles
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, said
from tests.lab.lab_nodes import Lab, LabNode, running_lab
from tests.support.collection import Controller, build, play
from tests.support.plays import recap

CORES = ("2.17", "2.18", "2.19", "2.20", "newest")
ALONE = ("alone-01", "alone-02")  # for individual roles
BY_PLAYBOOK = ("book-01",)  # for the collection's playbooks
TOGETHER = ("free-01", "free-02")  # for all roles in one play
NODES = (
    NodeSpec("alone-01", "b200", network="ib"),  # with the longest list of expectations
    NodeSpec("alone-02", "h100-sxm", "rhel9"),
    NodeSpec("free-01", "h100-sxm"),
    NodeSpec("free-02", "l40s", "debian12"),
    NodeSpec("book-01", "h100-sxm"),
    *(NodeSpec(f"core-{core.replace('.', '')}", "l40s", "debian12") for core in CORES),
)
# The roles for AMD GPUs are in test_amd.py.
ROLES = tuple(name for name, role in all_roles().items() if role.vendor in (None, "nvidia"))
# A role that is off by default promises little, so these are turned on.
DECLARED: dict[str, Any] = {
    "gpu_settings_power_limit": 300,
    "gpu_metrics_enabled": True,
    "node_health_enabled": True,
}
# Roles that need a configured NVIDIA repository.
BUILDS_ON_PACKAGES = (
    *("nvidia_driver", "nvlink", "cuda_toolkit", "nccl", "container_toolkit", "validation_tools"),
    "gpu_metrics",
)
# Roles without promises here: two are for hosts in groups of their own, slurm_health for Slurm nodes.
ELSEWHERE = ("monitoring", "receptor", "slurm_health")
pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab("collection", NODES, tmp_path_factory.mktemp("lab") / "lab.yml") as running:
        yield running


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("archive"))


def pythons() -> list[str]:
    """Return this machine's interpreters: the current one, then the newest first."""
    found = {}
    places = [*Path("/usr/bin").glob("python3.*"), *Path.home().glob(".pyenv/versions/*/bin/python3.*")]
    for place in places:
        minor = place.name.removeprefix("python3.")
        if minor.isdigit():
            found[int(minor)] = str(place)
    return [sys.executable, *(found[minor] for minor in sorted(found, reverse=True))]


def controller(folder: Path, archive: Path, wanted: str) -> Controller:
    """Install this version of ansible-core with the collection; skips if pip cannot install it here."""
    for number, python in enumerate(pythons()):
        place = folder / f"environment-{number}"
        subprocess.run([python, "-m", "venv", str(place)], check=True, timeout=100)
        words = [str(place / "bin" / "pip"), "install", "--quiet", wanted]
        done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode == 0:
            return installed(folder / "home", place / "bin", archive)
    pytest.skip(f"{wanted}: {said(done)[-300:]}")


def installed(home: Path, programs: Path, archive: Path) -> Controller:
    home.mkdir()
    made = Controller(home, programs)
    made.install(archive)
    gpuprov = made.run("python", "-c", "import provision")
    assert "ModuleNotFoundError: No module named 'provision'" in gpuprov.stderr, said(gpuprov)
    return made


class Stranger:
    """A user with the collection and an inventory of the lab, but without gpuprov."""

    def __init__(self, lab: Lab, controller: Controller) -> None:
        self.lab = lab
        self.controller = controller

    def play(
        self, nodes: tuple[str, ...], *roles: str, options: tuple[str, ...] = (), **keywords: Any
    ) -> subprocess.CompletedProcess[str]:
        variables = ("-e", json.dumps(DECLARED), *options)
        chosen = ("-i", str(self.lab.inventory), "-l", ",".join(nodes))
        return self.controller.play(play(*roles, **keywords), *chosen, *variables, timeout=1500)

    def converge(self, nodes: tuple[str, ...], *roles: str, **keywords: Any) -> None:
        """Run the playbook, and again after a reboot if a role requests one."""
        good(self.play(nodes, *roles, **keywords), nodes)
        if rebooted(self.lab, nodes):
            good(self.play(nodes, *roles, **keywords), nodes)


def rebooted(lab: Lab, nodes: tuple[str, ...]) -> bool:
    """Reboot the nodes that request it, and return whether there were any."""
    waiting = [
        node
        for node in map(lab.node, nodes)
        if not node.run("test -e /run/reboot-required", False).returncode
    ]
    with ThreadPoolExecutor() as pool:
        list(pool.map(LabNode.reboot, waiting))
    return bool(waiting)


def good(done: subprocess.CompletedProcess[str], nodes: tuple[str, ...]) -> dict[str, int]:
    """Assert that the playbook succeeded on all nodes, and return node → number of changed tasks."""
    counts = recap(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert counts.keys() == set(nodes), done.stdout
    assert all(each["ok"] > 5 for each in counts.values()), f"the roles did not run: {done.stdout}"
    return {node: each["changed"] for node, each in counts.items()}


def refused(done: subprocess.CompletedProcess[str], nodes: tuple[str, ...], sentence: str) -> None:
    """Assert that every node failed with this sentence (a regular expression) before any change."""
    counts = recap(done.stdout)
    assert done.returncode == 2, done.stdout + done.stderr
    assert {node: (each["failed"], each["changed"]) for node, each in counts.items()} == dict.fromkeys(
        nodes, (1, 0)
    ), done.stdout
    for node in nodes:
        assert re.search(rf"fatal: \[{node}\].*({sentence})", done.stdout), done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@contextlib.contextmanager
def unchanged(lab: Lab, nodes: tuple[str, ...]) -> Iterator[None]:
    """Assert that no file of these nodes is written in the block.
    Exceptions: Python's byte code, and the package lists."""
    listed = "ls -R /etc /opt /usr/local; systemctl list-unit-files --no-legend"
    before = {node: lab.node(node).as_root(f"touch /run/before; {listed}").stdout for node in nodes}
    yield
    for node in nodes:
        written = lab.node(node).as_root("find /etc /usr /opt -newer /run/before -type f ! -name '*.pyc'")
        assert written.stdout == "", node
        assert lab.node(node).as_root(listed).stdout == before[node], node


@pytest.fixture(scope="module")
def stranger(lab: Lab, archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Stranger:
    made = controller(tmp_path_factory.mktemp("newest"), archive, "ansible-core")
    made.settings["ANSIBLE_PIPELINING"] = "1"  # halves the time; the versions below run without it
    return Stranger(lab, made)


@pytest.fixture(scope="module")
def operator(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Operator:
    return Operator(lab.inventory, tmp_path_factory.mktemp("runs"))


def as_declared(operator: Operator, nodes: tuple[str, ...], **variables: Any) -> None:
    done = operator.call(
        "drift", "--json", "--no-majority", "--nodes", ",".join(nodes), **DECLARED, **variables
    )
    assert done.returncode == ExitCode.OK, said(done)
    found = json.loads(done.stdout)
    assert (found["nodes"], found["as_declared"]) == (len(nodes), len(nodes))
    assert found["expectations"] >= len(nodes)


# --- bare nodes: nothing is there of what a role builds on


@pytest.mark.parametrize("role", ROLES)
def test_check_mode_of_bare_nodes_ends_well_and_changes_nothing(stranger: Stranger, role: str) -> None:
    with unchanged(stranger.lab, ALONE):
        good(stranger.play(ALONE, role, options=("--check",)), ALONE)


def test_check_mode_ends_well_where_the_distribution_has_the_same_packages(stranger: Stranger) -> None:
    debian = ALONE[:1]
    stranger.lab.node(debian[0]).as_root("apt-get update -qq")
    assert "/contrib" in stranger.lab.node(debian[0]).run("apt-cache madison libnccl2").stdout
    with unchanged(stranger.lab, debian):
        good(stranger.play(debian, "nvidia_repository", "nccl", options=("--check",)), debian)


@pytest.mark.parametrize("role", BUILDS_ON_PACKAGES)
def test_without_the_repository_a_role_says_what_is_missing(stranger: Stranger, role: str) -> None:
    # Debian has its own NCCL; on RHEL 9 the driver is a module stream.
    missing = "No repository offers|is not offered; offered are:|The module stream [^ ]+ cannot be enabled"
    with unchanged(stranger.lab, ALONE):
        refused(stranger.play(ALONE, role), ALONE, missing)


def test_a_user_who_may_not_become_root_is_told_so(stranger: Stranger) -> None:
    # The inventory also sets it, and takes precedence over the play.
    mere = stranger.play(ALONE, "host_settings", options=("-e", "ansible_become=false"), become=False)
    refused(mere, ALONE, "Set become: true for the play, or log in as root.")


@pytest.mark.parametrize(
    ("system", "sentence"),
    [
        (
            "ID=opensuse-leap\nVERSION_ID=15.6",
            "No role of gpuprov knows the distribution family opensuse-leap",
        ),
        ("ID=debian\nVERSION_ID=11", "The role host_settings knows debian 12, debian 13."),
    ],
)
def test_an_unsupported_system_is_refused(stranger: Stranger, system: str, sentence: str) -> None:
    node = stranger.lab.node("alone-01")
    node.as_root("rm /etc/os-release; cat > /etc/os-release", said=system)
    try:
        with unchanged(stranger.lab, (node.name,)):
            refused(stranger.play((node.name,), "host_settings"), (node.name,), sentence)
    finally:
        node.as_root("ln -sf ../usr/lib/os-release /etc/os-release")


def test_a_play_without_hosts_ends_well(stranger: Stranger) -> None:
    done = stranger.play(ALONE, *ROLES, hosts="all:!gpu_nodes")
    assert done.returncode == 0, said(done)
    assert "skipping: no hosts matched" in done.stdout


def test_facts_of_another_node_are_not_used(stranger: Stranger) -> None:
    """The other node has a different package manager."""
    nodes, other = ALONE[:1], ALONE[1]

    def family(name: str) -> dict[str, Any]:
        return {"ansible.builtin.assert": {"that": f"gpuprov_node.os.family == '{name}'"}}

    look = {"gpuprov.gpu.node_facts": {}, "delegate_to": other, "delegate_facts": False}
    mixed: dict[str, Any] = {"pre_tasks": [look, family("redhat")], "post_tasks": [family("debian")]}
    good(stranger.play(nodes, "host_settings", options=("--check",), **mixed), nodes)


# --- one role after the other


@pytest.fixture(scope="module")
def applied() -> list[str]:
    """Return the roles applied to the nodes ALONE so far."""
    return []


@pytest.mark.parametrize("role", [role for role in ROLES if role not in ELSEWHERE])
def test_a_role_alone_makes_its_expectations_hold(
    stranger: Stranger, operator: Operator, applied: list[str], role: str
) -> None:
    for needed in ROLES[: ROLES.index(role) + 1]:
        if needed not in applied:
            stranger.converge(ALONE, needed)
            applied.append(needed)
    unmoved = dict.fromkeys(ALONE, 0)
    again = stranger.play(ALONE, role)
    assert good(again, ALONE) == unmoved, again.stdout
    looked = stranger.play(ALONE, role, options=("--check", "--diff"))
    assert good(looked, ALONE) == unmoved, looked.stdout
    as_declared(operator, ALONE, gpuprov_roles=[role])


def test_all_roles_in_one_play_with_gathered_facts_each_node_at_its_own_pace(
    stranger: Stranger, operator: Operator
) -> None:
    keywords: dict[str, Any] = {"strategy": "free", "gather_facts": True}
    stranger.converge(TOGETHER, *ROLES, **keywords)
    again = stranger.play(TOGETHER, *ROLES, **keywords)
    assert good(again, TOGETHER) == dict.fromkeys(TOGETHER, 0), again.stdout
    as_declared(operator, TOGETHER)


def test_the_playbooks_bring_bare_nodes_up_reboot_them_and_take_a_role_off(
    stranger: Stranger, operator: Operator
) -> None:
    def run(playbook: str, **variables: Any) -> int:
        told = ("-e", json.dumps(DECLARED | variables))
        chosen = ("-i", str(stranger.lab.inventory), "-l", ",".join(BY_PLAYBOOK))
        done = stranger.controller.run("ansible-playbook", playbook, *chosen, *told, timeout=1500)
        assert done.returncode == 0, said(done)
        counts = recap(done.stdout)
        assert counts.keys() == set(BY_PLAYBOOK)
        return sum(each["changed"] for each in counts.values())

    node = stranger.lab.node(BY_PLAYBOOK[0])
    boot = "cat /proc/sys/kernel/random/boot_id"
    before = node.run(boot).stdout
    assert run("gpuprov.gpu.up") > 0
    assert not node.run("test -e /run/reboot-required", False).returncode
    assert run("gpuprov.gpu.reboot") == len(BY_PLAYBOOK)
    assert node.run(boot).stdout != before
    run("gpuprov.gpu.up")  # roles that waited for the driver
    assert run("gpuprov.gpu.up") == 0
    as_declared(operator, BY_PLAYBOOK)
    removed = ["validation_tools", "nccl"]  # the tools depend on NCCL
    assert run("gpuprov.gpu.remove", gpuprov_remove=removed) > 0
    assert "installed" not in node.run("dpkg-query -Wf '${db:Status-Status}' libnccl2", False).stdout
    assert run("gpuprov.gpu.remove", gpuprov_remove=removed) == 0


# --- every ansible-core


@pytest.mark.parametrize("core", CORES)
def test_a_version_of_ansible_core(
    lab: Lab, archive: Path, operator: Operator, tmp_path: Path, core: str
) -> None:
    wanted = f"ansible-core=={newest(tmp_path) if core == 'newest' else core + '.*'}"
    stranger = Stranger(lab, controller(tmp_path, archive, wanted))
    nodes = (f"core-{core.replace('.', '')}",)
    syntax = stranger.play(nodes, *ROLES, options=("--syntax-check",))
    assert syntax.returncode == 0, said(syntax)
    roles = ("nvidia_repository", "nccl")
    good(stranger.play(nodes, *roles, options=("--check",)), nodes)
    assert good(stranger.play(nodes, *roles), nodes)[nodes[0]] > 0
    assert good(stranger.play(nodes, *roles), nodes)[nodes[0]] == 0
    as_declared(operator, nodes, gpuprov_roles=list(roles))


def newest(folder: Path) -> str:
    """Return the newest version in the index, whatever Python it requires."""
    words = ["download", "--quiet", "--no-deps", "--python-version", "3.99", "--only-binary", ":all:"]
    subprocess.run(
        [sys.executable, "-m", "pip", *words, "--dest", str(folder), "ansible-core"], check=True, timeout=300
    )
    (wheel,) = folder.glob("ansible_core-*.whl")
    return wheel.name.split("-")[1]
