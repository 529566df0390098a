"""Error counters that `nvidia-smi dmon -s e` reads beside a load → how much each grew meanwhile.

# gpu  sbecc  dbecc    pci
# Idx   errs   errs   errs
    0      0      0      0

`pci` is the number of PCIe replays, `dbecc` of uncorrectable memory errors. A count that was there before is
old; one that grows is happening now. The letters decide which columns there are, and `-` is no value.
"""

from __future__ import annotations

from collections.abc import Sequence

from provision.checks.check import Command, Measurement, Output
from provision.errors import ParseError

NAME = "error_counters"  # of the command
_METRICS = {"pci": "load_replays", "sbecc": "load_ecc_correctable", "dbecc": "load_ecc_uncorrectable"}
_UNITS = {"pci": "replays", "sbecc": "errors", "dbecc": "errors"}
_INTERVAL = 5  # seconds
_MOST_SAMPLES = 3000


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
    listed: set[int] = set()
    seen: dict[tuple[int, str], tuple[int, int]] = {}
    lines = output.stdout.splitlines()
    for number, line in enumerate(lines):
        words = line.split()
        last = number == len(lines) - 1 and not output.stdout.endswith("\n")
        if words[:2] == ["#", "gpu"]:
            columns = words[2:]
        elif not words or words[0] == "#" or line.startswith("[gpuprov: "):
            continue
        elif last or _beside_gap(lines, number):
            continue  # cut by the end of the load, or next to what was left out
        elif len(words) != len(columns) + 1 or not words[0].isdigit():
            if "lost" in line:
                continue  # telemetry tells of it
            raise ParseError(
                f"nvidia-smi dmon: not understood: {line.strip()[:120]!r}", "report the new format"
            )
        else:
            listed.add(int(words[0]))
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
    # Replays that dmon reads of the other GPUs, and not of this one (`-` in every sample).
    counts = {gpu for gpu, name in seen if name == "pci"}
    unread = sorted(listed - counts) if counts else []
    # A counter that shrank was reset with its GPU meanwhile: all that it shows is new.
    return [
        Measurement("counted", output.seconds, "s"),
        *(Measurement("uncounted", "pci", "", f"gpu{gpu}") for gpu in unread),
        *(
            Measurement(_METRICS[name], now - first if now >= first else now, _UNITS[name], f"gpu{gpu}")
            for (gpu, name), (first, now) in sorted(seen.items())
        ),
    ]


def _beside_gap(lines: Sequence[str], number: int) -> bool:
    return any(lines[at].startswith("[gpuprov: ") for at in (number - 1, number + 1) if 0 <= at < len(lines))
