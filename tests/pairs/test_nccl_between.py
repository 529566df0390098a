"""NCCL between nodes: expected rates, and verdicts on any output."""

from __future__ import annotations

from typing import Any

import pytest

from provision.checks.check import CheckNode, Output
from provision.checks.pairs import nccl_between
from provision.checks.pairs.pairing import Outcome, Result
from provision.checks.thresholds import Threshold, for_sku
from provision.errors import ParseError
from tests.support.nccl_world import HEAD, ranks, table
from tests.support.pair_nodes import facts, output

PAIR = ("gpu-01", "gpu-02")
HOSTS = ("h1", "h2")
NAMES = {"10.0.0.1": "gpu-01", "h1": "gpu-01", "10.0.0.2": "gpu-02", "h2": "gpu-02"}


def read(one: Output | None, gpus: int = 16) -> Result:
    found = nccl_between.result(PAIR, 2, 150.0, one, gpus, NAMES)
    assert (found.nodes, found.round, found.expected, found.unit, found.rail) == (PAIR, 2, 150.0, "GB/s", "")
    return found


def node(count: int = 8, sku: str | None = "h100-sxm", **more: Any) -> CheckNode:
    known = {"gpu": {"count": count, "sku": sku}}
    return CheckNode("gpu-01", known, more.pop("variables", {}), facts(**more))


# --- commands ---


def test_the_program_is_that_of_one_node_with_fewer_iterations() -> None:
    program = nccl_between.program(node(), others_have_ports=True)
    words = " ".join(program.argv)
    assert words.startswith("/usr/bin/all_reduce_perf -b 8G -e 16G -f 2 -g 8 ")
    assert "-n 5 " in words
    assert words.endswith("-c 1"), "results are checked"
    assert program.env["NCCL_NET"] == "IB", "TCP would only be slow"
    assert program.env["NCCL_DEBUG_FILE"] == "/dev/stderr", "not into the table"


@pytest.mark.parametrize(
    ("variables", "ports", "net"),
    [({}, False, None), ({}, True, "IB"), ({"gpuprov_nccl_net": "AWS Libfabric"}, True, "AWS Libfabric")],
)
def test_the_network_that_nccl_must_use(variables: dict[str, Any], ports: bool, net: str | None) -> None:
    assert nccl_between.program(node(variables=variables), ports).env.get("NCCL_NET") == net


def test_more_nodes_have_more_time() -> None:
    assert nccl_between.deadline(1000) > nccl_between.deadline(2) + 100


# --- expected rates ---

FEW = ("mlx5_0", "mlx5_1")
EIGHT = tuple(f"mlx5_{number}" for number in range(8))
H100 = for_sku("h100-sxm")


def test_it_should_reach_a_share_of_what_the_cards_carry_together() -> None:
    assert nccl_between.carries(node(devices=FEW), H100) == pytest.approx(0.75 * 2 * 400 / 8)
    assert nccl_between.carries(node(devices=EIGHT[:4], rate=200), H100) == pytest.approx(0.75 * 800 / 8)


def test_and_no_more_than_its_gpus_reach_among_themselves() -> None:
    ring = H100["nccl_all_reduce.busbw_ring_8gpu"].limit
    assert ring < 8 * 400 / 8
    assert nccl_between.carries(node(devices=EIGHT), H100) == pytest.approx(0.75 * float(ring))


def test_without_a_ring_limit_the_plain_one_caps() -> None:
    one = Threshold("nccl_all_reduce.busbw_8gpu", 40.0, "GB/s", "at_least", "measured", "here", "2026-11")
    assert nccl_between.carries(node(devices=FEW), {one.metric: one}) == pytest.approx(30.0)


def test_one_gpu_has_no_others_to_be_capped_by() -> None:
    assert nccl_between.carries(node(1, devices=FEW), {}) == pytest.approx(75.0)


@pytest.mark.parametrize(
    ("one", "known"),
    [
        (node(sku=None), {}),  # the rate of its GPUs is unknown
        (node(3), H100),  # and so is that of three GPUs
        (node(devices=()), H100),
        (node(state="DOWN"), H100),
    ],
)
def test_nothing_is_expected_where_nothing_is_known(one: CheckNode, known: dict[str, Threshold]) -> None:
    assert nccl_between.carries(one, known) is None


