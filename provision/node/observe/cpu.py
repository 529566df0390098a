"""The model of the CPUs, their online threads, and the governors and drivers of their frequency."""

from provision.node.observe.files import ReadError, labelled, names_in, read_line, read_text
from provision.node.observe.probe import FAMILIES, whole_family

POLICIES = "/sys/devices/system/cpu/cpufreq"
CPUINFO_LIMIT = 4 * 1024 * 1024  # about 1.5 KiB for each of up to 2,048 threads


def of_policies(name):
    """Return the distinct values of a file of the frequency policies; empty if there are no policies."""
    values = {read_line("%s/%s/%s" % (POLICIES, policy, name)) for policy in names_in(POLICIES)}
    return sorted(value for value in values if value)


def cpu_model():
    """Return the model name of the first CPU; Arm CPUs report none."""
    text = labelled(read_text("/proc/cpuinfo", CPUINFO_LIMIT), "model name")
    return None if text is None else " ".join(text.split())


def cpu_online():
    """Count the hardware threads that are online (0-63,128-191 -> 128)."""
    text = read_line("/sys/devices/system/cpu/online") or ""
    count = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            raise ReadError("/sys/devices/system/cpu/online was not understood")
        count += int(last or first) - int(first) + 1
    return count


CPU = {
    "governors": lambda: of_policies("scaling_governor"),
    "frequency_drivers": lambda: of_policies("scaling_driver"),
    "model": cpu_model,
    "online": cpu_online,
}


FAMILIES["cpu"] = whole_family(CPU)
