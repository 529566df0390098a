"""The evidence behind a limit: number of machines, age, and the share of healthy parts it would fail.

The share is a prediction for a part that nobody has measured yet: normal noise around the typical value.
The errors of that value and of the spread count too (Student's t), so that few machines give a larger share.
"""

from __future__ import annotations

import math
from functools import cache

from provision import yamlfile
from provision.checks import student_t
from provision.checks.thresholds import Spread, Threshold
from provision.paths import DATA

FILE = DATA / "healthy_spread.yml"


@cache
def general_spread() -> Spread:
    """The spread of healthy parts where a limit does not state its own: an upper bound, see the file."""
    document = yamlfile.load_mapping(FILE)
    return Spread(float(document["percent"]), None, document["source"])


def share_failed(limit: Threshold) -> float | None:
    """The share of healthy parts, 0 to 1, that the limit would fail; None when no typical value is known.

    A typical value whose source does not say of how many machines it is counts as one machine's.
    """
    typical, spread = limit.typical, limit.spread or general_spread()
    if typical is None or limit.direction == "equal":
        return None
    room = typical.value - limit.limit if limit.direction == "at_least" else limit.limit - typical.value
    # The next part differs from the true mean, and the mean of n machines does too: 1 + 1/n variances.
    error = typical.value * spread.percent / 100 * math.sqrt(1 + 1 / max(typical.machines or 1, 1))
    if error == 0:
        return 0.0 if room >= 0 else 1.0
    freedom = math.inf if spread.machines is None else spread.machines - 1
    return student_t.cdf(-room / error, freedom)


def share_text(share: float | None, sign: str = "≤") -> str:
    """As a person reads it, rounded up to two digits: `≤ 3.8 %`, `< 0.01 %`, or `unknown`. With a spread that
    was measured a share is no bound but what is expected: its sign is `about`.
    """
    if share is None:
        return "unknown"
    percent = 100 * share
    if percent < 0.01:
        return "< 0.01 %"
    digits = 1 - math.floor(math.log10(percent))
    up = math.ceil(round(percent * 10**digits, 6)) / 10**digits
    return f"{sign} {up:.{max(digits, 0)}f} %"


def machines_text(limit: Threshold) -> str:
    """How many machines were measured for the limit: a number, or `not stated`."""
    return "not stated" if limit.machines is None else f"{limit.machines:,}"


def age_months(limit: Threshold, at: str) -> int | None:
    """How old the limit's source is at a month (YYYY-MM); None when it has no date."""
    if not limit.date:
        return None
    (year, month), (then, when) = (map(int, text.split("-")[:2]) for text in (at, limit.date))
    return 12 * (year - then) + month - when
