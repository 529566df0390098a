"""Tables of perftest for bandwidth and latency: units and columns by header, complete or refused."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.checks.check import CheckNode
from provision.checks.network import perftest
from provision.checks.pairs import write_lat
from provision.errors import ParseError
from tests.support.checks import sample

TEXT = sample("rdma_loopback/healthy.txt")


def test_a_run() -> None:
    assert perftest.parse(TEXT) == perftest.Result("mlx5_0", 4, {8388608: 393.41})


@pytest.mark.parametrize("unit", ["MiB/sec", "MB/sec"])
def test_the_header_says_the_unit(unit: str) -> None:
    mebi = TEXT.replace("Gb/sec", unit).replace("393.41", "46898.00")
    assert perftest.parse(mebi).average[8388608] == pytest.approx(393.41, abs=0.01)
    with pytest.raises(ParseError, match="header not understood"):
        perftest.parse(TEXT.replace("Gb/sec", "parsec"))
    with pytest.raises(ParseError, match="header not understood"):
        perftest.parse(TEXT.replace("Gb/sec", "Tb/sec"))


def test_columns_are_found_by_name() -> None:
    wider = TEXT.replace("MsgRate[Mpps]", "MsgRate[Mpps]    CPU_Util[%]").replace("0.005862", "0.005862  3.4")
    assert perftest.parse(wider) == perftest.parse(TEXT)
    with pytest.raises(ParseError, match="row not understood"):
        perftest.parse(TEXT.replace("0.005862", "0.005862  3.4"))


def test_a_number_of_thousands_of_digits_is_no_error_of_pythons() -> None:
    """Python's int() refuses numbers of more than 4,300 digits."""
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


LATENCY = sample("pair_latency/healthy.txt")
LATENCY_HEAD = LATENCY.partition(" #bytes")[0]
RULE = "-" * 87 + "\n"


def ends(**variables: Any) -> CheckNode:
    return CheckNode("gpu-01", {}, variables, {})


def test_a_run_of_latency() -> None:
    assert write_lat.parse(LATENCY) == write_lat.Latency("mlx5_0", 2, 1.87, 2.03)


def test_what_it_says_of_the_processors_clock_is_no_row() -> None:
    said = "Conflicting CPU frequency values detected: 3393.693 != 1500.0. CPU Frequency is not max.\n"
    told = LATENCY.replace("\n 2  ", f"\n{said}{said} 2  ")
    assert said in told
    assert write_lat.parse(told) == write_lat.parse(LATENCY)


def test_columns_of_latency_are_found_by_name() -> None:
    wider = LATENCY.replace("99.9% percentile[usec] ", "99.9% percentile[usec]     CPU_Util[%]")
    wider = wider.replace("\t2.75   ", "\t2.75   \t    3.40")
    assert write_lat.parse(wider) == write_lat.parse(LATENCY)
    with pytest.raises(ParseError, match="row not understood"):
        write_lat.parse(LATENCY.replace("\t2.75   ", "\t2.75   \t    3.40"))
    turned = LATENCY.replace("t_min[usec]", "t_new[usec]").replace("t_typical[usec]", "t_min[usec]")
    with pytest.raises(ParseError, match="header not understood"):
        write_lat.parse(turned)


def test_a_table_of_before_2016_ends_with_the_median() -> None:
    table = (
        " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]\n"
        " 2       5000          0.87           4.70         0.89   \n"
    )
    assert write_lat.parse(LATENCY_HEAD + table + RULE) == write_lat.Latency("mlx5_0", 2, 0.89, None)


def test_a_run_for_a_time_has_no_median() -> None:
    table = (
        " #bytes        #iterations       t_avg[usec]    tps average\n"
        " 2             100000            1.88           531914.89\n"
    )
    with pytest.raises(ParseError, match="not understood"):
        write_lat.parse(LATENCY_HEAD + table + RULE)


def test_another_unit_of_latency_is_refused() -> None:
    with pytest.raises(ParseError, match="header not understood"):
        write_lat.parse(LATENCY.replace("t_typical[usec]", "t_typical[nsec]"))


@pytest.mark.parametrize("bad", ["nan", "inf", "-1.87", "0.00", "1.8x", "1,87"])
@pytest.mark.parametrize("cell", ["1.87", "2.03"])
def test_a_latency_that_is_none_is_refused(cell: str, bad: str) -> None:
    with pytest.raises(ParseError):
        write_lat.parse(LATENCY.replace(cell, bad))


def test_two_rows_two_devices_and_none_are_refused() -> None:
    row = next(line for line in LATENCY.splitlines() if line.startswith(" 2 "))
    with pytest.raises(ParseError, match="2 rows where one was requested"):
        write_lat.parse(LATENCY.replace(row, f"{row}\n{row}"))
    with pytest.raises(ParseError, match="no result"):
        write_lat.parse(LATENCY + LATENCY.replace("mlx5_0", "mlx5_1"))
    with pytest.raises(ParseError, match="stops before its end"):
        write_lat.parse(LATENCY.replace(f"{row}\n", ""))


def test_the_output_of_the_other_program_is_refused() -> None:
    with pytest.raises(ParseError):
        write_lat.parse(TEXT)
    with pytest.raises(ParseError):
        perftest.parse(LATENCY)


@given(
    st.integers(0, len(LATENCY)),
    st.integers(0, 40),
    st.one_of(
        st.text(max_size=60), st.sampled_from(["9" * 5000, "\n 2 5 ", "²", "٣", "#bytes", " : \n" + RULE])
    ),
)
def test_garbage_anywhere_is_refused_or_gives_a_latency(at: int, gone: int, garbage: str) -> None:
    with contextlib.suppress(ParseError):
        found = write_lat.parse(LATENCY[:at] + garbage + LATENCY[at + gone :])
        assert 0 < found.median < float("inf")


@given(st.text(max_size=400))
def test_garbage_alone_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        write_lat.parse(text)


def test_what_is_asked_for() -> None:
    assert write_lat.argv(ends(), "mlx5_3", "1", 18701) == (
        *("/usr/bin/ib_write_lat", "-d", "mlx5_3", "-i", "1", "-p", "18701"),
        *("-s", "2", "-n", "5000", "-F"),
    )
    elsewhere = ends(validation_tools_ib_write_lat_path="/opt/perftest/bin/ib_write_lat")
    assert write_lat.argv(elsewhere, "mlx5_3", "1", 1)[0] == "/opt/perftest/bin/ib_write_lat"
