"""Assignment of nodes to waves: properties over random fleets, and typical cases."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.errors import StackError
from provision.up import waves
from provision.up.waves import BATCH, CANARY, Rollout, Share


@dataclass(frozen=True)
class Machines:
    """A random fleet as inventories describe them: a rack has one stage, and kinds are arbitrary."""

    names: tuple[str, ...]
    rollout: Rollout


@st.composite
def fleets(draw: st.DrawFn) -> Machines:
    names = tuple(f"n{number:03d}" for number in range(draw(st.integers(0, 40))))
    racks = draw(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=1, max_size=8))
    stages, atomic = {}, {}
    for name in names:
        rack = draw(st.integers(0, len(racks) - 1))
        is_atomic, stages[name] = racks[rack]
        if is_atomic:
            atomic[name] = f"rack=r{rack}"
    return Machines(
        names,
        Rollout(
            size=draw(
                st.none()
                | st.builds(Share, st.integers(1, 50))
                | st.builds(Share, st.integers(1, 100), st.just(True))
            ),
            canary=draw(st.booleans()),
            stages=stages,
            kinds={
                name: draw(st.sampled_from(["h100 on debian 13", "l40s on debian 12", "b200"]))
                for name in names
            },
            atomic=atomic,
            chosen=frozenset(name for name in names if draw(st.integers(0, 9)) == 0),
            proved=frozenset(draw(st.sets(st.sampled_from(["b200", "h100 on debian 13"])))),
        ),
    )


@given(fleets())
def test_every_node_is_in_exactly_one_wave(fleet: Machines) -> None:
    made = fleet.rollout.waves(fleet.names)
    assert sorted(node for wave in made for node in wave) == sorted(fleet.names)
    assert all(made)


@given(fleets())
def test_nodes_that_stay_together_are_never_split(fleet: Machines) -> None:
    where = {node: number for number, wave in enumerate(fleet.rollout.waves(fleet.names)) for node in wave}
    for group in set(fleet.rollout.atomic.values()):
        assert len({where[node] for node, name in fleet.rollout.atomic.items() if name == group}) == 1


@given(fleets())
def test_no_kind_is_done_in_a_batch_before_one_of_it_was_a_canary(fleet: Machines) -> None:
    rollout = fleet.rollout
    if not rollout.canary or len(fleet.names) < 2:
        assert all(wave.kind == BATCH for wave in rollout.waves(fleet.names))
        return
    seen = set(rollout.proved)
    for wave in rollout.waves(fleet.names):
        kinds = {rollout.kinds[node] for node in wave}
        if wave.kind == CANARY:
            seen |= kinds
        else:
            assert kinds <= seen
            assert not rollout.chosen & set(wave)


@given(fleets())
def test_a_canary_wave_has_nothing_it_does_not_need(fleet: Machines) -> None:
    """Without racks and selected canaries: one node of each new kind, the first in inventory order."""
    plain = Rollout(fleet.rollout.size, True, fleet.rollout.stages, fleet.rollout.kinds)
    seen: set[str] = set()
    for wave in plain.waves(fleet.names):
        if wave.kind == CANARY:
            kinds = [plain.kinds[node] for node in wave]
            assert len(set(kinds)) == len(kinds)
            assert not seen & set(kinds)
            seen |= set(kinds)
            stage = [node for node in fleet.names if plain.stages[node] == plain.stages[wave[0]]]
            for node in wave:
                assert node == next(other for other in stage if plain.kinds[other] == plain.kinds[node])


@given(fleets())
def test_stages_are_done_in_order_and_batches_keep_the_inventorys_order(fleet: Machines) -> None:
    made = fleet.rollout.waves(fleet.names)
    numbers = [{fleet.rollout.stages[node] for node in wave} for wave in made]
    assert all(len(stage) == 1 for stage in numbers)
    assert [min(stage) for stage in numbers] == sorted(min(stage) for stage in numbers)
    first_of: dict[str, int] = {}
    for number, node in enumerate(fleet.names):
        first_of.setdefault(fleet.rollout.atomic.get(node, node), number)
    for stage in set(fleet.rollout.stages.values()):
        batches = [
            node
            for wave in made
            for node in wave
            if wave.kind == BATCH and fleet.rollout.stages[node] == stage
        ]
        places = [first_of[fleet.rollout.atomic.get(node, node)] for node in batches]
        assert places == sorted(places)


@given(fleets())
def test_a_batch_is_no_larger_than_asked_unless_it_is_one_group(fleet: Machines) -> None:
    size = waves.batch_size(fleet.rollout.size, len(fleet.names))
    made = [wave for wave in fleet.rollout.waves(fleet.names) if wave.kind == BATCH]
    for wave in made:
        assert len(wave) <= size or wave.groups == (tuple(wave),)
    for one, two in itertools.pairwise(made):  # each wave takes as many as fit
        if fleet.rollout.stages[one[0]] == fleet.rollout.stages[two[0]]:
            assert len(one) + len(two.together(two[0])) > size


@pytest.mark.parametrize(
    ("wanted", "total", "size"),
    [
        (None, 1, 1),
        (None, 20, 20),
        (None, 21, 20),
        (None, 150, 20),
        (None, 1000, 100),
        (None, 10_000, 1000),
        (Share(7), 12, 7),
        (Share(10, True), 12, 1),
        (Share(1, True), 12, 1),
        (Share(50, True), 12, 6),
    ],
)
def test_how_many_at_a_time(wanted: Share | None, total: int, size: int) -> None:
    assert waves.batch_size(wanted, total) == size


@pytest.mark.parametrize("text", ["", "-1", "1.5", "ten", "101%", "%", "5%%", "¹", "9" * 10])
def test_what_is_no_number_of_nodes(text: str) -> None:
    with pytest.raises(ValueError, match=r"nodes nor a percentage|more than all"):
        waves.share(text)


def test_numbers_and_percentages() -> None:
    assert waves.share("20") == Share(20)
    assert waves.share("5%").of(199) == 9
    assert str(waves.share("5%")) == "5%"


SYSTEM = {"os": {"id": "debian", "version_id": "13"}, "gpu": {"sku": "h100-sxm"}}
OTHER = {"os": {"id": "debian", "version_id": "12"}, "gpu": {"sku": "l40s"}}


def divided(
    declared: dict[str, dict[str, Any]], described: dict[str, Any] | None = None, **options: Any
) -> Any:
    what = described or dict.fromkeys(declared, SYSTEM)
    return waves.rollout(declared, what, **options).waves(list(declared))


def test_one_of_each_kind_and_then_the_rest() -> None:
    names = ["a1", "a2", "b1", "a3", "b2"]
    kinds = {name: SYSTEM if name.startswith("a") else OTHER for name in names}
    made = divided({name: {} for name in names}, kinds)
    assert made == (("a1", "b1"), ("a2", "a3", "b2"))
    assert [wave.kind for wave in made] == [CANARY, BATCH]
    assert waves.kind(OTHER) == "l40s on debian 12"


def test_another_release_of_the_system_is_another_kind() -> None:
    newer = {**SYSTEM, "os": {"id": "debian", "version_id": "14"}}
    assert divided({"a": {}, "b": {}, "c": {}}, {"a": SYSTEM, "b": SYSTEM, "c": newer}) == (
        ("a", "c"),
        ("b",),
    )


def test_a_machine_alone_has_no_canary_and_none_is_made_when_not_wanted() -> None:
    assert [wave.kind for wave in divided({"a": {}})] == [BATCH]
    assert [(wave.kind, *wave) for wave in divided({"a": {}, "b": {}}, canary=False)] == [(BATCH, "a", "b")]


def test_the_inventory_chooses_its_canary() -> None:
    assert divided({"a": {}, "b": {"gpuprov_canary": True}, "c": {}}) == (("b",), ("a", "c"))


def test_a_kind_that_was_proved_before_needs_no_canary() -> None:
    names = ["a", "b", "c"]
    rollout = Rollout(kinds={"a": "h100", "b": "h100", "c": "l40s"}, proved=frozenset({"h100"}))
    assert rollout.waves(names) == (("c",), ("a", "b"))


def test_a_rack_goes_as_one_also_as_a_canary_and_when_it_is_larger_than_a_wave() -> None:
    racks = {
        name: {"gpuprov_atomic": "rack", "rack": name[:2]} for name in ("r1a", "r1b", "r2a", "r2b", "r2c")
    }
    made = divided({**racks, "x": {}}, size=Share(2))
    assert made == (("r1a", "r1b"), ("r2a", "r2b", "r2c"), ("x",))
    assert made[1].together("r2b") == ("r2a", "r2b", "r2c")
    assert made[2].together("x") == ("x",)


@pytest.mark.parametrize("rack", [{}, {"rack": ""}, {"rack": ["r1"]}, {"rack": "{{ x }}"}, {"rack": True}])
def test_a_group_that_cannot_be_known_is_refused(rack: dict[str, Any]) -> None:
    with pytest.raises(StackError, match="gpu-01: gpuprov_atomic is 'rack'"):
        divided({"gpu-01": {"gpuprov_atomic": "rack", **rack}})


def test_a_rack_in_two_stages_is_a_contradiction() -> None:
    declared = {
        f"gpu-0{number}": {"gpuprov_atomic": "rack", "rack": 4, "gpuprov_wave": number} for number in (1, 2)
    }
    with pytest.raises(StackError, match=r"rack=4 must stay together .* 1: gpu-01; 2: gpu-02"):
        divided(declared)


def test_a_wave_is_a_list_of_names_for_programs_and_says_more_when_asked() -> None:
    wave = waves.Wave(["a", "b"], CANARY, [("a", "b")])
    assert json.loads(json.dumps([wave])) == [["a", "b"]]
    assert wave.record() == {"kind": "canary", "nodes": ["a", "b"], "groups": [["a", "b"]]}
