"""The limits that hold for a node: provision/data/thresholds/<sku>.yml, with unit, source and direction.

A limit that no healthy machine could meet, that is too loose to find anything, or that is typed wrongly, is
refused when it is read: a bad gate would condemn or acquit a whole fleet. What is sensible for which metric
says `provision.checks.threshold_metrics`.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from provision.checks import threshold_metrics
from provision.checks.model import Spread as Spread
from provision.checks.model import Threshold as Threshold  # own checks import it from here
from provision.checks.model import Typical as Typical
from provision.checks.threshold_metrics import Capacities
from provision.errors import GpuprovError
from provision.paths import DATA

_FOLDER = DATA / "thresholds"
_DIRECTIONS = ("at_least", "at_most", "equal")
_KINDS = ("measured", "vendor", "derived")
_FIELDS = {"limit", "unit", "direction", "source", "kind"}
_OPTIONAL = {"date", "machines", "typical", "spread"}  # ours all have date and machines
_DATE = re.compile(r"20\d\d-(0[1-9]|1[0-2])")
WIDEST = 16  # lanes of a slot; limits are given for these
_EVERY_SKU = "any"  # in a user's file: these limits hold for every SKU


class ThresholdError(GpuprovError):
    """A thresholds file that cannot be used."""


def available() -> tuple[str, ...]:
    """The SKUs with limits of our own."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yml") if path.stem != "metrics"))


def for_sku(sku: str | None, override: Path | None = None, lanes: object = None) -> Mapping[str, Threshold]:
    """Thresholds by metric name for a SKU; empty when there is none (a judge then says `warn`, never `pass`).

    `lanes`: how many each slot of the node is wired with, where its inventory says so (`gpuprov_pcie_width`).

    `override` is a user's file, whose limits win: one YAML document per SKU with `sku:` (or `sku: any`) and
    `thresholds:`. Raises ThresholdError with file, key and what to do.
    """
    limits = dict(_shipped(sku)) if sku in available() else {}
    if sku is not None and isinstance(lanes, int) and 0 < lanes < WIDEST:
        limits = {name: _wired(limit, able(sku), lanes) for name, limit in limits.items()}
    if override is not None:
        try:
            stamp = override.stat().st_mtime_ns
        except OSError as error:
            raise ThresholdError(f"{override}: {error.strerror}", "give an existing file") from error
        for named, given in _user_file(override, stamp):
            if named in (sku, _EVERY_SKU):
                limits.update(given)
    return limits


def _wired(limit: Threshold, known: Capacities, lanes: int) -> Threshold:
    """The limit in a slot with fewer lanes than 16: a rate that PCIe carries falls with them."""
    source = f"{limit.source}; slots of {lanes} lanes (gpuprov_pcie_width)"
    if limit.metric == "gpu_inventory.pcie_width":
        return replace(limit, limit=min(limit.limit, float(lanes)), source=source)
    copies = limit.unit == "GB/s" and limit.metric.startswith(("p2p_bandwidth.", "nccl_"))
    if not copies or limit.limit > known.get("pcie", (0.0, 0.0))[0]:
        return limit  # no rate between devices, or one that only NVLink reaches
    share = lanes / WIDEST
    typical = limit.typical and replace(limit.typical, value=limit.typical.value * share)
    return replace(limit, limit=limit.limit * share, source=source, kind="derived", typical=typical)


@cache
def _user_file(path: Path, _stamp: int) -> list[tuple[str, dict[str, Threshold]]]:
    """Every document of a user's file, all checked: a mistake in one SKU's limits is not for later."""
    found = []
    for document in _documents(path):
        _check_document(path, document)
        found.append((document["sku"], _read(path, document)))
    return found


@cache
def _shipped(sku: str | None) -> Mapping[str, Threshold]:
    path = _FOLDER / f"{sku}.yml"
    document = _documents(path)[0]
    _check_document(path, document)
    limits = _read(path, document)
    if undated := [name for name, limit in limits.items() if not limit.date]:
        _refuse(path, f"{undated[0]}.date", "must have the date of its source, as YYYY-MM")
    if uncounted := [name for name, row in document["thresholds"].items() if "machines" not in row]:
        _refuse(
            path, f"{uncounted[0]}.machines", "must be the number of measured machines, or null if unknown"
        )
    return limits


@cache
def able(sku: str) -> Capacities:
    """What machines of this SKU (or of `any`) can do: our own file's word for their links, over the data
    sheet's."""
    if sku == _EVERY_SKU:
        return threshold_metrics.of_any(threshold_metrics.sku_names())
    links = _documents(_FOLDER / f"{sku}.yml")[0].get("links", {}) if sku in available() else {}
    return threshold_metrics.stated(sku, links)


def _documents(path: Path) -> list[dict[str, Any]]:
    import yaml

    try:
        found = [document for document in yaml.safe_load_all(path.read_text("utf-8")) if document is not None]
    except OSError as error:
        raise ThresholdError(f"{path}: {error.strerror}", "give an existing file to --thresholds") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ThresholdError(f"{path}: not readable as YAML: {error}", "correct the file") from error
    if not found or not all(isinstance(document, dict) for document in found):
        _refuse(path, "the file", "must hold a mapping with `sku` and `thresholds`")
    return found


def _refuse(path: Path, where: str, problem: str) -> NoReturn:
    raise ThresholdError(
        f"{path}: {where}: {problem}",
        "correct it; provision/data/thresholds/ has a file to imitate for each SKU",
    )


