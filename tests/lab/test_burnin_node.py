"""A burn-in on a real node without a connection: what ends it, what does not, and what remains.

The tests read the spool on the node's disk from outside, so that no connection keeps anything alive.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import itertools
import json
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuprov_lab import cgroups, network
from gpuprov_lab.spec import NodeSpec
from provision import paths
from provision.burnin import node_talk
from provision.checks.on_node import packed_program
from provision.errors import ExitCode
from provision.validate.plays import node_commands
from tests.lab.lab_nodes import running_lab
from tests.support.processes import command_of, until

if TYPE_CHECKING:
    from tests.lab.lab_nodes import Lab, LabNode

ROOT = Path(__file__).resolve().parents[2]
ROLES = "[nvidia_repository,nvidia_driver,nvlink,cuda_toolkit,validation_tools]"
PLAYBOOK = str(Path(sys.executable).with_name("ansible-playbook"))  # of this environment, regardless of PATH
SPEED = 10.0
HOME = "/var/lib/gpuprov/burnin"
UNIT = "gpuprov-burnin.service"
FREEZER = Path("/sys/fs/cgroup/freezer")
PLAY = """\
- hosts: all
  gather_facts: false
  become: true
  tasks:
    - gpuprov_burnin:
        state: "{{ asked.state }}"
        campaign: "{{ asked.campaign | default('') }}"
        order: "{{ asked.order | default(omit) }}"
        runner: "{{ asked.runner | default('') }}"
        offsets: "{{ asked.offsets | default('') }}"
        limit: "{{ asked.limit | default(4194304) }}"
        segment: "{{ asked.segment | default('') }}"
      register: said
      failed_when: false
    - ansible.builtin.copy:
        content: "{{ said | to_json }}"
        dest: "{{ out }}"
        mode: "0600"
      delegate_to: localhost
      become: false
"""
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


class Node:
    """The node under burn-in."""

    def __init__(self, lab: Lab, node: LabNode, folder: Path) -> None:
        self.lab, self.node, self.folder = lab, node, folder
        (folder / "play.yml").write_text(PLAY)

    def ask(self, state: str, **more: Any) -> dict[str, Any]:
        """Call the module through Ansible and return its answer."""
        (self.folder / "answer.json").unlink(missing_ok=True)
        asked = {"asked": {"state": state, **more}, "out": str(self.folder / "answer.json")}
        (self.folder / "asked.json").write_text(json.dumps(asked))
        done = subprocess.run(
            [
                *(PLAYBOOK, "-i", str(self.lab.inventory), "-l", self.node.name),
                *("-e", f"@{self.folder}/asked.json", str(self.folder / "play.yml")),
            ],
            env={**os.environ, "ANSIBLE_LIBRARY": str(paths.MODULES)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert (self.folder / "answer.json").exists(), done.stdout + done.stderr
        answer: dict[str, Any] = json.loads((self.folder / "answer.json").read_text())
        assert "gpuprov" in answer, answer.get("msg", answer)
        found: dict[str, Any] = answer["gpuprov"]
        return found

    def start(self, campaign: str, *segments: dict[str, Any], **more: Any) -> Campaign:
        order = {
            "format": 1,
            "campaign": campaign,
            "node": self.node.name,
            "sample_seconds": SPEED,  # one real second, since simulated tools run faster
            "sampler": {"errors": 10, "ib": 2, "kernel": 2, "nvlink": 20},
            "space_mib": 16,
            "segments": list(segments),
            **more,
        }
        runner = node_commands.packed(packed_program.build("burnin"))
        self.answer = self.ask("start", order=node_commands.packed(json.dumps(order)), runner=runner)
        return Campaign(self, self.node.place.disk / HOME.strip("/") / campaign)

    def shell(self, command: str) -> str:
        return self.node.as_root(command).stdout

    def cable(self, plugged: bool) -> None:
        member = self.lab.record.node(self.node.name)
        network.plug(self.lab.record.octet, member.index, plugged)
        if plugged:  # the kernel caches the failed neighbour for seconds
            until(lambda: self.node.run("true", check=False).returncode == 0)

    def pids(self, words: str) -> list[int]:
        """Return the host's process ids of the node's processes with these words in the command line."""
        return [pid for pid in cgroups.members(self.node.place.namespace) if words in command_of(pid)]


class Campaign:
    """The spool of one campaign, read from outside the node."""

    def __init__(self, node: Node, spool: Path) -> None:
        self.node, self.spool, self.answer = node, spool, node.answer

    @property
    def events(self) -> list[dict[str, Any]]:
        found = []
        with contextlib.suppress(OSError):
            for line in (self.spool / "events.jsonl").read_text().splitlines():
                with contextlib.suppress(ValueError):
                    found.append(json.loads(line))
        return found

    def of(self, name: str, /, **match: Any) -> list[dict[str, Any]]:
        wanted = {"event": name, **match}
        return [one for one in self.events if all(one.get(key) == value for key, value in wanted.items())]

    def wait_for(self, name: str, count: int = 1, /, seconds: float = 120, **match: Any) -> dict[str, Any]:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            found = self.of(name, **match)
            if len(found) >= count:
                return found[count - 1]
            time.sleep(0.2)
        raise AssertionError(f"no {name} {match} within {seconds} s in {self.events}")

    def rows(self, source: str) -> list[tuple[float, str, str]]:
        """Return (t, device, metrics) of all boots."""
        found = []
        for file in sorted((self.spool / "telemetry").glob("*.csv"), key=lambda one: one.stat().st_mtime):
            for line in file.read_text().splitlines():
                moment, _, of, device, metrics = line.split(",", 4)
                if of == source:
                    found.append((float(moment), device, metrics))
        return found

    def moments(self, device: str, source: str = "gpu") -> list[float]:
        return [moment for moment, of, _ in self.rows(source) if of == device]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Yield an H100 node with RDMA cards and the load tools."""
    folder = tmp_path_factory.mktemp("burnin")
    wanted = (NodeSpec("gpu-01", "h100-sxm", network="ib"),)
    with running_lab("burnin", wanted, folder / "lab.yml", speed=SPEED) as lab:
        provide(lab, folder)
        yield Node(lab, lab.nodes[0], folder)


