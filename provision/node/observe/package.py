"""Installed packages, as dpkg or rpm know them."""

import os

from provision.node.observe.files import ReadError, at, names_in, read_bytes, read_text
from provision.node.observe.probe import FAMILIES, Family, Probe, attribute_of, item_of

SHOWN_STATUS = {"not-installed": "absent"}
WITHOUT_VERSION = ("not-installed", "config-files")


def dpkg_paragraphs():
    """Every paragraph of dpkg's database. What an interrupted dpkg left comes last: it overrides."""
    data = read_bytes("/var/lib/dpkg/status", 64 * 1024 * 1024)
    if data is None:
        raise ReadError("there is no dpkg database on this machine")
    for paragraph in data.split(b"\n\n"):
        yield paragraph
    for name in names_in("/var/lib/dpkg/updates"):
        if name.isdigit():
            for paragraph in (read_bytes("/var/lib/dpkg/updates/" + name) or b"").split(b"\n\n"):
                yield paragraph


def dpkg_packages(names):
    """What dpkg knows of the packages asked for. Reading its file costs a third of starting dpkg-query."""
    asked = set(names)
    foreign = {}
    found = {}
    for paragraph in dpkg_paragraphs():
        if paragraph[:9] != b"Package: ":
            continue
        name = paragraph[9 : paragraph.find(b"\n")].decode("ascii", "replace").strip()
        if name not in asked:
            continue
        fields = {}
        for line in paragraph.decode("utf-8", "replace").split("\n"):
            key, colon, value = line.partition(": ")
            if colon and key in ("Status", "Version", "Architecture"):
                fields[key] = value.strip()
        status = (fields.get("Status", "") + "   ").split(" ")
        entry = {
            "status": SHOWN_STATUS.get(status[2], status[2]),
            "version": None if status[2] in WITHOUT_VERSION else fields.get("Version"),
            "held": status[0] == "hold",
        }
        native = fields.get("Architecture") in ("all", DEB_ARCH.get(os.uname().machine))
        (found if native else foreign)[name] = entry
    for name in foreign:
        # A foreign architecture (i386 beside amd64) speaks for a package only when the native one does not.
        if found.get(name, {}).get("version") is None:
            found[name] = foreign[name]
    return found


DEB_ARCH = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64el"}


def package_facts(names, found):
    nothing = {"status": "absent", "version": None, "held": False}
    facts = {}
    for fact in names:
        facts[fact] = found.get(item_of(fact), nothing)[attribute_of(fact)]
    return facts


def rpm_held(names):
    """Which packages dnf's versionlock holds (dnf 4: a list of NEVRA patterns; dnf 5: TOML, name = "...")."""
    lines = (read_text("/etc/dnf/plugins/versionlock.list") or "").splitlines()
    held = set()
    for line in lines:
        for name in names:
            tail = line.strip()[len(name) :]
            if line.strip().startswith(name) and tail[:1] == "-" and tail[1:2].isdigit():
                held.add(name)
    for line in (read_text("/etc/dnf/versionlock.toml") or "").splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "name":
            held.add(value.strip().strip("\"'"))
    return held


def parse_rpm(names, output):
    held = rpm_held({item_of(fact) for fact in names})
    found = {}
    for line in output.splitlines():
        fields = line.split("|")
        if len(fields) == 3:
            epoch = "" if fields[1] in ("(none)", "0") else fields[1] + ":"
            version = epoch + fields[2].strip()
            found[fields[0]] = {"status": "installed", "version": version, "held": fields[0] in held}
    if not found and "is not installed" not in output:
        raise ReadError("rpm answered: " + (output.strip()[:200] or "nothing"))
    return package_facts(names, found)


def package_probes(names):
    if not os.path.exists(at("/var/lib/dpkg/status")):
        packages = sorted({item_of(name) for name in names})
        form = "%{NAME}|%{EPOCH}|%{VERSION}-%{RELEASE}\n"
        return [Probe(names, command=["rpm", "-q", "--qf", form, "--", *packages], parse=parse_rpm)]
    items = [item_of(name) for name in names]
    return [Probe(names, read=lambda: package_facts(names, dpkg_packages(items)))]


FAMILIES["package"] = Family(("version", "status", "held"), package_probes)
