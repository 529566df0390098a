"""Samples of a burn-in on simulated nodes with AMD GPUs, from the program for nodes to the judgement."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provision.burnin.own_findings import _sampled
from provision.burnin.spool import Spool
from provision.burnin.timeline import Clock, timeline
from provision.burnin.watch import Watch, compare_peers, watch
from provision.checks.judging.node_facts import NodeFacts, node_facts_of
from provision.checks.kernel import kernel_incidents
from provision.desired import stack
from provision.node.burnin.amd_gpus import AmdGpus
from provision.runs.store import RunFolder
from tests.lab_silicon.amd_machine import installed
from tests.lab_silicon.look import look_of
from tests.lab_silicon.silicon import Silicon
from tests.node.burnin_order import PYTHON, load, order, put_program, step
from tests.support.processes import until

Make = Callable[..., Silicon]
FACTS = ("gpu.count", "gpu.pci", "os.id", "os.version_id")


@pytest.fixture
def amd(bare: Make) -> Callable[..., Silicon]:
    def make(sku: str = "mi300x", rocm: str = "7.2.3-90") -> Silicon:
        return installed(bare(sku, network="none", speed=40), rocm).boot()

    return make


def facts_of(node: Silicon) -> NodeFacts:
    found = look_of(node, FACTS).facts
    return node_facts_of("gpu-01", found, {}, stack.describe_node(found), {})


def reader(node: Silicon) -> AmdGpus:
    return AmdGpus(kernel_incidents.devices(facts_of(node).check_node))


def rows(node: Silicon, asks: AmdGpus) -> dict[str, dict[str, str]]:
    words = (("metric",),) if asks.numbers else (("list",), ("metric",))
    text = "".join(node.printed("amd-smi", *one, "--json") for one in words)
    found = asks.rows(text)
    assert found is not None, text[:300]
    return dict(found)


@pytest.mark.parametrize("rocm", ["6.2.4-120", "6.4.1-83", "7.2.3-90"])
@pytest.mark.parametrize("sku", ["mi300x", "mi250x"])
def test_every_release_gives_every_gpu_its_samples(amd: Make, sku: str, rocm: str) -> None:
    node = amd(sku, rocm)
    asks = reader(node)
    rest = rows(node, asks)
    assert list(rest) == [f"gpu{number}" for number in range(8)]
    assert [row["address"].rpartition(".")[0] for row in rest.values()] == list(asks.gpus)
    node.loaded(*range(8))
    loaded = rows(node, asks)
    for device, row in loaded.items():
        assert {"util_pct": row["util_pct"], "ecc_ue": row["ecc_ue"], "pcie_width": row["pcie_width"]} == {
            "util_pct": "100", "ecc_ue": "0", "pcie_width": "16",
        }  # fmt: skip
        assert int(row["temperature_c"]) > int(rest[device]["temperature_c"]) + 15
        assert int(row["sm_mhz"]) > int(rest[device]["sm_mhz"])
        assert row["violations"] == ("0x0" if sku == "mi300x" and rocm > "6.3" else "")


def test_faults_show_on_their_gpu(amd: Make) -> None:
    node = amd()
    node.loaded(*range(8))
    node.break_(
        "hot_gpu gpu=2 degrees=25", "throttle gpu=5 reason=hw_thermal", "ecc_uncorrectable gpu=3 count=2",
        "pcie_width gpu=6 width=8", "pcie_replays gpu=1 count=9",
    )  # fmt: skip
    found = rows(node, reader(node))

    def odd(name: str) -> list[str]:
        usual = found["gpu0"][name]
        return [device for device, row in found.items() if row[name] != usual]

    assert odd("violations") == ["gpu5"]
    assert found["gpu5"]["violations"] == "0x1"
    assert odd("ecc_ue") == ["gpu3"]
    assert odd("pcie_width") == ["gpu6"]
    assert odd("pcie_replays") == ["gpu1"]
    assert max(found, key=lambda device: int(found[device]["temperature_c"])) == "gpu2"


def test_a_gpu_off_the_bus_leaves_the_samples_of_the_others_where_they_were(amd: Make) -> None:
    node = amd()
    asks = reader(node)
    before = rows(node, asks)
    node.fault("set", "gpu_off_bus", "gpu=2")
    assert rows(node, asks) == {}
    after = rows(node, asks)
    assert list(after) == [device for device in before if device != "gpu2"]
    assert all(after[device]["uuid"] == before[device]["uuid"] for device in after)


# --- the whole program


def put_program_of(node: Silicon, folder: Path, path: Path) -> None:
    """Write a program for nodes that takes this simulated node for its machine."""
    (folder / "bin").mkdir()
    tool = folder / "bin/amd-smi"
    given = [f"{name}={value}" for name, value in node.environment().items()]
    tool.write_text(f'#!/bin/sh\nexec {shlex.join(["env", *given, *node.command("amd-smi")])} "$@"\n')
    tool.chmod(0o755)
    put_program(
        path,
        ("modules/gpuprov_run.py", '\nPATH = "', f'\nPATH = "{folder}/bin:'),
        ("burnin/amd_gpus.py", '\nAMD_DRIVER = "/sys/', f'\nAMD_DRIVER = "{node.state}/sys/'),
    )


def ordered(node: Silicon, known: NodeFacts, folder: Path, **more: Any) -> Path:
    """Make a spool with the program and the order of a campaign with one step that waits five seconds."""
    spool = folder / "it"
    spool.mkdir()
    put_program_of(node, folder, spool / "program")
    wait = step("wait", *PYTHON, "import time; time.sleep(5)")
    gpus = list(kernel_incidents.devices(known.check_node))
    given = order(load("heat", wait), vendor="amd", gpus=gpus, sampler={"gpu": 0.3}, **more)
    (spool / "order.json").write_text(json.dumps(given))
    return spool


def burned(node: Silicon, known: NodeFacts, folder: Path, **more: Any) -> Path:
    """Return the spool of a finished campaign; the GPUs are loaded during it."""
    spool = ordered(node, known, folder, **more)
    assert started(spool).returncode == 0
    return spool


def started(spool: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-I", "-S", str(spool / "program"), "burnin", str(spool), *words]
    return subprocess.run(argv, timeout=60, check=False, capture_output=True, text=True)


def sampled(spool: Path, folder: Path) -> tuple[list[str], Watch, Any]:
    """Return the names of the events, and the samples and incidents as the controller reads them."""
    copy = Spool(RunFolder.create("burnin", {}, folder / "runs"), "gpu-01")
    shutil.copytree(spool, copy.path)
    events = copy.events()
    clock = Clock((), events)
    happened = timeline(events, clock)
    (boot,) = copy.boots()
    assert happened.began is not None
    found = watch(copy.rows(boot), clock.at, happened.began, happened.finished or 0.0, 0.3)
    compare_peers(found)
    assert copy.damaged == []
    return [event.name for event in events], found, happened


def test_the_program_samples_a_node_and_the_judge_names_the_gpus(amd: Make, tmp_path: Path) -> None:
    node = amd()
    known = facts_of(node)
    node.break_("hot_gpu gpu=2 degrees=25", "throttle gpu=5 reason=hw_thermal")
    node.loaded(*range(8))
    names, found, happened = sampled(burned(node, known, tmp_path), tmp_path)
    assert not {"sampler", "unasked", "error", "foreign", "abort"} & set(names)
    assert list(found.gpus) == [f"gpu{number}" for number in range(8)]
    assert min(one.loaded for one in found.gpus.values()) >= 3
    bad = {
        (one.finding.device, one.finding.metric): one.finding for one in _sampled(known, happened, found, ())
    }
    assert set(bad) == {("gpu2", "load_temperature"), ("gpu5", "throttled")}
    assert "PROCHOT" in bad["gpu5", "throttled"].message


def test_a_gpu_over_the_limit_ends_the_campaign(amd: Make, tmp_path: Path) -> None:
    node = amd()
    known = facts_of(node)
    node.break_("hot_gpu gpu=2 degrees=40")
    node.loaded(*range(8))
    spool = burned(node, known, tmp_path, abort={"gpu_celsius": 102})
    (abort,) = [
        event
        for event in map(json.loads, (spool / "events.jsonl").read_text().splitlines())
        if event["event"] == "abort"
    ]
    assert (abort["rule"], abort["device"]) == ("gpu_celsius", "gpu2")
    assert abort["value"] >= 102


CONFIGURATION = """\
actions:
- name: burn
  device: all
  module: gst
  parallel: true
  duration: 2400000
  hot_calls: 7000
  matrix_size_a: 4864
  matrix_size_b: 4096
  matrix_size_c: 8192
  data_type: bf16_r
"""


def test_it_does_not_begin_while_somebody_computes(amd: Make, tmp_path: Path) -> None:
    node = amd()
    spool = ordered(node, facts_of(node), tmp_path)
    node.file("etc/burn.conf", CONFIGURATION)
    processes = node.state / "sys/class/kfd/kfd/proc"
    argv = node.command("rvs", "-c", "/etc/burn.conf")
    with subprocess.Popen(argv, env=node.environment(), stdout=subprocess.DEVNULL) as other:
        until(lambda: (processes / str(other.pid)).is_dir())
        node.fault("set", "hot_gpu", "gpu=2", "degrees=5")  # rewrites the driver's files
        refused = json.loads(started(spool, "check").stdout)["refused"]
        other.terminate()
    assert refused.startswith("a GPU is in use: ")
    assert refused.endswith(f"(pid {other.pid})")
    assert json.loads(started(spool, "check").stdout)["refused"] == ""
