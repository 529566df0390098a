"""`gpuprov lab`: a fleet of simulated GPU nodes on this machine."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.errors import ExitCode, LabError, UsageError
from provision.terminal import printable

if TYPE_CHECKING:
    from gpuprov_lab.record import LabRecord

EPILOG = """\
A lab is a set of real Debian nodes (systemd, sshd, apt) with simulated GPUs, each in its own network
namespace. It needs root, and changes nothing outside its own bridge, /var/lib/gpuprov-lab and
/var/cache/gpuprov-lab.

  sudo gpuprov lab up                           # 3 nodes, and inventory/lab.yml
  sudo gpuprov lab up --node gpu-01=b200 --node gpu-02=l40s:debian12
  sudo gpuprov lab up --node gpu-01=h100-sxm+ib # with RDMA cards and drives
  sudo gpuprov lab fault gpu-01 burn_errors gpu=5
  sudo gpuprov lab fault gpu-01 --heal
  sudo gpuprov lab ssh gpu-01 nvidia-smi
  sudo gpuprov lab power gpu-02 off
  sudo gpuprov lab down
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    verbs = parser.add_subparsers(dest="lab_verb", metavar="VERB", title="verbs", required=True)
    _add_up(_verb(verbs, "up", "boot nodes, and write their inventory"))
    status = _verb(verbs, "status", "list the nodes, their state and their injected faults")
    status.add_argument("--json", action="store_true", help="print JSON")
    ssh = _verb(verbs, "ssh", "log in to a node, or run a command on it")
    ssh.add_argument("node", metavar="NODE")
    ssh.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="CMD", help="command to run (default: a login shell)"
    )
    _add_fault(_verb(verbs, "fault", "inject a fault into a node, or remove it"))
    _verb(verbs, "faults", "list the faults that can be injected", lab=False)
    power = _verb(verbs, "power", "switch a node off or on")
    power.add_argument("node", metavar="NODE")
    power.add_argument("state", choices=["off", "on"])
    compare = _verb(
        verbs, "compare", "compare the output of real tools with what the simulated ones print", lab=False
    )
    compare.add_argument("folder", type=Path, metavar="DIR", help="folder that gpuprov selftest wrote")
    compare.add_argument("--json", action="store_true", help="print JSON")
    down = _verb(verbs, "down", "remove the nodes and everything they created on this machine")
    down.add_argument("--all", action="store_true", help="remove every lab of this machine")
    down.add_argument(
        "--purge", action="store_true", help="also remove the caches: base trees, downloaded packages"
    )


def _verb(verbs: Any, name: str, summary: str, *, lab: bool = True) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(
        name, help=summary, description=summary[0].upper() + summary[1:] + ".", allow_abbrev=False
    )
    if lab:
        parser.add_argument("--lab", default="lab", metavar="NAME", help="name of the lab (default: lab)")
    return parser


def _add_up(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, metavar="N", help="number of nodes, of mixed SKUs (default: 3)")
    parser.add_argument(
        "--node",
        action="append",
        metavar="NAME=SKU[:RELEASE][+ib|+roce][+containers][+real-nvidia-smi]",
        help="boot this node (repeatable). SKU: h100-sxm h200-sxm a100-sxm-80 a100-pcie-80 l40s b200 gb200 "
        "mi210 mi250 mi250x mi300a mi300x mi325x mi355x, or none (no GPUs); "
        "RELEASE: debian13 (default) debian12 ubuntu2404 ubuntu2204 rhel10 rhel9 rhel8 rocky9; "
        "+ib or +roce: with RDMA cards and drives; +containers: can run containers; "
        "+real-nvidia-smi: NVIDIA's own nvidia-smi for drivers 470, 535, 550 and 555, from Debian",
    )
    parser.add_argument(
        "--inventory",
        type=Path,
        metavar="PATH",
        help="inventory file to write (default: inventory/NAME.yml)",
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="random seed for the noise of measurements (default: 1)"
    )
    parser.add_argument(
        "--speed",
        type=float,
        metavar="X",
        help="run simulated tools X times faster (default: 1)",
    )
    parser.add_argument("--fresh", action="store_true", help="delete existing nodes and start from bare ones")


