"""The metrics that may have limits, and the plausible range of each: data/thresholds/metrics.yml and the SKU.

A gate above what the wire carries condemns every machine; one so low that a part at half its speed still
passes acquits every machine. Both are found when a file is read, by the arithmetic stated in metrics.yml.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from provision import yamlfile
from provision.paths import DATA

# What a SKU can do at best: name → (of the best, of the least) of the SKUs a limit is for; one SKU has both
# alike. pcie, peer: GB/s one way; far_pair: the slowest healthy pair; memory: MiB, memory_rate: GB/s;
# nvlinks: links, nvlink: GB/s one way of one.
Capacities = Mapping[str, tuple[float, float]]

LINKS = ("pcie", "peer", "far_pair", "memory_rate")  # what a file may state of its machines in `links`

_PCIE_X16 = {3: 15.75, 4: 31.5, 5: 63.0}  # GB/s one way by generation
_HOST_BY_NVLINK = ("gb200", "gb300", "gh200")  # their way to the host is NVLink-C2C: PCIe limits nothing
_COUNT = re.compile(r"_([2-9]|[1-9]\d+)gpu$")


@dataclass(frozen=True)
class Metric:
    """How a metric is limited. `ceiling` times `factor` is what no machine passes, the share `floor` of
    `floor_of` what a part at half its speed still reaches; `least` and `most` are plain bounds."""

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
    """Every metric by name; `_*gpu` at the end stands for any number of GPUs from 2 on."""
    rows = yamlfile.load_mapping(DATA / "thresholds" / "metrics.yml")
    return {name: Metric(**row) for name, row in rows.items()}


_declared: dict[str, Metric] = {}  # of checks from outside


def declare(name: str, metric: Metric) -> None:
    """Let limits be given for a metric of a check that is not ours."""
    _declared[name] = metric


def find(name: str) -> Metric | None:
    """The metric called so: `nccl_all_reduce.busbw_8gpu`."""
    return table().get(name) or _declared.get(name) or table().get(_COUNT.sub("_*gpu", name))


def nearest(name: str) -> str:
    """The known name that is most like this one; empty when none is."""
    count = _COUNT.search(name)
    known = [each.replace("*", count[1] if count else "8") for each in table()]
    return next(iter(difflib.get_close_matches(name, known, n=1)), "")


def problem(metric: Metric, limit: float, able: Capacities) -> str:
    """Why this cannot be the limit; empty when it can."""
    said = f"{limit:g} {metric.unit}"
    if metric.ceiling in able:
        most = metric.factor * able[metric.ceiling][0]
        if limit > most:
            what = "the GPU has" if metric.ceiling.startswith("memory") else "the link can carry"
            return f"{limit:g} is above what {what} ({most:g} {metric.unit})"
    if metric.most is not None and limit > metric.most:
        return f"{said} is above {metric.most:g}, which no machine passes"
    least = metric.floor * able[metric.floor_of][1] if metric.floor_of in able else metric.least
    if metric.direction == "at_least" and least is not None and limit < least:
        return (
            f"{said} is too loose to find anything: with half of it gone a good part still reaches "
            f"{least:.4g} {metric.unit}"
        )
    return ""


@cache
def of_sku(sku: str) -> Capacities:
    """What the SKU can do by its data sheet (data/skus); empty when it is not known."""
    path = DATA / "skus" / f"{sku}.yml"
    if not path.is_file():
        return {}
    data = yamlfile.load_mapping(path)
    able = {"memory": float(data["memory_mib"])}
    pcie, nvlink = data["pcie"], data["nvlink"]
    slot = _PCIE_X16.get(pcie["gen"], 0.0) * pcie["width"] / 16
    if slot and sku not in _HOST_BY_NVLINK:
        able["pcie"] = slot
    if nvlink:
        able["nvlinks"] = float(nvlink["links"])
        able["nvlink"] = nvlink["gbs_per_link"] / 2
        able["peer"] = able["nvlinks"] * able["nvlink"]
    elif slot:
        able["peer"] = able["pcie"]
    return _one(_with_far_pair(able, switched=data["fabric"] != "none"))


def _with_far_pair(able: dict[str, float], *, switched: bool) -> dict[str, float]:
    """Behind switches every pair is as fast as any. Elsewhere the way between two sockets is the slowest that
    is healthy: nobody has published what it must reach, so half of the slot."""
    if switched and "peer" in able:
        able["far_pair"] = able["peer"]
    elif "pcie" in able:
        able["far_pair"] = able["pcie"] / 2
    return able


def stated(sku: str, links: Mapping[str, Any]) -> Capacities:
    """What a file says of its machines' links, over what the SKU's data sheet says."""
    own = {name: float(value) for name, value in links.items()}
    usual = of_sku(sku)
    if "far_pair" not in own and "far_pair" in usual:
        if usual.get("peer") == usual["far_pair"]:
            own["far_pair"] = own.get("peer", usual["far_pair"][0])
        else:
            own["far_pair"] = min(own.get("pcie", usual["pcie"][0]) / 2, usual["far_pair"][0])
    return {**usual, **_one(own)}


def of_any(skus: Iterable[str]) -> Capacities:
    """For a limit of every SKU: it must be possible on one at least, and find something on one."""
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


def sku_names() -> list[str]:
    """Every SKU that may be named: also those for which there is no limit of our own yet."""
    return sorted(path.stem for path in Path(DATA / "skus").glob("*.yml"))
