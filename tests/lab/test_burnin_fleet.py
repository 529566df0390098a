"""A burn-in of eight nodes with five faults of different kind and onset: one complete record.

Its controller is killed twice, a node reboots and a link is cut. Then a burn-in at half the fleet's power,
which is never exceeded. The tests run in the order written, on one lab. Only the simulated programs run in
compressed time.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from gpuprov_lab import network
from gpuprov_lab.spec import NodeSpec
from provision.burnin.plan import estimates
from provision.errors import ExitCode
from tests.lab import gpu_programs
from tests.lab.burnins import Burnins, hear, kill, seconds_of, wait_until_over
from tests.lab.lab_nodes import running_lab

if TYPE_CHECKING:
    from tests.lab.lab_nodes import Lab

SPEED = 10.0
NODES = tuple(f"n{number}" for number in range(1, 9))
SAMPLES = 30.0  # simulated seconds between samples
INTERVAL = SAMPLES / SPEED  # real seconds
FEW = 5  # intervals without a sample that a busy machine may cause
# A burn of five minutes takes half a real minute.
PROFILE = f"""\
summary: more than an hour, for tools that are simulated
minutes: 72
sample_seconds: {SAMPLES:g}
space_mib: 64
ramp_steps: 2
ramp_seconds: 5
abort: {{gpu_celsius: 120, xids: fatal, failed_steps: 50}}
segments:
  - {{name: look, kind: load, checks: [gpu_inventory], repeat: 1}}
  - {{name: first_heat, kind: soak, checks: [gpu_burn], minutes: 30, step_minutes: 5}}
  - {{name: cold, kind: cool_down, minutes: 0.2}}
  - {{name: second_heat, kind: soak, checks: [gpu_burn], minutes: 40, step_minutes: 5}}
  - {{name: traffic, kind: load, checks: [nccl_all_reduce], repeat: 1}}
"""
SEGMENTS = ["look", "first_heat", "cold", "second_heat", "traffic"]
pytestmark = [pytest.mark.long, pytest.mark.timeout(2700)]


@dataclass(frozen=True)
class Fault:
    """A fault planted on a node; the record names it by any of `metrics`.
    `sharp`: the kernel or a sample shows it at once; otherwise the spoilt burn dates it."""

    node: str
    gpu: int
    fault: str
    metrics: frozenset[str]
    sharp: bool
    more: dict[str, object] = field(default_factory=dict)


FAULTS = (
    Fault("n2", 6, "gpu_slow", frozenset({"rate"}), False),
    Fault("n3", 3, "throttle", frozenset({"throttled"}), True, {"reason": "hw_power_brake"}),
    Fault("n4", 2, "burn_errors", frozenset({"state", "errors"}), False),
    Fault("n5", 1, "ecc_uncorrectable", frozenset({"xid.48"}), True),
    Fault("n6", 5, "gpu_off_bus", frozenset({"xid.79"}), True),
)
REBOOTED, CUT = "n7", "n8"
HEALTHY = ("n1", CUT)


@dataclass
class Happened:
    """Times of the events on the fleet, as (before, after) by this machine's clock."""

    faults: dict[str, tuple[float, float]] = field(default_factory=dict)
    reboot: tuple[float, float] = (0.0, 0.0)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = tuple(NodeSpec(name, "h100-sxm") for name in NODES)
    with running_lab("bfleet", nodes, tmp_path_factory.mktemp("lab") / "lab.yml", speed=SPEED) as running:
        gpu_programs.bring(running, "nvidia-fabricmanager", "gpu-burn")
        for node in running.nodes:
            node.as_root("systemctl enable --now nvidia-fabricmanager")
        yield running


