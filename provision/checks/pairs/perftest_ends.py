"""A perftest program between two nodes, rail after rail: commands and the end at fault (pure).

A rail is the port of the same name on both nodes. The server's programs wait for the client's in turn. A
client retries until the server listens, since a separate probe would be taken for the server's first client.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from provision.checks.check import CheckNode, Command, Output, last_words
from provision.checks.network.rdma_port import Port, compute_ports, ports_of
from provision.checks.pairs.judge import Metric
from provision.checks.pairs.pairing import Outcome, Pair, Result
from provision.errors import ParseError
from provision.node_names import natural

FACTS: tuple[str, ...] = ("hca.ports", "hca.counters", "hca.mtus")
NO_PORT = "no RDMA port of it is up"
OVERSUBSCRIBED = "gpuprov_oversubscription"  # the inventory variable
NOBODY = "Couldn't connect to"  # the client's message if no server listens

_FIRST_PORT = 18700
_SETTLE = 10.0  # seconds of a client in addition to its transfer, and of a server that waits for it
_SLOWEST = 4  # times the transfer time at the port's rate; a slower transfer counts as hung
_BY_CPU = 75.0  # seconds for a driver in software, since a CPU does not reach its stated rate
_RETRY = 100.0  # total seconds for servers to start and to give up on hanging rails
# Messages about a program's own machine, printed before the other one takes part.
_OWN_FAULT = (
    *("not found", "Unable to find the Infiniband", "Port number", "Couldn't get context", "Couldn't listen"),
    *("Couldn't allocate", "Couldn't set the link layer", "Invalid Command or flag"),
)

Asked = Sequence[tuple[str, float | None]]  # each rail with its expected value
_Read = Callable[[Output], tuple[float, str]]


def version_command(program: str) -> Command:
    """Return the command that prints the program's version, which also proves that it is installed."""
    return Command("version", (program, "--version"), 15.0)


def version(output: Output) -> str:
    """Parse `6.24` from "Version: 6.24", printed with exit status 1; "" for any other output."""
    match = re.match(r"\s*Version: *(\d+(?:\.\d+){1,3})\b", output.stdout)
    return match[1] if match else ""


def rails(node: CheckNode) -> list[Port]:
    """Return the node's active ports that connect nodes, sorted by name. Raises ParseError."""
    stated = node.variables.get("gpuprov_expected_nics")
    named = [str(name) for name in stated] if isinstance(stated, list) else []
    ports = compute_ports(ports_of(node), named)
    ports = [port for port in ports if port.active and port.rate and port.link_layer]
    return sorted(ports, key=lambda port: natural(port.name))


def shared(server: CheckNode, client: CheckNode) -> list[tuple[Port, Port]]:
    """Return the rails of both nodes as (server's port, client's port)."""
    theirs = {port.name: port for port in rails(client)}
    return [(port, theirs[port.name]) for port in rails(server) if port.name in theirs]


def slower(ports: tuple[Port, Port]) -> float:
    """Return the rate of the slower of two ports, in Gb/s."""
    return min(float(port.rate or 0) for port in ports)


def oversubscription(variables: Mapping[str, Any]) -> float:
    """Return a rack's oversubscription by the inventory (default 1); between two, the larger one counts."""
    stated = variables.get(OVERSUBSCRIBED, 1)
    return float(stated) if isinstance(stated, int | float) and stated >= 1 else 1.0


def commands(
    server: CheckNode,
    client: CheckNode,
    address: str,
    argv: Callable[[CheckNode, Port, int, bool], tuple[str, ...]],
    seconds: Callable[[float], float],
) -> tuple[list[Command], list[Command]]:
    """Return the commands of the server and of the client, by rail and in the same order.

    The client reaches the server at `address`. `argv`: arguments for a node, its port, a TCP port, and
    whether either end has a driver in software; `seconds`: transfer time of a card at a rate in Gb/s."""
    serving, asking = [], []
    for number, (its, other) in enumerate(shared(server, client)):
        port = _FIRST_PORT + number
        software = its.software or other.software
        limit = _SETTLE + (_BY_CPU if software else _SLOWEST * seconds(slower((its, other))))
        serving.append(Command(its.name, argv(server, its, port, software), limit + _SETTLE))
        words = (*argv(client, other, port, software), address)
        asking.append(Command(other.name, words, limit, retry_on=NOBODY, retry_for=_RETRY))
    return serving, asking


def results(
    metric: Metric,
    pair: Pair,
    number: int,
    asked: Asked,
    outputs: Mapping[str, Mapping[str, Output]],
    read: _Read,
) -> list[Result]:
    """Return one result per requested rail (name, expected value), in round `number`.

    `outputs`: by node and rail; the first of the pair is the server. `read`: parses a client's output into
    its value and a remark, or raises ParseError."""
    served, asked_for = (outputs.get(node, {}) for node in pair)
    return [
        _result(metric, pair, number, one, served.get(one[0]), asked_for.get(one[0]), read) for one in asked
    ]


def _result(
    metric: Metric,
    pair: Pair,
    number: int,
    asked: tuple[str, float | None],
    server: Output | None,
    client: Output | None,
    read: _Read,
) -> Result:
    rail, expected = asked

    def ended(outcome: Outcome, end: str = "", said: str = "") -> Result:
        return Result(pair, number, outcome, None, rail, metric.unit, expected, end, said=said)

    host, guest = pair
    if client is None or server is None:
        silent = host if server is None else guest
        return ended(Outcome.ERROR, silent if (client is None) != (server is None) else "", "no answer")
    for output, node in ((client, guest), (server, host)):
        if output.not_started:
            return ended(Outcome.ERROR, node, output.not_started)
    if client.timed_out:
        return ended(Outcome.HANG, said=f"no end after {client.seconds:.0f} s")
    if client.rc:
        return ended(Outcome.ERROR, *_fault(pair, server, client))
    try:
        if client.truncated:
            raise ParseError(f"{metric.program}: the output was cut at its size limit", "run it again")
        value, said = read(client)
        return Result(pair, number, Outcome.MEASURED, value, rail, metric.unit, expected, said=said)
    except ParseError as error:
        return ended(Outcome.ERROR, guest, error.what)


def _fault(pair: Pair, server: Output, client: Output) -> tuple[str, str]:
    """Return the node at fault for the client's error ("" if unknown) and the program's message."""
    host, guest = pair
    message = last_words(client)
    if NOBODY in f"{client.stdout}{client.stderr}":
        if server.rc:
            return host if _own_fault(server) else "", last_words(server)
        return "", f"{message} (the server was waiting)"
    if _own_fault(client):
        return guest, message
    return host if server.rc and _own_fault(server) else "", message


def _own_fault(output: Output) -> bool:
    return any(words in f"{output.stdout}{output.stderr}" for words in _OWN_FAULT)
