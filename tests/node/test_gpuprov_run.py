"""The module that runs programs on a node, with real processes: hangs, floods, missing programs."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from provision.checks.kernel.kernel_log import events
from tests.support import modules
from tests.support.processes import alive, until

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    loaded = modules.load("gpuprov_run")
    monkeypatch.setattr(loaded, "GRACE", 0.3)
    monkeypatch.setattr(loaded, "DRAIN", 0.3)
    return loaded


@pytest.fixture
def run(module: ModuleType) -> Run:
    def call(*argv: str, deadline: float = 20.0, cap: int = 65536, **more: Any) -> dict[str, Any]:
        result: dict[str, Any] = module.run_one(
            {"name": "it", "argv": list(argv), "deadline": deadline, **more}, cap
        )
        return result

    return call


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", code)


def gone(pid: int) -> bool:
    """Wait a moment for a killed process to disappear."""
    until(lambda: not alive(pid))
    return True


def test_what_is_printed_comes_back_with_the_status(run: Run) -> None:
    result = run(*python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"))
    assert (result["rc"], result["stdout"], result["stderr"]) == (3, "out\n", "err\n")
    assert not result["timed_out"]
    assert not result["truncated"]
    assert not result["not_started"]


def test_no_shell_reads_the_arguments(run: Run) -> None:
    assert run("echo", "$HOME; `id`")["stdout"] == "$HOME; `id`\n"


def test_environment_and_folder(run: Run, tmp_path: Any) -> None:
    code = "import os; print(os.getcwd(), os.environ['CUDA_DEVICE_ORDER'], os.environ['LC_ALL'])"
    result = run(*python(code), cwd=str(tmp_path), env={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert result["stdout"] == f"{tmp_path} PCI_BUS_ID C\n"


def test_nothing_is_read_from_stdin(run: Run) -> None:
    assert run("cat")["rc"] == 0


@pytest.mark.parametrize(
    ("argv", "more", "said"),
    [
        (("no-such-tool",), {}, "no-such-tool is not installed"),
        (("/etc",), {}, "Permission denied"),
        (("true",), {"cwd": "/no/such/folder"}, "the folder /no/such/folder does not exist"),
        (("tr\0ue",), {}, "null byte"),
    ],
)
def test_what_cannot_start_says_why(argv: tuple[str, ...], more: dict[str, str], said: str, run: Run) -> None:
    result = run(*argv, **more)
    assert said in result["not_started"]
    assert result["rc"] is None


def test_a_hang_is_ended_and_what_it_said_is_kept(run: Run) -> None:
    result = run(*python("import time; print('begun', flush=True); time.sleep(600)"), deadline=0.5)
    assert (result["timed_out"], result["rc"], result["stdout"]) == (True, None, "begun\n")


def test_a_program_that_ignores_term_is_killed_with_its_children(run: Run) -> None:
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = os.fork()\n"
        "print(os.getpid(), flush=True)\n"
        "time.sleep(600)\n"
    )
    result = run(*python(code), deadline=0.7)
    assert result["timed_out"]
    pids = [int(word) for word in result["stdout"].split()]
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)


def test_a_child_left_behind_does_not_hold_us(run: Run) -> None:
    """A background child keeps the pipe open, and the command ends with its parent."""
    code = "import os, time\nif os.fork() == 0: time.sleep(600)\nprint(os.getpid(), flush=True)"
    result = run(*python(code), deadline=20.0)
    assert result["rc"] == 0
    assert not result["timed_out"]
    assert result["seconds"] < 15


def test_a_child_in_a_session_of_its_own_does_not_hold_us_either(run: Run) -> None:
    code = (
        "import os, time\nif os.fork() == 0:\n os.setsid(); print(os.getpid(), flush=True); time.sleep(600)"
    )
    result = run(*python(code), deadline=20.0)
    os.kill(int(result["stdout"]), signal.SIGKILL)
    assert result["rc"] == 0


@pytest.fixture
def started(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list of processes that the module starts."""
    processes, real = [], module.start

    def start(command: Any) -> Any:
        processes.append(real(command))
        return processes[-1]

    monkeypatch.setattr(module, "start", start)
    return processes


