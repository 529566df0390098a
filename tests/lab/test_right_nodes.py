"""Commands act only on the intended nodes: none of another inventory, none held by another run."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.burnins import Burnins
from tests.lab.gpuprov_up import ROOT, Operator, said
from tests.lab.images import Images
from tests.lab.lab_nodes import running_lab
from tests.support.processes import until

if TYPE_CHECKING:
    from tests.lab.lab_nodes import Lab

PROFILE = """\
summary: an hour, for tools that are simulated
minutes: 62
sample_seconds: 80
space_mib: 64
abort: {gpu_celsius: 120, failed_steps: 50}
segments:
  - {name: heat, kind: soak, checks: [gpu_burn], minutes: 60, step_minutes: 2}
"""
LOCK = "cat /run/gpuprov/private/lock || true"
OTHER = "r570-cuda12.8"
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, images: Images) -> Iterator[Lab]:
    nodes = (NodeSpec("gpu-01", "h100-sxm"), NodeSpec("gpu-02", "h100-sxm"))
    declared = {node.name: images.h100() for node in nodes}
    folder = tmp_path_factory.mktemp("busy")
    with running_lab("busynodes", nodes, folder / "lab.yml", speed=20.0, images=declared) as running:
        yield running


@pytest.fixture
def operator(lab: Lab, tmp_path: Path) -> Operator:
    return Operator(lab.inventory, tmp_path / "runs")


@pytest.fixture
def burnins(lab: Lab, tmp_path: Path) -> Burnins:
    (tmp_path / "hour.yml").write_text(PROFILE)
    return Burnins(lab.inventory, tmp_path, tmp_path / "hour.yml")


def state(lab: Lab) -> tuple[str, str]:
    """Return the loaded driver version of gpu-01, and its boot id."""
    node = lab.node("gpu-01")
    return node.run("cat /sys/module/nvidia/version").stdout, node.run(
        "cat /proc/sys/kernel/random/boot_id"
    ).stdout


def test_a_node_that_burns_in_is_neither_changed_nor_measured_until_it_is_told(
    lab: Lab, operator: Operator, burnins: Burnins
) -> None:
    before = state(lab)
    begun = burnins.begin("--detach", "--nodes", "gpu-01")
    assert begun.returncode == ExitCode.OK, begun.stderr
    for refused in (
        operator.call("up", gpuprov_stack=OTHER),
        operator.call("up", "--yes", gpuprov_stack=OTHER),
        operator.call("validate", "--stage", "quick"),
        burnins.begin("--detach"),
    ):
        words = said(refused)
        assert refused.returncode == ExitCode.ERROR, words
        assert f"gpu-01: the burn-in {burnins.first} by root@" in words
        assert f"`gpuprov burnin stop {burnins.first} -i {lab.inventory}` ends it" in words
        assert "--nodes 'all:!gpu-01' leaves these nodes out" in words
    assert state(lab) == before
    assert "gpu-01  heat (1 of 1), gpu_burn, run " in burnins.call("burnin", "status", burnins.first).stdout

    spared = operator.call("validate", "--stage", "quick", "--nodes", "all:!gpu-01")
    assert spared.returncode == ExitCode.OK, spared.stdout + spared.stderr
    assert operator.call("validate", "--stage", "quick", "--break-lock").stdout
    stopped = burnins.call("burnin", "stop", burnins.first, "-i", str(lab.inventory))
    assert stopped.returncode == ExitCode.OK, stopped.stderr
    quick = operator.call("validate", "--stage", "quick")
    assert quick.returncode == ExitCode.OK, quick.stdout + quick.stderr


def test_a_node_that_is_measured_is_neither_changed_nor_burned_in(
    lab: Lab, operator: Operator, burnins: Burnins
) -> None:
    before = state(lab)
    measuring = operator.began("validate", "--checks", "gpu_burn", "--burn-seconds", "3000")
    try:
        held = lab.node("gpu-02")
        until(lambda: "validate" in held.as_root(LOCK).stdout, 120)
        for refused in (operator.call("up", gpuprov_stack=OTHER), burnins.begin("--detach")):
            words = said(refused)
            assert refused.returncode == ExitCode.ERROR, words
            assert "gpu-[01-02]: gpuprov validate by root@" in words
            assert f"(process {measuring.pid})" in words
            assert "press Ctrl-C where it runs" in words
    finally:
        measuring.send_signal(signal.SIGTERM)
        printed = measuring.communicate(timeout=300)[0]
    assert measuring.returncode == ExitCode.INTERRUPTED, printed
    assert state(lab) == before
    assert held.as_root(LOCK).stdout == ""


FORMS = ("text", "github", "markdown", "junit", "sarif", "json")
COMMAND = re.compile(
    r"""gpuprov (?:plan|up|drift|validate) [^\s`|)<"\\]+(?: --[a-z]+ (?:'[^'\n]*'|[\w./@,-]+))*"""
)


@pytest.fixture
def fleets(lab: Lab, tmp_path: Path) -> Path:
    """Write two inventories into a folder: `inventory.yml`, not meant, of gpu-02; `real.yml` of gpu-01."""
    whole = yaml.safe_load(lab.inventory.read_text())
    for name, other in (("real.yml", "gpu-02"), ("inventory.yml", "gpu-01")):
        (tmp_path / name).write_text(yaml.safe_dump(_without(whole, other)))
    return tmp_path


def _without(part: Any, node: str) -> Any:
    if isinstance(part, dict):
        return {key: _without(value, node) for key, value in part.items() if key != node}
    return part


def call(folder: Path, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "GPUPROV_RUNS": str(folder / "runs"),
        "COLUMNS": "4000",
    }
    return subprocess.run(
        [sys.executable, "-m", "provision.cli", *words],
        cwd=folder, env={**environment, "XDG_STATE_HOME": str(folder)}, text=True, timeout=900, check=False,
        **{"capture_output": True, **more},
    )  # fmt: skip


def logins(lab: Lab) -> int:
    """Count the logins to gpu-02 so far, including this one."""
    return len(
        lab.node("gpu-02")
        .as_root("journalctl --sync; journalctl -o cat -u ssh | grep ^Accepted")
        .stdout.splitlines()
    )


def test_every_command_that_is_proposed_means_the_fleet_it_was_proposed_for(lab: Lab, fleets: Path) -> None:
    before = logins(lab)
    lab.node("gpu-01").as_root("systemctl stop nvidia-persistenced; rm -f /etc/nccl.conf")
    said = [call(fleets, "plan", "real.yml"), call(fleets, "plan", "real.yml", "--format", "markdown")]
    said += [call(fleets, "drift", "real.yml", "--format", form) for form in FORMS]
    said += [call(fleets, "validate", "real.yml", "--stage", "quick")]
    said += [call(fleets, "report"), call(fleets, "report", "--format", "md")]
    said += [call(fleets, "up", "real.yml")]
    proposed = {found for done in said for found in COMMAND.findall(done.stdout)}
    print(*sorted(proposed), sep="\n")  # noqa: T201 - pytest shows it on failure
    verbs = {shlex.split(command)[1] for command in proposed}
    assert {"up", "validate"} <= verbs
    for command in sorted(proposed):
        words = shlex.split(command)[1:]
        if words[0] == "validate" and "--resume" not in words:
            words += ["--stage", "quick"]
        if "NODES" in command:  # of a SARIF rule, which applies to no node
            continue
        pasted = call(fleets, *words)
        assert "gpu-02" not in pasted.stdout + pasted.stderr, command
        assert pasted.returncode in (ExitCode.OK, ExitCode.DRIFT, ExitCode.UNHEALTHY, ExitCode.INCOMPLETE), (
            command
        )
    assert logins(lab) == before + 1


def _until_closed(terminal: int) -> Iterator[bytes]:
    with contextlib.suppress(OSError):  # the other end has been closed
        while said := os.read(terminal, 1 << 16):
            yield said
    os.close(terminal)


def test_up_asks_about_inventory_stack_and_nodes_and_touches_no_other(lab: Lab, fleets: Path) -> None:
    before = logins(lab), state(lab)
    asking, terminal = pty.openpty()
    os.write(asking, b"n\n")
    told = call(
        fleets, "up", "real.yml", "--set", f"gpuprov_stack={OTHER}",
        stdin=terminal, stderr=terminal, capture_output=False, stdout=subprocess.PIPE,
    )  # fmt: skip
    os.close(terminal)
    seen = b"".join(_until_closed(asking)).decode()
    assert told.returncode == ExitCode.ERROR, seen
    assert f"real.yml · stack {OTHER} · gpu-01" in seen
    assert re.search(r"1 of 1 node differs .* · 1 to reboot · about \d+ min", seen)
    assert "change 1 node of real.yml (gpu-01)? [y/N]" in seen
    assert "stopped before anything was changed" in seen
    assert (logins(lab) - 1, state(lab)) == before


def test_a_group_in_which_nobody_can_start_mpi_gets_a_report_that_says_why(
    lab: Lab, operator: Operator
) -> None:
    for name in ("gpu-01", "gpu-02"):
        lab.node(name).as_root("! command -v mpirun")
    done = operator.call("validate", "--checks", "nccl_group")
    assert done.returncode == ExitCode.INCOMPLETE, said(done)
    assert (
        "mpirun: No such file or directory: the role validation_tools, with validation_tools_mpi: true"
        in said(done)
    )
    assert (operator.newest("validate") / "report.html").is_file()


def test_a_lock_says_that_every_node_of_its_kind_differs_until_up(operator: Operator, tmp_path: Path) -> None:
    done = operator.call("lock", "--force", "--file", str(tmp_path / "lock.yml"))
    assert done.returncode == ExitCode.OK, said(done)
    assert "until gpuprov up has pinned these versions, gpuprov drift reports every node" in said(done)


def test_what_is_no_run_is_answered_with_the_runs_there_are(fleets: Path) -> None:
    measured = call(fleets, "validate", "real.yml", "--stage", "quick")
    (run,) = [path.name for path in (fleets / "runs").glob("*-validate")]
    done = call(fleets, "report", "compare", run, "validated")
    assert done.returncode == ExitCode.ERROR, measured.stderr
    assert "validated" in done.stderr
    assert run in done.stderr
