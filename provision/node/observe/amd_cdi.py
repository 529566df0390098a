"""The CDI specification for AMD's GPUs, and whether it matches this machine.

`amd-ctk cdi generate` writes it as JSON: device N is a GPU, or a partition of one, with its card, its render
node and /dev/kfd; the device `all` has the files of all. The topology of the compute driver defines the
expected devices, where each partition has a separate render node.
"""

import os

from provision.node.observe.files import ReadError, names_in, read_text, status_of
from provision.node.observe.probe import FAMILIES, whole_family

AMD_CDI_FILE = "/etc/cdi/amd.json"
AMD_CDI_LIMIT = 4 * 1024 * 1024
AMD_CDI_LISTED = 32  # missing or stale files to list; the rest is counted
AMD_TOPOLOGY = "/sys/class/kfd/kfd/topology/nodes"


def amd_cdi_specification():
    """Return (version, {device name: {path: (major, minor)}}); None if there is no file."""
    import json

    text = read_text(AMD_CDI_FILE, AMD_CDI_LIMIT)
    if text is None:
        return None
    try:
        document = json.loads(text)
        devices = {
            str(device["name"]): {
                str(each["path"]): (each.get("major", 0), each.get("minor", 0))
                for each in device["containerEdits"]["deviceNodes"]
            }
            for device in document["devices"]
        }
        return str(document["cdiVersion"]), devices
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise ReadError("%s is not a CDI specification in the form amd-ctk writes" % AMD_CDI_FILE) from None


def amd_device_files():
    """Return the device files that programs need (/dev/kfd and one render node per partition)."""
    files = []
    for name in names_in(AMD_TOPOLOGY):
        text = read_text("%s/%s/properties" % (AMD_TOPOLOGY, name)) or ""
        values = dict(line.split() for line in text.splitlines() if len(line.split()) == 2)
        minor = values.get("drm_render_minor", "0")
        if minor.isdigit() and int(minor) > 0:  # a CPU has none
            files.append("/dev/dri/renderD" + minor)
    return ["/dev/kfd", *sorted(files)] if files else []


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
    """Return the needed device files that are missing from `all` or from all other devices."""
    specification = amd_cdi_specification()
    if specification is None:
        return None
    devices = specification[1]
    alone = {path for name in devices if name != "all" for path in devices[name]}
    described = alone & set(devices.get("all", ()))
    return amd_cdi_listed(path for path in amd_device_files() if path not in described)


def amd_cdi_stale():
    """Return the specified device files that this machine lacks or has under another device number."""
    specification = amd_cdi_specification()
    if specification is None:
        return None
    here, stale = amd_device_files(), []
    for nodes in specification[1].values():
        for path, numbers in nodes.items():
            status = status_of(path)
            # The device file of a partition can outlive the partition.
            gone = path.startswith("/dev/dri/renderD") and path not in here
            if status is None or gone or numbers != (os.major(status.st_rdev), os.minor(status.st_rdev)):
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
