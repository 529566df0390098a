"""Nodes with AMD GPUs: `up` from bare, again, to another release and back; their checks.

Also: every promise of AMD's roles broken once; each role removed; the roles in a plain playbook. For the
packages and GPUs see lab/README.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov_lab.spec import NodeSpec
from provision.checks.on_node.settings import CHECKS
from provision.desired.role import all_roles
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, said
from tests.lab.lab_nodes import Lab, LabNode, running_lab
from tests.lab.walk import Walk
from tests.support.collection import Controller, build, play
from tests.support.plays import recap
from tests.support.processes import until

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]
# apt with a stand-in for the whole system, dnf under a different OS identity.
NODES = (NodeSpec("amd-01", "mi300x", "ubuntu2404"), NodeSpec("amd-02", "mi300x", "rhel9"))
ROLES = tuple(name for name, role in all_roles().items() if role.vendor == "amd")
OLDER: dict[str, Any] = {
    "amdgpu_driver_version": "30.20.1",
    "rocm_versions": ["6.4.4", "7.2.3"],
    "rocm_default": "6.4.4",
}

WALKED: dict[str, Any] = {
    "amdgpu_driver_users": ["ops"],
    "amd_gpu_settings_compute_partition": "CPX",
    "amd_gpu_settings_power_limit": 600,
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab("amd", NODES, tmp_path_factory.mktemp("lab") / "lab.yml") as running:
        yield running


def gpuprov(operator: Operator, verb: str, *words: str, **variables: Any) -> str:
    done = operator.call(verb, *words, timeout=1500, **variables)
    assert done.returncode == ExitCode.OK, said(done)
    return said(done)


def counted(operator: Operator, *words: str, **variables: Any) -> dict[str, int]:
    """Return the numbers of nodes, of nodes as declared, and of compared expectations."""
    found = json.loads(operator.call("drift", "--json", "--no-majority", *words, **variables).stdout)
    assert found["drifts"] == [], found["drifts"]
    return {name: found[name] for name in ("nodes", "as_declared", "expectations")}


def modules(lab: Lab) -> set[str]:
    return {node.run("cat /sys/module/amdgpu/version").stdout.strip() for node in lab.nodes}


def test_the_plan_of_bare_nodes_names_amds_roles_and_no_others(operator: Operator) -> None:
    planned = json.loads(operator.call("plan", "--json").stdout)
    for node in planned["nodes"].values():
        # Settings that no site requests need no work.
        assert {*node["roles"]} == {*ROLES, "rdma", "host_settings"} - {"amd_gpu_settings"}


def test_up_makes_bare_nodes_what_is_declared_and_the_second_finds_nothing(
    operator: Operator, lab: Lab
) -> None:
    gpuprov(operator, "up", "--yes")
    found = counted(operator)
    assert (found["nodes"], found["as_declared"]) == (2, 2)
    assert found["expectations"] > 200
    assert modules(lab) == {"6.16.13"}
    assert "as declared" in gpuprov(operator, "up", "--yes")
    done = operator.call("up", "--yes", "--full", "--json", timeout=1500)
    assert done.returncode == ExitCode.OK, said(done)
    run = max(Path(operator.runs).glob("*-up"), key=lambda folder: folder.name)
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert {event["role"] for event in events} >= set(ROLES)
    assert [event["task"] for event in events if event["kind"] in ("changed", "failed")] == []


def test_what_is_installed_is_found_where_programs_look_for_it(lab: Lab) -> None:
    for node in lab.nodes:
        shell = "bash --login -c 'command -v amd-smi; readlink -f /opt/rocm'"
        assert node.run(shell).stdout.split() == ["/opt/rocm/bin/amd-smi", "/opt/rocm-7.2.3"], node.name
        assert "6.16.13" in node.as_root("amd-smi version || /opt/rocm/bin/amd-smi version").stdout


def test_the_checks_find_them_healthy_and_name_what_breaks(operator: Operator, lab: Lab) -> None:
    def checked() -> dict[str, tuple[str, list[str]]]:
        """Return each node's verdict, and its warnings, failures and errors."""
        done = operator.call("validate", "--stage", "quick", "--json", timeout=600)
        return {
            node["node"]: (
                node["verdict"],
                [
                    f"{finding['device']}: {finding['message']}"
                    for check in node["checks"]
                    for finding in check["findings"]
                    if finding["verdict"] in ("warn", "fail", "error") and finding["device"].startswith("gpu")
                ],
            )
            for node in json.loads(done.stdout)["nodes"]
        }

    assert {name: bad for name, (_, bad) in checked().items()} == {"amd-01": [], "amd-02": []}
    lab.node("amd-01").fault("ecc_uncorrectable", gpu=3, count=2)
    lab.node("amd-02").fault("gpu_off_bus", gpu=5)
    try:
        found = checked()
    finally:
        for node in lab.nodes:
            node.heal()
            node.reboot()  # clears the kernel's log of this boot
    assert [verdict for verdict, _ in found.values()] == ["fail", "fail"]
    for name, device in (("amd-01", "gpu3"), ("amd-02", "gpu5")):
        assert found[name][1], name
        assert {line.partition(":")[0] for line in found[name][1]} == {device}, found[name]


