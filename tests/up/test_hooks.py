"""Hooks as real programs: their input, their timeout, and how they are ended."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provision.errors import InventoryError
from provision.fleet import Fleet, Node
from provision.up import hooks
from provision.up.hooks import DRAIN, UNDRAIN, Called, Hook, Runner
from tests.support.processes import alive, until


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def fleet(tmp_path: Path, **variables: Any) -> Fleet:
    nodes = {name: Node(name, (), variables) for name in ("gpu-01", "gpu-02", "gpu-03")}
    return Fleet(tmp_path / "fleet.yml", nodes, {})


def runner(path: Path, *, timeout: float = 30.0, per_wave: bool = False) -> tuple[Runner, list[Called]]:
    hook = Hook(path, timeout, per_wave)
    heard: list[Called] = []
    found = {DRAIN: dict.fromkeys(("gpu-01", "gpu-02"), hook), UNDRAIN: {"gpu-01": hook}}
    about = {"gpu-01": {"roles": ["nccl"], "reboot": True}}
    return Runner(found, "run-1", path.parent / "fleet.yml", lambda *_: None, heard.append, about), heard


def test_a_hook_gets_names_json_and_a_clean_environment_and_no_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    text = 'cat > "$1.json"; env > "$1.env"; pwd > "$1.pwd"; printf "%s\\n" "$0" "$@" > "$1.words"'
    calls, heard = runner(program(tmp_path / "my hook; touch pwned", text))
    assert calls.call(DRAIN, ["gpu-01", "gpu-03"], 2, "batch") == {}
    given = json.loads((tmp_path / "gpu-01.json").read_text())
    assert given == {
        "format": 1,
        "hook": "drain",
        "run": "run-1",
        "wave": 2,
        "kind": "batch",
        "nodes": [{"name": "gpu-01", "roles": ["nccl"], "reboot": True}],
    }
    environment = dict(line.split("=", 1) for line in (tmp_path / "gpu-01.env").read_text().splitlines())
    assert environment["GPUPROV_HOOK"] == "drain"
    assert environment["GPUPROV_WAVE"] == "2"
    assert environment["PATH"] == hooks.PATH
    assert "AWS_SECRET_ACCESS_KEY" not in environment
    assert (tmp_path / "gpu-01.pwd").read_text().strip() == str(tmp_path)
    assert (tmp_path / "gpu-01.words").read_text().splitlines()[1:] == ["gpu-01"]
    assert not (tmp_path / "pwned").exists()
    assert [(called.nodes, called.status) for called in heard] == [(("gpu-01",), 0)]  # gpu-03 has no hook


def test_a_hook_for_the_wave_gets_all_names_at_once_and_fails_for_all(tmp_path: Path) -> None:
    calls, heard = runner(program(tmp_path / "hook", 'echo "no $*"; exit 4'), per_wave=True)
    problem = "its drain hook ended with status 4: no gpu-01 gpu-02"
    assert calls.call(DRAIN, ["gpu-01", "gpu-02"], 1, "canary") == dict.fromkeys(
        ["gpu-01", "gpu-02"], problem
    )
    assert len(heard) == 1


def test_a_hook_that_takes_too_long_is_killed_with_all_it_started(tmp_path: Path) -> None:
    text = (
        "trap '' TERM; sleep 300 & echo $! > child; echo $$ > self; echo waiting for a job; wait; sleep 300"
    )
    calls, _ = runner(program(tmp_path / "hook", text), timeout=0.5)
    hooks.GRACE, before = 0.3, hooks.GRACE
    try:
        problem = calls.call(UNDRAIN, ["gpu-01"], 1, "batch")["gpu-01"]
    finally:
        hooks.GRACE = before
    assert problem == "its undrain hook did not end within 0.5 s, and was killed: waiting for a job"
    for name in ("child", "self"):
        until(lambda name=name: not alive(int((tmp_path / name).read_text())))  # type: ignore[misc]


def test_a_child_that_keeps_the_output_open_does_not_keep_us(tmp_path: Path) -> None:
    calls, _ = runner(program(tmp_path / "hook", "sleep 300 & echo $! > child; exit 0"))
    started = time.monotonic()
    assert calls.call(UNDRAIN, ["gpu-01"], 1, "batch") == {}
    assert time.monotonic() - started < 20
    until(lambda: not alive(int((tmp_path / "child").read_text())))


def test_endless_output_is_cut_and_a_hook_need_not_read(tmp_path: Path) -> None:
    calls, heard = runner(program(tmp_path / "hook", "yes | head -c 3000000; echo; echo last; exit 1"))
    calls.about = {"gpu-01": {"roles": ["x" * 200_000]}}
    problem = calls.call(UNDRAIN, ["gpu-01"], 1, "batch")["gpu-01"]
    assert problem.startswith("its undrain hook ended with status 1")
    assert len(heard[0].output) == hooks.OUTPUT


@pytest.mark.parametrize(
    ("text", "hook", "troubles"),
    [
        ('echo busy >&2; test "$1" != gpu-02', DRAIN, {"gpu-02": "its drain hook ended with status 1: busy"}),
        ("kill -9 $$", UNDRAIN, {"gpu-01": "its undrain hook was killed by signal 9"}),
        (
            "printf '\\033[2J all is well\\n'; exit 1",
            UNDRAIN,
            {"gpu-01": "its undrain hook ended with status 1: \ufffd[2J all is well"},
        ),
    ],
    ids=["one that fails is its node's trouble alone", "killed by a signal", "cannot move the cursor"],
)
def test_what_is_said_of_a_hook_that_fails(
    tmp_path: Path, text: str, hook: str, troubles: dict[str, str]
) -> None:
    calls, _ = runner(program(tmp_path / "hook", text))
    nodes = ["gpu-01", "gpu-02"] if hook == DRAIN else ["gpu-01"]
    assert calls.call(hook, nodes, 1, "batch") == troubles


def test_a_program_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    path = program(tmp_path / "hook", "")
    path.write_bytes(b"\x00\x01")
    calls, _ = runner(path)
    said = "its undrain hook: it could not be started: Exec format error"
    assert calls.call(UNDRAIN, ["gpu-01"], 1, "batch") == {"gpu-01": said}


def test_an_interrupt_ends_every_hook_that_runs(tmp_path: Path) -> None:
    calls, heard = runner(program(tmp_path / "hook", 'echo $$ > "$1.pid"; sleep 300'))
    pids = [tmp_path / "gpu-01.pid", tmp_path / "gpu-02.pid"]

    def interrupt() -> None:
        until(lambda: all(path.exists() and path.read_text().strip() for path in pids))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        calls.call(DRAIN, ["gpu-01", "gpu-02"], 1, "batch")
    thread.join()
    assert not any(alive(int(path.read_text())) for path in pids)
    assert heard == []


def test_what_is_written_down_before_and_after_tells_who_is_drained() -> None:
    begins = {"what": "begins"}
    records: list[dict[str, Any]] = [
        {"hook": DRAIN, "nodes": ["a", "b", "c", "d"], **begins},
        {"hook": DRAIN, "nodes": ["a"], "status": 0},
        {"hook": DRAIN, "nodes": ["b"], "status": 1},
        {"hook": DRAIN, "nodes": ["d"], "status": 0},
        {"hook": UNDRAIN, "nodes": ["a", "d"], **begins},
        {"hook": UNDRAIN, "nodes": ["a"], "status": 0},
        {"hook": UNDRAIN, "nodes": ["d"], "status": 2},
    ]
    assert hooks.left_drained(records) == {"b", "c", "d"}  # the drain hook of c has no recorded end
    assert hooks.left_drained(records[:1]) == {"a", "b", "c", "d"}


def test_hooks_are_relative_to_the_inventory_and_may_differ_by_node(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    program(tmp_path / "site" / "drain", "")
    named = fleet(
        tmp_path, gpuprov_drain_hook="site/drain", gpuprov_hook_timeout=5, gpuprov_hook_scope="wave"
    )
    found = hooks.load(named, {})
    assert found[DRAIN]["gpu-02"] == Hook(tmp_path / "site" / "drain", 5.0, True)
    assert found[UNDRAIN] == {}
    chosen = program(tmp_path / "other", "")
    assert hooks.load(named, {"gpuprov_undrain_hook": str(chosen)})[UNDRAIN]["gpu-01"].path == chosen


def open_folder(path: Path) -> Path:
    folder = path.with_name("open")
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def linked(path: Path) -> Path:
    """Create a link in a world-writable folder, to a program that only we may change."""
    link = open_folder(path) / "link"
    link.symlink_to(program(path.with_name("real"), ""))
    return link


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda _path: None, "there is no "),
        (lambda path: path.mkdir(), "is not a file"),
        (lambda path: path.write_text("x"), "is not executable"),
        (lambda path: program(path, "").chmod(0o757), "everybody may change"),
        (lambda path: program(path, "").chmod(0o775), "a group may change"),
        (lambda path: program(path, "").parent.chmod(0o777), "everybody may change"),
        (lambda path: program(path, "").parent.parent.chmod(0o775), "a group may change"),
        (
            lambda path: path.symlink_to(program(open_folder(path) / "real", "")),
            "everybody may change .*/open",
        ),
        (lambda path: path.symlink_to(linked(path)), "everybody may change .*/open"),
        (lambda path: path.symlink_to(path), "there is no "),
        (lambda path: path.symlink_to(path.with_name("gone")), "there is no "),
    ],
)
def test_what_could_not_be_started_is_refused(
    tmp_path: Path, make: Callable[[Path], object], words: str
) -> None:
    (tmp_path / "site").mkdir()
    make(tmp_path / "site/hook")
    with pytest.raises(InventoryError, match=words) as refused:
        hooks.load(fleet(tmp_path, gpuprov_drain_hook="site/hook"), {})
    assert refused.value.what.startswith("gpuprov_drain_hook (gpu-01): ")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
@pytest.mark.parametrize("which", ["hook", "folder", "link"])
def test_what_belongs_to_another_user_is_refused(
    tmp_path: Path, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    hook = tmp_path / "site" / "hook"
    hook.symlink_to(program(tmp_path / "real", ""))
    os.chown({"hook": hook.resolve(), "folder": hook.parent, "link": hook}[which], 1000, 1000,
             follow_symlinks=False)  # fmt: skip
    with pytest.raises(InventoryError, match="belongs to uid 1000, neither root nor the user"):
        hooks.load(fleet(tmp_path, gpuprov_drain_hook="site/hook"), {})
    monkeypatch.setenv("SUDO_UID", "1000")  # uid 1000 is now the user who runs gpuprov
    assert hooks.load(fleet(tmp_path, gpuprov_drain_hook="site/hook"), {})[DRAIN]


def test_in_a_sticky_folder_a_hook_of_ours_is_ours(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    program(tmp_path / "site/hook", "")
    (tmp_path / "site").chmod(0o1777)
    assert hooks.load(fleet(tmp_path, gpuprov_drain_hook="site/hook"), {})[DRAIN]


def test_a_hook_that_others_may_change_meanwhile_is_not_started(tmp_path: Path) -> None:
    hook = program(tmp_path / "hook", f"touch {tmp_path}/started\n")
    heard: list[Any] = []
    runner = Runner(
        {DRAIN: {"gpu-01": Hook(hook)}}, "run", tmp_path / "i.yml", lambda _event, _nodes: None, heard.append
    )
    assert runner.call(DRAIN, ["gpu-01"], 1, "canary") == {}
    (tmp_path / "started").unlink()
    hook.chmod(0o777)
    problem = runner.call(DRAIN, ["gpu-01"], 1, "batch")["gpu-01"]
    assert problem == (
        f"its drain hook: it could not be started: everybody may change {hook}: chmod go-w {hook}"
    )
    assert not (tmp_path / "started").exists()