def _check_document(path: Path, document: Mapping[str, Any]) -> None:
    unknown = set(document) - {"sku", "links", "thresholds"}
    if unknown:
        _refuse(path, f"key {sorted(map(str, unknown))[0]!r}", "is not a valid key (sku, links, thresholds)")
    if not isinstance(document.get("sku"), str):
        _refuse(path, "key 'sku'", "must name a GPU SKU such as h100-sxm, or any")
    known = threshold_metrics.sku_names()
    if document["sku"] != _EVERY_SKU and document["sku"] not in known:
        near = difflib.get_close_matches(document["sku"], known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        _refuse(path, f"sku {document['sku']!r}", f"is not one of {', '.join(known)}{hint}")
    if not isinstance(document.get("thresholds"), dict):
        _refuse(path, "key 'thresholds'", "must map metric names to limits")
    links = document.get("links", {})
    if not isinstance(links, dict) or not all(
        name in threshold_metrics.LINKS and _is_limit(value) for name, value in links.items()
    ):
        _refuse(path, "key 'links'", f"must map {', '.join(threshold_metrics.LINKS)} to GB/s one way")


def _is_limit(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and value > 0


def _read(path: Path, document: Mapping[str, Any]) -> dict[str, Threshold]:
    known = able(document["sku"])
    if links := document.get("links"):
        known = {**known, **threshold_metrics.stated(document["sku"], links)}
    return {name: _threshold(path, str(name), row, known) for name, row in document["thresholds"].items()}


def _threshold(path: Path, name: str, row: Any, known: Capacities) -> Threshold:
    metric = threshold_metrics.find(name)
    if metric is None:
        near = threshold_metrics.nearest(name)
        _refuse(path, name, f"is not a metric we judge{f'; did you mean {near}?' if near else ''}")
    if not isinstance(row, dict) or not _FIELDS <= set(row) <= _FIELDS | _OPTIONAL:
        wanted, other = ", ".join(sorted(_FIELDS)), ", ".join(sorted(_OPTIONAL))
        _refuse(path, name, f"must have exactly {wanted}, and may have {other}")
    limit = row["limit"]
    if not _is_limit(limit):
        _refuse(path, f"{name}.limit", f"must be a number above 0, not {limit!r}")
    if row["unit"] != metric.unit:
        _refuse(path, f"{name}.unit", f"must be {metric.unit}, not {row['unit']!r}")
    if row["direction"] not in _DIRECTIONS or row["direction"] != metric.direction:
        _refuse(path, f"{name}.direction", f"must be {metric.direction}, not {row['direction']!r}")
    if row["kind"] not in _KINDS:
        _refuse(path, f"{name}.kind", f"must be one of {', '.join(_KINDS)}, not {row['kind']!r}")
    if not isinstance(row["source"], str) or len(row["source"].strip()) < 10:
        _refuse(path, f"{name}.source", "must name the source of the number")
    date = row.get("date", "")
    if date and not (isinstance(date, str) and _DATE.fullmatch(date)):
        _refuse(path, f"{name}.date", f"must be the year and month of the source, as 2026-05, not {date!s}")
    if wrong := threshold_metrics.problem(metric, float(limit), known):
        _refuse(path, f"{name}.limit", wrong)
    machines = _machines(path, name, row)
    read = Threshold(
        name, float(limit), metric.unit, metric.direction, _words(row["source"]), row["kind"], date, machines
    )
    return replace(read, typical=_typical(path, read, row), spread=_spread(path, name, row))


def _machines(path: Path, where: str, row: Mapping[str, Any], default: int | None = None) -> int | None:
    value = row.get("machines", default)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        _refuse(path, f"{where}.machines", f"must be a whole number from 0 on, or null, not {value!r}")
    return value


def _typical(path: Path, limit: Threshold, row: Mapping[str, Any]) -> Typical | None:
    if "typical" not in row:
        return None
    where = f"{limit.metric}.typical"
    found = _measured(path, where, row["typical"], "value")
    if (found["value"] - limit.limit) * (-1 if limit.direction == "at_most" else 1) < 0:
        _refuse(path, f"{where}.value", f"a part at {found['value']:g} fails the limit of {limit.limit:g}")
    machines = _machines(path, where, found, limit.machines)
    return Typical(float(found["value"]), machines, _words(found["source"]))


def _spread(path: Path, name: str, row: Mapping[str, Any]) -> Spread | None:
    if "spread" not in row:
        return None
    found = _measured(path, f"{name}.spread", row["spread"], "percent")
    machines = _machines(path, f"{name}.spread", found)
    if machines is not None and machines < 2:
        _refuse(path, f"{name}.spread.machines", "one machine shows no spread between machines")
    return Spread(float(found["percent"]), machines, _words(found["source"]))


def _measured(path: Path, where: str, given: Any, number: str) -> Mapping[str, Any]:
    """What `typical` or `spread` says: a number and its source, and perhaps the machines."""
    wanted = {number, "source"}
    if not isinstance(given, dict) or not wanted <= set(given) <= wanted | {"machines"}:
        _refuse(path, where, f"must have {number} and source, and may have machines")
    value = given[number]
    none_at_all = number == "percent" and value == 0 and not isinstance(value, bool)
    if not _is_limit(value) and not none_at_all:
        _refuse(path, f"{where}.{number}", f"must be a number above 0, not {value!r}")
    if not isinstance(given["source"], str) or len(given["source"].strip()) < 10:
        _refuse(path, f"{where}.source", "must name the source of the number")
    return given


def _words(text: str) -> str:
    return " ".join(text.split())
