"""Writes the tables of docs/variables.md, or prints them: every variable of the inventory.

python scripts/variables_page.py --write docs/variables.md
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import page

from provision.desired import variables
from provision.desired.role import Role, all_roles

_LONGEST = 60  # characters of a default in a table


@dataclass(frozen=True)
class Variable:
    """One variable as text. gpuprov's own have no `role`, and their `default` is in `meaning`."""

    name: str
    role: str
    type: str
    default: str
    choices: tuple[str, ...]
    meaning: str


def all_variables() -> dict[str, Variable]:
    """Return all variables by name: gpuprov's own, then the roles' in the order they are applied."""
    own = (Variable(name, "", variables.form(name), "", (), text) for name, text in variables.OWN.items())
    ours = (_of_role(role, name) for role in all_roles().values() for name in role.options)
    return {each.name: each for each in (*own, *ours)}


def _of_role(role: Role, name: str) -> Variable:
    option = role.options[name]
    elements = option.get("elements")
    kind = str(option.get("type", "str"))
    text = option["description"]
    return Variable(
        name,
        role.name,
        f"{kind} of {elements}" if elements else kind,
        _default(option.get("default", role.defaults.get(name))),
        tuple(_value(choice) for choice in option.get("choices", ())),
        " ".join(text if isinstance(text, list) else [text]),
    )


def _default(value: Any) -> str:
    shown = " ".join(_value(value).split())
    if "{{" in shown and ("gpuprov_node" in shown or "__" in shown):
        return "depends on the node"
    return shown if len(shown) <= _LONGEST else "made from other variables"


def _value(value: Any) -> str:
    """Render a value as written in YAML."""
    return value if isinstance(value, str) and value else json.dumps(value)


def tables() -> Iterator[str]:
    """Yield the lines of docs/variables.md: a table for gpuprov's own variables, and one for each role's."""
    known = all_variables()
    yield "\n## gpuprov itself\n"
    yield "| variable | value | meaning |"
    yield "|---|---|---|"
    for each in known.values():
        if not each.role:
            yield f"| `{each.name}` | {each.type} | {each.meaning} |"
    for role in all_roles():
        yield f"\n## [{role}](../roles/{role}/README.md)\n"
        yield "| variable | type | default | choices | meaning |"
        yield "|---|---|---|---|---|"
        yield from (_row(each) for each in known.values() if each.role == role)


def _row(each: Variable) -> str:
    words = each.default in ("depends on the node", "made from other variables")
    default = each.default if words else f"`{each.default}`"
    choices = ", ".join(f"`{choice}`" for choice in each.choices)
    cells = (f"`{each.name}`", each.type, default, choices, each.meaning)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def main() -> None:
    options = page.arguments(__doc__).parse_args()
    page.write(options.write, "<!-- variables: begin -->", tables())


if __name__ == "__main__":
    main()
