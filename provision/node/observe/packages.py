"""All installed packages whose names match a shell pattern, in one fact: packages.libnvidia-*.versions"""

from provision.node.observe.files import ReadError
from provision.node.observe.package import dpkg_database, dpkg_packages, has_rpm
from provision.node.observe.probe import FAMILIES, Family, Probe, item_of

RPM_FORM = "%{NAME}|%{EPOCH}|%{VERSION}-%{RELEASE}\n"


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
    for line in output.splitlines():
        fields = line.split("|")
        if len(fields) == 3 and fields[0] != "gpg-pubkey":
            epoch = "" if fields[1] in ("(none)", "0") else fields[1] + ":"
            # Several versions of one package (kernels) are no version to compare.
            versions[fields[0]] = None if fields[0] in versions else epoch + fields[2].strip()
    if not versions:
        raise ReadError("rpm answered: " + (output.strip()[:200] or "nothing"))
    return matching(facts, {name: version for name, version in versions.items() if version})


def packages_probes(names):
    if has_rpm():
        return [Probe(names, command=["rpm", "-qa", "--qf", RPM_FORM], parse=parse_rpm_all)]
    return [Probe(names, read=lambda: matching(names, dpkg_versions()))]


FAMILIES["packages"] = Family(("versions",), packages_probes)
