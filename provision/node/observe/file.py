"""Files, file systems that are read-only or full, and the NCCL variables of system-wide settings.
Nothing else of those settings is reported, because there may be passwords in them."""

import os

from provision.node.observe.files import (
    FILE_LIMIT,
    ReadError,
    at,
    link_target,
    names_in,
    read_bytes,
    read_text,
    status_of,
)
from provision.node.observe.probe import FAMILIES, Family, attribute_of, item_of, single

HASH_LIMIT = 256 * 1024 * 1024
LOCAL = ("/dev/", "UUID=", "LABEL=", "PARTUUID=", "PARTLABEL=")
WRITTEN = ("/", "/run", "/tmp", "/var", "/var/lib", "/var/log", "/var/tmp")  # noqa: S108 - not written to
DAEMONS = ("containerd", "crio", "docker", "kubelet", "slurmd")
SETTINGS = ("/etc/environment", "/etc/nccl.conf", "/etc/profile", "/etc/bash.bashrc", "/etc/bashrc")
FOLDERS = ("/etc/profile.d", "/etc/environment.d")


def owner_name(path, number):
    # Not pwd and grp, which may query a directory service that does not answer.
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


def read_only_mounts():
    """Return local file systems that are mounted read-only without `ro` in /etc/fstab."""
    declared = [
        line.split() for line in (read_text("/etc/fstab") or "").splitlines() if line.strip()[:1] != "#"
    ]
    rows = [line.split() for line in (read_text("/proc/1/mounts", 4 * FILE_LIMIT) or "").splitlines()]
    mounted = {row[1]: row[3].split(",") for row in rows if len(row) > 3}
    return [
        row[1]
        for row in declared
        if len(row) > 3 and row[0].startswith(LOCAL) and "ro" not in row[3].split(",")
        and "ro" in mounted.get(row[1], ())
    ]  # fmt: skip


def free_space():
    """Return the free percentage of the file systems that every node writes to, without read-only images."""
    systems = {}
    for path in WRITTEN:
        try:
            status, device = os.statvfs(at(path)), os.stat(at(path)).st_dev
        except OSError:
            continue
        if status.f_blocks and device not in systems and not status.f_flag & os.ST_RDONLY:
            inodes = status.f_favail * 100 // status.f_files if status.f_files else 100
            free = status.f_bavail * 100 // status.f_blocks
            systems[device] = {"path": path, "free_percent": free, "free_inodes_percent": inodes}
    return list(systems.values())


def nccl_variables():
    """Return {file, line, name, value} of each NCCL variable in files that gpuprov did not write itself."""
    import re

    files = [*SETTINGS, *(folder + "/" + name for folder in FOLDERS for name in names_in(folder))]
    for unit in DAEMONS:
        files += ["/etc/systemd/system/%s.service" % unit, "/etc/default/" + unit, "/etc/sysconfig/" + unit]
        folder = "/etc/systemd/system/%s.service.d" % unit
        files += [folder + "/" + name for name in names_in(folder)]
    variables = []
    for path in files:
        try:
            text = read_text(path) or ""
        except ReadError:  # larger than any settings file, or not a file
            continue
        lines = [] if "Written by gpuprov" in text[:200] else text.splitlines()
        for number, line in enumerate(lines, 1):
            if line.strip()[:1] not in ("#", ";"):
                for name, value in re.findall(r"\b(NCCL_[A-Z0-9_]{1,40})=[\"']?([\w.:^-]{0,40})", line):
                    variables.append({"file": path, "line": number, "name": name, "value": value})
    return variables


WHOLE = {"read_only_mounts": read_only_mounts, "free_space": free_space, "nccl_variables": nccl_variables}


def file_probes(names):
    probes = []
    for name in names:
        whole = WHOLE.get(name.partition(".")[2])
        probes.append(
            single(name, whole) if whole else single(name, file_attribute, item_of(name), attribute_of(name))
        )
    return probes


FAMILIES["file"] = Family(
    ("content", "exists", "mode", "owner", "sha256", "target"), file_probes, whole=WHOLE
)
