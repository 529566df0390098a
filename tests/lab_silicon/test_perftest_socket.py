"""ib_write_bw and ib_write_lat between two nodes: server on one, client on the other.
They communicate over TCP within this machine."""

from __future__ import annotations

import re
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.lab_silicon.silicon import Silicon
from tests.support.processes import until

BANDWIDTH = ("ib_write_bw", "-s", "8388608", "-q", "4", "-n", "1000", "--report_gbits")
LATENCY = ("ib_write_lat", "-s", "2", "-n", "5000")
both = pytest.mark.parametrize("program", [BANDWIDTH, LATENCY], ids=["bandwidth", "latency"])
SERVER = "127.0.0.2"  # localhost and 127.0.0.1 stay within a node
AT_HOME = {"SILICON_ROOT": "/"}  # as on a lab node; otherwise the two find each other through a file
SLOW_DISK = """
import pathlib, runpy, sys, time
def write_text(path, text):
    with path.open("w") as file:
        for half in (text[:9], text[9:]):
            time.sleep(0.5)
            file.write(half)
            file.flush()
pathlib.Path.write_text = write_text
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

Start = Callable[..., subprocess.Popen[str]]
Pair = list[Silicon]
Measured = Callable[..., tuple[float, float]]


@pytest.fixture
def port() -> int:
    """Return a free TCP port."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        number: int = probe.getsockname()[1]
        return number


@pytest.fixture
def start(port: int) -> Iterator[Start]:
    """Yield a function that starts a program on a node; running ones are terminated at the end."""
    running: list[subprocess.Popen[str]] = []

    def begin(node: Silicon, *words: str, program: tuple[str, ...] = BANDWIDTH) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            node.command(*program, "-d", "mlx5_0", "-i", "1", "-F", "-p", str(port), *words),
            env=node.environment(**AT_HOME),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def listens(port: int) -> bool:
    """Whether the port has a listener; a test connection would count as the server's first client."""
    with open("/proc/net/tcp") as table:  # noqa: PTH123 - /proc
        return any(f":{port:04X} 00000000:0000 0A" in line for line in table)


def serve(
    start: Start, node: Silicon, port: int, program: tuple[str, ...] = BANDWIDTH
) -> subprocess.Popen[str]:
    server = start(node, program=program)
    until(lambda: listens(port) or server.poll() is not None, 20)
    assert server.poll() is None
    return server


def rate(text: str) -> float:
    """Return the rate of the only row, in Gb/s."""
    (row,) = re.findall(r"^ 8388608 .*$", text, re.MULTILINE)
    return float(row.split()[3])


def median(text: str) -> float:
    """Return the median of the only row, in µs; its form is perftest's REPORT_FMT_LAT to the byte."""
    number = r"[\d.]+ *"
    form = rf"^ 2       5000          ({number})        {number}      ({number})  \t       {number}     \t"
    (row,) = re.findall(rf"{form}{number}\t\t{number}\t\t{number}$", text, re.MULTILINE)
    assert float(row[0]) < float(row[1])
    return float(row[1])


@pytest.fixture
def measured(start: Start, pair: Pair, port: int) -> Measured:
    """Return a function that measures the pair: the client's and the server's result, in Gb/s or µs."""

    def measure(program: tuple[str, ...] = BANDWIDTH) -> tuple[float, float]:
        server = serve(start, pair[0], port, program)
        asked = start(pair[1], SERVER, program=program).communicate(timeout=30)[0]
        told = server.communicate(timeout=30)[0]
        assert server.returncode == 0, told
        read = rate if program is BANDWIDTH else median
        return read(asked), read(told)

    return measure


def test_two_healthy_nodes_fill_their_ports(measured: Measured) -> None:
    asked, told = measured()
    assert 390 < asked < 400
    assert told == pytest.approx(asked, rel=0.01)


@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize(
    ("fault", "share"),
    [("link_slow peer=gpu-0{other} factor=0.4", 0.4), ("nic_slow nic=0 factor=0.5", 0.5)],
    ids=["a slow link", "the slower card"],
)
def test_what_slows_the_pair_whichever_end_has_it(
    end: int, fault: str, share: float, pair: Pair, measured: Measured
) -> None:
    pair[end].break_(fault.format(other=2 - end))
    assert measured()[0] == pytest.approx(share * 393.6, rel=0.01)


def test_a_slow_link_to_another_node_is_not_this_one(pair: Pair, measured: Measured) -> None:
    pair[0].break_("link_slow peer=gpu-03 factor=0.4")
    assert measured()[0] > 390


