"""What nvidia-smi says of each GPU: `nvidia_smi.FIELD` for a field of --query-gpu, a list in index order.

All fields that are asked cost one call. The names are those of `nvidia-smi --help-query-gpu`."""

from provision.node.observe.files import ReadError
from provision.node.observe.probe import FAMILIES, Family, Probe, answered

FIELDS = (
    "name",
    "serial",
    "uuid",
    "pci.bus_id",
    "vbios_version",
    "inforom.img",
    "driver_version",
    "persistence_mode",
    "compute_mode",
    "ecc.mode.current",
    "ecc.mode.pending",
    "mig.mode.current",
    "mig.mode.pending",
    "power.limit",
    "power.default_limit",
    "power.min_limit",
    "power.max_limit",
    "clocks.max.sm",
    "clocks.max.memory",
    "clocks.applications.graphics",
    "clocks.applications.memory",
    "pcie.link.width.max",
    "pcie.link.gen.max",
    "memory.total",
    "fabric.state",
    "fabric.status",
)


def fields_of(names):
    return [name[len("nvidia_smi.") :] for name in names]


# Asked beside the fields, to name a GPU that does not answer: the driver knows both without asking the GPU.
WHO = ("pci.bus_id", "serial")
# NVML's errors in place of a reading (nvidia-smi 550.163.01 prints `[GPU is lost]`), and what helps.
NVML_ERRORS = {
    "gpu is lost": "power-cycle the node",
    "gpu requires reset": "reset the GPU",
    "unknown error": "look at the kernel log, and power-cycle the node",
    "err!": "look at the kernel log, and power-cycle the node",
    "insufficient permissions": "gpuprov has to be root on the node",
}


def silent(index, row, cell):
    """A ReadError that names the GPU when its cell is an error in place of a reading; else None."""
    text = cell.strip("[] ")
    advice = NVML_ERRORS.get(text.lower())
    if advice is None:
        return None
    who = "GPU %d" % index
    if len(row) > len(WHO):
        who += " (%s, serial %s)" % tuple(row[-len(WHO) :])
    return ReadError("%s does not answer: %s; %s" % (who, text, advice))


NO_HANDLE = "Unable to determine the device handle for "


def refusal(line):
    """A ReadError that names the GPU for which nvidia-smi prints one line in place of its answer; else None.

    Unable to determine the device handle for GPU3: 0000:4B:00.0: Unknown Error
    """
    who, _, why = line.partition(NO_HANDLE)[2].rpartition(": ")
    if not who:
        return None
    text = why.split(".")[0].strip()
    advice = NVML_ERRORS.get(text.lower(), NVML_ERRORS["unknown error"])
    return ReadError("%s does not answer: %s; %s" % (who, text, advice))


def reading(field, cell):
    """A cell without the label that drivers 535 to 580 print into it (`state  Completed`)."""
    label = {"fabric.state": "state ", "fabric.status": "status "}.get(field)
    return cell[len(label) :].strip() if label and cell.startswith(label) else cell


def parse_query(names, output):
    refused = next((one for one in map(refusal, output.splitlines()) if one), None)
    if refused:
        raise refused
    rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines() if line.strip()]
    if not rows or any(len(row) not in (len(names), len(names) + len(WHO)) for row in rows):
        raise answered("nvidia-smi", output)
    fields = fields_of(names)
    found = {}
    for at, name in enumerate(names):
        errors = [silent(index, row, row[at]) for index, row in enumerate(rows)]
        # What one GPU does not say, no other can say for it: the fact is unread, and the reason is that GPU.
        said = [str(one) for one in errors if one]
        found[name] = ReadError("; ".join(said)) if said else [reading(fields[at], row[at]) for row in rows]
    return found


def nvidia_smi_probes(names):
    query = "--query-gpu=" + ",".join([*fields_of(names), *WHO])
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    return [Probe(names, command=command, parse=parse_query)]


FAMILIES["nvidia_smi"] = Family(FIELDS, nvidia_smi_probes, items=False)
