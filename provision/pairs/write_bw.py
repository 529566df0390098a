"""ib_write_bw between two nodes, rail after rail: what each end runs, and what their outputs say (pure).

A rail is the port of one name on both nodes. The server's programs wait for the client's in turn; a client
tries again while nobody listens yet, for connecting just to see would be the server's first client.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from provision.checks import perftest
from provision.checks.check import CheckNode, Command, Output, last_words
from provision.checks.limits import limits
from provision.checks.rdma_port import Port, compute_ports, ports_of
from provision.errors import ParseError
from provision.node_names import natural
from provision.pairs.pairing import Pair, Topology
from provision.pairs.results import Outcome, Result

ID = "pair_bandwidth"
SUMMARY = "RDMA bandwidth between pairs of nodes, on each rail: the nodes, links and switches to blame"
SCOPE = "pair"
STAGE = "pairs"
FACTS: tuple[str, ...] = ("hca.ports", "hca.counters", "hca.mtus")

OVERSUBSCRIBED = "gpuprov_oversubscription"  # the inventory variable
_FIRST_PORT = 18700
_SETTLE = 10.0  # seconds that a client may take beside its transfer, and a server waits for it
_SLOWEST = 4  # times as long as at the port's rate a transfer may take; what takes longer hangs
_RETRY = 100.0  # seconds in which servers come up, and are done with rails that hang, all together
NOBODY = "Couldn't connect to"  # what the client says when nobody listens
# What a program says of its own machine, before the other one has a part in it.
_OWN_FAULT = (
    *("not found", "Unable to find the Infiniband", "Port number", "Couldn't get context", "Couldn't listen"),
    *("Couldn't allocate", "Couldn't set the link layer", "Invalid Command or flag"),
)


_Ended = Callable[..., Result]


def version_command(node: CheckNode) -> Command:
    """Asks for the program's version, and so whether it is there."""
    return Command("version", (perftest.argv(node, "", "", 0)[0], "--version"), 15.0)


def version(output: Output) -> str:
    """`6.24` of "Version: 6.24"; "" when that is not what was said."""
    match = re.search(r"\b\d+(?:\.\d+){1,3}\b", output.stdout)
    return match[0] if match and not output.rc else ""


def rails(node: CheckNode) -> list[Port]:
    """The ports of a node that join nodes and are up, in the order of their names. Raises ParseError."""
    stated = node.variables.get("gpuprov_expected_nics")
    named = [str(name) for name in stated] if isinstance(stated, list) else []
    ports = [port for port in compute_ports(ports_of(node), named) if port.active and port.rate]
    return sorted(ports, key=lambda port: natural(port.name))


def shared(server: CheckNode, client: CheckNode) -> list[tuple[Port, Port]]:
    """The rails that both have: (the server's port, the client's)."""
    theirs = {port.name: port for port in rails(client)}
    return [(port, theirs[port.name]) for port in rails(server) if port.name in theirs]


def commands(server: CheckNode, client: CheckNode, address: str) -> tuple[list[Command], list[Command]]:
    """What the server runs, and the client, which reaches the server at `address`; by rail, in one order."""
    serving, asking = [], []
    for number, (its, other) in enumerate(shared(server, client)):
        port = _FIRST_PORT + number
        limit = _SETTLE + _SLOWEST * perftest.seconds(min(float(end.rate or 0) for end in (its, other)))
        argv = perftest.argv(server, its.device, its.number, port)
        serving.append(Command(its.name, argv, limit + _SETTLE))
        argv = (*perftest.argv(client, other.device, other.number, port), address)
        asking.append(Command(other.name, argv, limit, retry_on=NOBODY, retry_for=_RETRY))
    return serving, asking


def expected(fleet: Topology, pair: Pair, ports: tuple[Port, Port], oversubscription: float) -> float:
    """Gb/s that this rail should carry at least: a share of the slower port's rate; between racks, where
    the uplinks carry less than all nodes together can send, so much less."""
    rate = min(float(port.rate or 0) for port in ports)
    least = rate * float(limits("port_limits")["pair_share"]["limit"]) / 100
    return least / oversubscription if fleet.spans(pair) is not False else least


def results(
    pair: Pair,
    number: int,
    asked: Sequence[tuple[str, float]],
    served: Mapping[str, Output],
    asked_for: Mapping[str, Output],
) -> list[Result]:
    """One result per rail of `asked` (its name, what it should reach), in round `number`. `served`: the
    outputs of the server, which is the first of the pair; `asked_for`: those of the client."""
    return [
        _result(pair, number, rail, least, served.get(rail), asked_for.get(rail)) for rail, least in asked
    ]


def _result(
    pair: Pair, number: int, rail: str, least: float, server: Output | None, client: Output | None
) -> Result:
    def ended(outcome: Outcome, end: str = "", said: str = "") -> Result:
        return Result(pair, number, outcome, None, rail, "Gb/s", least, end, said=said)

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
        return _failed(ended, pair, server, client)
    try:
        return Result(pair, number, Outcome.MEASURED, _measured(client), rail, "Gb/s", least)
    except ParseError as error:
        return ended(Outcome.ERROR, guest, error.what)


def _failed(ended: _Ended, pair: Pair, server: Output, client: Output) -> Result:
    """The client ended with an error: whose it is, where a program speaks of its own machine."""
    host, guest = pair
    said = last_words(client)
    if NOBODY in f"{client.stdout}{client.stderr}":
        if server.rc:
            return ended(Outcome.ERROR, host if _own_fault(server) else "", last_words(server))
        return ended(Outcome.ERROR, "", f"{said} (the server was waiting)")
    if _own_fault(client):
        return ended(Outcome.ERROR, guest, said)
    return ended(Outcome.ERROR, host if server.rc and _own_fault(server) else "", said)


def _own_fault(output: Output) -> bool:
    return any(words in f"{output.stdout}{output.stderr}" for words in _OWN_FAULT)


def _measured(client: Output) -> float:
    if client.truncated:
        raise ParseError("ib_write_bw: the output was cut at its size limit", "run it again")
    found = perftest.parse(client.stdout)
    if found.queue_pairs != perftest.QUEUE_PAIRS or perftest.SIZE not in found.average:
        raise ParseError("ib_write_bw: it measured something else than it was asked for", "run it again")
    return found.average[perftest.SIZE]
