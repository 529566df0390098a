"""What gpu_burn prints → measurements: how long it burned, and how every GPU worked and ended."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from provision.checks.check import Measurement, Output, last_words
from provision.errors import ParseError

_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,9})?)%\s+proc'd: ")
_DONE = re.compile(r"(-?\d{1,18}) \((\d{1,18}) Gflop/s\)")
_UNIT = re.compile(r"\d \(\d{1,18}(?:\.\d{1,9})? ([^\s()]{1,20})\)")
_ERRORS = re.compile(r"errors: ([^:]*?)\s+temps:")
_ONE_ERROR = re.compile(r"(-?\d{1,18})\s*(\(DIED!\))?")  # `0 - 6  (WARNING!)- -1  (DIED!)- 0`
_TEMPS = re.compile(r"temps: ((?:(?:\d{1,5} C|--)(?: - )?)+)")
_VERDICT = re.compile(r"^\s*GPU (\d{1,4}): (OK|FAULTY)\s*$", re.MULTILINE)
_FAILURE = re.compile(r"Error \(gpu_burn-drv\.cpp:\d{1,6}\): (.{1,160})")
_TESTED = re.compile(r"^Tested (\d{1,4}) GPUs?:\s*$", re.MULTILINE)
_BURNING = re.compile(r"Burning for (\d{1,9}) seconds")


@dataclass
class _Gpu:
    """One GPU over the whole burn. Error counters start again at each "Summary at": errors are summed by
    segment.
    """

    done: int = 0
    rates: list[tuple[float, int]] = field(
        default_factory=list
    )  # (percent of the burn, Gflop/s) at each report
    errors: int = 0
    segment_errors: int = 0
    died: bool = False
    hottest: int | None = None

    def end_segment(self) -> None:
        self.errors += self.segment_errors
        self.segment_errors = 0

    def steady_rate(self) -> float | None:
        """The median of the burn's second half, when clocks and heat have settled; None when it was too
        short.

        A GPU's first report is never steady: allocation and warm-up are in it, and it shows a third of the
        truth.
        """
        warm = self.rates[1:]
        late = [rate for percent, rate in warm if percent >= 50] or [rate for _, rate in warm]
        return float(statistics.median(late)) if late else None


def failure(output: Output) -> str:
    """Why gpu_burn could not use the GPUs, in CUDA's words; empty when it does not say.

    Debian's 20240115 never ends without a usable GPU: it starts workers for ever, and each aborts with
    `what():  Error (gpu_burn-drv.cpp:302): no CUDA-capable device is detected` on standard error.
    """
    match = _FAILURE.search(output.stderr)
    return match[1].strip() if match else ""


def measure(output: Output) -> list[Measurement]:
    """Per GPU `state` OK or FAULTY, `worked`, `errors`, `died`, `rate` in Gflop/s and `temperature` in C; of
    the node the `seconds` burned and `asked` for, and `gpus`. Raises ParseError.
    """
    text = output.stdout.replace("\r", "\n")
    if "No clients are alive" in text or "No clients are alive" in output.stderr:
        raise ParseError("gpu_burn: every worker died before the end", "look for Xids in the kernel log")
    tested = list(_TESTED.finditer(text))
    if len(tested) != 1:
        raise ParseError(f"gpu_burn printed no result: {last_words(output)}", "run the check again")
    verdicts = _verdicts(text[tested[0].end() :], int(tested[0][1]))
    gpus, percent = _progress(text[: tested[0].start()], len(verdicts))
    burned = _BURNING.search(text)
    seconds = float(burned[1]) if burned else output.seconds
    if percent < 100:
        raise ParseError(f"gpu_burn stopped at {percent:g} % of its time", "run the check again")
    found = [
        Measurement("seconds", seconds, "s"),
        Measurement("asked", int(output.argv[-1]), "s"),
        Measurement("gpus", len(verdicts), "GPUs"),
    ]
    for index, (gpu, state) in enumerate(zip(gpus, verdicts, strict=True)):
        found += _measured(f"gpu{index}", gpu, state)
    return found


def _verdicts(text: str, count: int) -> list[str]:
    verdicts = _VERDICT.findall(text)
    if [int(index) for index, _ in verdicts] != list(range(count)):
        raise ParseError(
            f"gpu_burn tested {count} GPUs and reports the result of {len(verdicts)}", "run the check again"
        )
    return [state for _, state in verdicts]


def _measured(device: str, gpu: _Gpu, state: str) -> list[Measurement]:
    found = [
        Measurement("state", state, "", device),
        Measurement("worked", bool(gpu.rates), "", device),
        Measurement("errors", gpu.errors, "errors", device),
        Measurement("died", gpu.died, "", device),
    ]
    rate = gpu.steady_rate()
    if rate is not None:
        found.append(Measurement("rate", rate, "Gflop/s", device))
    if gpu.hottest is not None:
        found.append(Measurement("temperature", gpu.hottest, "C", device))
    return found


def _progress(text: str, count: int) -> tuple[list[_Gpu], float]:
    """Replay the progress lines: what each GPU did, and how far the burn came (percent)."""
    gpus = [_Gpu() for _ in range(count)]
    percent = 0.0
    for line in text.split("\n"):
        if "Summary at:" in line:
            for gpu in gpus:
                gpu.end_segment()
            continue
        start = _PERCENT.search(line)
        if start is None:
            continue
        percent = max(percent, float(start[1]))
        _replay(line[start.end() :], gpus, percent)
    for gpu in gpus:
        gpu.end_segment()
    return gpus, percent


def _replay(line: str, gpus: Sequence[_Gpu], percent: float) -> None:
    """One progress line."""
    if foreign := set(_UNIT.findall(line.split("errors:")[0])) - {"Gflop/s"}:
        raise ParseError(
            f"gpu_burn shows its rate in {min(foreign)}, not in Gflop/s", "report the new format"
        )
    rates, errors = _DONE.findall(line.split("errors:")[0]), _ERRORS.search(line)
    counts = _ONE_ERROR.findall(errors[1]) if errors else []
    if len(rates) != len(gpus) or len(counts) != len(gpus):
        # Several processes write here and a line may be broken by another's: the counters are cumulative, and
        # the result list at the end does not depend on any single line. A line for other GPUs is another
        # matter.
        if len(rates) > len(gpus):
            raise ParseError(
                f"gpu_burn shows progress of {len(rates)} GPUs and results of {len(gpus)}", "investigate"
            )
        return
    temps = _TEMPS.search(line)
    heat = temps[1].rstrip(" -").split(" - ") if temps else []
    for index, gpu in enumerate(gpus):
        done, rate, (bad, died) = int(rates[index][0]), int(rates[index][1]), counts[index]
        gpu.died = gpu.died or bool(died) or done < 0
        # The count beside (DIED!) is memory that was never written (gpu-burn #52, #69: 1641686072).
        if not died and done >= 0:
            gpu.segment_errors = max(gpu.segment_errors, int(bad))
        if rate > 0 and done > gpu.done:
            gpu.rates.append((percent, rate))
        gpu.done = max(gpu.done, done)
        if index < len(heat) and heat[index].endswith(" C"):
            gpu.hottest = max(gpu.hottest or 0, int(heat[index][:-2]))