def provide(lab: Lab, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "provision.cli", "up", str(lab.inventory), "--set", f"gpuprov_roles={ROLES}"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "GPUPROV_RUNS": str(folder / "runs")},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr


@pytest.fixture(autouse=True)
def clean(node: Node) -> Iterator[None]:
    """Remove any fault, unit and spool that a test left."""
    yield
    node.node.heal()
    node.shell(f"systemctl stop {UNIT}; umount -l {HOME}; true")
    node.shell(
        f"rm -rf {HOME} /etc/systemd/system/{UNIT}* /etc/systemd/system/multi-user.target.wants/{UNIT};"
        f" systemctl daemon-reload; systemctl reset-failed {UNIT}; true"
    )


def burn(seconds: int = 60) -> dict[str, Any]:
    """Return a step of gpu_burn for `seconds` simulated seconds."""
    command = {
        "name": "gpu_burn",
        "argv": ["/usr/bin/gpu_burn", "-tc", str(seconds)],
        "deadline": seconds + 90,
        "cwd": "/usr/share/gpu-burn",
    }
    return {"check": "gpu_burn", "commands": [command]}


def load(name: str, *steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "kind": "load", "repeat": 1, "minutes": None, "steps": list(steps), **more}


def idle(seconds: float) -> dict[str, Any]:
    return {"name": "rest", "kind": "cool_down", "minutes": seconds / 60}


def gaps(moments: list[float]) -> list[float]:
    return [round(after - before, 1) for before, after in itertools.pairwise(moments)]


