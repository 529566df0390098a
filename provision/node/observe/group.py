"""User groups in /etc/group; no directory service is queried."""

from provision.node.observe.files import read_text
from provision.node.observe.probe import FAMILIES, Family, one_each


def group_attribute(name, attribute):
    """Return whether a group exists, or its `members` in /etc/group; None without such a group."""
    for line in (read_text("/etc/group", 4 * 1024 * 1024) or "").splitlines():
        fields = line.split(":")
        if len(fields) == 4 and fields[0] == name:
            return attribute == "exists" or [member for member in fields[3].split(",") if member]
    return False if attribute == "exists" else None


FAMILIES["group"] = Family(("exists", "members"), one_each(group_attribute))
