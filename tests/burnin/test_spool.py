"""Validation of untrusted data from nodes: names, sizes, cut lines, hostile text, secrets."""

from __future__ import annotations

import base64
import gzip
import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.burnin import spool as spools_module
from provision.burnin.spool import Spool
from provision.runs.store import RunFolder
from provision.secrets_mask import HIDDEN
from tests.support.burnin import Made
from tests.support.spools import BOOT, burned, event, jsonl, part, raw, sample

EVENTS = jsonl([event(1, "started"), event(2, "segment", **{"name": "heat"}), event(3, "finished")])


@given(cuts=st.lists(st.integers(0, len(EVENTS)), max_size=6), again=st.booleans())
def test_whatever_the_pieces_no_event_is_lost_or_told_twice(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], again: bool
) -> None:
    """The controller requests data from its own offset, and a lost answer is requested again."""
    spool = Spool(RunFolder.create("burnin", {}, tmp_path_factory.mktemp("runs")), "gpu-01")
    for end in [*sorted(cuts), len(EVENTS)]:
        have = spool.have().get("events.jsonl", 0)
        piece = part("events.jsonl", EVENTS[have : max(have, end)], have, len(EVENTS))
        assert spool.take([piece]) == ""
        if again:
            assert spool.take([piece]) == ""
    assert [one.name for one in spool.events()] == ["started", "segment", "finished"]


def test_a_line_that_is_being_written_waits_for_its_end(made: Made) -> None:
    made.put("events.jsonl", EVENTS[:-5], size=len(EVENTS))
    assert [one.name for one in made.spool.events()] == ["started", "segment"]
    have = made.spool.have()["events.jsonl"]
    made.put("events.jsonl", EVENTS[have:], offset=have)
    assert len(made.spool.events()) == 3


@pytest.mark.parametrize(
    "file",
    [
        "../run.json",
        "/etc/passwd",
        "raw/../../x",
        "raw/1-x.json",
        "telemetry/../a.csv",
        "program",
        "",
        "raw/",
    ],
)
def test_a_file_that_no_burn_in_writes_is_refused(made: Made, file: str) -> None:
    assert "does not write" in made.put(file, b"x")
    assert sorted(path.name for path in made.spool.folder.path.rglob("*")) == ["run.json"]


@pytest.mark.parametrize("parts", [None, "x", [{}], [{"file": "events.jsonl"}], [3]])
def test_an_answer_that_is_none_is_one_line(made: Made, parts: object) -> None:
    said = made.spool.take(parts)
    assert said.startswith("its answer was not understood")
    assert "\n" not in said


def test_a_piece_that_unpacks_beyond_measure_is_refused(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spools_module, "_MOST_PART", 1000)
    assert "larger than any may be" in made.put("events.jsonl", b"0" * 100_000)


def test_more_than_a_node_may_keep_is_refused(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spools_module, "MOST", 1000)
    assert made.put(f"telemetry/{BOOT}.csv", b"1,1,gpu,gpu0,\n" * 50) == ""
    assert "GiB" in made.put(f"telemetry/{BOOT}.csv", b"1,1,gpu,gpu0,\n" * 50, offset=700)


def test_no_run_of_three_letters_is_left_for_a_mask_to_hit() -> None:
    data = part("events.jsonl", EVENTS)["data"]
    assert max(len(word) for word in data.split(" ")) == 2
    assert zlib.decompress(base64.b64decode(data)) == EVENTS


def test_secrets_of_the_inventory_are_masked_in_what_is_kept(made: Made) -> None:
    secret = "hunter2-very-secret"
    document = burned()
    document["outputs"][0]["stderr"] = f"login with {secret}"
    parts = [
        part("raw/000001-gpu_burn.json.gz", raw(document)),
        part("events.jsonl", jsonl([event(1, "error", text=f"{secret} is wrong")])),
        part("order.json", json.dumps({"x": secret}).encode()),
    ]
    assert made.spool.take(parts, [secret]) == ""
    for path in made.spool.path.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert secret.encode() not in (gzip.decompress(data) if path.suffix == ".gz" else data), path
    kept = made.spool.raw("raw/000001-gpu_burn.json.gz")
    assert kept is not None
    assert kept["outputs"][0]["stderr"] == f"login with {HIDDEN}"


def test_lines_that_are_no_events_are_told_and_passed_over(made: Made) -> None:
    strange = b'{"t": "soon"}\nnot json\n[1]\n{"t": 1e99, "up": 1, "boot": "b", "event": "x"}\n'
    strange += b'{"t": 1%s, "up": 1, "boot": "b", "event": "x"}\n' % (b"0" * 400)
    strange += b"[" * 5_000 + b"\n"
    made.put("events.jsonl", EVENTS + strange)
    assert len(made.spool.events()) == 3
    assert len(made.spool.damaged) == 6


@given(st.text(max_size=200))
def test_no_line_of_telemetry_makes_the_reader_fail(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    spool = Spool(RunFolder.create("burnin", {}, tmp_path_factory.mktemp("runs")), "n")
    spool.take(
        [part(f"telemetry/{BOOT}.csv", text.encode("utf-8", "replace") + b"\n" + sample(5, 1).encode())]
    )
    assert [row.device for row in spool.rows(BOOT)][-1] == "gpu1"


def test_what_did_not_change_is_carried_on_by_source_and_device(made: Made) -> None:
    text = (
        sample(5, 0, temperature_c=60, throttle="0x40", power_w=600)
        + sample(5, 1, temperature_c=50)
        + sample(10, 0, temperature_c=61)
        + sample(15, 0)
        + sample(20, 0, power_w="")
        + "cut,in,the"
    )
    made.put(f"telemetry/{BOOT}.csv", text.encode())
    rows = [row for row in made.spool.rows(BOOT) if row.device == "gpu0"]
    assert [row.number("temperature_c") for row in rows] == [60, 61, 61, 61]
    assert [row.number("power_w") for row in rows] == [600, 600, 600, None]
    assert rows[2].number("throttle") == 0x40
    assert made.spool.damaged == []


def test_a_secret_that_is_cut_between_two_pieces_is_masked(made: Made) -> None:
    secret = "hunter2-very-secret"
    line = jsonl([event(1, "error", text=secret)])
    middle = line.index(secret.encode()) + 7
    for end in (middle, len(line)):
        have = made.spool.have().get("events.jsonl", 0)
        assert made.spool.take([part("events.jsonl", line[have:end], have, len(line))], [secret]) == ""
    (kept,) = made.spool.events()
    assert kept.fields["text"] == HIDDEN
