"""ib_write_lat: output for a card connected to itself, and the options that it refuses."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.lab_silicon.silicon import Silicon

Make = Callable[..., Silicon]


def test_a_card_answers_itself_in_the_form_of_perftest(node: Make) -> None:
    client, server = node().served("ib_write_lat", "-d", "mlx5_0", "-F")
    assert client.returncode == 0, client.stderr
    lines = client.stdout.splitlines()
    assert lines[1] == "                    RDMA_Write Latency Test"
    assert " TX depth        : 1" in lines
    assert not [line for line in lines if line.startswith((" CQ Moderation", " CQE Poll"))]
    assert " Max inline data : 220[B]" in lines
    assert " TX depth        : 1" not in server.splitlines(), "a server sends only when it was sent to"
    assert lines[-3] == (
        " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]"
        "   99% percentile[usec]   99.9% percentile[usec] "
    )
    size, iterations, least, most, median, *_ = lines[-2].split()
    assert (size, iterations) == ("2", "1000"), "perftest's own, when nothing else is asked for"
    assert 0.8 < float(least) < float(median) < 1.0 < float(most)
    assert lines[-1] == "-" * 87


def test_a_larger_message_takes_longer(node: Make) -> None:
    client, _ = node().served("ib_write_lat", "-d", "mlx5_0", "-F", "-s", "8388608")
    (row,) = re.findall(r"^ 8388608 .*$", client.stdout, re.MULTILINE)
    assert 160 < float(row.split()[4]) < 180, "8 MiB at 400 Gb/s"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-q", "4"), "Multiple QPs only available on bw tests"),
        (("-b",), "Bidirectional is only available in BW test"),
        (("-N",), "NoPeak only valid for BW tests"),
        (("--use_cuda=0",), "Perftest doesn't support device memory latency test with write"),
        (("--fast",), "ib_write_lat: unrecognized option '--fast'"),
    ],
)
def test_refusals(words: tuple[str, ...], said: str, node: Make) -> None:
    done = node().run("ib_write_lat", "-d", "mlx5_0", *words, "localhost")
    assert done.returncode == 1
    assert said in done.stderr


def test_its_version(node: Make) -> None:
    assert node().run("ib_write_lat", "--version").stdout == "Version: 6.24\n"
