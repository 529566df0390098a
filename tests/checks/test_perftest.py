"""perftest's table: its unit by its header, whole or refused."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.checks.network import perftest
from provision.errors import ParseError

Sample = Callable[[str], str]
TEXT = (Path(__file__).parent.parent / "fixtures/rdma_loopback/healthy.txt").read_text()


def test_a_run() -> None:
    assert perftest.parse(TEXT) == perftest.Result("mlx5_0", 4, {8388608: 393.41})


@pytest.mark.parametrize("unit", ["MiB/sec", "MB/sec"])
def test_the_header_says_the_unit(unit: str) -> None:
    mebi = TEXT.replace("Gb/sec", unit).replace("393.41", "46898.00")
    assert perftest.parse(mebi).average[8388608] == pytest.approx(393.41, abs=0.01)
    with pytest.raises(ParseError, match="header not understood"):
        perftest.parse(TEXT.replace("Gb/sec", "parsec"))


def test_columns_are_found_by_name() -> None:
    wider = TEXT.replace("MsgRate[Mpps]", "MsgRate[Mpps]    CPU_Util[%]").replace("0.005862", "0.005862  3.4")
    assert perftest.parse(wider) == perftest.parse(TEXT)
    with pytest.raises(ParseError, match="row not understood"):
        perftest.parse(TEXT.replace("0.005862", "0.005862  3.4"))


def test_a_number_of_thousands_of_digits_is_no_error_of_pythons() -> None:
    """Python converts none of more than 4,300."""
    many = "9" * 5000
    with pytest.raises(ParseError, match="row not understood"):
        perftest.parse(TEXT.replace(" 8388608 ", f" {many} "))
    assert perftest.parse(re.sub(r"(qps   : )4", rf"\g<1>{many}", TEXT)).queue_pairs != 4


@pytest.mark.parametrize("bad", ["nan", "inf", "-3", "39x"])
def test_a_rate_that_is_none_is_refused(bad: str) -> None:
    with pytest.raises(ParseError):
        perftest.parse(TEXT.replace("393.41", bad))


def test_two_devices_in_one_output_are_refused() -> None:
    with pytest.raises(ParseError, match="no result"):
        perftest.parse(TEXT + TEXT.replace("mlx5_0", "mlx5_1"))


@given(st.integers(0, len(TEXT)))
def test_cut_anywhere_it_is_refused_or_means_the_same(length: int) -> None:
    with contextlib.suppress(ParseError):
        assert perftest.parse(TEXT[:length]) == perftest.parse(TEXT)


def test_the_real_loopback(captures: Path) -> None:
    """Server and client in one stream: two headers, the last row twice."""
    result = perftest.parse((captures / "ib_write_bw.loopback.all-sizes.log").read_text())
    assert (result.device, result.queue_pairs, len(result.average)) == ("ib0", 1, 23)
    assert result.average[8388608] == pytest.approx(194.96, abs=0.01)
