"""GPU settings on lab nodes: applied, kept after a reboot, watched, and refused if impossible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator
from tests.lab.images import Images
from tests.lab.lab_nodes import running_lab

if TYPE_CHECKING:
    from tests.lab.lab_nodes import Lab, LabNode

BARE = ("nvidia_repository", "nvidia_driver", "nvlink", "gpu_settings")  # roles that a bare node needs
MIG = {"enabled": True, "profiles": {"0": ["1g.10gb", "3g.40gb"]}}
SETTINGS: dict[str, Any] = {
    "gpu_settings_power_limit": 350,
    "gpu_settings_locked_clocks": [1110, 1410],
    "gpu_settings_compute_mode": "exclusive_process",
    "gpu_settings_mig": MIG,
}
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def lab(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Yield an H100, which forgets its MIG mode, and a bare A100, which keeps it."""
    nodes = (NodeSpec("gpu-01", "h100-sxm"), NodeSpec("gpu-02", "a100-sxm-80"))
    inventory = tmp_path_factory.mktemp("lab") / "lab.yml"
    with running_lab("gpusettings", nodes, inventory, images={"gpu-01": images.h100()}) as running:
        yield running


def gpuprov(
    operator: Operator, verb: str, *words: str, roles: Sequence[str] = ("gpu_settings",), **settings: Any
) -> tuple[int, str]:
    done = operator.call(verb, *words, timeout=800, gpuprov_roles=roles, **settings)
    return done.returncode, done.stdout + done.stderr


def field(node: LabNode, name: str) -> list[str]:
    query = f"nvidia-smi --query-gpu={name} --format=csv,noheader,nounits"
    return node.run(query).stdout.splitlines()


def partitions(node: LabNode) -> str:
    """Return each GPU's number and its MIG profiles, from nvidia-smi -L."""
    lines = node.run("nvidia-smi -L").stdout.splitlines()
    return " ".join(line.split()[1].rstrip(":") for line in lines if line.strip())


def as_declared(node: LabNode) -> None:
    assert field(node, "power.limit") == ["350.00"] * 8
    assert field(node, "compute_mode") == ["Exclusive_Process"] * 8
    assert field(node, "mig.mode.current") == ["Enabled", *["Disabled"] * 7]
    assert partitions(node) == "0 3g.40gb 1g.10gb 1 2 3 4 5 6 7"


def test_nodes_get_their_settings_and_a_second_run_does_nothing(lab: Lab, operator: Operator) -> None:
    code, said = gpuprov(operator, "up", roles=BARE, **SETTINGS)
    assert code == ExitCode.OK, said
    for node in lab.nodes:
        as_declared(node)
    code, said = gpuprov(operator, "up", roles=BARE, **SETTINGS)
    assert code == ExitCode.OK, said
    assert "2 nodes already as declared" in said


def test_the_role_itself_is_changeless_and_clean_in_check_mode(operator: Operator) -> None:
    for words in ([], ["--check"]):
        code, said = gpuprov(operator, "up", "--full", *words, **SETTINGS)
        assert code == ExitCode.OK, said
        assert any(event["role"] == "gpu_settings" for event in operator.records("events"))
        assert not [event for event in operator.records("events") if event["kind"] == "changed"], said


def test_a_reboot_forgets_and_the_boot_sets_it_again(lab: Lab, operator: Operator) -> None:
    node = lab.node("gpu-01")
    node.reboot()
    node.run("sudo timeout 120 systemctl is-system-running --wait", check=False, timeout=150)
    as_declared(node)
    code, said = gpuprov(operator, "drift", **SETTINGS)
    assert code == ExitCode.OK, said


def test_a_limit_changed_by_hand_is_drift_on_that_gpu_and_the_role_alone_mends_it(
    lab: Lab, operator: Operator
) -> None:
    node = lab.node("gpu-02")
    node.run("sudo nvidia-smi -i 3 -pl 300")
    code, said = gpuprov(operator, "drift", **SETTINGS)
    assert code == ExitCode.DRIFT, said
    assert "power limit of the GPUs, in watts: 350.00 (7 times), 300.00 (index 3) is set" in said
    found = operator.drifted(gpuprov_roles=["gpu_settings"], **SETTINGS)
    assert [(fact, one["node"]) for fact, one in found.items()] == [("nvidia_smi.power.limit", "gpu-02")]
    code, said = gpuprov(operator, "up", **SETTINGS)
    assert code == ExitCode.OK, said
    as_declared(node)
    assert {event["role"] for event in operator.records("events") if event["role"]} == {"gpu_settings"}
    assert {event["node"] for event in operator.records("events")} == {"gpu-02"}


def test_partitions_taken_down_by_hand_come_back(lab: Lab, operator: Operator) -> None:
    node = lab.node("gpu-01")
    node.run("sudo nvidia-smi mig -i 0 -dci && sudo nvidia-smi mig -i 0 -dgi")
    code, said = gpuprov(operator, "drift", **SETTINGS)
    assert (code, "mig.devices" in said) == (ExitCode.DRIFT, True), said
    code, said = gpuprov(operator, "up", **SETTINGS)
    assert code == ExitCode.OK, said
    as_declared(node)


