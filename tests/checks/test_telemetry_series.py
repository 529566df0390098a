"""Samples over time: in order, complete, and thinned so that brief events remain visible."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.checks.check import Output
from provision.checks.gpu import telemetry, telemetry_rows
from provision.checks.gpu.telemetry_rows import moment
from provision.errors import ParseError


def output(*rows: str) -> Output:
    header = ", ".join(telemetry.FIELDS)
    argv = ("nvidia-smi", "-lms", "2000")
    return Output(telemetry.NAME, argv, -15, "\n".join([header, *rows]) + "\n", "", 61.0, beside="gpu_burn")


def row(time: str, gpu: int, heat: str = "62", power: str = "690.1", clock: str = "1830") -> str:
    return f"2026/05/04 {time}, {gpu}, 100, {heat}, {power}, {clock}, 5, 5, 16, 16, 0x0000000000000004"


def test_each_gpu_has_its_samples_with_seconds_since_the_first_of_any() -> None:
    found = telemetry_rows.series(
        output(
            row("23:59:58.000", 1, "40"),
            row("23:59:58.250", 0, "41"),
            row("23:59:59.500", 1, "[N/A]", "[N/A]"),
        )
    )
    assert list(found) == ["gpu0", "gpu1"]
    assert found["gpu0"].seconds == [0.25]
    assert found["gpu1"].seconds == [0.0, 1.5]
    assert found["gpu1"].temperatures == [40.0, None]
    assert found["gpu1"].powers == [690.1, None]
    assert found["gpu1"].clocks == [1830.0, 1830.0]


def test_time_never_runs_backwards() -> None:
    back = output(row("10:00:10.000", 0), row("10:00:02.000", 0), row("10:00:12.000", 0))
    assert telemetry_rows.series(back)["gpu0"].seconds == [0.0, 2.0]


def test_a_sample_in_a_new_form_is_refused() -> None:
    with pytest.raises(ParseError, match="timestamp"):
        telemetry_rows.series(output(row("10 o'clock", 0)))


def test_thinned_keeps_the_peak_of_heat_and_the_dip_of_the_clock() -> None:
    rows = [
        row(f"10:{second // 60:02d}:{second % 60:02d}.000", 0, "91" if second == 777 else "60", "650",
            "345" if second == 1234 else "1830")
        for second in range(1500)
    ]  # fmt: skip
    one = telemetry_rows.series(output(*rows))["gpu0"].thinned(100)
    assert len(one.seconds) == len(one.temperatures) == len(one.powers) == len(one.clocks) == 100
    assert max(value for value in one.temperatures if value is not None) == 91
    assert min(value for value in one.clocks if value is not None) == 345
    assert one.seconds == sorted(one.seconds)


def test_few_samples_stay_as_they_are() -> None:
    one = telemetry_rows.series(output(row("10:00:00.000", 0)))["gpu0"]
    assert one.thinned(100) is one


@given(
    st.datetimes(
        datetime.datetime(1970, 1, 2), datetime.datetime(9998, 1, 1), timezones=st.just(datetime.UTC)
    )
)
def test_a_time_is_what_it_says(when: datetime.datetime) -> None:
    text = when.strftime("%Y/%m/%d %H:%M:%S.%f")
    for spelled in (text, text[:-3], text[:-5]):
        wanted = datetime.datetime.strptime(spelled, "%Y/%m/%d %H:%M:%S.%f").replace(tzinfo=datetime.UTC)
        assert moment({"timestamp": spelled}) == wanted.timestamp()


@pytest.mark.parametrize(
    "text",
    [
        "2025/13/01 00:00:00.000",
        "2025/02/30 00:00:00.000",
        "2025/11/21 24:00:00.000",
        "2025/11/21 06:00:00",
        "2025-11-21 06:00:00.250",
        "2025/11/21 06:00:00.250 UTC",
        "0000/01/01 00:00:00.000",
        "N/A",
        "",
    ],
)
def test_another_time_is_an_error(text: str) -> None:
    with pytest.raises(ParseError, match="timestamp"):
        moment({"timestamp": text})
