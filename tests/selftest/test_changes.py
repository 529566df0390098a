"""GPU settings changed and restored, with an nvidia-smi that keeps its settings in a file."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provision.checks.health import CheckResult
from provision.checks.judge import Finding, Verdict
from provision.validate.selftest import changes, foreign
from provision.validate.selftest.changes import Change
from provision.validate.selftest.machine import SelftestError, Tool
from provision.validate.selftest.result import NOT_POSSIBLE, NOT_PROVEN, PROVEN, Provoked

NOW = {
    "power.limit": "700.00",
    "power.min_limit": "200.00",
    "persistence_mode": "Enabled",
    "compute_mode": "Default",
    "clocks.max.sm": "1980",
    "clocks.sm": "1980",
}
# Commands that begin with words of `refuse` fail; of `ignore`, succeed without effect; of `hang`, hang.
FAKE = """\
import json, sys, time
file = {file!r}
state = json.load(open(file))
words = sys.argv[3:]
said = " ".join(words)
state["calls"].append(said)
def end(text, code=0):
    json.dump(state, open(file, "w"))
    print(text)
    sys.exit(code)
if any(said.startswith(one) for one in state["hang"]):
    json.dump(state, open(file, "w"))
    time.sleep(60)
if any(said.startswith(one) for one in state["refuse"]):
    end("Insufficient Permissions", 4)
if any(said.startswith(one) for one in state["ignore"]):
    end("All done.")
now = state["now"]
if words[0].startswith("--query-gpu="):
    clock = state["locked"] or now["clocks.sm"]
    values = dict(now, **{{"clocks.sm": clock, "utilization.gpu": "100"}})
    end(", ".join(values[name] for name in words[0].partition("=")[2].split(",")))
if words[0] == "-pl":
    now["power.limit"] = "%.2f" % float(words[1])
elif words[0] == "-pm":
    now["persistence_mode"] = "Enabled" if words[1] == "1" else "Disabled"
    if words[1] == "0" and state["forgets"]:
        now.update({{"power.limit": "700.00", "compute_mode": "Default"}})
elif words[0] == "-c":
    now["compute_mode"] = words[1].capitalize().replace("_p", "_P")
elif words[0] == "-lgc":
    state["locked"] = words[1].partition(",")[0]
elif words[0] == "-rgc":
    state["locked"] = ""
end("All done.")
"""


class Smi:
    """The fake nvidia-smi on PATH."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "state.json"
        program = folder / "nvidia-smi"
        program.write_text(f"#!{sys.executable} -IS\n{FAKE.format(file=str(self.file))}")
        program.chmod(0o755)
        self.set()

    def set(self, **state: Any) -> None:
        known = {
            "now": dict(NOW),
            "locked": "",
            "refuse": [],
            "ignore": [],
            "hang": [],
            "calls": [],
            "forgets": 0,
        }
        self.file.write_text(json.dumps({**known, **state}))

    def now(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.file.read_text())
        return found

    def add(self, key: str, *words: str) -> None:
        self.file.write_text(json.dumps({**self.now(), key: list(words)}))


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Smi:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return Smi(tmp_path)


