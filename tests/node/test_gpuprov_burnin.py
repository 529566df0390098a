"""The module that starts, watches and collects a burn-in, with a simulated systemd."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from provision.checks.on_node import packed_program
from tests.node.burnin_order import load, order, step
from tests.support import modules

ORDER = order(load("a", step("one", "true")), about={"profile": "smoke"})


class Systemd:
    """Fake systemd that reports the unit's state and records its calls; starting the unit writes an event."""

    def __init__(self, module: ModuleType, home: Path) -> None:
        self.real, self.home, self.active = module.run, home, False
        self.asked: list[str] = []
        self.refuses = ""

    def run(self, argv: list[str], seconds: float) -> tuple[int | None, str]:
        if argv[0] != "systemctl":
            found: tuple[int | None, str] = self.real(argv, seconds)
            return found
        self.asked.append(argv[1])
        if argv[1] == "show":
            return 0, f"ActiveState={'active' if self.active else 'inactive'}"
        if argv[1] == "start":
            if self.refuses:
                return 1, self.refuses
            self.active = True
            with (self.home / "it/events.jsonl").open("a") as events:
                events.write('{"event": "started"}\n')
        if argv[1] == "stop":
            self.active = False
        return 0, ""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    loaded = modules.load("gpuprov_burnin")
    (tmp_path / "units").mkdir()
    monkeypatch.setattr(loaded, "HOME", str(tmp_path / "gpuprov/burnin"))
    monkeypatch.setattr(loaded, "UNIT_FOLDER", str(tmp_path / "units"))
    return loaded


@pytest.fixture
def systemd(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    played = Systemd(module, Path(module.HOME))
    monkeypatch.setattr(module, "run", played.run)
    return played


@pytest.fixture
def spool(module: ModuleType) -> Path:
    return Path(module.HOME) / "it"


def ask(module: ModuleType, state: str, **more: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "campaign": "",
        "order": b"",
        "runner": packed_program.build("burnin"),
        "offsets": {},
    }
    usual |= {"limit": 10**6, "segment": "", "timeout": 5.0}
    if isinstance(more.get("order"), dict):
        more["order"] = json.dumps(more["order"]).encode()
    answer: dict[str, Any] = module.STATES[state]({**usual, **more})[1]
    return answer


def test_start_installs_a_unit_that_comes_back_after_a_reboot(
    module: ModuleType, systemd: Systemd, spool: Path
) -> None:
    assert ask(module, "start", order=ORDER) == {"started": True, "campaign": "it"}
    unit = Path(module.UNIT_FOLDER) / module.UNIT
    text = unit.read_text()
    assert f"-I -S {spool}/program burnin {spool}\n" in text
    for line in ("Restart=on-failure", "KillMode=control-group", "OOMPolicy=continue"):
        assert line in text.splitlines()
    assert (Path(module.UNIT_FOLDER) / "multi-user.target.wants" / module.UNIT).resolve() == unit.resolve()
    assert json.loads((spool / "order.json").read_text()) == ORDER
    assert (spool.stat().st_mode & 0o777, spool.parent.stat().st_mode & 0o777) == (0o700, 0o700)
    assert [word for word in systemd.asked if word != "show"] == ["daemon-reload", "reset-failed", "start"]


@pytest.mark.usefixtures("systemd")
def test_start_again_is_answered_and_another_is_refused(module: ModuleType) -> None:
    ask(module, "start", order=ORDER)
    assert ask(module, "start", order=ORDER)["already"] is True
    refused = ask(module, "start", order=dict(ORDER, campaign="other"))
    assert refused == {"started": False, "refused": "the burn-in it runs on this node", "running": "it"}
    assert not (Path(module.HOME) / "other").exists()


def test_one_that_is_neither_alive_nor_finished_is_resumed(
    module: ModuleType, systemd: Systemd, spool: Path
) -> None:
    ask(module, "start", order=ORDER)
    systemd.active = False
    (spool / "stop").touch()
    changed = dict(ORDER, node="another")
    assert ask(module, "start", order=changed) == {"started": True, "campaign": "it", "resumed": True}
    assert not (spool / "stop").exists()
    assert json.loads((spool / "order.json").read_text()) == ORDER, "what was begun is what goes on"
    (spool / "state.json").write_text(json.dumps({"finished": "done"}))
    systemd.active = False
    assert ask(module, "start", order=ORDER)["already"] is True


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (dict(ORDER, space_mib=10**7), "MiB are free for the spool, 10000000 MiB are needed"),
        (dict(ORDER, segments=[]), "the order is not understood: segments is not a list"),
    ],
)
def test_a_refused_start_leaves_nothing(
    module: ModuleType, systemd: Systemd, wrong: dict[str, Any], said: str
) -> None:
    answer = ask(module, "start", order=wrong)
    assert answer["started"] is False
    assert said in answer["refused"]
    assert list(Path(module.HOME).iterdir()) == []
    assert list(Path(module.UNIT_FOLDER).iterdir()) == []
    assert "start" not in systemd.asked


