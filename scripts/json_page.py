"""Write the tables of docs/json.md from the JSON schemas, or print them.

python scripts/json_page.py --write docs/json.md
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import page

from provision import paths

Schema = Mapping[str, Any]
BEGIN = "<!-- Written by scripts/json_page.py. -->"
SECTIONS = {
    "report": "Health report: validate, report",
    "plan": "Plan: plan",
    "status": "State of the fleet: status",
    "drift": "Drift report: drift",
}


def lines() -> Iterator[str]:
    """Return the sections of all documents."""
    for name, heading in SECTIONS.items():
        file = paths.DATA / "schemas" / f"{name}.schema.json"
        schema = json.loads(file.read_text(encoding="utf-8"))
        yield f"\n## {heading}\n"
        yield f"{sentence(schema['description'])}\n"
        number = schema["properties"]["format"]["const"]
        yield f"Format {number}; [{file.name}](../provision/data/schemas/{file.name}).\n"
        yield from table(schema, name)
        for part, definition in schema.get("$defs", {}).items():
            yield f"\n### {name}: {part}\n"
            if "description" in definition:
                yield f"{sentence(definition['description'])}\n"
            if "properties" in definition:
                yield from table(definition, name)
            else:
                yield f"Type: {kind(definition, name)}."


def table(schema: Schema, document: str) -> Iterator[str]:
    """Return the table of an object's members."""
    yield "| member | type | present | meaning |"
    yield "|---|---|---|---|"
    for name, member, required in members(schema, ""):
        about = sentence(member.get("description", "")).replace("|", "\\|")
        yield f"| `{name}` | {kind(member, document)} | {'always' if required else 'sometimes'} | {about} |"


def members(schema: Schema, prefix: str) -> Iterator[tuple[str, Schema, bool]]:
    """Return (dotted name, schema, whether it is required) of each member, inline objects included."""
    for name, described in schema.get("properties", {}).items():
        member = {} if described is True else described
        yield prefix + name, member, name in schema.get("required", ())
        yield from members(member, f"{prefix}{name}.")
        for inner, label in (("items", "[]"), ("additionalProperties", ".*")):
            if isinstance(member.get(inner), dict):
                yield from members(member[inner], f"{prefix}{name}{label}.")


def kind(schema: Schema, document: str) -> str:
    """Return the type of a value, in words."""
    if "$ref" in schema:
        part = schema["$ref"].rpartition("/")[2]
        return f"[{part}](#{document}-{part})"
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return " or ".join(kind(each, document) for each in schema[choice])
    types = schema.get("type", "any")
    if types == "array" and "items" in schema:
        return f"array of {kind(schema['items'], document)}"
    if types == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object, each value: {kind(schema['additionalProperties'], document)}"
    return " or ".join([types] if isinstance(types, str) else types)


def sentence(text: str) -> str:
    """Return a description with its first letter in upper case and a full stop."""
    text = " ".join(text.split())
    begins = text[:1] if text.startswith(("gpuprov", "pass:")) else text[:1].upper()
    return begins + text[1:] + ("" if not text or text[-1] in ".:…" else ".")


if __name__ == "__main__":
    options = page.arguments(__doc__).parse_args()
    page.write(options.write, BEGIN, lines())
