"""Results, on one machine, of all readers of nvidia-smi except gpu_inventory.

Each reader runs the product's command through the real program and passes its output to the product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpuprov_lab.silicon.nvidia_smi.nvml_values import Machine
from provision.checks.check import Output
from provision.checks.gpu import gpu_answers, nvidia_smi, telemetry
from provision.errors import ParseError
from provision.node.burnin import campaign, tool_output
from provision.node.burnin.processes import holders_in
from provision.node.modules.gpuprov_gpu_settings import FIELDS as SETTINGS
from provision.node.modules.gpuprov_gpu_settings import parse_gpus
from tests.node.machine import Tree
from tests.printers.nvml_values import address
from tests.printers.smi import NvidiaSmi
from tests.support.checks import make_node, make_output

SILENT, MIG_DEVICES = "nvidia_smi.silent", "mig.devices"
FACTS = (
    *(f"nvidia_smi.{name}" for name in ("name", "vbios_version", "persistence_mode", "compute_mode")),
    *(f"nvidia_smi.{name}" for name in ("ecc.mode.current", "mig.mode.current", "power.limit")),
    "nvidia_smi.memory.total",
)
FABRIC = ("nvidia_smi.fabric.state", "nvidia_smi.fabric.status")
# A node is queried for every fact that its roles may require of any machine, before its type is known.
ELSEWHERE = ("nvidia_smi.without_cluster", "nvidia_smi.without_clique")


@dataclass
class Seen:
    """`facts`, `samples`: name → a value for each GPU; `lost`: reader → GPUs that do not answer."""

    facts: dict[str, list[str]] = field(default_factory=dict)
    samples: dict[str, list[str]] = field(default_factory=dict)
    lost: dict[str, set[str]] = field(default_factory=dict)
    rows: list[tuple[str, str, Mapping[str, str]]] = field(default_factory=list)  # samples of a burn-in
    refused: dict[str, str] = field(default_factory=dict)  # reader → the reason why it has no values


def everything(smi: NvidiaSmi, machine: Machine, folder: Path) -> Seen:
    """Run every reader on a machine; `folder`: an empty folder for its file tree."""
    seen = Seen()
    _facts(smi, machine, folder, seen)
    _samples(smi, machine, seen)
    _after_a_test(smi, machine, seen)
    _beside_a_load(smi, machine, seen)
    _before_a_burnin(smi, machine, seen)
    return seen


def _facts(smi: NvidiaSmi, machine: Machine, folder: Path, seen: Seen) -> None:
    """Run the observing program in a file tree with these GPUs and this nvidia-smi."""
    tree = Tree(folder)
    tree.file("/proc/driver/nvidia/version", f"NVRM version: NVIDIA Kernel Module  {machine.driver}\n")
    vendor, device = machine.sku["pci_ids"][0].split(":")
    for index in range(machine.count):
        identity = {"vendor": f"0x{vendor}", "device": f"0x{device}", "class": "0x030200"}
        tree.lines(f"/sys/bus/pci/devices/{address(index)}", **identity)
    tree.tool("nvidia-smi", smi.script(machine))
    facts, problems = tree.ask(*FACTS, *FABRIC, *ELSEWHERE, SILENT, MIG_DEVICES)
    silent = facts.pop(SILENT, None)
    seen.facts = {name: values for name, values in facts.items() if name in (*FACTS, *FABRIC, MIG_DEVICES)}
    if silent is None:
        seen.refused["facts"] = problems[SILENT]
    else:
        seen.lost["facts"] = {gpu for gpu in map(_gpu_of, range(machine.count)) if _named(gpu, silent)}


def _gpu_of(index: int) -> str:
    return f"gpu{index}"


def _named(gpu: str, texts: list[str]) -> bool:
    index = int(gpu.removeprefix("gpu"))
    return any(f"GPU {index} " in text or address(index).upper() in text.upper() for text in texts)


def _samples(smi: NvidiaSmi, machine: Machine, seen: Seen) -> None:
    """Query each GPU once with the burn-in sampler's query, but without its loop."""
    lost = seen.lost.setdefault("samples", set())
    rows = []
    for index in range(machine.count):
        fields = [[metric, list(names)] for metric, names in tool_output.GPU_FIELDS]
        lines: list[str] = []
        for _ in range(len(fields)):
            asked = ",".join(names[0] for _, names in fields)
            where = f"0000{address(index)}"
            query = ("-i", where, f"--query-gpu={asked}", "--format=csv,noheader,nounits")
            lines = smi.run(machine, *query).stdout.splitlines() or [""]
            wrong = lines[0].removeprefix(WRONG_FIELD) if lines[0].startswith(WRONG_FIELD) else ""
            if not wrong or not tool_output.without_field(fields, wrong.partition('"')[0]):
                break
        found = tool_output.gpu_row(lines[0], [metric for metric, _ in fields], index)
        if found is None or "nvml_error" in found[1]:
            lost.add(_gpu_of(index))
        rows.append(found[1] if found else {})
        seen.rows += [("gpu", f"gpu{found[0]}", found[1])] if found else []
    seen.samples = {name: [row.get(name, "") for row in rows] for row in rows for name in row}


