"""Write the table of checks in docs/validate.md, or print it.

python scripts/checks_table.py --write docs/validate.md
"""

from __future__ import annotations

import re

import page

from provision.checks.judging import checks_reference

options = page.arguments(__doc__).parse_args()
table = checks_reference.table()
if options.write:
    text = options.write.read_text(encoding="utf-8")
    options.write.write_text(re.sub(r"\| check \| stage \|(?:.+\n)+", lambda _: f"{table}\n", text), "utf-8")
else:
    print(table)
