"""Expectations of the role receptor for each node of a two-hop mesh: settings, keys, unit."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from provision import paths
from tests.roles.promises import promised
from tests.support.described import machine

NODES = [
    {"name": "ctl", "address": "192.0.2.1", "port": 27199, "controller": True, "peers": ["near"]},
    {"name": "near", "address": "192.0.2.2", "port": 27199, "controller": False, "peers": ["far"]},
    {"name": "far", "address": "2001:db8::3", "port": 27200, "controller": False, "peers": []},
]
AUTHORITY = {
    "certificate": "CA\n",
    "key": "ab12",
    "work_public_key": "PUBLIC\n",
    "work_private_key_sha256": "0f" * 32,
}
CONFIG, TLS, DROPIN = (
    "file./etc/receptor/gpuprov.yml.content",
    "/etc/receptor/tls",
    "file./etc/systemd/system/receptor.service.d/gpuprov.conf.content",
)
WORK_PUBLIC, WORK_PRIVATE = "/etc/receptor/work-public-key.pem", "/etc/receptor/work-private-key.pem"


def of(name: str, system: str = "debian 13", **more: Any) -> dict[str, Any]:
    """Return fact → expected value on this node of the mesh."""
    declared = {"receptor_nodes": NODES, "receptor_authority": AUTHORITY, "inventory_hostname": name} | more
    expected = promised(machine(system), gpuprov_roles=["receptor"], receptor_enabled=True, **declared)
    return {fact: each.value for fact, each in expected.items()}


def settings(name: str, **more: Any) -> dict[str, list[Any]]:
    """Return the configuration as Receptor parses it: action → its parameters, in order."""
    actions: dict[str, list[Any]] = {}
    for entry in yaml.safe_load(of(name, **more)[CONFIG]):
        ((action, parameters),) = entry.items()
        actions.setdefault(action, []).append(parameters)
    return actions


def test_who_connects_where_and_who_listens_for_whom() -> None:
    ctl, near, far = (settings(name) for name in ("ctl", "near", "far"))
    assert "tcp-listener" not in ctl, "nobody connects to it"
    assert [(peer["address"], peer["allowedpeers"]) for peer in ctl["tcp-peer"]] == [
        ("192.0.2.2:27199", ["near"])
    ]
    assert [(peer["address"], peer["allowedpeers"]) for peer in near["tcp-peer"]] == [
        ("[2001:db8::3]:27200", ["far"])
    ]
    assert "tcp-peer" not in far
    for node, port, callers in ((near, 27199, ["ctl"]), (far, 27200, ["near"])):
        (listener,) = node["tcp-listener"]
        assert (listener["port"], listener["allowedpeers"]) == (port, callers)


def test_a_mesh_of_one_has_a_receptor_that_does_not_end() -> None:
    """Without any connection Receptor exits at once, and systemd would restart it forever."""
    alone = settings("ctl", receptor_nodes=[{**NODES[0], "peers": []}])
    assert alone["local-only"] == [{}]
    assert not {"tcp-listener", "tcp-peer"} & alone.keys()
    assert not any("local-only" in settings(name) for name in ("ctl", "near", "far"))


@pytest.mark.parametrize("name", ["ctl", "near", "far"])
def test_every_connection_asks_for_certificates_both_ways(name: str) -> None:
    found = settings(name)
    (server,), (client,), (control,) = found["tls-server"], found["tls-client"], found["control-service"]
    assert (server["requireclientcert"], server["clientcas"], server["mintls13"]) == (
        True,
        f"{TLS}/ca.crt",
        True,
    )
    assert (client["insecureskipverify"], client["rootcas"], client["mintls13"]) == (
        False,
        f"{TLS}/ca.crt",
        True,
    )
    for each in (*found.get("tcp-listener", []), *found.get("tcp-peer", []), control):
        assert each["tls"] == server["name"] == client["name"] == "mesh"
    assert "skipreceptornamescheck" not in server.keys() | client.keys()
    assert (control["service"], control["permissions"]) == ("control", 0o660)


def test_work_is_of_one_type_signed_and_without_arguments() -> None:
    for name in ("near", "far"):
        found = settings(name, gpuprov_worker_python="/opt/gpuprov/bin/python")
        assert found["work-command"] == [
            {
                "worktype": "gpuprov-worker",
                "command": "/opt/gpuprov/bin/python",
                "params": "-P -m provision.remote.worker_program.worker_entry",
                "allowruntimeparams": False,
                "verifysignature": True,
            }
        ]
        assert found["work-verification"] == [{"publickey": WORK_PUBLIC}]
        assert "work-signing" not in found
    ctl = settings("ctl")
    assert ctl["work-signing"][0]["privatekey"] == WORK_PRIVATE
    assert not {"work-command", "work-verification", "work-kubernetes", "work-python"} & ctl.keys()


def test_a_worker_takes_work_from_controllers_alone() -> None:
    (near,), (ctl,) = settings("near")["node"], settings("ctl")["node"]
    assert near["firewallrules"] == [
        {"action": "accept", "fromnode": "ctl", "tonode": "near", "toservice": "control"},
        {"action": "reject", "tonode": "near", "toservice": "control"},
    ]
    assert "firewallrules" not in ctl
    assert (near["id"], near["datadir"]) == ("near", "/run/receptor/data")


def test_the_key_that_signs_is_on_a_controller_alone() -> None:
    ctl, near = of("ctl"), of("near")
    assert ctl[f"file.{WORK_PRIVATE}.sha256"] == AUTHORITY["work_private_key_sha256"]
    assert (ctl[f"file.{WORK_PRIVATE}.mode"], ctl[f"file.{WORK_PRIVATE}.owner"]) == ("0640", "root:receptor")
    assert f"file.{WORK_PUBLIC}.content" not in ctl
    assert near[f"file.{WORK_PRIVATE}.exists"] is False
    assert near[f"file.{WORK_PUBLIC}.content"] == AUTHORITY["work_public_key"]


def test_a_certificate_has_the_name_and_the_address_that_others_connect_to() -> None:
    fact = f"certificate.{TLS}/node.crt"
    assert of("ctl")[f"{fact}.names"] == ["receptor:ctl"]
    assert of("near")[f"{fact}.names"] == ["receptor:near", "IP:192.0.2.2"]
    assert of("far")[f"{fact}.names"] == ["receptor:far", "IP:2001:db8::3"]
    named = [dict(NODES[0]), {**NODES[1], "address": "near.example.org"}, NODES[2]]
    assert of("near", receptor_nodes=named)[f"{fact}.names"] == ["receptor:near", "DNS:near.example.org"]
    assert of("near", receptor_renew_days=30)[f"{fact}.days_left"] == 30
    assert of("near")[f"{fact}.issuer_key"] == AUTHORITY["key"]


def test_before_there_is_an_authority_nothing_is_compared_with_it() -> None:
    known, unknown = of("near"), of("near", receptor_authority={})
    assert known.keys() - unknown.keys() == {
        f"certificate.{TLS}/node.crt.issuer_key",
        f"file.{TLS}/ca.crt.content",
        f"file.{WORK_PUBLIC}.content",
    }


def test_the_service_runs_as_an_ordinary_user_within_limits() -> None:
    unit = of("near", receptor_user="deploy", receptor_socket_group="ops", receptor_memory_max="4G")[DROPIN]
    for line in (
        "User=deploy", "Group=ops", "SupplementaryGroups=receptor", "MemoryMax=4G", "TasksMax=16384",
        "KillMode=process", "NoNewPrivileges=yes", "CapabilityBoundingSet=", "ExecStart=",
        "ConditionPathExists=/etc/receptor/gpuprov.yml",
    ):  # fmt: skip
        assert line in unit.splitlines(), line
    assert of("near", receptor_user="deploy")["file./run/receptor/data.owner"] == "deploy:receptor"


def test_root_makes_nothing_in_a_folder_of_the_units_user() -> None:
    """The unit's user could link the data folder elsewhere, and root would change the target's owner."""
    for group in ("receptor", "operators"):
        dropin = of("near", receptor_socket_group=group)[DROPIN]
        (line,) = [one for one in dropin.splitlines() if one.startswith("ExecStartPre=/")]
        assert line == "ExecStartPre=/usr/bin/install -d -m 0700 -g receptor /run/receptor/data"
        assert not [one for one in dropin.splitlines() if one.startswith(("ExecStart=+", "ExecStartPre=+"))]
    tasks = yaml.safe_load((paths.ROLES / "receptor/tasks/configure.yml").read_text(encoding="utf-8"))
    (made,) = [one for one in tasks if "{{ receptor_data_folder }}" in str(one)]
    assert made["ansible.builtin.file"]["follow"] is False


def test_a_repository_is_the_business_of_dnf_alone() -> None:
    named = {
        "receptor_repository_url": "http://mirror.example/receptor/",
        "receptor_repository_key_fingerprint": "a1 b2",
    }
    source = "file./etc/yum.repos.d/gpuprov-receptor.repo.content"
    assert source not in of("near", **named)
    found = of("near", "rocky 9.4", **named)
    assert "baseurl=http://mirror.example/receptor/\n" in found[source]
    assert found["pgp_key./etc/pki/rpm-gpg/RPM-GPG-KEY-gpuprov-receptor.fingerprints"] == ["A1B2"]
    assert source not in of("near", "rocky 9.4")
