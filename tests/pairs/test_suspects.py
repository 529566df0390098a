"""Culprits across nodes: all injected faults are named, and nothing else, in at most four rounds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.checks.pairs.blame import Kind
from provision.checks.pairs.pairing import Outcome, Result, Topology, across, within
from provision.checks.pairs.suspects import MOST_ROUNDS, diagnose, next_round
from tests.support.fabric import RATE, Fabric, Faults, named, racked

SEVERITY = (0.3, 0.5, 0.8, None)  # factors of the rate; None hangs


def planted(fabric: Fabric) -> set[str]:
    """Return the injected faults under the names that the diagnosis uses."""
    return {
        {
            "node": fault[1],
            "port": f"{fault[1]}/rail {fault[-1]}",
            "link": f"link {'-'.join(fault[1:])}",
            "path": f"path between racks {' and '.join(fault[1:])}",
        }.get(fault[0], f"{fault[0]} of rack {fault[1]}")
        for fault in fabric.faults
    }


def suspected(fabric: Fabric) -> list[set[str]]:
    return [set(one.devices) for one in diagnose(fabric.fleet, fabric.results).suspects]


# --- mixed faults ---


@pytest.mark.parametrize("seed", range(12))
def test_three_bad_nodes_and_a_bad_uplink_of_64_nodes(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - a seed reproduces it
    fleet = racked(64, 8)
    faults: Faults = {("node", node): chance.choice(SEVERITY) for node in chance.sample(fleet.nodes, 3)}
    faults |= {("uplink", chance.choice(sorted(fleet.members))): chance.uniform(0.2, 0.85)}
    fabric = Fabric(fleet, faults, noise=chance.uniform(0.001, 0.02), seed=seed)
    diagnosis = fabric.run()
    assert named(diagnosis) == planted(fabric)
    assert diagnosis.suspects == ()
    assert diagnosis.unjudged == {}
    assert fabric.rounds <= MOST_ROUNDS


@pytest.mark.parametrize("nodes", [512, 1024])
def test_the_rounds_do_not_grow_with_the_fleet(nodes: int) -> None:
    chance = random.Random(nodes)  # noqa: S311 - as above
    fleet = racked(nodes, 8)
    bad = chance.sample(fleet.nodes, nodes // 40)
    faults: Faults = {("node", node): chance.choice(SEVERITY) for node in bad}
    faults |= {("uplink", "r3"): 0.5, ("leaf", "r9"): 0.4}
    for node in fleet.members["r9"]:
        faults.pop(("node", node), None)  # nothing is visible behind a bad leaf
    fabric = Fabric(fleet, faults, noise=0.02, seed=nodes)
    diagnosis = fabric.run()
    assert named(diagnosis) == planted(fabric)
    assert set(diagnosis.unjudged) == set(fleet.members["r9"])
    assert fabric.rounds <= MOST_ROUNDS


@st.composite
def broken_fleets(draw: st.DrawFn) -> Fabric:
    """Draw racks of different sizes with a minority of bad nodes in each, and perhaps one bad uplink."""
    sizes = draw(st.lists(st.integers(4, 12), min_size=3, max_size=20))
    racks = {f"n{i}.{position}": f"r{i}" for i, size in enumerate(sizes) for position in range(size)}
    fleet = Topology(tuple(draw(st.permutations(sorted(racks)))), racks)
    faults: Faults = {}
    bad = draw(st.sets(st.sampled_from(fleet.nodes), max_size=max(1, len(fleet.nodes) // 12)))
    for node in sorted(bad):
        if sum(other in bad for other in fleet.members[racks[node]]) <= len(fleet.members[racks[node]]) // 4:
            faults["node", node] = draw(st.sampled_from(SEVERITY))
    # In a rack with more than a third of all nodes, every pair across racks may use the uplink and be slow.
    minor = sorted(rack for rack, nodes in fleet.members.items() if 3 * len(nodes) <= len(fleet.nodes))
    if bool(minor) and draw(st.booleans()):
        faults["uplink", draw(st.sampled_from(minor))] = draw(st.floats(0.1, 0.85))
    return Fabric(fleet, faults, noise=draw(st.floats(0.001, 0.02)), seed=draw(st.integers(0, 9999)))


@given(broken_fleets())
def test_all_that_is_planted_is_named_and_nobody_else(fabric: Fabric) -> None:
    diagnosis = fabric.run()
    assert named(diagnosis) <= planted(fabric)
    open_ = {device for one in diagnosis.suspects for device in one.devices}
    assert planted(fabric) <= named(diagnosis) | open_
    assert fabric.rounds <= MOST_ROUNDS
    if not any(fault[0] == "uplink" for fault in fabric.faults):
        assert named(diagnosis) == planted(fabric)


@given(st.integers(2, 256), st.integers(1, 20), st.integers(0, 9999), st.data())
def test_a_bad_node_never_passes_and_every_node_is_accounted_for(
    count: int, size: int, seed: int, data: st.DataObject
) -> None:
    """This holds for any knowledge of racks and any number of bad nodes."""
    chance = random.Random(seed)  # noqa: S311 - as above
    full = racked(count, size)
    share = data.draw(st.sampled_from([0, 0.5, 1]))
    told = {node: rack for node, rack in full.racks.items() if chance.random() < share}
    fleet = replace(full, racks=told)
    bad = data.draw(st.sets(st.sampled_from(fleet.nodes), max_size=6))
    faults: Faults = {("node", node): chance.choice(SEVERITY) for node in sorted(bad)}
    fabric = Fabric(fleet, faults, expected=0.9 * RATE, seed=seed, true_racks=dict(full.racks))
    diagnosis = fabric.run()
    assert fabric.rounds <= MOST_ROUNDS
    assert bad.isdisjoint(diagnosis.passed)
    open_ = {node for one in diagnosis.suspects for node in one.nodes}
    culprits = {node for one in diagnosis.culprits for node in one.nodes}
    told_of = {*diagnosis.passed, *diagnosis.unjudged, *open_, *culprits}
    assert told_of == set(fleet.nodes)
    assert set(diagnosis.passed).isdisjoint(diagnosis.unjudged)


@given(st.integers(2, 128), st.integers(1, 16), st.floats(0.001, 0.02), st.integers(0, 9999))
def test_a_healthy_fleet_takes_two_rounds_and_accuses_nobody(
    count: int, size: int, noise: float, seed: int
) -> None:
    fabric = Fabric(racked(count, size), noise=noise, seed=seed, expected=0.9 * RATE)
    diagnosis = fabric.run()
    assert diagnosis.passed == fabric.fleet.nodes
    assert (diagnosis.culprits, diagnosis.suspects, diagnosis.unsteady) == ((), (), ())
    assert fabric.rounds == (1 if count == 2 else 2)


# --- each kind of culprit ---


def test_a_bad_leaf_is_told_from_its_uplink_and_from_bad_nodes_elsewhere() -> None:
    fleet = racked(64, 8)
    leaf = Fabric(fleet, {("leaf", "r2"): 0.5, ("node", "n3"): 0.5, ("node", "n60"): None})
    diagnosis = leaf.run()
    assert named(diagnosis) == {"leaf of rack r2", "n3", "n60"}
    assert set(diagnosis.unjudged) == set(fleet.members["r2"])
    assert "only together with leaf of rack r2" in diagnosis.unjudged["n16"]


LARGE = racked(64, 8)
# Some pairs that leave the rack are slow, others are not.
LEAVING = [sorted(pair) for pair in across(LARGE) if "r2" in {LARGE.racks[node] for node in pair}]
FOUR, EIGHT = tuple("0123"), tuple("01234567")


@pytest.mark.parametrize(
    ("fabric", "names"),
    [
        (Fabric(LARGE, {("uplink", "r2"): 0.5}), {"uplink of rack r2"}),
        (
            Fabric(LARGE, {("uplink", "r1"): 0.3, ("node", "n9"): 0.6, ("node", "n12"): 0.6}),
            {"uplink of rack r1", "n9", "n12"},
        ),
        (Fabric(LARGE, {("link", *pair): 0.5 for pair in LEAVING[:4]}), {"some uplinks of rack r2"}),
        (Fabric(LARGE, {("path", "r0", "r1"): 0.5}), {"path between racks r0 and r1"}),
        (
            Fabric(
                LARGE,
                {("port", "n5", "2"): 0.5, ("port", "n30", "0"): None, ("node", "n50"): 0.5},
                rails=FOUR,
            ),
            {"n5/rail 2", "n30/rail 0", "n50"},
        ),
        (
            Fabric(LARGE, {("port", f"n{i}", "1"): 0.5 for i in range(8, 16)}, rails=FOUR),
            {"leaf of rack r1/rail 1"},
        ),
        *(
            (
                Fabric(
                    racked(32, 8), {("port", "n5", rail): 0.5 for rail in EIGHT[:7]}, rails=EIGHT, seed=seed
                ),
                {f"n5/rail {rail}" for rail in EIGHT[:7]},
            )
            for seed in range(5)
        ),
        (Fabric(racked(16, 4), {("node", "n5"): 0.5}, rails=("mlx5_0",)), {"n5"}),
        # With an odd number of nodes, the last one is measured too.
        *(
            (Fabric(racked(7, 100), {("node", bad): 0.5}, expected=0.9 * RATE), {bad})
            for bad in ("n0", "n3", "n6")
        ),
    ],
)
def test_what_is_bad_is_named_as_what_it_is(fabric: Fabric, names: set[str]) -> None:
    assert named(fabric.run()) == names


def test_a_slow_link_is_pinned_on_neither_end() -> None:
    fleet = racked(6, 6)
    pair = sorted(across(fleet)[1])
    fabric = Fabric(fleet, {("link", *pair): 0.5})
    diagnosis = fabric.run()
    (culprit,) = diagnosis.culprits
    assert culprit.device == f"link {pair[0]}-{pair[1]}"
    assert culprit.kind is Kind.LINK
    assert "it is unknown which end" in culprit.why
    assert len(culprit.evidence) == 2
    assert set(diagnosis.passed) == set(fleet.nodes) - set(pair)


def test_a_path_between_two_racks_is_told_from_their_uplinks() -> None:
    fabric = Fabric(racked(64, 8), {("path", "r0", "r1"): 0.5})
    assert named(fabric.run()) == {"path between racks r0 and r1"}


def test_one_rail_of_a_node_and_one_leaf_of_a_rail() -> None:
    rails = tuple("0123")
    faults = {("port", "n5", "2"): 0.5, ("port", "n30", "0"): None, ("node", "n50"): 0.5}
    fabric = Fabric(racked(64, 8), dict(faults), rails=rails)
    assert named(fabric.run()) == {"n5/rail 2", "n30/rail 0", "n50"}
    leaf = Fabric(racked(64, 8), {("port", f"n{i}", "1"): 0.5 for i in range(8, 16)}, rails=rails)
    assert named(leaf.run()) == {"leaf of rack r1/rail 1"}


@pytest.mark.parametrize("seed", range(5))
def test_several_rails_of_one_node(seed: int) -> None:
    fabric = Fabric(
        racked(32, 8), {("port", "n5", rail): 0.5 for rail in "0123456"}, rails=tuple("01234567"), seed=seed
    )
    assert named(fabric.run()) == {f"n5/rail {rail}" for rail in "0123456"}


def test_a_single_rail_is_the_node() -> None:
    assert named(Fabric(racked(16, 4), {("node", "n5"): 0.5}, rails=("mlx5_0",)).run()) == {"n5"}


def test_a_hanging_node_is_named_for_a_hang() -> None:
    fabric = Fabric(racked(6, 6), {("node", "n4"): None})
    (culprit,) = fabric.run().culprits
    assert (culprit.device, culprit.outcome) == ("n4", Outcome.HANG)


# --- healthy parts ---


def test_one_noisy_pair_once_is_named_by_nobody_and_said() -> None:
    for node in ("n0", "n7", "n13"):
        fabric = Fabric(racked(16, 4), disturbed={(1, node)})
        diagnosis = fabric.run()
        assert (diagnosis.culprits, diagnosis.suspects) == ((), ())
        assert diagnosis.passed == fabric.fleet.nodes
        assert len(diagnosis.unsteady) == 1
        assert "good when measured again" in diagnosis.unsteady[0]


def test_a_single_slow_measurement_makes_suspects_and_no_culprit() -> None:
    fabric = Fabric(racked(16, 4), {("node", "n5"): 0.5})
    diagnosis = diagnose(fabric.fleet, fabric.measure(across(fabric.fleet)))
    assert diagnosis.culprits == ()
    assert "n5" in diagnosis.suspects[0].nodes
    assert "only one measurement" in diagnosis.suspects[0].why
    assert diagnosis.suspects[0].next


def test_all_equally_slow_names_nobody_and_says_that_the_reference_is_missed() -> None:
    fleet = racked(32, 8)
    fabric = Fabric(fleet, {("node", node): 0.5 for node in fleet.nodes}, expected=0.9 * RATE)
    diagnosis = fabric.run()
    assert (diagnosis.culprits, diagnosis.suspects, diagnosis.passed) == ((), (), ())
    assert any("hardly any reaches the expected value" in note for note in diagnosis.notes)
    assert set(diagnosis.unjudged) == set(fleet.nodes)


def test_when_nothing_passes_nobody_is_named() -> None:
    fleet = racked(32, 8)
    fabric = Fabric(fleet, {("node", node): None for node in fleet.nodes})
    diagnosis = fabric.run()
    assert (diagnosis.culprits, diagnosis.suspects, diagnosis.passed) == ((), (), ())
    assert any("none of 32 pairs passes" in note for note in diagnosis.notes)
    assert fabric.rounds == 2, "more pairs of the same teach nothing"


# --- ambiguous fleets ---


def test_of_two_nodes_and_of_two_racks_neither_end_is_named() -> None:
    two = Fabric(Topology(("n0", "n1")), {("node", "n0"): 0.5}, expected=0.9 * RATE)
    diagnosis = two.run()
    assert diagnosis.culprits == ()
    assert suspected(two) == [{"n0", "n1", "link n0-n1"}]
    assert diagnosis.suspects[0].next == ()
    assert two.rounds == 2, "measured again, and then there is nothing to learn"
    racks = Fabric(racked(16, 8), {("uplink", "r1"): 0.5}, expected=0.9 * RATE)
    assert racks.run().culprits == ()
    assert suspected(racks) == [{"uplink of rack r0", "uplink of rack r1", "path between racks r0 and r1"}]


def test_a_rack_of_two_is_a_leaf_or_two_nodes() -> None:
    racks = {f"n{i}": f"r{i // 4}" for i in range(20)} | {"x": "small", "y": "small"}
    fabric = Fabric(Topology(tuple(racks), racks), {("leaf", "small"): 0.5})
    diagnosis = fabric.run()
    assert diagnosis.culprits == ()
    (devices,) = suspected(fabric)
    assert {"leaf of rack small", "x", "y"} <= devices
    assert "which fits a bad leaf as well as bad nodes" in diagnosis.suspects[0].why


def test_without_racks_a_bad_node_is_named_and_what_is_missing_said() -> None:
    fleet = Topology(tuple(f"n{i}" for i in range(24)))
    fabric = Fabric(fleet, {("node", "n7"): 0.5, ("node", "n8"): 0.5})
    diagnosis = fabric.run()
    assert named(diagnosis) == {"n7", "n8"}
    assert any("no node has gpuprov_rack" in line for line in diagnosis.limits)


def test_what_would_look_the_same_is_said_of_the_culprit() -> None:
    hidden = Fabric(Topology(tuple(f"n{i}" for i in range(16))), {("link", "n1", "n9"): 0.5})
    assert ("n1", "n9") in across(hidden.fleet)
    assert "an uplink would look the same" in hidden.run().culprits[0].why
    racks = {f"n{i}": f"r{i // 4}" for i in range(12)} | {"x": "own"}
    alone = Fabric(Topology(tuple(racks), racks), {("uplink", "own"): 0.5})
    (culprit,) = alone.run().culprits
    assert culprit.device == "x"
    assert "whose leaf or uplink would look the same" in culprit.why
    known = Fabric(racked(16, 4), {("node", "n5"): 0.5})
    assert "look the same" not in known.run().culprits[0].why


def test_a_good_pair_with_a_node_of_unknown_rack_does_not_clear_an_uplink() -> None:
    full = racked(32, 8)
    told = {node: rack for node, rack in full.racks.items() if node not in ("n8", "n9")}
    fabric = Fabric(replace(full, racks=told), {("uplink", "r1"): 0.5}, true_racks=dict(full.racks))
    diagnosis = fabric.run()
    devices = named(diagnosis) | {device for one in diagnosis.suspects for device in one.devices}
    assert "uplink of rack r1" in devices
    assert not {f"n{i}" for i in range(10, 16)} & named(diagnosis)


def test_a_fleet_of_one_is_not_measured_and_does_not_pass() -> None:
    fleet = racked(1, 1)
    assert next_round(fleet, ()) == ()
    diagnosis = diagnose(fleet, ())
    assert diagnosis.passed == ()
    assert diagnosis.unjudged == {"n0": "it was not measured"}
    assert "there is no pair" in diagnosis.limits[0]


# --- errors ---


def failing(fleet: Topology, node: str, end: str = "") -> Sequence[Result]:
    """Return all rounds, with an error in every pair of one node, for which `end` is to blame."""
    results: list[Result] = []
    while pairs := next_round(fleet, results):
        done = max((result.round for result in results), default=0) + 1
        for pair in pairs:
            error = Result(pair, done, Outcome.ERROR, end=end if end in pair else "")
            results.append(error if node in pair else Result(pair, done, value=RATE))
    return results


def test_a_node_whose_every_pair_errors_is_named_for_its_partners_do_well_with_others() -> None:
    fleet = racked(16, 4)
    (culprit,) = diagnose(fleet, failing(fleet, "n6")).culprits
    assert (culprit.device, culprit.outcome) == ("n6", Outcome.ERROR)


def test_the_end_that_is_proved_to_have_failed_is_named_also_in_a_fleet_of_two() -> None:
    fleet = racked(2, 2)
    assert diagnose(fleet, failing(fleet, "n1")).culprits == ()
    diagnosis = diagnose(fleet, failing(fleet, "n1", end="n1"))
    assert named(diagnosis) == {"n1"}
    assert diagnosis.unjudged == {"n0": "it was measured only together with n1"}


def test_a_pair_that_did_not_run_is_tried_again_and_passes_nobody() -> None:
    fleet = racked(8, 4)
    first = across(fleet)
    results = [Result(pair, 1, value=RATE) for pair in first if "n0" not in pair]
    results += [Result(pair, 1, Outcome.NOT_RUN) for pair in first if "n0" in pair]
    second = next_round(fleet, results)
    results += [
        Result(pair, 2, Outcome.NOT_RUN) if "n0" in pair else Result(pair, 2, value=RATE) for pair in second
    ]
    assert diagnose(fleet, results).unjudged == {"n0": "it was not measured"}
    assert any("n0" in pair for pair in next_round(fleet, results))


# --- rounds ---


def test_rounds_are_disjoint_and_end() -> None:
    fleet = racked(24, 8)
    assert next_round(fleet, ()) == across(fleet)
    results = [Result(pair, 1, value=RATE) for pair in across(fleet)]
    assert next_round(fleet, results) == within(fleet, across(fleet))
    results += [Result(pair, MOST_ROUNDS, value=RATE) for pair in within(fleet, across(fleet))]
    assert next_round(fleet, results) == ()


def test_the_order_of_results_does_not_matter() -> None:
    fabric = Fabric(racked(32, 8), {("node", "n3"): 0.5, ("uplink", "r2"): 0.5, ("node", "n20"): None})
    there = fabric.run()
    back = diagnose(fabric.fleet, fabric.results[::-1])
    assert named(there) == named(back) == {"n3", "uplink of rack r2", "n20"}
    assert there.passed == back.passed


# --- groups ---


def test_a_slow_collective_is_resolved_where_rack_and_stripe_cross() -> None:
    fleet = racked(64, 8)
    fabric = Fabric(fleet, {("node", "n21"): 0.5})
    racks = list(fleet.members.values())
    stripes = list(zip(*racks, strict=True))
    results = [result for groups in (racks, stripes) for result in fabric.measure(groups)]
    diagnosis = diagnose(fleet, results)
    assert named(diagnosis) == {"n21"}
    assert "n21" not in diagnosis.passed


def test_a_group_of_the_wrong_size_is_no_evidence() -> None:
    fleet = racked(64, 8)
    fabric = Fabric(fleet)
    racks = list(fleet.members.values())
    results = fabric.measure(racks)
    results[2] = replace(results[2], value=20.0, size=7)
    diagnosis = diagnose(fleet, results)
    assert (diagnosis.culprits, diagnosis.suspects) == ((), ())
    assert any("the tool ran on 7 nodes, not on 8" in note for note in diagnosis.notes)
    assert set(diagnosis.unjudged) == set(racks[2])
