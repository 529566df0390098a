"""Reads a report.json and reports whether exactly the demo's two faults were named."""

from __future__ import annotations

import json
import sys
from pathlib import Path

# (node, device) of the faults that scripts/demo sets.
BROKEN = {("gpu-03", "gpu5"), ("gpu-03", "gpu2-gpu6")}


def named(report: dict) -> set[tuple[str, str]]:
    """Return the (node, device) of every finding that is neither pass nor skip."""
    return {
        (node["node"], finding["device"])
        for node in report["nodes"]
        for check in node["checks"]
        for finding in check["findings"]
        if finding["verdict"] not in {"pass", "skip"} and finding["device"] != "node"
    } | {
        (node["node"], "node")
        for node in report["nodes"]
        if node["verdict"] != "pass" and node["node"] not in {name for name, _ in BROKEN}
    }


def main(path: str) -> int:
    found = named(json.loads(Path(path).read_text(encoding="utf-8")))
    for node, device in sorted(found):
        print(f"named: {node} {device}")
    if found != BROKEN:
        print(f"expected exactly {sorted(BROKEN)}", file=sys.stderr)
        return 1
    print("both faults were named, and nothing else")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
