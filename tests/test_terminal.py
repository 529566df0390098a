"""Progress: plain lines without a terminal, and hostile text made harmless."""

from __future__ import annotations

import io
import os
import re

import pytest

from provision.errors import ExitCode, OutputError
from provision.terminal import Progress, _Output, painted, printable


def test_printable_keeps_text_and_drops_control_characters() -> None:
    assert printable("plain ü text\n\tnext") == "plain ü text\n\tnext"
    assert "\x1b" not in printable("\x1b]0;owned\x07\x1b[2Jred")
    assert "\r" not in printable("ok\rFAKE")


def test_printable_cuts_what_is_too_long() -> None:
    assert printable("x" * 5000, limit=100) == "x" * 99 + "…"


def test_off_a_terminal_every_change_is_one_line_with_the_count() -> None:
    stream = io.StringIO()
    with Progress("validate", total=2, stream=stream) as progress:
        progress.step("gpu-01: gpu_burn")
        progress.done("gpu-01: pass")
        progress.done()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("[validate 0/2")
    assert lines[0].endswith("gpu-01: gpu_burn")
    assert lines[1].startswith("[validate 1/2")
    assert progress.finished == 2


def test_a_nodes_text_cannot_forge_a_line_ending_or_colour() -> None:
    stream = io.StringIO()
    with Progress("up", total=1, stream=stream) as progress:
        progress.say("\x1b[32mall fine\x1b[0m\r")
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()


def test_an_output_that_fails_is_said_once() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        output = _Output(pipe, "utf-8")
        with pytest.raises(OutputError, match="Broken pipe") as failed:
            output.write("x" * 100_000)
        assert failed.value.exit_code == ExitCode.CLOSED_PIPE
        output.write("y" * 100_000)
        output.flush()
        output.detach()


PLAN = (
    "head\n  + file /etc/x  [file./etc/x.content]\n  - old\n        --- before\n        +line\nup: 1 to add\n"
)


def test_signs_have_colours_and_names_of_facts_are_dim() -> None:
    shown = painted(PLAN).splitlines()
    assert shown[1] == "  \033[32m+ file /etc/x\033[0m\033[2m  [file./etc/x.content]\033[0m"
    assert shown[2] == "  \033[31m- old\033[0m"
    assert shown[4] == "        \033[32m+line\033[0m"
    assert [shown[0], shown[3], shown[5]] == ["head", "        --- before", "up: 1 to add"]
    assert re.sub("\033\\[[0-9]+m", "", painted(PLAN)) == PLAN
