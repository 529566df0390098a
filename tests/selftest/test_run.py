"""A whole selftest on a machine whose tools are scripts written by the tests."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provision import cli
from provision.checks.check import Measurement, Raw
from provision.checks.health import CheckResult
from provision.checks.judge import Finding, Verdict
from provision.checks.judging.node_facts import NodeFacts
from provision.errors import UsageError
from provision.validate.selftest import changes, machine, measure, provocations, result, run
from provision.validate.selftest.machine import Machine, SelftestError
from provision.validate.selftest.result import NOT_PROVEN, PROVEN, Checked, Result
from provision.validate.selftest.run import Settings, Steps
from tests.support.processes import alive, until

GPU = {"count": 8, "sku": "h100-sxm", "fabric": "nvswitch", "architecture": "hopper", "product_names": []}
BURN = "gpu_burn"


NOW = dict.fromkeys(changes._FIELDS, "[N/A]") | {"compute_mode": "Default"}


def observed(**facts: Any) -> Callable[[frozenset[str]], tuple[dict[str, Any], dict[str, str]]]:
    return lambda _facts: (facts, {})


@dataclass(frozen=True)
class EightGpus(Machine):
    """A machine with eight GPUs. `more`: additional facts."""

    more: dict[str, Any] = field(default_factory=dict)

    def facts(self, asked: object, declared: Mapping[str, Any]) -> NodeFacts:  # noqa: ARG002
        facts = {"driver.loaded_version": "580.126.09", "kernel.release": "6.12", "os.id": "debian"}
        return NodeFacts(self.name, {**facts, **self.more}, {"gpu": GPU}, declared)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Write a failing stand-in for every tool of the machine, and return their folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in (*machine._HOW, "journalctl"):
        (folder / name).write_text("#!/bin/sh\nexit 1\n")
        (folder / name).chmod(0o755)
    (folder / "compare.ptx").touch()
    return folder


class Settable(changes.Smi):
    """A GPU on which only the compute mode can be set; `calls` receives each change."""

    def __init__(self, calls: Callable[[str], None]) -> None:
        self.calls = calls

    def read(self, gpu: int) -> dict[str, str]:  # noqa: ARG002
        return NOW

    def call(self, gpu: int, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        self.calls(" ".join(words))
        return subprocess.CompletedProcess([str(gpu)], 1, "refused")


class Course:
    """A selftest into one folder, with the checks that it runs and the answers that replace running them."""

    def __init__(self, steps: Steps, output: Path) -> None:
        self.steps, self.output = steps, output

    def asks(self, *names: str, **steps: Any) -> None:
        self.steps = replace(self.steps, checks=lambda: names, **steps)

    def answers(self, *measurements: Measurement, verdict: Verdict = Verdict.PASS) -> None:
        def check(_bench: object, check: str) -> Any:
            judged = SimpleNamespace(measurements=measurements, verdict=verdict)
            return Checked(check, "", verdict.value, PROVEN), judged

        self.steps = replace(self.steps, check=check)

    def passes(self, *names: str, **steps: Any) -> None:
        """Select these checks, and have them pass."""
        self.asks(*names, **steps)
        self.answers()

    def on(self, **machine: Any) -> None:
        """Change these fields of the machine."""
        self.steps = replace(self.steps, machine=replace(self.steps.machine, **machine))

    def run(self, **settings: Any) -> Result:
        return run.run(Settings(self.output, **settings), steps=self.steps)

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.output / "selftest.json").read_text())
        return found

    def page(self) -> str:
        return (self.output / "selftest.html").read_text()


@pytest.fixture
def course(here: Path, tmp_path: Path) -> Course:
    there = EightGpus(hostname="gpu-01", is_root=True, path=str(here))
    return Course(Steps(there, conditions=lambda _vendor: ()), tmp_path / "out")


def never(*_: object) -> Any:
    pytest.fail("it was tried")


def test_what_was_found_is_in_the_folder(course: Course) -> None:
    course.answers()
    output = course.output = course.output / "a/out"
    found = course.run()
    assert (found.code, found.verdict) == (0, Verdict.PASS)
    assert sorted(one.name for one in output.iterdir()) == [
        "archive", "archive.tar.gz", "selftest.html", "selftest.json",
    ]  # fmt: skip
    assert output.stat().st_mode & 0o077 == 0
    written = course.read()
    assert (written["gpu_count"], written["driver"], written["os"]) == (8, "580.126.09", "debian")
    assert len(written["checks"]) >= 16


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    for output in (tmp_path, tmp_path / "mine"):
        with pytest.raises(UsageError, match="exists and is not an empty folder"):
            run.run(Settings(output))
    with pytest.raises(UsageError, match="cannot be made: Not a directory"):
        run.run(Settings(tmp_path / "mine/out"))
    assert (tmp_path / "mine").read_text() == ""


def test_whoever_is_not_root_reads_one_line(course: Course) -> None:
    course.on(is_root=False)
    with pytest.raises(SelftestError, match=r"^selftest needs root: it reads the kernel log$") as error:
        course.run()
    assert (error.value.fix, error.value.exit_code) == ("run it with sudo", 1)
    assert not (course.output).exists()


@pytest.mark.parametrize("kept", [True, False])
def test_a_machine_without_gpus_reads_one_line_and_keeps_no_folder(
    tmp_path: Path, course: Course, kept: bool
) -> None:
    output = course.output = tmp_path / "new/out"
    bare = Machine(is_root=True, observe=observed(**{"gpu.count": 0, "gpu.pci_ids": [], "os.id": "debian"}))
    course.steps = replace(course.steps, machine=bare)
    if kept:
        output.mkdir(parents=True)
    with pytest.raises(
        SelftestError, match=r"^no NVIDIA or AMD Instinct GPU on the PCI bus of this"
    ) as error:
        course.run()
    assert "lspci -d 10de:" in error.value.fix
    assert (output.exists(), (tmp_path / "new").exists()) == (kept, kept)
    assert not kept or list(output.iterdir()) == []


def test_a_bus_that_cannot_be_read_is_not_a_machine_without_gpus() -> None:
    broken = Machine(observe=lambda _: ({}, {"gpu": "/sys is not there"}))
    with pytest.raises(SelftestError, match="could not be read: /sys is not there"):
        broken.facts((), {})


def test_a_driver_that_is_not_installed(here: Path, course: Course) -> None:
    (here / "nvidia-smi").unlink()
    with pytest.raises(SelftestError, match="nvidia-smi is not installed"):
        course.run()
    assert not (course.output).exists()


def test_gpus_in_use_are_left_alone(course: Course) -> None:
    course.asks("gpu_inventory", BURN, conditions=never)
    course.answers(Measurement("processes", "python (pid 4242, 1024 MiB)", "", "gpu5"), verdict=Verdict.WARN)
    found = course.run()
    assert found.stopped.startswith("GPUs are in use: gpu5 by python (pid 4242, 1024 MiB); drain the machine")
    assert [one.check for one in found.checks] == ["gpu_inventory"], "no load"
    assert found.code == 5
    assert course.read()["stopped"] == found.stopped


def test_gpus_whose_use_cannot_be_seen_are_left_alone(course: Course) -> None:
    course.asks("gpu_inventory", BURN)
    course.answers(
        Measurement("unreadable.nvidia_smi", "it did not end within 90 s", ""), verdict=Verdict.ERROR
    )
    found = course.run()
    assert found.stopped.startswith("whether the GPUs are in use is unknown")
    assert ([one.check for one in found.checks], found.code) == (["gpu_inventory"], 5)


@pytest.mark.parametrize(
    ("error", "context", "interrupted"),
    [
        (OSError(28, "No space left on device"), None, False),
        (BrokenPipeError("the reader is gone"), KeyboardInterrupt(), True),
    ],
)
def test_a_full_disk_and_a_lost_terminal_keep_what_was_found(
    course: Course,
    error: OSError,
    context: BaseException | None,
    interrupted: bool,
) -> None:
    error.__context__ = context

    def fail(_vendor: str) -> Any:
        raise error

    course.passes("versions", conditions=fail)
    found = course.run()
    assert (found.stopped, found.interrupted) == (str(error), interrupted)
    assert found.code == (130 if interrupted else 5)
    assert course.read()["checks"]


def test_a_bug_keeps_what_was_found_and_what_is_left_over(course: Course) -> None:
    """A bug breaks the selftest right after it changed the compute mode, so the mode cannot be restored."""

    class Breaks(Settable):
        def call(self, gpu: int, words: Sequence[str]) -> subprocess.CompletedProcess[str]:  # noqa: ARG002
            raise RuntimeError("it broke") if words[1] != "DEFAULT" else SelftestError("no answer", "")

    course.passes("versions", smi=lambda _: Breaks(never))
    with pytest.raises(RuntimeError, match="it broke"):
        course.run(change_settings=True)
    written = course.read()
    assert (written["stopped"], written["verdict"]) == ("a bug in gpuprov: RuntimeError('it broke')", "error")
    assert "run: nvidia-smi -i 7 -c DEFAULT" in course.page()


def test_a_folder_that_takes_nothing_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, course: Course
) -> None:
    course.passes("versions")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    line = f"^{tmp_path / 'out'} cannot be written: No space left on device$"
    for place in ("Archive", "_write"):
        with monkeypatch.context() as patch:
            patch.setattr(run, place, full)
            with pytest.raises(UsageError, match=line) as error:
                course.run()
        assert error.value.fix == "give another folder with --output"
        for one in ("archive/facts.json", "archive"):
            path = course.output / one
            if path.exists():
                path.rmdir() if path.is_dir() else path.unlink()


def test_gpus_with_nothing_on_them_are_free(course: Course) -> None:
    course.asks("gpu_inventory")
    course.answers(Measurement("processes", "", "", "gpu5"))
    assert course.run().stopped == ""


@pytest.fixture
def kill() -> Iterator[Callable[[int, Path], None]]:
    """Yield a function that signals this process once `file` holds a complete line."""
    threads: list[threading.Thread] = []

    def send(number: int, file: Path) -> None:
        def wait() -> None:
            until(lambda: file.exists() and file.read_text().endswith("\n"), 100)
            os.kill(os.getpid(), number)

        threads.append(threading.Thread(target=wait))
        threads[-1].start()

    yield send
    for one in threads:
        one.join()


# If the signal arrives while Popen starts a program, Popen warns about that program.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_what_there_is(
    tmp_path: Path, here: Path, kill: Callable[[int, Path], None], course: Course, number: int
) -> None:
    """The signal comes while gpu_burn and its child run: both are killed, and earlier results are written."""
    course.asks("versions", BURN, "dcgm_diag")
    pids = tmp_path / "pids"
    (here / BURN).write_text(f"#!/bin/sh\ntrap '' TERM\nsleep 300 &\necho $$ $! >> {pids}\nwait\nsleep 300\n")
    if signal.getsignal(number) is signal.SIG_IGN:  # under nohup, which a selftest respects
        signal.signal(number, signal.SIG_DFL)
    kill(number, pids)
    before = signal.getsignal(number)
    found = course.run()
    assert (found.interrupted, found.code) == (True, 130)
    assert [one.check for one in found.checks] == ["versions"]
    assert signal.getsignal(number) is before
    until(lambda: not any(alive(int(pid)) for pid in pids.read_text().split()))
    written = course.read()
    assert (written["interrupted"], written["exit_code"], len(written["checks"])) == (True, 130, 1)
    assert "was interrupted" in course.page()
    assert (tmp_path / "out/archive.tar.gz").exists()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_while_a_program_is_being_started_leaves_none(course: Course) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def one(*_: object) -> None:
        started.append(subprocess.Popen(["sleep", "300"], start_new_session=True))
        raise KeyboardInterrupt

    course.asks("versions", check=one)
    with subprocess.Popen(["sleep", "300"]) as mine:
        assert course.run().interrupted
        assert mine.poll() is None, "what ran before is somebody else's"
        mine.kill()
    assert started[0].wait(1) == -signal.SIGKILL


def test_ctrl_c_while_it_is_written_loses_nothing(monkeypatch: pytest.MonkeyPatch, course: Course) -> None:
    course.passes("versions")
    render = result.render

    def interrupted(document: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        yield from render(document)

    monkeypatch.setattr(result, "render", interrupted)
    with pytest.raises(KeyboardInterrupt):
        course.run()
    assert "</html>" in course.page()
    assert course.read()["checks"]


def test_checks_that_do_not_fit_are_not_proven(
    monkeypatch: pytest.MonkeyPatch, here: Path, course: Course
) -> None:
    """A check is cut off when the time is up, and the next one does not start."""
    course.asks(BURN, "memory_bandwidth")
    (here / BURN).write_text("#!/bin/sh\nexec sleep 300\n")
    monkeypatch.setattr(measure, "_LEAST", 0.5)
    monkeypatch.setattr(run, "_AT_LEAST", 1.5)
    monkeypatch.setattr(run, "_KEPT_BACK", 60.0)
    found = course.run(minutes=1)
    assert [one.state for one in found.checks] == [NOT_PROVEN, NOT_PROVEN]
    assert all("the selftest's time was over" in one.why for one in found.checks), found.checks
    assert all("--minutes" in one.why for one in found.checks)
    assert found.code == 5


def test_no_condition_is_begun_when_the_time_is_over(course: Course) -> None:
    late = provocations.Condition("late", "x", "y", never)
    course.passes("versions", conditions=lambda _vendor: (late,), smi=lambda _: Settable(never))
    found = course.run(minutes=0.0, change_settings=True)
    for one in (found.provocations[0], found.changes[-1]):
        assert (one.state, "--minutes" in one.why) == (NOT_PROVEN, True)


def test_a_fault_on_one_gpu_does_not_prove_another(course: Course) -> None:
    class Faulty(measure.Bench):
        def run(self, check: str, *_: Any, **__: Any) -> Any:
            findings = (
                Finding(check, Verdict.FAIL, "gpu0", "computes wrong"),
                Finding(check, Verdict.ERROR, "gpu3", "its worker died"),
            )
            return Raw("gpu-01", check), CheckResult(check, Verdict.FAIL, findings, (), 1.0)

    course.asks(BURN, bench=Faulty)
    result = course.run()
    assert (result.checks[0].state, result.checks[0].why) == (NOT_PROVEN, "its worker died")
    assert result.code == 3
    text = course.page()
    assert "gpu0: computes wrong" in text
    assert text.count("its worker died") == 1


def test_the_gpus_that_a_burn_finds_fault_with_are_remembered(course: Course) -> None:
    """A condition that must show in a burn proves nothing on a GPU that already has a burn finding."""
    benches: list[measure.Bench] = []

    class Slow(measure.Bench):
        def run(self, check: str, *_: Any, **__: Any) -> Any:
            benches.append(self)
            finding = Finding(check, Verdict.WARN, "gpu7" if check == BURN else "gpu3", "slow")
            return Raw("gpu-01", check), CheckResult(check, Verdict.WARN, (finding,), (), 1.0)

    course.asks(BURN, "memory_bandwidth", bench=Slow)
    course.run()
    assert benches[0].accused == {"gpu7"}


def test_settings_are_changed_only_when_asked_and_noted_before(tmp_path: Path, course: Course) -> None:
    made: list[str] = []

    def call(words: str) -> None:
        assert json.loads((course.output / "settings-before.json").read_text()) == {"gpu": 7, **NOW}
        made.append(words)

    course.passes("versions", smi=lambda _: Settable(call))
    found = course.run(change_settings=True)
    assert [(one.name, one.state) for one in found.changes] == [
        ("power limit", "not possible here"),
        ("clock lock", "not possible here"),
        ("persistence mode", "not possible here"),
        ("compute mode", "not possible here"),
    ]
    assert found.changes[-1].why == "nvidia-smi refused it: refused"
    assert (made, found.code) == (["-c EXCLUSIVE_PROCESS", "-c DEFAULT"], 0)
    course.output = tmp_path / "other"
    course.asks("versions", smi=never)
    assert course.run().changes == []


def texts(course: Course) -> list[Path]:
    return [path for path in course.output.rglob("*") if path.is_file() and path.suffix != ".gz"]


def test_masked_it_names_no_gpu_and_no_host(course: Course) -> None:
    course.asks("versions")
    facts = {"nvme": [{"serial": "S64GNE0R100001"}], "hca.ports": {"mlx5_0/1": "0c42:a103:00ab:cdef"}}
    course.on(hostname="gpu-17.example.org", more=facts)
    course.run(mask_serials=True)
    for path in texts(course):
        assert not any(word in path.read_text() for word in ("gpu-17", "S64GNE", "a103")), path
    assert "this-host" in course.page()


def test_a_variable_that_is_declared_is_nowhere_in_the_folder(course: Course) -> None:
    course.asks("versions")
    course.run(declared={"nvidia_driver_source": "hunter2"})
    assert not [path for path in texts(course) if "hunter2" in path.read_text()]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--set", "x"], "--set x: must be KEY=VALUE"),
        (["--set", "a-b=1"], "--set a-b=1: must be KEY=VALUE"),
        (["--set", "x="], "--set x=: no value"),
        (["--set", "x=[1"], "--set x"),
    ],
)
def test_a_wrong_set_is_one_line(
    words: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["selftest", "--output", str(tmp_path / "out"), *words]) == 2
    assert capsys.readouterr().err.startswith(f"gpuprov: {expected}")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["--minutes", "--burn-seconds"])
@pytest.mark.parametrize("value", ["0", "-1", "soon", "1.5", ""])
def test_a_wrong_number_is_one_line(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["selftest", f"{option}={value}"])
    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith(f"argument {option}: must be a whole number above 0")


def test_the_default_folder_is_new_each_time() -> None:
    name = str(run.default_output(Machine(hostname="gpu 1/../x")))
    assert re.fullmatch(r"selftest-gpu-1-\.\.-x-\d{8}T\d{6}Z", name)