def test_the_node_itself_finds_what_breaks_as_soon_as_the_kernel_logs_it(
    operator: Operator, lab: Lab
) -> None:
    def health(node: LabNode) -> dict[str, Any]:
        return dict(json.loads(node.as_root("cat /run/gpuprov/health.json").stdout))

    def bad(findings: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
        some = [each for each in findings if each["verdict"] in ("warn", "fail", "error")]
        return {(each["metric"], each["device"], each["verdict"]) for each in some}

    gpuprov(operator, "up", "--yes", node_health_enabled=True)
    assert counted(operator, node_health_enabled=True)["as_declared"] == 2
    for node in lab.nodes:
        node.as_root("systemctl stop gpuprov-node-health.timer; systemctl start gpuprov-node-health.service")
        assert health(node)["verdict"] == "pass", health(node)
        node.fault("gpu_off_bus", gpu=5)
    try:
        for node in lab.nodes:
            until(lambda: health(node)["verdict"] == "fail", 60)  # noqa: B023
        done = operator.call("validate", "--checks", ",".join(CHECKS), "--json", timeout=600)
        checked = {each["node"]: each for each in json.loads(done.stdout)["nodes"]}
        for node in lab.nodes:
            node.as_root("systemctl start gpuprov-node-health.service")
            # The first run may have read the lab's files during a write, so its findings do not count.
            now = [each for each in health(node)["findings"] if each["state"] == "active"]
            found = bad(now)
            theirs = bad([one for each in checked[node.name]["checks"] for one in each["findings"]])
            assert found == theirs, node.name
            assert {device for _, device, _ in found if device.startswith("gpu")} == {"gpu5"}, found
    finally:
        for node in lab.nodes:
            node.heal()
    gpuprov(operator, "up", "--yes", "--remove", "node_health", gpuprov_roles=[*ROLES])


def test_a_burn_finds_what_only_a_load_shows(operator: Operator, lab: Lab) -> None:
    def burned() -> dict[str, list[tuple[str, str, str]]]:
        """Return each node's findings: verdict, device, metric."""
        words = ("--checks", "gpu_burn", "--burn-seconds", "30", "--json")
        done = operator.call("validate", *words, timeout=900)
        return {
            node["node"]: [
                (finding["verdict"], finding["device"], finding["metric"])
                for check in node["checks"]
                for finding in check["findings"]
            ]
            for node in json.loads(done.stdout)["nodes"]
        }

    assert burned() == {name: [("pass", "node", "rate")] for name in ("amd-01", "amd-02")}
    lab.node("amd-01").fault("burn_errors", gpu=3, onset=8)
    lab.node("amd-02").fault("gpu_slow", gpu=5, factor=0.6)
    try:
        found = burned()
    finally:
        for node in lab.nodes:
            node.heal()
    assert found["amd-01"] == [("fail", "gpu3", "errors")]
    assert found["amd-02"] == [("fail", "gpu5", "peak")]


def test_another_release_and_back_with_a_reboot_each(operator: Operator, lab: Lab) -> None:
    for variables, module, home in ((OLDER, "6.16.6", "6.4.4"), ({}, "6.16.13", "7.2.3")):
        gpuprov(operator, "up", "--yes", **variables)
        assert counted(operator, **variables)["as_declared"] == 2
        assert modules(lab) == {module}
        for node in lab.nodes:
            assert node.run("readlink -f /opt/rocm").stdout.strip() == f"/opt/rocm-{home}"
    assert all(node.run("test -e /opt/rocm-6.4.4/bin/amd-smi").returncode == 0 for node in lab.nodes)
    gpuprov(operator, "up", "--yes", rocm_remove_others=True)
    assert all(node.run("test -e /opt/rocm-6.4.4/bin/amd-smi", check=False).returncode for node in lab.nodes)


# State after a failed build: the package's script ends with an error whenever dpkg runs it.
HALF_CONFIGURED = """
folder=/var/lib/dkms/amdgpu/6.16.13-2327507.24.04/build; mkdir -p $folder
echo "DKMS make.log for amdgpu/6.16.13-2327507.24.04 for kernel $(uname -r) (x86_64)" > $folder/make.log
echo "$folder/amd/amdkcl/kcl_drm.c:12:5: error: too few arguments" >> $folder/make.log
sed -i '/^Package: amdgpu-dkms$/,/^$/s/^Status: .*/Status: hold ok half-configured/' /var/lib/dpkg/status
printf '#!/bin/sh\\nexit 10\\n' > /var/lib/dpkg/info/amdgpu-dkms.postinst
"""


def test_a_module_that_could_not_be_built_is_taken_out_and_comes_anew(operator: Operator, lab: Lab) -> None:
    node = lab.node("amd-01")
    node.as_root(HALF_CONFIGURED)
    assert node.run("sudo dpkg --configure --pending", check=False).returncode == 1
    gpuprov(operator, "up", "--yes", "--nodes", "amd-01")
    assert counted(operator)["as_declared"] == 2
    assert "too few arguments" in node.as_root("cat /var/log/gpuprov-amdgpu-dkms.log").stdout
    node.as_root("dpkg --configure --pending && apt-get check")


def test_every_promise_is_noticed_when_broken_and_repaired_by_its_role(
    lab: Lab, operator: Operator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Walk on apt, as for the other roles: breakers.py breaks dpkg's database."""

    def say(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(text)
            sys.stdout.flush()

    node = lab.node("amd-01")
    node.as_root("apt-get update -q; apt-get install -qy --no-install-recommends initramfs-tools", 300)
    node.as_root("echo CONFIG_RD_GZIP=y > /boot/config-$(uname -r); update-initramfs -c -k $(uname -r)")
    alone = yaml.safe_load(lab.inventory.read_text())
    del alone["gpu_nodes"]["hosts"]["amd-02"]
    inventory = tmp_path / "amd-01.yml"
    inventory.write_text(yaml.safe_dump(alone))
    chosen = Operator(inventory, operator.runs)
    count, trouble = Walk(lab, chosen, WALKED, ROLES).whole(say)
    assert trouble == []
    assert set(count) == set(ROLES)


def test_each_role_is_taken_off_again(operator: Operator, lab: Lab) -> None:
    kept = [*ROLES]
    for role in (
        ("amd_container_toolkit", "amd_gpu_settings", "amd_validation_tools"),
        ("rocm", "rccl"),
        ("amdgpu_driver",),
        ("amd_repository",),
    ):
        words = [word for one in role for word in ("--remove", one)]
        kept = [one for one in kept if one not in role]
        gpuprov(operator, "up", "--yes", *words, gpuprov_roles=kept)
        assert "without anything of" in gpuprov(operator, "up", "--yes", *words, gpuprov_roles=kept)
    for node in lab.nodes:
        listed = "dpkg -l 2>/dev/null" if node.name == "amd-01" else "rpm -qa"
        left = node.run(f"{listed} | grep -E 'rocm|amdgpu|rccl|amd-smi|amd-container' || true").stdout
        assert left == "", node.name
        assert node.run("test -e /sys/module/amdgpu/version", check=False).returncode, node.name
        names = ("*rocm*", "*amdgpu*", "rccl*", "*amd-c*", "amd.json")
        files = "find /etc /usr/share/keyrings -iname " + " -o -iname ".join(f"'{name}'" for name in names)
        assert node.as_root(files).stdout == "", node.name


def test_the_roles_in_a_playbook_without_gpuprov(lab: Lab, operator: Operator, tmp_path: Path) -> None:
    """The roles have been removed from these nodes. The collection's playbook detects the vendor."""
    (tmp_path / "home").mkdir()
    stranger = Controller(tmp_path / "home", Path(sys.executable).parent)
    stranger.install(build(tmp_path))
    stranger.settings["ANSIBLE_PIPELINING"] = "1"
    chosen = ("-i", str(lab.inventory))

    def changed(done: Any) -> int:
        assert done.returncode == 0, said(done)
        return sum(each["changed"] for each in recap(done.stdout).values())

    for role in ROLES:
        changed(stranger.play(play(role), *chosen, timeout=900))
        assert changed(stranger.play(play(role), *chosen, timeout=900)) == 0, role
        assert changed(stranger.play(play(role), *chosen, "--check", timeout=900)) == 0, role
        assert counted(operator, gpuprov_roles=[role])["as_declared"] == 2
    changed(stranger.run("ansible-playbook", "gpuprov.gpu.up", *chosen, timeout=900))
    assert changed(stranger.run("ansible-playbook", "gpuprov.gpu.up", *chosen, timeout=900)) == 0
    assert counted(operator)["as_declared"] == 2
    wrong = stranger.play(play("nvidia_driver"), *chosen, timeout=900)
    assert "are not, or not all, NVIDIA's" in wrong.stdout
