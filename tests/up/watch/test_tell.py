"""Messages to people, over real HTTP: retried until every receiver has them, with no address on disk."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provision.errors import InventoryError
from provision.up.watch import tell
from provision.up.watch.alerts import Alerts
from provision.up.watch.steps import Message
from provision.up.watch.tell import Receiver, Teller, alertmanager, receivers
from tests.support.told import MESSAGE, Server, until
from tests.support.watching import fleet


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tell, "PAUSES", (0.05,))


def test_a_webhook_gets_the_message(server: Server, tmp_path: Path) -> None:
    of = fleet(gpuprov_watch_webhooks=[f"{server.url}/hook?token=secret-word"])
    with Teller(tmp_path, receivers(of, {}), lambda _line: None) as teller:
        teller.tell(MESSAGE)
        until(lambda: server.got and not list(tmp_path.iterdir()), "told")
    ((path, body),) = server.got
    assert path == "/hook?token=secret-word"
    assert body["format"] == 1
    assert {name: body[name] for name in ("id", "kind", "node", "serial", "next")} == {
        "id": MESSAGE.id,
        "kind": "replaced",
        "node": "gpu-03",
        "serial": "1650923004321",
        "next": "gpuprov return gpu-03",
    }


def test_a_full_disk_keeps_no_message_back(server: Server, tmp_path: Path) -> None:
    (tmp_path / "outbox").write_text("")  # a file, so that nothing can be created below it
    (tmp_path / "alerts").write_text("")
    server.answers = [503, 200, 200]
    lines: list[str] = []
    of = fleet(gpuprov_watch_webhooks=[f"{server.url}/hook"], gpuprov_watch_alertmanager=server.url)
    post = alertmanager(of, {})
    assert post is not None
    alerts = Alerts(tmp_path / "alerts", post, lines.append)
    with Teller(tmp_path / "outbox", receivers(of, {}), lines.append, alerts) as teller:
        teller.tell(MESSAGE)
        until(lambda: {path for path, _ in server.got} == {"/hook", "/api/v2/alerts"}, "told")
    assert any("outbox cannot be written: Not a directory; sending from memory" in line for line in lines)


def test_an_error_of_ours_does_not_end_the_telling(tmp_path: Path) -> None:
    told: list[str] = []
    lines: list[str] = []

    def send(message: Message) -> None:
        told.append(message.id)
        if len(told) == 1:
            raise TypeError("a bug")

    with Teller(tmp_path, [Receiver("a list", send)], lines.append) as teller:
        teller.tell(MESSAGE)
        until(lambda: len(told) == 2, "told again")
    assert any("TypeError: a bug; trying again" in line for line in lines)


def test_a_receiver_that_fails_is_tried_again_and_the_others_are_told_once(
    server: Server, tmp_path: Path
) -> None:
    server.answers = [503, 429, 200]
    told: list[str] = []
    lines: list[str] = []
    of = fleet(gpuprov_watch_webhooks=[f"{server.url}/hook?token=secret-word"])
    to = [Receiver("a list", lambda message: told.append(message.id)), *receivers(of, {})]
    with Teller(tmp_path, to, lines.append) as teller:
        teller.tell(MESSAGE)
        teller.tell(MESSAGE)
        until(lambda: not list(tmp_path.iterdir()), "told")
    assert told == [MESSAGE.id]
    assert len(server.got) == 3
    assert "it answered with status 503" in " ".join(lines)
    assert "secret-word" not in " ".join(lines)


def test_what_was_not_told_is_told_by_the_next_watch_and_no_address_is_kept(
    server: Server, tmp_path: Path
) -> None:
    server.answers = [500]
    of = fleet(gpuprov_watch_webhooks=[f"{server.url}/hook?token=secret-word"])
    with Teller(tmp_path, receivers(of, {}), lambda _line: None) as teller:
        teller.tell(MESSAGE)
        until(lambda: server.got, "tried")
    (kept,) = tmp_path.iterdir()
    assert "secret-word" not in kept.read_text()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    server.answers = [200]
    with Teller(tmp_path, receivers(of, {}), lambda _line: None):
        until(lambda: not list(tmp_path.iterdir()), "told by the next one")


def test_a_message_is_not_carried_to_another_host(server: Server, tmp_path: Path) -> None:
    other = Server()
    server.answers, server.location = [307], f"{other.url}/elsewhere"
    of = fleet(gpuprov_watch_webhooks=[server.url])
    with Teller(tmp_path, receivers(of, {}), lambda _line: None) as teller:
        teller.tell(MESSAGE)
        until(lambda: server.got, "tried")
    other.close()
    assert other.got == []


def test_a_program_of_the_site_gets_words_and_json(tmp_path: Path) -> None:
    program, got = tmp_path / "page", tmp_path / "got"
    program.write_text(f'#!/bin/sh\necho "$1 $2" > {got}\ncat >> {got}\n')
    program.chmod(0o755)
    outbox = tmp_path / "outbox"
    outbox.mkdir()
    of = fleet(gpuprov_watch_hook=str(program))
    with Teller(outbox, receivers(of, {}), lambda _line: None) as teller:
        teller.tell(MESSAGE)
        until(lambda: not list(outbox.iterdir()), "told")
    first, second = got.read_text().splitlines()
    assert first == "replaced gpu-03"
    assert json.loads(second)["incident"] == MESSAGE.incident


def test_a_file_in_the_outbox_that_is_no_message_is_put_aside(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"message": {"id": 1}}')
    lines: list[str] = []
    with Teller(tmp_path, [Receiver("x", lambda _message: None)], lines.append):
        until(lambda: (tmp_path / "a.unreadable").exists(), "put aside")
    assert "a.json" in lines[0]


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"gpuprov_watch_webhooks": ["ftp://x/"]}, "gpuprov_watch_webhooks, entry 1 is not an address"),
        ({"gpuprov_watch_alertmanager": "host:9093"}, "gpuprov_watch_alertmanager is not an address"),
        ({"gpuprov_watch_hook": "/no/such"}, "there is no /no/such"),
    ],
)
def test_a_receiver_that_cannot_be_used_is_refused(variables: dict[str, Any], said: str) -> None:
    asked = alertmanager if "gpuprov_watch_alertmanager" in variables else receivers
    with pytest.raises(InventoryError) as refused:
        asked(fleet(**variables), {})
    assert said in refused.value.what
    assert "ftp" not in refused.value.what
