"""Metrics in the text format that Prometheus and a node exporter's textfile collector read (pure).

The format is Prometheus' text format 0.0.4 (prometheus.io/docs/instrumenting/exposition_formats). Also runs
on nodes, so it needs only Python 3.9 and the standard library.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

KINDS = ("gauge", "counter", "untyped")

_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*\Z")


@dataclass(frozen=True)
class Sample:
    """One value of a metric, with the labels that distinguish it within its family."""

    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """A metric: name, type (one of KINDS), help sentence and samples; without samples it is not written."""

    name: str
    kind: str
    help: str
    samples: tuple[Sample, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError on an invalid name, which is a bug, since no name comes from a node."""
        if not _METRIC.match(self.name):
            raise ValueError(f"not a name of a metric: {self.name!r}")
        if self.kind not in KINDS:
            raise ValueError(f"{self.name}: not a kind of metric: {self.kind!r}")
        if (self.kind == "counter") != self.name.endswith("_total"):
            raise ValueError(f"{self.name}: counters end in _total, and nothing else does")
        for sample in self.samples:
            for label in sample.labels:
                if not _LABEL.match(label):
                    raise ValueError(f"{self.name}: not a name of a label: {label!r}")


def render(families: Iterable[Family]) -> str:
    """Render a `.prom` file: families sorted by name, series by labels, each series once.

    Raises ValueError if two families share a name or one series has two values.

    >>> print(render([Family("up", "gauge", "Whether it is up.", (Sample(1, {"node": "gpu-01"}),))]), end="")
    # HELP up Whether it is up.
    # TYPE up gauge
    up{node="gpu-01"} 1
    """
    lines = []
    last = ""
    for family in sorted(families, key=lambda family: family.name):
        if family.name == last:
            raise ValueError(f"two families have the name {family.name}")
        last = family.name
        series = _series(family)
        if series:
            lines.append(f"# HELP {family.name} {_escaped(family.help)}")
            lines.append(f"# TYPE {family.name} {family.kind}")
            lines += [f"{key} {series[key]}" for key in sorted(series)]
    return "".join(line + "\n" for line in lines)


def _series(family: Family) -> dict[str, str]:
    """Return the value of each series by its rendered name and labels."""
    values: dict[str, str] = {}
    for sample in family.samples:
        labels = ",".join(f'{label}="{_quoted(text)}"' for label, text in sorted(sample.labels.items()))
        key = f"{family.name}{{{labels}}}" if labels else family.name
        value = _number(sample.value)
        if values.setdefault(key, value) != value:
            raise ValueError(f"{key} has two values: {values[key]} and {value}")
    return values


def _number(value: float) -> str:
    """Format a number so that Go's ParseFloat reads it; whole numbers have no decimal point."""
    if isinstance(value, int):
        return str(int(value))  # True is 1
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def _escaped(text: str) -> str:
    """Escape `text` for one line; unprintable characters, which devices may send, become �."""
    shown = "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)
    return shown.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')
