"""The command line of burnin: meaningless options are rejected before any node is contacted."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision import cli
from provision.errors import ExitCode


@pytest.fixture(autouse=True)
def nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUPROV_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("GPUPROV_INVENTORY", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["start", "--profile", "weekend"], ExitCode.USAGE, "no profile called 'weekend'"),
        (["start", "--profile", "day", "--duration", "30m"], ExitCode.USAGE, "which needs 30"),
        (["start", "--duration", "30d"], ExitCode.USAGE, "--duration: 720 h is more than 336 h"),
        (["status", "latest"], ExitCode.ERROR, "no inventory"),
        (["plan"], ExitCode.ERROR, "no inventory"),
    ],
)
def test_what_cannot_be_meant_is_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], code: ExitCode, said: str
) -> None:
    assert cli.main(["burnin", *words]) == code
    error = capsys.readouterr().err
    assert said in error
    assert "\n  → " in error
    assert len(error.strip().splitlines()) == 2


@pytest.mark.parametrize(
    "words", [["collect", "--duration", "3h"], ["resume", "x", "--profile", "day"], ["start", "--remove"]]
)
def test_a_verb_has_no_option_that_means_nothing_there(words: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["burnin", *words])
    assert stopped.value.code == ExitCode.USAGE


def test_a_duration_that_is_none_is_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["burnin", "start", "--duration", "long"])
    assert stopped.value.code == 2
    assert "write it as 24h, 90m or 1h30m" in capsys.readouterr().err


def test_a_run_of_another_verb_is_no_burn_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from provision.runs.store import RunFolder

    folder = RunFolder.create("validate", {}, tmp_path / "runs")
    assert cli.main(["burnin", "status", folder.path.name]) == ExitCode.ERROR
    assert "is not a burn-in" in capsys.readouterr().err


def test_the_profiles_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["burnin", "profiles"]) == ExitCode.OK
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["smoke", "day", "long"]


@pytest.mark.parametrize(("bad", "stops"), [(0, False), (2, False), (3, True)])
def test_the_share_of_nodes_in_trouble_ends_it_for_all(tmp_path: Path, bad: int, stops: bool) -> None:
    from provision.burnin import actions
    from provision.burnin.campaign import Campaign
    from provision.burnin.node_talk import Status
    from provision.runs.store import RunFolder

    folder = RunFolder.create("burnin", {}, tmp_path / "runs")
    folder.note(profile={"abort": {"failing_share": 0.25}})
    found = [Status(f"n{number}", "", alive=True, bad=number < bad) for number in range(8)]
    assert actions._too_many(Campaign(folder, {}), found) is stops
    folder.note(profile={"abort": {"failing_share": None}})
    assert not actions._too_many(Campaign(folder, {}), found)
