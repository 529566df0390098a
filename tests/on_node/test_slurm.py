"""Slurm programs that act on a node's stored result: the nodes they drain or leave, and their output."""

from __future__ import annotations

import json
import stat
import syslog
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from provision.checks.on_node import entry, slurm
from provision.checks.on_node.slurm import REFUSED, Answer
from provision.errors import GpuprovError
from provision.remote import schedulers
from tests.support.reservations import Reservations
from tests.support.slurm import sample

REASON = "gpuprov: gpu3: GPU has fallen off the bus (serial 1650): power-cycle"
LOST: dict[str, Any] = {
    **{"verdict": "fail", "device": "gpu3", "state": "active", "action": "power-cycle"},
    "message": "GPU has fallen off the bus",
}


def told(verdict: str = "fail", error: str = "", **change: Any) -> dict[str, Any]:
    gpus = [{"index": 3, "serial": "1650"}]
    return {"verdict": verdict, "error": error, "gpus": gpus, "findings": [{**LOST, **change}]}


class Scontrol:
    """Fake scontrol that knows one node and records its arguments."""

    def __init__(self, state: str = "IDLE", refuses: str = "") -> None:
        self.text = sample("gpu-01", state)
        self.refuses = refuses
        self.asked: list[Sequence[str]] = []
        self.breaker = Reservations()

    def __call__(self, words: Sequence[str]) -> tuple[int, str]:
        if self.breaker.knows(words):
            return self.breaker(words)
        self.asked.append(words)
        if words[0] == "show":
            return 0, self.text
        return (1, self.refuses) if self.refuses else (0, "")


def act(word: str, last: Any, scontrol: Scontrol, **options: Any) -> Answer:
    given: Callable[[], Mapping[str, Any]] = last if callable(last) else lambda: last
    return slurm.answer(word, given, "gpu-01", scontrol, **options)


UPDATE = ("update", "NodeName=gpu-01", "State=DRAIN", f"Reason={REASON}")
SHOW = ("show", "node", "gpu-01")


@pytest.mark.parametrize("verdict", ["pass", "warn", "skip"])
@pytest.mark.parametrize("word", slurm.WORDS)
def test_a_healthy_node_asks_slurm_nothing(word: str, verdict: str) -> None:
    scontrol = Scontrol()
    assert act(word, told(verdict), scontrol, refuse_unknown=True) == Answer(0)
    assert scontrol.asked == []


@pytest.mark.parametrize(("word", "status"), [("check", 0), ("prolog", REFUSED), ("epilog", 0)])
@pytest.mark.parametrize("state", ["IDLE", "ALLOCATED", "MIXED+COMPLETING", "IDLE+MAINTENANCE"])
def test_a_node_that_fails_is_drained_with_its_cause(word: str, status: int, state: str) -> None:
    scontrol = Scontrol(state)
    found = act(word, told(), scontrol)
    assert scontrol.asked == [SHOW, UPDATE]
    assert found.status == status
    assert REASON in found.line


@pytest.mark.parametrize(("word", "status"), [("check", 0), ("prolog", REFUSED), ("epilog", 0)])
@pytest.mark.parametrize(
    "state", ["IDLE+DRAIN", "ALLOCATED+DRAIN", "DOWN", "DOWN*", "DOWN+DRAIN", "MIXED+FAIL"]
)
def test_a_node_out_of_service_keeps_its_reason(word: str, status: int, state: str) -> None:
    scontrol = Scontrol(state)
    assert act(word, told(), scontrol).status == status
    assert scontrol.asked == [SHOW]


def raising(error: Exception) -> Callable[[], Mapping[str, Any]]:
    def last() -> Mapping[str, Any]:
        raise error

    return last


@pytest.mark.parametrize(
    ("last", "why"),
    [
        (told("error", "the last result is 9 min old"), "the last result is 9 min old"),
        (told("error"), "not all could be measured"),
        (raising(GpuprovError("there is no result yet", "look")), "there is no result yet"),
        (raising(OSError(5, "Input/output error", "/run/x")), "Input/output error"),
        ({"verdict": "fail"}, "the last result is damaged: KeyError('error')"),
        ({**told(), "findings": None}, "the last result is damaged: TypeError("),
        ([], "the last result is damaged: TypeError("),
        (told("new-word"), "not all could be measured"),
    ],
)
def test_what_is_not_known_drains_nothing_and_refuses_where_that_is_wanted(last: Any, why: str) -> None:
    scontrol = Scontrol()
    for word in slurm.WORDS:
        found = act(word, last, scontrol)
        assert found.status == 0
        assert why in found.line
    assert act("prolog", last, scontrol, refuse_unknown=True).status == REFUSED
    assert scontrol.asked == []


