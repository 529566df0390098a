"""gpuprov validate compares nodes with each other and with their history; rejudging agrees."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from provision.checks.health import from_json
from provision.errors import ExitCode
from provision.validate import campaign
from tests.support.machines import FIXTURES, HEALTHY, Machines
from tests.support.machines import machines as machines
from tests.support.machines import validate as validate

RATE = re.compile(r"\((\d+) Gflop/s\)")


def burning(path: Path, *slow: int, share: float = 0.75) -> dict[str, str]:
    """Return a node's healthy output with the rates of these GPUs scaled down."""
    text = (FIXTURES / HEALTHY["gpu_burn"]).read_bytes().decode()
    lines = []
    for line in re.split(r"(\r|\n)", text):
        seen = iter(range(8))
        lines.append(
            RATE.sub(
                lambda m, seen=seen: f"({round(int(m[1]) * (share if next(seen) in slow else 1))} Gflop/s)",
                line,
            )
        )
    path.write_bytes("".join(lines).encode())
    return {**HEALTHY, "gpu_burn": str(path)}


def findings(report: dict[str, Any], node: str) -> list[dict[str, Any]]:
    (found,) = [one for one in report["nodes"] if one["node"] == node]
    return [f for check in found["checks"] for f in check["findings"] if f["verdict"] != "pass"]


def test_a_node_that_is_slow_as_a_whole_is_found_by_its_fleet(
    machines: Machines, validate: Any, tmp_path: Path
) -> None:
    for i in range(1, 6):
        machines.add(f"gpu-0{i}")
    machines.tools["gpu-03"] = burning(tmp_path / "slow.txt", *range(8))
    code, report, folder = validate("--checks", "gpu_burn")
    assert code == ExitCode.UNHEALTHY
    (finding,) = findings(report, "gpu-03")
    assert (finding["device"], finding["verdict"], finding["action"]) == ("node", "fail", "investigate")
    assert "of 5 nodes of h100-sxm" in finding["message"]
    assert all(not findings(report, f"gpu-0{i}") for i in (1, 2, 4, 5))
    rows = [json.loads(line) for line in (folder / "findings.jsonl").read_text().splitlines()]
    assert [row["node"] for row in rows if row["verdict"] == "fail"] == ["gpu-03"]
    assert campaign.rejudge(folder) == from_json(report)


def test_few_nodes_say_that_nobody_was_compared(machines: Machines, validate: Any, tmp_path: Path) -> None:
    machines.add("gpu-01")
    machines.add("gpu-02", burning(tmp_path / "slow.txt", *range(8)))
    code, report, folder = validate("--checks", "gpu_burn")
    assert code == ExitCode.OK, "nobody can say which of the two is right"
    assert report["not_compared"] == ["h100-sxm: 2 nodes; it takes 4 to compare them"]
    for name in ("report.html", "report.md"):
        assert "ot compared with the fleet: h100-sxm: 2 nodes" in (folder / name).read_text()


def test_a_gpu_that_is_bad_again_after_two_runs_without_it_is_to_be_replaced(
    machines: Machines, validate: Any, tmp_path: Path
) -> None:
    slow = burning(tmp_path / "slow.txt", 3)
    actions, folders = [], []
    for _ in range(3):
        machines.add("gpu-01", dict(HEALTHY))
        assert findings(validate("--checks", "gpu_burn")[1], "gpu-01") == []
        machines.add("gpu-01", slow)
        _, report, folder = validate("--checks", "gpu_burn")
        (finding,) = findings(report, "gpu-01")
        assert finding["device"] == "gpu3"
        actions.append(finding["action"])
        folders.append(folder)
        assert campaign.rejudge(folder) == from_json(report)
    assert actions == ["investigate", "investigate", "replace part"]
    assert folders[0].name in finding["evidence"][-1]
    assert folders[1].name in finding["evidence"][-1]


def test_three_looks_at_one_bad_gpu_are_no_reason_to_replace_it(
    machines: Machines, validate: Any, tmp_path: Path
) -> None:
    machines.add("gpu-01", burning(tmp_path / "slow.txt", 3))
    found = [findings(validate("--checks", "gpu_burn")[1], "gpu-01")[0]["action"] for _ in range(3)]
    assert found == ["investigate"] * 3


def test_judging_an_old_run_again_does_not_learn_of_later_ones(
    machines: Machines, validate: Any, tmp_path: Path
) -> None:
    machines.add("gpu-01", burning(tmp_path / "slow.txt", 3))
    _, first, folder = validate("--checks", "gpu_burn")
    for _ in range(3):
        validate("--checks", "gpu_burn")
    assert campaign.rejudge(folder) == from_json(first)