def _add_fault(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", nargs="?", metavar="NODE")
    parser.add_argument("fault", nargs="?", metavar="FAULT")
    parser.add_argument("parameters", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--heal", action="store_true", help="remove FAULT, or all faults")


def run(options: argparse.Namespace) -> ExitCode:
    from gpuprov_lab import silicon_state
    from gpuprov_lab.host import require_root
    from gpuprov_lab.spec import lab_name

    if options.lab_verb == "compare":
        return _compare(options)
    if options.lab_verb == "faults":
        print(silicon_state.fault_list(), end="")  # noqa: T201
        return ExitCode.OK
    options.lab = lab_name(options.lab)
    require_root()
    return _VERBS[options.lab_verb](options)


def _up(options: argparse.Namespace) -> ExitCode:
    from gpuprov_lab import fleet
    from gpuprov_lab.spec import wanted_nodes
    from provision.terminal import Progress

    if options.seed is not None and options.seed < 1:
        raise UsageError(f"--seed {options.seed} is not a positive number", "")
    nodes = wanted_nodes(options.nodes, options.node)
    inventory = options.inventory or Path(f"inventory/{options.lab}.yml")
    if options.speed is not None and not 0.01 <= options.speed <= 10000:
        raise UsageError(f"--speed {options.speed:g} is not between 0.01 and 10000", "1 is real time")
    with Progress("lab up", total=len(nodes)) as progress:
        lab = fleet.up(
            options.lab,
            nodes,
            inventory,
            progress,
            seed=options.seed,
            speed=options.speed,
            fresh=options.fresh,
        )
    names = ", ".join(node.name for node in lab.nodes)
    print(f"up: {names}; the inventory is {inventory}")  # noqa: T201
    return ExitCode.OK


def _status(options: argparse.Namespace) -> ExitCode:
    from gpuprov_lab import fleet

    lab = _existing(options)
    nodes = fleet.status(lab)
    if options.json:
        print(json.dumps({"lab": lab.name, "inventory": lab.inventory, "nodes": nodes}, indent=2))  # noqa: T201
        return ExitCode.OK
    for node in nodes:
        columns = (node["node"], node["address"], node["sku"], node["release"], node["state"])
        smi = f"  nvidia-smi: {node['nvidia_smi']}" if "nvidia_smi" in node else ""
        print("{:<12} {:<14} {:<13} {:<9} {:<8}".format(*columns), _fault_text(node["faults"]) + smi)  # noqa: T201
    return ExitCode.OK


def _fault_text(faults: Any) -> str:
    if not isinstance(faults, list):
        return "state file is unreadable"
    texts = []
    for fault in faults:
        parameters = " ".join(f"{key}={value}" for key, value in fault.items() if key != "id")
        texts.append(f"{fault.get('id')} {parameters}".strip())
    return f"faults: {', '.join(texts)}" if texts else ""


def _ssh(options: argparse.Namespace) -> ExitCode:
    from gpuprov_lab import fleet

    command = fleet.ssh_command(_existing(options), options.node, options.words)
    os.execvp(command[0], command)  # noqa: S606 - becomes ssh: its terminal, its signals, its exit status


def _fault(options: argparse.Namespace) -> ExitCode:
    from gpuprov_lab import silicon_state

    if not options.node or not (options.fault or options.heal):
        raise UsageError("lab fault needs NODE FAULT, or NODE --heal", "gpuprov lab faults")
    lab = _existing(options)
    place = lab.node_place(lab.node(options.node))
    if options.heal:
        if options.parameters:
            raise UsageError(
                "--heal takes the name of a fault, without parameters", "gpuprov lab fault NODE --heal FAULT"
            )
        silicon_state.clear_fault(place, options.fault)
        return ExitCode.OK
    for text in options.parameters:
        if "=" not in text:
            raise UsageError(f"{text!r} is not KEY=VALUE", "gpuprov lab faults")
    silicon_state.set_fault(place, options.fault, options.parameters)
    return ExitCode.OK


def _power(options: argparse.Namespace) -> ExitCode:
    from gpuprov_lab import fleet

    fleet.power(options.lab, options.node, options.state == "on")
    return ExitCode.OK


def _down(options: argparse.Namespace) -> ExitCode:
    from gpuprov_lab import fleet

    def say(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    gone = fleet.down_all(say) if options.all else [options.lab] if fleet.down(options.lab, say) else []
    print(f"removed: {', '.join(gone)}" if gone else "there was nothing to remove")  # noqa: T201
    if options.purge:
        fleet.purge()
    return ExitCode.OK


def _compare(options: argparse.Namespace) -> ExitCode:
    from dataclasses import asdict

    from gpuprov_lab import compare

    shapes, why = compare.recorded(options.folder).compared()
    if why:
        raise LabError(f"{options.folder} cannot be compared: {why}")
    if options.json:
        print(json.dumps({"shapes": [asdict(shape) for shape in shapes]}, indent=2))  # noqa: T201
        return ExitCode.OK
    text = "\n".join(compare.lines(shapes))
    print(printable(text, limit=200_000))  # noqa: T201 - the output of tools of another machine
    return ExitCode.OK


def _existing(options: argparse.Namespace) -> LabRecord:
    from gpuprov_lab import record

    return record.existing(options.lab)


_VERBS = {"up": _up, "status": _status, "ssh": _ssh, "fault": _fault, "power": _power, "down": _down}
