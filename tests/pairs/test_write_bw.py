"""ib_write_bw between two nodes: the command at each end, and the end to blame for a missing result."""

from __future__ import annotations

from typing import Any

import pytest

from provision.checks.check import CheckNode, Output
from provision.checks.pairs.pairing import Outcome, Result, Topology
from provision.checks.pairs.perftest_ends import rails, shared, version
from provision.checks.pairs.write_bw import commands, expected, results
from provision.errors import ParseError
from tests.support.pair_nodes import NO_DEVICE, NOBODY, RATE, SERVING, facts, output, printed

PAIR = ("gpu-01", "gpu-02")
GPUS = {"gpu": {"count": 8, "sku": "h100-sxm"}}


def node(name: str = "gpu-01", devices: tuple[str, ...] = ("mlx5_0", "mlx5_1"), **more: Any) -> CheckNode:
    return CheckNode(name, GPUS, more.pop("variables", {}), facts(devices, **more))


# --- commands ---


def test_both_ends_run_the_same_rails_in_one_order_at_the_same_tcp_ports() -> None:
    server, client = node(devices=("mlx5_10", "mlx5_2", "mlx5_0")), node("gpu-02", ("mlx5_2", "mlx5_10"))
    serving, asking = commands(server, client, "10.0.0.1")
    assert [one.name for one in serving] == [one.name for one in asking] == ["mlx5_2", "mlx5_10"]
    for its, other in zip(serving, asking, strict=True):
        assert other.argv == (*its.argv, "10.0.0.1")
        assert its.argv[1:5] == ("-d", its.name, "-i", "1")
    numbers = [one.argv[one.argv.index("-p") + 1] for one in serving]
    assert len(set(numbers)) == 2, "a rail that hangs must not be the next one's server"


def test_the_client_tries_again_while_nobody_listens_and_the_server_outlives_a_try() -> None:
    (its, *_), (other, *_) = commands(node(), node("gpu-02"), "10.0.0.1")
    assert other.retry_on in NOBODY
    assert other.retry_for > its.deadline, "a server may still be busy with a rail that hangs"
    assert (its.retry_on, its.retry_for) == ("", 0.0)
    assert its.deadline > other.deadline


def test_a_slower_port_has_more_time() -> None:
    fast = commands(node(), node("gpu-02"), "a")[1][0].deadline
    slow = commands(node(), node("gpu-02", rate=25), "a")[1][0].deadline
    assert fast < 20
    assert slow > fast + 25, "34 GB at 25 Gb/s take 11 s, and may take a few times that"


def test_a_driver_in_software_sends_little_and_has_a_cpus_time_for_it() -> None:
    """rxe always states 2.5 Gb/s; a card of such a rate would send 34 GB in two minutes."""
    card, software = node(rate=2), node("gpu-02", rate=2, address=None)
    (its, *_), (other, *_) = commands(card, software, "a")
    for one in (its, other):
        words = [one.argv[one.argv.index(option) + 1] for option in ("-s", "-q", "-n")]
        assert words == ["65536", "4", "100"]
        assert "--perform_warm_up" not in one.argv
    assert 60 < other.deadline < its.deadline < other.retry_for
    assert "8388608" in commands(card, card, "a")[1][0].argv


def test_a_card_with_two_ports_has_a_rail_for_each() -> None:
    both = node(devices=("mlx5_0/1", "mlx5_0/2"))
    serving, asking = commands(both, both, "a")
    assert [one.name for one in asking] == ["mlx5_0/1", "mlx5_0/2"]
    assert [one.argv[1:5] for one in serving] == [
        ("-d", "mlx5_0", "-i", "1"),
        ("-d", "mlx5_0", "-i", "2"),
    ]


def test_rails_that_only_one_of_them_has_are_left_out() -> None:
    assert shared(node(), node("gpu-02", ("mlx5_8",))) == []
    assert commands(node(), node("gpu-02", ("mlx5_8",)), "a") == ([], [])
    (pair,) = shared(node(), node("gpu-02", ("mlx5_1",), rate=200))
    assert [port.name for port in pair] == ["mlx5_1", "mlx5_1"]
    assert [port.rate for port in pair] == [400, 200]


def test_ports_that_are_down_are_no_rails() -> None:
    assert rails(node(state="DOWN")) == []
    assert rails(node(devices=())) == []
    named = node(variables={"gpuprov_expected_nics": ["mlx5_1"]})
    assert [port.name for port in rails(named)] == ["mlx5_1"]


def test_facts_that_cannot_be_read_are_no_absence_of_ports() -> None:
    silent = CheckNode("gpu-01", GPUS, {}, {}, {"hca": "permission denied"})
    with pytest.raises(ParseError, match="permission denied"):
        rails(silent)


@pytest.mark.parametrize(
    ("racks", "oversubscription", "least"),
    [
        ({"gpu-01": "a", "gpu-02": "a"}, 3, 360),
        ({"gpu-01": "a", "gpu-02": "b"}, 3, 120),
        ({"gpu-01": "a", "gpu-02": "b"}, 1, 360),
        ({"gpu-01": "a"}, 3, 120),  # possibly across racks
        ({}, 3, 120),
    ],
)
def test_what_is_expected(racks: dict[str, str], oversubscription: float, least: float) -> None:
    (ports, _) = shared(node(), node("gpu-02"))
    assert expected(Topology(PAIR, racks), PAIR, ports, oversubscription) == pytest.approx(least)


def test_the_slower_port_decides_what_is_expected() -> None:
    (ports, _) = shared(node(), node("gpu-02", rate=200))
    assert expected(Topology(PAIR), PAIR, ports, 1) == pytest.approx(180)


