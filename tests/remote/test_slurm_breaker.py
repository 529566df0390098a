"""Permits and the shared breaker on drains, stored as reservations: granted, refused, unknown."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from provision.remote.schedulers import slurm_breaker
from provision.remote.schedulers.slurm_breaker import OPEN, PERMIT, UnknownError, close, limit, opened, permit
from tests.support.reservations import Reservations


@pytest.mark.parametrize(
    ("nodes", "share", "least", "most"), [(1000, 10, 3, 100), (29, 10, 3, 3), (40, 10, 3, 4), (2, 0, 1, 1)]
)
def test_the_limit_is_a_share_of_the_partition_and_some_nodes_at_least(
    nodes: int, share: float, least: int, most: int
) -> None:
    assert limit(nodes, share, least) == most


def test_as_many_drains_as_the_limit_and_then_the_breaker_is_open_until_a_person_closes_it() -> None:
    slurm = Reservations()
    assert [permit(slurm, ["gpu"]) for _ in range(10)] == [""] * 10
    assert sorted(slurm.there) == sorted(f"{PERMIT}.gpu.{number}" for number in range(1, 11))
    assert opened(slurm) is None
    why = permit(slurm, ["gpu"])
    assert "gpu has had 10 of its 100 nodes drained within an hour" in why
    assert "gpuprov watch breaker --close" in why
    assert opened(slurm) == "gpu has had 10 of its 100 nodes drained within an hour"
    for name in [name for name in slurm.there if name != OPEN]:
        del slurm.there[name]  # an hour later
    assert "is open" in permit(slurm, ["gpu"])
    close(slurm)
    assert slurm.there == {}
    assert permit(slurm, ["gpu"]) == ""


def test_closing_gives_all_permits_back_and_leaves_reservations_of_others() -> None:
    slurm = Reservations(there={"maintenance": "", OPEN: "", f"{PERMIT}.gpu.7": "", f"{PERMIT}ers": ""})
    deleted: list[str] = []

    def run(words: Sequence[str]) -> tuple[int, str]:
        deleted.extend(words[1:] if words[0] == "delete" else ())
        return slurm(words)

    close(run)
    assert set(slurm.there) == {"maintenance", f"{PERMIT}ers"}
    assert deleted[-1] == f"ReservationName={OPEN}", "until then nobody takes a permit"


def test_a_node_of_two_partitions_needs_a_permit_in_both_and_keeps_none_where_one_is_full() -> None:
    slurm = Reservations({"all": 100, "big": 20})
    assert [permit(slurm, ["all", "big"]) for _ in range(3)] == [""] * 3
    assert "big has had 3 of its 20" in permit(slurm, ["all", "big"])
    assert sum(name.startswith(f"{PERMIT}.all") for name in slurm.there) == 3
    close(slurm)
    slurm.there.update({f"{PERMIT}.all.{number}": "" for number in range(1, 11)})
    assert "all has had 10 of its 100" in permit(slurm, ["all", "big"])
    assert not [name for name in slurm.there if name.startswith(f"{PERMIT}.big")]


def test_a_node_of_no_partition_asks_for_the_breaker_alone() -> None:
    slurm = Reservations()
    assert permit(slurm, []) == ""
    slurm.there[OPEN] = "ann looks into it"
    assert "(ann looks into it)" in permit(slurm, [])
    assert set(slurm.there) == {OPEN}


def test_an_older_release_knows_no_comment() -> None:
    slurm = Reservations(comments=False)
    slurm_breaker.open_it(slurm, "why")
    slurm_breaker.open_it(slurm, "again")
    assert opened(slurm) == "no reason is given"


@pytest.mark.parametrize("refused", ["reservation", "partition", "create"])
@pytest.mark.parametrize("text", ["Unable to contact slurm controller (connect failure)\n", ""])
def test_what_cannot_be_read_or_taken_is_unknown_and_nothing_is_kept(refused: str, text: str) -> None:
    slurm = Reservations()
    slurm.refuses[refused] = text or "\n"
    with pytest.raises(UnknownError, match=r"scontrol (show|create) .*(connect failure|printed nothing)"):
        permit(slurm, ["gpu"])
    assert slurm.there == {}


def test_an_empty_answer_is_not_a_closed_breaker() -> None:
    with pytest.raises(UnknownError):
        opened(lambda _: (0, ""))


def test_a_strange_name_of_a_partition_is_refused_and_permits_before_it_are_given_back() -> None:
    slurm = Reservations({"a": 10})
    for name in ("x y", "-o", "", "a,b", "x" * 200):
        with pytest.raises(UnknownError, match="cannot be used"):
            permit(slurm, ["a", name])
    assert slurm.there == {}


def test_many_that_have_all_seen_the_same_free_permits_never_exceed_the_limit() -> None:
    slurm, lock, count = Reservations(), threading.Lock(), 40
    together = threading.Barrier(count)

    def program(_: int) -> str:
        lists = 0

        def run(words: Sequence[str]) -> tuple[int, str]:
            nonlocal lists
            with lock:
                answer = slurm(words)
            lists += words[:2] == ("show", "reservation")
            if lists == 2 and words[1] == "reservation" and words[0] == "show":
                together.wait(20)
            return answer

        return permit(run, ["gpu"])

    with ThreadPoolExecutor(count) as threads:
        answers = list(threads.map(program, range(count)))
    assert answers.count("") == 10
    assert len(slurm.there) == 11
    assert opened(slurm) is not None
