"""All installed packages whose names match a shell pattern, in one fact: packages.libnvidia-*.versions"""

from provision.node.observe.package import RPM_FORM, dpkg_database, dpkg_packages, has_rpm, rpm_rows
from provision.node.observe.probe import FAMILIES, Family, Probe, answered, item_of


def matching(facts, versions):
    """A dictionary (package name -> version) for each fact asked."""
    import fnmatch

    found = {}
    for fact in facts:
        names = fnmatch.filter(versions, item_of(fact))
        found[fact] = {name: versions[name] for name in sorted(names)}
    return found


def dpkg_versions():
    """Every package that dpkg has installed and configured."""
    found = dpkg_packages(dpkg_database())
    return {name: each["version"] for name, each in found.items() if each["status"] == "installed"}


def parse_rpm_all(facts, output):
    versions = {}
    for package, version, _ in rpm_rows(output):
        if package != "gpg-pubkey":
            # Several versions of one package (kernels) are no version to compare.
            versions[package] = None if package in versions else version
    if not versions:
        raise answered("rpm", output)
    return matching(facts, {name: version for name, version in versions.items() if version})


def packages_probes(names):
    if has_rpm():
        return [Probe(names, command=["rpm", "-qa", "--qf", RPM_FORM], parse=parse_rpm_all)]
    return [Probe(names, read=lambda: matching(names, dpkg_versions()))]


FAMILIES["packages"] = Family(("versions",), packages_probes)
