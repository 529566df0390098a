"""Tests of network_ports: faults of RDMA ports, and harmless look-alikes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from provision.checks.judge import Verdict
from provision.errors import ParseError
from tests.support.rdma_cards import COUNTERS, DAY, Cards

CABLE, CONFIGURE = "reseat or check cable", "fix configuration"
EIGHT = {"gpuprov_expected_nics": 8}
NAMES = [f"mlx5_{i}" for i in range(8)]
Change = Callable[[Cards], Any]


@pytest.fixture
def cards() -> Cards:
    return Cards()


def ports(numbers: Sequence[int], **changes: Any) -> Change:
    return lambda cards: [cards.ports[number].update(changes) for number in numbers]


def counters(number: int, uptime: int = 20 * DAY, **counts: Any) -> Change:
    def change(cards: Cards) -> None:
        cards.uptime = uptime
        cards.counters[number].update(counts)

    return change


def declared(layer: str, **more: Any) -> list[dict[str, Any]]:
    return [{"device": name, "link_layer": layer, **more} for name in NAMES]


# --- healthy ports and look-alikes


def test_a_healthy_node_passes_and_says_that_nobody_declared_how_many(cards: Cards) -> None:
    findings = cards.judge()
    assert any("8 ports up" in f.message and f.verdict is Verdict.PASS for f in findings)
    assert any("not compared" in f.message and f.verdict is Verdict.SKIP for f in findings)


@pytest.mark.parametrize(
    ("change", "variables"),
    [
        (ports([]), {}),
        (ports([]), EIGHT),
        # Real ports after weeks of traffic: a few old errors.
        (counters(0, excessive_buffer_overrun_errors=15, port_rcv_errors=14, link_downed=1), {}),
        (counters(0, symbol_error=4000, link_downed=3), {}),
        (counters(1, 3600, link_downed=1), {}),
        # At 400 Gb/s the limit is 1,440 errors an hour.
        (counters(4, 2 * DAY, symbol_error=400 * 36 // 10 * 48), {}),
        *(
            (counters(4, uptime, excessive_buffer_overrun_errors=11, port_rcv_errors=60), {})
            for uptime in (60, 3600, 5 * 3600)
        ),
        (ports([8], state="DOWN", phys_state="Polling", rate=10), EIGHT),
        (ports(range(9), rate=200, link="2X NDR"), {}),
        (lambda cards: [card.update(link_width=8) for card in cards.cards], {}),
        (lambda cards: [port.update(sm_lid=at + 1) for at, port in enumerate(cards.ports[:8])], {}),
        (Cards.roce, EIGHT),
        (lambda cards: cards.problems.update({"hca.mtus": "ibv_devinfo is not installed"}), {}),
    ],
    ids=[
        *(
            "healthy",
            "eight declared",
            "errors of weeks",
            "three flaps",
            "one flap",
            "as many as are allowed",
        ),
        *("a minute after boot", "an hour after boot", "hours after boot", "a storage card is not counted"),
        *("a split cable", "wired so", "a subnet manager for each rail", "RoCE", "no MTU was declared"),
    ],
)
def test_what_only_looks_broken(change: Change, variables: dict[str, Any], cards: Cards) -> None:
    change(cards)
    assert cards.flagged(**variables) == []


def test_a_port_that_is_switched_off_is_not_judged(cards: Cards) -> None:
    cards.ports[2].update(state="DOWN", phys_state="Disabled", rate=10, link=None, sm_lid=0)
    assert cards.flagged(**EIGHT) == []
    assert any("mlx5_2" in f.message and f.verdict is Verdict.SKIP for f in cards.judge(**EIGHT))


OFF = {"state": "DOWN", "phys_state": "Disabled", "rate": 10, "link": None, "sm_lid": 0}


def test_a_node_with_all_its_ports_switched_off_is_not_healthy(cards: Cards) -> None:
    ports(range(8), **OFF)(cards)
    assert cards.flagged() == cards.flagged(**EIGHT) == [("warn", "node", "state", CONFIGURE)]
    assert any("all 8 ports are switched off" in f.message for f in cards.judge())
    found = cards.flagged(rdma_expected_ports=declared("InfiniBand"))
    assert found == [("fail", name, "state", CONFIGURE) for name in NAMES]


def test_a_declared_port_that_is_switched_off_fails_beside_others_that_are_up(cards: Cards) -> None:
    ports([2], **OFF)(cards)
    found = cards.flagged(rdma_expected_ports=declared("InfiniBand"))
    assert found == [("fail", "mlx5_2", "state", CONFIGURE)]
    assert not any("not judged" in f.message for f in cards.judge(rdma_expected_ports=declared("InfiniBand")))


def test_roce_interfaces_that_are_all_down_are_told_if_anything_expects_them(cards: Cards) -> None:
    """The GID of an address persists while the interface is down: drivers/infiniband/core/roce_gid_mgmt.c."""
    cards.roce()
    ports(range(8), state="DOWN", phys_state="Disabled", netdev_up=False)(cards)
    assert cards.flagged() == [("warn", "node", "state", CONFIGURE)]
    found = cards.flagged(rdma_expected_ports=declared("Ethernet"))
    assert found == [("fail", name, "state", CONFIGURE) for name in NAMES]
    ports(range(8), roce_v2_ipv4="")(cards)
    assert cards.flagged(**EIGHT) == [("warn", "node", "state", CONFIGURE)]
    assert cards.flagged() == [], "a laboratory's cards: no address, nothing declared"


def test_a_node_without_cards_is_skipped_unless_some_are_declared(cards: Cards) -> None:
    cards.ports, cards.counters, cards.cards, cards.functions, cards.mtus = [], [], [], [], {}
    assert [f.verdict for f in cards.judge()] == [Verdict.SKIP]
    assert cards.flagged(**EIGHT) == [("fail", "node", "hcas", CABLE)]


# --- faults


def test_a_missing_card(cards: Cards) -> None:
    del cards.ports[3]
    lost = ("fail", "hca@0000:1b:00.0", "hcas", "investigate")
    assert cards.flagged(**EIGHT) == [lost], "it is on the bus still, and has no driver"
    del cards.functions[3]
    assert cards.flagged(**EIGHT) == [("fail", "node", "hcas", CABLE)]
    assert cards.flagged(gpuprov_expected_nics=NAMES) == [("fail", "mlx5_3", "hcas", CABLE)]
    assert cards.flagged() == [], "nobody declared eight: the fleet may know"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (ports([2], state="DOWN", phys_state="Polling"), ("fail", "mlx5_2", "state", CABLE)),
        (ports([2], state="DOWN", phys_state="LinkErrorRecovery"), ("fail", "mlx5_2", "state", CABLE)),
        (ports([2], state="INIT"), ("fail", "mlx5_2", "state", CONFIGURE)),
        (ports([2], state="ARMED"), ("fail", "mlx5_2", "state", CONFIGURE)),
        (ports([5], rate=100, link="1X NDR"), ("fail", "mlx5_5", "rate", CABLE)),
        (ports([1], sm_lid=0), ("fail", "mlx5_1", "sm_lid", CONFIGURE)),
        (ports([2], pkeys="0x7fff"), ("fail", "mlx5_2", "pkeys", CONFIGURE)),
        (lambda cards: cards.mtus.update({"mlx5_3/1": 2048}), ("fail", "mlx5_3", "mtu", CONFIGURE)),
        (lambda cards: cards.cards[6].update(link_width=8), ("fail", "mlx5_6", "pcie_width", CABLE)),
        *(
            (counters(1, 3600, link_downed=count), (verdict, "mlx5_1", "link_downed", action))
            for verdict, action, counts in (("warn", "watch", (2, 4)), ("fail", CABLE, (5, 60)))
            for count in counts
        ),
        (
            counters(4, 2 * DAY, symbol_error=400 * 36 // 10 * 48 + 1),
            ("fail", "mlx5_4", "symbol_error", CABLE),
        ),
        *(  # soon after boot, and with an impossible uptime, neither of which may relax a limit
            (counters(4, uptime, port_rcv_errors=5000), ("fail", "mlx5_4", "port_rcv_errors", CABLE))
            for uptime in (60, 3600, 5 * 3600, 10**400)
        ),
        # A narrow slot or a card without a driver would go unnoticed.
        *(
            (
                lambda cards, name=name: cards.problems.update({name: "permission denied"}),
                ("error", "node", "", "run again"),
            )
            for name in ("hca.functions", "firmware.rdma")
        ),
        # Recorded from ibv_devinfo 56.1 (Debian 13) with cards in sysfs but without ib_uverbs.
        (
            lambda cards: cards.problems.update(
                {"hca.mtus": "ibv_devinfo answered: Failed to get IB devices list: Function not implemented"}
            ),
            ("error", "node", "", "investigate"),
        ),
    ],
)
def test_each_fault_has_its_port_and_action(change: Change, expected: tuple[str, ...], cards: Cards) -> None:
    change(cards)
    assert cards.flagged() == [expected]


def test_what_roce_needs(cards: Cards) -> None:
    cards.roce()
    cards.ports[2]["roce_v2_ipv4"] = "5"
    cards.ports[3].update(carrier_downs=9)
    cards.ports[4].update(state="DOWN", phys_state="Disabled")  # also the state without carrier
    cards.ports[5].update(state="DOWN", phys_state="Disabled", netdev_up=False)
    cards.uptime = DAY
    assert cards.flagged() == [
        ("fail", "mlx5_2", "gid", CONFIGURE),
        ("fail", "mlx5_3", "link_downed", CABLE),
        ("fail", "mlx5_4", "state", CABLE),
    ]


def test_what_is_declared_wins_over_the_peers(cards: Cards) -> None:
    ports(range(8), rate=200)(cards)
    found = cards.flagged(rdma_expected_ports=declared("InfiniBand", rate=400))
    assert found == [("fail", name, "rate", CABLE) for name in NAMES]
    cards.roce()
    found = cards.flagged(rdma_expected_ports=declared("Ethernet"), rdma_roce_gid_index=5, rdma_mtu=4096)
    assert {one[:3] for one in found if one[0] == "fail"} == {("fail", name, "gid") for name in NAMES}


# --- rates over the last window


def seen_earlier(number: int, hours: float, uptime: int = 52 * DAY, **counts: int) -> Change:
    """Return a change: the health program stored these counters of one port so many hours ago."""

    def change(cards: Cards) -> None:
        cards.uptime = uptime
        rows = [dict(row) for row in cards.counters]
        rows[number].update(counts)
        cards.earlier = [{**row, "uptime": uptime - round(hours * 3600)} for row in rows]

    return change


@pytest.mark.parametrize(
    ("hours", "then", "now", "expected"),
    [
        (3, 3, 93, ("fail", CABLE)),  # all within one morning, after 52 days of uptime
        (26, 3, 93, ("fail", CABLE)),
        (26, 3, 6, ("warn", "watch")),
        (26, 200, 255, ("fail", CABLE)),
        (26, 255, 255, ("warn", "watch")),  # the counter is saturated
        (26, 90, 90, None),  # weeks old, and repaired since
        (26, 90, 1, None),  # the counters were reset, and no rate is negative
        (26, 90, 10, ("fail", CABLE)),
    ],
)
def test_link_losses_are_judged_over_the_last_day(
    hours: float, then: int, now: int, expected: tuple[str, str] | None, cards: Cards
) -> None:
    seen_earlier(1, hours, link_downed=then)(cards)
    cards.counters[1]["link_downed"] = now
    wanted = [(expected[0], "mlx5_1", "link_downed", expected[1])] if expected else []
    assert cards.flagged() == wanted


def test_errors_of_the_last_day_are_not_divided_by_the_uptime(cards: Cards) -> None:
    seen_earlier(4, 25, symbol_error=100)(cards)
    cards.counters[4]["symbol_error"] = 60000  # 48 an hour since boot, 2,400 an hour since yesterday
    assert cards.flagged() == [("fail", "mlx5_4", "symbol_error", CABLE)]
    seen_earlier(4, 25, symbol_error=60000)(cards)
    assert cards.flagged() == []


@pytest.mark.parametrize(("then", "expected"), [(2, True), (5, False), (15, False), (None, False)])
def test_a_counter_of_4_bits_is_told_if_it_filled_since_the_earlier_look(
    then: int | None, expected: bool, cards: Cards
) -> None:
    """The counter saturates at 15 (drivers/infiniband/core/sysfs.c): a day never has ten errors an hour."""
    counters(4, local_link_integrity_errors=15)(cards)
    if then is not None:
        seen_earlier(4, 25, local_link_integrity_errors=then)(cards)
    found = [("warn", "mlx5_4", "local_link_integrity_errors", "watch")]
    assert cards.flagged(**EIGHT) == (found if expected else [])


def traffic(cards: Cards, *, repeated: int, packets: Sequence[int]) -> None:
    """Set the packets of each port, and the retransmissions of mlx5_3, in the last ten hours."""
    for row in cards.counters:
        row.update(
            packet_seq_err=0, out_of_sequence=0, np_cnp_sent=0, port_rcv_packets=7, port_xmit_packets=7
        )
    seen_earlier(3, 10)(cards)
    for row, count in zip(cards.counters, packets, strict=False):
        row.update(port_rcv_packets=7 + count, port_xmit_packets=7 + count)
    cards.counters[3].update(packet_seq_err=repeated, out_of_sequence=10**9, np_cnp_sent=10**9)


def test_congestion_notifications_far_above_the_other_ports_are_told_and_not_judged(cards: Cards) -> None:
    traffic(cards, repeated=0, packets=[10**9] * 8)
    (told,) = [f for f in cards.judge() if f.metric == "np_cnp_sent"]
    assert (told.verdict, told.device, told.value) == (Verdict.SKIP, "mlx5_3", 10**8)
    assert "no limit was published" in told.message
    assert cards.flagged() == []
    for row in cards.counters[:8]:
        row["np_cnp_sent"] = 10**9
    assert not any(f.metric == "np_cnp_sent" for f in cards.judge()), "the fabric, and no part of this node"
    cards.earlier = None
    cards.counters[3]["np_cnp_sent"] = 10**12
    assert not any(f.metric == "np_cnp_sent" for f in cards.judge())


def test_retransmissions_are_judged_since_the_earlier_look_against_the_best_port(cards: Cards) -> None:
    traffic(cards, repeated=30_000, packets=[10**9] * 8)
    assert cards.flagged() == [("warn", "mlx5_3", "packet_seq_err", "watch")]
    for row in cards.counters[:8]:
        row["packet_seq_err"] = 20_000
    assert cards.flagged() == [], "all ports: the fabric, and no part of this node"
    cards.earlier = None
    assert cards.flagged() == []


@pytest.mark.parametrize(
    ("others", "flagged"),
    [
        (0, False),  # only this port had traffic
        (10**6, False),
        (10**8, True),  # enough traffic for a comparison
        (10**9, True),
        (10**11, True),  # it carries little traffic because of its fault
    ],
)
def test_a_busy_port_is_not_blamed_beside_idle_ones(others: int, flagged: bool, cards: Cards) -> None:
    traffic(cards, repeated=30_000, packets=[others] * 3 + [10**9] + [others] * 4)
    assert cards.flagged() == [("warn", "mlx5_3", "packet_seq_err", "watch")] * flagged


def test_a_port_with_more_traffic_may_repeat_more(cards: Cards) -> None:
    traffic(cards, repeated=30_000, packets=[10**9] * 3 + [5 * 10**9] + [10**9] * 4)
    for number in (0, 1, 2, 4, 5, 6, 7):
        cards.counters[number]["packet_seq_err"] = 600  # 0.6 per million; mlx5_3 repeats 6 per million
    assert cards.flagged() == []


def test_without_counters_of_packets_retransmissions_are_not_compared(cards: Cards) -> None:
    traffic(cards, repeated=30_000, packets=[10**9] * 8)
    for row in cards.earlier:
        del row["port_rcv_packets"], row["port_xmit_packets"]  # from a health program without them
    assert cards.flagged() == []


@pytest.mark.parametrize(
    ("days", "own", "peer", "expected"),
    [
        *((52, 93, peer, ["mlx5_1"]) for peer in (0, 3, 20)),
        (52, 40, 0, ["mlx5_1"]),
        (52, 90, 90, NAMES),  # almost two a day is too many, even if the peers match
        (52, 40, 40, []),  # a switch restarted
        (180, 40, 0, []),  # over half a year
        (52, 4, 0, []),
    ],
)
def test_without_an_earlier_look_losses_are_judged_since_boot_and_beside_the_best_peer(
    days: int, own: int, peer: int, expected: list[str], cards: Cards
) -> None:
    cards.uptime = days * DAY
    for number in range(8):
        cards.counters[number]["link_downed"] = peer
    cards.counters[1]["link_downed"] = own
    assert cards.flagged() == [("warn", name, "link_downed", "watch") for name in expected]
    told = [f for f in cards.judge() if "it is unknown when" in f.message]
    unjudged = [
        name
        for number, name in enumerate(NAMES)
        if (own if number == 1 else peer) >= 5 and name not in expected
    ]
    assert [f.verdict for f in told] == [Verdict.SKIP] * bool(unjudged)
    assert all(name in told[0].message for name in unjudged)


def test_old_losses_are_not_told_once_the_last_day_is_known(cards: Cards) -> None:
    for number in range(8):
        cards.counters[number]["link_downed"] = 90
    seen_earlier(1, 25)(cards)
    assert cards.flagged() == []
    assert not any("it is unknown when" in f.message for f in cards.judge())


def test_link_losses_in_the_kernel_log_are_of_the_last_day(cards: Cards) -> None:
    cards.roce()
    cards.uptime = 52 * DAY
    cards.link_downs = {"eth3": 6, "eth4": 3, "eth5": 1, "enp1s0": 50}
    assert cards.flagged() == [
        ("fail", "mlx5_3", "link_downed", CABLE),
        ("warn", "mlx5_4", "link_downed", "watch"),
    ]


def test_an_interfaces_losses_are_compared_with_its_own_earlier_ones(cards: Cards) -> None:
    cards.roce()
    seen_earlier(2, 26)(cards)
    for row in cards.earlier:
        row["carrier_downs"] = 2000
    for port in cards.ports:
        port["carrier_downs"] = 2000
    assert cards.flagged() == []
    cards.ports[2]["carrier_downs"] = 2009
    assert cards.flagged() == [("fail", "mlx5_2", "link_downed", CABLE)]


@pytest.mark.parametrize("earlier", [[{"uptime": 53 * DAY}], [{"uptime": "1"}], [], None])
def test_an_earlier_look_that_cannot_be_dated_excuses_nothing(earlier: Any, cards: Cards) -> None:
    counters(1, 52 * DAY, link_downed=2000)(cards)
    cards.earlier = earlier
    assert cards.flagged() == [("fail", "mlx5_1", "link_downed", CABLE)]


# --- unknown values


def test_a_declared_mtu_that_nobody_could_read_is_an_error(cards: Cards) -> None:
    cards.problems["hca.mtus"] = "ibv_devinfo is not installed"
    found = cards.flagged(rdma_expected_ports=declared("InfiniBand"), rdma_mtu=4096)
    assert found == [("error", "node", "", CONFIGURE)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda cards: cards.problems.update({"hca.ports": "permission denied"}), "permission denied"),
        (ports([0], rate="fast"), "rate is 'fast'"),
        (ports([0], device=None), "without device"),
        (lambda cards: cards.counters.pop(), "has no entry for mlx5_8/1"),
        (lambda cards: cards.ports.append("a port"), "not a list of entries"),
        (counters(4, symbol_error="999999999"), "symbol_error is '999999999'"),
        (counters(4, symbol_error=-1), "symbol_error is -1"),
        (counters(4, symbol_error=10**400), "symbol_error is 1000"),
        (lambda cards: cards.counters[4].pop("symbol_error"), "not of one shape"),
        (lambda cards: cards.ports[4].pop("rate"), "not of one shape"),
        (ports([4], rate=-400), "rate is -400"),
        (ports([4], netdev_up="no"), "netdev_up is 'no'"),
        (lambda cards: cards.mtus.update({"mlx5_4/1": "4096"}), "mlx5_4/1 is '4096'"),
        (lambda cards: setattr(cards, "mtus", [4096]), "hca.mtus is not a map"),
        (lambda cards: setattr(cards, "earlier", {"uptime": 1}), "hca.earlier is not a list"),
        (lambda cards: setattr(cards, "link_downs", {"eth2": -1}), "eth2 is -1"),
    ],
)
def test_half_an_answer_is_no_verdict_and_what_is_no_number_not_zero(
    change: Change, words: str, cards: Cards
) -> None:
    change(cards)
    with pytest.raises(ParseError, match=words):
        cards.judge()


def test_a_mistyped_number_of_cards_is_refused(cards: Cards) -> None:
    with pytest.raises(ParseError, match="gpuprov_expected_nics is 'eight'"):
        cards.judge(gpuprov_expected_nics="eight")


def test_the_counters_of_the_real_capture_are_all_known(cards: Cards, captures: Path) -> None:
    rows = dict(
        line.split("\t", 1)
        for line in (captures / "sys-class-infiniband.h100.mlx5_0.tsv").read_text().splitlines()
    )
    folder = "/ports/1/counters/"
    real = {path.rpartition(folder)[2]: int(value) for path, value in rows.items() if folder in path}
    counters(0, 12 * DAY, **{name: value for name, value in real.items() if name in COUNTERS})(cards)
    assert set(COUNTERS) <= set(real)
    assert cards.flagged() == []


def test_what_is_known_to_be_broken_is_told_beside_what_is_not_known(cards: Cards) -> None:
    cards.problems["firmware.rdma"] = "permission denied"
    cards.ports[2].update(state="DOWN", phys_state="Polling")
    assert {one[:2] for one in cards.flagged()} == {("fail", "mlx5_2"), ("error", "node")}


@pytest.mark.parametrize(
    ("name", "most"), [("link_downed", 255), ("symbol_error", 65535), ("link_error_recovery", 255)]
)
def test_a_counter_that_is_full_says_too_little(name: str, most: int, cards: Cards) -> None:
    counters(2, 2000 * DAY, **{name: most})(cards)  # spread over the uptime, the rate would be almost zero
    assert cards.flagged() == [("warn", "mlx5_2", name, "watch")]
    assert any("perfquery -R" in f.message for f in cards.judge() if f.metric == name)
    cards.counters[2][name] = most - 1
    assert cards.flagged() == []


def test_a_counter_that_only_one_port_does_not_give_is_an_error_of_it(cards: Cards) -> None:
    """Linux prints `N/A (no PMA)` (drivers/infiniband/core/sysfs.c), which the observer turns into None."""
    cards.counters[2]["symbol_error"] = None
    cards.ports[3]["rate"] = None
    assert {one[:2] for one in cards.flagged(**EIGHT)} >= {("error", "mlx5_2"), ("error", "mlx5_3")}
    for row in cards.counters:
        row["symbol_error"] = None
    cards.ports[3]["rate"] = 400
    assert cards.flagged(**EIGHT) == [], "no driver of these has it"


@pytest.mark.parametrize("variables", [{}, EIGHT])
@pytest.mark.parametrize(
    "unknown",
    [{"link_layer": None}, {"state": None}, {"state": "NOP"}, {"state": "<unknown>"}, {"sm_lid": None}],
)
def test_a_port_of_which_something_is_not_known_is_an_error_of_that_port(
    unknown: dict[str, Any], variables: dict[str, Any], cards: Cards
) -> None:
    """The port still counts, since no card is missing, and its counters are still judged."""
    cards.ports[3].update(unknown)
    [(verdict, device, _, action)] = cards.flagged(**variables)
    assert (verdict, device, action) == ("error", "mlx5_3", "investigate")
    cards.counters[3].update(symbol_error=10**9, link_downed=255)
    found = cards.flagged(**variables)
    assert {("fail", "mlx5_3", name, CABLE) for name in ("symbol_error", "link_downed")} <= set(found)
    if "state" not in unknown:
        cards.ports[3].update(state="DOWN", phys_state="Polling")
        assert ("fail", "mlx5_3", "state", CABLE) in cards.flagged(**variables)
