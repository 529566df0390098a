"""Limits for a node from provision/data/thresholds/<sku>.yml, with unit, source and direction.

A limit that no healthy machine could meet, that is too loose to find anything, or that is malformed is
refused when it is read: a bad limit would fail or pass a whole fleet. data/thresholds/metrics.yml and the SKU
determine which limits are plausible.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from provision import shipped
from provision.checks.judge import Spread as Spread
from provision.checks.judge import Threshold as Threshold  # re-exported for users' own checks
from provision.checks.judge import TypicalValue as TypicalValue
from provision.errors import GpuprovError

_FOLDER = "thresholds"
_DIRECTIONS = ("at_least", "at_most", "equal")
_KINDS = ("measured", "vendor", "derived")
_FIELDS = {"limit", "unit", "direction", "source", "kind"}
_OPTIONAL = {"date", "machines", "typical", "spread"}  # shipped limits always have date and machines
_DATE = re.compile(r"20\d\d-(0[1-9]|1[0-2])")
WIDEST = 16  # lanes of a slot that the limits are stated for
_EVERY_SKU = "any"  # in a user's file: the limits apply to every SKU


class ThresholdError(GpuprovError):
    """Error in a thresholds file."""


def available() -> tuple[str, ...]:
    """Return the SKUs with shipped limits."""
    return tuple(name for name in shipped.names(_FOLDER) if name != "metrics")


def for_sku(sku: str | None, override: Path | None = None, lanes: object = None) -> Mapping[str, Threshold]:
    """Return a SKU's thresholds by metric name; without a threshold a metric gets `warn`, never `pass`.

    `lanes`: number of PCIe lanes per slot if the inventory sets it (`gpuprov_pcie_width`).

    `override`: a user's file, with limits that take precedence. It has one YAML document per SKU with `sku:`
    (or `sku: any`) and `thresholds:`. Raises ThresholdError with file, key and what to do.
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
    """Scale the limit of a rate over PCIe to slots with fewer than 16 lanes."""
    source = f"{limit.source}; slots of {lanes} lanes (gpuprov_pcie_width)"
    if limit.metric == "gpu_inventory.pcie_width":
        return replace(limit, limit=min(limit.limit, float(lanes)), source=source)
    copies = limit.unit == "GB/s" and limit.metric.startswith(("p2p_bandwidth.", "nccl_"))
    if not copies or limit.limit > known.get("pcie", (0.0, 0.0))[0]:
        return limit  # not a rate between devices, or one that only NVLink reaches
    share = lanes / WIDEST
    typical = limit.typical and replace(limit.typical, value=limit.typical.value * share)
    return replace(limit, limit=limit.limit * share, source=source, kind="derived", typical=typical)


@cache
def _user_file(path: Path, _stamp: int) -> list[tuple[str, dict[str, Threshold]]]:
    """Read and validate all documents of a user's file, so that errors in other SKUs surface now."""
    limits_by_sku = []
    for document in _documents(path):
        _check_document(path, document)
        limits_by_sku.append((document["sku"], _read(path, document)))
    return limits_by_sku


def given(path: Path, sku: str, rows: object) -> dict[str, Threshold]:
    """Parse limits for a SKU (or `any`) like a thresholds file; raise ThresholdError if invalid."""
    document: dict[str, Any] = {"sku": sku, "thresholds": rows}
    _check_document(path, document)
    return _read(path, document)


