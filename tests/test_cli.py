"""The command line: verbs, exit codes, one clear line for a user's mistake, and a fast start."""

from __future__ import annotations

import errno
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from provision import cli
from provision.errors import ExitCode, GpuprovError, InventoryError
from provision.nearest import did_you_mean
from provision.remote.ssh import config

ROOT = Path(cli.__file__).resolve().parent.parent


def gpuprov(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "provision.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"},
    )


def fake_command(monkeypatch: pytest.MonkeyPatch, outcome: BaseException | int) -> None:
    def run(_options: object) -> int:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    module = SimpleNamespace(add_arguments=lambda _parser: None, run=run)
    monkeypatch.setattr(cli, "_command_module", lambda _verb: module)


def test_help_lists_every_verb_and_every_exit_code() -> None:
    """test_help.py covers the help of each verb."""
    shown = gpuprov("--help").stdout
    for verb in cli.COMMANDS:
        assert f"\n    {verb} " in shown or f"\n  {verb} " in shown
    for code in ExitCode:
        assert f"{int(code)} " in shown


def test_without_a_verb_it_prints_help_and_is_a_usage_error() -> None:
    shown = gpuprov()
    assert shown.returncode == ExitCode.USAGE
    assert "\n  init " in shown.stdout


@pytest.mark.parametrize("arguments", [["frobnicate"], ["up", "--nonsense"], ["--nonsense"]])
def test_a_wrong_command_line_is_exit_2_without_a_traceback(arguments: list[str]) -> None:
    shown = gpuprov(*arguments)
    assert shown.returncode == ExitCode.USAGE
    assert "Traceback" not in shown.stderr


# Verbs and subverbs, each with one of its options.
OPTIONS = {
    **{"init": "--host", "plan": "--nodes", "up": "--max-failures", "validate": "--burn-seconds"},
    **{"burnin start": "--detach", "lock": "--majority", "baseline learn": "--margin"},
    **{"drift": "--require-validated", "report": "--rejudge", "report history": "--json"},
    **{"selftest": "--mask-serials", "lab up": "--inventory", "docs": "--help", "status": "--watch"},
    **{"watch": "--connections", "watch replay": "--history", "return": "--profile", "runs": "--json"},
}


