"""Settings in /etc/gpuprov/node-health.json; without the file, gpuprov's defaults apply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provision import foreign_json
from provision.checks import thresholds
from provision.checks.judging.node_facts import for_checks
from provision.checks.on_node import debounce
from provision.checks.on_node.debounce import Rule
from provision.checks.thresholds import Threshold
from provision.errors import GpuprovError

FORMAT = 1
CHECKS = ("gpu_inventory", "versions", "host_health", "network_ports")  # checks that put no load on a node
_KEYS = {"format", "gpuprov", "sku", "interval", "textfile", "checks", "variables", "limits", "debounce"}
_FIX = "gpuprov up writes it"
_LARGEST = 1024 * 1024  # bytes
# Running a container with all GPUs, as `validate` does, is too much load for every minute.
_NOT_HERE = ("gpuprov_container_image",)


class SettingsError(GpuprovError):
    """An unusable settings file."""


@dataclass(frozen=True)
class Settings:
    """The program's settings. `sku`: the GPU that the file was written for; empty: any.

    `interval`: seconds between runs. `textfile`: folder of the node exporter; empty: none. `limits`: by SKU
    (or `any`) and metric; they override the shipped ones. `rules`: debouncing; the first match applies."""

    sku: str = ""
    interval: int = 60
    textfile: str = ""
    checks: tuple[str, ...] = CHECKS
    variables: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, Mapping[str, Threshold]] = field(default_factory=dict)
    rules: Sequence[Rule] = field(default_factory=debounce.shipped_rules)

    def limits_for(self, sku: str | None, lanes: int | None) -> dict[str, Threshold]:
        """Return the limits for a node with these GPUs and slots of so many PCIe lanes."""
        return {
            **thresholds.for_sku(sku, None, lanes),
            **self.limits.get("any", {}),
            **self.limits.get(sku or "", {}),
        }


def read(path: Path) -> Settings:
    """Read the settings file. Raises SettingsError that names file, key and remedy."""
    try:
        with path.open("rb") as source:
            text = source.read(_LARGEST + 1)
    except FileNotFoundError:
        return Settings()
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}", "run it as root") from None
    if len(text) > _LARGEST:
        raise SettingsError(f"{path}: larger than {_LARGEST} bytes", _FIX)
    try:
        document = foreign_json.read(text)
    except ValueError as error:
        raise SettingsError(f"{path}: not JSON: {error}", _FIX) from None
    return _settings(path, document)


def _settings(path: Path, document: Any) -> Settings:
    def refuse(what: str) -> SettingsError:
        return SettingsError(f"{path}: {what}", _FIX)

    if not isinstance(document, dict) or document.get("format") != FORMAT:
        actual = document.get("format") if isinstance(document, dict) else type(document).__name__
        raise refuse(f"format must be {FORMAT}, not {actual!r:.40}")
    if unknown := sorted(set(map(str, document)) - _KEYS):
        raise refuse(f"unknown key {unknown[0]!r:.60}")
    sku, textfile = document.get("sku") or "", document.get("textfile") or ""
    if not isinstance(sku, str) or not isinstance(textfile, str) or not (not textfile or textfile[0] == "/"):
        raise refuse("sku must be a name, and textfile a folder's absolute path")
    interval = document.get("interval", 60)
    if not isinstance(interval, int) or isinstance(interval, bool) or not 10 <= interval <= 86400:
        raise refuse(f"interval must be whole seconds from 10 to 86400, not {interval!r:.40}")
    checks = document.get("checks", list(CHECKS))
    if not isinstance(checks, list) or not checks or not all(check in CHECKS for check in checks):
        raise refuse(f"checks must name some of {', '.join(CHECKS)}")
    variables = document.get("variables", {})
    if not isinstance(variables, dict):
        raise refuse("variables must be a mapping")
    used = {key: value for key, value in variables.items() if for_checks(key) and key not in _NOT_HERE}
    rows = document.get("limits", {})
    if not isinstance(rows, dict):
        raise refuse("limits must map SKUs to limits")
    try:
        limits = {str(name): thresholds.given(path, str(name), limits) for name, limits in rows.items()}
        rules = debounce.rules(document.get("debounce", []), str(path))
    except GpuprovError as error:
        raise SettingsError(error.what, error.fix) from None
    selected = tuple(check for check in CHECKS if check in checks)
    return Settings(sku, interval, textfile, selected, used, limits, [*rules, *debounce.shipped_rules()])
