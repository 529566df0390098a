"""The result of a selftest: its verdict, its exit status, the lines in the terminal, the page."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from provision.checks.judge import Verdict
from provision.errors import ExitCode
from provision.validate.selftest.machine import Tool
from provision.validate.selftest.result import (
    NOT_POSSIBLE,
    NOT_PROVEN,
    NOT_TRIED,
    PROVEN,
    Checked,
    Provoked,
    Result,
    document,
    render,
    summary,
)
from tests.support.browser import unreadable

FINE = Checked("gpu_burn", "heat", "pass", PROVEN, 60.0)
NAMED = Provoked("a foreign process", "another program", "its PID", PROVEN, "fail gpu_inventory gpu7: 4242")


def result(*checks: Checked, **more: Any) -> Result:
    found = Result("gpu-01", "2026-11-24T08:00:00Z", "2026-11-24T08:10:00Z", 600.0)
    found.checks = [FINE, *checks]
    found.provocations = [NAMED]
    found.archive = "archive.tar.gz"
    for name, value in more.items():
        setattr(found, name, value)
    return found


def checked(verdict: str, state: str = PROVEN, why: str = "") -> Checked:
    return Checked("versions", "what is installed", verdict, state, 1.0, why)


NOT_NAMED = replace(NAMED, state=NOT_PROVEN, why="the check did not name it")


@pytest.mark.parametrize(
    ("found", "verdict", "code"),
    [
        (result(), Verdict.PASS, ExitCode.OK),
        (result(checked("warn")), Verdict.WARN, ExitCode.OK),
        (result(checked("skip", NOT_TRIED)), Verdict.PASS, ExitCode.OK),
        (result(provocations=[NAMED, replace(NAMED, state=NOT_POSSIBLE)]), Verdict.PASS, ExitCode.OK),
        (result(checked("fail")), Verdict.FAIL, ExitCode.UNHEALTHY),
        (result(checked("fail"), checked("error", NOT_PROVEN)), Verdict.FAIL, ExitCode.UNHEALTHY),
        (result(checked("error", NOT_PROVEN)), Verdict.ERROR, ExitCode.INCOMPLETE),
        (result(provocations=[NOT_NAMED]), Verdict.ERROR, ExitCode.INCOMPLETE),
        (result(changes=[NOT_NAMED]), Verdict.ERROR, ExitCode.INCOMPLETE),
        (result(leftovers=["power limit of gpu7"]), Verdict.ERROR, ExitCode.INCOMPLETE),
        (result(checks=[]), Verdict.ERROR, ExitCode.INCOMPLETE),
        (result(stopped="GPUs are in use"), Verdict.ERROR, ExitCode.INCOMPLETE),
        (result(checked("fail"), stopped="nvidia-smi did not answer"), Verdict.FAIL, ExitCode.UNHEALTHY),
        (result(interrupted=True), Verdict.ERROR, ExitCode.INTERRUPTED),
        (result(checked("fail"), interrupted=True), Verdict.FAIL, ExitCode.INTERRUPTED),
    ],
)
def test_verdict_and_exit_code(found: Result, verdict: Verdict, code: ExitCode) -> None:
    assert (found.verdict, found.code) == (verdict, code)
    written = document(found)
    assert (written["verdict"], written["exit_code"]) == (verdict.value, int(code))


def test_the_document_is_json_with_all_of_it() -> None:
    found = result(tools=[Tool("fio", "", "install it")])
    written = json.loads(json.dumps(document(found)))
    assert written["format"] == 2
    assert written["checks"][0]["check"] == "gpu_burn"
    assert written["provocations"][0]["named"] == NAMED.named
    assert written["tools"] == [{"name": "fio", "path": "", "how": "install it"}]


def test_the_lines_of_the_terminal() -> None:
    bad = replace(
        checked("fail"),
        findings=[
            {"verdict": "fail", "device": "gpu3", "message": "is slow", "action": "investigate"},
            {"verdict": "pass", "device": "gpu4", "message": "is fine", "action": "none"},
        ],
    )
    found = result(
        bad,
        checked("error", NOT_PROVEN, "fio is not installed: install it"),
        provocations=[NAMED, NOT_NAMED],
        changes=[replace(NAMED, name="power limit", state=NOT_POSSIBLE, why="it is 200 W already")],
        leftovers=["clock lock of gpu7: it stays; run: nvidia-smi -i 7 -rgc"],
        sku="h100-sxm",
        gpu_count=8,
        driver="580.126.09",
        os="debian 13",
        kernel="6.12",
    )
    assert summary(found, Path("/tmp/out")).splitlines() == [
        "2 of 3 checks and 1 of 3 conditions proven on gpu-01",
        "  8 GPUs (h100-sxm) · driver 580.126.09 · debian 13 · kernel 6.12",
        "  took 10 min 0 s",
        "not proven",
        "  versions: fio is not installed: install it",
        "  a foreign process: the check did not name it",
        "not possible here",
        "  power limit: it is 200 W already",
        "found",
        "  fail versions gpu3: is slow",
        "NOT PUT BACK  clock lock of gpu7: it stays; run: nvidia-smi -i 7 -rgc",
        "page     /tmp/out/selftest.html",
        "json     /tmp/out/selftest.json",
        "archive  /tmp/out/archive.tar.gz",
    ]


def test_an_interrupted_and_a_stopped_one_say_so_first() -> None:
    lines = summary(result(interrupted=True), Path("/tmp/out")).splitlines()
    assert lines[0] == "interrupted: 1 of 1 checks and 1 of 1 conditions proven on gpu-01"
    assert lines[-1].endswith("(partial)")
    lines = summary(result(stopped="GPUs are in use: gpu0 by python"), Path("/tmp/out")).splitlines()
    assert lines[0].startswith("stopped: ")
    assert "  stopped: GPUs are in use: gpu0 by python" in lines


HOSTILE = "<script>alert(1)</script>\x1b[31m\"'&</pre></style>"


def test_no_text_of_a_tool_moves_the_terminal() -> None:
    found = result(
        replace(checked("fail"), findings=[
            {"verdict": "fail", "device": HOSTILE, "message": "a\nNOT PUT BACK x", "action": "none"}
        ]),
        stopped="x\nNOT PUT BACK x", leftovers=["x\nNOT PUT BACK x"],
        driver=HOSTILE, os=HOSTILE, host=HOSTILE,
    )  # fmt: skip
    text = summary(found, Path("/tmp/out"))
    assert "\x1b" not in text
    assert "\nNOT PUT BACK x" not in text


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.attributes: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += [name for name, _ in attrs]


def hostile(value: Any, key: str = "") -> Any:
    """Replace every text of a document by a hostile one, except texts that gpuprov chooses itself."""
    if isinstance(value, dict):
        return {name: hostile(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [hostile(inner, key) for inner in value]
    return value if not isinstance(value, str) or key in ("verdict", "state", "started") else HOSTILE


def whole() -> dict[str, Any]:
    finding = {"verdict": "fail", "device": "gpu3", "message": "slow", "action": "investigate"}
    gpu = {"index": 0, "name": "H100", "serial": "1", "uuid": "GPU-1", "pci_address": "0000:1a:00.0"}
    found = result(
        replace(checked("fail"), findings=[finding] * 6),
        replace(checked("pass"), findings=[{**finding, "verdict": "pass"}] * 2),
        checked("error", NOT_PROVEN, "why"),
        provocations=[NAMED, NOT_NAMED],
        changes=[replace(NAMED, state=NOT_POSSIBLE, why="x")],
        tools=[Tool("fio", "", "install it"), Tool("dcgmi", "/usr/bin/dcgmi")],
        gpus=[gpu],
        leftovers=["clock lock"],
        stopped="in use",
        interrupted=True,
        serials_masked=True,
    )
    written: dict[str, Any] = json.loads(json.dumps(document(found)))
    return written


def test_the_page_escapes_every_text_of_the_machine() -> None:
    tags = Tags()
    text = "".join(render(hostile(whole())))
    assert text.count("&lt;script&gt;") > 30
    tags.feed(text)
    assert "script" not in tags.seen
    assert tags.seen.count("style") == 1
    assert not any(name.startswith("on") for name in tags.attributes)
    assert "\x1b" not in text


def test_the_page_shows_what_was_found() -> None:
    text = "".join(render(whole()))
    for part in (
        "This selftest was interrupted", "Not put back:</b> clock lock", "and 2 more", "install it",
        "serial numbers masked",
        "<code>--change-settings</code> was not given",
    ):  # fmt: skip
        assert part in text, part
    for address in ("http://", "https://", "src="):
        assert address not in text, "a page that needs no network"


@pytest.mark.timeout(300)  # starts a browser four times
def test_the_page_can_be_read_on_small_and_large_screens_light_and_dark(tmp_path: Path) -> None:
    assert unreadable("".join(render(whole())), tmp_path) == []


def test_a_page_of_nothing() -> None:
    empty = Result("gpu-01", "2026-11-24T08:00:00Z")
    text = "".join(render(json.loads(json.dumps(document(empty)))))
    assert "No check ran." in text
    assert "None was made." in text