def test_facts_that_cannot_be_read_are_no_absence_of_ports() -> None:
    silent = CheckNode("gpu-01", {"gpu": {"count": 8, "sku": None}}, {}, {}, {"hca": "permission denied"})
    with pytest.raises(ParseError, match="permission denied"):
        nccl_between.carries(silent, {})


# --- results ---


def test_what_was_measured_is_the_largest_size() -> None:
    found = read(output(stdout=table(HOSTS, 380.0)))
    assert (found.outcome, found.value, found.size) == (Outcome.MEASURED, 380.0, 2)
    assert (found.end, found.said) == ("", "")


def test_a_group_says_how_many_nodes_it_had() -> None:
    nodes = tuple(f"gpu-{number}" for number in range(6))
    found = nccl_between.result(nodes, 0, None, output(stdout=table(nodes, 50.0)), 48, {})
    assert (found.outcome, found.value, found.size, found.nodes) == (Outcome.MEASURED, 50.0, 6, nodes)


WHOLE = table(HOSTS)


@pytest.mark.parametrize(
    ("one", "outcome", "said"),
    [
        # A build without MPI measures each node alone, which is no measurement between nodes.
        (output(stdout=table(["h1"], 470.0) + table(["h2"], 470.0)), Outcome.NOT_RUN, "built without MPI"),
        (output(stdout=table(["h1"], 470.0)), Outcome.NOT_RUN, "ran on 8 GPUs, not on the 16 of all nodes"),
        (
            output(stdout=table(HOSTS, wrong="3"), rc=1),
            Outcome.ERROR,
            "wrong elements: silent data corruption",
        ),
        (output(stdout=table(HOSTS, wrong="N/A")), Outcome.ERROR, "did not check its results"),
        (
            output(stdout=WHOLE[: WHOLE.index("# Out of bounds")], rc=137),
            Outcome.ERROR,
            "stops before its end",
        ),
        (output(stdout=WHOLE, truncated=True), Outcome.ERROR, ""),
    ],
)
def test_what_is_no_measurement_of_all_is_no_rate_however_fast(
    one: Output, outcome: Outcome, said: str
) -> None:
    found = read(one)
    assert (found.outcome, found.value, found.end) == (outcome, None, "")
    assert said in found.said
    assert ("validation_tools_mpi" in found.said) == ("without MPI" in said)


BEGAN = HEAD + ranks(HOSTS)
NCCL = "h2: Test NCCL failure common.cu:1080 'unhandled system error (run with NCCL_DEBUG=INFO)'\n"
CUDA = "h2: Test CUDA failure common.cu:1001 'out of memory'\n"


@pytest.mark.parametrize(
    ("failure", "end", "said"),
    [
        (NCCL, "", "unhandled system error"),  # the failing end of NCCL need not be the faulty one
        (CUDA, "gpu-02", "out of memory"),
        (CUDA.replace("h2", "  h2", 1), "gpu-02", "out of memory"),
        (CUDA.replace("h2", "elsewhere"), "", "out of memory"),
        (CUDA.replace("h2", "x" * 500), "", "out of memory"),
    ],
)
def test_a_failure_after_the_header_is_an_error(failure: str, end: str, said: str) -> None:
    found = read(output(stdout=BEGAN + failure, rc=3))
    assert (found.outcome, found.value, found.end) == (Outcome.ERROR, None, end)
    assert said in found.said


def test_a_hang_says_so_and_where_it_has_not_begun_what_may_be_why() -> None:
    late = read(output(stdout=BEGAN, rc=None, timed_out=True, seconds=181.2))
    assert (late.outcome, late.value, late.end, late.said) == (Outcome.HANG, None, "", "no end after 181 s")
    early = read(output(stdout="", rc=None, timed_out=True, seconds=181.2))
    assert early.outcome is Outcome.HANG
    assert "MPI's daemons may not reach one another over TCP" in early.said


WARNED = "[n3:00900] plm:ssh: Warning: setpgid(903,903) failed in parent with errno=Permission denied(13)\n"
REFUSED = (
    "root@10.0.0.2: Permission denied (publickey).\n"
    "gpuprov: ssh to 10.0.0.2 ended with status 255\n"
    "--------------------------------------------------------------------------\n"
    "ORTE was unable to reliably start one or more daemons.\n"
)


