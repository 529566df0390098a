"""Every expectation of every role that readies a node: met, broken, reported, repaired (walk.py).
It holds after `up`; once broken, `drift` reports exactly it; `up` repairs it with its own role and runs no
other. The counts are printed as a table, role by role. Roles in service: test_expectation_walk_in_service.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from gpuprov_lab.spec import NodeSpec
from tests.lab import breakers
from tests.lab.gpuprov_up import Operator
from tests.lab.lab_nodes import Lab, running_lab
from tests.lab.walk import Walk

# B200 has the longest list (fabric manager, nvlsm, ib_umad).
NODES = (
    NodeSpec("walk-01", "b200"),
    NodeSpec("walk-02", "b200"),
    NodeSpec("walk-03", "h100-sxm", "debian12"),
    NodeSpec("walk-04", "b200"),
    NodeSpec("walk-05", "b200"),
    NodeSpec("walk-06", "b200"),
)
# Keys are real, and the walk has no copy of NVIDIA's revoked one, so it declares another.
DECLARED = {"nvidia_repository_revoked_keys": [breakers.REVOKED], "nvlink_ready_timeout": 20}
pytestmark = [pytest.mark.long, pytest.mark.timeout(5400)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab("walk", NODES, tmp_path_factory.mktemp("lab") / "lab.yml") as running:
        for node in running.nodes:  # any machine that boots by itself has an initramfs
            node.as_root(
                "apt-get update -q; apt-get install -qy --no-install-recommends initramfs-tools", 300
            )
            node.as_root(
                "echo CONFIG_RD_GZIP=y > /boot/config-$(uname -r); update-initramfs -c -k $(uname -r)"
            )
        yield running


def test_every_expectation_holds_is_noticed_when_broken_and_is_repaired_by_its_role(
    lab: Lab, operator: Operator, capsys: pytest.CaptureFixture[str]
) -> None:
    def say(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(text)
            sys.stdout.flush()

    count, trouble = Walk(lab, operator, DECLARED).whole(say)
    assert trouble == []
    assert sum(count.values()) > 150
