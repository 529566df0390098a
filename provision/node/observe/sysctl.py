"""Kernel parameters."""

from provision.node.observe.files import read_text
from provision.node.observe.probe import FAMILIES, Family, one_each


def sysctl_value(key, _attribute):
    dot, slash = key.find("."), key.find("/")
    # As in sysctl(8), the first separator decides; after a dot, a slash stands for a dot in a name (eth0/1).
    path = key if 0 <= slash < dot or dot < 0 else key.translate({46: "/", 47: "."})
    text = read_text("/proc/sys/" + path)
    return None if text is None else text.rstrip("\n")


FAMILIES["sysctl"] = Family(("value",), one_each(sysctl_value))
