"""The NVLink fabric's programs (fabric manager, IMEX), by any package name, and their logs since boot."""

from provision.node.observe.driver import driver_loaded
from provision.node.observe.files import read_bytes, read_line
from provision.node.observe.package import (
    RPM_FORM,
    dnf_locks,
    dpkg_database,
    dpkg_packages,
    has_rpm,
    is_locked,
    rpm_rows,
)
from provision.node.observe.probe import FAMILIES, Family, Probe, answered, attribute_of, single

# Up to 580, package names contain the branch (nvidia-imex-580); rpm's once had one more hyphen.
FABRIC_PACKAGES = {
    "manager": ("nvidia-fabricmanager", "nvidia-fabric-manager"),
    "imex": ("nvidia-imex",),
}

# [Jul 23 2024 07:53:55] [ERROR] [tid 841] detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci ...
LOG_LINE = r"\[([A-Z][a-z]{2} \d{1,2} \d{4} \d\d:\d\d:\d\d)\] \[([A-Z]{1,10})\] (?:\[tid \d+\] )?(.{1,300})"
LOGS = {"manager_log": "/var/log/fabricmanager.log", "imex_log": "/var/log/nvidia-imex.log"}
LOG_TAIL = 4 * 1024 * 1024
LOG_ROWS = 100  # per log; the latest are kept
# Each job writes dozens of INFO lines; only ends of faults and lines with a peer's name are kept.
ENDINGS = (
    "Successfully configured all the available ",
    "successfully setup multicast team ",
    "GPU event successfully subscribed",
    "Connection ",
)


def fabric_program(package):
    """Return which of the two programs a package contains, or None."""
    for program, stems in FABRIC_PACKAGES.items():
        for stem in stems:
            if package.startswith(stem):
                rest = package[len(stem) :]
                if not rest or (rest[0] == "-" and rest[1:].isdigit()):
                    return program
    return None


def fabric_facts(names, installed):
    """Derive the facts from `installed` (package -> (version, held)). Several packages must agree."""
    loaded = None
    facts = {}
    for fact in names:
        program, _, what = attribute_of(fact).partition("_")
        mine = {name: installed[name] for name in installed if fabric_program(name) == program}
        versions = sorted({version for version, _held in mine.values()})
        if what == "package":
            facts[fact] = ", ".join(sorted(mine)) or None
        elif what == "version":
            facts[fact] = ", ".join(versions) or None
        elif what == "held":
            facts[fact] = bool(mine) and all(held for _version, held in mine.values())
        else:
            loaded = driver_loaded("loaded_version")
            upstream = [version.partition(":")[2] or version for version in versions]
            facts[fact] = [version.rpartition("-")[0] for version in upstream] == [loaded]
    return facts


def dpkg_fabric(names):
    packages = dpkg_packages([name for name in dpkg_database() if fabric_program(name)])
    whole = {name: each for name, each in packages.items() if each["status"] == "installed"}
    return fabric_facts(names, {name: (each["version"], each["held"]) for name, each in whole.items()})


def parse_rpm_fabric(names, output):
    locks = dnf_locks()
    rows = list(rpm_rows(output))
    if len(rows) != len(output.splitlines()):
        raise answered("rpm", output)
    installed = {package: (version, is_locked(locks, package, version)) for package, version, _ in rows}
    return fabric_facts(names, installed)


def log_rows(path):
    """Summarise a daemon's log since boot as {line, count, first, last} per kind of line.
    Sorted by `last`, in epoch seconds; None without a log. Lines of one kind differ only in long numbers."""
    import re
    import time

    data = read_bytes(path, LOG_TAIL, tail=True)
    if data is None:
        return None
    # One minute of tolerance, for a clock that was set after boot.
    boot = time.time() - float((read_line("/proc/uptime") or "1e12").split()[0]) - 60
    entry, rows = re.compile(LOG_LINE), {}
    for match in map(entry.match, data.decode("utf-8", "replace").split("\n")):
        if match and (match.group(2) not in ("INFO", "DEBUG") or match.group(3).startswith(ENDINGS)):
            try:
                at = int(time.mktime(time.strptime(match.group(1), "%b %d %Y %H:%M:%S")))
            except (ValueError, OverflowError):
                continue  # not a time
            if at >= boot:
                kind = re.sub("[0-9A-Fa-f]{8,}", "#", match.group(3))
                row = rows.pop(kind, {"count": 0, "first": at})
                row.update(line=match.group(3), count=row["count"] + 1, last=at)
                rows[kind] = row
    return list(rows.values())[-LOG_ROWS:]


def fabric_probes(names):
    logs = [name for name in names if attribute_of(name) in LOGS]
    probes = [single(name, log_rows, LOGS[attribute_of(name)]) for name in logs]
    packages = [name for name in names if name not in logs]
    return probes + (fabric_package_probes(packages) if packages else [])


def fabric_package_probes(names):
    if has_rpm():
        command = ["rpm", "-qa", "--qf", RPM_FORM, "nvidia-fabric*", "nvidia-imex*"]
        return [Probe(names, command=command, parse=parse_rpm_fabric)]
    return [Probe(names, read=lambda: dpkg_fabric(names))]


FAMILIES["fabric"] = Family(
    (
        *("manager_package", "manager_version", "manager_held", "manager_matches_driver"),
        *("imex_package", "imex_version", "imex_held", "imex_matches_driver"),
        *LOGS,
    ),
    fabric_probes,
    items=False,
)
