"""Ctrl-C in the middle of each check, on nodes of two vendors: nothing of the run is left there."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.checks.judging.table import BUILT_IN
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, said
from tests.lab.lab_nodes import Lab, running_lab

NODES = ("h1", "h2", "a1", "a2")
QUICK = ("gpu_inventory", "versions", "host_health", "network_ports")
# Checks that end at once on these nodes: no role installs fio or torch, and DCGM comes only with the
# exporters; the last is for AMD GPUs only.
NOT_HERE = ("disk_speed", "ddp_scaling", "dcgm_diag", "amd_acceptance")
CHECKS = [one.id for one in BUILT_IN if one.id not in (*QUICK, *NOT_HERE)]
DECLARED = {
    "amd_validation_tools_mpi": True,
    "validation_tools_mpi": True,
    "validation_tools_dcgm_level": 3,
    "validation_tools_scratch_dir": "/var/tmp",
}
SECONDS = 10.0
# Matches the environment of the run's programs, their children and the module itself.
LEFT = "grep -lzs -e '^GPUPROV_RUN=' -e '^GPUPROV_LAUNCH=' /proc/[0-9]*/environ || true"
pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = [NodeSpec(name, "h100-sxm", network="ib") for name in NODES[:2]]
    nodes += [NodeSpec(name, "mi300x", "ubuntu2404", network="ib") for name in NODES[2:]]
    inventory = tmp_path_factory.mktemp("lab") / "lab.yml"
    # At the speed of real GPUs, so that each check lasts long enough to interrupt.
    with running_lab("ctrlc", tuple(nodes), inventory, speed=1.0) as running:
        yield running


@pytest.fixture(scope="module")
def operator(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Operator:
    made = Operator(lab.inventory, tmp_path_factory.mktemp("runs"))
    done = made.call("up", "--yes", timeout=2400, **DECLARED)
    assert done.returncode == ExitCode.OK, said(done)
    return made


def left(lab: Lab) -> dict[str, list[str]]:
    """Return node → command lines of the run's remaining processes."""
    show = f"for file in $({LEFT}); do tr '\\0' ' ' < ${{file%/environ}}/cmdline; echo; done"
    found = {node.name: node.as_root(show).stdout.strip().splitlines() for node in lab.nodes}
    return {name: lines for name, lines in found.items() if any(lines)}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["int", "term"])
@pytest.mark.parametrize("check", CHECKS)
def test_nothing_is_left_on_any_node_after_ten_seconds(
    operator: Operator, lab: Lab, check: str, number: signal.Signals, tmp_path: Path
) -> None:
    assert left(lab) == {}
    log = tmp_path / "log"
    with log.open("w") as out:
        process = operator.began("validate", "--checks", check, out=out, **DECLARED)
        until = time.monotonic() + 240
        while not left(lab) and process.poll() is None and time.monotonic() < until:
            time.sleep(0.3)
        if process.poll() is not None:
            pytest.skip(f"{check} was over before it could be interrupted: {log.read_text()[-300:]}")
        time.sleep(1.5)
        process.send_signal(number)
        ended = time.monotonic() + SECONDS
        while (running := left(lab)) and time.monotonic() < ended:
            time.sleep(0.5)
        code = process.wait(timeout=120)
    assert running == {}, log.read_text()
    assert code == ExitCode.INTERRUPTED, log.read_text()
    time.sleep(2)
    assert left(lab) == {}
