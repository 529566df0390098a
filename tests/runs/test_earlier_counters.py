"""Counters of RDMA ports from an earlier validate run, used when the health program has none."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from provision.checks.judging.node_facts import NodeFacts
from provision.runs.earlier_counters import earlier_counters
from provision.runs.store import RunFolder

HOUR = 3600


def facts(hours: int, downs: int, boot: str = "a", **more: Any) -> dict[str, Any]:
    port = {"device": "mlx5_0", "port": "1"}
    return {
        **{"boot.id": boot, "clock.uptime_s": hours * HOUR, "hca.ports": [{**port, "carrier_downs": None}]},
        **{"hca.counters": [{**port, "link_downed": downs}], "hca.earlier": None, **more},
    }


def run(home: Path, **nodes: dict[str, Any]) -> RunFolder:
    folder = RunFolder.create("validate", {}, home)
    for name, known in nodes.items():
        folder.append("facts", asdict(NodeFacts(name, known, {}, {})))
    return folder


def downs(found: dict[str, list[dict[str, Any]]]) -> dict[str, tuple[int, int]]:
    return {name: (one[0]["uptime"] // HOUR, one[0]["link_downed"]) for name, one in found.items()}


def test_the_newest_run_of_a_day_ago_counts_else_the_oldest_of_this_boot(tmp_path: Path) -> None:
    run(tmp_path, a=facts(100, 1), b=facts(100, 1, boot="before"), c=facts(100, 1))
    run(tmp_path, a=facts(120, 2), b=facts(1, 2))
    run(tmp_path, a=facts(140, 3), b=facts(2, 3))
    now = run(tmp_path)
    told: dict[str, Any] = {"hca.earlier": [{"uptime": 5}]}
    seen = {"a": facts(145, 9), "b": facts(3, 9), "c": facts(101, 9, **told), "d": facts(9, 9), "e": {}}
    assert downs(earlier_counters(now, seen)) == {"a": (120, 2), "b": (1, 2)}
    assert downs(earlier_counters(run(tmp_path), {"b": facts(3, 9, boot="next")})) == {}


def test_a_damaged_run_is_passed_over(tmp_path: Path) -> None:
    run(tmp_path, a=facts(100, 1))
    damaged = run(tmp_path, a=facts(120, 2))
    (damaged.path / "facts.jsonl").write_text('{"node": "a", "facts": 3}\n')
    assert downs(earlier_counters(run(tmp_path), {"a": facts(145, 9)})) == {"a": (100, 1)}


def test_what_one_node_answered_costs_no_other_node_its_comparison(tmp_path: Path) -> None:
    names = [f"n{number}" for number in range(20)]
    run(
        tmp_path,
        odd={**facts(100, 1), "hca.ports": [3]},
        none=facts(100, 1),
        **{name: facts(100, 1) for name in names},
    )
    seen = {name: facts(130, 9) for name in (*names, "odd")}
    seen["none"] = {**facts(130, 9), "boot.id": None}
    assert downs(earlier_counters(run(tmp_path), seen)) == dict.fromkeys(names, (100, 1))


def test_a_node_whose_boot_is_not_known_is_not_compared(tmp_path: Path) -> None:
    unknown = {name: value for name, value in facts(100, 1).items() if name != "boot.id"}
    run(tmp_path, a=unknown)
    assert earlier_counters(run(tmp_path), {"a": {**unknown, "clock.uptime_s": 130 * HOUR}}) == {}
