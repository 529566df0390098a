"""Node lists: each node is in either pass or exclude, and a hostile name cannot act as syntax."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest

from provision import report
from provision.checks.health import FleetHealth, NodeHealth
from provision.checks.judge import Verdict
from provision.report import nodes
from tests.support import samples


def lists(fleet: FleetHealth, folder: Path) -> dict[str, list[str]]:
    report.write_all(fleet, folder, ["nodes"])
    kinds = ("pass", "fail", "exclude")
    return {kind: (folder / f"nodes.{kind}").read_text().splitlines() for kind in kinds}


def named(verdicts: dict[str, Verdict]) -> FleetHealth:
    found = tuple(NodeHealth(name, verdict, ()) for name, verdict in verdicts.items())
    return FleetHealth("r", "0", "", "", "", (), found)


def test_whatever_is_not_proven_healthy_is_excluded(tmp_path: Path) -> None:
    found = lists(named({v.value: v for v in Verdict}), tmp_path)
    assert found == {"pass": ["pass", "warn"], "fail": ["fail"], "exclude": ["error", "fail", "skip"]}
    for fleet in (samples.demo(), samples.unmeasured(), samples.interrupted(), samples.nothing()):
        found = lists(fleet, tmp_path)
        assert set(found["pass"]).isdisjoint(found["exclude"])
        assert {*found["pass"], *found["exclude"]} == {node.node for node in fleet.nodes}
        assert set(found["fail"]) <= set(found["exclude"])
    assert lists(samples.interrupted(), tmp_path) == {"pass": ["gpu-01"], "fail": [], "exclude": ["gpu-02"]}


def test_a_pass_without_all_its_checks_proves_nothing(tmp_path: Path) -> None:
    good = samples.checks(1)
    short = dataclasses.replace(samples.node("gpu-01", good[:3]), verdict=Verdict.PASS)
    lost = dataclasses.replace(samples.node("gpu-02", good), error="stopped answering")
    found = lists(samples.fleet(short, lost, samples.node("gpu-03", good)), tmp_path)
    assert found == {"pass": ["gpu-03"], "fail": [], "exclude": ["gpu-01", "gpu-02"]}


HOSTILE = (
    "-oProxyCommand=x",
    "--exclude",
    "a b",
    "a,b",
    "a;reboot",
    "$(reboot)",
    "`reboot`",
    "a\nb",
    "a\n",
    "n[1-9]",
    "root@n1",
    "../n1",
    "/etc/passwd",
    "^n1",
    "#n1",
    "n1=x",
    "ALL",
    "all",
    "",
    "fe80::1%$(x)",
    "é1",
    "n\u0661",
    "\u212a1",  # the Kelvin sign, which equals k if case is ignored
    "x" * 300,
)


def test_a_name_that_is_none_is_in_no_list_and_told(tmp_path: Path) -> None:
    fleet = named({**dict.fromkeys(HOSTILE, Verdict.FAIL), "gpu-1": Verdict.PASS, "fe80::1": Verdict.PASS})
    assert lists(fleet, tmp_path) == {"pass": ["fe80::1", "gpu-1"], "fail": [], "exclude": []}
    said = nodes.left_out(fleet)
    assert f"{len(HOSTILE)} nodes" in said
    assert "\n" not in said
    assert nodes.left_out(named({"gpu-1": Verdict.FAIL})) == ""


def test_every_byte_of_hostile_fleets_is_harmless(tmp_path: Path) -> None:
    for fleet in (samples.hostile(), named(dict.fromkeys(HOSTILE, Verdict.ERROR))):
        report.write_all(fleet, tmp_path, ["nodes"])
        for path in tmp_path.glob("nodes.*"):
            for line in path.read_text().splitlines():
                assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.:,\[\]-]*", line), line


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ([], ""),
        (["gpu-01"], "gpu-01"),
        (["gpu-08", "gpu-09", "gpu-10", "gpu-12"], "gpu-[08-10,12]"),
        (["n8", "n9", "n10", "n11"], "n[8-9,10-11]"),
        (["n1", "n01", "n2"], "n[1-2,01]"),
        (["a1b", "a2b"], "a1b,a2b"),  # Slurm accepts ranges only at the end
        (["gpu", "gpu1", "gpu2"], "gpu,gpu[1-2]"),
        (["gpu-1.pod.example", "gpu-2.pod.example"], "gpu-1.pod.example,gpu-2.pod.example"),
        (["10.0.0.9", "10.0.0.10"], "10.0.0.[9,10]"),
        (["fe80::1", "fe80::2"], "fe80::1,fe80::2"),
    ],
)
def test_folding(names: list[str], folded: str) -> None:
    assert nodes.folded(names) == folded


def expand(text: str) -> list[str]:
    """Expand a host list as Slurm and pdsh do."""
    names = []
    for piece in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        before, _, rest = piece.partition("[")
        for each in rest.rstrip("]").split(",") if rest else [None]:
            if each is None:
                names.append(before)
                continue
            first, _, last = each.partition("-")
            numbers = range(int(first), int(last or first) + 1)
            names += [f"{before}{number:0{len(first)}d}" for number in numbers]
    return names


def test_a_folded_list_expands_to_the_same_names(tmp_path: Path) -> None:
    odd = [
        f"{a}{n}{b}"
        for a, n, b in product(("n", "gpu-", "r1-"), ("1", "01", "2", "10", "099", "100"), ("", "x"))
    ]
    for fleet in (samples.large(300), named(dict.fromkeys(odd, Verdict.FAIL))):
        found = lists(fleet, tmp_path)
        for kind, names in found.items():
            text = (tmp_path / f"nodes.{kind}.folded").read_text()
            assert text.count("\n") == bool(names)
            assert sorted(expand(text.strip())) == sorted(names)
            if names and shutil.which("scontrol"):
                answer = subprocess.run(
                    ["scontrol", "show", "hostnames", text.strip()],
                    capture_output=True,
                    text=True,
                    timeout=20,
                    check=True,
                )
                assert sorted(answer.stdout.split()) == sorted(names)