@pytest.fixture(scope="module")
def burnins(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Burnins:
    folder = tmp_path_factory.mktemp("burnins")
    (folder / "fleet.yml").write_text(PROFILE)
    return Burnins(lab.inventory, folder, folder / "fleet.yml")


@pytest.fixture(scope="module")
def happened(lab: Lab, burnins: Burnins) -> Happened:
    """Run the burn-in with all planted events, until no node is burning."""
    found = Happened()

    def plant(one: Fault) -> None:
        before = time.time()
        lab.node(one.node).fault(one.fault, gpu=one.gpu, **one.more)
        found.faults[one.node] = (before, time.time())

    controller = burnins.began()
    hear(controller, "8 of 8 nodes burning in")
    hear(controller, "first_heat")
    plant(FAULTS[0])
    time.sleep(10 * INTERVAL)
    kill(controller)
    plant(FAULTS[1])
    controller = burnins.watching("attach", burnins.first)
    hear(controller, "n8  ")
    plant(FAULTS[2])
    time.sleep(10 * INTERVAL)
    kill(controller)
    cut = time.monotonic()
    cable(lab, CUT, plugged=False)
    try:
        plant(FAULTS[3])
        before = time.time()
        lab.node(REBOOTED).reboot()
        found.reboot = (before, time.time())
        plant(FAULTS[4])
        time.sleep(max(0.0, 60.0 - (time.monotonic() - cut)))
    finally:
        cable(lab, CUT, plugged=True)
    wait_until_over(burnins, burnins.first, patience=1500)
    return found


def cable(lab: Lab, name: str, plugged: bool) -> None:
    network.plug(lab.record.octet, lab.record.node(name).index, plugged)


@dataclass
class Sample:
    """One sample of one GPU."""

    at: float
    boot: str
    gpu: str
    watts: float


def samples(burnins: Burnins, name: str, node: dict[str, Any]) -> list[Sample]:
    """Return a node's collected telemetry, by the controller's clock; a row contains only changes."""
    found: list[Sample] = []
    for file in (burnins.run(name) / "spool" / node["node"] / "telemetry").glob("*.csv"):
        watts: dict[str, float] = {}
        for line in file.read_text().splitlines():
            moment, _, source, device, metrics = line.split(",", 4)
            values = dict(pair.split("=", 1) for pair in metrics.split(";") if pair)
            if source == "gpu":
                watts[device] = float(values.get("power_w", watts.get(device, 0.0)))
                at = float(moment) - node["clock_skew_seconds"]
                found.append(Sample(at, file.stem, device, watts[device]))
    return sorted(found, key=lambda one: one.at)


def pauses(node: dict[str, Any], moments: list[float]) -> list[tuple[float, float]]:
    """Return the periods of a node's burn-in without a sample for more than a few intervals."""
    edges = [seconds_of(node["began"]), *moments, seconds_of(node["ended"])]
    return [(a, b) for a, b in itertools.pairwise(edges) if b - a > FEW * INTERVAL]


def bad(node: dict[str, Any]) -> list[dict[str, Any]]:
    return [finding for finding in node["findings"] if finding["verdict"] not in ("pass", "skip")]


@pytest.fixture(scope="module")
def nodes(burnins: Burnins, happened: Happened) -> dict[str, dict[str, Any]]:
    """Return node → its part of the record."""
    del happened
    done = burnins.call("burnin", "collect", burnins.first, "--json")
    assert done.returncode == ExitCode.UNHEALTHY, done.stderr
    record = json.loads(done.stdout)
    assert record["over"]
    assert [node["node"] for node in record["nodes"]] == list(NODES)
    return {node["node"]: node for node in record["nodes"]}


def events(burnins: Burnins, name: str, event: str) -> list[dict[str, Any]]:
    """Return a node's events of one kind, in order."""
    lines = (burnins.run(burnins.first) / "spool" / name / "events.jsonl").read_text().splitlines()
    return [one for one in map(json.loads, lines) if one["event"] == event]


@pytest.mark.parametrize("planted", FAULTS, ids=lambda one: one.fault)
def test_a_fault_is_named_with_its_gpu_and_its_time(
    burnins: Burnins, nodes: dict[str, Any], happened: Happened, planted: Fault
) -> None:
    node = nodes[planted.node]
    found = [finding for finding in node["findings"] if finding["metric"] in planted.metrics]
    assert {(one["device"], one["verdict"]) for one in found} == {(f"gpu{planted.gpu}", "fail")}
    before, after = happened.faults[planted.node]
    since = min(seconds_of(one["since"]) for one in found)
    if planted.sharp:
        assert before - INTERVAL <= since <= after + FEW * INTERVAL
    else:  # the burn during the fault, or the next one
        burns = [
            int(step["t"] - node["clock_skew_seconds"]) for step in events(burnins, planted.node, "step")
        ]
        last, following = [t for t in burns if t <= after][-1], next(t for t in burns if t > before)
        assert last - 1 <= since <= following + 1
    # No other device of the node is reported, and missing measurements follow from the fault.
    accused = {one["device"] for one in bad(node) if one["verdict"] != "error"}
    assert accused <= {f"gpu{planted.gpu}", "node"}
    assert {one["metric"] for one in bad(node) if one["device"] == "node"} <= {"abort", ""}


def test_nobody_else_is_accused(nodes: dict[str, Any], happened: Happened) -> None:
    assert {name: bad(nodes[name]) for name in HEALTHY} == {name: [] for name in HEALTHY}
    assert {name: nodes[name]["verdict"] for name in HEALTHY} == dict.fromkeys(HEALTHY, "pass")
    (reboot,) = [one for one in bad(nodes[REBOOTED]) if one["verdict"] != "error"]
    assert (reboot["metric"], reboot["verdict"], reboot["device"]) == ("reboot", "fail", "node")
    before, after = happened.reboot
    assert before - FEW * INTERVAL <= seconds_of(reboot["since"]) <= after
    # Only the burn that the reboot interrupted was not measured.
    assert [line.split(": ")[1].split()[0] for line in nodes[REBOOTED]["not_measured"]] == ["gpu_burn"]
    assert nodes[REBOOTED]["reboots"] == 1
    assert sum(node["reboots"] for node in nodes.values()) == 1


def test_the_record_is_one_and_accounts_for_every_segment(burnins: Burnins, nodes: dict[str, Any]) -> None:
    for name, node in nodes.items():
        ended_early = node["how_it_ended"] == "abort"
        assert ended_early == (name in ("n5", "n6")), name  # Xids 48 and 79 are fatal
        course = [row["what"].split()[0] for row in node["course"] if row["kind"] == "segment"]
        lived = list(dict.fromkeys(course))  # a segment cut by a reboot appears twice
        assert lived == SEGMENTS[: len(lived)], name
        missed = {line.partition(":")[0] for line in node["not_measured"]}
        assert {*lived, *missed} | {"cold"} == set(SEGMENTS), name
        if not ended_early:
            assert lived == SEGMENTS
    assert {name: nodes[name]["not_measured"] for name in HEALTHY} == {name: [] for name in HEALTHY}
    run = burnins.run(burnins.first)
    assert len(list((run / "records").glob("*.json"))) == len(NODES)
    page = (run / "record.html").read_text()
    assert all(f"<h2>{name} " in page for name in NODES)
    assert (run / "nodes.pass").read_text().split() == list(HEALTHY)


def test_telemetry_has_no_gap_beyond_the_reboot(
    burnins: Burnins, nodes: dict[str, Any], happened: Happened
) -> None:
    for name, node in nodes.items():
        gpus: dict[str, list[float]] = {}
        for one in samples(burnins, burnins.first, node):
            gpus.setdefault(one.gpu, []).append(one.at)
        assert len(gpus) == 8
        if name == "n6":
            del gpus["gpu5"]  # off the bus
        for gpu, moments in gpus.items():
            found = pauses(node, moments)
            if name == REBOOTED:
                (booted,) = events(burnins, name, "booted")
                back = booted["t"] - node["clock_skew_seconds"] + FEW * INTERVAL
                went = happened.reboot[0] - FEW * INTERVAL
                found = [(begin, end) for begin, end in found if begin < went or end > back]
            assert found == [], f"{name} {gpu}"


# A node's turn follows once the longest of the previous turn may have ended, plus minutes for nodes that
# received the order late. Time is compressed here, and so are those minutes.
COMPRESSED = """\
from provision.burnin import plan
plan.MARGIN = 60.0
from provision.cli import main
raise SystemExit(main())
"""
SHORT = """\
summary: half a minute, for tools that are simulated
minutes: 1
sample_seconds: 10
space_mib: 16
ramp_steps: 1
abort: {gpu_celsius: 120, xids: fatal}
segments:
  - {name: heat, kind: soak, checks: [gpu_burn], minutes: 0.5, step_minutes: 0.5}
"""


def drawn(burnins: Burnins, nodes: list[dict[str, Any]]) -> dict[str, dict[int, float]]:
    """Return node → second → its peak power in kW: the GPUs' samples plus the estimate for the rest."""
    found: dict[str, dict[int, float]] = {}
    for node in nodes:
        mine, now = found.setdefault(node["node"], {}), {}
        for one in samples(burnins, burnins.newest, node):
            now[one.gpu] = one.watts
            kilowatts = sum(now.values()) / 1000 * estimates()["power"]["node_over_gpus"]
            mine[int(one.at)] = max(kilowatts, mine.get(int(one.at), 0.0))
    return found


def together(found: dict[str, dict[int, float]]) -> list[float]:
    """Sum all nodes' kilowatts for each second; between two samples a node counts with the larger."""
    first = min(min(mine) for mine in found.values())
    last = max(max(mine) for mine in found.values())
    sums = [0.0] * (last - first + 1)
    for mine in found.values():
        moments = sorted(mine)
        for begin, end in itertools.pairwise([*moments, moments[-1]]):
            for moment in range(begin, max(end, begin + 1)):
                sums[moment - first] += max(mine[begin], mine[end])
    return sums


def test_half_the_fleets_peak_is_never_exceeded_and_the_plan_says_so(
    nodes: dict[str, Any], burnins: Burnins, lab: Lab
) -> None:
    del nodes  # the previous burn-in has ended
    burnins.call("burnin", "collect", burnins.first, "--remove")
    for node in lab.nodes:
        node.heal()
    for fault in FAULTS:  # a GPU that fell off the bus returns after a reboot
        lab.node(fault.node).reboot()
    short = Burnins(burnins.inventory, burnins.folder, burnins.folder / "short.yml")
    short.profile.write_text(SHORT)
    short.program = [sys.executable, "-c", COMPRESSED]
    free = json.loads(short.begin("--json", verb="plan").stdout)["peak_kw"]
    cap = ("--set", f"gpuprov_fleet_kw={free / 2}")
    planned = json.loads(short.begin("--json", *cap, verb="plan").stdout)
    assert planned["turns"] == 4  # two of eight at a time, while six wait
    assert planned["peak_kw"] <= free / 2
    said = short.begin(*cap, verb="plan").stdout
    assert f"peak of the fleet {planned['peak_kw']:.1f} kW, limit {free / 2:g} kW" in said
    begun = short.begin("--detach", *cap)
    assert begun.returncode == ExitCode.OK, begun.stderr
    wait_until_over(short, short.newest, patience=1500)
    collected = short.call("burnin", "collect", short.newest, "--json", "--remove")
    assert collected.returncode == ExitCode.OK, collected.stdout
    found = drawn(short, json.loads(collected.stdout)["nodes"])
    assert sum(max(mine.values()) for mine in found.values()) > 0.9 * free  # each node did burn
    assert max(together(found)) <= planned["peak_kw"]
