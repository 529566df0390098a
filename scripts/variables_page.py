"""Writes the tables of docs/variables.md, or prints them: every variable of the inventory.

python scripts/variables_page.py --write docs/variables.md
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from provision.desired.variables_reference import tables

BEGIN = "<!-- variables: begin -->"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", metavar="FILE", type=Path, help="replace the tables in this document")
    options = parser.parse_args()
    text = "\n".join(tables()) + "\n"
    if options.write:
        prose = options.write.read_text(encoding="utf-8").partition(BEGIN)[0]
        options.write.write_text(f"{prose}{BEGIN}\n{text}", encoding="utf-8")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
