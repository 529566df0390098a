"""`kill -9` of the watch at any moment of a substitution: the next start completes it, exactly once."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from provision.errors import GpuprovError
from provision.remote.schedulers import PREFIX
from provision.up.watch.incidents import Step, Store
from tests.support import seed
from tests.support.watched import FAILED, ended, prepared, started
from tests.support.watching import FileScheduler

KILLS = 40
EACH = 5  # kills during one substitution


def is_right(folder: Path, scheduler: FileScheduler) -> None:
    """Assert one completed incident, with each action done once and no other node touched."""
    (incident,) = Store(folder / "watch").incidents()
    assert (incident.node, incident.step, incident.spare) == (FAILED, Step.REPAIR, "spare-1")
    assert scheduler.done() == [f"drain {FAILED}", "mark spare-1", "join spare-1 gpu", "resume spare-1"]
    with scheduler.rows() as rows:
        assert rows.pop(FAILED)["reason"].startswith(f"{PREFIX}{incident.id} ")
        assert rows.pop("spare-1") == {"reason": "", "pools": ["gpu"], "jobs": []}
        assert rows.pop("spare-2")["reason"] == f"{PREFIX}spare"
        assert not [name for name, row in rows.items() if row["reason"]]
    assert set((folder / "told").read_text().split()) == {f"{incident.id}.replaced"}
    assert set((folder / "evidence").read_text().split()) == {incident.id}


def test_forty_kills_at_random_moments(tmp_path: Path) -> None:
    scheduler = prepared(tmp_path / "whole")
    began = time.monotonic()
    assert ended(started(tmp_path / "whole")) == 0
    whole = time.monotonic() - began
    is_right(tmp_path / "whole", scheduler)
    drawn = random.Random(seed.SEED)  # noqa: S311 - random moments, not secrets
    hit = 0
    for trial in range(KILLS // EACH):
        folder = tmp_path / str(trial)
        scheduler = prepared(folder)
        for _ in range(EACH):
            pid = started(folder)
            time.sleep(drawn.uniform(0, whole / 2))
            os.kill(pid, signal.SIGKILL)
            if ended(pid) == -signal.SIGKILL:
                hit += 1
            else:  # it finished before the kill: the machine was busier when `whole` was timed
                whole *= 0.8
        assert ended(started(folder)) == 0, f"trial {trial}"
        is_right(folder, scheduler)
    assert hit >= KILLS / 2, "most must have hit it at work"


def test_two_on_one_fleet_are_kept_apart(tmp_path: Path) -> None:
    store = Store(tmp_path / "watch")
    said = f"already watched by process {os.getpid()}"
    with store.alone(), pytest.raises(GpuprovError, match=said), Store(store.path).alone():
        pass
    with store.alone():
        pass
