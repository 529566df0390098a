"""The cost of reading an inventory, as a ratio to PyYAML's CSafeLoader on the same file. Goal: 1.3x.

10,000 hosts in racks. CPU seconds; the rounds are interleaved, and each ratio is taken within one round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import yaml

from benchmarks.results import Options, Result, Rounds, number
from provision.desired import inventory

RACK = 64  # nodes


def fleet(hosts: int) -> dict[str, Any]:
    """Return the inventory of a cluster: own addresses and serials, the rest by rack and group."""
    racks: dict[str, Any] = {}
    for place in range(hosts):
        rack = racks.setdefault(
            f"rack_{place // RACK:03}", {"hosts": {}, "vars": {"gpuprov_rack": place // RACK}}
        )
        rack["hosts"][f"gpu-{place:05}"] = {
            "ansible_host": f"10.{place >> 16}.{place >> 8 & 255}.{place & 255}",
            "serial_number": f"S{place:08}",
            "gpuprov_sku": "h100-sxm",
            "slots": [1, 2, 3, 4],
        }
    return {"all": {"vars": {"ansible_user": "root", "gpuprov_expected_gpus": 8}, "children": racks}}


def cost(work: Callable[[], Any]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def measure(options: Options) -> Iterator[Result]:
    """Compare loading the YAML of 10,000 hosts with PyYAML's C loader."""
    hosts = 100 if options.quick else 10_000
    file = options.folder / "fleet.yml"
    file.write_text(yaml.dump(fleet(hosts), Dumper=yaml.CSafeDumper, sort_keys=False), encoding="utf-8")
    costs = Rounds()
    for _ in range(options.rounds):
        costs.add("floor", cost(lambda: yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)))
        costs.add("ours", cost(lambda: inventory.load(file)))
    what = f"{hosts:,} hosts in YAML, loaded"
    goal = "" if options.quick else "inventory"
    note = f"{number(costs.median('ours'))} s"
    yield Result(goal, what, "`CSafeLoader` on the same file", costs.ratios("ours", "floor"), note)
