"""Decisions of the watch: nodes taken out of service or left in it, by limits, silence and spares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provision.checks.judge import Verdict
from provision.fleet import Fleet
from provision.remote.schedulers import PREFIX, Holder, Job, Scheduled
from provision.up.watch.decide import Ages, Held, Telling, View, choose, decide, ready, suspects
from provision.up.watch.incidents import Incident, Step, moved, new
from provision.up.watch.policy import SPARES, Policy
from provision.up.watch.roles import Role, may_return, roles
from tests.support.watching import LOST, SILENT, fleet, seen

NOW = 1_800_000_000.0
HOUR = 3600.0


def word(name: str, of: Fleet, **how: Any) -> Scheduled:
    if name in of.groups[SPARES]:
        held = {"state": "IDLE+DRAIN", "reason": f"{PREFIX}spare", "holder": Holder.US}
        return Scheduled(name, **{**held, **how})
    return Scheduled(name, **{"state": "IDLE", "takes_jobs": True, "pools": ("gpu",), **how})


def view(bad: dict[str, dict[str, Any]], of: Fleet | None = None, **more: Any) -> View:
    """Return the view at NOW of a fleet, healthy except `bad` (node → state); spares passed an hour ago."""
    of = of or fleet()
    found = {name: seen(name, NOW - 1, **bad.get(name, {})) for name in of.nodes}
    words = {name: word(name, of) for name in of.nodes}
    validated = dict.fromkeys(of.groups[SPARES], NOW - HOUR)
    return replace(View(NOW, of, found, words, (), validated), **more)


def opened(view: View, policy: Policy | None = None) -> list[str]:
    return [one.node for one in decide(view, policy or Policy()).opened]


def held(view: View, policy: Policy | None = None) -> list[str]:
    return [one.kind for one in decide(view, policy or Policy()).held]


def told(view: View, name: str, **how: Any) -> View:
    """Return the view with a different scheduler state of one node."""
    return replace(view, scheduled={**view.scheduled, name: word(name, view.fleet, **how)})


def past(node: str, hours: float, **how: Any) -> Incident:
    """Create an incident that was opened `hours` ago and waits for repair."""
    one = new(node, NOW - hours * HOUR, "Xid 79")
    return replace(moved(one, Step.REPAIR, drained=one.opened), **how)


def test_a_failed_node_is_taken_out_with_its_cause() -> None:
    (incident,) = decide(view({"gpu-03": LOST}), Policy()).opened
    assert (incident.node, incident.step, incident.opened) == ("gpu-03", Step.DRAIN, NOW)
    assert incident.reason == f"{incident.id} gpu3 has fallen off the bus (Xid 79)"
    assert (incident.action, incident.device, incident.serial) == ("power-cycle", "gpu3", "1650923004321")


@pytest.mark.parametrize(
    "how",
    [{}, {"verdict": Verdict.WARN}, {"verdict": Verdict.ERROR, "trouble": "the health result is 9 min old"}],
    ids=["healthy", "warned", "not known"],
)
def test_a_node_without_a_failure_is_left(how: dict[str, Any]) -> None:
    assert decide(view({"gpu-03": how}), Policy()) == decide(view({}), Policy())
    assert not opened(view({"gpu-03": how}))


def test_what_others_have_in_hand_is_left_to_them() -> None:
    bad = view({"gpu-03": LOST})
    drained = {"state": "IDLE+DRAIN", "takes_jobs": False}
    assert not opened(told(bad, "gpu-03", holder=Holder.OTHERS, reason="bad fan [ann]", **drained))
    for run in (
        "up 2026",
        "(was DOWN: Not responding) up 2026",
        "burn-in 2026: gpu3",
        "20260101T000000Z-gpu-03 x",
    ):
        assert not opened(told(bad, "gpu-03", holder=Holder.US, reason=f"{PREFIX}{run}", **drained)), run
    itself = f"{PREFIX}gpu3: GPU has fallen off the bus (serial 16): power-cycle"
    assert opened(told(bad, "gpu-03", holder=Holder.US, reason=itself, **drained)) == ["gpu-03"]
    assert not opened(replace(bad, incidents=(past("gpu-03", 5),)))


def test_nothing_is_done_without_the_schedulers_word() -> None:
    bad = view({"gpu-03": LOST})
    assert held(told(bad, "gpu-03", error="slurmctld does not answer")) == ["held.scheduler"]
    words = {name: one for name, one in bad.scheduled.items() if name != "gpu-03"}
    assert decide(replace(bad, scheduled=words), Policy()).opened == ()


def without_racks(of: Fleet) -> Fleet:
    nodes = {
        name: replace(one, variables={**one.variables, "gpuprov_rack": None})
        for name, one in of.nodes.items()
    }
    return replace(of, nodes=nodes)


@pytest.mark.parametrize("racks", [True, False], ids=["racks known", "racks unknown"])
def test_a_rack_that_goes_dark_is_nobodys_fault_here(racks: bool) -> None:
    """If racks are known, the other racks are still watched; if not, no node is drained."""
    dark = {f"gpu-{number:02d}": SILENT for number in range(1, 5)}
    of = fleet() if racks else without_racks(fleet())
    late = view({**dark, "gpu-07": LOST, "spare-1": LOST}, of, at=NOW + HOUR)
    for name in dark:
        late = told(late, name, state="DOWN", down=True, takes_jobs=False)
    decision = decide(late, Policy())
    assert [one.node for one in decision.opened] == (["gpu-07"] if racks else [])
    (only,) = decision.held
    assert (only.kind, only.nodes) == ("held.silent", tuple(sorted(dark)))
    assert "4 nodes of 10 silent at once (gpu-[01-04])" in only.why
    assert ("no node of rack r1 is drained" in only.why) is racks


def test_a_dark_rack_of_a_large_fleet_is_not_drained_node_by_node() -> None:
    of = fleet(nodes=96)
    dark = {f"gpu-{number:02d}": SILENT for number in range(9, 13)}
    late = view({**dark, "gpu-50": LOST}, of, at=NOW + HOUR)
    for name in dark:
        late = told(late, name, state="DOWN", down=True, takes_jobs=False)
    assert opened(late) == ["gpu-50"]
    (only,) = decide(late, Policy()).held
    assert only.nodes == tuple(dark)
    assert "4 nodes of 4 silent at once (gpu-[09-12])" in only.why


OFF = {"state": "DOWN+DRAIN+NOT_RESPONDING", "down": True, "takes_jobs": False}


@pytest.mark.parametrize(
    "why",
    [
        {"holder": Holder.OTHERS, "reason": "in repair [ann]"},
        {"holder": Holder.US, "reason": f"{PREFIX}up 2026"},
        {"holder": Holder.US, "reason": f"{PREFIX}an incident"},
    ],
    ids=["a person", "another run", "an incident"],
)
def test_nodes_switched_off_for_repair_stop_nothing(why: dict[str, Any]) -> None:
    of = without_racks(fleet(nodes=28))  # and two spares
    off = ("gpu-11", "gpu-12", "gpu-13")
    bad = view({**dict.fromkeys(off, SILENT), "gpu-20": LOST}, of, at=NOW + 3 * 24 * HOUR)
    for name in off:
        bad = told(bad, name, **OFF, **why)
    if "incident" in why["reason"]:
        bad = replace(bad, incidents=tuple(past(name, 50) for name in off))
    policy = Policy(share=50)
    assert opened(bad, policy) == ["gpu-20"]
    assert held(bad, policy) == []
    # Three more that were not taken out of service do stop it; counts are of the nodes in service.
    more = dict.fromkeys(("gpu-01", "gpu-02", "gpu-03"), SILENT)
    found = {name: seen(name, NOW, **how) for name, how in more.items()}
    (only,) = decide(replace(bad, seen={**bad.seen, **found}), policy).held
    assert only.nodes == tuple(more)
    assert "3 nodes of 27 silent at once (gpu-[01-03])" in only.why
    assert "not counted: 3 silent and out of service already" in only.why


def test_one_silent_node_counts_when_its_scheduler_has_lost_it_too_and_for_long() -> None:
    down = {"state": "DOWN+NOT_RESPONDING", "down": True, "takes_jobs": False}
    early = told(view({"gpu-02": SILENT}, at=NOW + 60), "gpu-02", **down)
    assert not opened(early)
    late = view({"gpu-02": SILENT}, at=NOW + HOUR)
    assert suspects(late, Policy()) == ["gpu-02"]
    assert not opened(late)  # the scheduler still gives it jobs, so it is silent only to us
    (incident,) = decide(told(late, "gpu-02", **down), Policy()).opened
    assert "the scheduler has it as DOWN+NOT_RESPONDING" in incident.cause


def test_no_more_than_so_many_an_hour() -> None:
    bad = {f"gpu-{number:02d}": LOST for number in range(1, 7)}
    policy = Policy(hourly=4, share=100, rack_hourly=4, breaker_nodes=8)
    decision = decide(view(bad), policy)
    assert [one.node for one in decision.opened] == ["gpu-01", "gpu-02", "gpu-03", "gpu-04"]
    (only,) = decision.held
    assert (only.kind, only.nodes) == ("held.hourly", ("gpu-05", "gpu-06"))
    before = tuple(past(f"gpu-{number:02d}", 0.5) for number in (1, 2, 3, 4))
    assert held(view({"gpu-05": LOST}, incidents=before), policy) == ["held.hourly"]
    long_ago = tuple(past(f"gpu-{number:02d}", 1.1) for number in (1, 2, 3, 4))
    assert opened(view({"gpu-05": LOST}, incidents=long_ago), policy) == ["gpu-05"]


def test_no_more_than_so_many_of_a_rack_an_hour() -> None:
    three = {f"gpu-{number:02d}": LOST for number in (1, 2, 3)}
    decision = decide(view({**three, "gpu-05": LOST}), Policy(share=100, breaker_nodes=8))
    assert [one.node for one in decision.opened] == ["gpu-01", "gpu-02", "gpu-05"]
    (only,) = decision.held
    assert (only.kind, only.nodes) == ("held.rack", ("gpu-03",))
    assert "2 nodes of rack r1 taken out of service within an hour" in only.why
    policy = Policy(share=100, breaker_nodes=8)
    before = (past("gpu-01", 0.5), past("gpu-02", 0.9))
    assert held(view({"gpu-03": LOST}, incidents=before), policy) == ["held.rack"]
    assert opened(view({"gpu-05": LOST}, incidents=before), policy) == ["gpu-05"]
    before = (past("gpu-01", 0.5), past("gpu-02", 1.1))
    assert opened(view({"gpu-03": LOST}, incidents=before), policy) == ["gpu-03"]
    assert len(opened(view(three, without_racks(fleet())), policy)) == 3
    spares = (past("gpu-01", 0.5, was_spare=True), past("gpu-02", 0.5, was_spare=True))
    assert opened(view({"gpu-03": LOST}, incidents=spares), policy) == ["gpu-03"]


def test_a_share_holds_in_each_partition_of_a_node() -> None:
    """gpu-01 … gpu-04 are also in `big`, and one of them is already out of service."""
    policy = Policy(share=25, rack_hourly=8, breaker_nodes=8)
    both = {f"gpu-{number:02d}": ("gpu", "big") for number in range(1, 5)}
    known = view({"gpu-03": LOST, "gpu-06": LOST}, incidents=(past("gpu-01", 2),))
    for name, pools in both.items():
        known = told(known, name, pools=pools)
    decision = decide(known, policy)
    assert [one.node for one in decision.opened] == ["gpu-06"]
    assert "1 of the 4 nodes of big" in decision.held[0].why


def test_a_node_out_of_service_of_which_nothing_is_known_may_be_in_the_partition() -> None:
    known = view({"gpu-05": LOST}, incidents=(past("gpu-01", 2),))
    assert held(told(known, "gpu-01", error="no answer")) == ["held.share"]
    words = {name: one for name, one in known.scheduled.items() if name != "gpu-01"}
    assert held(replace(known, scheduled=words)) == ["held.share"]


FOUR = {f"gpu-{number:02d}": LOST for number in range(1, 5)}


def test_more_failures_than_the_breaker_lets_be_drained_open_it_before_a_single_drain() -> None:
    decision = decide(view(FOUR), Policy())
    assert decision.common == "4 of the 8 nodes of gpu have failed within an hour"
    assert decision.opened == ()
    (only,) = decision.held
    assert (only.kind, only.nodes) == ("breaker-open", tuple(FOUR))
    assert only.text.startswith("gpu-[01-04]: left in service: the breaker of all drains is open")
    three = dict(list(FOUR.items())[:3])
    assert decide(view(three), Policy()).common == ""
    assert decide(view(FOUR), Policy(breaker_share=50)).common == ""
    # Failures of the last hour count, whether or not the watch drained the node; earlier ones do not.
    assert decide(view({"gpu-04": LOST}, incidents=[past(name, 0.5) for name in three]), Policy()).common
    assert not decide(view({"gpu-04": LOST}, incidents=[past(name, 1.1) for name in three]), Policy()).common
    itself = view(FOUR)
    for name in three:
        itself = told(itself, name, holder=Holder.US, reason=f"{PREFIX}gpu3: lost", state="IDLE+DRAIN")
    assert decide(itself, Policy()).common
    assert not decide(told(itself, "gpu-01", holder=Holder.OTHERS, reason="ann"), Policy()).common


def test_while_the_breaker_is_open_nothing_is_drained_and_what_a_node_drained_itself_is_taken_over() -> None:
    open_one = view({"gpu-03": LOST, "gpu-04": LOST, "spare-1": LOST}, breaker="gpu has had 3")
    known = told(open_one, "gpu-04", holder=Holder.US, reason=f"{PREFIX}gpu3: lost", state="IDLE+DRAIN")
    decision = decide(known, Policy())
    assert {one.node for one in decision.opened} == {"gpu-04", "spare-1"}
    (only,) = decision.held
    assert (only.kind, only.nodes) == ("breaker-open", ("gpu-03",))
    assert "gpu has had 3" in only.why
    assert decision.common == ""
    (quiet,) = decide(view({}, breaker=""), Policy()).held
    assert (quiet.kind, quiet.nodes) == ("breaker-open", ())


def test_an_open_breaker_is_told_once_however_long_it_lasts() -> None:
    telling, lasting = Telling(), [Held("breaker-open", ("gpu-01",), "")]
    assert telling.news(lasting, NOW) == lasting
    grown = [Held("breaker-open", ("gpu-01", "gpu-02", "gpu-03"), "")]
    assert [telling.news(grown, NOW + hours * HOUR) for hours in range(30)] == [[]] * 30
    telling.news([], NOW + 30 * HOUR)
    assert telling.news(lasting, NOW + 31 * HOUR) == lasting


def test_no_more_than_a_share_of_a_partition() -> None:
    two = {"gpu-01": LOST, "gpu-02": LOST}
    decision = decide(view(two), Policy(share=10))  # of 8 nodes: one, since one is always allowed
    assert [one.node for one in decision.opened] == ["gpu-01"]
    assert decision.held[0].kind == "held.share"
    assert "1 of the 8 nodes of gpu" in decision.held[0].why
    assert opened(view(two), Policy(share=25)) == ["gpu-01", "gpu-02"]
    # A node that has returned no longer counts.
    back = (past("gpu-07", 30, returned=NOW - HOUR),)
    assert opened(view({"gpu-01": LOST}, incidents=back), Policy()) == ["gpu-01"]


def test_a_spare_that_fails_is_none_and_needs_no_limit() -> None:
    decision = decide(view({"spare-1": LOST}), Policy(hourly=0))
    (incident,) = decision.opened
    assert incident.was_spare
    assert held(view({"gpu-01": LOST}), Policy(hourly=0)) == ["held.hourly"]


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"holder": Holder.OTHERS, "reason": "being moved"}, "somebody else drained it: being moved"),
        (
            {"holder": Holder.NOBODY, "takes_jobs": True},
            "it is in service (gpuprov watch spare sets an idle one aside)",
        ),
        ({"jobs": (Job("4711"),)}, "job 4711 still runs on it"),
        ({"error": "timeout"}, "no answer from the scheduler: timeout"),
    ],
)
def test_a_spare_that_is_not_free_is_none(how: dict[str, Any], why: str) -> None:
    assert ready("spare-1", told(view({}), "spare-1", **how), Policy()) == why


def test_a_spare_must_be_healthy_and_lately_validated() -> None:
    assert ready("spare-1", view({}), Policy()) == ""
    assert ready("spare-1", view({"spare-1": LOST}), Policy()) == LOST["cause"]
    assert ready("spare-1", view({"spare-1": SILENT}), Policy()) == "no answer"
    assert ready("spare-1", view({}, validated={}), Policy()) == "it has not been validated yet"
    assert "it was validated 25 h" in ready(
        "spare-1", view({}, validated={"spare-1": NOW - 25 * HOUR}), Policy()
    )


def test_the_spare_of_the_same_rack_is_preferred_and_another_sku_is_none() -> None:
    incident = new("gpu-06", NOW, "x")
    assert choose(incident, view({}), Policy())[0] == "spare-2"
    assert choose(new("gpu-01", NOW, "x"), view({}), Policy())[0] == "spare-1"
    of = fleet()
    other = replace(
        of.nodes["spare-2"], variables={**of.nodes["spare-2"].variables, "gpuprov_sku": "h200-sxm"}
    )
    mixed = replace(of, nodes={**of.nodes, "spare-2": other})
    spare, why = choose(incident, view({}, mixed), Policy())
    assert spare == "spare-1"
    assert "its SKU, stack" in why["spare-2"]
    assert choose(incident, view({}, mixed), Policy(same=("gpuprov_rack",)))[0] == ""


def test_two_faults_and_one_spare() -> None:
    of = fleet(spares=1)
    first = moved(new("gpu-01", NOW, "x"), Step.VERIFY, spare="spare-1")
    spare, why = choose(new("gpu-02", NOW, "x"), view({}, of, incidents=(first,)), Policy())
    assert spare == ""
    assert why == {"spare-1": "it is replacing another node"}


def test_a_spare_that_served_failed_and_returned_is_chosen_again() -> None:
    of = fleet(spares=1)
    first = past("gpu-01", 9, spare="spare-1", placed=NOW - 8 * HOUR, returned=NOW - 7 * HOUR)
    second = past("spare-1", 6, spare="gpu-01", placed=NOW - 5 * HOUR, returned=NOW - 4 * HOUR)
    known = view({}, of, incidents=(first, second))
    assert choose(new("gpu-02", NOW, "x"), known, Policy()) == ("spare-1", {})


def test_roles_follow_the_incidents() -> None:
    of = fleet()
    assert roles(of, [])["spare-1"] is Role.SPARE
    placed = past("gpu-03", 3, spare="spare-1", placed=NOW - 2 * HOUR)
    found = roles(of, [placed])
    assert (found["gpu-03"], found["spare-1"]) == (Role.REPAIR, Role.SERVICE)
    back = replace(placed, returned=NOW - HOUR)
    assert roles(of, [back])["gpu-03"] is Role.SPARE
    again = past("spare-1", 0.5, spare="gpu-03", placed=NOW)
    found = roles(of, [back, again])
    assert (found["gpu-03"], found["spare-1"]) == (Role.SERVICE, Role.REPAIR)
    closed = moved(new("gpu-01", NOW, "x"), Step.CLOSED)
    assert roles(of, [closed])["gpu-01"] is Role.SERVICE


def test_who_fails_again_and_again_waits_longer() -> None:
    def wait(*hours_ago: float) -> float:
        known = [past("gpu-03", hours) for hours in hours_ago]
        return (may_return("gpu-03", known, 1, NOW) - (NOW - min(hours_ago) * HOUR)) / HOUR

    assert wait(5) == 1
    assert wait(5, 50) == 2
    assert wait(5, 50, 500) == 4
    assert wait(5, 31 * 24) == 1  # failures of more than 30 days ago do not count
    assert wait(*range(1, 20)) == 7 * 24
    assert may_return("gpu-04", [past("gpu-03", 1)], 1, NOW) == 0
    ahead = [past("gpu-03", -500), past("gpu-03", 5)]  # -500: stamped by a clock that ran ahead
    assert may_return("gpu-03", ahead, 1, NOW) == NOW - 4 * HOUR


def test_a_limit_by_the_hour_outlives_a_stepped_clock() -> None:
    seconds = 1000.0
    ages = Ages(lambda: seconds)
    four = [past(f"gpu-{number:02d}", 0) for number in (1, 2, 3, 4)]
    ages.of(four, NOW)

    def limited(at: float) -> bool:
        known = view({"gpu-05": LOST}, at=at, incidents=four, ages=ages.of(four, at))
        return held(known, Policy(hourly=4, share=100, breaker_nodes=8)) == ["held.hourly"]

    seconds += 60
    assert limited(NOW + 2 * HOUR), "the clock went two hours ahead"
    assert limited(NOW - 24 * HOUR), "and a day back"
    seconds += HOUR
    assert not limited(NOW - 24 * HOUR), "an hour has passed"


def test_an_incident_from_the_future_counts_for_an_hour() -> None:
    seconds = 1000.0
    ages, ahead = Ages(lambda: seconds), past("gpu-01", -24)
    assert ages.of([ahead], NOW) == {ahead.id: 0.0}
    seconds += HOUR
    assert ages.of([ahead], NOW) == {ahead.id: HOUR}


def test_people_are_told_once_and_again_when_it_grows_or_lasts() -> None:
    telling = Telling()

    def told(count: int, minutes: float) -> bool:
        held = Held("held.silent", tuple(f"gpu-{number}" for number in range(count)), "")
        return telling.news([held], NOW + minutes * 60) == [held]

    assert [told(3, 0), told(4, 1), told(5, 2), told(6, 3), told(7, 4)] == [True, False, False, True, False]
    assert [told(7, 62), told(7, 63)] == [False, True]
    # When the condition comes and goes, people are notified at most once an hour.
    for minutes in range(64, 121, 2):
        assert telling.news([], NOW + minutes * 60) == []
        assert not told(3, minutes + 1), minutes
    assert told(3, 124)