def complaint(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """Return the error lines of an invalid command line."""
    with pytest.raises(SystemExit) as stopped:
        cli.main(words)
    assert stopped.value.code == ExitCode.USAGE
    out, err = capsys.readouterr()
    assert not out
    return err.splitlines()


@pytest.mark.parametrize("verb", OPTIONS)
@pytest.mark.parametrize("value", [(), ("x",)], ids=["alone", "with a value"])
def test_a_mistyped_option_shows_the_verbs_usage_and_the_nearest_option(
    verb: str, value: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    option = OPTIONS[verb]
    typo = option[:4] + option[5:] if len(option) > 6 else option[:-1]
    said = complaint(capsys, *verb.split(), "=".join([typo, *value]))
    assert said[0].startswith(f"usage: gpuprov {verb} [-h] ")
    assert said[-2].startswith(f"gpuprov {verb}: error: unrecognized arguments: {typo}")
    assert said[-1].startswith(f"  → did you mean {option}")


def test_every_verb_is_mistyped_once() -> None:
    assert {verb.partition(" ")[0] for verb in OPTIONS} == set(cli.COMMANDS)


@pytest.mark.parametrize("verb", cli.COMMANDS)
def test_a_mistyped_verb_shows_the_nearest(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(capsys, verb[0] + verb)  # iinit, pplan
    assert said[0].startswith("usage: gpuprov [-h] ")
    assert said[-1].startswith(f"  → did you mean {verb}")


@pytest.mark.parametrize(
    ("words", "usage", "meant"),
    [
        (["--verison"], "gpuprov", "--version"),
        (["burnin", "staus"], "gpuprov burnin", "status"),
        (["lab", "staus"], "gpuprov lab", "status"),
        (["baseline", "lern"], "gpuprov baseline", "learn"),
        (["drift", "--format", "jsn"], "gpuprov drift", "json"),
        (["up", "--gate", "quik"], "gpuprov up", "quick"),
    ],
)
def test_other_mistakes_show_what_is_near(
    words: list[str], usage: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = complaint(capsys, *words)
    assert said[0].startswith(f"usage: {usage} [-h] ")
    assert said[-1].startswith(f"  → did you mean {meant}")


def test_what_is_near_nothing_gets_no_guess(capsys: pytest.CaptureFixture[str]) -> None:
    assert complaint(capsys, "plan", "--qqqq")[-1] == "gpuprov plan: error: unrecognized arguments: --qqqq"


@pytest.mark.parametrize("words", [["all"], [""], ["burnin", ""], ["burnin", "hours"]])
def test_a_word_that_is_no_verb_is_refused_by_argparse(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "invalid choice: " in "".join(complaint(capsys, *words))


def test_a_mistyped_verb_of_a_verb_is_not_taken_for_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["watch", "stat"]) == ExitCode.USAGE
    assert capsys.readouterr().err == (
        "gpuprov: gpuprov watch stat: no such verb, and no such file\n  → did you mean state?\n"
    )


def test_options_are_alike_by_their_words_not_by_their_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    """`report --list` used to suggest `--publish`, which wrote into a cluster."""
    assert did_you_mean("--list", ["--publish", "--history"]) == ""
    assert did_you_mean("--lisst", ["--publish", "--list"]) == "did you mean --list?"
    assert cli.main(["report", "--list"]) == ExitCode.USAGE
    assert capsys.readouterr().err == "gpuprov: `gpuprov report --list` is now `gpuprov runs list`\n"


@pytest.mark.parametrize(
    ("line", "new"),
    [
        ("report --compare a b", "report compare A B"),
        ("report --bundle=gpu-03", "report bundle NODE [RUN]"),
        ("report --history", "report history [NODE]"),
        ("report some-run --publish", "report publish [RUN]"),
        ("watch fleet.yml --state --json", "watch state [INVENTORY]"),
        ("watch fleet.yml --dry-run day.jsonl", "watch replay [INVENTORY] [--history FILE]"),
        ("watch --install-unit", "watch install [INVENTORY]"),
        ("burnin --nodes rack1 --profile day", "burnin start"),
        ("burnin inventory.yml", "burnin start"),
        ("burnin", "burnin start"),
        ("burnin hosts", "burnin start"),  # a folder
        ("burnin --nodes rack1 --plan", "burnin plan"),
        ("burnin --list", "burnin profiles"),
        ("burnin --resume latest", "burnin resume [RUN]"),
        ("runs --cancel all", "runs cancel WHICH"),
        ("validate --list", "docs checks"),
        ("lab fault --list", "lab faults"),
        ("plan --markdown", "plan --format markdown"),
        ("drift --format sarif --output x.sarif", "drift --format NAME=FILE"),
        ("drift --junit x.xml", "drift --format junit=FILE"),
        ("lock -o x.yml", "lock --file FILE"),
        ("lock -ox.yml", "lock --file FILE"),
        ("lock --output x.yml", "lock --file FILE"),
        ("baseline learn --output x.yml", "baseline learn --file FILE"),
    ],
)
def test_an_earlier_form_is_one_line_that_names_the_new_one(
    line: str, new: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts").mkdir()
    assert cli.main(line.split()) == ExitCode.USAGE
    out, err = capsys.readouterr()
    assert not out
    assert err.endswith(f" is now `gpuprov {new}`\n")
    assert err.count("\n") == 1
    words = [word.strip("[]").replace("NAME=", "text=") for word in new.split()]
    assert cli.parsed(words if new != "runs list" else words[:2]).verb == words[0]


@pytest.mark.parametrize(
    ("line", "start"),
    [
        ("lab fault --list", "`gpuprov lab fault --list` is now"),
        ("baseline learn --output=x.yml", "`gpuprov baseline learn --output=x.yml` is now"),
        ("report --runs old compare a b", "the verb comes first: `gpuprov report compare --runs …`"),
        ("report --runs=old compare a b", "the verb comes first: `gpuprov report compare --runs …`"),
        ("burnin --profile smoke start", "the verb comes first: `gpuprov burnin start --profile …`"),
        ("watch --json state", "the verb comes first: `gpuprov watch state --json …`"),
    ],
)
def test_a_verb_of_a_verb_is_named_with_its_place(
    line: str, start: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(line.split()) == ExitCode.USAGE
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith(f"gpuprov: {start}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "line", ["report --runs old compare", "report --format html compare", "watch -i fleet.yml state"]
)
def test_a_verb_behind_options_is_no_run_and_no_inventory(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(line.split()) == ExitCode.USAGE
    command, verb = line.split()[0], line.split()[-1]
    assert capsys.readouterr().err == (
        f"gpuprov: the verb comes first: `gpuprov {command} {verb} …`, then options\n"
    )
    (tmp_path / verb).touch()
    assert cli.parsed(line.split()).verb == command


def test_the_name_of_a_verb_that_an_option_takes_is_not_called_a_verb(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["watch", "--nodes", "spare", "--bogus"])
    assert "--bogus" in capsys.readouterr().err


@pytest.mark.parametrize("flags", ["-b", "--become", "-bK", "-bkKuops"])
def test_become_is_told_that_it_is_not_needed(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["up", flags]) == ExitCode.USAGE
    assert capsys.readouterr().err == (
        "gpuprov: there is no -b, --become: gpuprov becomes root on the nodes without it\n"
    )


def test_the_shared_options_are_named_and_explained_where_all_is_asked_for() -> None:
    short, whole = gpuprov("drift", "--help").stdout, gpuprov("drift", "--help", "all").stdout
    assert "connection and selection (--help all explains these):\n" in short
    for name in ("-i", "--set", "-e", "--vault-password-file", "-u", "-k", "-K", "--timeout", "--lock"):
        assert short.count(f"{name} ") + short.count(f"{name},") >= 1
        assert f"\n  {name}" in whole
        assert f"\n  {name} " not in short.partition("connection and selection")[0]
    assert whole.count("\n") > short.count("\n") + 15
    assert gpuprov("watch", "state", "-h", "all").stdout.count("--ask-pass") == 1


def test_an_option_before_its_command_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--burn-seconds", "60", "validate"]) == ExitCode.USAGE
    assert capsys.readouterr().err == (
        "gpuprov: the command comes first: `gpuprov validate --burn-seconds …`\n"
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "tcsh"])
def test_completion_scripts_name_the_verbs_and_their_options(shell: str) -> None:
    shown = gpuprov("--print-completion", shell)
    assert shown.returncode == 0
    assert all(verb in shown.stdout for verb in cli.COMMANDS)
    assert "require-validated" in shown.stdout


def test_a_named_error_is_one_line_what_and_one_line_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_command(monkeypatch, InventoryError("inventory.yml:3: bad indentation", "fix line 3"))
    assert cli.main(["up"]) == ExitCode.ERROR
    assert capsys.readouterr().err == "gpuprov: inventory.yml:3: bad indentation\n  → fix line 3\n"


def test_a_user_without_a_name_or_a_home_gets_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Simulates a container that runs under an arbitrary user id."""

    def unknown(_id: object) -> None:
        raise KeyError("uid not found")

    inventory = tmp_path / "inventory.yml"
    inventory.write_text("all: {hosts: {gpu-01: {ansible_host: 127.0.0.1, ansible_port: 1}}}")
    for name in ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    config.login.cache_clear()
    assert cli.main(["drift", str(inventory)]) == ExitCode.ERROR
    assert capsys.readouterr().err == "gpuprov: this user has no home folder: HOME is not set\n  → set HOME\n"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cli.main(["drift", str(inventory)]) == ExitCode.ERROR
    assert "has no name\n  → add the uid to /etc/passwd" in capsys.readouterr().err


def test_a_nodes_escape_codes_do_not_reach_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_command(monkeypatch, GpuprovError("gpu-01 said \x1b[2J\x07hello"))
    cli.main(["up"])
    assert "\x1b" not in capsys.readouterr().err


def test_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_command(monkeypatch, KeyboardInterrupt())
    assert cli.main(["up"]) == ExitCode.INTERRUPTED


def test_a_bug_is_70_and_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_command(monkeypatch, ZeroDivisionError("oops"))
    assert cli.main(["up"]) == ExitCode.BUG
    message = capsys.readouterr().err
    kept = Path(message.split("report it with ")[1].strip())
    assert "ZeroDivisionError: oops" in kept.read_text()
    assert "Traceback" not in message
    kept.unlink()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_no_bug(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Observed with `drift`, when the state folder filled up while nodes were judged."""
    fake_command(monkeypatch, OSError(number, os.strerror(number)))
    assert cli.main(["drift"]) == ExitCode.ERROR
    what, fix = capsys.readouterr().err.splitlines()
    assert what.startswith("gpuprov: ")
    assert os.strerror(number) in what
    assert "make room" in fix


def test_the_commands_own_exit_code_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_command(monkeypatch, int(ExitCode.DRIFT))
    assert cli.main(["drift"]) == ExitCode.DRIFT


def best_of(command: list[str], repeats: int = 7) -> float:
    """Return the lowest CPU time of several runs in seconds, which other load on the machine does not
    affect."""
    times = []
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=environment, timeout=60)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def imported(command: list[str]) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *command],
        capture_output=True, text=True, check=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}


def test_help_imports_none_of_the_modules_that_take_longest() -> None:
    own = imported(["-m", "provision.cli", "--help"]) - imported(["-c", "import argparse, shutil, textwrap"])
    assert "provision.errors" in own
    assert not own & {"typing", "pathlib", "dataclasses", "inspect", "urllib.parse", "subprocess", "asyncio"}


def test_help_starts_within_a_small_multiple_of_python_itself() -> None:
    # The goal is 3x (benchmarks/); this catches the import of a heavy package, which costs 5x or more.
    ratios = []
    for _ in range(3):
        floor = best_of([sys.executable, "-c", "pass"])
        ratios.append(best_of([sys.executable, "-m", "provision.cli", "--help"]) / floor)
    assert statistics.median(ratios) < 4.5
