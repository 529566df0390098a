"""Writes the Grafana dashboards into a folder, one JSON file each, or prints their names.

python scripts/dashboards.py --write roles/monitoring/files/dashboards
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from boards import burnin, fleet, gpu, node, rack
from grafana_foundation_sdk.cog.encoder import JSONEncoder

BOARDS = {"fleet": fleet, "rack": rack, "node": node, "gpu": gpu, "burnin": burnin}


def as_text(board: dict[str, Any]) -> str:
    """Render a dashboard with sorted keys, so that a changed panel only changes its own lines."""
    return json.dumps(board, cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", metavar="FOLDER", type=Path, help="write FOLDER/<name>.json")
    options = parser.parse_args()
    for name, module in BOARDS.items():
        if options.write:
            options.write.mkdir(parents=True, exist_ok=True)
            (options.write / f"{name}.json").write_text(as_text(module.build()), encoding="utf-8")
        else:
            print(f"{name}\t{module.build()['title']}")


if __name__ == "__main__":
    main()