# --- results ---

WAITED = output(rc=None, timed_out=True, stdout=SERVING, seconds=20.0)
SERVED = output(stdout=SERVING + printed(395.0))
ASKED = output(stdout=printed(395.0))


def read(server: Output | None, client: Output | None) -> Result:
    outputs = {name: {one.name: one} for name, one in zip(PAIR, (server, client), strict=True) if one}
    (result,) = results(PAIR, 2, [("mlx5_0", 360.0)], outputs)
    assert (result.nodes, result.round, result.rail, result.expected) == (PAIR, 2, "mlx5_0", 360.0)
    return result


def test_what_was_measured() -> None:
    result = read(SERVED, ASKED)
    assert (result.outcome, result.value, result.unit) == (Outcome.MEASURED, 395.0, "Gb/s")


def test_what_a_driver_in_software_was_asked_for() -> None:
    argv = commands(node(), node("gpu-02", address=None), "a")[1][0].argv
    small = printed(0.2, size=65536)
    assert read(SERVED, output(argv=argv, stdout=small)).value == 0.2
    assert read(SERVED, output(argv=argv, stdout=printed(0.2))).outcome is Outcome.ERROR


@pytest.mark.parametrize(
    ("said", "found"),
    [({"stdout": "Version: 6.24\n", "rc": 1}, "6.24"), ({"stdout": "Version: 24.10.0.65\n"}, "24.10.0.65")]
    + [({"stdout": text, "rc": 1}, "") for text in ("", "usage: 1.2\n", "error 10.0.0.1\n")],
)
def test_the_version_it_says(said: dict[str, Any], found: str) -> None:
    """perftest 6.24 prints its version and exits with 1."""
    assert version(output("version", **said)) == found


def test_each_rail_has_its_result() -> None:
    slow = output("mlx5_0/2", stdout=printed(100.0))
    asked = [("mlx5_0/1", 360.0), ("mlx5_0/2", 180.0), ("mlx5_9", 360.0)]
    served = {name: output(name) for name, _ in asked}
    answered = {"mlx5_0/1": output(stdout=printed(RATE)), "mlx5_0/2": slow}
    found = results(PAIR, 1, asked, dict(zip(PAIR, (served, answered), strict=True)))
    assert [(one.rail, one.outcome, one.value, one.expected) for one in found] == [
        ("mlx5_0/1", Outcome.MEASURED, 400.0, 360.0),
        ("mlx5_0/2", Outcome.MEASURED, 100.0, 180.0),
        ("mlx5_9", Outcome.ERROR, None, 360.0),
    ]


MISSING = output(rc=None, not_started="/usr/bin/ib_write_bw is not installed")
REFUSED = output(rc=1, stdout=NOBODY)


@pytest.mark.parametrize(
    ("server", "client", "end", "said"),
    [
        (MISSING, REFUSED, "gpu-01", "is not installed"),
        (WAITED, MISSING, "gpu-02", "is not installed"),
        (MISSING, MISSING, "gpu-02", "is not installed"),  # one is enough; the other is named next time
        (output(rc=1, stderr=NO_DEVICE), REFUSED, "gpu-01", "Unable to find the Infiniband/RoCE device"),
        (WAITED, output(rc=1, stderr=NO_DEVICE), "gpu-02", "Unable to find the Infiniband/RoCE device"),
        (output(rc=1, stderr="Couldn't listen to port 18700\n"), REFUSED, "gpu-01", "port 18700"),
        (output(rc=1, stderr="Couldn't allocate MR\n"), output(rc=1, stdout="gone\n"), "gpu-01", "gone"),
        (WAITED, REFUSED, "", "the server was waiting"),  # a firewall, or another address
        (output(rc=-9), REFUSED, "", "exit status -9"),
        (WAITED, output(rc=1, stderr="Completion with error\n"), "", "Completion with error"),
        (None, ASKED, "gpu-01", "no answer"),
        (SERVED, None, "gpu-02", "no answer"),
        (None, None, "", "no answer"),
    ],
)
def test_whose_fault_it_is(server: Output | None, client: Output | None, end: str, said: str) -> None:
    result = read(server, client)
    assert (result.outcome, result.value, result.end) == (Outcome.ERROR, None, end)
    assert said in result.said


def test_a_client_that_does_not_end_hangs_and_either_may_be_to_blame() -> None:
    result = read(SERVED, output(rc=None, timed_out=True, seconds=12.7, stdout=printed(395.0)))
    assert (result.outcome, result.value, result.end, result.said) == (
        Outcome.HANG,
        None,
        "",
        "no end after 13 s",
    )


@pytest.mark.parametrize(
    ("client", "said"),
    [
        (output(stdout=printed(395.0)[:-88]), "stops before its end"),
        (output(stdout=printed(395.0), truncated=True), "cut at its size limit"),
        (output(stdout=printed(395.0, pairs=1)), "something other than requested"),
        (output(stdout=printed(395.0, size=65536)), "something other than requested"),
        (output(stdout=printed(float("nan"))), "row not understood"),
        (output(stdout=printed(-1)), "row not understood"),
        (output(stdout=""), "nothing printed"),
        (output(stdout="\x1b[31m" * 9000), "no result"),
    ],
)
def test_an_output_that_is_not_understood_is_an_error(client: Output, said: str) -> None:
    result = read(SERVED, client)
    assert (result.outcome, result.end) == (Outcome.ERROR, "gpu-02")
    assert said in result.said
