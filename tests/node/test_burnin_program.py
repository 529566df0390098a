"""The burn-in program run as on a node: to completion, through kills, stops, reboots and full disks."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from provision.node.burnin.processes import alive, descendants, stat_of
from tests.node.burnin_order import PYTHON, load, order, put_program, step
from tests.support.commands import ran
from tests.support.processes import command_of, until
from tests.support.pythons import python


class Burnin:
    """A spool with the burn-in program in it."""

    def __init__(self, home: Path) -> None:
        self.spool = home / "it"
        self.spool.mkdir(parents=True)
        put_program(self.spool / "program")
        self.process: subprocess.Popen[bytes] | None = None
        self.python = sys.executable

    def order(self, *segments: dict[str, Any], **more: Any) -> Burnin:
        (self.spool / "order.json").write_text(json.dumps(order(*segments, **more)))
        return self

    def start(self) -> Burnin:
        argv = [self.python, "-I", "-S", str(self.spool / "program"), "burnin", str(self.spool)]
        self.process = subprocess.Popen(argv, start_new_session=True)
        return self

    def end(self) -> int:
        assert self.process
        return self.process.wait(60)

    def run(self) -> int:
        return self.start().end()

    def kill(self) -> None:
        """Kill the program and its children at once, as by the OOM killer or a power failure."""
        assert self.process
        tree = ran(["pgrep", "-P", str(self.process.pid)])
        self.process.kill()
        self.process.wait(10)
        for pid in tree.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(pid), signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    @property
    def events(self) -> list[dict[str, Any]]:
        with contextlib.suppress(FileNotFoundError):
            return [json.loads(line) for line in (self.spool / "events.jsonl").read_text().splitlines()]
        return []

    def names(self) -> list[str]:
        return [one["event"] for one in self.events]

    def of(self, name: str) -> list[dict[str, Any]]:
        return [one for one in self.events if one["event"] == name]

    def wait_for(self, name: str, count: int = 1) -> None:
        until(lambda: len(self.of(name)) >= count, 40)

    def until_step(self, count: int = 1) -> Burnin:
        """Start, and wait for this number of steps to begin."""
        self.start().wait_for("step", count)
        return self

    def terminate(self) -> int:
        assert self.process
        self.process.terminate()
        return self.end()

    def was_booted(self) -> None:
        """Change the stored state to one from before a reboot."""
        (self.spool / "state.json").write_text(json.dumps({**self.state, "boot": "another-boot"}))

    def check(self) -> str:
        """Return the reason with which `program burnin SPOOL check` refuses, if any."""
        argv = [sys.executable, "-I", "-S", str(self.spool / "program"), "burnin", str(self.spool), "check"]
        output = ran(argv, check=True).stdout
        reason: str = json.loads(output)["refused"]
        return reason

    def tools(self) -> list[int]:
        """Return the pids of the running SLOW tools."""
        assert self.process
        return [pid for pid in descendants(self.process.pid) if "time.sleep(60" in command_of(pid)]

    def raw(self, event: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(gzip.decompress((self.spool / event["raw"]).read_bytes()))
        return found

    @property
    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.spool / "state.json").read_text())
        return found


@pytest.fixture
def burnin(tmp_path: Path) -> Iterator[Burnin]:
    one = Burnin(tmp_path / "burnin")
    yield one
    if one.process and one.process.poll() is None:
        one.kill()


def sleep(seconds: float) -> list[str]:
    return [*PYTHON, f"import time; time.sleep({seconds})"]


SLOW = step("slow", *sleep(60), deadline=100.0)


def test_an_order_runs_to_its_end_and_keeps_what_was_printed(burnin: Burnin) -> None:
    burnin.order(
        load("warm", step("one", "echo", "first"), step("two", "echo", "second"), repeat=2),
        {"name": "rest", "kind": "cool_down", "minutes": 0.01},
    )
    assert burnin.run() == 0
    assert [name for name in burnin.names() if name not in ("unasked", "sampler")] == [
        *("started", "segment", "step", "step_end", "step", "step_end", "step", "step_end"),
        *("step", "step_end", "segment_end", "segment", "segment_end", "finished"),
    ]
    ends = burnin.of("step_end")
    assert [(one["check"], one["round"], one["n"]) for one in ends] == [
        ("one", 0, 1),
        ("two", 0, 2),
        ("one", 1, 3),
        ("two", 1, 4),
    ]
    answer = burnin.raw(ends[1])
    assert answer["outputs"][0]["stdout"] == "second\n"
    assert [one["name"] for one in answer["outputs"]] == ["two", "kernel_log_delta"]
    assert answer["boot_id"] == answer["boot_id_before"] == burnin.events[0]["boot"]
    assert [one["outcome"] for one in burnin.of("segment_end")] == ["done", "done"]
    (finished,) = burnin.of("finished")
    assert (finished["ended"], finished["steps"], finished["failed"]) == ("done", 4, 0)
    assert finished["wall_seconds"] > 0
    assert not (burnin.spool / "reserve").exists() or burnin.state["finished"] == "done"


def test_minutes_repeat_the_steps_until_they_are_over(burnin: Burnin) -> None:
    burnin.order(load("soak", step("one", *sleep(0.3)), repeat=None, minutes=0.05)).run()
    (end,) = burnin.of("segment_end")
    assert 3.0 <= end["seconds"] < 8.0
    assert len(burnin.of("step_end")) >= 3


def test_a_program_that_fails_is_said_and_the_next_step_runs(burnin: Burnin) -> None:
    killed = [*PYTHON, "import os; os.kill(os.getpid(), 9)"]
    burnin.order(load("a", step("gone", "no-such-tool"), step("killed", *killed), step("fine", "true"))).run()
    gone, killed_end, fine = burnin.of("step_end")
    assert gone["failed"] == [{"name": "gone", "why": "no-such-tool is not installed"}]
    assert killed_end["failed"] == [{"name": "killed", "why": "killed by SIGKILL"}]
    assert fine["failed"] == []
    (said,) = burnin.of("killed")
    assert (said["program"], said["signal"], said["check"]) == ("killed", 9, "killed")
    assert burnin.of("finished")[0]["failed"] == 2


def test_a_killed_runner_goes_on_with_the_next_step(burnin: Burnin) -> None:
    burnin.order(load("a", step("one", "true"), SLOW, step("last", "true"))).until_step(2).kill()
    assert burnin.run() == 0
    (resumed,) = burnin.of("resumed")
    assert resumed["during"]["check"] == "slow"
    assert [one["check"] for one in burnin.of("step_end")] == ["one", "last"]
    assert burnin.of("segment")[1]["again"] is True
    assert [one["n"] for one in burnin.of("step")] == [1, 2, 3]


def test_a_boot_is_an_event_with_what_it_cut(burnin: Burnin) -> None:
    burnin.order(load("a", SLOW, step("last", "true"))).until_step().kill()
    burnin.was_booted()
    burnin.run()
    (booted,) = burnin.of("booted")
    assert (booted["during"]["check"], booted["during"]["segment"]) == ("slow", "a")
    assert burnin.names()[-1] == "finished"
    assert burnin.state["boots"] == 2


def test_too_many_boots_end_it(burnin: Burnin) -> None:
    burnin.order(load("a", SLOW, SLOW), abort={"reboots": 0}).until_step().kill()
    burnin.was_booted()
    burnin.run()
    (abort,) = burnin.of("abort")
    assert (abort["rule"], abort["value"]) == ("reboots", 1)
    assert burnin.of("finished")[0]["ended"] == "abort"


def test_stop_ends_the_step_with_all_its_processes(burnin: Burnin, tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    stubborn = (
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"open({str(marker)!r}, 'w').write(str(os.getpid()))\ntime.sleep(100)"
    )
    burnin.order(load("a", step("stubborn", *PYTHON, stubborn, deadline=90.0))).until_step()
    until(lambda: marker.exists() and marker.read_text(), 20)
    (burnin.spool / "stop").touch()
    assert burnin.terminate() == 0
    assert not alive(int(marker.read_text()))
    assert burnin.names()[-2:] == ["stop", "finished"]
    assert burnin.of("finished")[0]["ended"] == "stopped"
    assert burnin.of("stop")[0]["during"]["check"] == "stubborn"


def test_a_step_that_is_ended_a_moment_before_the_runner_is_no_finding(burnin: Burnin) -> None:
    """systemd kills the processes of a unit in any order."""
    burnin.order(load("a", SLOW, step("last", "true"))).until_step()
    until(burnin.tools)
    (tool,) = burnin.tools()
    stat = stat_of(tool)
    assert stat
    os.kill(stat[2], signal.SIGKILL)
    time.sleep(0.3)
    burnin.terminate()
    assert burnin.names()[-1] == "interrupted"
    assert burnin.of("step_end") + burnin.of("killed") == []
    assert burnin.state["doing"]["check"] == "slow"


@pytest.mark.parametrize("runner_too", [True, False])
def test_a_sampler_that_ends_is_told_unless_the_runner_is_ended_with_it(
    burnin: Burnin, runner_too: bool
) -> None:
    burnin.order(load("a", SLOW, step("last", "true"))).until_step()
    assert burnin.process
    runner = burnin.process.pid

    def samplers() -> list[int]:
        """Return the runner's children that have only a writer below them and handle TERM by then."""
        children = [pid for pid in descendants(runner) if (stat_of(pid) or ("", "", 0))[2] == runner]
        below = {pid: [command_of(one) for one in descendants(pid)] for pid in children}
        return [pid for pid, found in below.items() if found and "time.sleep(60" not in "".join(found)]

    until(lambda: len(samplers()) == 1 and burnin.tools())
    (sampler,) = samplers()
    os.kill(runner, signal.SIGSTOP)
    os.kill(sampler, signal.SIGTERM)
    until(lambda: (stat_of(sampler) or ("", "Z", 0))[1] == "Z")
    if runner_too:
        os.kill(runner, signal.SIGTERM)
    os.kill(runner, signal.SIGCONT)
    if not runner_too:
        until(lambda: burnin.of("sampler"))
        burnin.process.terminate()
    burnin.end()
    told = [one["trouble"] for one in burnin.of("sampler") if one["source"] == "sampler"]
    assert told == ([] if runner_too else ["the sampler ended with status 0"])
    assert burnin.names()[-1] == "interrupted"


