"""The commands run against nodes: `gpuprov drift` as users run it, and its floors.
`drift` has one role that declares the expectations. A floor is `xargs -P ssh host …` with a command that does
nothing."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.costs import ROOT, Cost, environment
from benchmarks.costs import gpuprov as command_line
from benchmarks.expected import Expected
from benchmarks.nodes import Nodes, in_parallel
from benchmarks.results import as_installed

CONNECTIONS = 32  # of every contender


@dataclass(frozen=True)
class Work:
    """A command to run in `folder`; `differences` parses its output: observed node → count."""

    command: Sequence[str | Path]
    folder: Path
    differences: Callable[[Cost], Mapping[str, int]]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Contender:
    """A named command; `make` writes the files it needs into a folder."""

    name: str
    make: Callable[[Nodes, Sequence[Expected], Path], Work]


ROLE = "benchmark"
RELEASES = ("debian 12", "debian 13", "ubuntu 22.04", "ubuntu 24.04")


def running(*command: str) -> Callable[[Nodes, Sequence[Expected], Path], Work]:
    def make(nodes: Nodes, expected: Sequence[Expected], folder: Path) -> Work:  # noqa: ARG001
        words = in_parallel(nodes, command, CONNECTIONS, folder)
        return Work(words, folder, lambda cost: {} if cost.code else dict.fromkeys(nodes.names, 0))

    return make


FLOOR = Contender("ssh host true (F)", running("true"))
PYTHON = Contender("ssh host python3 -c pass", running("/usr/bin/python3", "-c", "pass"))
BARE_PYTHON = Contender(
    "ssh host python3 -I -S -c pass", running("/usr/bin/python3", "-I", "-S", "-c", "pass")
)


def installed(folder: Path, expected: Sequence[Expected]) -> Path:
    """Install the package as a wheel would, with one extra role. Returns the folder for PYTHONPATH."""
    place = folder / "installed"
    package = place / "provision"
    shutil.copytree(ROOT / "provision", package, ignore=shutil.ignore_patterns("__pycache__", "_packed"))
    for name in ("roles", "playbooks"):
        shutil.copytree(ROOT / name, package / "_packed" / name)
    up = package / "_packed" / "playbooks" / "up.yml"
    up.write_text(up.read_text() + f"    - role: {ROLE}\n")
    role = package / "_packed" / "roles" / ROLE
    for name in ("vars", "templates"):
        (role / name).mkdir(parents=True)
    for family in ("debian", "ubuntu"):
        releases = [release for release in RELEASES if release.startswith(family)]
        (role / "vars" / f"{family}.yml").write_text(json.dumps({f"__{ROLE}_releases": releases}))
    (role / "expect.yml").write_text(json.dumps([_promise(one, role) for one in expected], indent=1))
    as_installed(package)
    return place


def _promise(one: Expected, role: Path) -> dict[str, object]:
    why = "the benchmark says so"
    if one.kind == "package":
        return {"fact": f"package.{one.name}.version", "equals": one.value, "why": why}
    if one.kind == "module":
        return {"fact": f"module.{one.name}.loaded", "equals": one.value == "yes", "why": why}
    if one.kind == "sysctl":
        return {"fact": f"sysctl.{one.name}.value", "equals": one.value, "why": why}
    template = f"{Path(one.name).name}.j2"
    (role / "templates" / template).write_text(one.value)
    return {"fact": f"file.{one.name}.content", "template": template, "why": why}


def make(nodes: Nodes, expected: Sequence[Expected], folder: Path) -> Work:
    place = installed(folder, expected)
    return drift(nodes, place, nodes.inventory(folder, gpuprov_roles=[ROLE]), folder)


def drift(
    nodes: Nodes, place: Path, inventory: Path, folder: Path, connections: int | None = CONNECTIONS
) -> Work:
    """Return `drift` of the gpuprov at `place`; connections None: as many as it chooses."""
    words = ["--inventory", str(inventory), "--json"]
    words += [] if connections is None else ["--connections", str(connections)]
    around = {**environment(folder), "PYTHONPATH": str(place)}
    return Work(command_line("drift", *words), folder, lambda cost: differences(cost, nodes), around)


def differences(cost: Cost, nodes: Nodes) -> Mapping[str, int]:
    """Parse `--json`, which names the nodes that differ and counts the others."""
    report = json.loads(cost.output)
    found = Counter(drift["node"] for drift in report["drifts"])
    others = [name for name in nodes.names if name not in found]
    return {**found, **dict.fromkeys(others if len(others) == report["as_declared"] else (), 0)}


OURS = Contender("gpuprov drift", make)
