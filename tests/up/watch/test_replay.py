"""Replay of a recorded day: the decisions that the watch would have made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from provision.errors import UsageError
from provision.up.watch.incidents import Store
from provision.up.watch.policy import Policy
from provision.up.watch.replay import Replay, history, last_day
from provision.up.watch.seen import Seen
from tests.support.watching import LOST, SILENT, fleet, seen

START = 1_800_000_000.0


def day(*changes: tuple[float, str, dict[str, Any]]) -> list[Seen]:
    """Return a history in which all nodes start healthy, followed by these changes (minutes, node, state)."""
    rows = [seen(name, START) for name in fleet().nodes]
    return rows + [seen(node, START + minutes * 60, **how) for minutes, node, how in changes]


def lines(rows: list[Seen], policy: Policy | None = None) -> list[str]:
    return list(Replay(fleet(), policy or Policy()).lines(rows))


def test_a_quiet_day() -> None:
    assert lines(day()) == []


def test_a_failure_and_its_replacement() -> None:
    found = lines(day((10, "gpu-06", LOST), (400, "gpu-01", {})))
    assert found == [
        "2027-01-15T08:10:00Z  drain    gpu-06: gpu3 has fallen off the bus (Xid 79)",
        "2027-01-15T08:10:00Z  replace  gpu-06 by spare-2",
    ]


def test_a_rack_that_goes_dark_drains_nobody() -> None:
    rows = day(*((5, f"gpu-{number:02d}", SILENT) for number in range(1, 5)), (90, "gpu-01", {}))
    found = lines(rows)
    assert not [line for line in found if "drain " in line]
    assert "4 nodes of 10 silent at once" in found[0]
    assert len(found) == 2, "told again after an hour, and not for each node"


def test_a_bad_update_of_the_whole_fleet_stops_at_the_limit() -> None:
    rows = day(*((10, f"gpu-{number:02d}", LOST) for number in range(1, 9)), (15, "spare-1", {}))
    found = lines(rows, Policy(hourly=3, share=100, rack_hourly=3, breaker_nodes=10))
    assert len([line for line in found if "  drain " in line]) == 3
    assert len([line for line in found if "  replace " in line]) == 2
    assert len([line for line in found if "  no spare " in line]) == 1
    assert len([line for line in found if "gpuprov_watch.hourly" in line]) == 1


def test_a_bad_update_of_the_whole_fleet_opens_the_breaker() -> None:
    rows = day(*((10, f"gpu-{number:02d}", LOST) for number in range(1, 9)), (300, "gpu-01", {}))
    found = lines(rows)
    assert len(found) == 1
    assert "  leave    gpu-[01-08]: the breaker of all drains is open" in found[0]


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    rows = day((10, "gpu-06", LOST))
    text = "".join(json.dumps(row.row(row.since)) + "\n" for row in rows)
    path.write_text(text + '{"at": 18000')  # the watch was killed while it wrote
    assert history([path]) == rows
    # A watch of an older gpuprov appended to the cut line.
    path.write_text(text + '{"at": 18000' + text)
    assert history([path]) == sorted([*rows, *rows[1:]], key=lambda one: one.since)
    path.write_text(text + "{}\n" + text)
    with pytest.raises(UsageError, match=f"line {len(rows) + 1}: not a line of a health history"):
        history([path])


@pytest.mark.parametrize("cut", ['{"at": 18000', '{"at": 1, "node": "gpu-03"}'], ids=["cut", "no newline"])
def test_the_next_watch_begins_a_new_line(tmp_path: Path, cut: str) -> None:
    store = Store(tmp_path)
    (tmp_path / "history.jsonl").write_text(cut)
    row = seen("gpu-06", START, **LOST)
    store.remember([row.row(row.since)])
    store.remember([row.row(row.since)])
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    assert (lines[0], len(lines)) == (cut, 3)


def test_only_the_last_day_counts_and_begins_with_how_things_were() -> None:
    rows = [*day((0, "gpu-02", LOST)), seen("gpu-03", START + 3 * 86400, **LOST)]
    found = {one.node: one for one in last_day(rows)}
    assert found["gpu-02"].fatal
    assert found["gpu-03"].fatal
    assert len(lines(last_day(rows), Policy(share=100))) == 4
