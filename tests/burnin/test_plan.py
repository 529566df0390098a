"""Plans that keep racks and fleet below their limits, for any fleet and however late nodes start."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.burnin import orders, profile
from provision.burnin import plan as planning
from provision.burnin.plan import MARGIN, Caps, Load, caps, cost, drawn, load_of, peak, plan
from provision.checks.judging.node_facts import NodeFacts
from provision.errors import InventoryError

Fleet = tuple[list[Load], Caps, dict[str, tuple[float, float]]]
RACKS = ["", "r1", "r2", "r3"]


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """Draw nodes in racks, with limits that let at least any single node burn."""
    loads = [
        Load(f"n{i}", draw(st.sampled_from(RACKS)), kw := draw(st.floats(0.5, 15)), kw * 0.25)
        for i in range(draw(st.integers(1, 24)))
    ]

    def limit(members: list[Load]) -> tuple[float | None, int | None]:
        kw = sum(load.kw or 0 for load in members)
        need = sum(load.idle_kw or 0 for load in members) + max(0.75 * (load.kw or 0) for load in members)
        chosen = None if draw(st.booleans()) else max(need, kw * draw(st.floats(0.3, 1.2)))
        return chosen, draw(st.none() | st.integers(1, 8))

    racks = {}
    for rack in RACKS[1:]:
        if members := [load for load in loads if load.rack == rack]:
            racks[rack] = limit(members)
    seconds = {load.node: (s := draw(st.floats(60, 90000)), s * draw(st.floats(1, 3))) for load in loads}
    return loads, Caps(limit(loads), racks), seconds


@given(fleets(), st.integers(1, 6), st.floats(0, 600), st.data())
def test_no_limit_is_ever_exceeded(fleet: Fleet, steps: int, apart: float, data: st.DataObject) -> None:
    loads, limits, seconds = fleet
    made = plan(loads, limits, seconds, ramp_steps=steps, ramp_seconds=apart)
    assert sorted(part.node for part in made.parts) == sorted(load.node for load in loads)
    late = {load.node: data.draw(st.floats(0, MARGIN * 0.999)) for load in loads}
    for rack, (kw, count) in [(None, limits.fleet), *limits.racks.items()]:
        if kw is not None:
            assert max(sum_ for _, sum_ in drawn(made, rack, late)) <= kw + 1e-6
        mine = [part for part in made.parts if rack is None or made.loads[part.node].rack == rack]
        for moment in [part.start + late[part.node] for part in mine]:
            begun = [part for part in mine if part.start + late[part.node] <= moment]
            burning = [part for part in begun if moment < part.start + part.longest + late[part.node]]
            assert count is None or len(burning) <= count


@given(fleets())
def test_who_waits_for_others_is_waited_for_until_its_end_at_most(fleet: Fleet) -> None:
    made = plan(*fleet)
    last = max(part.turn for part in made.parts)
    for part in made.parts:
        assert (part.end_by is None) == (part.turn == last)
        for later in made.parts:
            if part.end_by is not None and later.turn > part.turn:
                assert later.start >= part.end_by + MARGIN


def evenly(*racks: str) -> tuple[list[Load], dict[str, tuple[float, float]]]:
    """Return a 10 kW node in each of these racks, and the durations of their burns."""
    loads = [Load(f"n{i}", rack, 10.0, 2.5) for i, rack in enumerate(racks)]
    return loads, dict.fromkeys((load.node for load in loads), (100.0, 200.0))


def test_half_the_peak_is_kept_in_turns() -> None:
    loads, seconds = evenly(*["r1"] * 8)
    made = plan(loads, Caps((40.0, None)), seconds)
    assert peak(made) <= 40.0
    assert made.turns == 4  # all waiting nodes draw 20 kW; two at a time add 15


def test_without_limits_all_burn_at_once_and_begin_in_steps() -> None:
    loads, seconds = evenly(*["r0", "r1"] * 4)
    made = plan(loads, Caps(), seconds, ramp_steps=4, ramp_seconds=60)
    assert made.turns == 1
    assert sorted({part.start for part in made.parts}) == [0, 60, 120, 180]
    begin = [part.node for part in made.parts if part.start == 0]
    assert {made.loads[node].rack for node in begin} == {"r0", "r1"}  # no rack takes the first step alone


def test_a_limit_too_small_for_one_node_is_refused() -> None:
    with pytest.raises(InventoryError, match="rack r1 may draw 8 kW: too little even for n0"):
        plan([Load("n0", "r1", 10.0, 2.5)], Caps(racks={"r1": (8.0, None)}), {"n0": (1.0, 1.0)})


def test_no_limit_in_kilowatts_is_promised_for_a_node_nobody_knows() -> None:
    with pytest.raises(InventoryError, match="the power of n0 is not known"):
        plan([Load("n0")], Caps((80.0, None)), {"n0": (1.0, 1.0)})
    assert plan([Load("n0")], Caps((None, 1)), {"n0": (1.0, 1.0)}).turns == 1


def test_the_inventory_states_the_limits() -> None:
    found = caps(
        {
            "a": {"gpuprov_rack": "r1", "gpuprov_rack_kw": 20, "gpuprov_fleet_kw": 100},
            "b": {"gpuprov_rack": 2, "gpuprov_rack_loads": 1},
            "c": {"gpuprov_rack": "r1"},
        }
    )
    assert found == Caps((100.0, None), {"r1": (20.0, None), "2": (None, 1)})


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"a": {"gpuprov_rack": 1, "gpuprov_rack_kw": 20}, "b": {"gpuprov_rack": 1, "gpuprov_rack_kw": 30}},
         "gpuprov_rack_kw of rack 1 is 20 on a and 30 on b"),
        ({"a": {"gpuprov_rack_kw": 20}}, "it has a limit for its rack, and no rack"),
        ({"a": {"gpuprov_fleet_kw": 20}, "b": {"gpuprov_fleet_kw": 21}}, "gpuprov_fleet_kw of all nodes"),
    ],
)  # fmt: skip
def test_an_inventory_that_contradicts_itself_is_refused(
    variables: dict[str, dict[str, object]], said: str
) -> None:
    with pytest.raises(InventoryError) as error:
        caps(variables)
    assert said in error.value.what


def test_a_nodes_draw_is_what_the_inventory_says_or_its_gpus_and_the_rest_of_it() -> None:
    node = NodeFacts("a", {}, {"gpu": {"count": 8, "sku": "h100-sxm"}}, {})
    assert load_of(node, {"gpuprov_rack": 1}) == Load("a", "1", 11.424, 2.856)
    assert load_of(node, {"gpuprov_node_kw": 10.2}).kw == 10.2
    assert load_of(NodeFacts("b", {}, {"gpu": {"count": 8, "sku": None}}, {}), {}).kw is None


def test_the_sum_is_what_a_hand_reckons() -> None:
    made = planning.Plan(
        (planning.Part("a", 1, 0, 10, 10, 10), planning.Part("b", 2, 20, 10, 10, None)),
        {"a": Load("a", "", 4.0, 1.0), "b": Load("b", "", 3.0, 1.0)},
        Caps(),
    )
    assert drawn(made) == [(0.0, 5.0), (10.0, 2.0), (20.0, 4.0), (30.0, 2.0)]


def test_the_plan_says_beforehand_what_nobody_will_measure_between_nodes() -> None:
    chosen = profile.fitted(profile.load("day"), None, cost)
    loads, seconds = evenly("", "", "")
    said = list(orders.lines(chosen, plan(loads, Caps((None, 2)), seconds), {}, {}))
    (waits,) = [line for line in said if line.lstrip().startswith("between_warm")]
    assert waits.endswith("pair_bandwidth, nccl_pair, nccl_group, with an attached controller")
    alone = "not measured: between_cold, between_warm of n2, because no other node is in its batch"
    assert [line for line in said if line.startswith("not measured")] == [alone]
    together = orders.lines(chosen, plan(loads, Caps(), seconds), {}, {})
    assert [line for line in together if line.startswith("not measured")] == []