def test_a_unit_that_does_not_start_is_taken_away(module: ModuleType, systemd: Systemd) -> None:
    systemd.refuses = "Unit is masked."
    answer = ask(module, "start", order=ORDER)
    assert answer["refused"] == "systemctl start: Unit is masked."
    assert not (Path(module.UNIT_FOLDER) / module.UNIT).exists()


@pytest.mark.parametrize("campaign", ["../x", "a/b", "", None, "x" * 101])
@pytest.mark.usefixtures("systemd")
def test_a_campaign_that_is_no_name_is_an_error(module: ModuleType, campaign: str | None) -> None:
    with pytest.raises(ValueError, match="campaign"):
        ask(module, "start", order=dict(ORDER, campaign=campaign))


def collected(module: ModuleType, offsets: dict[str, Any], limit: int) -> tuple[dict[str, bytes], bool]:
    answer = ask(module, "collect", offsets=offsets, limit=limit)
    parts = {part["file"]: zlib.decompress(base64.b64decode(part["data"])) for part in answer["parts"]}
    return parts, answer["more"]


@pytest.mark.usefixtures("systemd")
def test_collect_gives_what_is_new_within_the_limit(module: ModuleType, spool: Path) -> None:
    ask(module, "start", order=ORDER)
    (spool / "telemetry").mkdir()
    (spool / "telemetry/b.csv").write_bytes(b"0123456789")
    (spool / "state.json").write_text("{}")
    (spool / "secret").write_text("not ours to send")
    (spool / "raw").mkdir()
    (spool / "raw/000001-x.json.gz.new").write_text("half")
    everything, more = collected(module, {}, 10**6)
    assert set(everything) == {"order.json", "state.json", "events.jsonl", "telemetry/b.csv"}
    assert not more
    have: dict[str, Any] = {name: len(data) for name, data in everything.items()}
    assert collected(module, have, 10**6) == ({}, False)
    have["telemetry/b.csv"] = 4
    assert collected(module, have, 3) == ({"telemetry/b.csv": b"456"}, True)
    have["telemetry/b.csv"] = 7
    assert collected(module, have, 3) == ({"telemetry/b.csv": b"789"}, False)
    for offset in (99, "x"):
        whole, _ = collected(module, dict(have, **{"telemetry/b.csv": offset}), 99)
        assert whole == {"telemetry/b.csv": b"0123456789"}


@pytest.mark.usefixtures("systemd")
def test_status_tells_of_the_newest_and_survives_broken_files(module: ModuleType, spool: Path) -> None:
    assert ask(module, "status") == {"campaign": "", "alive": False, "finished": False}
    ask(module, "start", order=ORDER)
    with (spool / "events.jsonl").open("a") as events:
        events.writelines(f'{{"event": "step", "n": {number}}}\n' for number in range(50))
        events.write('{"event": "cu')
    (spool / "state.json").write_text('{"segm')
    answer = ask(module, "status")
    assert (answer["campaign"], answer["alive"], answer["finished"]) == ("it", True, False)
    assert [event["n"] for event in answer["events"]][-1] == 49
    assert len(answer["events"]) == 20
    assert answer["order"] == {"segments": ["a"]}


@pytest.mark.usefixtures("systemd")
def test_release_is_for_the_segment_that_holds(module: ModuleType, spool: Path) -> None:
    ask(module, "start", order=ORDER)
    (spool / "state.json").write_text(json.dumps({"holding": "pairs", "segment": 3}))
    assert ask(module, "release", segment="other")["released"] is False
    assert ask(module, "release", segment="pairs")["released"] is True
    assert (spool / "release-3").exists()


@pytest.mark.usefixtures("systemd")
def test_remove_takes_the_spool_but_never_a_living_one(module: ModuleType) -> None:
    ask(module, "start", order=ORDER)
    with pytest.raises(ValueError, match="it runs: stop it first"):
        ask(module, "remove", campaign="it")
    with pytest.raises(ValueError, match="which campaign"):
        ask(module, "remove")
    ask(module, "stop")
    assert ask(module, "remove", campaign="it")["removed"] is True
    assert not Path(module.HOME).exists()
    assert ask(module, "remove", campaign="it")["removed"] is False


def test_stop_of_another_campaign_leaves_the_running_one(module: ModuleType, systemd: Systemd) -> None:
    ask(module, "start", order=ORDER)
    (Path(module.HOME) / "old").mkdir()
    ask(module, "stop", campaign="old")
    assert systemd.active
    assert "stop" not in systemd.asked


def test_stop_of_a_program_that_had_failed_is_written_down(
    module: ModuleType, systemd: Systemd, spool: Path
) -> None:
    ask(module, "start", order=ORDER)
    (spool / "state.json").write_text(json.dumps({"segment": 0, "finished": None}))
    with (spool / "events.jsonl").open("a") as events:
        events.write('{"cut')
    systemd.active = False
    assert ask(module, "stop") == {"campaign": "it", "stopped": True, "left": []}
    *_, cut, last = (spool / "events.jsonl").read_text().splitlines()
    assert cut == '{"cut'
    assert json.loads(last)["event"] == "stop"
    assert json.loads((spool / "state.json").read_text())["finished"] == "stopped"
    assert ask(module, "start", order=ORDER)["resumed"] is True
