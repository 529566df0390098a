"""A worker of the RHEL family, with a Receptor from a repository that the operator declares."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
import yaml

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, said
from tests.lab.lab_nodes import Lab, running_lab

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]

STATUS = "receptorctl --socket /run/receptor/receptor.sock status --json"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = (NodeSpec("ctl", "l40s"), NodeSpec("el", "l40s", "rhel9"))
    with running_lab("rcp", nodes, tmp_path_factory.mktemp("lab") / "lab.yml") as running:
        yield running


@pytest.fixture(scope="module")
def operator(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    declared = yaml.safe_load(lab.inventory.read_text())
    tools = declared["gpu_nodes"]["hosts"]["el"]
    site = {
        "receptor_repository_url": tools["nvidia_repository_tools_url"],
        "receptor_repository_key_url": tools["nvidia_repository_tools_key_url"],
        "receptor_repository_key_fingerprint": declared["gpu_nodes"]["vars"][
            "nvidia_repository_tools_key_fingerprint"
        ],
    }
    declared["gpuprov_workers"] = {"hosts": {"ctl": {"receptor_controller": True}, "el": {}}, "vars": site}
    inventory = tmp_path_factory.mktemp("inventory") / "nodes.yml"
    inventory.write_text(yaml.safe_dump(declared))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield Operator(inventory, tmp_path_factory.mktemp("runs"))


def routes(lab: Lab) -> dict[str, str]:
    found: dict[str, str] = json.loads(lab.node("ctl").as_root(STATUS).stdout)["RoutingTable"]
    return found


def test_without_the_repository_it_is_said_what_to_set(operator: Operator) -> None:
    done = operator.call("up", "--yes", "--nodes", "el", timeout=900, receptor_repository_url="")
    assert done.returncode != ExitCode.OK
    assert "receptor_repository_url" in said(done)


def test_a_worker_of_the_rhel_family_joins_the_mesh_and_leaves_it(lab: Lab, operator: Operator) -> None:
    ctl, el = lab.node("ctl"), lab.node("el")
    done = operator.call("up", "--yes", "--nodes", "ctl", timeout=900)
    assert done.returncode == ExitCode.OK, said(done)
    program = ctl.run("base64 /usr/bin/receptor", timeout=300).stdout
    where = "/usr/local/libexec/receptor"
    el.as_root(
        f"mkdir -p /usr/local/libexec; base64 -d > {where}; chmod 755 {where}", timeout=300, said=program
    )
    done = operator.call("up", "--yes", "--nodes", "el", timeout=900)
    assert done.returncode == ExitCode.OK, said(done)
    deadline = time.monotonic() + 120
    while routes(lab) != {"el": "el"}:
        assert time.monotonic() < deadline, routes(lab)
        time.sleep(2)
    again = operator.call("up", "--yes", "--full", timeout=900)
    assert again.returncode == ExitCode.OK, said(again)
    assert [str(event["task"]) for event in operator.records("events") if event["kind"] == "changed"] == []
    assert operator.drifted() == {}
    done = operator.call("up", "--yes", "--nodes", "el", "--remove", "receptor", timeout=900)
    assert done.returncode == ExitCode.OK, said(done)
    left = "/etc/receptor /run/receptor /var/lib/receptor /etc/yum.repos.d/gpuprov-receptor.repo"
    assert el.run(f"ls -d {left}; rpm --query receptor; id receptor", check=False).stdout.split("\n")[
        :-1
    ] == ["package receptor is not installed"]
