"""Output into a closed pipe, a full disk or a file, and the use of colours.
Each verb runs in a separate process."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from provision import cli
from provision.errors import ExitCode

ROOT = Path(cli.__file__).resolve().parent.parent
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-7]|4[0-7]|9[0-7]|10[0-7]|38;[0-9;]+|48;[0-9;]+)(?:;\d+)*m")
INVENTORY = "all: {hosts: {gpu-01: {ansible_host: 127.0.0.1, ansible_port: 1}}}\n"
OF_STORED_RUNS = (["report", "--format", "none"], ["report", "--json"], ["report", "history"])
OF_NODES = (
    *(
        ["plan"],
        ["plan", "--json"],
        ["plan", "--format", "markdown"],
        ["drift"],
        ["drift", "--format", "github"],
    ),
    *(["up", "--yes"], ["up", "--yes", "--json"], ["validate", "--stage", "quick"]),
)
OF_NOTHING = (
    *(["--help"], ["plan", "--help"], ["--version"], ["--print-completion", "bash"], ["docs", "checks"]),
    *(["burnin", "profiles"], ["lab", "faults"], ["init", "--force", "new.yml"]),
)
EVERY = (*OF_NOTHING, *OF_STORED_RUNS, *OF_NODES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An inventory of one node with nothing listening at its address, and a stored run of `validate`."""
    path = tmp_path_factory.mktemp("here")
    (path / "inventory.yml").write_text(INVENTORY)
    done = gpuprov(path, "validate", "--stage", "quick", stdout=subprocess.DEVNULL)
    assert done.returncode == ExitCode.INCOMPLETE, done.stderr
    return path


def environment(folder: Path, **more: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if "COLOR" not in name}
    state = {"XDG_STATE_HOME": str(folder / "state"), "GPUPROV_RUNS": str(folder / "runs")}
    return {**own, "PYTHONPATH": str(ROOT), "COLUMNS": "100", "TERM": "xterm-256color", **state, **more}


def gpuprov(
    folder: Path,
    *words: str,
    stdout: int | IO[Any] = subprocess.PIPE,
    stderr: int | IO[Any] = subprocess.PIPE,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "provision.cli", *words],
        cwd=folder,
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.fixture
def closed() -> Iterator[int]:
    """Yield the write end of a pipe without a reader."""
    read, write = os.pipe()
    os.close(read)
    yield write
    os.close(write)


def names(words: list[str]) -> str:
    return " ".join(words)


def errors(text: str | None) -> list[str]:
    """Return the lines of standard error, except progress and headings."""
    progress = ("[", "127.0.0.1", "in no node list", "inventory.yml · ")
    return [line for line in (text or "").splitlines() if line and not line.startswith(progress)]


@pytest.mark.parametrize("words", EVERY, ids=names)
def test_a_reader_that_has_gone_ends_the_command_as_it_ends_others(
    words: list[str], folder: Path, closed: int
) -> None:
    """`gpuprov plan | head -1`: no message, and the status that shells use for SIGPIPE."""
    done = gpuprov(folder, *words, stdout=closed)
    assert done.returncode == ExitCode.CLOSED_PIPE == 128 + 13
    assert errors(done.stderr) == []


