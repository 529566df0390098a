#!/usr/bin/python
"""Ansible module that compares requested NVIDIA GPU settings with each GPU; changes nothing."""

DOCUMENTATION = r"""
module: gpuprov_gpu_settings
short_description: Compare GPU settings with the capabilities and state of each GPU
description:
  - Reports which settings are impossible, which differ, and which wait for a reboot. Changes nothing.
options:
  power_limit: {description: Watts for every GPU; 0 skips this comparison., type: float, default: 0}
  locked_clocks: {description: Lowest and highest clock in MHz., type: list, elements: int, default: []}
  application_clocks: {description: Memory and graphics clock in MHz., type: list, elements: int, default: []}
  compute_mode: {description: "C(default), C(exclusive_process) or C(prohibited).", type: str, default: ""}
  ecc: {description: C(enabled) or C(disabled)., type: str, default: ""}
  mig_layouts:
    description: MIG profiles of each GPU, largest first, separated by commas; C(off) for an undivided GPU.
    type: list
    elements: str
    default: []
author:
  - The gpuprov authors (@gpuprov)
"""

EXAMPLES = r"""
- name: Check whether the GPUs can be limited to 500 W
  gpuprov_gpu_settings:
    power_limit: 500
  register: look
"""

RETURN = r"""
ready:
  description: Whether nvidia-smi can reach a loaded driver; if false, the other values are empty.
  returned: success
  type: bool
refusals:
  description: One sentence per impossible setting, naming the GPUs and the supported values.
  returned: success
  type: list
differs:
  description: Names of the settings that at least one GPU does not have.
  returned: success
  type: list
ecc:
  description: Indexes of the GPUs whose pending ECC mode is not the requested one.
  returned: success
  type: list
pending:
  description: Changes that wait for the next reset or reboot.
  returned: success
  type: list
"""

import re  # noqa: E402

from ansible.module_utils.basic import AnsibleModule  # noqa: E402

FIELDS = [
    "pci.bus_id",
    "persistence_mode",
    "compute_mode",
    "ecc.mode.current",
    "ecc.mode.pending",
    "mig.mode.current",
    "mig.mode.pending",
    "power.limit",
    "power.min_limit",
    "power.max_limit",
    "clocks.applications.memory",
    "clocks.applications.graphics",
]
TIMEOUT = "60"
NO_DRIVER = (9, 12, 18)  # driver not loaded, library missing, library version mismatch
PROFILE = re.compile(r"^\|\s+(\d+)\s+MIG\s+(\S+)\s+\d+\s+\d+/(\d+)\s")
FORGETFUL = ("power_limit", "locked_clocks", "application_clocks", "compute_mode")


def parse_gpus(text):
    """Parse --query-gpu output into [{field: text}] in index order; None if it is malformed."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    if not rows or any(len(row) != len(FIELDS) for row in rows):
        return None
    return [dict(zip(FIELDS, row)) for row in rows]  # noqa: B905 - Python 2


def parse_devices(text):
    """Parse `nvidia-smi -L` into each GPU's MIG devices, largest first, separated by commas."""
    devices = []
    for line in text.splitlines():
        words = line.split()
        if line.startswith("GPU "):
            devices.append([])
        elif words[:1] == ["MIG"] and len(words) > 1 and devices:
            devices[-1].append(words[1])
    return [",".join(sorted(each, reverse=True)) for each in devices]


def parse_profiles(text):
    """Parse `nvidia-smi mig -lgip` into {GPU index: {profile: maximum number of instances}}."""
    profiles = {}
    for line in text.splitlines():
        match = PROFILE.match(line)
        if match:
            profiles.setdefault(int(match.group(1)), {})[match.group(2)] = int(match.group(3))
    return profiles


def parse_pairs(text):
    """Parse CSV of a bus id and two more columns into {bus id: [(column, column)]}."""
    pairs = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 3:
            pairs.setdefault(cells[0], []).append((cells[1], cells[2]))
    return pairs


def number(text):
    try:
        return float(text)
    except ValueError:
        return None


def together(sentences):
    """Group [(GPU index, sentence)] into one line per sentence, with all its GPUs."""
    gpus = {}
    for index, sentence in sentences:
        gpus.setdefault(sentence, []).append(str(index))
    return ["GPU {0}: {1}".format(", ".join(indexes), sentence) for sentence, indexes in gpus.items()]


