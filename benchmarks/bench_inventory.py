"""What reading an inventory costs: a ratio to PyYAML's CSafeLoader on the same file. Goal: 1.3x.

10,000 hosts in racks. Then what follows in `plan` and `drift` up to the first connection, in a fresh process
with its peak memory. CPU seconds; the rounds are interleaved, and each ratio is of one round.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from benchmarks.costs import ROOT
from benchmarks.results import Finding, Options, Result, Rounds, Table, number
from provision.desired import inventory

RACK = 64  # nodes
RESOLVE = """
import sys, time
from pathlib import Path
from provision.drift import assess
from provision.desired import inventory, stack, variables
from provision.desired.templating import resolve
from provision.up import resume
from provision.desired.expectations import facts_to_ask

def told(what, work):
    begin = time.process_time()
    answer = work()
    print(f"  {what:58} {time.process_time() - begin:6.2f} s", flush=True)
    return answer

fleet = told("inventory.load", lambda: inventory.load(Path(sys.argv[1])))
told("the names and values of variables", lambda: variables.check(fleet, {}))
declared = {name: stack.declared(node, {}) for name, node in fleet.nodes.items()}
views = told("resolve", lambda: resolve.resolve(fleet, declared)).views
told("what is impossible on any machine", lambda: assess._refuse_impossible(views))
told("the facts to ask of each node", lambda: [facts_to_ask(view) for view in views.values()])
told("connection variables", lambda: resolve.reachable(fleet, {}))
told("one machine under two names (up)", lambda: resume.refuse_twice_named(fleet))
peak = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024
spent = time.process_time()
print(f"  {len(fleet.nodes):,} nodes; peak memory of the process {peak:.0f} MB, {spent:.1f} s of CPU in all")
"""


def fleet(hosts: int) -> dict[str, Any]:
    """A cluster as an inventory: addresses and serial numbers of their own, the rest by rack and group."""
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


def templated(document: dict[str, Any]) -> dict[str, Any]:
    """The same cluster, its options by rack and its way in told by templates that mention groups."""
    everywhere = {"ansible_ssh_common_args": "-o ProxyJump={{ groups['rack_000'][0] }}"}
    racks = {}
    for rack, described in document["all"]["children"].items():
        servers = {
            "rack_servers": [f"{{{{ groups['{rack}'][0] }}}}"],
            "host_settings_time_servers": "{{ rack_servers }}",
        }
        racks[rack] = {**described, "vars": {**described["vars"], **servers}}
    return {"all": {"vars": {**document["all"]["vars"], **everywhere}, "children": racks}}


def cost(work: Callable[[], Any]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def measure(options: Options) -> Iterator[Finding]:
    """The YAML of 10,000 hosts against PyYAML's C loader; and all of a fleet's variables, with the peak."""
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
    plain, end = resolved(file)
    file.write_text(
        yaml.dump(templated(fleet(hosts)), Dumper=yaml.CSafeDumper, sort_keys=False), encoding="utf-8"
    )
    mentioning, templated_end = resolved(file)
    yield Table(
        f"{hosts:,} hosts, up to the first connection",
        ("", "CPU", "with templates"),
        tuple((step, spent, mentioning[step]) for step, spent in plain.items()),
        (
            end,
            "With templates: the way in and an option of each rack mention `groups`, which holds all hosts."
            f" {templated_end}",
        ),
    )


def resolved(file: Path) -> tuple[dict[str, str], str]:
    """In a process of its own, what each step costs, and a line about all of them."""
    done = subprocess.run(
        [sys.executable, "-c", RESOLVE, str(file)],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
    )
    *steps, end = (line.strip() for line in done.stdout.splitlines())
    return {step.rpartition("  ")[0].strip(): step.rpartition("  ")[2].strip() for step in steps}, end
