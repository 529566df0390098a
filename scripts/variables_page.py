"""Writes the tables of docs/variables.md, or prints them: every variable of the inventory.

python scripts/variables_page.py --write docs/variables.md
"""

from __future__ import annotations

import page

from provision.desired.variables_reference import tables


def main() -> None:
    options = page.arguments(__doc__).parse_args()
    page.write(options.write, "<!-- variables: begin -->", tables())


if __name__ == "__main__":
    main()