def test_a_stopped_campaign_may_be_resumed(burnin: Burnin) -> None:
    burnin.order(load("a", SLOW, step("last", "true"))).until_step()
    (burnin.spool / "stop").touch()
    burnin.terminate()
    (burnin.spool / "stop").unlink()
    burnin.run()
    assert burnin.of("resumed")[0]["during"]["check"] == "slow"
    assert [one["ended"] for one in burnin.of("finished")] == ["stopped", "done"]


def test_term_that_nobody_asked_for_is_a_pause(burnin: Burnin) -> None:
    """systemd stops the unit like this at shutdown; if anyone else does, it is restarted at once."""
    burnin.order(load("a", SLOW, step("last", "true"))).until_step()
    assert burnin.terminate() == 1
    assert "finished" not in burnin.names()
    assert burnin.of("interrupted")[0]["during"]["check"] == "slow"
    burnin.run()
    assert [one["check"] for one in burnin.of("step_end")] == ["last"]


def test_failed_steps_end_it_by_the_rule(burnin: Burnin) -> None:
    burnin.order(load("a", step("bad", "false"), repeat=9), abort={"failed_steps": 2}).run()
    assert burnin.of("abort")[0]["rule"] == "failed_steps"
    assert len(burnin.of("step_end")) == 2
    assert burnin.of("finished")[0]["ended"] == "abort"


