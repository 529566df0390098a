"""What gpuprov has for the GPUs of one vendor. The table of checks says what a check is, a vendor's package
(provision/checks/vendors) how it is done on its GPUs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

from provision.checks.check import Command, Output
from provision.checks.judge import Finding, Threshold


class Answers(Protocol):
    """Asks, once a load has ended, which GPUs still answer."""

    def command(self) -> Command:
        """The last command of a check that loads GPUs."""

    def judge(
        self, check: str, output: Output | None, gpus: Mapping[str, str], known: Sequence[Finding]
    ) -> list[Finding]:
        """The findings of a check, completed. `gpus`: PCI address → device."""


class Hours(Protocol):
    """Judges what all samples of a burn-in together show."""

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
    """`checks`: id of a check → where it is, `parts`: name of a part → where: a module below
    provision.checks, or `module:name` in one. It is imported when it is used.
    """

    checks: Mapping[str, str]
    parts: Mapping[Literal["answers", "hours", "held", "fatal_lines", "kept_lines"], str]

    def answers(self) -> Answers:
        return cast("Answers", load(self.parts["answers"]))

    def hours(self) -> Hours:
        return cast("Hours", load(self.parts["hours"]))

    def held(self) -> tuple[str, Mapping[int, str]]:
        """What a sample of a burn-in has the limits in that hold the clocks down; the alarm of each bit."""
        return cast("tuple[str, Mapping[int, str]]", load(self.parts["held"]))

    def fatal_lines(self, domain: bool) -> tuple[str, ...]:
        """Patterns of the kernel's lines after which a GPU is of no use until its reset; `domain`: it has
        links to GPUs of other nodes."""
        return cast("Callable[[bool], tuple[str, ...]]", load(self.parts["fatal_lines"]))(domain)

    def kept_lines(self) -> tuple[str, ...]:
        """Patterns of the lines of its driver that a burn-in keeps."""
        return cast("Callable[[], tuple[str, ...]]", load(self.parts["kept_lines"]))()


def load(place: str) -> object:
    """What is at a place that a Vendor or the table of checks names."""
    module, _, name = place.partition(":")
    found = importlib.import_module(f"provision.checks.{module}")
    return getattr(found, name) if name else found
