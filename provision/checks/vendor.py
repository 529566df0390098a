"""Lookup of each vendor's implementations (provision/checks/vendors) of the checks in the table."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

from provision.checks.check import Command, Output
from provision.checks.judge import Finding, Threshold


class Answers(Protocol):
    """Test of which GPUs still respond after a load."""

    def command(self) -> Command:
        """Return the command to run last in every check that loads GPUs."""

    def judge(
        self, check: str, output: Output | None, gpus: Mapping[str, str], known: Sequence[Finding]
    ) -> list[Finding]:
        """Add findings on GPUs that stopped responding to a check's. `gpus`: PCI address → device."""


class Hours(Protocol):
    """Function that judges all samples of a burn-in together."""

    def __call__(
        self,
        check: str,
        by_gpu: Mapping[str, Mapping[str, Any]],
        node: Mapping[str, Any],
        thresholds: Mapping[str, Threshold],
        /,
    ) -> list[Finding]: ...


@dataclass(frozen=True)
class Vendor:
    """A vendor's checks by id and parts by name, each located by `module` or `module:name` (see `load`)."""

    checks: Mapping[str, str]
    parts: Mapping[Literal["answers", "hours", "held", "fatal_lines", "kept_lines"], str]

    def answers(self) -> Answers:
        return cast("Answers", load(self.parts["answers"]))

    def hours(self) -> Hours:
        return cast("Hours", load(self.parts["hours"]))

    def held(self) -> tuple[str, Mapping[int, str]]:
        """Return the key of a burn-in sample that holds the throttle bits, and the alarm for each bit."""
        return cast("tuple[str, Mapping[int, str]]", load(self.parts["held"]))

    def fatal_lines(self, domain: bool) -> tuple[str, ...]:
        """Return kernel log patterns that mean a GPU needs a reset; `domain`: it has links to other nodes."""
        return cast("Callable[[bool], tuple[str, ...]]", load(self.parts["fatal_lines"]))(domain)

    def kept_lines(self) -> tuple[str, ...]:
        """Return patterns of the driver's kernel log lines that a burn-in stores."""
        return cast("Callable[[], tuple[str, ...]]", load(self.parts["kept_lines"]))()


def load(place: str) -> object:
    """Import the object at `module` or `module:name` below provision.checks."""
    module, _, name = place.partition(":")
    module_object = importlib.import_module(f"provision.checks.{module}")
    return getattr(module_object, name) if name else module_object
