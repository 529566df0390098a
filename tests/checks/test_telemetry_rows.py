"""The time of a sample is read as strptime reads it, and faster."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.checks.gpu.telemetry_rows import moment
from provision.errors import ParseError


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