def test_it_runs_to_its_end_without_a_connection_and_says_what_it_costs(node: Node) -> None:
    # The real sampling interval: five seconds as seen by simulated tools.
    campaign = node.start("detached", load("warm", burn(150), repeat=2), idle(30), sample_seconds=5 * SPEED)
    assert campaign.answer["started"] is True
    node.cable(False)
    try:
        finished = campaign.wait_for("finished", seconds=240)
    finally:
        node.cable(True)
    assert finished["ended"] == "done"
    assert (finished["steps"], finished["failed"]) == (2, 0)
    answer = json.loads(gzip.decompress((campaign.spool / "raw/000001-gpu_burn.json.gz").read_bytes()))
    assert "GPU 7: OK" in answer["outputs"][0]["stdout"]
    # Every GPU was sampled throughout, and showed the load.
    for gpu in range(8):
        moments = campaign.moments(f"gpu{gpu}")
        assert len(moments) >= finished["wall_seconds"] / 5 * 0.7
        assert max(gaps(moments)) < 15
    assert any("util_pct=100" in metrics for _, _, metrics in campaign.rows("gpu"))
    assert {of for _, of, _ in campaign.rows("ib")} >= {"mlx5_0/1", "mlx5_7/1"}
    assert {of for _, of, _ in campaign.rows("nvlink")} == {f"gpu{gpu}" for gpu in range(8)}
    # The sampler's own CPU time, without the simulated tools, which are Python and cost more than real ones.
    own, wall = finished["sampler_cpu_seconds"], finished["wall_seconds"]
    said = f"sampling cost {own:g} s of CPU in {wall:g} s, {own / wall:.2%} of a core; the simulated programs"
    sys.stdout.write(f"\n{said} it asked cost {finished['tools_cpu_seconds']:g} s more\n")
    assert own / wall < 0.01
    assert node.shell(f"systemctl list-unit-files --no-legend '{UNIT}'; pgrep -f '[r]unner.py'; true") == ""


def test_collect_brings_everything_in_parts_of_the_size_asked(node: Node) -> None:
    campaign = node.start("parts", load("warm", burn(30)), idle(5))
    campaign.wait_for("finished")
    have: dict[str, bytes] = {}
    for _ in range(100):
        offsets = node_talk.offsets({name: len(data) for name, data in have.items()})
        answer = node.ask("collect", campaign="parts", offsets=offsets, limit=10000)
        for part in answer["parts"]:
            data = zlib.decompress(base64.b64decode(part["data"]))
            assert len(data) <= 10000
            have[part["file"]] = have.get(part["file"], b"")[: part["offset"]] + data
        if not answer["more"]:
            break
    assert answer["finished"]
    assert not answer["alive"]
    there = {
        str(file.relative_to(campaign.spool)): file for file in campaign.spool.rglob("*") if file.is_file()
    }
    assert set(have) == set(there) - {"program"}
    for name, data in have.items():
        assert data == there[name].read_bytes(), name
    offsets = node_talk.offsets({name: len(data) for name, data in have.items()})
    again = node.ask("collect", campaign="parts", offsets=offsets)
    assert (again["parts"], again["more"]) == ([], False)
    assert node.ask("remove", campaign="parts")["removed"]
    assert not campaign.spool.exists()
    assert node.ask("status")["campaign"] == ""


def test_a_reboot_is_an_event_and_the_next_step_follows(node: Node) -> None:
    campaign = node.start("boots", load("warm", burn(60), burn(3000), burn(60)), idle(5))
    campaign.wait_for("step", 2)
    time.sleep(5)
    node.node.reboot()
    finished = campaign.wait_for("finished", seconds=180)
    assert finished["ended"] == "done"
    (booted,) = campaign.of("booted")
    assert (booted["during"]["check"], booted["during"]["n"]) == ("gpu_burn", 2)
    assert [one["n"] for one in campaign.of("step_end")] == [1, 3]
    assert len(list((campaign.spool / "telemetry").glob("*.csv"))) == 2
    # The only gap is the reboot.
    went, came = campaign.of("interrupted")[0]["t"], booted["t"]
    moments = campaign.moments("gpu0")
    for begin, end in itertools.pairwise(moments):
        assert end - begin < 6 or (begin < came and end > went)
    assert min(moment for moment in moments if moment > came) < came + 12
    assert max(moment for moment in moments if moment < came) > went - 6
    assert node.shell(f"systemctl list-unit-files --no-legend '{UNIT}'; true") == ""


