"""Metrics as text that Prometheus and a node exporter's textfile folder read (pure; runs on nodes, too).

The format is Prometheus' text format 0.0.4 (prometheus.io/docs/instrumenting/exposition_formats). Python 3.9
and the standard library suffice.
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
    """One value of a metric, and the labels that tell it from the family's others."""

    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """A metric: its name, one of KINDS, one sentence of help, and its samples. Without samples it is not
    written."""

    name: str
    kind: str
    help: str
    samples: tuple[Sample, ...] = ()

    def __post_init__(self) -> None:
        """Names are ours and never come from a node, so a wrong one is a mistake in the program."""
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
    """The text of a `.prom` file: families by name, series by labels, each series once.

    Raises ValueError where two families have one name, or one series has two values.

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
    """The value of each series, by its name with labels as it is written."""
    found: dict[str, str] = {}
    for sample in family.samples:
        labels = ",".join(f'{label}="{_quoted(text)}"' for label, text in sorted(sample.labels.items()))
        key = f"{family.name}{{{labels}}}" if labels else family.name
        value = _number(sample.value)
        if found.setdefault(key, value) != value:
            raise ValueError(f"{key} has two values: {found[key]} and {value}")
    return found


def _number(value: float) -> str:
    """A number as Go's ParseFloat reads it; whole ones without a decimal point."""
    if isinstance(value, int):
        return str(int(value))  # True is 1
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def _escaped(text: str) -> str:
    """On one line, as a help text is written. What is not shown as itself (control characters, halves of a
    surrogate pair) becomes �: values of labels come from devices, and end on a person's screen."""
    shown = "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)
    return shown.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')
