"""A perftest program between two nodes, rail after rail: the commands of each end, and which end is at fault
when one fails (pure).

A rail is the port of one name on both nodes. The server's programs wait for the client's in turn; a client
tries again while nobody listens yet, for connecting just to see would be the server's first client.
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
NOBODY = "Couldn't connect to"  # what the client says when nobody listens

_FIRST_PORT = 18700
_SETTLE = 10.0  # seconds that a client may take beside its transfer, and a server waits for it
_SLOWEST = 4  # times as long as at the port's rate a transfer may take; what takes longer hangs
_BY_CPU = 75.0  # seconds a driver in software may take: the rate it states is not what its CPU does
_RETRY = 100.0  # seconds in which servers come up, and are done with rails that hang, all together
# What a program says of its own machine, before the other one has a part in it.
_OWN_FAULT = (
    *("not found", "Unable to find the Infiniband", "Port number", "Couldn't get context", "Couldn't listen"),
    *("Couldn't allocate", "Couldn't set the link layer", "Invalid Command or flag"),
)

Asked = Sequence[tuple[str, float | None]]  # each rail with what is expected on it
_Read = Callable[[Output], tuple[float, str]]


def version_command(program: str) -> Command:
    """Asks for the program's version, and so whether it is there."""
    return Command("version", (program, "--version"), 15.0)


def version(output: Output) -> str:
    """`6.24` of "Version: 6.24", which it says with exit status 1; "" when that is not what was said."""
    match = re.match(r"\s*Version: *(\d+(?:\.\d+){1,3})\b", output.stdout)
    return match[1] if match else ""


def rails(node: CheckNode) -> list[Port]:
    """The ports of a node that join nodes and are up, in the order of their names. Raises ParseError."""
    stated = node.variables.get("gpuprov_expected_nics")
    named = [str(name) for name in stated] if isinstance(stated, list) else []
    ports = compute_ports(ports_of(node), named)
    ports = [port for port in ports if port.active and port.rate and port.link_layer]
    return sorted(ports, key=lambda port: natural(port.name))


def shared(server: CheckNode, client: CheckNode) -> list[tuple[Port, Port]]:
    """The rails that both have: (the server's port, the client's)."""
    theirs = {port.name: port for port in rails(client)}
    return [(port, theirs[port.name]) for port in rails(server) if port.name in theirs]


def slower(ports: tuple[Port, Port]) -> float:
    """Gb/s of the slower of two ports."""
    return min(float(port.rate or 0) for port in ports)


def oversubscription(variables: Mapping[str, Any]) -> float:
    """How many times more a node's rack sends than its uplinks carry, as the inventory says; 1 when it does
    not. Between racks both uplinks are used: the larger of both counts."""
    stated = variables.get(OVERSUBSCRIBED, 1)
    return float(stated) if isinstance(stated, int | float) and stated >= 1 else 1.0


def commands(
    server: CheckNode,
    client: CheckNode,
    address: str,
    argv: Callable[[CheckNode, Port, int, bool], tuple[str, ...]],
    seconds: Callable[[float], float],
) -> tuple[list[Command], list[Command]]:
    """What the server runs, and the client, which reaches the server at `address`; by rail, in one order.
    `argv`: the server's words on its port, at a TCP port, and whether a driver in software is at either end;
    `seconds`: how long it takes a card at a rate in Gb/s."""
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
    """One result per rail of `asked` (its name, what is expected), in round `number`. `outputs`: by node
    and rail; the first of the pair is the server. `read`: a client's output → its value and what else
    it says of it, or ParseError."""
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
    """The node at fault for the client's error ("" when unknown), and the program's own words."""
    host, guest = pair
    said = last_words(client)
    if NOBODY in f"{client.stdout}{client.stderr}":
        if server.rc:
            return host if _own_fault(server) else "", last_words(server)
        return "", f"{said} (the server was waiting)"
    if _own_fault(client):
        return guest, said
    return host if server.rc and _own_fault(server) else "", said


def _own_fault(output: Output) -> bool:
    return any(words in f"{output.stdout}{output.stderr}" for words in _OWN_FAULT)