@pytest.mark.parametrize(
    ("scontrol", "why"),
    [
        (Scontrol(refuses="slurm_update error: Invalid user id\n"), "slurm_update error: Invalid user id"),
        (Scontrol(refuses="\n"), "it ended with 1 and printed nothing"),
    ],
)
def test_what_slurm_refuses_is_said_and_the_epilog_leaves_it_to_slurm(scontrol: Scontrol, why: str) -> None:
    for word in slurm.WORDS:
        found = act(word, told(), scontrol)
        assert found.status == REFUSED
        assert why in found.line
        assert REASON in found.line


@pytest.mark.parametrize(("word", "status"), [("check", REFUSED), ("prolog", 0), ("epilog", 0)])
def test_a_node_that_slurm_does_not_know_is_not_drained(word: str, status: int) -> None:
    scontrol = Scontrol()
    scontrol.text = "Node gpu-01 not found\n"
    found = act(word, told(), scontrol)
    assert (found.status, scontrol.asked) == (status, [SHOW])
    assert "Node gpu-01 not found" in found.line


@pytest.mark.parametrize("word", slurm.WORDS)
def test_where_the_breaker_is_open_nothing_is_drained_and_no_program_fails(word: str) -> None:
    """A failing Prolog or Epilog would make Slurm itself drain the node."""
    scontrol = Scontrol()
    scontrol.breaker.there["gpuprov-breaker"] = "gpu has had 10"
    found = act(word, told(), scontrol, refuse_unknown=True)
    assert (found.status, scontrol.asked) == (0, [SHOW])
    assert found.line.startswith("gpu-01 is left in service: the breaker of all drains is open (gpu has had")
    assert found.line.endswith(REASON)


@pytest.mark.parametrize(("word", "status"), [("check", REFUSED), ("prolog", 0), ("epilog", 0)])
def test_where_the_breaker_cannot_be_read_nothing_is_drained_and_the_line_tells_why(
    word: str, status: int
) -> None:
    scontrol = Scontrol()
    scontrol.breaker.refuses["reservation"] = "Unable to contact slurm controller (connect failure)\n"
    found = act(word, told(), scontrol)
    assert (found.status, scontrol.asked) == (status, [SHOW])
    assert "left in service, since scontrol show reservation: Unable to contact slurm contr" in found.line


@pytest.mark.parametrize(("word", "permits"), [("check", 0), ("prolog", 1), ("epilog", 1)])
def test_a_permit_is_kept_for_a_drain_that_was_refused_where_slurm_itself_drains(
    word: str, permits: int
) -> None:
    scontrol = Scontrol(refuses="slurm_update error: Access/permission denied")
    assert act(word, told(), scontrol).status == REFUSED
    assert scontrol.asked == [SHOW, UPDATE]
    assert len(scontrol.breaker.there) == permits


@pytest.mark.parametrize("each", [0.2, 0.9, 1.1, 2.5, 5.0])
def test_a_slow_slurm_drains_the_node_or_has_its_permits_back(each: float) -> None:
    """Otherwise a single node would use up all permits in a few runs and open the breaker."""
    scontrol = Scontrol()
    scontrol.text = scontrol.text.replace("Partitions=gpu", "Partitions=gpu,big")
    assert "gpu,big" in scontrol.text
    scontrol.breaker = Reservations({"gpu": 100, "big": 100})
    now = 0.0

    def run(words: Sequence[str], until: float) -> tuple[int, str]:
        nonlocal now
        if min(4.0, until - now) < each:
            now = max(now, min(until, now + 4.0))
            return 127, "no answer"
        now += each
        return scontrol(words)

    found = slurm.answer("check", told, "gpu-01", slurm.timed(run, lambda: now))
    assert now <= 9.0
    drained = UPDATE in scontrol.asked
    assert len(scontrol.breaker.there) == (2 if drained else 0), found.line
    assert drained is (each < 0.8)


def test_the_share_is_the_sites() -> None:
    scontrol = Scontrol()
    answers = [act("check", told(), scontrol, share=2, least=1) for _ in range(3)]
    assert ["is drained" in answer.line for answer in answers] == [True, True, False]


