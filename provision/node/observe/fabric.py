"""The programs that make an NVLink fabric, under whatever name their package has: fabric manager, IMEX."""

from provision.node.observe.driver import driver_loaded
from provision.node.observe.package import (
    RPM_FORM,
    dnf_locks,
    dpkg_database,
    dpkg_packages,
    has_rpm,
    is_locked,
    rpm_rows,
)
from provision.node.observe.probe import FAMILIES, Family, Probe, answered, attribute_of

# The branch is part of the name up to 580 (nvidia-imex-580) and not later; rpm once had one hyphen more.
FABRIC_PACKAGES = {
    "manager": ("nvidia-fabricmanager", "nvidia-fabric-manager"),
    "imex": ("nvidia-imex",),
}


def fabric_program(package):
    """Which of the two a package is, or None."""
    for program, stems in FABRIC_PACKAGES.items():
        for stem in stems:
            if package.startswith(stem):
                rest = package[len(stem) :]
                if not rest or (rest[0] == "-" and rest[1:].isdigit()):
                    return program
    return None


def fabric_facts(names, installed):
    """`installed`: package -> (version, whether it is held). Of several packages each has to say the same."""
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
    found = {package: (version, is_locked(locks, package, version)) for package, version, _ in rows}
    return fabric_facts(names, found)


def fabric_probes(names):
    if has_rpm():
        command = ["rpm", "-qa", "--qf", RPM_FORM, "nvidia-fabric*", "nvidia-imex*"]
        return [Probe(names, command=command, parse=parse_rpm_fabric)]
    return [Probe(names, read=lambda: dpkg_fabric(names))]


FAMILIES["fabric"] = Family(
    (
        *("manager_package", "manager_version", "manager_held", "manager_matches_driver"),
        *("imex_package", "imex_version", "imex_held", "imex_matches_driver"),
    ),
    fabric_probes,
    items=False,
)