def test_a_restart_of_the_persistence_daemon_does_not_lose_them(lab: Lab) -> None:
    node = lab.node("gpu-01")
    node.run("sudo systemctl restart nvidia-persistenced.service")
    waiting = "while systemctl list-jobs --no-legend | grep -q gpuprov-gpu-settings; do sleep 0.2; done"
    node.run(f"timeout 120 sh -c '{waiting}'", timeout=150)
    as_declared(node)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"gpu_settings_power_limit": 900},
            "7: a power limit of 900 W is outside what the board allows, 200 to 700 W.",
        ),
        (
            {"gpu_settings_mig": {"enabled": True, "profiles": {"all": ["5g.40gb"]}}},
            "there is no MIG profile 5g.40gb",
        ),
        ({"gpu_settings_locked_clocks": [1111, 1410]}, "a graphics clock of 1111 MHz is not supported"),
    ],
)
def test_what_a_board_cannot_do_is_refused_and_nothing_changes(
    lab: Lab, operator: Operator, settings: dict[str, Any], words: str
) -> None:
    node = lab.node("gpu-01")
    code, said = gpuprov(operator, "up", "--nodes", "gpu-01", **{**SETTINGS, **settings})
    assert code == ExitCode.UNHEALTHY, said
    assert words in " ".join(said.split()), said
    assert "Traceback" not in said
    as_declared(node)


def test_partitions_do_not_change_under_a_running_process(lab: Lab, operator: Operator) -> None:
    node = lab.node("gpu-01")
    mark = '{"tool": "train", "pid": %d, "since": 1, "slots": [0]}'
    node.run("nohup sleep 600 >/dev/null 2>&1 & echo $! > /tmp/pid")
    pid = int(node.run("cat /tmp/pid").stdout)
    node.run(f"echo '{mark % pid}' > /var/lib/silicon/run/load.{pid}")
    other = {"enabled": True, "profiles": {"0": ["7g.80gb"]}}
    code, said = gpuprov(operator, "up", "--nodes", "gpu-01", **{**SETTINGS, "gpu_settings_mig": other})
    node.run(f"kill {pid}; rm /var/lib/silicon/run/load.{pid}")
    assert code == ExitCode.UNHEALTHY, said
    assert f"GPU 0: process {pid} (train) uses it" in " ".join(said.split()), said
    as_declared(node)


def test_another_fabric_manager_is_seen_replaced_and_started_anew_with_the_gpus(
    lab: Lab, operator: Operator
) -> None:
    """The GPUs are reset in the process, so their settings must also be restored."""
    node = lab.node("gpu-01")
    before = node.run("systemctl show --property=ActiveEnterTimestampMonotonic nvidia-fabricmanager").stdout
    other = "nvidia-fabricmanager-580=580.95.05-1"
    node.run(f"sudo apt-get install -y --allow-downgrades --allow-change-held-packages {other}")
    code, said = gpuprov(operator, "drift", roles=BARE, **SETTINGS)
    assert code == ExitCode.DRIFT, said
    for words in ("fabric.manager_version", "fabric.manager_matches_driver", "580.95.05"):
        assert words in said, said
    code, said = gpuprov(operator, "up", roles=BARE, **SETTINGS)
    assert code == ExitCode.OK, said
    after = node.run("systemctl show --property=ActiveEnterTimestampMonotonic nvidia-fabricmanager").stdout
    assert after != before
    assert field(node, "fabric.state,fabric.status") == ["state  Completed, status Success"] * 8
    as_declared(node)
    code, said = gpuprov(operator, "drift", roles=BARE, **SETTINGS)
    assert code == ExitCode.OK, said


def test_a_fabric_manager_that_is_not_the_drivers_cannot_be_declared(operator: Operator) -> None:
    code, said = gpuprov(operator, "up", roles=BARE, nvlink_version="580.95.05", **SETTINGS)
    assert code == ExitCode.ERROR, said
    assert "nvlink_version is 580.95.05, but must equal nvidia_driver_version" in said


def test_the_ecc_mode_changes_with_the_reboot_that_up_makes(lab: Lab, operator: Operator) -> None:
    node = lab.node("gpu-02")
    before = node.boot_id()
    code, said = gpuprov(operator, "up", "--nodes", "gpu-02", gpu_settings_ecc="disabled", **SETTINGS)
    assert code == ExitCode.OK, said
    assert node.boot_id() != before
    assert field(node, "ecc.mode.current") == ["Disabled"] * 8
    as_declared(node)


def test_nothing_declared_leaves_nothing_behind(lab: Lab, operator: Operator) -> None:
    node = lab.node("gpu-02")
    code, said = gpuprov(operator, "up", "--nodes", "gpu-02")
    assert code == ExitCode.OK, said
    left = node.run(
        "ls /etc/systemd/system/gpuprov-gpu-settings.service /usr/local/sbin/gpuprov-*", check=False
    )
    assert left.stdout == ""
    code, said = gpuprov(operator, "drift", "--nodes", "gpu-02")
    assert code == ExitCode.OK, said