def left(node: Node) -> dict[str, str]:
    """Return everything a burn-in could leave behind: processes, units, files, locks and clocks."""
    clocks = "clocks.max.sm,clocks.applications.sm,persistence_mode,power.limit,compute_mode"
    return {
        "processes": node.shell("ps -eo args | grep -E 'gpu_burn|nvidia-smi|runner' | grep -v grep; true"),
        "units": node.shell(
            "systemctl list-unit-files --no-legend --type=service; systemctl --failed --no-legend"
        ),
        "files": node.shell(
            "ls -A /etc/systemd/system /etc/systemd/system/*.wants /run/systemd/system /run/gpuprov; true"
        ),
        "locks": node.shell("awk '{print $2, $4}' /proc/locks | grep -c FLOCK; true"),
        "clocks": node.shell(f"nvidia-smi --query-gpu={clocks} --format=csv,noheader"),
    }


def test_stop_leaves_nothing_behind(node: Node) -> None:
    before = left(node)
    campaign = node.start("stopped", load("warm", burn(6000)))
    campaign.wait_for("step")
    time.sleep(3)
    assert node.pids("gpu_burn")
    answer = node.ask("stop")
    assert (answer["campaign"], answer["stopped"], answer["left"]) == ("stopped", True, [])
    assert [one["event"] for one in campaign.events][-2:] == ["stop", "finished"]
    assert campaign.of("finished")[0]["ended"] == "stopped"
    status = node.ask("status")
    assert not status["alive"]
    assert left(node) == before
    assert node.shell(f"flock --nonblock {HOME} true && echo free") == "free\n"


def test_a_killed_runner_comes_back_and_goes_on(node: Node) -> None:
    campaign = node.start("killed", load("warm", burn(6000), burn(60)), idle(3))
    campaign.wait_for("step")
    time.sleep(3)
    node.shell(f"systemctl kill --kill-who=main --signal=KILL {UNIT}")
    resumed = campaign.wait_for("resumed", seconds=150)
    assert resumed["during"]["n"] == 1
    finished = campaign.wait_for("finished")
    assert finished["ended"] == "done"
    assert [one["n"] for one in campaign.of("step_end")] == [2]
    assert not node.pids("gpu_burn"), "the load of the killed runner ended with it"


@pytest.fixture
def frozen() -> Iterator[Callable[[int], None]]:
    """Yield a function that freezes a process like a hung driver: in state D, immune to KILL."""
    group = FREEZER / "gpuprov-burnin-test"
    group.mkdir(exist_ok=True)

    def freeze(pid: int) -> None:
        (group / "tasks").write_text(f"{pid}\n")
        (group / "freezer.state").write_text("FROZEN\n")

    yield freeze
    (group / "freezer.state").write_text("THAWED\n")
    until = time.monotonic() + 20
    while time.monotonic() < until:
        for pid in (group / "tasks").read_text().split():
            with contextlib.suppress(OSError):
                (FREEZER / "tasks").write_text(pid)
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.2)


def test_a_frozen_nvidia_smi_stops_neither_other_gpus_nor_the_end(
    node: Node, frozen: Callable[[int], None]
) -> None:
    campaign = node.start("frozen", load("warm", burn(60)), idle(75), load("again", burn(60)), idle(3))
    campaign.wait_for("step_end")
    address = sorted(node.shell("ls /proc/driver/nvidia/gpus").split())[3]
    (pid,) = node.pids(f"-i {address} ")
    frozen(pid)
    since = time.time()
    trouble = campaign.wait_for("sampler", device="gpu3", source="gpu")
    assert "no answer" in trouble["trouble"]
    finished = campaign.wait_for("finished", seconds=200)
    assert finished["ended"] == "done"
    (gone,) = campaign.of("left")
    assert (gone["name"], gone["state"]) in {("python3", "D"), ("nvidia-smi", "D")}
    until = time.monotonic() + 40
    while node.shell(f"systemctl is-active {UNIT}; true").strip() == "active" and time.monotonic() < until:
        time.sleep(1)
    assert node.shell(f"systemctl is-active {UNIT}; true").strip() in ("inactive", "unknown")
    for gpu in {*range(8)} - {3}:
        assert max(gaps(campaign.moments(f"gpu{gpu}"))) < 8, f"gpu{gpu} was sampled on"
    assert max(campaign.moments("gpu3")) < since + 5
    assert len(campaign.of("step_end")) == 2