@pytest.mark.parametrize(
    "words",
    [["--help"], ["init", "--force", "new.yml"], ["plan", "--json"], ["up", "--yes"], ["report", "--json"]],
    ids=names,
)
def test_a_full_disk_is_one_line_and_an_error(words: list[str], folder: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = gpuprov(folder, *words, stdout=full)
    assert done.returncode == ExitCode.ERROR
    assert errors(done.stderr) == ["gpuprov: standard output cannot be written to: No space left on device"]


@pytest.mark.parametrize("verb", ["up", "validate", "drift"])
def test_the_run_is_stored_all_the_same(verb: str, folder: Path, closed: int) -> None:
    words = {"up": ["--yes"], "validate": ["--stage", "quick"], "drift": []}[verb]
    before = set((folder / "runs").glob(f"*-{verb}"))
    gpuprov(folder, verb, *words, stdout=closed)
    (run,) = set((folder / "runs").glob(f"*-{verb}")) - before
    assert '"finished": "2' in (run / "run.json").read_text()


@pytest.mark.parametrize("words", [["plan"], ["plan", "--ndoes"], ["plan", "nowhere.yml"]], ids=names)
def test_messages_that_cannot_be_written_change_nothing(words: list[str], folder: Path, closed: int) -> None:
    """Standard error is full, closed, or without a reader, yet the command acts and ends as usual."""
    usual = gpuprov(folder, *words)
    with Path("/dev/full").open("w") as full:
        for where in (full, closed):
            done = gpuprov(folder, *words, stderr=where)
            assert (done.returncode, done.stdout) == (usual.returncode, usual.stdout)
    shell = ["sh", "-c", 'exec "$0" -m provision.cli "$@" 2>&-', sys.executable, *words]
    done = subprocess.run(
        shell, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout) == (usual.returncode, usual.stdout)


@pytest.mark.parametrize("closing", [">&-", "<&- >&-", "<&- >&- 2>&-"])
def test_a_closed_output_is_an_error_and_no_file_gets_its_number(closing: str, folder: Path) -> None:
    shell = ["sh", "-c", f'exec "$0" -m provision.cli drift {closing}', sys.executable]
    done = subprocess.run(
        shell, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == ExitCode.ERROR
    told = [] if "2>&-" in closing else ["gpuprov: standard output cannot be written to: Bad file descriptor"]
    assert errors(done.stderr) == told
    run = max((folder / "runs").glob("*-drift"))
    assert "gpu-01" in (run / "facts.jsonl").read_text()
    assert "nodes as declared" not in "".join(file.read_text() for file in run.iterdir() if file.is_file())


def test_a_locale_without_arrows_gets_them_in_ascii(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "provision.cli", "plan"],
        cwd=folder,
        env=environment(folder, PYTHONIOENCODING="ascii"),
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == ExitCode.INCOMPLETE
    assert b"refused the connection -> start sshd there" in done.stdout


POSIX = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize(
    "words",
    [["status"], ["plan", "--help"], *(pytest.param(each, marks=pytest.mark.long) for each in EVERY)],
    ids=names,
)
def test_every_verb_prints_in_the_posix_locale(words: list[str], folder: Path) -> None:
    command, how = [sys.executable, "-m", "provision.cli", *words], {"cwd": folder, "timeout": 100}
    done, usual = (
        subprocess.run(command, env=environment(folder, **more), capture_output=True, check=False, **how)  # type: ignore[call-overload]
        for more in (POSIX, {"PYTHONUTF8": "1"})
    )
    assert done.returncode == usual.returncode != ExitCode.BUG, done.stderr
    assert (done.stdout + done.stderr).isascii()
    assert b"\\u" not in done.stderr
    assert done.stdout.count(b"?") == usual.stdout.count(b"?"), "every symbol has a word of its own"


# --- colours


def on_a_terminal(folder: Path, *words: str, **variables: str) -> str:
    """Return the output as shown on a terminal."""
    here, there = pty.openpty()
    shown: list[bytes] = []

    def read() -> None:
        try:
            while block := os.read(here, 65536):
                shown.append(block)
        except OSError:  # EIO: the other end is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    try:
        subprocess.run(
            [sys.executable, "-m", "provision.cli", *words],
            cwd=folder,
            env=environment(folder, **variables),
            stdin=subprocess.DEVNULL,
            stdout=there,
            stderr=there,
            timeout=100,
            check=False,
        )
    finally:
        os.close(there)
        reader.join(timeout=30)
        os.close(here)
    return b"".join(shown).decode()


VERBS = {
    "init": ["init", "--force", "new.yml"],
    "plan": ["plan"],
    "up": ["up", "--yes"],
    "validate": ["validate", "--stage", "quick"],
    "status": ["status"],
    "watch": ["watch", "state"],
    "return": ["return", "gpu-01"],
    "burnin": ["burnin", "plan"],
    "lock": ["lock"],
    "baseline": ["baseline", "learn"],
    "drift": ["drift"],
    "runs": ["runs"],
    "report": ["report", "--format", "none"],
    "selftest": ["selftest", "--output", "/dev/null/none"],
    "lab": ["lab", "faults"],
    "docs": ["docs", "glossary"],
}


def test_each_verb_is_looked_at() -> None:
    assert VERBS.keys() == cli.COMMANDS.keys()


@pytest.mark.parametrize("verb", VERBS)
def test_no_colour_where_none_is_wanted(verb: str, folder: Path) -> None:
    shown = on_a_terminal(folder, *VERBS[verb], NO_COLOR="1", FORCE_COLOR="1")
    assert shown
    assert not COLOUR.search(shown)
    dumb = on_a_terminal(folder, *VERBS[verb], TERM="dumb")
    assert dumb
    assert "\x1b" not in dumb


@pytest.mark.parametrize("verb", VERBS)
def test_no_colour_in_a_file(verb: str, folder: Path, tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as out:
        gpuprov(folder, *VERBS[verb], stdout=out, stderr=out)
    assert "\x1b" not in (tmp_path / "out").read_text()


@pytest.mark.parametrize(
    ("verb", "asking"),
    [("validate", {}), ("report", {}), ("report", {"NO_COLOR": ""}), ("report", {"FORCE_COLOR": ""})],
)
def test_colours_on_a_terminal(verb: str, asking: dict[str, str], folder: Path) -> None:
    assert COLOUR.search(on_a_terminal(folder, *VERBS[verb], **asking))


@pytest.mark.parametrize(
    ("asking", "coloured"),
    [
        ({"FORCE_COLOR": "1"}, True),
        ({"CLICOLOR_FORCE": "1", "TERM": "dumb"}, True),
        ({"CLICOLOR_FORCE": "0"}, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colours_that_are_asked_for_go_into_a_file(
    asking: dict[str, str], coloured: bool, folder: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "provision.cli", *VERBS["report"]],
        cwd=folder,
        env=environment(folder, **asking),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert bool(COLOUR.search(done.stdout)) is coloured