WRONG_FIELD = 'Field "'


def _known(machine: Machine) -> dict[str, str]:
    return {address(index): _gpu_of(index) for index in range(machine.count)}


def _output(smi: NvidiaSmi, machine: Machine, name: str, argv: tuple[str, ...]) -> Output:
    done = smi.run(machine, *argv[1:])
    return make_output(name, done.stdout, argv=argv, rc=done.rc, stderr=done.stderr)


def _after_a_test(smi: NvidiaSmi, machine: Machine, seen: Seen) -> None:
    """Run the last command of a check that loads GPUs."""
    command = gpu_answers.command()
    output = _output(smi, machine, command.name, command.argv)
    found = gpu_answers.judge("gpu_burn", output, _known(machine), ())
    lost = {one.device for one in found if one.verdict.value == "fail"}
    seen.lost["after a test"] = {_known(machine).get(one.removeprefix("gpu@"), one) for one in lost}
    if refused := [one.message for one in found if one.verdict.value == "error"]:
        seen.refused["after a test"] = refused[0]


def _beside_a_load(smi: NvidiaSmi, machine: Machine, seen: Seen) -> None:
    """Read the MIG mode, and sample GPUs and error counters once, as during a load."""
    command = telemetry.command("burn", 60, 120, machine.driver)
    output = _output(smi, machine, command.name, command.argv[: command.argv.index("-lms")])
    try:
        found = telemetry.parse(output, _known(machine))
        lost = {one.device for one in found if one.metric == "lost"}
        seen.lost["beside a load"] = {_known(machine).get(one.removeprefix("gpu@"), one) for one in lost}
    except ParseError as error:
        seen.refused["beside a load"] = error.what
    counted = _output(smi, machine, "error_counters", ("nvidia-smi", "dmon", "-s", "e", "-c", "1"))
    reader = tool_output.ReplayRows()
    read = filter(None, map(reader.row, counted.stdout.splitlines()))
    seen.rows += [("errors", f"gpu{index}", values) for index, values in read]
    links = tool_output.nvlink_rows(smi.run(machine, "nvlink", "-e").stdout)
    seen.rows += [("nvlink", f"gpu{index}", values) for index, values in links.items()]
    try:
        counters = telemetry.parse_counters(counted)
        values = {one.device: str(one.value) for one in counters if one.metric == "pcie_replays_grown"}
        seen.samples["dmon"] = [values.get(_gpu_of(index), "") for index in range(machine.count)]
    except ParseError as error:
        seen.refused["error counters"] = error.what
    mig = nvidia_smi.mig_command()
    node = make_node(machine.count, machine.name, machine.sku["fabric"], machine.sku["architecture"])
    try:
        answer = _output(smi, machine, nvidia_smi.MIG, mig.argv)
        parts = {one.device for one in nvidia_smi.partitioned(node, {nvidia_smi.MIG: answer})}
        seen.samples["mig"] = [str(_gpu_of(index) in parts) for index in range(machine.count)]
    except ParseError as error:
        seen.refused["mig"] = error.what


def _before_a_burnin(smi: NvidiaSmi, machine: Machine, seen: Seen) -> None:
    """Read the processes that hold a GPU, and the settings that a role compares."""
    output = smi.run(machine, *campaign.HOLDERS[1:])
    holders = holders_in(output.stdout) if output.rc == 0 else None
    if holders is None:
        seen.refused["holders"] = output.stdout[:200]
    else:
        seen.samples["holders"] = sorted(holders.values())
    settings = smi.run(machine, "--query-gpu=" + ",".join(SETTINGS), "--format=csv,noheader,nounits")
    rows = parse_gpus(settings.stdout) if settings.rc == 0 else None
    if rows is None:
        seen.refused["settings"] = settings.stdout[:200]
    else:
        seen.samples["settings"] = [str(sorted(row.items())) for row in rows]
