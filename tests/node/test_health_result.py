"""The program that reads a health result on a node: the files it trusts, and its output about Slurm."""

from __future__ import annotations

import binascii
import json
import os
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provision.remote.node_program import about_scheduler, health_result_program
from provision.remote.protocol import unframed

RESULT = b'{"format": 1}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create a folder like /run/gpuprov with a result in it; its owner takes the role of root."""
    made = tmp_path / "run"
    made.mkdir(mode=0o755)
    made.chmod(0o755)
    (made / "health.json").write_bytes(RESULT)
    (made / "health.json").chmod(0o644)
    return made


def run(folder: Path, **request: Any) -> dict[str, Any]:
    text = health_result_program({"folder": str(folder), "owner": os.geteuid(), **request})
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-"],
        input=text.encode("ascii"),
        capture_output=True,
        timeout=30,
        check=True,
    )
    assert done.stderr == b""
    answer: dict[str, Any] = json.loads(unframed(done.stdout))
    return answer


def problem(folder: Path, **request: Any) -> tuple[str, str]:
    answer = run(folder, **request)
    assert answer["health"] == ""
    return answer["problem"], answer["detail"]


def test_the_result_comes_whole_with_the_clock_that_tells_its_age(folder: Path) -> None:
    answer = run(folder)
    assert zlib.decompress(binascii.a2b_base64(answer["health"])) == RESULT
    assert (answer["problem"], answer["detail"], answer["slurm"]) == ("", "", None)
    assert answer["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert 0 <= time.clock_gettime(time.CLOCK_BOOTTIME) - answer["uptime"] < 30
    assert answer["written"] == pytest.approx((folder / "health.json").stat().st_mtime)


@pytest.mark.parametrize("size", [0, 1, 256 * 1024])
def test_any_size_up_to_the_limit(folder: Path, size: int) -> None:
    (folder / "health.json").write_bytes(b" " * size)
    assert len(zlib.decompress(binascii.a2b_base64(run(folder)["health"]))) == size


def test_no_file_and_no_folder(folder: Path) -> None:
    (folder / "health.json").unlink()
    assert problem(folder) == ("absent", "")
    assert problem(folder / "none") == ("absent", "")


def test_what_is_too_large_is_not_read(folder: Path) -> None:
    with (folder / "health.json").open("wb") as file:
        file.truncate(100_000_000)
    began = time.monotonic()
    assert problem(folder) == ("refused", f"{folder}/health.json is larger than 256 KiB")
    assert time.monotonic() - began < 5


def test_a_link_a_folder_and_a_pipe_are_refused(folder: Path, tmp_path: Path) -> None:
    file = folder / "health.json"
    file.unlink()
    file.symlink_to("/etc/hostname")
    assert problem(folder) == ("refused", f"{file} is a symbolic link")
    file.unlink()
    file.mkdir()
    assert problem(folder) == ("refused", f"{file} is not a regular file")
    file.rmdir()
    os.mkfifo(file, 0o644)
    assert problem(folder) == ("refused", f"{file} is not a regular file")  # without waiting for a writer
    linked = tmp_path / "linked"
    linked.symlink_to(folder)
    assert problem(linked) == ("refused", f"{linked} is not a folder")


def test_what_somebody_else_could_have_written_is_refused(folder: Path) -> None:
    file = folder / "health.json"
    other = os.geteuid() + 1
    assert problem(folder, owner=other) == ("refused", f"{folder} belongs to uid {os.geteuid()}, not to root")
    file.chmod(0o664)
    assert problem(folder) == ("refused", f"{file} can be written to by others than root")
    file.chmod(0o644)
    folder.chmod(0o777)
    assert problem(folder) == ("refused", f"{folder} can be written to by others than root")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_refused(folder: Path) -> None:
    os.chown(folder / "health.json", 65534, 65534)
    assert problem(folder) == ("refused", f"{folder}/health.json belongs to uid 65534, not to root")


def test_through_ansible_it_may_be_smaller(folder: Path) -> None:
    (folder / "health.json").write_bytes(os.urandom(100_000))
    assert run(folder, bytes=150_000)["problem"] == ""
    kind, detail = problem(folder, bytes=50_000)
    assert (kind, detail) == ("refused", "it is too large to come through Ansible (130 KiB)")


def test_no_template_for_ansible_is_in_it() -> None:
    text = health_result_program({"scheduler": True, "bytes": 1})
    assert not [sign for sign in ("{{", "{%", "{#") if sign in text]


# --- Slurm


@pytest.fixture
def slurm(tmp_path: Path) -> Path:
    """Create a folder with Slurm's programs; scontrol prints its arguments."""
    made = tmp_path / "slurm"
    made.mkdir()
    tool(made, "slurmd", "exit 1")
    tool(made, "scontrol", 'echo "$@"')
    return made


def tool(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def asked(folder: Path, slurm: Path) -> Any:
    return run(folder, scheduler=True, slurm=[str(slurm), "/usr/bin", "/bin"])["slurm"]


def test_slurm_is_asked_for_this_node_by_its_short_name(folder: Path, slurm: Path) -> None:
    name = os.uname().nodename.partition(".")[0]
    assert asked(folder, slurm) == {"name": name, "text": f"show node {name}\n", "problem": ""}
    assert run(folder, slurm=[str(slurm)])["slurm"] is None  # the request does not include Slurm


def test_without_its_daemon_slurm_is_not_asked(folder: Path, slurm: Path) -> None:
    (slurm / "slurmd").unlink()
    assert asked(folder, slurm) is None
    tool(slurm, "slurmd", "")
    (slurm / "scontrol").unlink()
    assert asked(folder, slurm)["problem"] == "scontrol is not installed"


def test_why_slurm_gave_no_answer(folder: Path, slurm: Path) -> None:
    tool(slurm, "scontrol", "echo 'slurm_load_node error: Unable to contact slurm controller' >&2; exit 1")
    answer = asked(folder, slurm)
    assert answer["problem"] == "scontrol ended with status 1"
    assert answer["text"] == "slurm_load_node error: Unable to contact slurm controller\n"


def test_slurm_has_five_seconds(folder: Path, slurm: Path) -> None:
    tool(slurm, "scontrol", "exec sleep 600")
    began = time.monotonic()
    assert asked(folder, slurm)["problem"] == "scontrol gave no answer within 5 s"
    assert time.monotonic() - began < 15


def test_what_scontrol_prints_is_cut(folder: Path, slurm: Path) -> None:
    tool(slurm, "scontrol", "head -c 1000000 /dev/zero | tr '\\0' x")
    assert len(asked(folder, slurm)["text"]) == 16 * 1024


@pytest.fixture
def follower(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the program in follow mode."""
    text = health_result_program({"folder": str(folder), "owner": os.geteuid(), "follow": True})
    command = [sys.executable, "-I", "-S", "-"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        process.stdin.write(text.encode("ascii"))
        process.stdin.close()
        yield process
        process.kill()


def follow(process: subprocess.Popen[bytes]) -> bytes:
    """Return the result in the next message, which must be an answer, or the reason for its absence."""
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    answer = json.loads(unframed(b"".join(lines)))
    if answer["problem"]:
        return str(answer["problem"]).encode()
    return zlib.decompress(binascii.a2b_base64(answer["health"]))


def replace(folder: Path, text: bytes) -> None:
    """Replace the result atomically, like the health program."""
    (folder / "new").write_bytes(text)
    (folder / "new").chmod(0o644)
    (folder / "new").rename(folder / "health.json")


def test_who_follows_gets_the_result_and_each_new_one_within_a_second(
    folder: Path, follower: subprocess.Popen[bytes]
) -> None:
    assert follow(follower) == RESULT
    for number in range(3):
        replace(folder, b"%d" % number)
        began = time.monotonic()
        assert follow(follower) == b"%d" % number
        assert time.monotonic() - began < 1.5
    (folder / "health.json").unlink()
    assert follow(follower) == b"absent", "that it is gone is told, too"


def test_who_follows_is_told_that_the_node_lives_and_once_a_minute_what_did_not_change(folder: Path) -> None:
    text = health_result_program({"folder": str(folder), "owner": os.geteuid(), "follow": True})
    source = about_scheduler("health_result")
    quick = source.replace("ALIVE = 15.0", "ALIVE = 0.6").replace("AGAIN = 60.0", "AGAIN = 2.0")
    assert quick.count("0.6") == quick.count("2.0") == 1
    call = text[text.rindex("main(") :]
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", f"{quick}\n{call}"], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().partition(b" ")[0].strip() for _ in range(8)]
        process.kill()
    kinds = [line for line in lines if line.startswith(b"@gpuprov-")]
    assert kinds[:2] == [b"@gpuprov-facts", b"@gpuprov-end"]
    assert kinds[2] == b"@gpuprov-alive"
    again = kinds.index(b"@gpuprov-facts", 1)
    assert set(kinds[2:again]) == {b"@gpuprov-alive"}


@pytest.mark.parametrize("through", ["pipe", "socket"])
def test_the_program_ends_soon_after_its_reader_and_is_light(folder: Path, through: str) -> None:
    """sshd connects a program by a pair of sockets, or by pipes if it was built so."""
    text = health_result_program({"folder": str(folder), "owner": os.geteuid(), "follow": True})
    ours, theirs = os.pipe() if through == "pipe" else [end.detach() for end in socket.socketpair()]
    command = [sys.executable, "-I", "-S", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=theirs) as process:
        os.close(theirs)
        assert process.stdin is not None
        process.stdin.write(text.encode("ascii"))
        process.stdin.close()
        assert os.read(ours, 1 << 16).startswith(b"@gpuprov-facts")
        status = Path(f"/proc/{process.pid}/status").read_text()
        # Private memory only; the rest is Python's own code, which the kernel shares among processes.
        assert int(status.partition("RssAnon:")[2].split()[0]) < 8 * 1024
        assert int(status.partition("VmRSS:")[2].split()[0]) < 20 * 1024
        os.close(ours)
        assert process.wait(timeout=60) is not None