def power(gpus, watts):
    """Return (refusals, whether any GPU differs) for a power limit."""
    refused, differs = [], False
    for index, gpu in enumerate(gpus):
        low, high = number(gpu["power.min_limit"]), number(gpu["power.max_limit"])
        if low is None or high is None:
            refused.append((index, "the board has no power limit that can be set."))
        elif not low <= watts <= high:
            sentence = "a power limit of {0:g} W is outside what the board allows, {1:g} to {2:g} W."
            refused.append((index, sentence.format(watts, low, high)))
        differs = differs or number(gpu["power.limit"]) != watts
    return refused, differs


def nearest(clock, known):
    near = sorted(known, key=lambda one: abs(one - clock))[:2]
    text = " and ".join(str(mhz) for mhz in sorted(near))
    return "{0} to {1} MHz; nearest: {2}".format(min(known), max(known), text)


def clocks(gpus, supported, locked, applications):
    """Return (refusals, whether any GPU differs) for clocks. `supported`: bus id → [(memory, graphics)]."""
    refused, differs = [], False
    for index, gpu in enumerate(gpus):
        pairs = [
            (int(m), int(g)) for m, g in supported.get(gpu["pci.bus_id"], []) if m.isdigit() and g.isdigit()
        ]
        graphics_clocks = sorted({graphics for _memory, graphics in pairs})
        if not graphics_clocks:
            refused.append((index, "the board does not say which clocks it supports."))
            continue
        for clock in locked:
            if clock not in graphics_clocks:
                sentence = "a graphics clock of {0} MHz is not supported (supported are {1})."
                refused.append((index, sentence.format(clock, nearest(clock, graphics_clocks))))
        if not applications:
            continue
        now = (gpu["clocks.applications.memory"], gpu["clocks.applications.graphics"])
        if "deprecated" in now[1]:
            sentence = "this driver has no application clocks any more; use gpu_settings_locked_clocks."
            refused.append((index, sentence))
        elif tuple(applications) not in pairs:
            at_memory = [graphics for memory, graphics in pairs if memory == applications[0]]
            if at_memory:
                sentence = "a graphics clock of {0} MHz is not supported (supported are {1})."
                refused.append((index, sentence.format(applications[1], nearest(applications[1], at_memory))))
            else:
                memories = ", ".join(str(mhz) for mhz in sorted({memory for memory, _ in pairs}))
                sentence = "a memory clock of {0} MHz is not supported (supported are {1} MHz)."
                refused.append((index, sentence.format(applications[0], memories)))
        differs = differs or now != tuple(str(mhz) for mhz in applications)
    return refused, differs


def ecc(gpus, mode):
    """Return (refusals, indexes of GPUs that differ) for an ECC mode."""
    refused = [
        (i, "the board has no ECC mode.") for i, gpu in enumerate(gpus) if "N/A" in gpu["ecc.mode.pending"]
    ]
    return refused, [i for i, gpu in enumerate(gpus) if gpu["ecc.mode.pending"].lower() != mode]


def layout_trouble(layout, known):
    """Return why a GPU cannot be partitioned like this, or None if it can."""
    profiles = layout.split(",") if layout else []
    for name in profiles:
        if name not in known:
            return "there is no MIG profile {0} (there are {1}).".format(name, ", ".join(known))
        if profiles.count(name) > known[name]:
            sentence = "at most {0} of the MIG profile {1} fit, not {2}."
            return sentence.format(known[name], name, profiles.count(name))
    slices = [int(name.split("g.")[0]) for name in profiles]
    whole = max(int(name.split("g.")[0]) for name in known)
    if sum(slices) > whole:
        return "{0} together need {1} of {2} slices.".format(layout, sum(slices), whole)
    return None


