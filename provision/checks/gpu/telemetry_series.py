"""What nvidia-smi sampled of each GPU beside a load, over time: for plots (pure). telemetry.py judges it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from provision.checks.check import Output
from provision.checks.gpu import telemetry_rows

Value = float | None


@dataclass
class Series:
    """One GPU's samples, in order. `seconds`: since the first sample of any GPU of the node; the others have
    a value for each, None where nvidia-smi gave none: `temperatures` in °C, `powers` in W, `clocks` (of the
    SMs) in MHz.
    """

    seconds: list[float] = field(default_factory=list)
    temperatures: list[Value] = field(default_factory=list)
    powers: list[Value] = field(default_factory=list)
    clocks: list[Value] = field(default_factory=list)

    def thinned(self, most: int) -> Series:
        """At most `most` samples. Of those that become one, the hottest, the most power and the lowest clock
        are kept: what is brief must stay to be seen."""
        step = -(-len(self.seconds) // most)
        if step <= 1:
            return self
        return Series(
            self.seconds[::step],
            _of_each(self.temperatures, step, max),
            _of_each(self.powers, step, max),
            _of_each(self.clocks, step, min),
        )


def series(output: Output) -> dict[str, Series]:
    """Device → its samples, in the order of the devices' numbers. Raises ParseError, as telemetry.parse."""
    samples, _ = telemetry_rows.rows(output)
    start: float | None = None
    found: dict[str, Series] = {}
    for row in samples:
        if telemetry_rows.error(row) and not row["index"].isdigit():
            continue  # a GPU that no longer answers, not even to its number
        now = telemetry_rows.moment(row)
        start = now if start is None else start
        one = found.setdefault(telemetry_rows.device(row, {}), Series())
        if now < start or (one.seconds and now - start < one.seconds[-1]):
            continue  # the node's clock was set back: time on a plot only goes on
        one.seconds.append(now - start)
        one.temperatures.append(telemetry_rows.number(row, "temperature.gpu"))
        one.powers.append(telemetry_rows.number(row, "power.draw"))
        one.clocks.append(telemetry_rows.number(row, "clocks.current.sm"))
    return {device: found[device] for device in sorted(found, key=lambda device: int(device[3:]))}


def _of_each(values: Sequence[Value], step: int, choose: Callable[[Iterable[float]], float]) -> list[Value]:
    groups = (values[at : at + step] for at in range(0, len(values), step))
    return [_chosen([value for value in group if value is not None], choose) for group in groups]


def _chosen(values: Sequence[float], choose: Callable[[Iterable[float]], float]) -> Value:
    return choose(values) if values else None