def test_a_child_that_cannot_be_killed_is_left(
    run: Run, module: ModuleType, monkeypatch: pytest.MonkeyPatch, started: list[Any]
) -> None:
    """A process in state D ignores signals, and the module must answer nevertheless."""
    pids: list[int] = []
    monkeypatch.setattr(module, "signal_group", lambda process, _number: pids.append(process.pid))
    try:
        result = run("sleep", "600", deadline=0.2)
        assert result["timed_out"]
        assert pids
    finally:
        started[0].kill()
        started[0].wait()


def test_a_flood_keeps_its_beginning_and_its_end(run: Run) -> None:
    code = "print('BEGIN'); [print('x' * 100) for _ in range(20000)]; print('END')"
    result = run(*python(code), cap=10_000)
    assert result["truncated"]
    assert result["stdout"].startswith("BEGIN\n")
    assert result["stdout"].endswith("END\n")
    assert len(result["stdout"]) < 10_200
    assert "bytes left out" in result["stdout"]


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 25])
def test_the_cap_is_exact(size: int, module: ModuleType) -> None:
    kept = module.Capped(10)
    data = bytes(range(65, 65 + size))
    for byte in data:
        kept.add(bytes([byte]))
    text = kept.text()
    if size <= 10:
        assert text == data.decode()
        assert kept.dropped == 0
    else:
        assert kept.dropped == size - 10
        assert text.startswith(data[:5].decode())
        assert text.endswith(data[-5:].decode())


def test_bytes_that_are_no_text_do_not_break_the_answer(run: Run) -> None:
    result = run(*python("import sys; sys.stdout.buffer.write(b'\\xff\\xfe ok\\n')"))
    assert result["stdout"].endswith(" ok\n")


def test_carriage_returns_stay(run: Run) -> None:
    assert run(*python("print('10%\\r20%')"))["stdout"] == "10%\r20%\n"


def test_the_fields_are_those_of_output(run: Run) -> None:
    from provision.checks.check import Output

    assert set(run("true")) == set(Output.__dataclass_fields__)


RunAll = Callable[..., dict[str, dict[str, Any]]]


# --- samplers


def a_command(name: str, *argv: str, deadline: float = 20.0, beside: str = "") -> dict[str, Any]:
    return {"name": name, "argv": list(argv), "deadline": deadline, "beside": beside}


SAMPLER = "import time\nwhile True:\n print('sample', flush=True); time.sleep(0.02)"
WORK = "import time; time.sleep(0.5); print('done')"


@pytest.fixture
def run_all(module: ModuleType) -> RunAll:
    def call(*commands: dict[str, Any]) -> dict[str, dict[str, Any]]:
        assert module.misuse(list(commands)) == ""
        found = module.run_all(list(commands), 65536)
        assert [output["name"] for output in found] == [command["name"] for command in commands]
        return {output["name"]: output for output in found}

    return call


def the_same_as_alone(output: dict[str, Any]) -> None:
    assert (output["rc"], output["stdout"], output["timed_out"]) == (0, "done\n", False)
    assert output["seconds"] < 10


def test_a_sampler_runs_while_its_companion_does(run_all: RunAll) -> None:
    later = "import time; print(time.time())"
    outputs = run_all(
        a_command("sampler", *python(SAMPLER), beside="work"),
        a_command("work", *python(WORK)),
        a_command("after", *python(later)),
    )
    the_same_as_alone(outputs["work"])
    sampler = outputs["sampler"]
    assert sampler["stdout"].count("sample\n") >= 3
    assert (sampler["rc"], sampler["timed_out"], sampler["beside"]) == (-signal.SIGTERM, False, "work")
    assert 0.3 < sampler["seconds"] < 10
    assert outputs["after"]["rc"] == 0


def test_a_sampler_that_ignores_term_is_killed_and_its_output_kept(run_all: RunAll) -> None:
    stubborn = "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    stubborn += "print(os.getpid(), flush=True)\ntime.sleep(600)"
    outputs = run_all(
        a_command("work", *python(WORK)), a_command("sampler", *python(stubborn), beside="work")
    )
    the_same_as_alone(outputs["work"])
    assert gone(int(outputs["sampler"]["stdout"]))
    assert (outputs["sampler"]["rc"], outputs["sampler"]["timed_out"]) == (-signal.SIGKILL, False)