@cache
def _shipped(sku: str | None) -> Mapping[str, Threshold]:
    path = shipped.file_of(f"{_FOLDER}/{sku}")
    document = shipped.load_mapping(f"{_FOLDER}/{sku}", ThresholdError)
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
    """Return the capacities of a SKU (or of `any`); links stated in our file override the data sheet."""
    if sku == _EVERY_SKU:
        return of_any(sku_names())
    links = shipped.load_mapping(f"{_FOLDER}/{sku}").get("links", {}) if sku in available() else {}
    return stated(sku, links)


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
    skus = sku_names()
    if document["sku"] != _EVERY_SKU and document["sku"] not in skus:
        near = difflib.get_close_matches(document["sku"], skus, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        _refuse(path, f"sku {document['sku']!r}", f"is not one of {', '.join(skus)}{hint}")
    if not isinstance(document.get("thresholds"), dict):
        _refuse(path, "key 'thresholds'", "must map metric names to limits")
    links = document.get("links", {})
    if not isinstance(links, dict) or not all(
        name in LINKS and _is_limit(value) for name, value in links.items()
    ):
        _refuse(path, "key 'links'", f"must map {', '.join(LINKS)} to GB/s one way")


def _is_limit(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value) and value > 0


def _read(path: Path, document: Mapping[str, Any]) -> dict[str, Threshold]:
    known = able(document["sku"])
    if links := document.get("links"):
        known = {**known, **stated(document["sku"], links)}
    return {name: _threshold(path, str(name), row, known) for name, row in document["thresholds"].items()}


def _threshold(path: Path, name: str, row: Any, known: Capacities) -> Threshold:
    metric = find(name)
    if metric is None:
        near = nearest(name)
        _refuse(path, name, f"is not a metric we judge{f'; did you mean {near}?' if near else ''}")
    if not isinstance(row, dict) or not _FIELDS <= set(row) <= _FIELDS | _OPTIONAL:
        required, other = ", ".join(sorted(_FIELDS)), ", ".join(sorted(_OPTIONAL))
        _refuse(path, name, f"must have exactly {required}, and may have {other}")
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
    if wrong := problem(metric, float(limit), known):
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


def _typical(path: Path, limit: Threshold, row: Mapping[str, Any]) -> TypicalValue | None:
    if "typical" not in row:
        return None
    where = f"{limit.metric}.typical"
    entry = _measured(path, where, row["typical"], "value")
    if (entry["value"] - limit.limit) * (-1 if limit.direction == "at_most" else 1) < 0:
        _refuse(path, f"{where}.value", f"a part at {entry['value']:g} fails the limit of {limit.limit:g}")
    machines = _machines(path, where, entry, limit.machines)
    return TypicalValue(float(entry["value"]), machines, _words(entry["source"]))


def _spread(path: Path, name: str, row: Mapping[str, Any]) -> Spread | None:
    if "spread" not in row:
        return None
    entry = _measured(path, f"{name}.spread", row["spread"], "percent")
    machines = _machines(path, f"{name}.spread", entry)
    if machines is not None and machines < 2:
        _refuse(path, f"{name}.spread.machines", "one machine shows no spread between machines")
    return Spread(float(entry["percent"]), machines, _words(entry["source"]))


def _measured(path: Path, where: str, given: Any, number: str) -> Mapping[str, Any]:
    """Validate a `typical` or `spread` entry: a number, its source and optionally the machines."""
    required = {number, "source"}
    if not isinstance(given, dict) or not required <= set(given) <= required | {"machines"}:
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


# --- metrics with limits and the plausible range of each, by data/thresholds/metrics.yml and the SKU. A limit
# above the wire's speed fails every machine; one so low that a part at half its speed meets it passes every
# machine. Both are refused when a file is read, by the arithmetic in metrics.yml.


# The best that a SKU can do: name → (maximum, minimum) over the SKUs that a limit applies to; equal for a
# single SKU. pcie, peer, group (to all others): GB/s one way; far_pair: the slowest healthy pair; memory:
# MiB, memory_rate: GB/s; nvlinks: links; nvlink: GB/s one way per link.
Capacities = Mapping[str, tuple[float, float]]

LINKS = ("pcie", "peer", "far_pair", "memory_rate")  # the links that a thresholds file may state

_PCIE_X16 = {3: 15.75, 4: 31.5, 5: 63.0}  # GB/s one way by generation
_NOT_BY_PCIE = ("gb10", "gb200", "gb300", "gh200", "mi300a")  # host link: NVLink-C2C or the socket
_COUNT = re.compile(r"_([2-9]|[1-9]\d+)gpu$")


@dataclass(frozen=True)
class Metric:
    """The plausible range of a metric's limit; no machine exceeds `ceiling` times `factor`.

    A part at half its speed still reaches `floor` times `floor_of`; `least` and `most` are absolute bounds.
    """

    unit: str
    direction: str
    ceiling: str = ""
    factor: float = 1.0
    floor: float = 0.0
    floor_of: str = ""
    least: float | None = None
    most: float | None = None


@cache
def table() -> Mapping[str, Metric]:
    """Return every metric by name; a trailing `_*gpu` stands for any number of GPUs from 2 on."""
    rows = shipped.load_mapping(f"{_FOLDER}/metrics")
    return {name: Metric(**row) for name, row in rows.items()}


_declared: dict[str, Metric] = {}  # of users' own checks


def declare(name: str, metric: Metric) -> None:
    """Allow limits for a metric of a user's own check."""
    _declared[name] = metric


def find(name: str) -> Metric | None:
    """Return the metric with this name, such as `nccl_all_reduce.busbw_8gpu`."""
    return table().get(name) or _declared.get(name) or table().get(_COUNT.sub("_*gpu", name))


def nearest(name: str) -> str:
    """Return the known name most similar to this one, or an empty string."""
    count = _COUNT.search(name)
    names = [each.replace("*", count[1] if count else "8") for each in table()]
    return next(iter(difflib.get_close_matches(name, names, n=1)), "")


def problem(metric: Metric, limit: float, able: Capacities) -> str:
    """Return why `limit` is implausible for the metric; empty if it is plausible."""
    shown = f"{limit:g} {metric.unit}"
    if metric.ceiling in able:
        most = metric.factor * able[metric.ceiling][0]
        if limit > most:
            what = "the GPU has" if metric.ceiling.startswith("memory") else "the link can carry"
            return f"{limit:g} is above what {what} ({most:g} {metric.unit})"
    if metric.most is not None and limit > metric.most:
        return f"{shown} is above {metric.most:g}, which no machine passes"
    least = metric.floor * able[metric.floor_of][1] if metric.floor_of in able else metric.least
    if metric.direction == "at_least" and least is not None and limit < least:
        return (
            f"{shown} is too loose to find anything: with half of it gone a good part still reaches "
            f"{least:.4g} {metric.unit}"
        )
    return ""


@cache
def of_sku(sku: str) -> Capacities:
    """Return the SKU's capacities by its data sheet (data/skus); empty if the SKU is unknown."""
    if sku not in sku_names():
        return {}
    data = shipped.load_mapping(f"skus/{sku}")
    able = {"memory": float(data["memory_mib"])}
    pcie, nvlink, xgmi = data["pcie"], data.get("nvlink"), data.get("xgmi", {})
    slot = _PCIE_X16.get(pcie["gen"], 0.0) * pcie["width"] / 16
    if slot and sku not in _NOT_BY_PCIE:
        able["pcie"] = slot
    if nvlink:
        able |= {"nvlinks": float(nvlink["links"]), "nvlink": nvlink["gbs_per_link"] / 2}
        able["peer"] = able["group"] = able["nvlinks"] * able["nvlink"]
    elif xgmi:
        links, each = xgmi.get("links_per_pair", xgmi.get("in_module", 1)), xgmi["gbs_per_link"] / 2
        able |= {"peer": max(slot, links * each), "group": xgmi["links"] * each}
    elif slot:
        able["peer"] = able["group"] = able["pcie"]
    return _one(_with_far_pair(able, switched=data["fabric"] != "none"))


def _with_far_pair(able: dict[str, float], *, switched: bool) -> dict[str, float]:
    """Add the slowest healthy pair's rate; across sockets half of the slot's (no figure is published)."""
    if switched and "peer" in able:
        able["far_pair"] = able["peer"]
    elif "pcie" in able:
        able["far_pair"] = able["pcie"] / 2
    return able


def stated(sku: str, links: Mapping[str, Any]) -> Capacities:
    """Return the SKU's capacities, with links stated in a thresholds file in place of the data sheet's."""
    own = {name: float(value) for name, value in links.items()}
    usual = of_sku(sku)
    own |= {"group": own["peer"]} if "peer" in own and usual.get("group") == usual.get("peer") else {}
    if "far_pair" not in own and "far_pair" in usual:
        if usual.get("peer") == usual["far_pair"]:
            own["far_pair"] = own.get("peer", usual["far_pair"][0])
        else:
            own["far_pair"] = min(own.get("pcie", usual["pcie"][0]) / 2, usual["far_pair"][0])
    return {**usual, **_one(own)}


def of_any(skus: Iterable[str]) -> Capacities:
    """Merge capacities for a limit of every SKU, which must be possible and strict enough on one of them."""
    every = [of_sku(sku) for sku in skus]
    names = {name for able in every for name in able}
    return {
        name: (
            max(able[name][0] for able in every if name in able),
            min(able[name][1] for able in every if name in able),
        )
        for name in names
    }


def _one(able: Mapping[str, float]) -> Capacities:
    return {name: (value, value) for name, value in able.items()}


@cache
def sku_names() -> list[str]:
    """Return all known SKUs, including those without shipped limits."""
    return shipped.names("skus")


@cache
def limits(name: str) -> Mapping[str, Any]:
    """Load provision/data/<name>.yml: limits of ports, memory modules or disks, for any SKU."""
    return shipped.load_mapping(name)
