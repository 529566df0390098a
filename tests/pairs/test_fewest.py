"""The cheapest explanation, compared with an exhaustive search."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from provision.checks.pairs import blame
from provision.checks.pairs.blame import IMPOSSIBLE, cheapest, components

COSTS = {name: 1 + index % 3 for index, name in enumerate("abcdefg")}


def by_trying(rows: list[frozenset[str]], without: set[str]) -> int:
    sets = (chosen for size in range(len(COSTS) + 1) for chosen in combinations(set(COSTS) - without, size))
    return min(
        (
            sum(COSTS[name] for name in chosen)
            for chosen in sets
            if not any(row.isdisjoint(chosen) for row in rows)
        ),
        default=IMPOSSIBLE,
    )


ROWS = st.lists(st.frozensets(st.sampled_from(sorted(COSTS)), min_size=1, max_size=4), max_size=8)


@given(ROWS, st.sets(st.sampled_from(sorted(COSTS)), max_size=3))
def test_it_is_the_cheapest_of_all(rows: list[frozenset[str]], without: set[str]) -> None:
    cover = cheapest(rows, COSTS, without)
    assert cover.least == cover.most == by_trying(rows, without)
    if cover.most < IMPOSSIBLE:
        assert not any(row.isdisjoint(cover.causes) for row in rows)
        assert sum(COSTS[name] for name in cover.causes) == cover.most
        assert without.isdisjoint(cover.causes)


def test_what_is_too_large_to_solve_is_bounded_from_both_sides(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(blame, "_STEPS", 1)
    pairs = [frozenset(pair) for pair in combinations("abcdefg", 2)]
    cover = cheapest(pairs, dict.fromkeys(COSTS, 1))
    assert cover.least <= 6 <= cover.most
    assert cover.least < cover.most


def test_rows_that_share_no_cause_are_apart() -> None:
    rows = [frozenset("ab"), frozenset("cd"), frozenset("bc"), frozenset("e")]
    assert sorted(sorted("".join(sorted(row)) for row in group) for group in components(rows)) == [
        ["ab", "bc", "cd"],
        ["e"],
    ]
