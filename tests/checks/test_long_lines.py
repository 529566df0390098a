"""Linear parsing time for a line of a megabyte: every check, with one line of its samples lengthened.
Patterns alone are tested in tests/test_linear_patterns.py."""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from provision.checks.check import CheckNode, Measurement, Output, Raw
from provision.checks.gpu import gpu_burn
from provision.checks.judging import node_judge
from provision.checks.judging.registry import CHECKS
from provision.errors import ParseError
from tests.support.checks import make_node, make_output, sample
from tests.support.scenarios import Scenario, scenarios
from tests.support.seed import SEED, times

MEGABYTE = 1_000_000
SECONDS = 10.0  # CPU seconds; linear parsing takes 0.05, quadratic would take 1,000
FILLERS = (" ", "0", "a:", "[", "- ", "0 ")
LINES = times(10, 60)  # lengthened lines for each check


def lengthened(one: Scenario, dice: random.Random) -> Iterator[tuple[Output, ...]]:
    """Yield the outputs with filler inserted between two words of one line."""
    spoken = [output for output in one.outputs if output.stdout.strip()]
    for _ in range(LINES if spoken else 0):
        output = dice.choice(spoken)
        lines = output.stdout.splitlines(keepends=True)
        at = dice.choice([number for number, line in enumerate(lines) if line.strip()])
        cut = dice.choice([0, *(match.end() for match in re.finditer(r"\w+\W*", lines[at]))])
        filler = dice.choice(FILLERS)
        lines[at] = lines[at][:cut] + filler * (MEGABYTE // len(filler)) + lines[at][cut:]
        long = replace(output, stdout="".join(lines))
        yield tuple(long if other is output else other for other in one.outputs)


@pytest.mark.long
@pytest.mark.parametrize("check", list(CHECKS))
def test_a_megabyte_in_one_line_is_read_at_once(check: str) -> None:
    one = scenarios(check)[0]
    for outputs in lengthened(one, random.Random(SEED)):  # noqa: S311
        began = time.process_time()
        with contextlib.suppress(ParseError):
            CHECKS[check].parse(one.node, {output.name: output for output in outputs})
        assert time.process_time() - began < SECONDS


@pytest.mark.long
@pytest.mark.parametrize("check", list(CHECKS))
def test_a_number_of_60_000_digits_is_not_understood_or_not_read(check: str) -> None:
    one = scenarios(check)[0]
    for output in one.outputs:
        numbers = list(re.finditer(r"\d+", output.stdout))
        for found in numbers[:: max(1, len(numbers) // 60)]:
            text = output.stdout[: found.start()] + "9" * 60_000 + output.stdout[found.end() :]
            outputs = tuple(replace(output, stdout=text) if o is output else o for o in one.outputs)
            with contextlib.suppress(ParseError):
                node_judge._parsed(CHECKS[check], one.node, Raw("gpu-01", check, outputs))


def test_a_number_that_python_refuses_is_a_parse_error() -> None:
    class Hostile:
        @staticmethod
        def parse(_node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
            text = outputs["x"].stdout
            return [Measurement("a", int(float(text) if text.isalpha() else text) + 0.0, "")]

    for text in ("9" * 60_000, "9" * 400, "nan", "inf"):
        raw = Raw("gpu-01", "x", (make_output("x", text),))
        with pytest.raises(ParseError, match="a number that cannot be used"):
            node_judge._parsed(Hostile, make_node(), raw)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="invalid literal"):
        node_judge._parsed(Hostile, make_node(), Raw("gpu-01", "x", (make_output("x", "1x"),)))  # type: ignore[arg-type]


@pytest.mark.parametrize("filler", [" ", "\t", "0 - ", "0"])
def test_blanks_behind_errors_of_gpu_burn(filler: str) -> None:
    filling = "errors: " + filler * (MEGABYTE // len(filler))
    long = sample("gpu_burn/healthy.txt").replace("errors: ", filling, 1)
    assert len(long) > MEGABYTE
    began = time.process_time()
    with contextlib.suppress(ParseError):
        gpu_burn.measure(make_output("gpu_burn", long, argv=("gpu_burn", "-tc", "60")))
    assert time.process_time() - began < SECONDS
