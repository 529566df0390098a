"""The CDI specification of AMD's GPUs, and whether it is that of this machine.

It is what `amd-ctk cdi generate` writes, JSON: device N is a GPU, or a partition of one, with its card, its
render node and /dev/kfd; the device `all` has those of all. Which there have to be, the compute driver's
topology says: a partition has a render node of its own.
"""

import os

from provision.node.observe.files import ReadError, names_in, read_text, status_of
from provision.node.observe.probe import FAMILIES, whole_family

AMD_CDI_FILE = "/etc/cdi/amd.json"
AMD_CDI_LIMIT = 4 * 1024 * 1024
AMD_CDI_LISTED = 32  # of what is missing or out of date, the rest is counted
AMD_TOPOLOGY = "/sys/class/kfd/kfd/topology/nodes"


def amd_cdi_specification():
    """The version, and device name -> {path: (major, minor)}; None where there is no file."""
    import json

    text = read_text(AMD_CDI_FILE, AMD_CDI_LIMIT)
    if text is None:
        return None
    try:
        document = json.loads(text)
        devices = {
            str(one["name"]): {
                str(each["path"]): (each.get("major", 0), each.get("minor", 0))
                for each in one["containerEdits"]["deviceNodes"]
            }
            for one in document["devices"]
        }
        return str(document["cdiVersion"]), devices
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise ReadError("%s is not a CDI specification in the form amd-ctk writes" % AMD_CDI_FILE) from None


def amd_device_files():
    """The device files that programs need: of each GPU or partition its render node, and that of them all."""
    found = []
    for name in names_in(AMD_TOPOLOGY):
        text = read_text("%s/%s/properties" % (AMD_TOPOLOGY, name)) or ""
        values = dict(line.split() for line in text.splitlines() if len(line.split()) == 2)
        minor = values.get("drm_render_minor", "0")
        if minor.isdigit() and int(minor) > 0:  # a processor has none
            found.append("/dev/dri/renderD" + minor)
    return ["/dev/kfd", *sorted(found)] if found else []


def amd_cdi_listed(paths):
    paths = sorted(set(paths))
    more = len(paths) - AMD_CDI_LISTED
    return paths[:AMD_CDI_LISTED] + (["and %d more" % more] if more > 0 else [])


def amd_cdi_version():
    specification = amd_cdi_specification()
    return specification and specification[0]


def amd_cdi_devices():
    specification = amd_cdi_specification()
    return specification and list(specification[1])


def amd_cdi_missing():
    """Device files that no device of its own has, or that `all` has not."""
    specification = amd_cdi_specification()
    if specification is None:
        return None
    devices = specification[1]
    alone = {path for name in devices if name != "all" for path in devices[name]}
    described = alone & set(devices.get("all", ()))
    return amd_cdi_listed(path for path in amd_device_files() if path not in described)


def amd_cdi_stale():
    """What it names and this machine has not, or under another number."""
    specification = amd_cdi_specification()
    if specification is None:
        return None
    here, stale = amd_device_files(), []
    for nodes in specification[1].values():
        for path, numbers in nodes.items():
            found = status_of(path)
            # The file of a partition outlives the partition.
            gone = path.startswith("/dev/dri/renderD") and path not in here
            if found is None or gone or numbers != (os.major(found.st_rdev), os.minor(found.st_rdev)):
                stale.append(path)
    return amd_cdi_listed(stale)


FAMILIES["amd_cdi"] = whole_family(
    {
        "version": amd_cdi_version,
        "devices": amd_cdi_devices,
        "missing": amd_cdi_missing,
        "stale": amd_cdi_stale,
    }
)
