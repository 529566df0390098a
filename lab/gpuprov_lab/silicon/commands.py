"""The two commands of the host side: `new` creates a node's hardware, `fault` breaks and repairs it."""

import argparse
import json
import sys
import time
from pathlib import Path

import fabric_log
import host_lines
import kernel_log
import nics
import noise
import surfaces
import xid
from faults import catalogue as faults
from skus import SKUS
from state import SCHEMA, Node, StateError, write_atomically


def new(arguments: list) -> int:
    """Run `new --dir DIR --sku SKU --name NODE --seed N [--speed X]`."""
    parser = argparse.ArgumentParser(prog="run.py new")
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--sku", choices=sorted(SKUS), required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--speed", type=float, default=1.0, help="simulated seconds per real second")
    parser.add_argument("--network", choices=["ib", "roce", "none"], default="ib", help="what joins nodes")
    options = parser.parse_args(arguments)
    if not options.speed > 0:
        parser.error("--speed must be above 0")
    options.dir.mkdir(parents=True, exist_ok=True)
    gpus = [_gpu(options, slot, bus) for slot, bus in enumerate(SKUS[options.sku]["buses"])]
    data = {
        "schema": SCHEMA,
        "sku": options.sku,
        "name": options.name,
        "seed": options.seed,
        "speed": options.speed,
        "nouveau_in_kernel": True,
        "gpus": gpus,
        "nics": nics.fitted(gpus, SKUS[options.sku]["architecture"], options.network),
        "faults": [],
    }
    write_atomically(options.dir / "state.json", json.dumps(data, indent=1) + "\n")
    options.dir.chmod(0o755)
    surfaces.make_folders(options.dir)
    surfaces.unload_everything(options.dir)
    kernel_log.begin(options.dir)
    surfaces.write_all(Node(options.dir))
    return 0


def _gpu(options, slot: int, bus: str) -> dict:
    sku, words = SKUS[options.sku], (options.seed, options.name, slot)
    # An accelerator that is also a CPU has its own socket and its own PCI domain.
    integrated = bool(sku.get("integrated"))
    sockets = len(sku["buses"]) if integrated else 2
    numa, per_node = slot // (len(sku["buses"]) // sockets), sku["cpus"] // sockets
    identity = noise.identity("uuid", *words)
    return {
        "slot": slot,
        "uuid": f"GPU-{identity}",
        "serial": sku["serial"] + noise.digits(10, "serial", *words),
        "address": f"{slot if integrated else 0:04x}:{bus.lower()}:00.0",
        "bus": bus,
        "integrated": integrated,
        "numa": numa,
        "cpus": f"{numa * per_node}-{(numa + 1) * per_node - 1}",
    }


def fault(arguments: list) -> int:
    """Run `fault --list [--json]`, or `fault --dir DIR set|clear|show …`."""
    parser = argparse.ArgumentParser(prog="run.py fault")
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--list", action="store_true", help="every fault there is")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("action", nargs="?", choices=["set", "clear", "show"])
    parser.add_argument("words", nargs="*", help="set FAULT key=value…, clear [FAULT [key=value…]]")
    # Python 3.6 has no parse_intermixed_args, and --json may follow `show`.
    options = parser.parse_args(sorted(arguments, key=lambda word: word != "--json"))
    try:
        if options.list:
            return _list(options.json)
        if not options.dir or not options.action:
            parser.error("give --list, or --dir DIR and set, clear or show")
        node = Node(options.dir)
        if options.action == "show":
            print(json.dumps(node.faults, indent=1) if options.json else "\n".join(map(_line, node.faults)))
            return 0
        if options.action == "set":
            if not options.words:
                raise StateError("set what? see fault --list")
            _set(node, faults.parse(options.words, node))
        else:
            _clear(node, options.words)
        node = Node(options.dir)  # the state with the changed faults
        surfaces.write_all(node)
        if node.driver():
            surfaces.write_driver(node, *node.driver())
    except StateError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _set(node, new_fault: dict) -> None:
    if new_fault["id"] == "pcie_replays":
        new_fault["since"] = time.time()
    node.faults = [one for one in node.faults if not faults.same(one, new_fault)] + [new_fault]
    node.save()
    xid.report(node, [new_fault])
    kernel_log.append(node.folder, host_lines.lines(new_fault))
    fabric_log.report(node, new_fault)


def _clear(node, words: list) -> None:
    if not words:
        node.faults = []
    else:
        if words[0] not in faults.FAULTS:
            faults.parse(words[:1], node)
        parameters = dict(word.partition("=")[::2] for word in words[1:])
        node.faults = [
            one
            for one in node.faults
            if one["id"] != words[0] or any(str(one.get(key)) != value for key, value in parameters.items())
        ]
    node.save()


HIDDEN = ("id", "reported", "since", "struck")  # stored keys of a fault that are not its parameters


def _line(one: dict) -> str:
    rest = " ".join(f"{key}={value}" for key, value in one.items() if key not in HIDDEN)
    return f"{one['id']} {rest}".rstrip()


def _list(as_json: bool) -> int:
    known = faults.describe()
    if as_json:
        print(json.dumps(known, indent=1))
        return 0
    for one in known:
        names = [
            p["name"] if p["required"] else "{}={}".format(p["name"], p["default"]) for p in one["parameters"]
        ]
        print(
            "{:18} {}\n{:18}   {}".format(one["id"], one["meaning"], "", " ".join(names) or "no parameters")
        )
    return 0
