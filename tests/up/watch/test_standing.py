"""The role that the watch has given each node."""

from __future__ import annotations

from dataclasses import replace

from provision.up.watch import standing
from provision.up.watch.incidents import Step, moved, new
from tests.support.watching import fleet


def test_each_node_that_the_watch_touched_has_its_role() -> None:
    repair = moved(new("gpu-03", 1.0, "Xid 79", number=1), Step.REPAIR, spare="spare-1", placed=2.0)
    waits = moved(new("gpu-04", 3.0, "Xid 48", number=2), Step.CHOOSE, "no spare")
    back = moved(new("gpu-05", 0.5, "hot", number=3), Step.REPAIR, spare="gpu-06", placed=0.6)
    back = replace(back, returned=0.9, returned_number=4)
    gone = moved(new("sold", 0.1, "x", number=5), Step.REPAIR)
    closed = moved(new("gpu-01", 0.1, "x", number=6), Step.CLOSED)
    found = standing.of(fleet(), [repair, waits, back, gone, closed])
    assert {name: (one.role, one.incident, one.other) for name, one in found.items()} == {
        "gpu-04": ("failed", waits.id, ""),
        "gpu-03": ("repair", repair.id, "spare-1"),
        "spare-1": ("replaces", repair.id, "gpu-03"),
        "gpu-05": ("spare", "", ""),
        "spare-2": ("spare", "", ""),
    }
    assert next(iter(found)) == "gpu-04", "what the watch is at work on comes first"
    assert found["gpu-03"].next == "gpuprov return gpu-03 /inventory/nodes.yml"
