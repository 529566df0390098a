"""The limits that hold for a node: provision/data/thresholds/<sku>.yml, with unit, source and direction.

A limit that no healthy machine could meet, or that is typed wrongly, is refused when it is read: a bad gate
would condemn or acquit a whole fleet. `metrics.yml` beside those files lists every metric with its unit,
direction and the physical ceiling a limit must stay under.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from provision.errors import GpuprovError
from provision.paths import DATA

_FOLDER = DATA / "thresholds"
_DIRECTIONS = ("at_least", "at_most", "equal")
_KINDS = ("measured", "vendor", "derived")
_FIELDS = {"limit", "unit", "direction", "source", "kind"}
_EVERY_SKU = "any"  # in a user's file: these limits hold for every SKU


class ThresholdError(GpuprovError):
    """A thresholds file that cannot be used."""


@dataclass(frozen=True)
class Threshold:
    """The limit for one metric of one SKU. `direction`: at_least, at_most or equal.

    `kind`: measured (drawn from measurements on such machines), vendor (the maker's own figure) or derived
    (reckoned from other figures; the arithmetic is in `source`).
    """

    metric: str  # "<check>.<metric>"
    limit: float
    unit: str
    direction: str
    source: str
    kind: str


@dataclass(frozen=True)
class _Metric:
    unit: str
    direction: str
    ceiling: str | None  # which of a SKU's link speeds no limit may exceed
    factor: float


def available() -> tuple[str, ...]:
    """The SKUs with limits of our own."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yml") if path.stem != "metrics"))


def _known_skus() -> list[str]:
    """Every SKU that may be named: also those for which there is no limit of our own yet."""
    return sorted({*available(), *(path.stem for path in (DATA / "skus").glob("*.yml"))})


def for_sku(sku: str | None, override: Path | None = None) -> Mapping[str, Threshold]:
    """Thresholds by metric name for a SKU; empty when there is none (a judge then says `warn`, never `pass`).

    `override` is a user's file, whose limits win: one YAML document per SKU with `sku:` (or `sku: any`) and
    `thresholds:`. Raises ThresholdError with file, key and what to do.
    """
    limits = dict(_shipped(sku)) if sku in available() else {}
    if override is not None:
        try:
            stamp = override.stat().st_mtime_ns
        except OSError as error:
            raise ThresholdError(f"{override}: {error.strerror}", "give an existing file") from error
        for named, given in _user_file(override, stamp):
            if named in (sku, _EVERY_SKU):
                limits.update(given)
    return limits


@cache
def _user_file(path: Path, _stamp: int) -> list[tuple[str, dict[str, Threshold]]]:
    """Every document of a user's file, all checked: a mistake in one SKU's limits is not for later."""
    found = []
    for document in _documents(path):
        _check_document(path, document)
        found.append((document["sku"], _read(path, document, _links(document["sku"]))))
    return found


@cache
def _shipped(sku: str | None) -> Mapping[str, Threshold]:
    path = _FOLDER / f"{sku}.yml"
    document = _documents(path)[0]
    _check_document(path, document)
    return _read(path, document, document.get("links", {}))


@cache
def _links(sku: str) -> Mapping[str, float]:
    """One-way link speeds of a SKU in GB/s, against which a user's limits are checked; empty when unknown.

    Limits for any SKU must be possible on one at least.
    """
    if sku == _EVERY_SKU:
        every = [_links(name) for name in available()]
        return {name: max(links[name] for links in every) for name in ("pcie", "peer")}
    if sku not in available():
        return {}
    return dict(_documents(_FOLDER / f"{sku}.yml")[0].get("links", {}))


@cache
def _metrics() -> Mapping[str, _Metric]:
    document = _documents(_FOLDER / "metrics.yml")[0]
    return {
        name: _Metric(row["unit"], row["direction"], row.get("ceiling"), float(row.get("factor", 1)))
        for name, row in document.items()
    }


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
        _refuse(path, f"key {sorted(map(str, unknown))[0]!r}", "is not known here (sku, links, thresholds)")
    if not isinstance(document.get("sku"), str):
        _refuse(path, "key 'sku'", "must name a GPU SKU such as h100-sxm, or any")
    known = _known_skus()
    if document["sku"] != _EVERY_SKU and document["sku"] not in known:
        near = difflib.get_close_matches(document["sku"], known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        _refuse(path, f"sku {document['sku']!r}", f"is not one of {', '.join(known)}{hint}")
    if not isinstance(document.get("thresholds"), dict):
        _refuse(path, "key 'thresholds'", "must map metric names to limits")


def _read(path: Path, document: Mapping[str, Any], links: Mapping[str, float]) -> dict[str, Threshold]:
    return {name: _threshold(path, str(name), row, links) for name, row in document["thresholds"].items()}


def _threshold(path: Path, name: str, row: Any, links: Mapping[str, float]) -> Threshold:
    metric = _metrics().get(name)
    if metric is None:
        near = difflib.get_close_matches(name, _metrics(), n=1)
        _refuse(
            path,
            name,
            f"is not a metric we judge; did you mean {near[0]}?" if near else "is not a metric we judge",
        )
    if not isinstance(row, dict) or set(row) != _FIELDS:
        _refuse(path, name, f"must have exactly {', '.join(sorted(_FIELDS))}")
    limit = row["limit"]
    if (
        isinstance(limit, bool)
        or not isinstance(limit, int | float)
        or not math.isfinite(limit)
        or limit <= 0
    ):
        _refuse(path, f"{name}.limit", f"must be a number above 0, not {limit!r}")
    if row["unit"] != metric.unit:
        _refuse(path, f"{name}.unit", f"must be {metric.unit}, not {row['unit']!r}")
    if row["direction"] not in _DIRECTIONS or row["direction"] != metric.direction:
        _refuse(path, f"{name}.direction", f"must be {metric.direction}, not {row['direction']!r}")
    if row["kind"] not in _KINDS:
        _refuse(path, f"{name}.kind", f"must be one of {', '.join(_KINDS)}, not {row['kind']!r}")
    if not isinstance(row["source"], str) or len(row["source"].strip()) < 10:
        _refuse(path, f"{name}.source", "must say where the number comes from")
    _check_ceiling(path, name, float(limit), metric, links)
    return Threshold(
        name, float(limit), metric.unit, metric.direction, " ".join(row["source"].split()), row["kind"]
    )


def _check_ceiling(path: Path, name: str, limit: float, metric: _Metric, links: Mapping[str, float]) -> None:
    if metric.ceiling is None or metric.ceiling not in links:
        return
    ceiling = metric.factor * links[metric.ceiling]
    if limit > ceiling:
        _refuse(
            path, f"{name}.limit", f"{limit:g} is above what the link can carry ({ceiling:g} {metric.unit})"
        )
