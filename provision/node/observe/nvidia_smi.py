"""Values reported by nvidia-smi; `nvidia_smi.FIELD` is a field of --query-gpu, a list in index order.

One call reads all requested fields. They are named as in `nvidia-smi --help-query-gpu`, except
`nvidia_smi.silent`: the GPUs on the PCI bus that do not answer the loaded driver, with the reason; and
`nvidia_smi.without_cluster`, `nvidia_smi.without_clique`: the GPUs without such an NVLink id (zeros)."""

import os

from provision.node.observe.files import ReadError, at
from provision.node.observe.probe import FAMILIES, Family, Probe, RefusedError, answered
from provision.node.observe.system import bus_address, gpus_of

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
    "fabric.clusterUuid",
    "fabric.cliqueId",
)


SILENT = "nvidia_smi.silent"
# Every GPU has a temperature with every driver, and the driver must query the GPU for it.
READING = "temperature.gpu"
# Without persistence mode, the driver initialises every GPU for each call, which takes seconds per GPU.
PATIENCE = 3


# For the NVLink domain of a rack: fact -> the field that is all zeros outside a domain.
WITHOUT = {"nvidia_smi.without_cluster": "fabric.clusterUuid", "nvidia_smi.without_clique": "fabric.cliqueId"}


def fields_of(names):
    own = dict(WITHOUT, **{SILENT: READING})
    return [own.get(name, name[len("nvidia_smi.") :]) for name in names]


# Queried in addition, to name a GPU that does not answer; the driver knows both without querying the GPU.
WHO = ("pci.bus_id", "serial")
# NVML's errors in place of a value (nvidia-smi 550.163.01 prints `[GPU is lost]`), and the remedies.
NVML_ERRORS = {
    "gpu is lost": "power-cycle the node",
    "gpu requires reset": "reset the GPU",
    "unknown error": "look at the kernel log, and power-cycle the node",
    "err!": "look at the kernel log, and power-cycle the node",
    "insufficient permissions": "gpuprov has to be root on the node",
}


def silent(index, row, cell, field=""):
    """Return a ReadError that names the GPU if its cell is an error in place of a value; else None.

    `fabric.status` is the result of the GPU's probe of the fabric, worded like NVML's errors: in brackets it
    is an error of the query, without them the value."""
    if field == "fabric.status" and not cell.startswith("["):
        return None
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
    """Return a ReadError that names the GPU if the line is an error in place of the answer; else None.

    Unable to determine the device handle for GPU3: 0000:4B:00.0: Unknown Error
    """
    who, _, why = line.partition(NO_HANDLE)[2].rpartition(": ")
    if not who:
        return None
    text = why.split(".")[0].strip()
    advice = NVML_ERRORS.get(text.lower(), NVML_ERRORS["unknown error"])
    return ReadError("%s does not answer: %s; %s" % (who, text, advice))


def reading(field, cell):
    """Strip the label that drivers 535 to 580 print into a cell (`state  Completed`, `cliqueId 0`)."""
    name = field.partition("fabric.")[2]
    label = name and name + " "
    return cell[len(label) :].strip() if label and cell.startswith(label) else cell


def unanswered(errors, left_out=()):
    """Return the value of `nvidia_smi.silent`; a ReadError if missing permissions make it unknown."""
    texts = [str(error).partition("; ")[0].replace(" does not answer", "") for error in errors]
    texts += ["%s: not listed by nvidia-smi" % address for address in left_out]
    denied = [error for error in errors if NVML_ERRORS["insufficient permissions"] in str(error)]
    return denied[0] if denied else texts


# Fields introduced together: nvidia-smi 470, 535, 550 and 555 lack the first pair, 470 both pairs.
TOGETHER = (("fabric.clusterUuid", "fabric.cliqueId"), ("fabric.state", "fabric.status"))


def without_unknown(names, output):
    """Raise RefusedError if nvidia-smi rejects a field that was introduced in a later release."""
    unknown = ""
    if "is not a valid field to query" in output and output.startswith('Field "'):
        unknown = output.split('"')[1][:60]
    left = next((fields for fields in TOGETHER if unknown in fields), (unknown,))
    why = "this release of nvidia-smi has no " + unknown
    fields = fields_of(names)
    unread = {name: why for index, name in enumerate(names) if fields[index] in left}
    others = [name for name in names if name not in unread]
    if unread and others:
        raise RefusedError(unread, query(others))


def parse_query(names, output):
    without_unknown(names, output)
    refused = [error for error in map(refusal, output.splitlines()) if error]
    if refused:
        return {name: unanswered(refused) if name == SILENT else refused[0] for name in names}
    rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines() if line.strip()]
    if not rows or any(len(row) not in (len(names), len(names) + len(WHO)) for row in rows):
        raise answered("nvidia-smi", output)
    fields = fields_of(names)
    facts = {}
    for place, name in enumerate(names):
        field = fields[place]
        errors = [silent(index, row, row[place], field) for index, row in enumerate(rows)]
        errors = [error for error in errors if error]
        if name == SILENT:
            listed = [bus_address(row[-len(WHO)]) for row in rows]
            left_out = [address for address in gpus_of("10de", "nvidia") if address not in listed]
            facts[name] = unanswered(errors, left_out)
            continue
        if name in WITHOUT and not errors:
            cells = [reading(field, row[place]) for row in rows]
            facts[name] = ["GPU %d" % index for index, cell in enumerate(cells) if not cell.strip("0-")]
            continue
        # A missing value of one GPU makes the whole fact unread, with that GPU as the reason.
        texts = [str(error) for error in errors]
        facts[name] = ReadError("; ".join(texts)) if texts else [reading(field, row[place]) for row in rows]
    return facts


def nvidia_smi_probes(names):
    if SILENT in names and not os.path.exists(at("/proc/driver/nvidia/version")):
        others = [name for name in names if name != SILENT]  # without the driver, no GPU counts as silent
        rest = nvidia_smi_probes(others) if others else []
        return [Probe([SILENT], read=lambda: {SILENT: []}), *rest]
    return [query(names)]


def query(names):
    fields = "--query-gpu=" + ",".join([*fields_of(names), *WHO])
    return Probe(names, None, ["nvidia-smi", fields, "--format=csv,noheader,nounits"], parse_query, PATIENCE)


FAMILIES["nvidia_smi"] = Family(
    (*FIELDS, "silent", "without_cluster", "without_clique"), nvidia_smi_probes, items=False
)