def test_no_step_begins_that_could_run_past_the_nodes_time(burnin: Burnin) -> None:
    burnin.order(load("a", dict(step("quick", "true"), deadline=2.0), SLOW), end_by_s=30).run()
    assert [one["check"] for one in burnin.of("step_end")] == ["quick"]
    assert burnin.of("segment_end")[0]["outcome"] == "time"
    assert burnin.of("finished")[0]["ended"] == "time"


@pytest.mark.parametrize("version", ["3.6", "3.8"])
def test_an_older_python_burns_in_as_well(burnin: Burnin, version: str) -> None:
    """Unlike the burn-in, the health program in the same archive needs 3.9."""
    burnin.python = python(version) or pytest.skip(f"this machine has no Python {version}")
    assert burnin.order(load("a", step("one", "true"))).run() == 0
    assert (burnin.of("finished")[0]["ended"], burnin.of("error")) == ("done", [])


def test_a_step_that_does_not_end_is_given_up(burnin: Burnin) -> None:
    (burnin.spool / "program").unlink()
    put_program(
        burnin.spool / "program", ("burnin/campaign.py", "\nCHILD_GRACE = 20.0", "\nCHILD_GRACE = 1.0")
    )
    burnin.order(load("a", dict(SLOW, deadline=1.0), step("last", "true"))).run()
    given_up, last = burnin.of("step_end")
    assert (given_up["raw"], given_up["why"]) == (None, "no end within 2 s")
    assert last["raw"]