def mig(gpus, layouts, now, known, users):
    """Return (refusals, whether any GPU differs) for MIG layouts. `known` is empty if none is listed."""
    refused, differs = [], False
    for index, (gpu, layout) in enumerate(zip(gpus, layouts)):  # noqa: B905 - Python 2
        mode = gpu["mig.mode.current"]
        if "N/A" in mode:
            refused.append(
                (index, "it cannot be partitioned: leave gpu_settings_mig empty for such machines.")
            )
            continue
        trouble = layout_trouble(layout, known[index]) if layout != "off" and known.get(index) else None
        if trouble:
            refused.append((index, trouble))
        same = mode == "Disabled" if layout == "off" else mode == "Enabled" and now[index] == layout
        if same:
            continue
        differs = True
        for pid, name in users.get(gpu["pci.bus_id"], []):
            sentence = "process {0} ({1}) uses it; partitions cannot change under it: drain the node first."
            refused.append((index, sentence.format(pid, name)))
    return refused, differs


def pending(gpus):
    """Return sentences about the changes that wait for a reset or a reboot."""
    changes = []
    for index, gpu in enumerate(gpus):
        for name, words in (("ecc.mode", "ECC"), ("mig.mode", "MIG")):
            after = gpu[name + ".pending"]
            if gpu[name + ".current"] != after:
                changes.append((index, "{0} becomes {1}".format(words, after.lower())))
    return together(changes)


def compare(wanted, gpus, ask):
    """Return (refusals, names of differing settings, GPUs with an ECC change). `ask` runs nvidia-smi."""
    refused, differs, change = [], [], []
    if any(wanted[name] for name in FORGETFUL):
        sentence = (
            "persistence mode is off, and the driver would forget the setting (nvidia_driver_persistence)."
        )
        refused += [(i, sentence) for i, gpu in enumerate(gpus) if gpu["persistence_mode"] != "Enabled"]
    if wanted["power_limit"]:
        more, differ = power(gpus, wanted["power_limit"])
        refused += more
        differs += ["power_limit"] if differ else []
    if wanted["locked_clocks"] or wanted["application_clocks"]:
        supported = parse_pairs(
            ask("--query-supported-clocks=gpu_bus_id,memory,graphics", "--format=csv,noheader,nounits")
        )
        more, differ = clocks(gpus, supported, wanted["locked_clocks"], wanted["application_clocks"])
        refused += more
        differs += ["application_clocks"] if differ else []
    if wanted["compute_mode"] and any(gpu["compute_mode"].lower() != wanted["compute_mode"] for gpu in gpus):
        differs.append("compute_mode")
    if wanted["ecc"]:
        more, change = ecc(gpus, wanted["ecc"])
        refused += more
        differs += ["ecc"] if change else []
    if wanted["mig_layouts"]:
        users = parse_pairs(ask("--query-compute-apps=gpu_bus_id,pid,process_name", "--format=csv,noheader"))
        profiles = parse_profiles(ask("mig", "-lgip"))
        more, differ = mig(gpus, wanted["mig_layouts"], parse_devices(ask("-L")), profiles, users)
        refused += more
        differs += ["mig"] if differ else []
    return together(refused), differs, change


def main():
    module = AnsibleModule(
        argument_spec={
            "power_limit": {"type": "float", "default": 0},
            "locked_clocks": {"type": "list", "elements": "int", "default": []},
            "application_clocks": {"type": "list", "elements": "int", "default": []},
            "compute_mode": {"type": "str", "default": ""},
            "ecc": {"type": "str", "default": ""},
            "mig_layouts": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )

    def run(*words):
        # nvidia-smi hangs forever when the driver is in trouble.
        command = ["timeout", "--kill-after=5", TIMEOUT, "nvidia-smi", *words]
        return module.run_command(command, environ_update={"LC_ALL": "C"})

    code, out, error = run("--query-gpu=" + ",".join(FIELDS), "--format=csv,noheader,nounits")
    if code in NO_DRIVER or code == 127:
        module.exit_json(changed=False, ready=False, refusals=[], differs=[], ecc=[], pending=[])
    gpus = parse_gpus(out) if code == 0 else None
    if gpus is None:
        output = (out.strip() or error.strip() or "nothing")[:300]
        why = "did not answer within {0} s".format(TIMEOUT) if code in (124, 137) else "answered: " + output
        module.fail_json(msg="nvidia-smi {0}".format(why))
    refusals, differs, change = compare(module.params, gpus, lambda *words: run(*words)[1])
    module.exit_json(
        changed=False, ready=True, refusals=refusals, differs=differs, ecc=change, pending=pending(gpus)
    )


if __name__ == "__main__":
    main()
