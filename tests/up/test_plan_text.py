"""Plans as text, compared with fixtures/plan; `python tests/up/test_plan_text.py` rewrites these files."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from provision import paths
from provision.desired import expectations, stack
from provision.desired.expectations import HARDWARE, Expectation
from provision.drift import drift_text
from provision.drift.assess import Assessment
from provision.drift.drifts import Drift, drifts
from provision.fleet import Fleet, Node
from provision.remote.reach.observe import Observation
from provision.secrets_mask import HIDDEN
from provision.up import changes, plan, plan_report, waves
from provision.up.changes import Sign
from tests.support.observed import debian, promised, unknown

PLANS = Path(__file__).parent.parent / "fixtures" / "plan"
KERNEL = "6.1.0-40-amd64"
MACHINE = {**debian("12", "bookworm", KERNEL), "kernel.boot_release": KERNEL}
NCCL = "file./etc/nccl.conf.content"
Facts = dict[str, Any]


@functools.cache
def declared(name: str = stack.DEFAULT) -> dict[str, Any]:
    return {"gpuprov_roles": ["nvidia_driver", "cuda_toolkit", "nccl"], **stack.load(name).variables}


def installed(name: str = stack.DEFAULT) -> Facts:
    """Return the facts of a node on which this stack is installed."""
    return {**bare(), **promised(declared(name), MACHINE), **MACHINE}


def bare() -> Facts:
    """Return the facts of a freshly installed Debian machine."""
    facts = {**unknown(expectations.facts_to_ask(declared()), KERNEL), **MACHINE}
    empty: dict[str, Any] = {"status": "absent", "held": False, "loaded": False, "exists": False}
    facts |= {name: empty[end] for name in facts if (end := name.rpartition(".")[2]) in empty}
    settled = {"kernel.initramfs_stale": False, "secure_boot.rejects_dkms": False, "dkms.nvidia.failed": []}
    settled |= {name: [] for name in facts if name.endswith((".overruled_by", ".broken_libraries"))}
    return facts | settled | {"kernel.headers": [], "module.nouveau.loaded": True}


def seen_of(
    nodes: Mapping[str, Facts | str], secrets: tuple[str, ...] = (), problems: Mapping[str, str] | None = None
) -> Assessment:
    """Assess these nodes; a string in place of facts is the error of a node that did not answer."""
    wanted = expectations.of_node(declared(), stack.describe_node(MACHINE))
    said = {
        name: Observation(name, error=facts)
        if isinstance(facts, str)
        else Observation(name, facts, problems or {})
        for name, facts in nodes.items()
    }
    found = {name: drifts(wanted, each) for name, each in said.items() if each.error is None}
    fleet = Fleet(Path("inventory.yml"), {name: Node(name, (), {}) for name in nodes}, {})
    everywhere = {name: {"a_password": list(secrets)} for name in nodes}
    expected = dict.fromkeys(found, wanted)
    return Assessment(fleet, {}, everywhere, {}, frozenset(), said, expected=expected, drifts=found)


def text_of(seen: Assessment, **options: Any) -> str:
    made = plan.make(seen.drifts, seen.observations, rollout=options.pop("rollout", None))
    return drift_text.safe(plan_report.lines(seen, made, **options), seen.secrets)


def of_file() -> Assessment:
    return seen_of({"gpu-01": {**installed(), NCCL: f"{installed()[NCCL]}NCCL_DEBUG=INFO\n"}})


def with_hardware() -> Assessment:
    seen = seen_of({"gpu-01": installed()})
    missing = Expectation(HARDWARE, "gpu.count", "equals", 8, "as set in the inventory")
    seen.drifts["gpu-01"].append(Drift("gpu-01", missing, 7))
    return seen


ALIKE: dict[str, Facts | str] = {
    f"gpu-{number:02}": {**installed(), NCCL: "odd\n"} for number in range(1, 13)
}
CASES: dict[str, Callable[[], str]] = {
    "bare": lambda: text_of(seen_of({"gpu-01": bare()})),
    "bare_verbose": lambda: text_of(seen_of({"gpu-01": bare()}), all_reasons=True),
    "one_file": lambda: text_of(of_file()),
    "one_file_diff": lambda: text_of(of_file(), diff=True),
    "another_stack": lambda: text_of(seen_of({"gpu-01": installed("r570-cuda12.8")})),
    "alike": lambda: text_of(
        seen_of({**ALIKE, "gpu-13": installed(), "gpu-14": "no route to host"}),
        rollout=waves.Rollout(waves.Share(5)),
    ),
    "unread": lambda: text_of(
        seen_of(
            {"gpu-01": installed()}, problems={"package": "dpkg is locked", "driver.flavour": "timed out"}
        )
    ),
    "hardware": lambda: text_of(with_hardware()),
}


@pytest.mark.parametrize("case", CASES)
def test_a_plan_reads_as_it_did(case: str) -> None:
    assert CASES[case]() == (PLANS / f"{case}.txt").read_text(encoding="utf-8")


def test_the_plans_are_those_of_the_cases() -> None:
    assert {file.stem for file in PLANS.iterdir()} == set(CASES)


def test_a_page_shows_one_of_them() -> None:
    page = (paths.DOCS / "upgrade.md").read_text(encoding="utf-8")
    assert (PLANS / "another_stack.txt").read_text(encoding="utf-8") in page


def test_a_file_with_its_mode_and_owner_is_one_thing_and_so_is_a_service() -> None:
    unit = "service.nvidia-persistenced"
    odd = {NCCL: "odd\n", "file./etc/nccl.conf.mode": "0600", f"{unit}.active": "failed"}
    seen = seen_of({"gpu-01": {**installed(), **odd, f"{unit}.enabled": "disabled"}})
    node = plan.make(seen.drifts, seen.observations).nodes["gpu-01"]
    items = changes.of_node(node)
    assert [len(of_role) for of_role in items.values()] == [1, 1]
    assert changes.count(items) == {**dict.fromkeys(Sign, 0), Sign.CHANGE: 2}
    assert items["nvidia_driver"][0].text.endswith("is failed and disabled, must be active and enabled")
    assert items["nccl"][0].text.endswith("; mode 0600 → 0644")


def test_nodes_count_each_for_themselves() -> None:
    seen = seen_of(ALIKE)
    made = plan.make(seen.drifts, seen.observations)
    assert changes.count_all(made)[Sign.CHANGE] == len(ALIKE)
    assert (
        plan_report.lines(seen, made)[-1].partition(": ")[2].startswith("0 to add, 12 to change, 0 to remove")
    )


def test_nodes_whose_files_differ_later_on_are_not_alike_where_the_whole_difference_is_shown() -> None:
    seen = seen_of({f"gpu-{end}": {**installed(), NCCL: f"odd\n{end}\n"} for end in "ab"})
    assert text_of(seen).count("(2 nodes)") == 1
    assert text_of(seen, diff=True).count("(1 node)") == 2


def test_a_diff_shows_no_secret_not_even_the_one_that_was_replaced() -> None:
    template = Expectation("nccl", NCCL, "template", "url=https://me:new-word@mirror\n", "why")
    seen = seen_of({"gpu-01": installed()}, ("new-word",))
    seen.drifts["gpu-01"].append(Drift("gpu-01", template, "a=1\nurl=https://me:old-word@mirror\n"))
    shown = text_of(seen, diff=True).split("@@")[-1]
    assert "-a=1" in shown
    assert HIDDEN in shown
    assert "word" not in shown


def test_markdown_ends_before_github_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = {f"gpu-{number:03}": {**installed(), NCCL: f"{number}\n"} for number in range(40)}
    seen = seen_of(nodes)
    made = plan.make(seen.drifts, seen.observations)
    whole = drift_text.safe(plan_report.markdown(seen, made))
    assert "not shown whole" not in whole
    monkeypatch.setattr(drift_text, "SUMMARY", 8_000)
    cut = drift_text.safe(plan_report.markdown(seen, made))
    assert 4_000 < len(cut.encode()) < 8_500
    assert cut.count("<details>") == cut.count("</details>") < 40
    assert "of 40 groups of nodes are not shown whole here: `gpuprov plan --json` has them all" in cut
    assert "would change 40 nodes" in cut


def test_markdown_names_causes_and_silent_nodes_as_far_as_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent = {f"gpu-{number}": f"answer {number}" for number in range(2, 200)}
    seen = seen_of({"gpu-1": bare(), **silent})
    made = plan.make(seen.drifts, seen.observations)
    whole = "\n".join(plan_report.markdown(seen, made))
    assert "- gpu-1  nouveau is loaded and holds the GPUs" in whole
    assert whole.count("unreadable: answer ") == len(silent)
    monkeypatch.setattr(drift_text, "SUMMARY", 16_000)
    cut = "\n".join(plan_report.markdown(seen, made))
    left = len(silent) - cut.count("unreadable: answer ")
    assert 0 < left < len(silent)
    assert f"\n- and {left} more\n" in cut
    assert len(cut.encode()) < 16_000


if __name__ == "__main__":
    PLANS.mkdir(exist_ok=True)
    for name, made in CASES.items():
        (PLANS / f"{name}.txt").write_text(made(), encoding="utf-8")
    sys.stdout.write(f"wrote {len(CASES)} plans to {PLANS}\n")