@dataclass
class Bench:
    """A bench that judges as the check would: a setting must be as declared. `during` runs first."""

    smi: Smi
    during: Callable[[], None] = lambda: None
    declared: dict[str, Any] = field(default_factory=dict)
    names: bool = True
    burn: str = "/bin/true"
    options = {"burn_seconds": 60}  # noqa: RUF012
    node = SimpleNamespace(variables={}, limits=dict)
    accused: set[str] = field(default_factory=set)

    @property
    def tools(self) -> dict[str, Tool]:
        return {"gpu_burn": Tool("gpu_burn", self.burn, "build it")}

    def with_variables(self, **declared: Any) -> Bench:
        self.declared = declared
        return self

    def commands(self, check: str, **_options: Any) -> list[str]:
        return [check]

    def run(self, check: str, _commands: list[str], _place: str) -> tuple[None, CheckResult]:
        self.during()
        state, metric = self.smi.now(), {"gpu_burn": "gflops"}.get(check, "")
        changed = bool(state["locked"])
        for key, word, setting in (
            ("gpu_settings_power_limit", "power_limit", "power.limit"),
            ("nvidia_driver_persistence", "persistence", "persistence_mode"),
            ("gpu_settings_compute_mode", "compute_mode", "compute_mode"),
        ):
            if key in self.declared:
                metric, changed = word, state["now"][setting] != NOW[setting]
        wrong = [Finding(check, Verdict.FAIL, "gpu7", "changed", metric)] if changed and self.names else []
        return None, CheckResult(check, Verdict.FAIL if wrong else Verdict.PASS, tuple(wrong), (), 1.0, "")


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the load by one that does nothing, and wait only briefly for a clock to rise."""
    monkeypatch.setattr(changes, "_RISES", 0.3)

    monkeypatch.setattr(foreign, "load", lambda *_: contextlib.nullcontext())


def plans(**changed: str) -> dict[str, Change | str]:
    """Return the planned changes by name, with the reason in place of a change that is impossible."""
    found = changes.planned({**NOW, **changed})
    return dict((one[0], one[1]) if isinstance(one, tuple) else (one.name, one) for one in found)


def plan(name: str, **changed: str) -> Change:
    one = plans(**changed)[name]
    assert isinstance(one, Change), one
    return one


NAMES = ("power limit", "clock lock", "persistence mode", "compute mode")


def change(bench: Bench, name: str, gpu: int = 7) -> tuple[Provoked, list[str]]:
    """Change this setting; return the outcome and the settings that remain changed."""
    left: list[str] = []
    return changes.change(bench, plan(name), gpu, left.append), left  # type: ignore[arg-type]


def test_four_settings_and_their_ways_back() -> None:
    found = plans()
    assert tuple(found) == NAMES
    ways = {name: (plan(name).value, " ".join(plan(name).there), " ".join(plan(name).back)) for name in NAMES}
    assert ways == {
        "power limit": ("560.00", "-pl 560", "-pl 700"),
        "clock lock": ("990", "-lgc 990,990", "-rgc"),
        "persistence mode": ("Disabled", "-pm 0", "-pm 1"),
        "compute mode": ("Exclusive_Process", "-c EXCLUSIVE_PROCESS", "-c DEFAULT"),
    }
    assert plan("persistence mode").declared == {"nvidia_driver_persistence": True}
    assert plan("persistence mode", persistence_mode="Disabled").there == ("-pm", "1")


def test_what_the_gpu_does_not_have_is_not_planned() -> None:
    found = plans(**dict.fromkeys(NOW, "[N/A]"))
    assert found == {
        "power limit": "it is [N/A], the lowest allowed [N/A]",
        "clock lock": "its clock is [N/A], the highest [N/A]",
        "persistence mode": "it is [N/A]",
        "compute mode": "it is [N/A]",
    }
    assert plans(**{"clocks.sm": "[N/A]"})["clock lock"] == "its clock is [N/A], the highest 1980"


def test_power_at_its_minimum_stays() -> None:
    at = plans(**{"power.limit": "200.00"})["power limit"]
    assert at == "it is 200 W already, the lowest allowed is 200 W"
    near = plan("power limit", **{"power.limit": "220.00"})
    assert (near.value, near.there) == ("200.00", ("-pl", "200"))
    odd = plan("power limit", **{"power.limit": "350.00", "power.min_limit": "299.50"})
    assert (odd.value, odd.there) == ("300.00", ("-pl", "300")), "never under the minimum, and read as set"


def test_prohibited_goes_to_default_and_back() -> None:
    one = plan("compute mode", compute_mode="Prohibited")
    assert (one.value, one.there, one.back) == ("Default", ("-c", "DEFAULT"), ("-c", "PROHIBITED"))
    assert one.declared == {"gpu_settings_compute_mode": "prohibited"}


@pytest.mark.parametrize("name", NAMES)
def test_it_is_changed_named_and_put_back(smi: Smi, name: str) -> None:
    seen: list[Any] = []
    bench = Bench(smi, lambda: seen.append(smi.now()))
    done, left = change(bench, name)
    assert (done.state, done.why, left) == (PROVEN, "", [])
    assert "gpu7: changed" in done.named
    assert (smi.now()["now"], smi.now()["locked"]) == (NOW, "")
    assert seen[0]["now"] != NOW or seen[0]["locked"]


def test_one_that_the_check_does_not_name_is_not_proven(smi: Smi) -> None:
    done, _ = change(Bench(smi, names=False), "power limit")
    assert (done.state, done.why) == (NOT_PROVEN, "the check did not name it")
    assert smi.now()["now"] == NOW


def interrupt() -> None:
    raise KeyboardInterrupt


def fail() -> None:
    raise RuntimeError("the check broke")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("during", "error"), [(interrupt, KeyboardInterrupt), (fail, RuntimeError)])
def test_it_is_put_back_whatever_happens(
    smi: Smi, name: str, during: Callable[[], None], error: type[BaseException]
) -> None:
    left: list[str] = []
    with pytest.raises(error):
        changes.change(Bench(smi, during), plan(name), 7, left.append)  # type: ignore[arg-type]
    assert (smi.now()["now"], smi.now()["locked"], left) == (NOW, "", [])


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_put_back_is_left_over(smi: Smi, name: str) -> None:
    one = plan(name)
    back = " ".join(one.back)
    bench = Bench(smi, lambda: smi.add("refuse", back))
    done, left = change(bench, name)
    assert done.state == NOT_PROVEN
    assert len(left) == 1
    assert left[0].startswith(f"{name} of gpu7: ")
    assert left[0].endswith(f"; run: nvidia-smi -i 7 {back}")
    assert done.why in left[0]


OWN = {"power.limit": "500.00", "compute_mode": "Exclusive_Process"}


def test_what_a_gpu_forgets_without_persistence_mode_is_given_back(smi: Smi) -> None:
    smi.set(now={**NOW, **OWN}, forgets=1)
    done, left = change(Bench(smi), "persistence mode")
    assert (done.state, left) == (PROVEN, [])
    assert smi.now()["now"] == {**NOW, **OWN}


def test_what_it_forgets_for_good_is_left_over(smi: Smi) -> None:
    smi.set(now={**NOW, **OWN}, forgets=1, refuse=["-pl", "-c"])
    done, left = change(Bench(smi), "persistence mode")
    assert done.state == NOT_PROVEN
    assert left == [
        "power limit of gpu7: it is 700.00, it was 500.00; run: nvidia-smi -i 7 -pl 500",
        "compute mode of gpu7: it is Default, it was Exclusive_Process; "
        "run: nvidia-smi -i 7 -c EXCLUSIVE_PROCESS",
    ]


def test_a_clock_that_stays_low_under_load_is_left_over(smi: Smi) -> None:
    left: list[str] = []
    bench = Bench(smi, lambda: smi.add("ignore", "-rgc"))
    changes.change(bench, plan("clock lock"), 7, left.append)  # type: ignore[arg-type]
    assert left == ["clock lock of gpu7: its clock stays at 990 MHz under load; run: nvidia-smi -i 7 -rgc"]


def test_nvidia_smi_that_no_longer_answers_leaves_a_word(smi: Smi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "_SECONDS", 0.5)
    left: list[str] = []

    def breaks() -> None:
        smi.add("hang", "-pl")
        fail()

    bench = Bench(smi, breaks)
    with pytest.raises(RuntimeError):
        changes.change(bench, plan("power limit"), 7, left.append)  # type: ignore[arg-type]
    assert len(left) == 1
    assert "the restored value could not be read: nvidia-smi did not answer" in left[0]


@pytest.mark.parametrize("name", NAMES)
def test_one_that_is_refused_is_not_possible_here(smi: Smi, name: str) -> None:
    smi.set(refuse=["-pl", "-pm", "-c", "-lgc", "-rgc"])
    done, left = change(Bench(smi), name)
    assert (done.state, done.why) == (NOT_POSSIBLE, "nvidia-smi refused it: Insufficient Permissions")
    assert left == []


def test_one_that_is_taken_without_effect_is_not_possible_here(smi: Smi) -> None:
    smi.set(ignore=["-pl"])
    done, left = change(Bench(smi), "power limit")
    assert (done.state, left) == (NOT_POSSIBLE, [])
    assert done.why == "nvidia-smi accepted it, but the GPU still reports 700.00"


def test_no_clock_is_locked_without_what_shows_it(smi: Smi) -> None:
    done, left = change(Bench(smi, burn=""), "clock lock")
    assert (done.state, done.why, left) == (NOT_POSSIBLE, "gpu_burn is not installed: build it", [])
    assert not any(call.startswith("-") and "gc" in call.split()[0] for call in smi.now()["calls"])


def test_no_clock_is_locked_that_could_not_be_seen_to_slow_the_gpu(smi: Smi) -> None:
    done, left = change(Bench(smi), "clock lock", 0)
    assert (done.state, "takes 4 GPUs" in done.why, left) == (NOT_POSSIBLE, True, [])
    done, left = change(Bench(smi, accused={"gpu7"}), "clock lock")
    assert (done.state, "gpu7 as it is" in done.why, left) == (NOT_PROVEN, True, [])
    assert not any("gc" in call.split()[0] for call in smi.now()["calls"])


@pytest.fixture
def soon() -> Iterator[Callable[[float], None]]:
    """Yield a function that sends SIGINT to this process after a delay in seconds."""
    timers: list[threading.Timer] = []

    def send(seconds: float) -> None:
        timers.append(threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)))
        timers[-1].start()

    yield send
    for one in timers:
        one.join()


def test_ctrl_c_while_it_is_put_back_waits(smi: Smi, soon: Callable[[float], None]) -> None:
    """The clock stays low for a while under load, and the second Ctrl-C comes in that time."""
    left: list[str] = []

    def during() -> None:
        smi.add("ignore", "-rgc")
        soon(0.15)

    with pytest.raises(KeyboardInterrupt):
        changes.change(Bench(smi, during), plan("clock lock"), 7, left.append)  # type: ignore[arg-type]
    assert len(left) == 1


def test_settings_that_cannot_be_read(smi: Smi) -> None:
    smi.set(refuse=["--query-gpu"])
    with pytest.raises(SelftestError, match="gpu7 could not be read: Insufficient Permissions"):
        changes.read(7)
