"""Stand-ins for observed fleets: nodes that answer as declared, and commands run on them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from provision import cli
from provision.desired import expectations, inventory, resolve, stack
from provision.fleet import Fleet, Node
from provision.remote.reach import observe
from provision.remote.reach.observe import Observation

# Full versions of packages for which a role specifies only a part.
AMD_VERSIONS = (
    "1:6.16.13.30300300-2327507.24.04",  # amdgpu-dkms
    "30.30.3.0.30300300-2327507.24.04",  # amdgpu-dkms-firmware
    "7.2.3.70203-90~24.04",  # ROCm
    *("1.3.0~24.04", "1.3.0-1.el9"),  # AMD's container toolkit
)

Facts = dict[str, dict[str, Any]]  # by node
Answer = Callable[[Node, Collection[str]], Observation]


def debian(version: str, codename: str, kernel: str) -> dict[str, Any]:
    """Return the facts of a Debian machine with one L40S."""
    return {
        "os.id": "debian",
        "os.version_id": version,
        "os.codename": codename,
        "os.family": "debian",
        "os.arch": "x86_64",
        "kernel.release": kernel,
        "gpu.count": 1,
        "gpu.nvswitch_count": 0,
        "gpu.pci": [{"address": "0000:01:00.0", "device_id": "10de:26b9"}],
    }


def unknown(asked: Collection[str], kernel: str) -> dict[str, Any]:
    """Return the requested facts of a bare machine, all missing; `kernel` is the running kernel."""
    silent = expectations.SILENT_GPUS.values()  # without a driver, no GPU fails to answer it
    return {name.replace(expectations.KERNEL, kernel): [] if name in silent else None for name in asked}


def promised(declared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts that meet every expectation of a machine declared so. `own`: its own facts."""
    known = expectations.of_node(declared, stack.describe_node(own))
    return {each.fact: _fulfilling(each) for each in known}


def _fulfilling(expectation: expectations.Expectation) -> Any:
    """Return a value that meets the expectation."""
    candidates = [expectation.value, [expectation.value], "manual\n", "auto\n", *AMD_VERSIONS]
    if expectation.operator == "one_of":
        candidates = list(expectation.value)
    return next((each for each in candidates if expectation.holds(each)), expectation.value)


def fleet_here(monkeypatch: pytest.MonkeyPatch, folder: Path, names: Sequence[str], answer: Answer) -> None:
    """Load a fleet of these nodes, declared by the inventory in `folder`; `answer` gives observations."""

    def answers(
        nodes: Collection[Node],
        ask: Mapping[str, Collection[str]],
        *,
        on_done: Callable[[Observation], None] | None = None,
        **_options: Any,
    ) -> dict[str, Observation]:
        found = {}
        for node in nodes:
            found[node.name] = answer(node, ask[node.name])
            if on_done is not None:
                on_done(found[node.name])
        return found

    def load(source: Path, _files: object = ()) -> Fleet:
        return Fleet(source, {name: Node(name, ("gpus",), {}) for name in names}, {"all": tuple(names)})

    monkeypatch.setattr(observe, "observe", answers)
    monkeypatch.setattr(inventory, "load", load)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    monkeypatch.setenv("GPUPROV_RUNS", str(folder / "runs"))
    (folder / "inventory.yml").touch()


def vault(monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    """Make `secret` the value of a vaulted variable."""
    original = resolve.resolve
    monkeypatch.setattr(
        resolve, "resolve", lambda *words: resolve.Resolved(original(*words).views, frozenset({secret}))
    )


def gpuprov(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run a command and return its exit code, standard output and standard error."""
    code = cli.main(list(words))
    shown = capsys.readouterr()
    return code, shown.out, shown.err