@pytest.mark.parametrize("before", ["", WARNED])
def test_a_node_that_refuses_ssh_is_named(before: str) -> None:
    found = read(output(stderr=before + REFUSED, rc=1))
    assert (found.outcome, found.end) == (Outcome.ERROR, "gpu-02")
    assert "Permission denied (publickey)" in found.said
    assert "gpuprov: ssh to 10.0.0.2 ended with status 255" in found.said
    assert "setpgid" not in found.said


@pytest.mark.parametrize(
    "said",
    [
        "ssh: connect to host 10.0.0.2 port 22: No route to host",
        "ssh: Could not resolve hostname gpu-02: Name or service not known",
        "Connection closed by 10.0.0.2 port 22",
        "Host key verification failed.",
    ],
)
def test_why_ssh_did_not_get_there_is_told(said: str) -> None:
    found = read(output(stderr=f"{said}\r\ngpuprov: ssh to 10.0.0.2 ended with status 255\n", rc=1))
    assert (found.outcome, found.end) == (Outcome.ERROR, "gpu-02")
    assert found.said == f"{said}; gpuprov: ssh to 10.0.0.2 ended with status 255"


@pytest.mark.parametrize(
    "said",
    [
        "gpuprov: ssh to 10.0.0.9 ended with status 255\n",  # an address of no node
        "gpuprov: ssh to 10.0.0.1 ended with status 255\ngpuprov: ssh to 10.0.0.2 ended with status 255\n",
        "srun: error: Unable to allocate resources: Requested nodes are busy\n",
        "There are not enough slots available in the system\n",
        "x" * 100_000,
        "\x1b[2J\x00\n" * 50,
        "",
    ],
)
def test_what_was_not_started_is_nobodys_fault(said: str) -> None:
    found = read(output(stderr=said, rc=1))
    assert (found.outcome, found.value, found.end) == (Outcome.NOT_RUN, None, "")
    assert found.said
    assert found.said.isprintable()
    assert len(found.said) <= 300
    if "srun" in said:
        assert "Requested nodes are busy" in found.said


def test_no_answer_and_a_program_that_is_missing_are_of_the_first_node() -> None:
    assert (read(None).outcome, read(None).end, read(None).said) == (Outcome.ERROR, "gpu-01", "no answer")
    missing = read(output(rc=None, not_started="mpirun is not installed"))
    assert (missing.outcome, missing.end) == (Outcome.ERROR, "gpu-01")
    assert missing.said == "mpirun is not installed"


@pytest.mark.parametrize(
    "text",
    [
        "# Using devices",
        "# Using devices\n{}",
        table(HOSTS).replace("380.00", "nan"),
        table(HOSTS).replace("380.00", "-1"),
        table(HOSTS).replace("380.00", "1e999"),
        table(HOSTS).replace("GB/s", "MB/s"),
        table(HOSTS).replace("busbw", "\x1b[2J"),
        "# Using devices\n" + "# Rank 0 \n" * 5000,
        '{"x": "# Using devices"}',
    ],
)
def test_garbage_is_an_error_and_never_a_rate(text: str) -> None:
    found = read(output(stdout=text))
    assert (found.outcome, found.value) == (Outcome.ERROR, None)
    assert found.said.isprintable()
    assert len(found.said) <= 300


@pytest.mark.parametrize(
    "box",
    [
        "prterun was unable to launch the specified application as it lacked\n"
        "permissions to execute an executable:\n\n   Executable: /usr/bin/all_reduce_perf\n   Node: h1\n\n"
        "while attempting to start process rank 0.\n",
        "prterun was unable to find the specified executable file, and therefore did\n"
        "not launch the job.\n\n   Node:       h1\n   Executable: /usr/bin/all_reduce_perf\n",
    ],
)
def test_a_missing_program_blames_its_node_and_not_the_ones_mpirun_left(box: str) -> None:
    """Recorded with Open MPI 5.0.7 (Debian 13): mpirun then ends its daemons, and ssh to the others fails."""
    line = "-" * 74 + "\n"
    stderr = f"{line}{box}{line}gpuprov: ssh to 10.0.0.2 ended with status 1\n"
    found = read(output("", rc=183, stderr=stderr))
    assert (found.outcome, found.end) == (Outcome.ERROR, "gpu-01")
    assert found.said.startswith("mpirun could not start /usr/bin/all_reduce_perf")
