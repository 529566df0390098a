"""A simulated node and NVIDIA's own nvidia-smi with the same values: what each command prints in both."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from xml.etree import ElementTree as Xml

from provision import shipped
from provision.node.burnin.tool_output import GPU_FIELDS
from tests.lab_silicon.silicon import Silicon
from tests.printers.nvml_values import MIB, Machine
from tests.printers.smi import NvidiaSmi

COUNTER = "40\n"  # of the runs of a tool on the simulated node: it seeds the noise of its readings
# Read of the simulated node, and put into the table of values.
_VALUES = (
    *("serial", "uuid", "pci.bus_id", "pci.sub_device_id", "vbios_version", "inforom.img", "temperature.gpu"),
    *("temperature.memory", "power.draw", "power.limit", "power.min_limit", "memory.total", "memory.used"),
    *("memory.reserved", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.memory"),
    *("pcie.link.gen.current", "persistence_mode", "clocks_event_reasons.active"),
)
_SAMPLED = [names[-1] for _, names in GPU_FIELDS]  # a name that each release knows
COMMANDS = (
    ("-q", "-x"),
    ("-L",),
    ("nvlink", "-s"),
    ("nvlink", "-e"),
    ("--query-gpu=index,pci.bus_id,serial,temperature.gpu", "--format=csv,noheader"),
    (f"--query-gpu={','.join(_SAMPLED)}", "--format=csv,noheader,nounits"),
    ("--query-gpu=mig.mode.current", "--format=csv,noheader"),
    ("--query-compute-apps=pid,process_name", "--format=csv,noheader"),
    (
        "--query-gpu=persistence_mode,compute_mode,ecc.mode.current,ecc.mode.pending,power.limit,"
        "power.default_limit,memory.total,pcie.link.width.max,pcie.link.gen.max",
        "--format=csv,noheader,nounits",
    ),
)


def machine(node: Silicon, sku: str, driver: str) -> Machine:
    """The table of values that the simulated node has."""
    query = f"--query-gpu={','.join(_VALUES)}"
    (node.state / "counter").write_text(COUNTER)
    cells = [line.split(", ") for line in node.smi(query, "--format=csv,noheader,nounits").splitlines()]
    gpus = [dict(zip(_VALUES, row, strict=True)) for row in cells]
    buses = tuple(int(gpu["pci.bus_id"].split(":")[1], 16) for gpu in gpus)
    made = Machine(sku, shipped.load_mapping(f"skus/{sku}"), driver, len(gpus), buses)
    for index, gpu in enumerate(gpus):
        _put(made, index, gpu)
    return made


def _put(made: Machine, index: int, gpu: dict[str, str]) -> None:
    watts = {
        name: round(1000 * float(gpu[name])) for name in ("power.draw", "power.limit", "power.min_limit")
    }
    total, used, kept = (int(gpu[f"memory.{name}"]) * MIB for name in ("total", "used", "reserved"))
    sizes = {"memory__total": total, "memory__used": used, "memory__free": total - used - kept}
    made.set("nvmlDeviceGetSerial", index, serial=gpu["serial"])
    made.set("nvmlDeviceGetUUID", index, uuid=gpu["uuid"])
    made.set("nvmlDeviceGetVbiosVersion", index, version=gpu["vbios_version"])
    made.set("nvmlDeviceGetInforomImageVersion", index, version=gpu["inforom.img"])
    made.set("nvmlDeviceGetPersistenceMode", index, mode=int(gpu["persistence_mode"] == "Enabled"))
    made.set("nvmlDeviceGetTemperature", index, temp=gpu["temperature.gpu"])
    made.set("nvmlDeviceGetPowerUsage", index, power=watts["power.draw"])
    made.set(
        "nvmlDeviceGetPowerManagementLimitConstraints",
        index,
        minLimit=watts["power.min_limit"],
        maxLimit=watts["power.limit"],
    )
    made.set("nvmlDeviceGetMemoryInfo", index, **sizes)
    made.set("nvmlDeviceGetMemoryInfo_v2", index, **sizes, memory__reserved=kept)
    for function in ("PciInfo_v3", "PciInfoExt"):
        made.set(f"nvmlDeviceGet{function}", index, pci__pciSubSystemId=gpu["pci.sub_device_id"])
    for kind, name in enumerate(("sm", "sm", "mem", "sm")):
        made.set("nvmlDeviceGetClockInfo", index, kind, clock=gpu[f"clocks.{name}"])
        longest = "memory" if name == "mem" else "sm"
        for function, field in (
            *(("MaxClockInfo", "clock"), ("ApplicationsClock", "clockMHz")),
            ("DefaultApplicationsClock", "clockMHz"),
        ):
            made.set(f"nvmlDeviceGet{function}", index, kind, **{field: gpu[f"clocks.max.{longest}"]})
    made.set("nvmlDeviceGetCurrPcieLinkGeneration", index, currLinkGen=gpu["pcie.link.gen.current"])
    for name in ("Throttle", "Event"):
        field = f"clocks{name}Reasons"
        made.set(f"nvmlDeviceGetCurrentClocks{name}Reasons", index, **{field: gpu[_VALUES[-1]]})
    fields = {82: gpu["temperature.memory"], 185: watts["power.draw"], 186: watts["power.draw"]}
    fields[187] = watts["power.min_limit"]
    for number, value in fields.items():
        made.set("nvmlDeviceGetFieldValues", index, number, 0, value=value, valueType=1)


# 470 also prints errors that lanes corrected: the private function behind them answers what was in memory.
_LANES = re.compile(r"\s*(Link \d+:|Lane \d+ ECC Correction Count: .*)")


def elements(text: str) -> Iterator[str]:
    """An output line by line; of XML a line for each element, `/gpu/pci/pci_bus: 52`."""
    if not text.startswith("<?xml"):
        yield from (line for line in text.rstrip("\n").split("\n") if not _LANES.fullmatch(line))
        return
    root = Xml.fromstring(text)  # noqa: S314 (our own output, and that of NVIDIA's program)
    yield from (line for line in _below(root, "") if not line.startswith("/timestamp: "))


def _below(element: Xml.Element, path: str) -> Iterator[str]:
    for one in element:
        here = f"{path}/{one.tag}"
        if one.tag == "supported_clocks" and len(one):  # hundreds of elements: one line
            yield f"{here}: {' '.join(' '.join(one.itertext()).split())}"
            continue
        yield f"{here}: {(one.text or '').strip()}"
        yield from _below(one, here)


def differences(real: str, printed: str) -> list[str]:
    """`8 x - line`: the real program prints it eight times more; `+`: the simulated one does."""
    mine, theirs = (Counter(elements(text)) for text in (printed, real))
    return [
        *(f"{times} x - {line}" for line, times in (theirs - mine).items()),
        *(f"{times} x + {line}" for line, times in (mine - theirs).items()),
    ]


def compared(smi: NvidiaSmi, node: Silicon, sku: str, driver: str) -> dict[str, list[str]]:
    """Command → its differences."""
    made = machine(node, sku, driver)
    found = {}
    for words in COMMANDS:
        (node.state / "counter").write_text(COUNTER)
        real, printed = smi.run(made, *words), node.run("nvidia-smi", *words)
        found[" ".join(words)] = differences(real.stdout, printed.stdout)
        if real.rc != printed.returncode:
            found[" ".join(words)].append(f"exit status {real.rc}, simulated {printed.returncode}")
    return found