@pytest.mark.parametrize(
    "sampler",
    [
        python("print('x')"),
        python("import sys; sys.exit(9)"),
        ("no-such-tool",),
        python("import os, time; os.close(1); os.close(2); time.sleep(600)"),
        python("while True: print('x' * 65536)"),
    ],
    ids=["ends early", "fails", "not installed", "closes its pipes and stays", "floods"],
)
def test_nothing_a_sampler_does_changes_its_companion(sampler: tuple[str, ...], run_all: RunAll) -> None:
    outputs = run_all(a_command("sampler", *sampler, beside="work"), a_command("work", *python(WORK)))
    the_same_as_alone(outputs["work"])


def test_a_sampler_that_cannot_be_killed_is_left(
    run_all: RunAll, module: ModuleType, monkeypatch: pytest.MonkeyPatch, started: list[Any]
) -> None:
    """A sampler in state D ignores signals, and the module answers with the output it has."""
    monkeypatch.setattr(module, "signal_group", lambda _process, _number: None)
    try:
        outputs = run_all(
            a_command("sampler", *python(SAMPLER), beside="work"), a_command("work", *python(WORK))
        )
        the_same_as_alone(outputs["work"])
        assert outputs["sampler"]["rc"] is None
        assert "sample" in outputs["sampler"]["stdout"]
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_a_sampler_does_not_save_a_companion_from_its_deadline(
    run_all: RunAll,
) -> None:
    outputs = run_all(
        a_command("sampler", *python(SAMPLER), beside="work"), a_command("work", "sleep", "600", deadline=0.5)
    )
    assert outputs["work"]["timed_out"]
    assert not outputs["sampler"]["timed_out"]


@pytest.mark.parametrize(
    ("commands", "said"),
    [
        ([a_command("a")], "empty argv"),
        ([a_command("a", "true", beside="b")], "beside b, which is not run"),
        ([a_command("a", "true", beside="a")], "beside a, which is not run"),
        ([a_command("a", "true"), a_command("a", "true")], "one name"),
        ([a_command("kernel_log_delta", "true")], "one name"),
    ],
)
def test_a_wrong_call_is_refused(commands: list[dict[str, Any]], said: str, module: ModuleType) -> None:
    assert said in module.misuse(commands)


# --- the kernel log ---


@pytest.mark.parametrize(
    ("before", "after", "fresh", "lost"),
    [
        ("abc", "abc", "", False),
        ("abc", "abcde", "de", False),
        ("abc", "bcde", "de", False),  # the ring buffer dropped a line
        ("aaa", "aaaa", "a", False),
        ("abab", "ababab", "ab", False),
        ("abc", "xyz", "xyz", True),  # it dropped all known lines
        ("", "ab", "ab", False),
        ("abc", "", "", True),
    ],
)
def test_what_came_since(before: str, after: str, fresh: str, lost: bool, module: ModuleType) -> None:
    assert module.appended(list(before), list(after)) == (list(fresh), lost)


