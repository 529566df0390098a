"""Writes the tables of docs/thresholds.md, or prints them: the evidence for every shipped limit.

python scripts/thresholds_page.py --write docs/thresholds.md
python scripts/thresholds_page.py --at 2027-05    # ages in months at that time, in place of dates
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import page

from provision.checks import thresholds
from provision.checks.judge import limit_text
from provision.checks.judging.threshold_evidence import share_failed, share_text
from provision.checks.thresholds import Threshold
from provision.desired.skus import all_skus


def machines_text(limit: Threshold) -> str:
    """Return how many machines were measured for the limit: a number, or `not stated`."""
    return "not stated" if limit.machines is None else f"{limit.machines:,}"


def age_months(limit: Threshold, at: str) -> int | None:
    """Return the age of the limit's source in a month (YYYY-MM); None if it has no date."""
    if not limit.date:
        return None
    (year, month), (then, when) = (map(int, text.split("-")[:2]) for text in (at, limit.date))
    return 12 * (year - then) + month - when


def tables(at: str = "") -> Iterator[str]:
    """Yield the tables' lines, one table per SKU; with a month `at` (YYYY-MM), ages in months, not dates."""
    when = "months old" if at else "date"
    yield from overview()
    sources: dict[str, int] = {}  # text → its number on this page
    for sku in thresholds.available():
        yield f"\n## {sku}\n"
        yield f"| metric | limit | kind | machines | {when} | typical | healthy failed | source |"
        yield "|---|---|---|---|---|---|---|---:|"
        for limit in thresholds.for_sku(sku).values():
            yield row(limit, at, sources.setdefault(limit.source, len(sources) + 1))
    yield "\n## Sources\n"
    yield from (f"{number}. {text}" for text, number in sources.items())


def overview() -> Iterator[str]:
    """Yield each check's number of limits for each SKU; a check without any warns instead of judging."""
    limits = {sku: thresholds.for_sku(sku) for sku in all_skus()}
    checks = list(dict.fromkeys(name.partition(".")[0] for one in limits.values() for name in one))
    yield "\n## Which SKU has which limits\n"
    yield "How many each check has; an empty cell has none, and the check then warns in place of judging.\n"
    yield f"| SKU | {' | '.join(f'`{check}`' for check in checks)} |"
    yield f"|---{'|---:' * len(checks)}|"
    for sku, known in limits.items():
        counts = Counter(name.partition(".")[0] for name in known)
        yield f"| {sku} | {' | '.join(str(counts[check] or '') for check in checks)} |"
    none = [sku for sku, known in limits.items() if not known]
    yield f"\nWithout any limit: {', '.join(none)}."


def row(limit: Threshold, at: str, source: int) -> str:
    """Render a limit's line of the table."""
    cells = [f"`{limit.metric}`", limit_text(limit), limit.kind, machines_text(limit)]
    cells.append(str(age_months(limit, at)) if at else limit.date)
    typical = limit.typical
    cells.append(f"{typical.value:g} {limit.unit} ({typical.machines:,})" if typical else "")
    return f"| {' | '.join([*cells, share_text(share_failed(limit)), str(source)])} |"


def main() -> None:
    parser = page.arguments(__doc__)
    parser.add_argument("--at", metavar="YYYY-MM", default="", help="print ages in months at this month")
    options = parser.parse_args()
    page.write(options.write, "<!-- limits: begin -->", tables(options.at))


if __name__ == "__main__":
    main()
