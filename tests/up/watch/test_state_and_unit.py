"""The state that `watch state` prints, and the watch's systemd unit."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provision import paths
from provision.cli import main
from provision.desired import inventory
from provision.errors import ExitCode, GpuprovError
from provision.fleet import Fleet
from provision.remote.schedulers import chosen
from provision.remote.schedulers.commands import Done
from provision.remote.schedulers.slurm import Slurm
from provision.up.watch import heartbeat, state, unit
from provision.up.watch.incidents import Incident, Step, Store, elsewhere, moved, new, place_of
from tests.support.reservations import Reservations
from tests.support.watching import fleet

NOW = 1_800_000_000.0
INVENTORY = """\
gpu_nodes:
  vars: {gpuprov_scheduler: slurm, gpuprov_sku: h100-sxm}
  hosts: {gpu-01: {}, gpu-02: {}, gpu-03: {}}
gpuprov_spares:
  hosts: {gpu-03: {}}
"""


def test_the_state_names_what_waits_for_people_first() -> None:
    waiting = moved(new("gpu-01", NOW, "gpu1: Xid 48"), Step.CHOOSE, "no spare for gpu-01: none")
    broken = moved(
        new("gpu-03", NOW - 60, "gpu3: Xid 79", action="power-cycle"),
        Step.REPAIR,
        spare="spare-1",
        placed=NOW - 30,
    )
    back = replace(moved(new("gpu-05", NOW - 9000, "x"), Step.REPAIR), returned=NOW - 100)
    validated = {"spare-2": {"at": NOW - 7200, "verdict": "pass", "run": "r"}}
    found = state.document(fleet(), [back, broken, waiting], validated, NOW)
    assert state.text(found, Path("/state")).splitlines() == [
        "in service: 6 · spares: 2 · repair: 2",
        "! gpu-01  choose: no spare for gpu-01: none",
        f"    since 2027-01-15T08:00:00Z: gpu1: Xid 48 ({waiting.id})",
        "    next: gpuprov return gpu-03 /inventory/nodes.yml",
        "✗ gpu-03  gpu3: Xid 79 → power-cycle",
        f"    since 2027-01-15T07:59:00Z, spare-1 took its place at 2027-01-15T07:59:30Z ({broken.id})",
        "    next: gpuprov return gpu-03 /inventory/nodes.yml",
        "  gpu-05  spare, not validated yet",
        "  spare-2  spare, validated 2 h 0 min ago (pass)",
        "returned: gpu-05",
        "files: /state",
    ]
    assert json.loads(json.dumps(found))["incidents"][1]["spare"] == "spare-1"


REPAIR = moved(new("gpu-03", NOW, "x"), Step.REPAIR)


@pytest.mark.parametrize(
    ("one", "others", "command"),
    [
        (REPAIR, [], "gpuprov return gpu-03 /inventory/nodes.yml"),
        (replace(REPAIR, node="a b"), [], "gpuprov return 'a b' /inventory/nodes.yml"),
        (replace(REPAIR, returned=NOW), [], ""),
        (moved(REPAIR, Step.CLOSED), [], ""),
        (moved(REPAIR, Step.DRAIN), [], ""),
        (moved(REPAIR, Step.DRAIN, "denied"), [], "gpuprov status /inventory/nodes.yml --nodes gpu-03"),
        (
            moved(REPAIR, Step.PLACE, "denied", spare="s-1"),
            [],
            "gpuprov status /inventory/nodes.yml --nodes s-1",
        ),
        (moved(REPAIR, Step.CHOOSE), [replace(REPAIR, node="gpu-07")], ""),
        (
            moved(REPAIR, Step.CHOOSE, "no spare"),
            [replace(REPAIR, node="gpu-06", returned=NOW), replace(REPAIR, node="gpu-07")],
            "gpuprov return gpu-07 /inventory/nodes.yml",
        ),
        (
            moved(REPAIR, Step.CHOOSE, "no spare"),
            [replace(REPAIR, node="gpu-06", returned=NOW)],
            "gpuprov watch spare /inventory/nodes.yml --nodes NODE",
        ),
    ],
)
def test_each_incident_has_its_next_command(one: Incident, others: list[Incident], command: str) -> None:
    assert state.next_command(one, [*others, one], fleet()) == command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "nodes.yml").write_text(INVENTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def test_the_state_of_a_fleet_that_was_never_watched(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit, "PLACE", folder / "gpuprov-watch.service")
    assert main(["watch", "state", "nodes.yml"]) == ExitCode.INCOMPLETE
    said = capsys.readouterr().out
    assert said.startswith(
        "in service: 2 · spares: 1 · repair: 0\n! no watch has run here yet\n"
        "    next: sudo gpuprov watch install nodes.yml\n"
    )
    unit.PLACE.touch()
    assert main(["watch", "state", "nodes.yml", "--json"]) == ExitCode.INCOMPLETE
    found = json.loads(capsys.readouterr().out)
    assert found["service"] == ["gpu-01", "gpu-02"]
    assert (found["state"], found["next"]) == ("never", "sudo systemctl enable --now gpuprov-watch.service")
    assert not (folder / "state" / "gpuprov" / "watch").exists(), "looking makes nothing"


UNIT = "everyone may read a unit, so it has no variables and no passwords"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["watch", "replay", "nodes.yml"], "yet\n  → start gpuprov watch, or name one with --history"),
        (["watch", "replay", "nodes.yml", "--history", "no.jsonl"], "no.jsonl: No such file or directory"),
        (["watch", "install", "nodes.yml", "--set", "gpuprov_watch={hourly: 2}"], UNIT),
        (["watch", "install", "nodes.yml", "-K"], UNIT),
        (["watch", "nodes.yml", "--set", "gpuprov_watch={hurly: 2}"], "hurly"),
        (["return"], "no node given"),
        (["return", "gpu-01", "nodes.yml", "--profile", "dya"], "no profile called 'dya'"),
        (["return", "gpu-01", "nodes.yml"], "gpuprov watch did not take gpu-01 out of service"),
        (["return", "-l", "gpu-01", "-i", "nodes.yml"], "gpuprov watch did not take gpu-01 out of service"),
        (["return", "nodes.yml", "--nodes", "gpu-01"], "gpuprov watch did not take gpu-01 out of service"),
        (["return", "gpu-01", "nodes.yml", "--nodes", "gpu-01"], "did not take gpu-01 out of service"),
        (["return", "gpu-77", "nodes.yml"], "the inventory has no node gpu-77"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_mistake_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) in (ExitCode.USAGE, ExitCode.ERROR)
    shown = capsys.readouterr().err
    assert said in shown
    assert "Traceback" not in shown


def test_without_a_scheduler_there_is_nothing_to_watch(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "nodes.yml").write_text(INVENTORY.replace("gpuprov_scheduler: slurm, ", ""))
    assert main(["watch", "nodes.yml"]) == ExitCode.ERROR
    assert "gpu-[01-03]: no scheduler that gpuprov can ask" in capsys.readouterr().err


MIXED = INVENTORY.replace(
    "hosts: {gpu-01: {}, gpu-02: {}, gpu-03: {}}",
    "hosts: {gpu-01: {}, gpu-02: {gpuprov_scheduler: none}, gpu-03: {}}",
)


def test_a_fleet_of_which_some_nodes_have_a_scheduler(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "nodes.yml").write_text(MIXED)
    mixed = inventory.load(folder / "nodes.yml")
    scheduler, without = chosen.only(mixed, {})
    assert (scheduler.kind, without) == ("slurm", frozenset({"gpu-02"}))
    store = Store(place_of(mixed))
    with store.alone():
        store.write(moved(new("gpu-01", NOW, "Xid 79"), Step.CHOOSE))
    assert main(["return", "gpu-01", "nodes.yml"]) == ExitCode.USAGE
    assert "gpu-01 still waits for a spare" in capsys.readouterr().err
    assert main(["watch", "state", "nodes.yml"]) == ExitCode.INCOMPLETE
    assert "in service: 1 · spares: 1 · repair: 1" in capsys.readouterr().out


def test_a_list_of_hosts_keeps_the_folder_that_its_watch_had() -> None:
    fleet = Fleet(Path("gpu-02,gpu-01,"), {}, {})
    assert place_of(fleet).name.startswith("gpu-02_gpu-01_-")


def test_the_state_counts_the_nodes_that_are_watched_and_names_what_cannot_be_read(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(place_of(inventory.load(folder / "nodes.yml")))
    with store.alone():
        store.write(moved(new("gpu-01", NOW, "Xid 79"), Step.REPAIR, spare="gpu-03", placed=NOW))
        heartbeat.beat(store.path, "gpu-01,gpu-03", [])
        assert main(["watch", "state", "nodes.yml"]) == ExitCode.OK
        (store.path / "incidents" / "damaged.json").write_text("{")
        capsys.readouterr()
        assert main(["watch", "state", "nodes.yml"]) == ExitCode.UNHEALTHY
    said = capsys.readouterr().out
    assert said.startswith(
        "in service: 1 · spares: 0 · repair: 1\nwatch of --nodes gpu-01,gpu-03: at work\n"
        "    next: gpuprov docs watch\n"
    )
    assert "next: gpuprov return gpu-01 nodes.yml --nodes gpu-01,gpu-03\n" in said
    assert "! " in said
    assert "damaged.json cannot be read" in said
    assert main(["return", "gpu-02", "nodes.yml"]) == ExitCode.USAGE
    assert "damaged.json cannot be read" in capsys.readouterr().err


BEAT = {"at": NOW, "nodes": "all", "held": []}


@pytest.mark.parametrize(
    ("beat", "running", "word", "line", "code"),
    [
        (BEAT, True, "work", "watch: at work", ExitCode.OK),
        (BEAT | {"at": NOW - 119}, True, "work", "watch: at work", ExitCode.OK),
        (BEAT | {"follows": "ctl-02"}, True, "follows", "watch: runs, and follows another one", ExitCode.OK),
        (
            BEAT | {"held": ["held.share"]},
            *(True, "held", "! watch: at work, but held up: held.share", ExitCode.UNHEALTHY),
        ),
        ({}, True, "late", "! watch: it runs, but has finished no round yet", ExitCode.INCOMPLETE),
        (
            BEAT | {"at": NOW - 121},
            True,
            "late",
            "! watch: it runs, but its last round was",
            ExitCode.INCOMPLETE,
        ),
        (
            BEAT | {"at": NOW + 3600},
            True,
            "late",
            "! watch: it runs, but its last round was",
            ExitCode.INCOMPLETE,
        ),
        (BEAT, False, "stopped", "! watch: not running; its last round was 0 s ago", ExitCode.INCOMPLETE),
        ({}, False, "never", "! no watch has run here yet", ExitCode.INCOMPLETE),
    ],
)
def test_whether_the_watch_is_ready(
    beat: dict[str, Any],
    running: bool,
    word: str,
    line: str,
    code: ExitCode,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)
    store = Store(place_of(inventory.load(folder / "nodes.yml")))
    with store.alone() if running else nullcontext():
        if beat:
            store.path.mkdir(parents=True, exist_ok=True)
            (store.path / "heartbeat.json").write_text(json.dumps({"format": 1, **beat}))
        assert main(["watch", "state", "nodes.yml", "--json"]) == code
        assert json.loads(capsys.readouterr().out)["state"] == word
        assert main(["watch", "state", "nodes.yml"]) == code
    assert capsys.readouterr().out.splitlines()[1].startswith(line)


@pytest.mark.usefixtures("folder")
def test_the_unit_keeps_the_chosen_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []

    def install(_fleet: Fleet, options: list[str]) -> str:
        given.extend(options)
        return ""

    monkeypatch.setattr(unit, "install", install)
    assert main(["watch", "install", "nodes.yml", "--nodes", "gpu-01"]) == ExitCode.OK
    assert given == ["--nodes", "gpu-01"]


def test_the_unit_runs_this_gpuprov_for_this_inventory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUPROV_RUNS", "/srv/100% runs")
    of = replace(fleet(), source=Path('/srv/a "fleet"/nodes $x.yml'))
    text = unit.text(of, ["--user", "ops"], "ann")
    (line,) = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    words = shlex.split(line.removeprefix("ExecStart=").replace("$$", "$").replace("%%", "%"))
    assert words == [
        *(sys.executable, "-P", "-m", "provision.cli", "watch", '/srv/a "fleet"/nodes $x.yml'),
        *("--user", "ops"),
    ]
    assert "User=ann" in text
    assert 'Environment="GPUPROV_RUNS=/srv/100%% runs"' in text
    with pytest.raises(GpuprovError, match="a unit cannot name"):
        unit.text(replace(fleet(), source=Path("/srv/a\nb.yml")), [], "ann")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    place = tmp_path / "gpuprov-watch.service"
    place.write_text(unit.text(fleet(), [], "root"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(place)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "gpuprov-watch.service" not in done.stderr, done.stderr


def test_installing_needs_to_write_the_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without systemctl
    monkeypatch.setenv("SUDO_USER", "ann")
    said = unit.install(fleet(), [], tmp_path / "gpuprov-watch.service")
    assert "systemd did not reload" in said
    assert "User=ann" in (tmp_path / "gpuprov-watch.service").read_text()
    assert (tmp_path / "gpuprov-watch.service").stat().st_mode & 0o777 == 0o644
    with pytest.raises(GpuprovError, match="cannot be written"):
        unit.install(fleet(), [], tmp_path / "no" / "gpuprov-watch.service")


@pytest.mark.parametrize(
    "proxy", ["http://ann:se$cret@proxy:3128", "http://ann:se\ncret@proxy", "https://se@cret"]
)
def test_a_proxy_with_a_password_is_in_no_unit(
    proxy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every user can read a unit and the environment that `systemctl show` prints."""
    place = tmp_path / "gpuprov-watch.service"
    monkeypatch.setenv("PATH", str(tmp_path))  # without systemctl
    monkeypatch.setenv("https_proxy", proxy)
    with pytest.raises(GpuprovError, match="https_proxy has a password") as refused:
        unit.install(fleet(), [], place)
    assert proxy.partition("://")[2] not in str(refused.value)
    assert "EnvironmentFile=" in refused.value.fix
    assert not place.exists()
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    unit.install(fleet(), [], place)
    assert 'Environment="https_proxy=http://proxy:3128"' in place.read_text()


