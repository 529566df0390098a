#!/usr/bin/python
"""Compares wanted partitions and power limits with what AMD's GPUs can do and have; changes nothing."""

DOCUMENTATION = r"""
module: gpuprov_amd_gpu_settings
short_description: Compare settings of AMD's GPUs with what each GPU can do and has now
description:
  - Says which settings are impossible, which differ, and which wait for a reboot. Changes nothing.
  - Reads sysfs of the driver amdgpu alone.
options:
  compute_partition: {description: "C(SPX), C(DPX), C(TPX), C(QPX) or C(CPX).", type: str, default: ""}
  memory_partition: {description: "C(NPS1), C(NPS2), C(NPS4) or C(NPS8).", type: str, default: ""}
  power_limit: {description: Watts for every GPU; 0 does not ask., type: int, default: 0}
author:
  - The gpuprov authors (@gpuprov)
"""

EXAMPLES = r"""
- name: See whether the GPUs can be divided
  gpuprov_amd_gpu_settings:
    compute_partition: CPX
  register: look
"""

RETURN = r"""
ready:
  description: Whether the driver has a GPU; without it nothing is known.
  returned: success
  type: bool
refusals:
  description: A sentence for each impossible setting, with the GPU and what is possible.
  returned: success
  type: list
differs:
  description: Names of the settings that some GPU does not have.
  returned: success
  type: list
pending:
  description: What the GPUs get at the next boot alone.
  returned: success
  type: list
"""

import glob  # noqa: E402
import io  # noqa: E402
import os  # noqa: E402

from ansible.module_utils.basic import AnsibleModule  # noqa: E402

SYSFS = "/sys"
KINDS = ("compute", "memory")


def text_of(path):
    """What a file says, without its end of line; None where there is none, or the driver refuses it now."""
    try:
        with io.open(path, encoding="ascii", errors="replace") as stream:
            return stream.read().strip()
    except (IOError, OSError):
        return None


def watts(folder, name):
    """A limit of power in W; None where this GPU has none (of two dies of a module the second)."""
    for path in sorted(glob.glob(folder + "/hwmon/hwmon*/" + name)):
        found = text_of(path) or ""
        if found.isdigit() and int(found):
            return int(found) // 1000000
    return None


def gpus():
    """The folders of the GPUs that the driver took, in the order of the bus."""
    found = []
    for folder in sorted(glob.glob(SYSFS + "/bus/pci/devices/*")):
        driver = folder + "/driver"
        if os.path.islink(driver) and os.path.basename(os.readlink(driver)) == "amdgpu":
            found.append(folder)
    return found


def modes_of(folder, kind):
    """(the present mode, those that it can have); None for a mode that the driver does not say."""
    present = text_of("%s/current_%s_partition" % (folder, kind))
    offered = text_of("%s/available_%s_partition" % (folder, kind))
    return present, [each.strip() for each in (offered or "").split(",") if each.strip()]


def users():
    """The processes that compute on any GPU."""
    try:
        return sorted(name for name in os.listdir(SYSFS + "/class/kfd/kfd/proc") if name.isdigit())
    except (IOError, OSError):
        return []


def compare_partition(folder, kind, wanted):
    """Why this GPU cannot be divided so (empty: it can), and whether it is not yet."""
    present, offered = modes_of(folder, kind)
    address = os.path.basename(folder)
    if present == wanted:
        return "", False
    if present is None or not offered:
        what = "one mode alone" if present is not None else "none"
        why = "GPU %s cannot be %s: of %s partitions it has %s, or the driver cannot change them."
        return why % (address, wanted, kind, what), True
    if wanted not in offered:
        return "GPU %s cannot be %s: it offers %s." % (address, wanted, ", ".join(offered)), True
    return "", True


def compare_power(folder, wanted):
    present = watts(folder, "power1_cap")
    if present is None or present == wanted:
        return "", False
    least, most = watts(folder, "power1_cap_min") or 0, watts(folder, "power1_cap_max")
    if most is None or not least <= wanted <= most:
        allowed = "%d to %s W" % (least, most if most is not None else "an unknown number of")
        return "GPU %s cannot be limited to %d W: it allows %s." % (
            os.path.basename(folder),
            wanted,
            allowed,
        ), True
    return "", True


def look(options):
    """The four values that are returned."""
    found = {"ready": False, "refusals": [], "differs": [], "pending": []}
    for folder in gpus():
        found["ready"] = True
        for kind in KINDS:
            wanted = options[kind + "_partition"]
            if wanted:
                note(found, kind + "_partition", *compare_partition(folder, kind, wanted))
        if options["power_limit"]:
            note(found, "power_limit", *compare_power(folder, options["power_limit"]))
    if "memory_partition" in found["differs"]:
        # The driver changes it when it is loaded, and what the GPU can be depends on it.
        found["pending"] = [name for name in found["differs"] if name.endswith("_partition")]
    elif "compute_partition" in found["differs"] and users():
        processes = ", ".join(users()[:8])
        why = "Compute partitions change only while no program uses a GPU, and these do: process %s."
        found["refusals"].append(why % processes)
    return found


def note(found, name, refusal, differs):
    if refusal:
        found["refusals"].append(refusal)
    if differs and name not in found["differs"]:
        found["differs"].append(name)


def main():
    module = AnsibleModule(
        argument_spec={
            "compute_partition": {"type": "str", "default": ""},
            "memory_partition": {"type": "str", "default": ""},
            "power_limit": {"type": "int", "default": 0},
        },
        supports_check_mode=True,
    )
    module.exit_json(changed=False, **look(module.params))


if __name__ == "__main__":
    main()
