"""Progress of this node's newest burn-in, read from its spool for the metrics."""

from __future__ import annotations

from pathlib import Path

from provision import foreign_json
from provision.node.burnin.order import OrderError, read_order
from provision.node.lock import BURNIN_HOME, BURNIN_UNIT
from provision.node.modules import gpuprov_run

_LARGEST = 16 * 1024 * 1024  # bytes of an order file; an order holds the commands of all its steps


def progress(home: Path = Path(BURNIN_HOME)) -> dict[str, float]:
    """Return `running` (0 or 1), `progress` (0 to 1) and `end` of the newest burn-in.

    Empty without a burn-in, or if its spool cannot be read."""
    try:
        spools = [path for path in home.iterdir() if (path / "state.json").is_file()]
        spool = max(spools, key=lambda path: (path / "state.json").stat().st_mtime, default=None)
        if spool is None:
            return {}
        with (spool / "order.json").open("rb") as source:
            order = read_order(source.read(_LARGEST))
        state = foreign_json.read((spool / "state.json").read_bytes())
        lengths = [segment["seconds"] or 0.0 for segment in order["segments"]]
        total, index = sum(lengths), int(state["segment"])
        passed = sum(lengths[:index]) + min(float(state["spent"]), *lengths[index : index + 1], total)
        if state["finished"] is not None:
            return {"running": 0, "progress": passed / total if total else 1.0}
        query = {"name": "unit", "argv": ["systemctl", "is-active", "--quiet", BURNIN_UNIT], "deadline": 5.0}
        running = int(gpuprov_run.run_one(query, 1024)["rc"] == 0)
        return {
            "running": running,
            "progress": passed / total if total else 0.0,
            "end": float(state["go_t"]) + total,  # planned, seconds since 1970
        }
    except (OSError, OrderError, ValueError, KeyError, TypeError):
        return {}
