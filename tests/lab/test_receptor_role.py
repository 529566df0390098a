"""A mesh of three lab nodes with Debian's own Receptor: one reaches the controller over another."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, said
from tests.lab.lab_nodes import Lab, running_lab
from tests.support import modules

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

NAMES = ("ctl", "near", "far")
CONFIG, FOLDER = "/etc/receptor/gpuprov.yml", "/etc/receptor/tls"
CTL = "receptorctl --socket /run/receptor/receptor.sock"
SUBMIT = f"timeout 60 {CTL} work submit gpuprov-worker --tls-client mesh -f --rm"
# Stand-in for a worker's program: prints its input and its arguments.
WORKER = '#!/bin/sh\necho "$(id -un) $*: $(cat)"\n'
ASK = """\
set -e
rm -rf /tmp/stranger; mkdir -p /tmp/stranger/data; cd /tmp/stranger
receptor --cert-makereq bits=2048 commonname=ctl nodeid=ctl outreq=node.csr outkey=node.key
cat node.csr
"""
STRANGER = f"""\
cd /tmp/stranger; cat > node.crt
cat > config.yml <<END
- node: {{id: ctl, datadir: /tmp/stranger/data}}
- tls-client: {{name: mesh, cert: node.crt, key: node.key, rootcas: {FOLDER}/ca.crt, mintls13: true}}
- tcp-peer: {{address: "ADDRESS:27199", redial: false, tls: mesh}}
END
timeout 5 receptor -c config.yml || true
rm -rf /tmp/stranger
"""
# A mesh node that is not listed as a peer by the node it connects to.
UNNAMED = f"""\
cat > /tmp/unnamed.yml <<END
- node: {{id: far, datadir: /tmp/unnamed}}
- tls-client: {{name: mesh, cert: {FOLDER}/node.crt, key: {FOLDER}/node.key, rootcas: {FOLDER}/ca.crt}}
- tcp-peer: {{address: "ADDRESS:27199", redial: false, tls: mesh}}
END
mkdir -p /tmp/unnamed; timeout 5 receptor -c /tmp/unnamed.yml || true; rm -rf /tmp/unnamed /tmp/unnamed.yml
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = tuple(NodeSpec(name, "l40s") for name in NAMES)
    with running_lab("rcp", nodes, tmp_path_factory.mktemp("lab") / "lab.yml") as running:
        ctl = running.node("ctl")
        cut = ["ip", "netns", "exec", f"{running.record.place.namespace_prefix}far"]
        subprocess.run([*cut, "ip", "route", "add", "blackhole", ctl.address], check=True, timeout=30)
        yield running


