"""Holds and version locks by others that keep apt or dnf from the declared driver.

The roles hold their own packages, and let go of them before they move them: those are no obstacle.
"""

from provision.node.observe.package import (
    VERSION_LOCKS,
    dnf5_locks,
    dnf_lines,
    dpkg_database,
    dpkg_entry,
    dpkg_packages,
    is_locked,
    rpm_rows,
)

# The role nvidia_driver lets go of packages with these names that have the driver's version.
RELEASED = ("*nvidia*", "libcuda*", "cuda-drivers*")
# Similar names of other products, with versions of their own, or with another role that moves them.
APART = ("*container*", "*fabricmanager*", "*imex*", "*nscq*", "*nvsdm*", "nvidia-fs*", "nvidia-gds*")
# Any of them tells which version the driver has.
MAIN = ("nvidia-driver-cuda", "libcuda1", "libnvidia-ml1", "libnvidia-compute*", "nvidia-utils-*")
NEED = r"\s*([a-z0-9][a-z0-9+.-]*)(?::\w+)? \(= ([^)]*)\)\s*"
LARGEST = 10**9


def is_named(name, patterns):
    import fnmatch

    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def of_driver(name):
    return is_named(name, RELEASED) and not is_named(name, APART)


def upstream(version):
    """1:580.126.09-1 -> 580.126.09"""
    rest = version.partition(":")[2] or version
    return rest.rpartition("-")[0] or rest


def is_of(version, wanted):
    """Whether a package's version is the driver's version, or of its branch, `wanted`."""
    return (upstream(version) + ".").startswith(wanted + ".")


def overruling_holds(wanted):
    """Held packages that need another version of the driver: apt moves none of them for another's sake."""
    import re

    database = dpkg_database()
    main = dpkg_packages([name for name in database if is_named(name, MAIN)])
    own = {upstream(entry["version"]) for entry in main.values() if entry["version"]}
    held = [
        (name, dpkg_entry(paragraph)[0]["version"], paragraph)
        for name in sorted(database)
        for paragraph in database[name]
        if b"\nStatus: hold " in paragraph
    ]
    found = []
    for name, version, paragraph in held:
        if not version or (of_driver(name) and upstream(version) in own):
            continue
        text = paragraph.decode("utf-8", "replace")
        lines = re.findall(r"^(?:Pre-)?Depends: (.*)", text, re.MULTILINE)
        needs = [re.fullmatch(NEED, one) for line in lines for one in line.split(",")]
        for need in needs:
            if need and of_driver(need.group(1)) and not is_of(need.group(2), wanted):
                words = (name, version, *need.groups(), name)
                found.append("%s %s, which is held and needs %s %s (release it: apt-mark unhold %s)" % words)
                break
    return found


def lock_parts(lock):
    """(name, version) of each way in which dnf 4 takes a lock apart: NAME-VERSION-RELEASE, NAME-VERSION."""
    ways = [lock.rsplit("-", 2)[:2], lock.rsplit("-", 1)]
    pairs = [(way[0], way[1].rpartition(":")[2]) for way in ways if len(way) == 2]
    return [(name, version) for name, version in pairs if version[:1] in set("*?[0123456789")]


def locks_out(lock, names, wanted):
    """Whether a line of dnf 4 keeps one of the packages from the version, or from every one of the branch."""
    versions = [
        version
        for name, version in lock_parts(lock.lstrip("!"))
        if any(is_named(one, [name]) for one in names)
    ]
    whole = any(is_named(wanted, [version]) or is_named(wanted + ".0", [version]) for version in versions)
    if lock[:1] == "!":
        return whole
    return bool(versions) and not whole and not any(is_of(version, wanted) for version in versions)


def numbers(version):
    import re

    return [int(part) for part in re.findall("[0-9]+", version)]


def meets(condition, wanted):
    """Whether the version `wanted`, or a release of that branch, can meet a condition of dnf 5. Epochs are
    not compared: those of the driver never change."""
    key, comparator, value = condition
    if key != "evr":
        return True
    lowest, bound = numbers(wanted), numbers(upstream(value))
    highest = lowest if len(lowest) > 1 else [*lowest, LARGEST]
    return {
        "<": lowest < bound,
        "<=": lowest <= bound,
        ">": highest > bound,
        ">=": highest >= bound,
        "=": lowest <= bound <= highest,
        "==": lowest <= bound <= highest,
        "!=": not lowest == bound == highest,
    }.get(comparator, True)


def overruling_locks(names, wanted, output):
    """Version locks that keep one of `names` from the version `wanted`. `output`: what rpm has installed.

    A line of dnf 4 for one package at its installed version is what the roles write, and let go of.
    """
    installed = [(name, version) for name, version, _ in rpm_rows(output)]
    found = []
    for lock in dnf_lines():
        own = any(
            lock.startswith(name + "-") and is_locked([lock], name, version) for name, version in installed
        )
        if not own and locks_out(lock, names, wanted):
            found.append("%s: %s (release it: dnf versionlock delete '%s')" % (VERSION_LOCKS, lock, lock))
    for pattern, conditions in dnf5_locks():
        locked = any(is_named(name, [pattern]) for name in names)
        if locked and not all(meets(condition, wanted) for condition in conditions):
            words = (pattern, pattern)
            found.append("/etc/dnf/versionlock.toml: %s (release it: dnf versionlock delete '%s')" % words)
    return found