def test_a_full_spool_disk_is_an_event_and_keeps_what_was_measured(node: Node) -> None:
    node.shell(f"mkdir -p {HOME}; chmod 700 {HOME}; mount -t tmpfs -o size=12m,mode=700 tmpfs {HOME}")
    campaign = node.start("full", load("warm", burn(60), repeat=50), space_mib=8)
    assert campaign.answer["started"] is True
    until = time.monotonic() + 90

    def events() -> list[dict[str, Any]]:
        return [json.loads(line) for line in node.shell(f"cat {HOME}/full/events.jsonl").splitlines()]

    while "step_end" not in {one["event"] for one in events()} and time.monotonic() < until:
        time.sleep(1)
    node.shell(f"dd if=/dev/zero of={HOME}/fill bs=64k 2>/dev/null; true")
    while "finished" not in {one["event"] for one in events()} and time.monotonic() < until:
        time.sleep(1)
    found = events()
    assert [one["ended"] for one in found if one["event"] == "finished"] == ["space"]
    assert {one["what"] for one in found if one["event"] == "space"} == {"telemetry", "steps"}
    answer = json.loads(node.shell(f"zcat {HOME}/full/raw/000001-gpu_burn.json.gz"))
    assert "GPU 7: OK" in answer["outputs"][0]["stdout"]
    assert int(node.shell(f"grep -c gpu0 {HOME}/full/telemetry/*.csv")) > 3


def test_two_burn_ins_on_one_node_are_refused(node: Node) -> None:
    campaign = node.start("first", load("warm", burn(6000)))
    campaign.wait_for("step")
    second = node.start("second", load("warm", burn(60)))
    assert second.answer["started"] is False
    assert second.answer["refused"] == "the burn-in first runs on this node"
    assert second.answer["running"] == "first"
    assert not second.spool.exists()
    again = node.start("first", load("warm", burn(6000)))
    assert (again.answer["started"], again.answer["already"]) == (True, True)
    assert len(campaign.of("started")) == 1


def test_somebody_elses_program_on_a_gpu_keeps_it_from_beginning(node: Node) -> None:
    node.node.fault("gpu_process", gpu=2, pid=31337, name="/usr/bin/train")
    refused = node.start("foreign", load("warm", burn(60)))
    assert refused.answer["started"] is False
    assert refused.answer["refused"] == "a GPU is in use: /usr/bin/train (pid 31337)"
    node.node.heal()
    campaign = node.start("foreign", load("warm", burn(60)), idle(5), load("again", burn(60)), idle(1))
    assert campaign.answer["started"] is True
    campaign.wait_for("segment", 2)
    node.node.fault("gpu_process", gpu=2, pid=31337, name="/usr/bin/train")
    campaign.wait_for("finished")
    (foreign,) = campaign.of("foreign")
    assert (foreign["pid"], foreign["name"], foreign["segment"]) == (31337, "/usr/bin/train", "again")
    outcomes = [(one["name"], one["outcome"]) for one in campaign.of("segment_end")]
    assert outcomes == [("warm", "done"), ("rest", "done"), ("again", "foreign"), ("rest", "done")]
    assert len(campaign.of("step")) == 1


def test_a_tool_killed_for_want_of_memory_is_named(node: Node) -> None:
    """Nodes have no memory controller, so the kill and the kernel's line are made by hand."""
    campaign = node.start("memory", load("warm", burn(6000), burn(60)))
    campaign.wait_for("step")
    time.sleep(4)
    node.shell(
        "pid=$(pgrep -o -f 'gpu_burn -tc 6000'); kill -KILL $pid;"
        " up=$(( $(date +%s) - $(cut -d. -f1 /var/lib/silicon/boot_time) ));"
        ' printf "[%12.6f] Out of memory: Killed process %d (gpu_burn) total-vm:1kB\\n" $up $pid'
        " >> /var/lib/silicon/kmsg"
    )
    killed = campaign.wait_for("killed")
    assert (killed["program"], killed["signal"], killed["out_of_memory"]) == ("gpu_burn", 9, True)
    assert "Out of memory: Killed process" in killed["line"]
    campaign.wait_for("kernel")
    assert campaign.wait_for("finished")["ended"] == "done"
    assert campaign.of("step_end")[0]["failed"] == [{"name": "gpu_burn", "why": "killed by SIGKILL"}]


