#!/usr/bin/python
"""Ansible module that compares requested AMD GPU settings with each GPU; changes nothing."""

DOCUMENTATION = r"""
module: gpuprov_amd_gpu_settings
short_description: Compare settings of AMD's GPUs with the capabilities and state of each GPU
description:
  - Reports which settings are impossible, which differ, and which wait for a reboot. Changes nothing.
  - Reads only the sysfs entries of the amdgpu driver.
options:
  compute_partition: {description: "C(SPX), C(DPX), C(TPX), C(QPX) or C(CPX).", type: str, default: ""}
  memory_partition: {description: "C(NPS1), C(NPS2), C(NPS4) or C(NPS8).", type: str, default: ""}
  power_limit: {description: Watts for every GPU; 0 skips this comparison., type: int, default: 0}
author:
  - The gpuprov authors (@gpuprov)
"""

EXAMPLES = r"""
- name: Check whether the GPUs can be partitioned
  gpuprov_amd_gpu_settings:
    compute_partition: CPX
  register: look
"""

RETURN = r"""
ready:
  description: Whether the driver is bound to any GPU; if false, the other values are empty.
  returned: success
  type: bool
refusals:
  description: One sentence per impossible setting, naming the GPU and the supported values.
  returned: success
  type: list
differs:
  description: Names of the settings that at least one GPU does not have.
  returned: success
  type: list
pending:
  description: Settings that take effect only at the next boot.
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
    """Return the stripped text of a file; None if it is missing or the driver refuses to read it now."""
    try:
        with io.open(path, encoding="ascii", errors="replace") as stream:
            return stream.read().strip()
    except (IOError, OSError):
        return None


def watts(folder, name):
    """Return a power limit in W; None if this GPU has none (for example the second die of a module)."""
    for path in sorted(glob.glob(folder + "/hwmon/hwmon*/" + name)):
        text = text_of(path) or ""
        if text.isdigit() and int(text):
            return int(text) // 1000000
    return None


def gpus():
    """Return the sysfs folders of the GPUs bound to amdgpu, in PCI bus order."""
    folders = []
    for folder in sorted(glob.glob(SYSFS + "/bus/pci/devices/*")):
        driver = folder + "/driver"
        if os.path.islink(driver) and os.path.basename(os.readlink(driver)) == "amdgpu":
            folders.append(folder)
    return folders


def modes_of(folder, kind):
    """Return (current mode or None, supported modes) as the driver reports them."""
    present = text_of("%s/current_%s_partition" % (folder, kind))
    offered = text_of("%s/available_%s_partition" % (folder, kind))
    return present, [each.strip() for each in (offered or "").split(",") if each.strip()]


def users():
    """Return the ids of the processes that use any GPU for compute."""
    try:
        return sorted(name for name in os.listdir(SYSFS + "/class/kfd/kfd/proc") if name.isdigit())
    except (IOError, OSError):
        return []


def compare_partition(folder, kind, wanted):
    """Return why this GPU cannot be partitioned like this (empty if it can), and whether it differs."""
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
    """Compare all GPUs with the options and return the module's four result values."""
    result = {"ready": False, "refusals": [], "differs": [], "pending": []}
    for folder in gpus():
        result["ready"] = True
        for kind in KINDS:
            mode = options[kind + "_partition"]
            if mode:
                note(result, kind + "_partition", *compare_partition(folder, kind, mode))
        if options["power_limit"]:
            note(result, "power_limit", *compare_power(folder, options["power_limit"]))
    if "memory_partition" in result["differs"]:
        # The driver sets the memory mode when it loads, and the available compute modes depend on that mode.
        result["pending"] = [name for name in result["differs"] if name.endswith("_partition")]
    elif "compute_partition" in result["differs"] and users():
        processes = ", ".join(users()[:8])
        why = "Compute partitions change only while no program uses a GPU, and these do: process %s."
        result["refusals"].append(why % processes)
    return result


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
