"""Alerts in Alertmanager: open while their cause lasts, ended with it, and expired if their watch dies."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provision.up.watch import alerts
from provision.up.watch.alerts import Alerts, alert, is_over
from provision.up.watch.incidents import Incident, Step, moved, new
from provision.up.watch.steps import Message
from provision.up.watch.tell import Teller, alertmanager
from tests.support.told import MESSAGE, Server, until
from tests.support.watching import fleet


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "RENEW", 0.2)
    monkeypatch.setattr(alerts, "AGAIN", 0.05)


def made(server: Server, folder: Path, lines: list[str] | None = None) -> Alerts:
    post = alertmanager(fleet(gpuprov_watch_alertmanager=f"{server.url}/"), {})
    assert post is not None
    return Alerts(folder / "alerts", post, (lines if lines is not None else []).append)


def teller(folder: Path, one: Alerts) -> Teller:
    (folder / "outbox").mkdir(exist_ok=True)
    return Teller(folder / "outbox", [], lambda _line: None, one)


def left(row: dict[str, Any]) -> float:
    """Return the minutes until the alert ends if it is not renewed."""
    return (datetime.datetime.fromisoformat(row["endsAt"]).timestamp() - time.time()) / 60


def test_an_alert_is_renewed_while_it_is_open_and_ended_then(server: Server, tmp_path: Path) -> None:
    with teller(tmp_path, made(server, tmp_path)) as one:
        one.tell(MESSAGE)
        one.tell(MESSAGE)
        until(lambda: len(server.got) >= 3, "told, and told again")
        for path, (row,) in server.got:
            assert path == "/api/v2/alerts"
            assert row["labels"] == {
                "alertname": "GpuprovWatch",
                "kind": "replaced",
                "node": "gpu-03",
                "severity": "info",
                "device": "gpu3",
                "serial": "1650923004321",
            }
            assert row["annotations"]["summary"] == MESSAGE.text
            assert 14 < left(row) <= 15
        one.settle(lambda _message: False)
        one.settle(lambda message: message.id == MESSAGE.id)
        until(lambda: left(server.got[-1][1][0]) <= 0, "ended")
        until(lambda: not list((tmp_path / "alerts").iterdir()), "forgotten")
        count = len(server.got)
        time.sleep(0.5)
        assert len(server.got) == count, "it is over"
        one.tell(MESSAGE)
        until(lambda: len(server.got) > count and left(server.got[-1][1][0]) > 14, "open again")


def test_the_next_watch_goes_on_with_what_is_open(server: Server, tmp_path: Path) -> None:
    with teller(tmp_path, made(server, tmp_path)) as one:
        one.tell(MESSAGE)
        until(lambda: server.got, "told")
    server.got.clear()
    with teller(tmp_path, made(server, tmp_path)) as one:
        until(lambda: server.got, "told by the next one")
        assert left(server.got[0][1][0]) > 14
        one.settle(lambda _message: True)
        until(lambda: left(server.got[-1][1][0]) <= 0, "ended by the next one")


def test_an_alertmanager_that_fails_is_asked_again_and_said_once(server: Server, tmp_path: Path) -> None:
    server.answers = [503, 503, 503, 200]
    lines: list[str] = []
    with teller(tmp_path, made(server, tmp_path, lines)) as one:
        one.tell(MESSAGE)
        until(lambda: len(server.got) >= 4, "tried again")
        one.settle(lambda _message: True)
        until(lambda: not list((tmp_path / "alerts").iterdir()), "ended")
    assert lines == ["gpuprov_watch_alertmanager was not told: it answered with status 503; trying again"]


def test_one_that_began_anew_under_the_same_labels_is_not_ended(server: Server, tmp_path: Path) -> None:
    one = made(server, tmp_path)
    before, after = (
        replace(MESSAGE, id=f"{at}.held.hourly", kind="held.hourly", incident="") for at in (1, 2)
    )
    one.open(before)
    one.open(after)
    one.settle(lambda message: message.id == before.id)
    one.round()
    ((_, (row,)),) = server.got
    assert left(row) > 14
    assert [path.name for path in (tmp_path / "alerts").iterdir()] == ["2.held.hourly.json"]


def test_a_file_that_is_no_alert_is_put_aside(server: Server, tmp_path: Path) -> None:
    (tmp_path / "alerts").mkdir()
    (tmp_path / "alerts" / "a.json").write_text('{"message": {"id": 1}}')
    lines: list[str] = []
    made(server, tmp_path, lines).round()
    assert server.got == []
    assert "a.json" in lines[0]
    assert (tmp_path / "alerts" / "a.unreadable").exists()


def test_what_holds_a_watch_back_is_critical() -> None:
    found = alert(replace(MESSAGE, kind="held.silent", serial=""), time.time())
    assert found["labels"]["severity"] == "critical"
    assert "serial" not in found["labels"]


OPEN = replace(new("gpu-03", 1000.0, "Xid 79"), id="i")


@pytest.mark.parametrize(
    ("kind", "incident", "over"),
    [
        ("replaced", moved(OPEN, Step.REPAIR, placed=1010.0), False),
        ("replaced", moved(OPEN, Step.REPAIR, placed=1010.0, returned=9000.0), True),
        ("not-placed", moved(OPEN, Step.VERIFY), False),
        ("no-spare", moved(OPEN, Step.CHOOSE), False),
        ("no-spare", moved(OPEN, Step.VERIFY), False),
        ("no-spare", moved(OPEN, Step.EVIDENCE, placed=1010.0), True),
        ("no-spare", moved(OPEN, Step.CHOOSE, returned=9000.0), True),
        ("not-drained", OPEN, False),
        ("not-drained", moved(OPEN, Step.CHOOSE, drained=1001.0), True),
        ("not-drained", moved(OPEN, Step.CLOSED, closed=1001.0), True),
        ("spare-failed", moved(OPEN, Step.REPAIR, was_spare=True), False),
        ("spare-failed", moved(OPEN, Step.REPAIR, was_spare=True, returned=9000.0), True),
    ],
)
def test_when_what_is_told_of_an_incident_is_over(kind: str, incident: Incident, over: bool) -> None:
    message = replace(MESSAGE, kind=kind, incident="i")
    assert is_over(message, {"i": incident}, (), {}) is over
    assert is_over(message, {}, (), {}), "nobody knows of it any more"


def test_when_what_is_told_without_one_is_over() -> None:
    held = Message("1000.held.share", "held.share", 1000.0, "left in service", "gpu-03")
    assert not is_over(held, {}, {"1000.held.share"}, {})
    assert is_over(held, {}, {"2000.held.share"}, {})
    spare = Message("spare-1.spare-failed.1000", "spare-failed", 1000.0, "it did not pass", "spare-1")
    assert not is_over(spare, {}, (), {"spare-1": 999.0})
    assert is_over(spare, {}, (), {"spare-1": 1001.0})
