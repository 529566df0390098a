"""Error counters that `nvidia-smi dmon -s e` reads beside a load → how much each grew meanwhile.

# gpu  sbecc  dbecc    pci
# Idx   errs   errs   errs
    0      0      0      0

`pci` is the number of PCIe replays, `dbecc` of uncorrectable memory errors. A count that was there before is
old; one that grows is happening now. The letters decide which columns there are, and `-` is no value. An NVML
error (nvml_error.py) in place of a count, or a line about a GPU without a handle, leaves the others' counts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from provision.checks.check import Command, Measurement, Output
from provision.checks.gpu.nvml_error import LOST, NO_HANDLE, REQUIRES_RESET, WORST_FIRST
from provision.errors import ParseError

NAME = "error_counters"  # of the command
_METRICS = {"pci": "load_replays", "sbecc": "load_ecc_correctable", "dbecc": "load_ecc_uncorrectable"}
_UNITS = {"pci": "replays", "sbecc": "errors", "dbecc": "errors"}
_INTERVAL = 5  # seconds
_MOST_SAMPLES = 3000
_ERROR = re.compile("|".join(rf"\[?{re.escape(error)}\]?" for error in WORST_FIRST), re.IGNORECASE)


def command(beside: str, seconds: float, deadline: float) -> Command:
    """The sampler that runs beside the command of that name, a load of so many seconds."""
    interval = max(_INTERVAL, round(seconds / _MOST_SAMPLES))
    argv = ("nvidia-smi", "dmon", "-s", "e", "-d", str(interval))
    return Command(NAME, argv, deadline, load=seconds, beside=beside)


def measure(output: Output | None) -> list[Measurement]:
    """What each counter grew by; `error_counters` is the reason when they could not be read, and absent when
    nobody asked.
    """
    if output is None:
        return []
    try:
        return parse(output)
    except ParseError as error:
        return [Measurement("error_counters", f"{error.what}; {error.fix}", "")]


def parse(output: Output) -> list[Measurement]:
    """dmon's rows → per GPU the growth of each counter, and the seconds in which they were counted. Raises
    ParseError.
    """
    if output.not_started or output.timed_out:
        why = output.not_started or "it did not answer in time"
        raise ParseError(f"error counters were not read under load: {why}", "look at nvidia-smi on the node")
    columns: list[str] = []
    samples: Counter[int] = Counter()
    errors: dict[int, str] = {}  # GPU → the NVML error in place of its counts
    ended = ""
    seen: dict[tuple[int, str], tuple[int, int]] = {}
    lines = output.stdout.splitlines()
    for number, line in enumerate(lines):
        error = _ERROR.search(line)
        words = _ERROR.sub("-", line).split()
        last = number == len(lines) - 1 and not output.stdout.endswith("\n")
        if words[:2] == ["#", "gpu"]:
            columns = words[2:]
        elif not words or words[0] == "#" or line.startswith("[gpuprov: "):
            continue
        elif last or _beside_gap(lines, number):
            continue  # cut by the end of the load, or next to what was left out
        elif NO_HANDLE in line:
            ended = line.strip()[:160]  # telemetry names the GPU
        elif len(words) != len(columns) + 1 or not words[0].isdigit():
            if error is not None:
                if words[0].isdigit():
                    errors[int(words[0])] = _spelt(error[0])
                else:
                    ended = line.strip()[:160]
                continue
            raise ParseError(
                f"nvidia-smi dmon: not understood: {line.strip()[:120]!r}", "report the new format"
            )
        else:
            samples[int(words[0])] += 1
            if error is not None:
                errors[int(words[0])] = _spelt(error[0])
            for name, text in zip(columns, words[1:], strict=True):
                if text == "-" or name not in _METRICS:
                    continue
                if not text.isdigit():
                    raise ParseError(f"nvidia-smi dmon: {name} is {text[:40]!r}", "report the new format")
                first = seen.get((int(words[0]), name), (int(text), 0))[0]
                seen[int(words[0]), name] = (first, int(text))
    if "pci" not in columns:
        said = (output.stdout.strip() or output.stderr.strip() or f"nothing, status {output.rc}").splitlines()
        raise ParseError(f"nvidia-smi dmon counted no errors: {said[-1][:160]}", "run the check again")
    unread = dict(_uncounted(samples, seen))
    # The other errors may be of this one counter; the samples of telemetry know whether the GPU answers.
    lost = {gpu: error for gpu, error in errors.items() if error in (LOST, REQUIRES_RESET)}
    unread.update({gpu: f"counts ({error!r})" for gpu, error in errors.items()})
    # A counter that shrank was reset with its GPU meanwhile: all that it shows is new.
    return [
        Measurement("counted", output.seconds, "s"),
        *([Measurement("counters_lost", ended, "")] if ended else []),
        *(_samples(output, samples) if not output.truncated else []),
        *(Measurement("uncounted", what, "", f"gpu{gpu}") for gpu, what in unread.items() if gpu not in lost),
        *(
            Measurement("lost", f"nvidia-smi dmon prints {error!r} in place of its counts", "", f"gpu{gpu}")
            for gpu, error in lost.items()
        ),
        *(
            Measurement(_METRICS[name], now - first if now >= first else now, _UNITS[name], f"gpu{gpu}")
            for (gpu, name), (first, now) in sorted(seen.items())
        ),
    ]


def _spelt(text: str) -> str:
    return next(error for error in WORST_FIRST if error.casefold() == text.strip("[]").casefold())


def _samples(output: Output, samples: Mapping[int, int]) -> list[Measurement]:
    """How often each GPU was listed, and how many seconds that is of the node. Of an output from whose middle
    something was left out, nobody knows."""
    interval = next((word for at, word in zip(output.argv, output.argv[1:], strict=False) if at == "-d"), "")
    seconds = max(samples.values(), default=0) * int(interval) if interval.isdigit() else None
    return [
        *(Measurement("counter_samples", n, "samples", f"gpu{gpu}") for gpu, n in sorted(samples.items())),
        *([Measurement("counters_sampled", seconds, "s")] if seconds is not None else []),
    ]


def _uncounted(samples: Mapping[int, int], seen: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    """The counters that dmon reads of most GPUs, and not of this one (`-` in every sample)."""
    read = set(seen)
    silent = {name: {gpu for gpu in samples if (gpu, name) not in read} for name in ("dbecc", "pci")}
    few = {name: gpus for name, gpus in silent.items() if 2 * len(gpus) <= len(samples)}
    named = [(gpu, ", ".join(name for name, gpus in few.items() if gpu in gpus)) for gpu in sorted(samples)]
    return [(gpu, words) for gpu, words in named if words]


def _beside_gap(lines: Sequence[str], number: int) -> bool:
    return any(lines[at].startswith("[gpuprov: ") for at in (number - 1, number + 1) if 0 <= at < len(lines))