@pytest.fixture
def kernel_log(tmp_path: Any, module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a file that `dmesg` prints as the kernel log."""
    log = tmp_path / "log"
    log.write_text("[    1.0] Linux version 6.1\n")
    (tmp_path / "dmesg").write_text(f"#!/bin/sh\ncat {log}\n")
    (tmp_path / "journalctl").write_text("#!/bin/sh\nexit 1\n")
    for name in ("dmesg", "journalctl"):
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(module, "PATH", f"{tmp_path}:/usr/bin:/bin")
    return log


XID = "[    9.5] NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."


def test_the_kernel_log_of_the_run_alone_comes_back(kernel_log: Any, module: ModuleType) -> None:
    before = module.kernel_lines()
    with kernel_log.open("a") as log:
        log.write(f"{XID}\n")
    delta = module.kernel_log_delta(before, 65536)
    assert (delta["name"], delta["stdout"], delta["rc"]) == ("kernel_log_delta", XID, 0)
    assert (delta["truncated"], delta["not_started"]) == (False, "")
    quiet = module.kernel_log_delta(module.kernel_lines(), 65536)
    assert (quiet["stdout"], quiet["not_started"]) == ("", "")


def test_the_journal_answers_where_the_ring_buffer_does_not(
    kernel_log: Any, module: ModuleType, tmp_path: Any
) -> None:
    (tmp_path / "dmesg").write_text("#!/bin/sh\necho 'dmesg: Operation not permitted' >&2; exit 1\n")
    (tmp_path / "journalctl").write_text(f"#!/bin/sh\ncat {kernel_log}\n")
    before = module.kernel_lines()
    kernel_log.write_text(kernel_log.read_text() + XID)
    delta = module.kernel_log_delta(before, 65536)
    assert (delta["argv"][0], delta["stdout"]) == ("journalctl", XID)


@pytest.mark.usefixtures("kernel_log")
def test_a_kernel_log_nobody_may_read_says_so(module: ModuleType, tmp_path: Any) -> None:
    (tmp_path / "dmesg").write_text("#!/bin/sh\necho 'dmesg: Operation not permitted' >&2; exit 1\n")
    delta = module.kernel_log_delta(module.kernel_lines(), 65536)
    assert "Operation not permitted" in delta["not_started"]
    assert delta["stdout"] == ""


# --- retries


@pytest.fixture
def run_again(module: ModuleType, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that runs a shell script with `$n`, the number of the try, and counts the tries."""
    monkeypatch.setattr(module, "RETRY", 0.05)

    def call(script: str, **more: Any) -> tuple[dict[str, Any], int]:
        tries = tmp_path / "tries"
        tries.write_text("")
        counted = f"echo >> {tries}; n=$(wc -l < {tries}); {script}"
        command = {"name": "it", "argv": ["sh", "-c", counted], "deadline": 20.0, **more}
        output: dict[str, Any] = module.run_again(command, 65536)
        return output, len(tries.read_text().splitlines())

    return call


NOBODY = "Couldn't connect to"
AGAIN = {"retry_on": NOBODY, "retry_for": 20.0}


@pytest.mark.parametrize("stream", ["1", "2"])
def test_a_client_is_run_again_until_somebody_listens(stream: str, run_again: Callable[..., Any]) -> None:
    script = f'if [ $n -lt 4 ]; then echo "{NOBODY} gpu-02" >&{stream}; exit 1; fi; echo done'
    result, tries = run_again(script, **AGAIN)
    assert (result["rc"], result["stdout"], result["stderr"], tries) == (0, "done\n", "", 4)


def test_it_gives_up_after_its_time_with_what_was_said_last(run_again: Callable[..., Any]) -> None:
    began = time.monotonic()
    result, tries = run_again(f'echo "{NOBODY} gpu-02, try $n"; exit 3', retry_on=NOBODY, retry_for=0.6)
    assert time.monotonic() - began < 10
    assert tries > 1
    assert (result["rc"], result["stdout"]) == (3, f"{NOBODY} gpu-02, try {tries}\n")
    assert not result["timed_out"]


@pytest.mark.parametrize(
    ("script", "more", "rc"),
    [
        ("echo another trouble; exit 1", AGAIN, 1),
        (f'echo "{NOBODY}"; exit 0', AGAIN, 0),
        (f'echo "{NOBODY}"; exit 1', {"retry_on": NOBODY, "retry_for": 0.0}, 1),
        (f'echo "{NOBODY}"; exit 1', {"retry_on": "", "retry_for": 20.0}, 1),
        (f'echo "{NOBODY}"; exit 1', {}, 1),
        (f'echo "{NOBODY}"; sleep 60', {**AGAIN, "deadline": 0.3}, None),
    ],
    ids=["another failure", "success", "no time for it", "no words", "not asked for", "a hang"],
)
def test_nothing_else_is_run_again(
    script: str, more: dict[str, Any], rc: int | None, run_again: Callable[..., Any]
) -> None:
    result, tries = run_again(script, **more)
    assert (result["rc"], tries, result["timed_out"]) == (rc, 1, rc is None)


def test_what_does_not_start_is_not_started_again(module: ModuleType) -> None:
    command = {"name": "it", "argv": ["no-such-tool"], "deadline": 1.0, **AGAIN, "retry_on": "not installed"}
    began = time.monotonic()
    assert "not installed" in module.run_again(command, 65536)["not_started"]
    assert time.monotonic() - began < 5


def test_one_that_is_tried_again_stands_once_among_the_outputs(run_all: RunAll, tmp_path: Any) -> None:
    flag = tmp_path / "flag"
    script = f'test -e {flag} && echo done || {{ touch {flag}; echo "{NOBODY}"; exit 1; }}'
    outputs = run_all({**a_command("client", "sh", "-c", script), **AGAIN}, a_command("after", "true"))
    assert (outputs["client"]["rc"], outputs["client"]["stdout"]) == (0, "done\n")
    assert outputs["after"]["rc"] == 0


@pytest.mark.parametrize(
    "form",
    [
        "{driver} {at}: PCIe Bus Error: severity=Corrected, type=Data Link Layer",
        "{driver} {at}: AER: PCIe Bus Error: severity=Corrected, type=Data Link Layer",  # Linux 5.3 to 5.7
        "{{1}}[Hardware Error]:   device_id: {at}",
    ],
)
def test_an_error_of_a_pcie_port_comes_with_the_buses_below_it(
    form: str, module: ModuleType, tmp_path: Any
) -> None:
    """The kernel printed them at boot, and the check identifies its GPUs by bus."""
    port = tmp_path / "0000:64:01.0"
    port.mkdir()
    (port / "secondary_bus_number").write_text("101\n")
    (port / "subordinate_bus_number").write_text("102\n")
    errors = [
        f"[ 100.000000] {form.format(driver=driver, at=at)}"
        for driver, at in (
            ("pcieport", "0000:64:01.0"),
            ("pcieport", "0000:64:01.0"),
            ("nvidia", "0000:9b:00.0"),
        )
    ]
    assert module.bridges([XID, *errors], str(tmp_path)) == ["pci 0000:64:01.0: PCI bridge to [bus 65-66]"]
    if "device_id" in form:
        return  # one line of a multi-line record
    (event, _) = sorted(
        events([*module.bridges(errors, str(tmp_path)), *errors]), key=lambda one: one.address
    )
    assert event.below == (0x65, 0x66)


# --- filtered lines

NOISE = "1795884709.100000 gpu-01 kernel: [UFW BLOCK] IN=eth0 OUT= SRC=10.0.0.1 DST=10.0.0.2 PROTO=TCP"
FAULT = "1795884709.200000 gpu-01 kernel: NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus."
FURTHER = "                                  NVRM: Xid (PCI:0000:1c:00): 79"


def test_the_journal_of_weeks_is_short_by_the_lines_that_are_kept(run: Run) -> None:
    noise = f"for i in range(40000): print({NOISE!r}, i)"
    code = f"{noise}\nprint({FAULT!r})\n{noise}"
    result = run(*python(code), keep=["NVRM:", "SXid"])
    assert (result["stdout"], result["truncated"]) == (f"{NOISE} 0\n{FAULT}\n", False)
    assert run(*python(code))["truncated"], "it is longer than an answer may be"


def test_further_lines_are_kept_with_the_message_that_they_belong_to(run: Run) -> None:
    text = "\n".join(
        [NOISE, NOISE, FURTHER, FAULT, "      more", NOISE, FURTHER, "-- cursor: s=1;i=2", FAULT]
    )
    result = run("printf", "%s", text, keep=["NVRM:"])
    assert result["stdout"].split("\n") == [NOISE, FAULT, "      more", "-- cursor: s=1;i=2", FAULT]
    assert run("true", keep=["NVRM:"])["stdout"] == ""


def test_a_line_without_an_end_takes_no_memory(run: Run) -> None:
    code = "import sys\nfor i in range(400): sys.stdout.write('x' * 65536)\nprint()\nprint('NVRM: y')"
    result = run(*python(code), keep=["NVRM:"], cap=65536)
    assert (len(result["stdout"]) < 70000, result["truncated"]) == (True, True)