def test_two_healthy_nodes_are_as_late_as_their_cards(measured: Measured) -> None:
    asked, told = measured(LATENCY)
    assert asked == pytest.approx(1.87, rel=0.05)
    assert told == pytest.approx(asked, rel=0.02)


@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("fault", ["link_late peer=gpu-0{other} factor=5", "peers_late factor=5"])
def test_a_late_link_is_late_whichever_end_has_it_and_as_fast_as_ever(
    end: int, fault: str, pair: Pair, measured: Measured
) -> None:
    pair[end].break_(fault.format(other=2 - end))
    assert measured(LATENCY)[0] == pytest.approx(5 * 1.87, rel=0.05)
    assert measured()[0] > 390


@pytest.mark.parametrize("fault", ["link_late peer=gpu-03", "link_slow peer=gpu-02", "nic_slow nic=0"])
def test_what_does_not_make_this_link_late(fault: str, pair: Pair, measured: Measured) -> None:
    pair[0].break_(fault)
    assert measured(LATENCY)[0] == pytest.approx(1.87, rel=0.05)


@both
@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("fault", ["peers_hang", "link_hang peer=gpu-0{other}"])
def test_what_hangs_does_so_until_it_is_ended(
    end: int, fault: str, program: tuple[str, ...], start: Start, pair: Pair, port: int
) -> None:
    pair[end].break_(fault.format(other=2 - end))
    server = serve(start, pair[0], port, program)
    client = start(pair[1], SERVER, program=program)
    with pytest.raises(subprocess.TimeoutExpired):
        client.wait(2.0)  # healthy, it takes half a second
    client.terminate()
    assert "#bytes" not in client.communicate(timeout=60)[0]
    server.terminate()
    assert "#bytes" not in server.communicate(timeout=60)[0]


@both
def test_when_nobody_listens_the_client_says_so_at_once(
    program: tuple[str, ...], start: Start, pair: Pair
) -> None:
    client = start(pair[1], SERVER, program=program)
    said = client.communicate(timeout=30)[0]
    assert client.returncode == 1
    assert f"Couldn't connect to {SERVER}:" in said


def test_a_server_whose_port_is_taken_says_so(start: Start, pair: Pair, port: int) -> None:
    serve(start, pair[0], port)
    second = start(pair[1])
    assert f"Couldn't listen to port {port}" in second.communicate(timeout=30)[0]
    assert second.returncode == 1


@pytest.mark.parametrize("root", ["/", None], ids=["seen by its socket", "seen by its words"])
def test_a_client_of_the_same_node_finds_a_server_as_soon_as_it_is_seen(
    root: str | None, node: Callable[..., Silicon], port: int
) -> None:
    one = node()
    words = (*BANDWIDTH[1:], "-d", "mlx5_0", "-p", str(port))
    at = {"SILICON_ROOT": root} if root else {}
    python, *run = one.command(BANDWIDTH[0], *words)
    server = subprocess.Popen(
        [python, "-c", SLOW_DISK, *(word for word in run if word not in ("-I", "-S"))],
        env=one.environment(**at),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        while "Waiting" not in server.stdout.readline() if root is None else not listens(port):
            assert server.poll() is None
        client = one.run(BANDWIDTH[0], *words, "localhost", timeout=60, **at)
        assert client.returncode == 0, client.stderr
        server.communicate(timeout=30)
        assert server.returncode == 0
    finally:
        server.kill()
        server.communicate()


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.0\r\n\r\n",
        b"{}\n",
        b'{"name": 1, "rate": "x"}\n',
        b'{"name": "n", "latency": 2}\n',
    ],
)
def test_who_is_no_client_does_not_end_the_server(said: bytes, start: Start, pair: Pair, port: int) -> None:
    server = serve(start, pair[0], port)
    with socket.create_connection((SERVER, port), 10) as stranger:
        stranger.sendall(said)
    client = start(pair[1], SERVER)
    assert rate(client.communicate(timeout=30)[0]) > 390
    assert server.wait(30) == 0


@pytest.mark.parametrize("reset", [False, True])
def test_a_client_that_dies_ends_its_server_with_an_error(
    reset: bool, start: Start, pair: Pair, port: int
) -> None:
    server = serve(start, pair[0], port)
    with socket.create_connection((SERVER, port), 10) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", reset, 0))
        client.sendall(b'{"name": "gpu-02", "rate": 390}\n')
        client.recv(65536)
    said = server.communicate(timeout=30)[0]
    assert server.returncode == 1
    assert "BW average" not in said
    assert "Traceback" not in said