def test_systemd_watches_the_watch() -> None:
    lines = unit.text(fleet(), [], "root").splitlines()
    (seconds,) = [line.removeprefix("WatchdogSec=") for line in lines if line.startswith("WatchdogSec=")]
    assert "Type=notify" in lines
    # With a dead scheduler, a round is blocked by three queries of a minute each.
    assert int(seconds) > 3 * 60 + heartbeat.EVERY


def test_a_crash_of_the_watch_leaves_no_secret_on_the_disk() -> None:
    assert "LimitCORE=0" in unit.text(fleet(), [], "root").splitlines()


def test_under_a_umask_of_zero_nobody_else_may_change_the_state(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run a fresh interpreter, as a service manager starts one without UMask=."""
    code = "import os, sys; os.umask(0); from provision.cli import main; sys.exit(main(sys.argv[1:]))"
    words = [
        "drift",
        "nodes.yml",
        "--timeout",
        "5",
        "--set",
        "ansible_host=127.0.0.1",
        "--set",
        "ansible_port=1",
    ]
    monkeypatch.setenv("GPUPROV_RUNS", str(folder / "runs"))
    subprocess.run(
        [sys.executable, "-P", "-c", code, *words],
        cwd=folder,
        timeout=120,
        check=False,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(paths.PACKAGE.parent)},
    )
    made = [path for place in ("state", "runs") for path in (folder / place).rglob("*")]
    assert made
    assert not [path for path in made if path.lstat().st_mode & 0o022 and not path.is_symlink()]


MORE = "gpu_nodes:\n  hosts: {gpu-01: {}, gpu-09: {gpuprov_scheduler: slurm}}\n"


def test_a_second_watch_of_the_same_nodes_is_refused_whatever_the_inventories_are_called(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "more.yml").write_text(MORE)
    both = inventory.load(Path("nodes.yml,more.yml"))
    store = Store(place_of(both))
    with store.alone():
        store.announce(both)
        store.write(moved(new("gpu-01", NOW, "Xid 79"), Step.REPAIR))
        assert main(["watch", "nodes.yml"]) == ExitCode.ERROR
        said = capsys.readouterr().err
        assert f"gpu-[01-03]: already watched, with -i {folder}/nodes.yml -i {folder}/more.yml" in said
        heartbeat.beat(store.path, "all", [])
        capsys.readouterr()
        assert main(["watch", "state", "nodes.yml", "--json"]) == ExitCode.INCOMPLETE
        out, err = capsys.readouterr()
        assert "gpu-[01-03]: another watch has them: gpuprov watch state -i" in err
        found = json.loads(out)
        there = f"gpuprov watch state -i {folder}/nodes.yml -i {folder}/more.yml"
        assert (found["state"], found["next"]) == ("elsewhere", there)
        assert main(["watch", "state", "-i", "nodes.yml", "-i", "more.yml"]) == ExitCode.OK
        assert main(["return", "gpu-01", "nodes.yml"]) == ExitCode.USAGE
        assert f"gpuprov return gpu-01 -i {folder}/nodes.yml -i {folder}/more.yml" in capsys.readouterr().err
    # Once that watch has ended, its folder alone blocks nothing.
    assert elsewhere(place_of(inventory.load(Path("nodes.yml"))), both) == ("", "")


def test_two_fleets_that_call_their_nodes_alike_are_two(folder: Path) -> None:
    other = INVENTORY.replace("{}", "{ansible_host: 192.0.2.1}")
    (folder / "other.yml").write_text(other)
    first, second = (inventory.load(folder / name) for name in ("nodes.yml", "other.yml"))
    one, two = Store(place_of(first)), Store(place_of(second))
    with one.alone(), two.alone():
        one.announce(first)
        two.announce(second)


def test_a_person_reads_and_closes_the_breaker_without_any_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm, of = Reservations(), fleet()
    (tmp_path / "nodes.yml").write_text(INVENTORY)

    def ask(commands: Sequence[Sequence[str]]) -> list[Done]:
        return [Done(status, text) for status, text in (slurm(words[1:]) for words in commands)]

    monkeypatch.setitem(chosen.MAKERS, "slurm", lambda _, names: Slurm(of, names, ask))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    words = ["watch", "breaker", str(tmp_path / "nodes.yml")]
    slurm.there = {"gpuprov-breaker": "gpu has had 10 of its 100 nodes", "gpuprov-drain.gpu.3": "", "ann": ""}
    assert main(words) == ExitCode.OK
    assert capsys.readouterr().out == "open: gpu has had 10 of its 100 nodes\n"
    assert main([*words, "--close"]) == ExitCode.OK
    assert capsys.readouterr().out == "closed: nodes that fail are drained\n"
    assert slurm.there == {"ann": ""}
    slurm.refuses["reservation"] = "Unable to contact slurm controller (connect failure)\n"
    assert main(words) == ExitCode.ERROR
    assert "scontrol show reservation: Unable to contact slurm controller" in capsys.readouterr().err


def test_the_state_shows_an_open_breaker() -> None:
    found = state.document(fleet(), [], {}, NOW) | {"watch": {"held": ["breaker-open"]}}
    assert "! the breaker of all drains is open" in state.text(found, Path("/state")).splitlines()