def test_segments_wait_for_their_turn(burnin: Burnin) -> None:
    burnin.order(load("a", step("one", "true"), start_after_s=3)).run()
    (waiting,) = burnin.of("waiting")
    assert waiting["name"] == "a"
    assert burnin.of("segment")[0]["t"] - burnin.of("started")[0]["t"] >= 2.9


def test_a_fleet_segment_holds_until_it_is_released(burnin: Burnin) -> None:
    burnin.order({"name": "pairs", "kind": "fleet", "minutes": 5}, load("a", step("one", "true"))).start()
    burnin.wait_for("hold")
    assert burnin.state["holding"] == "pairs"
    (burnin.spool / "release-0").touch()
    assert burnin.end() == 0
    assert [one["outcome"] for one in burnin.of("segment_end")] == ["released", "done"]
    assert burnin.state["holding"] == ""


def test_a_second_program_is_refused_while_one_runs(burnin: Burnin) -> None:
    burnin.order(load("a", SLOW)).until_step()
    assert burnin.check() == "another burn-in runs on this node"


def test_check_names_what_is_in_the_way(burnin: Burnin) -> None:
    missing = "the order is not understood: order.json cannot be read: No such file or directory"
    assert burnin.check() == missing
    assert burnin.order(load("a", step("one", "true"))).check() == ""
    burnin.order(load("a", step("one", "true")), space_mib=10**7)
    assert "10000000 MiB are needed" in burnin.check()
    burnin.order(load("a", step("one", "true")), campaign="other")
    assert "campaign is other, its folder is" in burnin.check()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Return a function that mounts a disk of a few MiB for spools."""
    if os.geteuid() != 0:
        pytest.skip("a disk of a few MiB needs root")
    folder = tmp_path / "small"
    folder.mkdir()

    def mount(mebibytes: int) -> Path:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(folder)], check=True)
        return folder

    yield mount
    subprocess.run(["umount", "--lazy", str(folder)], check=False)


def test_a_full_disk_ends_it_with_all_that_was_measured(small_disk: Callable[[int], Path]) -> None:
    burnin = Burnin(small_disk(4) / "burnin")
    fill = burnin.spool.parent / "fill"
    filling = step("filling", "dd", "if=/dev/zero", f"of={fill}", "bs=64k")
    burnin.order(load("a", step("one", "echo", "kept"), filling, step("last", "true")), space_mib=1).run()
    assert burnin.process
    assert burnin.process.returncode == 0
    first, second = burnin.of("step_end")
    assert burnin.raw(first)["outputs"][0]["stdout"] == "kept\n"
    assert second["check"] == "filling"
    assert "steps" in {one["what"] for one in burnin.of("space")}
    assert burnin.of("finished")[0]["ended"] == "space"
    assert burnin.state["finished"] == "space"


def test_a_cut_line_of_events_costs_that_line_only(burnin: Burnin) -> None:
    burnin.order(load("a", step("one", "true"))).run()
    whole = (burnin.spool / "events.jsonl").read_bytes()
    (burnin.spool / "events.jsonl").write_bytes(whole + b'{"t": 1, "ev')
    state = dict(burnin.state, finished=None, segment=0, step=0, begun=False)
    (burnin.spool / "state.json").write_text(json.dumps(state))
    burnin.run()
    lines = (burnin.spool / "events.jsonl").read_bytes().splitlines()
    broken = [line for line in lines if not line.endswith(b"}")]
    assert broken == [b'{"t": 1, "ev']
    assert json.loads(lines[-1])["event"] == "finished"
