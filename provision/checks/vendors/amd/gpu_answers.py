"""Whether each of AMD's GPUs still answers after a test has loaded it, according to amd-smi."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from provision.checks.check import Command, Output
from provision.checks.gpu.gpu_answers import METRIC, NAME
from provision.checks.judge import Finding, Verdict, unmeasured
from provision.checks.vendors.amd import sensors, smi
from provision.errors import ParseError

_STATIC = ("amd-smi", "static", "--asic", "--bus", "--json")


def command() -> Command:
    """Return the last command of a check that loads GPUs."""
    return Command(NAME, _STATIC, 60.0)


def judge(
    check: str, output: Output | None, gpus: Mapping[str, str], known: Sequence[Finding]
) -> list[Finding]:
    """Add a failure for each GPU that amd-smi no longer lists. `gpus`: PCI address → device.

    Without an output (nothing was queried) the findings do not change."""
    if output is None or output.not_started:
        return list(known)
    try:
        answering = set(sensors.by_device(smi.entries(output), gpus).values())
    except ParseError as error:
        message = f"after the test, {error.what}"
        return [*known, unmeasured(check, message, action="investigate")]
    reported = {one.device for one in known if one.metric == METRIC}
    silent = [address for address, device in gpus.items() if device not in answering | reported]
    if 2 * len(silent) >= len(gpus) > 0:
        message = f"after the test, amd-smi lists {len(answering)} of {len(gpus)} GPUs"
        return [*known, unmeasured(check, message, action="investigate")]
    return [
        *known,
        *(
            Finding(
                *(check, Verdict.FAIL, gpus[address]),
                f"does not answer after the test: amd-smi lists the others, and not this one (PCI {address})",
                METRIC,
                action="power-cycle",
            )
            for address in silent
        ),
    ]