@pytest.mark.parametrize("name", ["ALL;reboot", "-f", "gpu 01", "gpu-[01-99]", "a,b", "", "x" * 300])
def test_a_name_that_is_none_never_reaches_slurm(name: str) -> None:
    scontrol = Scontrol()
    found = slurm.answer("check", told, name, scontrol)
    assert (found.status, scontrol.asked) == (REFUSED, [])
    assert "is no name of a node" in found.line


def test_a_reason_is_one_short_line_of_what_can_be_shown() -> None:
    scontrol = Scontrol()
    message = "lost\n\x1b[2J $(reboot) `id`; State=RESUME " + "x" * 900
    act("check", told(message=message), scontrol)
    reason = scontrol.asked[-1][-1].removeprefix("Reason=")
    assert reason.startswith(
        "gpuprov: gpu3: lost \N{REPLACEMENT CHARACTER}[2J $(reboot) `id`; State=RESUME x"
    )
    assert len(reason) <= slurm.REASON
    assert reason.replace("\N{REPLACEMENT CHARACTER}", "").isprintable()


def test_the_reason_is_one_that_gpuprov_takes_for_its_own() -> None:
    assert REASON.startswith(schedulers.PREFIX)
    assert slurm.REASON == schedulers.REASON


# --- the program itself, with a scontrol script


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set the search path to an empty folder."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def program(folder: Path, text: str) -> None:
    file = folder / "scontrol"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


def test_scontrol_gets_its_arguments_as_they_are(folder: Path) -> None:
    program(folder, f'printf "%s\\n" "$@" > {folder}/asked; echo said; echo trouble >&2; exit 4')
    assert slurm.scontrol(["update", "Reason=$(id) 'x'"]) == (4, "said\ntrouble\n")
    assert (folder / "asked").read_text() == "update\nReason=$(id) 'x'\n"


def test_a_scontrol_that_is_missing_hangs_or_is_none_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert slurm.scontrol(["show"]) == (127, "scontrol is not installed")
    (folder / "scontrol").write_text("#!/nowhere/sh\n")
    (folder / "scontrol").chmod(0o755)
    assert slurm.scontrol(["show"])[0] == 127
    # The child holds the pipe, ignores TERM and has its own session.
    program(folder, "trap '' TERM\n/usr/bin/setsid /bin/sleep 20 &\nwait")
    monkeypatch.setattr(slurm, "_SECONDS", 0.3)
    began = time.monotonic()
    assert slurm.scontrol(["show"]) == (127, "scontrol gave no answer within 0.3 s")
    assert time.monotonic() - began < 3


def test_the_program_drains_by_the_last_result(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    document = {**told(), "boot_id": boot, "uptime": now, "interval": 60}
    (folder / entry.RESULT).write_text(json.dumps(document))
    (folder / "node").write_text(sample("gpu-01", "IDLE"))
    program(
        folder,
        f'echo "$*" >> {folder}/asked; [ "$1" = update ] || [ "$1" = create ] || /bin/cat {folder}/$2',
    )
    (folder / "partition").write_text("PartitionName=gpu\n   State=UP TotalCPUs=8 TotalNodes=4\n")
    (folder / "reservation").write_text("No reservations in the system\n")
    monkeypatch.setattr(entry, "RUN", folder)
    logged: list[str] = []
    monkeypatch.setattr(syslog, "syslog", lambda _, line: logged.append(line))
    monkeypatch.setenv("SLURMD_NODENAME", "gpu-01")
    assert entry.main(["slurm", "check"]) == 0
    assert capsys.readouterr().err == f"gpuprov: gpu-01 is drained: {REASON}\n"
    asked = (folder / "asked").read_text().splitlines()
    assert (asked[0], asked[-1]) == (" ".join(SHOW), " ".join(UPDATE))
    assert sum(line.startswith("create reservation ReservationName=gpuprov-drain.") for line in asked) == 1
    assert logged == [f"gpu-01 is drained: {REASON}"]
    (folder / "reservation").write_text("ReservationName=gpuprov-breaker StartTime=x\n")
    assert entry.main(["slurm", "epilog"]) == 0
    assert logged[-1].startswith("gpu-01 is left in service: the breaker of all drains is open")
    (folder / entry.RESULT).unlink()
    assert entry.main(["slurm", "prolog"]) == 0
    assert entry.main(["--slurm", "prolog", "--refuse-unknown"]) == REFUSED


def test_options_that_do_not_go_together_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["--write", "--slurm", "check"],
        ["write", "--last"],
        ["slurm", "epilog", "--refuse-unknown"],
        ["slurm", "x"],
    ):
        with pytest.raises(SystemExit) as ended:
            entry.main(words)
        assert ended.value.code == 2
    capsys.readouterr()
