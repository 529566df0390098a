"""Two independent readers, the observer and testinfra, read every promise of a node alike.

This holds after `up`, and with each promise broken in turn. `pytest --pyargs provision.drift.testinfra` then
reports the same as `gpuprov drift`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.api import fleets
from provision.api.source import Source, overrides
from provision.desired import inventory
from provision.desired.expectations import HARDWARE, Expectation
from provision.drift import assess
from provision.drift.testinfra.fleet import Suite
from provision.drift.testinfra.readers import Reader, Unreadable
from provision.errors import ExitCode
from tests.lab import breakers
from tests.lab.lab_nodes import Lab, running_lab

ROOT = Path(__file__).resolve().parents[2]
NODE = "read-01"
# One role of each kind; the others promise facts of the same families, and take long to install.
ROLES = ["nvidia_repository", "nvidia_driver", "nvlink", "nccl", "container_toolkit", "host_settings"]
CHOSEN = f"gpuprov_roles=[{', '.join(ROLES)}]"
pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

# Only gpuprov reads these families; the suite reports and counts each such fact.
OURS_ALONE = frozenset(
    {"clock", "container", "cpu", "dkms", "fabric", "limits", "memory", "mig", "packages", "pci", "rdma"}
)
# Only the loader knows which libraries load.
OURS_IN_A_FAMILY = frozenset({"driver.broken_libraries"})
WITHOUT_A_TOOL = frozenset({"kernel", "secure_boot", "container_runtime", "pgp_key"})


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(
        "read", (NodeSpec(NODE, "b200"),), tmp_path_factory.mktemp("lab") / "lab.yml"
    ) as running:
        yield running


@pytest.fixture(scope="module")
def call(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("work")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GPUPROV_RUNS": str(folder / "runs")}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", *words],
            capture_output=True,
            text=True,
            timeout=1000,
            check=False,
            cwd=folder,
            env={**environment, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        )

    done = run("provision.cli", "up", str(lab.inventory), "--set", CHOSEN)
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    return run


class Readers:
    """Both readers of one node."""

    def __init__(self, lab: Lab) -> None:
        self.fleet = inventory.load(lab.inventory)
        source = Source(inventories=(lab.inventory,), variables=overrides([CHOSEN]))
        loaded = fleets.load(source)
        self.suite = Suite(loaded.fleet, loaded.overrides)
        self.promised: list[Expectation] = []

    def ours(self, needed: Collection[str] | None = None) -> dict[str, Any]:
        """Read the promised facts with the observer, in one observation.
        Facts in `needed` (by default all) must be readable."""
        seen = assess.assess(self.fleet, {"gpuprov_roles": ROLES})
        self.promised = [each for each in seen.expected[NODE] if each.role != HARDWARE]
        said = seen.observations[NODE]
        assert said.error is None, said.error
        promised = {each.fact for each in self.promised}
        assert not (promised if needed is None else {*needed}) & set(said.problems), said.problems
        return {fact: said.facts[fact] for fact in promised if fact in said.facts}

    def theirs(self, facts: Any) -> tuple[dict[str, Any], dict[str, str]]:
        """Read the same with testinfra; return the values, and the reasons for unreadable ones."""
        reader = Reader(self.suite.readers[NODE].host)
        found: dict[str, Any] = {}
        unread: dict[str, str] = {}
        for fact in facts:
            try:
                found[fact] = reader.read(fact)
            except Unreadable as why:
                unread[fact] = str(why)
        return found, unread


@pytest.fixture(scope="module")
def readers(lab: Lab, call: Any) -> Iterator[Readers]:
    assert call
    both = Readers(lab)
    yield both
    both.suite.close()


def test_both_read_a_node_that_is_as_declared_the_same(readers: Readers) -> None:
    ours = readers.ours()
    theirs, unread = readers.theirs(ours)
    assert {fact: (ours[fact], value) for fact, value in theirs.items() if ours[fact] != value} == {}
    families = {fact.partition(".")[0] for fact in unread.keys() - OURS_IN_A_FAMILY}
    assert families <= OURS_ALONE | WITHOUT_A_TOOL, unread
    assert len(theirs) > 100
    assert all(each.holds(ours[each.fact]) for each in readers.promised)


def can_break(expectation: Expectation) -> bool:
    """Whether a command can break it; facts of hardware or a daemon are left to other tests."""
    try:
        return bool(breaks(expectation))
    except LookupError:
        return False


def breaks(expectation: Expectation) -> str:
    """Return a root command that breaks a promise wherever a node shows it. Raises LookupError."""
    family, _, rest = expectation.fact.partition(".")
    if family == "module":
        name = rest.rpartition(".")[0]
        return f"modprobe -r {name}" if expectation.value else f"modprobe {name}"
    if expectation.fact == "driver.loaded_version":  # the kernel shows the version in two places
        both = breakers.command(expectation)
        return f"{both}; echo 470.00.01 > /sys/module/nvidia/version"
    return breakers.command(expectation)


def rounds(promised: list[Expectation]) -> Iterator[list[Expectation]]:
    """Yield the promises to break together: in each round one per file, package and unit.
    Those read by nvidia-smi come first and alone: once the driver is broken, it reports no GPUs."""
    left = list({each.fact: each for each in promised}.values())
    said_by_tool = [each for each in left if each.fact.startswith("nvidia_smi.")]
    if said_by_tool:
        yield said_by_tool
        left = [each for each in left if each not in said_by_tool]
    while left:
        items: set[str] = set()
        chosen = []
        for each in left:
            item = each.fact.rpartition(".")[0]
            if item not in items:
                items.add(item)
                chosen.append(each)
        yield chosen
        left = [each for each in left if each not in chosen]


def test_both_see_every_promise_that_is_broken(readers: Readers, lab: Lab) -> None:
    readers.ours()
    _, unread = readers.theirs({each.fact for each in readers.promised})
    planted = 0
    both_read = [each for each in readers.promised if each.fact not in unread and can_break(each)]
    for chosen in rounds(both_read):
        script = "\n".join(f"( {breaks(each)} ) || echo 'FAILED: {each.fact}'" for each in chosen)
        done = lab.node(NODE).run(f"sudo bash -s <<'BREAK' 2>&1\n{script}\nBREAK")
        assert "FAILED" not in done.stdout, done.stdout
        # nvidia-smi fails once the driver's version differs.
        ours = readers.ours({each.fact for each in chosen})
        theirs, _ = readers.theirs(each.fact for each in chosen)
        differ = {fact: (ours.get(fact), value) for fact, value in theirs.items() if ours.get(fact) != value}
        assert differ == {}
        still = [each.fact for each in chosen if each.holds(ours[each.fact]) or each.holds(theirs[each.fact])]
        assert still == [], "the promise was not broken"
        planted += len(chosen)
    assert planted > 100
    sys.stderr.write(f"{planted} promises broken, seen by both readers\n")


def test_the_suite_then_fails_where_drift_says_so_and_nowhere_else(
    lab: Lab, call: Any, tmp_path: Path
) -> None:
    found = json.loads(call("provision.cli", "drift", str(lab.inventory), "--set", CHOSEN, "--json").stdout)
    drifted = {f"{each['role']}/{each['fact']}" for each in found["drifts"]}
    done, cases = run_suite(call, lab, tmp_path)
    assert done.returncode == 1, done.stdout[-3000:]
    named = {name for name, outcome in cases.items() if outcome == "failed"}
    unread = {name for name, outcome in cases.items() if outcome == "skipped"}
    assert named == drifted - unread
    assert len(named) > 80
    said = [line for line in done.stdout.splitlines() if line.startswith("gpuprov: ")]
    assert all(" facts not read independently: " in line for line in said)
    assert sum(int(line.split()[1]) for line in said) == list(cases.values()).count("skipped") > 0


def run_suite(call: Any, lab: Lab, folder: Path) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    """Run the suite as CI does, and read the outcome of each role/fact from its JUnit file."""
    report = folder / "suite.xml"
    done = call(
        *("pytest", "-q", "-c", os.devnull, "--rootdir", str(folder), "-p", "no:cacheprovider"),
        *("-p", "gpuprov.pytest_plugin", "--pyargs", "provision.drift.testinfra"),
        *("--gpuprov-inventory", str(lab.inventory), "--gpuprov-set", CHOSEN, "--junitxml", str(report)),
    )
    cases: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 - our own file
        name = str(case.get("name")).partition(f"[{NODE}-")[2].rpartition("]")[0].partition("#")[0]
        tags = {child.tag for child in case}
        outcome = "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
        if cases.get(name) != "failed":
            cases[name] = outcome
    return done, cases
