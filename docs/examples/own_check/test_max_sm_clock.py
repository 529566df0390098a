"""What the check makes of recorded output."""

from pathlib import Path

import max_sm_clock
import pytest

from gpuprov.checks import CheckNode, Output, ParseError, Threshold, Verdict

FIXTURES = Path(__file__).parent / "fixtures" / "max_sm_clock"
NODE = CheckNode("gpu-01", {"gpu": {"count": 8, "sku": "h100-sxm"}}, {})
LIMIT = Threshold("max_sm_clock.clock", 1980, "MHz", "at_least", "data sheet", "vendor")


def verdicts(text, **limits):
    output = Output("clocks", ("nvidia-smi",), 0, text, "", 1.0)
    measured = max_sm_clock.parse(NODE, {"clocks": output})
    return [(one.verdict, one.device) for one in max_sm_clock.judge(NODE, measured, limits)]


def test_healthy():
    text = (FIXTURES / "healthy.csv").read_text()
    assert verdicts(text, **{"max_sm_clock.clock": LIMIT}) == [(Verdict.PASS, "gpu0")]


def test_without_a_limit_it_warns():
    assert verdicts((FIXTURES / "healthy.csv").read_text()) == [(Verdict.WARN, "gpu0")]


def test_a_locked_gpu_is_named():
    assert verdicts((FIXTURES / "locked-gpu5.csv").read_text()) == [(Verdict.FAIL, "gpu5")]


@pytest.mark.parametrize("text", ["", "0, 1980\n", "0, [N/A]\n", "0, 1980\n2, 1980\n", "Nicht verfügbar\n"])
def test_what_is_not_understood_is_refused(text):
    with pytest.raises(ParseError):
        verdicts(text)
