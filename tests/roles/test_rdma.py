"""Expectations of the role rdma for stack, limits and ports, and the RoCE settings of its program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.roles.promises import promised
from tests.roles.scripts import Stage, needs_root
from tests.support.described import machine

PROGRAM = "file./usr/local/sbin/gpuprov-rdma-roce.content"
DOCA = {"rdma_source": "doca", "rdma_doca_key_fingerprint": "AB" * 20}
IB = {"device": "mlx5_0", "link_layer": "InfiniBand", "rate": 400, "pkey": "0x8001"}
ROCE = {"device": "mlx5_bond_0", "link_layer": "Ethernet", "rate": 200}
SETTINGS = {"rdma_roce_netdev_mtu": 9000, "rdma_roce_traffic_class": 106, "rdma_roce_pfc_priority": 3}


def ours(gpuprov_node: dict[str, Any] | None = None, /, **declared: Any) -> dict[str, Any]:
    return {fact: each for fact, each in promised(gpuprov_node, **declared).items() if each.role == "rdma"}


# --- stack


@pytest.mark.parametrize(
    ("gpuprov_node", "folder"),
    [
        (machine("debian 13"), "3.2.1/debian13/x86_64"),
        (machine("ubuntu 22.04"), "3.2.1/ubuntu22.04/x86_64"),
        (machine("ubuntu 24.04", "aarch64"), "3.2.1/ubuntu24.04/arm64-sbsa"),
    ],
)
def test_doca_comes_from_the_folder_of_one_release(gpuprov_node: dict[str, Any], folder: str) -> None:
    facts = ours(gpuprov_node, **DOCA)
    source = facts["file./etc/apt/sources.list.d/nvidia-doca.sources.content"].value
    assert f"URIs: https://linux.mellanox.com/public/repo/doca/{folder}/\nSuites: ./\n" in source
    assert facts["pgp_key./usr/share/keyrings/nvidia-doca.gpg.fingerprints"].value == ["AB" * 20]
    assert "package.rdma-core.status" not in facts, "DOCA-OFED brings its own"


@pytest.mark.parametrize("system", ["rhel 9.4", "rocky 9", "almalinux 10.1"])
def test_the_rhel_family_has_one_folder_per_major_release(system: str) -> None:
    facts = ours(machine(system), **DOCA)
    text = facts["file./etc/yum.repos.d/nvidia-doca.repo.content"].value
    assert f"/doca/3.2.1/rhel{system.split()[1].split('.')[0]}/x86_64/\n" in text
    assert "gpgcheck=1\ngpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-nvidia-doca\n" in text


def test_the_declared_release_is_promised_whole() -> None:
    version = ours(**DOCA)["package.doca-ofed.version"]
    assert version.holds("3.2.1-044000")
    assert version.holds("3.2.1.0.44-1")
    assert not version.holds("3.2.10-1")
    assert not version.holds("3.3.0-1")
    assert not version.holds(None)


def test_modules_built_before_ofed_are_drift_and_no_driver_is_none() -> None:
    built = ours(**DOCA)["rdma.peermem"]
    assert [built.holds(kind) for kind in ("ofed", "absent", "plain")] == [True, True, False]
    assert "rdma.peermem" not in ours()
    assert ours(**DOCA)["rdma.core_stale"].reboot
    assert "rdma.core_stale" not in ours()


def test_the_distributions_stack_tolerates_no_source_of_the_other() -> None:
    assert ours()["file./etc/apt/sources.list.d/nvidia-doca.sources.content"].value is None


# --- limits


def test_limits_are_promised_as_they_are_in_force() -> None:
    facts = ours(rdma_memlock_services=["slurmd.service"])
    assert facts["limits.session.memlock"].holds("unlimited")
    assert not facts["limits.session.memlock"].holds("8192")
    assert facts["limits.systemd.memlock"].holds("unlimited")
    service = facts["limits.slurmd.service.memlock"]
    assert [service.holds(limit) for limit in ("unlimited", "absent", "64")] == [True, True, False]
    dropin = facts["file./etc/systemd/system/slurmd.service.d/90-gpuprov-rdma.conf.content"].value
    assert dropin.endswith("[Service]\nLimitMEMLOCK=infinity\n")


# --- ports


def test_an_infiniband_port() -> None:
    facts = ours(rdma_expected_ports=[IB])
    port = {
        fact.rpartition(".")[2]: each for fact, each in facts.items() if fact.startswith("rdma.mlx5_0/1.")
    }
    assert set(port) == {"state", "link_layer", "rate", "active_mtu", "sm_seen", "pkeys"}
    assert port["rate"].value == 400
    assert port["active_mtu"].value == 4096
    assert port["pkeys"].holds(["0x7fff", "0x8001"])
    assert not port["pkeys"].holds(["0x7fff"])
    assert facts[PROGRAM].value is None, "the subnet manager decides, nothing is to be set"


def test_a_roce_port_is_observed_and_set_only_where_something_is_declared() -> None:
    watched = ours(rdma_expected_ports=[ROCE])
    names = {fact.rpartition(".")[2] for fact in watched if fact.startswith("rdma.mlx5_bond_0/1.")}
    assert names == {"state", "link_layer", "rate", "active_mtu", "roce_v2_ipv4"}
    assert watched["rdma.mlx5_bond_0/1.roce_v2_ipv4"].holds([1, 3])
    assert not watched["rdma.mlx5_bond_0/1.roce_v2_ipv4"].holds([1, 5])
    assert watched[PROGRAM].value is None

    facts = ours(rdma_expected_ports=[IB, ROCE], **SETTINGS)
    assert facts["rdma.mlx5_bond_0/1.netdev_mtu"].value == 9000
    assert facts["rdma.mlx5_bond_0/1.roce_tos"].value == 106
    assert facts["rdma.mlx5_bond_0/1.pfc"].value == [3]
    assert "rdma.mlx5_0/1.pfc" not in facts
    assert "rdma.mlx5_bond_0/1.traffic_class" not in facts, "the inbox driver has no such file"
    assert "rdma.mlx5_bond_0/1.traffic_class" in ours(rdma_expected_ports=[ROCE], **SETTINGS, **DOCA)
    assert "\nsettle mlx5_bond_0 1\n" in facts[PROGRAM].value
    assert "settle mlx5_0" not in facts[PROGRAM].value


def test_trust_and_congestion_notifications_are_promised_where_they_are_declared() -> None:
    declared = {"rdma_roce_trust": "dscp", "rdma_roce_ecn_priorities": [4, 3]}
    facts = ours(rdma_expected_ports=[IB, ROCE], **declared, **DOCA)
    trust, ecn = (facts[f"rdma.mlx5_bond_0/1.{name}"] for name in ("roce_trust", "roce_ecn"))
    assert [trust.holds(found) for found in ("dscp", "pcp", None)] == [True, False, False]
    assert [ecn.holds(found) for found in ([3, 4], [3], [], None)] == [True, False, False, False]
    assert (trust.step, ecn.step) == ("roce", "roce")
    assert not any("mlx5_0/1.roce_" in fact for fact in facts), "InfiniBand has none"
    assert facts[PROGRAM].value


# --- the program


@pytest.fixture
def stage(stage: Stage, tmp_path: Path) -> Stage:
    port = "class/infiniband/mlx5_bond_0/ports/1"
    stage.file(f"{port}/link_layer", "Ethernet\n")
    stage.file(f"{port}/gid_attrs/ndevs/0", "eth2\n")
    stage.file("class/net/eth2/mtu", "1500\n")
    tos = stage.file("kernel/config/rdma_cm/mlx5_bond_0/ports/1/default_roce_tos", "0\n")
    assert tos.exists()
    stage.program("modprobe", "")
    stage.program("ip", 'for word; do mtu=$word; done; echo "$mtu" > /sys/class/net/eth2/mtu')
    states = f"{tmp_path}/pfc"
    Path(states).write_text("prio-pfc 0:off 1:off 2:off 3:off 4:off 5:off 6:off 7:off\n")
    on = "prio-pfc 0:off 1:off 2:off 3:on 4:off 5:off 6:off 7:off"
    stage.program("dcb", f'case "$*" in *show*) cat {states};; "pfc set"*) echo "{on}" > {states};; esac')
    return stage


def program(**declared: Any) -> str:
    return str(ours(rdma_expected_ports=[ROCE], **{**SETTINGS, **declared})[PROGRAM].value)


@needs_root
def test_mtu_mark_and_flow_control_are_set_once(stage: Stage) -> None:
    done = stage.run(program())
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == [
        *("eth2", "/sys/kernel/config/rdma_cm/mlx5_bond_0/ports/1/default_roce_tos", "eth2"),
    ]
    assert stage.ran("ip") == ["ip link set dev eth2 mtu 9000"]
    assert "dcb pfc set dev eth2 prio-pfc all:off 3:on" in stage.ran("dcb")
    assert "dcb app replace dev eth2 dscp-prio 26:3" in stage.ran("dcb")
    again = stage.run(program())
    assert (again.returncode, again.stdout) == (0, "")
    assert len(stage.ran("ip")) == 1


@needs_root
def test_with_doca_its_own_tool_and_file_are_used(stage: Stage) -> None:
    forced = stage.file("class/infiniband/mlx5_bond_0/tc/1/traffic_class", "Global tclass=0\n")
    stage.program("mlnx_qos", "")
    done = stage.run(program())
    assert (done.returncode, done.stderr) == (0, "")
    assert stage.ran("mlnx_qos") == ["mlnx_qos -i eth2 --trust dscp --pfc 0,0,0,1,0,0,0,0"]
    assert forced.read_text() == "106\n"
    forced.write_text("Global tclass=106\n")
    assert "traffic_class" not in stage.run(program()).stdout


QOS = """case "$*" in
"-i eth2") echo "Priority trust state: $(cat {state})"; echo "PFC configuration:";;
*--trust*) echo "$4" > {state};;
esac"""


@needs_root
@pytest.mark.parametrize(("trust", "other"), [("dscp", "pcp"), ("pcp", "dscp")])
def test_trust_and_congestion_notifications_are_set_once_with_doca(
    stage: Stage, tmp_path: Path, trust: str, other: str
) -> None:
    state = tmp_path / "trust"
    state.write_text(f"{other}\n")
    stage.program("mlnx_qos", QOS.format(state=state))
    files = {
        (part, priority): stage.file(f"class/net/eth2/ecn/{part}/enable/{priority}", "1\n")
        for part in ("roce_np", "roce_rp")
        for priority in range(8)
    }
    only = {**dict.fromkeys(SETTINGS), "rdma_roce_trust": trust, "rdma_roce_ecn_priorities": [3], **DOCA}
    done = stage.run(program(**only))
    assert (done.returncode, done.stderr) == (0, "")
    assert state.read_text() == f"{trust}\n"
    assert f"eth2: trusts {trust}" in done.stdout
    assert {key for key, file in files.items() if file.read_text() == "1\n"} == {
        ("roce_np", 3),
        ("roce_rp", 3),
    }
    assert stage.run(program(**only)).stdout == ""
    assert stage.ran("ip") == []


@needs_root
def test_without_the_files_of_doca_congestion_notifications_are_a_failure(stage: Stage) -> None:
    done = stage.run(program(rdma_roce_ecn_priorities=[3], **DOCA))
    assert done.returncode == 1
    assert "/sys/class/net/eth2/ecn/roce_np/enable is missing" in done.stderr


@needs_root
def test_the_inbox_driver_trusts_dscp_by_a_rule_and_pcp_without_one(stage: Stage, tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.write_text("")
    stage.program(
        "dcb",
        f'case "$*" in "-N app show"*) cat {rules};; "app show"*) sed s/26:/AF31:/ {rules};; '
        f'"app replace"*) echo "dscp-prio $6" > {rules};; '
        f'"app flush"*) : > {rules};; esac',
    )
    only = {"rdma_roce_trust": "dscp", "rdma_roce_netdev_mtu": None}
    stage.run(program(**only))
    assert rules.read_text() == "dscp-prio 26:3\n"
    assert "trusts" not in stage.run(program(**only)).stdout
    assert "eth2: trusts pcp" in stage.run(program(**{**only, "rdma_roce_trust": "pcp"})).stdout
    assert rules.read_text() == ""
    assert "trusts" not in stage.run(program(**{**only, "rdma_roce_trust": "pcp"})).stdout


@needs_root
def test_flow_control_on_more_than_the_priority_is_corrected(stage: Stage) -> None:
    (stage.folder / "pfc").write_text("prio-pfc 0:off 1:off 2:off 3:on 4:off 5:on 6:off 7:off\n")
    assert "flow control on priority 3" in stage.run(program()).stdout


@needs_root
@pytest.mark.parametrize("layer", ["InfiniBand\n", None])
def test_nothing_of_roce_is_set_on_another_link_layer(stage: Stage, layer: str | None) -> None:
    stage.program("sleep", "")
    file = stage.sys / "class/infiniband/mlx5_bond_0/ports/1/link_layer"
    file.unlink()
    if layer:
        file.write_text(layer)
    done = stage.run(program())
    assert done.returncode == 1
    assert "mlx5_bond_0 port 1" in done.stderr
    assert "RoCE needs Ethernet" in done.stderr
    assert stage.ran("ip") + stage.ran("dcb") == []


@needs_root
def test_what_a_card_does_not_take_is_said_and_the_rest_is_set(stage: Stage) -> None:
    stage.program("ip", "exit 2")
    done = stage.run(program())
    assert done.returncode == 1
    assert "eth2 does not take an MTU of 9000" in done.stderr
    assert "flow control on priority 3" in done.stdout
