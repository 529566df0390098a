"""Writes the tables of docs/thresholds.md, or prints them: what every shipped limit rests on.

python scripts/thresholds_page.py --write docs/thresholds.md
python scripts/thresholds_page.py --at 2027-05    # ages in months at that time, in place of dates
"""

from __future__ import annotations

from collections.abc import Iterator

import page

from provision.checks import thresholds
from provision.checks.judge import limit_text
from provision.checks.threshold_evidence import age_months, machines_text, share_failed, share_text
from provision.checks.thresholds import Threshold


def tables(at: str = "") -> Iterator[str]:
    """Their lines, a table for each SKU; with a month `at` (YYYY-MM), ages in months in place of dates."""
    when = "months old" if at else "date"
    for sku in thresholds.available():
        yield f"\n## {sku}\n"
        yield f"| metric | limit | kind | machines | {when} | typical | healthy failed |"
        yield "|---|---|---|---|---|---|---|"
        for limit in thresholds.for_sku(sku).values():
            yield row(limit, at)


def row(limit: Threshold, at: str) -> str:
    """A limit's line of the table."""
    cells = [f"`{limit.metric}`", limit_text(limit), limit.kind, machines_text(limit)]
    cells.append(str(age_months(limit, at)) if at else limit.date)
    typical = limit.typical
    cells.append(f"{typical.value:g} {limit.unit} ({typical.machines:,})" if typical else "")
    return f"| {' | '.join([*cells, share_text(share_failed(limit))])} |"


def main() -> None:
    parser = page.arguments(__doc__)
    parser.add_argument("--at", metavar="YYYY-MM", default="", help="print ages in months at this month")
    options = parser.parse_args()
    page.write(options.write, "<!-- limits: begin -->", tables(options.at))


if __name__ == "__main__":
    main()
