"""Files: what is in them, what they are, whose."""

from provision.node.observe.files import link_target, read_bytes, read_text, status_of
from provision.node.observe.probe import FAMILIES, Family, one_each

HASH_LIMIT = 256 * 1024 * 1024


def owner_name(path, number):
    # Not pwd and grp: they may ask a directory service that does not answer.
    for line in (read_text(path, 4 * 1024 * 1024) or "").splitlines():
        fields = line.split(":")
        if len(fields) > 2 and fields[2] == str(number):
            return fields[0]
    return str(number)


def file_attribute(path, attribute):
    if attribute == "content":
        return read_text(path)
    if attribute == "target":
        return link_target(path)
    if attribute == "sha256":
        import hashlib

        data = read_bytes(path, HASH_LIMIT)
        return None if data is None else hashlib.sha256(data).hexdigest()
    status = status_of(path)
    if attribute == "exists":
        return status is not None
    if status is None:
        return None
    if attribute == "mode":
        return "%04o" % (status.st_mode & 0o7777)
    return owner_name("/etc/passwd", status.st_uid) + ":" + owner_name("/etc/group", status.st_gid)


FAMILIES["file"] = Family(
    ("content", "exists", "mode", "owner", "sha256", "target"), one_each(file_attribute)
)