def test_names_of_crashing_programs_end_no_burnin(node: Node) -> None:
    """Use real kernel messages about programs with names that imitate GPU errors."""
    crashes = json.loads((ROOT / "tests/fixtures/kernel_log/forged-names.json").read_text(encoding="utf-8"))
    messages = [line.partition("] ")[2] for line in crashes["lines"] if line.startswith("[ 4")]
    messages = [text.replace("\n", "\\x0a") for text in messages if "segfault" in text]
    assert len(messages) > 10
    campaign = node.start("forged", load("warm", burn(60)), idle(5), abort={"xids": [79]})
    campaign.wait_for("step")
    up = "$(( $(date +%s) - $(cut -d. -f1 /var/lib/silicon/boot_time) ))"
    relay = f'while IFS= read -r line; do printf "[%12.6f] %s\\n" {up} "$line"; done >> /var/lib/silicon/kmsg'
    node.node.as_root(relay, said="\n".join(messages) + "\n")
    assert campaign.wait_for("finished")["ended"] == "done"
    assert campaign.of("xid") == []
    assert campaign.of("abort") == []


def test_a_gpu_that_falls_off_the_bus_is_told_as_it_happens(node: Node) -> None:
    campaign = node.start("lost", load("warm", burn(300)), idle(5), abort={"xids": [48]})
    campaign.wait_for("step")
    time.sleep(4)
    node.node.fault("gpu_off_bus", gpu=5)
    xid = campaign.wait_for("xid")
    assert xid["code"] == 79
    trouble = campaign.wait_for("sampler", device="gpu5", source="gpu")
    assert "lost" in trouble["trouble"]
    assert campaign.wait_for("finished")["ended"] == "done"
    assert max(campaign.moments("gpu5")) < trouble["t"] + 3 < max(campaign.moments("gpu4"))


def test_an_abort_rule_ends_the_load_at_once(node: Node) -> None:
    campaign = node.start("hot", load("warm", burn(6000)), abort={"xids": [48, 79]})
    campaign.wait_for("step")
    time.sleep(3)
    node.node.fault("xid", gpu=1, code=79)
    abort = campaign.wait_for("abort", seconds=40)
    assert (abort["rule"], abort["value"]) == ("xids", 79)
    assert campaign.wait_for("finished", seconds=40)["ended"] == "abort"
    assert not node.pids("gpu_burn")


def test_a_set_clock_is_an_event_and_costs_nothing(node: Node) -> None:
    """A node's clock cannot be set, so LD_PRELOAD gives the program a fake one."""
    node.shell("apt-get install -qy --no-install-recommends libfaketime")
    node.shell(
        f"mkdir -p /etc/systemd/system/{UNIT}.d; echo +0 > /root/clock; printf '[Service]\\n"
        "Environment=LD_PRELOAD=/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"
        " FAKETIME_CACHE_DURATION=1 FAKETIME_TIMESTAMP_FILE=/root/clock FAKETIME_DONT_FAKE_MONOTONIC=1\\n'"
        f" > /etc/systemd/system/{UNIT}.d/clock.conf"
    )
    turn = {"start_after_s": 30}
    campaign = node.start("clock", load("warm", burn(60)), idle(5), load("again", burn(60), **turn))
    campaign.wait_for("step")
    node.shell("echo +7200 > /root/clock")
    jump = campaign.wait_for("clock_jump")
    assert 7190 < jump["seconds"] < 7210
    assert campaign.wait_for("finished")["ended"] == "done"
    assert len(campaign.of("step_end")) == 2
    # Waits within the campaign do not depend on the wall clock.
    began, again = campaign.of("started")[0], campaign.of("segment", name="again")[0]
    assert again["up"] - began["up"] >= 29
    assert max(gaps([moment for moment in campaign.moments("gpu0") if moment > jump["t"]])) < 8
