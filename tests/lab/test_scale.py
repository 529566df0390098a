"""A fleet with a few nodes of every bad kind among hundreds of good ones: only the bad ones suffer."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.light_nodes import LightFleet, light_nodes
from provision.errors import ExitCode

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
BAD = {"dead": 4, "refused": 2, "hang": 4, "banner": 2, "garbage": 3, "flood": 3, "stuck": 2}
WORDS = {
    "dead": "did not answer within",
    "refused": "refused the connection",
    "hang": "accepted the connection and then sent nothing",
    "banner": "is not an SSH server",
    "garbage": "it answered something else",
    "flood": "it printed more than 4 MiB",
    "stuck": "no answer within",
}
# The program runs drift like the command line, and finally prints its peak memory.
PROGRAM = """\
import sys
from provision import cli
code = cli.main(sys.argv[1:])
print("peak", open("/proc/self/status").read().partition("VmHWM:")[2].split()[0], file=sys.stderr)
sys.exit(int(code))
"""


@dataclass(frozen=True)
class Drift:
    """One run of drift on a fleet."""

    fleet: LightFleet
    code: int
    report: dict[str, Any]
    progress: str

    @property
    def peak(self) -> float:
        """Peak memory in MB."""
        return int(self.progress.rsplit("peak ", 1)[1]) / 1024


@pytest.fixture(scope="module")
def drift(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drift]:
    folder = tmp_path_factory.mktemp("state")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GPUPROV_RUNS": str(folder / "runs")}
    environment["XDG_STATE_HOME"] = str(folder)
    with light_nodes(200, BAD) as fleet:
        words = [sys.executable, "-c", PROGRAM, "drift", str(fleet.inventory), "--json", "--timeout", "120"]
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=800, env=environment, check=False
        )
        assert done.stdout, done.stderr
        yield Drift(fleet, done.returncode, json.loads(done.stdout), done.stderr)


def test_every_bad_node_is_named_with_what_it_did(drift: Drift) -> None:
    said = drift.report["unreachable"]
    assert set(said) == set(drift.fleet.bad)
    wrong = {name: said[name] for name, kind in drift.fleet.bad.items() if WORDS[kind] not in said[name]}
    assert wrong == {}
    assert all(" → " in words for words in said.values())
    assert Counter(drift.fleet.bad.values()) == BAD


def test_every_good_node_was_looked_at(drift: Drift) -> None:
    assert drift.code == ExitCode.INCOMPLETE
    assert drift.report["as_declared"] == drift.report["majority"]["compared"] == len(drift.fleet.good)


def test_at_the_end_only_bad_nodes_are_waited_for_and_they_are_named(drift: Drift) -> None:
    waiting = [line for line in drift.progress.splitlines() if "waiting for" in line]
    assert waiting, drift.progress
    named = set(re.findall(r"\d{5}", waiting[-1].partition("waiting for")[2]))
    stuck = {name.removeprefix("n") for name, kind in drift.fleet.bad.items() if kind == "stuck"}
    assert named
    assert named <= stuck, waiting[-1]


def test_answers_without_an_end_are_cut_while_they_are_read(drift: Drift) -> None:
    """Three nodes print 50 MB each, and keeping them would need that much more memory."""
    assert drift.peak < 150