@pytest.fixture(scope="module", autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield gpuprov's state folder for the authority."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield folder / "gpuprov" / "receptor"


@pytest.fixture(scope="module")
def operator(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Operator:
    declared = yaml.safe_load(lab.inventory.read_text())
    declared["gpuprov_workers"] = {
        "hosts": {
            "ctl": {"receptor_controller": True, "receptor_peers": ["near"]},
            "near": {"receptor_peers": ["far"]},
            "far": {},
        },
        "vars": {"gpuprov_worker_python": "/usr/local/bin/worker-python"},
    }
    inventory = tmp_path_factory.mktemp("inventory") / "nodes.yml"
    inventory.write_text(yaml.safe_dump(declared))
    for name in ("near", "far"):
        lab.node(name).as_root(
            "cat > /usr/local/bin/worker-python && chmod 755 /usr/local/bin/worker-python", said=WORKER
        )
    return Operator(inventory, tmp_path_factory.mktemp("runs"))


def waited(holds: Callable[[], Any], limit: float = 120) -> Any:
    """Wait until the result is true, and return it."""
    begun = time.monotonic()
    while time.monotonic() - begun < limit:
        if found := holds():
            return found
        time.sleep(2)
    return pytest.fail(f"not within {limit:.0f} s")


def routes(lab: Lab) -> dict[str, str]:
    done = lab.node("ctl").as_root(f"{CTL} status --json")
    found: dict[str, str] = json.loads(done.stdout)["RoutingTable"]
    return found


def log(lab: Lab, name: str) -> str:
    return lab.node(name).as_root("journalctl -u receptor -o cat --no-pager").stdout


def changed(operator: Operator) -> list[str]:
    return [str(event["task"]) for event in operator.records("events") if event["kind"] == "changed"]


def test_up_makes_the_mesh_and_a_second_run_changes_nothing(
    lab: Lab, operator: Operator, state: Path
) -> None:
    done = operator.call("up", "--yes", timeout=1200)
    assert done.returncode == ExitCode.OK, said(done)
    assert waited(lambda: {"near", "far"} <= routes(lab).keys())
    assert routes(lab) == {"near": "near", "far": "near"}
    assert (state / "ca.key").stat().st_mode & 0o777 == 0o600
    drift = operator.call("drift")
    assert drift.returncode == ExitCode.OK, said(drift)
    again = operator.call("up", "--yes", "--full", timeout=1200)
    assert again.returncode == ExitCode.OK, said(again)
    assert [event for event in operator.records("events") if event["role"] == "receptor"]
    assert changed(operator) == []


def test_no_private_key_is_in_a_run_folder_and_none_of_a_node_on_the_controller(
    lab: Lab, operator: Operator, state: Path
) -> None:
    keys = [lab.node(name).as_root(f"cat {FOLDER}/node.key").stdout for name in NAMES]
    keys += [(state / name).read_text() for name in ("ca.key", "work-private-key.pem")]
    secrets = {line for key in keys for line in key.splitlines()[1:-1]}
    assert len(secrets) > 100
    files = [file for file in operator.runs.rglob("*") if file.is_file()]
    assert files
    for file in files:
        text = file.read_bytes().decode("utf-8", "replace")
        assert "PRIVATE KEY" not in text, file
        assert not [line for line in secrets if line in text], file
    of_nodes = {line for key in keys[:3] for line in key.splitlines()[1:-1]}
    kept = "".join(file.read_text() for file in state.iterdir())
    assert not [line for line in of_nodes if line in kept]
    for name in ("near", "far"):
        assert lab.node(name).run("ls /etc/receptor").stdout.split() == [
            "gpuprov.yml", "receptor.conf", "tls", "work-public-key.pem",
        ]  # fmt: skip


@pytest.mark.usefixtures("operator")
def test_signed_work_of_the_one_type_runs_two_hops_away_as_an_ordinary_user(lab: Lab) -> None:
    ctl = lab.node("ctl")
    done = ctl.as_root(f"{SUBMIT} --node far --signwork --payload-literal hello")
    assert "receptor -P -m provision.remote.worker_program.worker_entry: hello" in done.stdout
    signed = f"{SUBMIT} --node far --signwork --payload-literal hello"
    for words, refusal in (
        (signed.replace("--signwork", ""), "could not verify signature: signature is empty"),
        (f"{signed} --param params=-x", "extra params provided but not allowed"),
        (signed.replace("--tls-client mesh", ""), "insecure connection to secure service"),
        (signed.replace("gpuprov-worker", "bash"), "work type did not expect a signature"),
    ):
        refused = ctl.run(f"sudo {words}", check=False)
        assert refusal in refused.stdout + refused.stderr, words


@pytest.mark.usefixtures("operator")
def test_a_worker_gives_no_work(lab: Lab) -> None:
    lab.node("near").run(f"sudo timeout 10 {SUBMIT} --node far --payload-literal x", check=False)
    assert "blocked by firewall" in log(lab, "near")


@pytest.mark.usefixtures("operator")
def test_who_may_not_connect_is_refused(lab: Lab, tmp_path: Path) -> None:
    """Try a certificate of another authority of the same name, and a node that is no peer of this one."""
    near, far, ctl = lab.node("near"), lab.node("far"), lab.node("ctl")
    module = modules.load("gpuprov_receptor_authority")
    other, _ = module.opened(str(tmp_path / "other"), 10, False)
    key = module.asked_key(ctl.run("sudo sh -s", said=ASK).stdout, "ctl")
    ctl.as_root(STRANGER.replace("ADDRESS", near.address), said=module.pem(other.sign(key, "ctl", "", 10)))
    assert "x509: certificate signed by unknown authority" in log(lab, "near")
    far.run("sudo sh -s", said=UNNAMED.replace("ADDRESS", near.address))
    assert "rejected connection with node far because it is not in the allowed peers list" in log(lab, "near")
    assert waited(lambda: routes(lab) == {"near": "near", "far": "near"})


@pytest.mark.usefixtures("operator")
def test_work_goes_on_while_the_service_restarts(lab: Lab) -> None:
    ctl, far = lab.node("ctl"), lab.node("far")
    slow = WORKER.replace("echo", "sleep 15; echo")
    far.as_root("cat > /usr/local/bin/worker-python", said=slow)
    unit = ctl.as_root(
        f"{CTL} work submit gpuprov-worker --tls-client mesh --node far --signwork --payload-literal slow"
    ).stdout.split()[-1]
    waited(lambda: far.run("pgrep -f worker-python", check=False).stdout.strip())
    far.as_root("systemctl restart receptor")
    done = ctl.as_root(f"timeout 90 {CTL} work results {unit}")
    assert "worker_entry: slow" in done.stdout
    ctl.as_root(f"{CTL} work release {unit}")
    far.as_root("cat > /usr/local/bin/worker-python", said=WORKER)


def test_what_somebody_changed_is_drift_and_repaired(lab: Lab, operator: Operator) -> None:
    near, far, ctl = lab.node("near"), lab.node("far"), lab.node("ctl")
    near.as_root(
        f"sed -i 's/verifysignature: true/verifysignature: false/' {CONFIG}; chmod 644 {FOLDER}/node.key"
    )
    ctl.as_root("sed -i 2d /etc/receptor/work-private-key.pem; chmod 755 /run/receptor/data")
    # A different key with a self-signed certificate, with which it would not start.
    far.as_root(
        f"cd {FOLDER}; systemctl stop receptor; receptor --cert-makereq bits=2048 commonname=x nodeid=x"
        " outreq=/tmp/x.csr outkey=node.key; receptor --cert-init commonname=far bits=2048 outcert=node.crt"
        " outkey=/tmp/x.key; rm /tmp/x.*"
    )
    facts = operator.drifted()
    assert facts.keys() == {
        f"file.{CONFIG}.content",
        f"file.{FOLDER}/node.key.mode",
        "file./etc/receptor/work-private-key.pem.sha256",
        "file./run/receptor/data.mode",
        f"certificate.{FOLDER}/node.crt.key_fits",
        f"certificate.{FOLDER}/node.crt.issuer_key",
        f"certificate.{FOLDER}/node.crt.names",
        "service.receptor.service.active",
        "tcp.27199.listening",
    }
    done = operator.call("up", "--yes", timeout=1200)
    assert done.returncode == ExitCode.OK, said(done)
    assert operator.drifted() == {}
    assert waited(lambda: routes(lab) == {"near": "near", "far": "near"})


def test_a_certificate_that_expires_soon_is_drift_and_renewed(lab: Lab, operator: Operator) -> None:
    far = lab.node("far")
    before = far.as_root(f"sha256sum {FOLDER}/node.crt {FOLDER}/node.key").stdout.split()
    sooner = {"receptor_certificate_days": 500, "receptor_renew_days": 400}
    facts = operator.drifted(**sooner)
    assert facts.keys() == {f"certificate.{FOLDER}/node.crt.days_left"}
    done = operator.call("up", "--yes", "--nodes", "far", timeout=1200, **sooner)
    assert done.returncode == ExitCode.OK, said(done)
    after = far.as_root(f"sha256sum {FOLDER}/node.crt {FOLDER}/node.key").stdout.split()
    assert (before[0] != after[0], before[2] == after[2]) == (True, True), "a new certificate of the same key"
    assert waited(lambda: routes(lab) == {"near": "near", "far": "near"})


def test_a_node_whose_certificate_has_expired_is_refused_and_renewed(
    lab: Lab, operator: Operator, state: Path
) -> None:
    far, module = lab.node("far"), modules.load("gpuprov_receptor_authority")
    key = module.asked_key(far.as_root(f"cat {FOLDER}/node.csr").stdout, "far")
    expired = module.pem(module.Authority(str(state)).sign(key, "far", far.address, 0))
    far.as_root(f"cat > {FOLDER}/node.crt; systemctl restart receptor", said=expired)
    assert waited(lambda: "x509: certificate has expired or is not yet valid" in log(lab, "near"))
    facts = operator.drifted()
    assert facts.keys() == {f"certificate.{FOLDER}/node.crt.days_left"}
    assert facts[f"certificate.{FOLDER}/node.crt.days_left"]["found"] < 0
    done = operator.call("up", "--yes", timeout=1200)
    assert done.returncode == ExitCode.OK, said(done)
    assert waited(lambda: routes(lab) == {"near": "near", "far": "near"})


def test_after_a_boot_it_is_back(lab: Lab, operator: Operator) -> None:
    lab.node("near").reboot()
    assert waited(lambda: routes(lab) == {"near": "near", "far": "near"})
    assert operator.drifted() == {}


def test_removal_leaves_nothing(lab: Lab, operator: Operator, state: Path) -> None:
    done = operator.call("up", "--yes", "--remove", "receptor", timeout=1200)
    assert done.returncode == ExitCode.OK, said(done)
    for name in NAMES:
        node = lab.node(name)
        gone = "/etc/receptor /run/receptor /var/lib/receptor /etc/systemd/system/receptor.service.d"
        assert node.run(f"ls -d {gone}", check=False).stdout == ""
        assert (
            "receptor"
            not in node.run("cat /etc/passwd /etc/group; ps -eo args; systemctl list-units --all").stdout
        )
        assert "receptor" not in node.run("dpkg-query --show --showformat '${Package} '").stdout
    assert (state / "ca.crt").exists(), "the authority is the operator's"
