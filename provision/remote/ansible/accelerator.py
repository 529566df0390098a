"""Optional acceleration of Ansible by Mitogen, as the inventory requests.
Mitogen is no dependency, so nothing here imports it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from provision.errors import GpuprovError

VARIABLE = "gpuprov_accelerator"  # inventory variable
ASKED = "gpuprov_strategy"  # extra variable of a playbook
FREE = "mitogen_free"  # Mitogen's equivalent of Ansible's strategy `free`
_PACKAGE = "ansible_mitogen"  # the part of Mitogen that Ansible loads


def check(asked: Collection[object]) -> None:
    """Check that all nodes request the same acceleration and that mitogen loads with this ansible-core.
    Raises GpuprovError otherwise, or if this Python has no mitogen. `asked`: each node's setting."""
    if len(set(map(repr, asked))) > 1:
        raise GpuprovError(
            f"{VARIABLE} is not the same for all nodes of this run", "set it for all, under all: vars:"
        )
    if "mitogen" not in asked:
        return
    install = f"{sys.executable} -m pip install --upgrade mitogen; or remove gpuprov_accelerator"
    if importlib.util.find_spec(_PACKAGE) is None:
        raise GpuprovError(
            "gpuprov_accelerator is mitogen, and the package mitogen is not installed", install
        )
    loaded = subprocess.run(
        [sys.executable, "-P", "-c", f"import {_PACKAGE}.loaders, {_PACKAGE}.strategy"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if loaded.returncode != 0:
        why = (loaded.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        raise GpuprovError(f"mitogen does not load with the installed ansible-core: {why}", install)


def environment(extra_vars: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment for a playbook with these variables: the strategy's folder, if used."""
    spec = importlib.util.find_spec(_PACKAGE) if ASKED in extra_vars else None
    places = spec.submodule_search_locations if spec else None
    return {"ANSIBLE_STRATEGY_PLUGINS": str(Path(places[0], "plugins", "strategy"))} if places else {}
