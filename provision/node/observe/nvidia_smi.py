"""What nvidia-smi says of each GPU: `nvidia_smi.FIELD` for a field of --query-gpu, a list in index order.

All fields that are asked cost one call. The names are those of `nvidia-smi --help-query-gpu`."""

from provision.node.observe.files import ReadError
from provision.node.observe.probe import FAMILIES, Family, Probe

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


def reading(field, cell):
    """A cell without the label that drivers 535 to 580 print into it (`state  Completed`)."""
    label = {"fabric.state": "state ", "fabric.status": "status "}.get(field)
    return cell[len(label) :].strip() if label and cell.startswith(label) else cell


def parse_query(names, output):
    rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines() if line.strip()]
    if not rows or any(len(row) != len(names) for row in rows):
        raise ReadError("nvidia-smi answered: " + (output.strip()[:200] or "nothing"))
    fields = fields_of(names)
    return {name: [reading(fields[at], row[at]) for row in rows] for at, name in enumerate(names)}


def nvidia_smi_probes(names):
    query = "--query-gpu=" + ",".join(fields_of(names))
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    return [Probe(names, command=command, parse=parse_query)]


FAMILIES["nvidia_smi"] = Family(FIELDS, nvidia_smi_probes, items=False)
