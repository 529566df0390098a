#!/usr/bin/env python3
"""Compares the catalogue of AMD's kernel lines, provision/data/amdgpu.yml, with AMD's; renews copies.

scripts/catalogue_amd.py --node-scraper dmesg_analyzer.py          print what AMD changed since the record
scripts/catalogue_amd.py --node-scraper dmesg_analyzer.py --write  record it
scripts/catalogue_amd.py --watcher                                 renew the patterns of the role node_health

`--node-scraper`: nodescraper/plugins/inband/dmesg/dmesg_analyzer.py of github.com/amd/node-scraper. The
record holds facts about its rules (name, level, digest of the pattern), never their text. A new rule has no
kind: tests/checks/test_amd_kernel_lines.py fails until `kinds` or `left` explains its treatment.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
CATALOGUE = ROOT / "provision/data/amdgpu.yml"
RECORD = ROOT / "tests/fixtures/kernel_log/node-scraper.yml"
WATCHER = ROOT / "roles/node_health/templates/gpuprov-node-health-kernel.j2"
BEGIN, END = "# amdgpu.yml: begin", "# amdgpu.yml: end"


def rules(source: str) -> list[dict[str, Any]]:
    """Return name, level and digest of each rule of node-scraper's source, in order."""
    found = []
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "ErrorRegex":
            fields = {word.arg: word.value for word in call.keywords}
            if not {"regex", "message"} <= fields.keys():
                continue
            level = fields.get("event_priority")
            pattern = hashlib.sha256(ast.unparse(fields["regex"]).encode()).hexdigest()[:8]
            name = ast.literal_eval(fields["message"])
            level_name = level.attr.lower() if isinstance(level, ast.Attribute) else "error"
            found.append((call.lineno, {"rule": name, "level": level_name, "pattern": pattern}))
    return [rule for _, rule in sorted(found, key=lambda one: one[0])]


def differences(recorded: list[dict[str, Any]], now: list[dict[str, Any]]) -> Iterator[str]:
    """Yield one line for each rule that is new, gone or changed."""
    before, after = ({(one["rule"], one["pattern"]): one for one in many} for many in (recorded, now))
    for key in sorted(after.keys() | before.keys()):
        if key not in before:
            yield f"new or changed: {key[0]} ({after[key]['level']}, pattern {key[1]})"
        elif key not in after:
            yield f"gone or changed: {key[0]} (pattern {key[1]})"
        elif before[key]["level"] != after[key]["level"]:
            yield f"{key[0]}: level {before[key]['level']} is now {after[key]['level']}"


def record(recorded: list[dict[str, Any]], now: list[dict[str, Any]]) -> str:
    """Render the new record; annotations of a rule with the same name stay."""
    known = {one["rule"]: {key: one[key] for key in ("kinds", "left") if key in one} for one in recorded}
    head = RECORD.read_text(encoding="utf-8").split("\n- ")[0].rstrip() if RECORD.is_file() else "---"
    lines = [{**one, **known.get(one["rule"], {})} for one in now]
    return head + "\n" + yaml.safe_dump(lines, sort_keys=False, width=150, default_flow_style=None)


def extended(pattern: str) -> str:
    """Convert a pattern of the catalogue to a POSIX extended regular expression.
    Repetitions become unbounded: bash compiles it for each line, and counted ones compile slowly."""
    classes = {r"\d": "[0-9]", r"\w": "[a-zA-Z0-9_]", r"\S": "[^ ]"}
    plain = re.sub(r"\\[dwS]", lambda match: classes[match[0]], pattern.replace("(?:", "("))
    return re.sub(r"\{1,\d+\}", "+", re.sub(r"\{0,\d+\}", "*", plain))


def watched(catalogue: dict[str, dict[str, Any]]) -> str:
    """Render the watcher's lines that hold the patterns of level fail."""
    fatal = {name: row for name, row in catalogue.items() if row["level"] == "fail"}
    own = [extended(row["pattern"]) for row in fatal.values() if "source_of" not in row]
    ports = [extended(row["pattern"]) for row in fatal.values() if row.get("source_of") == "pcieport"]
    lines = [f'amdgpu+="{"(" if not place else "|"}{pattern}"' for place, pattern in enumerate(own)]
    lines += ['amdgpu+=")"', *(f'amdgpu+="|${{stamp}}pcieport $device: ({pattern})"' for pattern in ports)]
    return "\n".join(lines)


def with_patterns(template: str) -> str:
    """Return the watcher's template with the catalogue's current patterns."""
    before, rest = template.split(BEGIN + "\n")
    after = rest.partition(END)[2]
    catalogue = yaml.safe_load(CATALOGUE.read_text(encoding="utf-8"))
    return f"{before}{BEGIN}\n{watched(catalogue)}\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--node-scraper", type=Path, metavar="FILE")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--watcher", action="store_true")
    options = parser.parse_args()
    if options.watcher:
        WATCHER.write_text(with_patterns(WATCHER.read_text(encoding="utf-8")), encoding="utf-8")
    if options.node_scraper is None:
        return 0
    recorded = yaml.safe_load(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else []
    now = rules(options.node_scraper.read_text(encoding="utf-8"))
    changed = list(differences(recorded, now))
    print("\n".join(changed) or "no differences")
    if options.write:
        RECORD.write_text(record(recorded, now), encoding="utf-8")
    return 1 if changed and not options.write else 0


if __name__ == "__main__":
    sys.exit(main())
