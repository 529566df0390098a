"""Installed packages according to dpkg or rpm, and the files with dnf's locks and repositories."""

import os

from provision.node.observe.files import ReadError, at, names_in, read_bytes, read_text
from provision.node.observe.probe import FAMILIES, Family, Probe, answered, attribute_of, item_of
from provision.node.observe.system import os_family, os_release

SHOWN_STATUS = {"not-installed": "absent"}
WITHOUT_VERSION = ("not-installed", "config-files")
RPM_FORM = "%{NAME}|%{EPOCH}|%{VERSION}-%{RELEASE}\n"
DATABASE = {}  # package -> its paragraphs, read once for several families


def dpkg_database():
    """Return dpkg's paragraphs by package. An interrupted dpkg's come last, because they override others."""
    if not DATABASE:
        paragraphs = {}
        for paragraph in dpkg_paragraphs():
            if paragraph[:9] == b"Package: ":
                name = paragraph[9 : paragraph.find(b"\n")].decode("ascii", "replace").strip()
                paragraphs.setdefault(name, []).append(paragraph)
        DATABASE.update(paragraphs)  # only when complete, so that a query after an error gets the error, too
    return DATABASE


def dpkg_paragraphs():
    data = read_bytes("/var/lib/dpkg/status", 64 * 1024 * 1024)
    if data is None:
        raise ReadError("there is no dpkg database on this machine")
    for paragraph in data.split(b"\n\n"):
        yield paragraph.lstrip(b"\n")  # several blank lines separate like one
    for name in names_in("/var/lib/dpkg/updates"):
        if name.isdigit():
            yield from (read_bytes("/var/lib/dpkg/updates/" + name) or b"").split(b"\n\n")


def dpkg_packages(names):
    """Look the packages up in dpkg's file, because reading it costs a third of starting dpkg-query."""
    database = dpkg_database()
    foreign = {}
    packages = {}
    for name in set(names).intersection(database):
        for paragraph in database[name]:
            entry, native = dpkg_entry(paragraph)
            (packages if native else foreign)[name] = entry
    for name in foreign:
        # A foreign architecture (i386 next to amd64) counts only if the native package is not installed.
        if packages.get(name, {}).get("version") is None:
            packages[name] = foreign[name]
    return packages


def dpkg_entry(paragraph):
    """Parse a paragraph into (package entry, whether it is for this machine's architecture)."""
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
    return entry, fields.get("Architecture") in ("all", DEB_ARCH.get(os.uname().machine))


DEB_ARCH = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64el"}


def package_facts(names, found):
    nothing = {"status": "absent", "version": None, "held": False}
    facts = {}
    for fact in names:
        facts[fact] = found.get(item_of(fact), nothing)[attribute_of(fact)]
    return facts


def has_rpm():
    """Return whether rpm, not dpkg, manages this machine's packages; either may be just an extra tool."""
    family = os_family(os_release())
    return family == "redhat" or (family != "debian" and not os.path.exists(at("/var/lib/dpkg/status")))


VERSION_LOCKS = "/etc/dnf/plugins/versionlock.list"


def dnf_lines():
    """Return the locks of dnf 4's versionlock, as patterns; a lock with ! excludes only that version."""
    lines = [line.partition("#")[0].strip() for line in (read_text(VERSION_LOCKS) or "").splitlines()]
    return [line for line in lines if line]


def dnf5_locks():
    """Return (name, [(key, comparator, value)]) of each lock of dnf 5; all its conditions must be met."""
    locks = []
    for line in (read_text("/etc/dnf/versionlock.toml") or "").splitlines():
        key, _, value = [part.strip().strip("\"'") for part in line.partition("=")]
        if key == "name":
            locks.append((value, []))
        elif key == "key" and locks:
            locks[-1][1].append([value, "", ""])
        elif key in ("comparator", "value") and locks and locks[-1][1]:
            # comparator = "=" has one more equals sign than the others
            locks[-1][1][-1][1 if key == "comparator" else 2] = value
    return [(name, [tuple(condition) for condition in conditions]) for name, conditions in locks]


def dnf_locks():
    """Return dnf's version locks as patterns of dnf 4; dnf 5's TOML contributes only exact versions."""
    locks = [line for line in dnf_lines() if line[0] != "!"]
    for name, conditions in dnf5_locks():
        locks += [name + "-" + value for _, comparator, value in conditions if comparator in ("=", "==")]
    return locks


def is_locked(locks, name, version):
    """Return whether a lock keeps the package at exactly `version` (3:580.126.09-1.el9).
    A lock that also admits the next version (nvidia*580*) does not."""
    import fnmatch

    ends = ("", ".noarch", "." + os.uname().machine)
    epoch, colon, rest = version.partition(":")
    base, _, release = (rest if colon else version).rpartition("-")

    def found(lock, base):
        forms = ("{0}-{1}:{2}-{3}", "{0}-{2}-{3}", "{1}:{0}-{2}-{3}")
        texts = [form.format(name, epoch if colon else "0", base, release) for form in forms]
        return any(fnmatch.fnmatchcase(text + end, lock) for text in texts for end in ends)

    return any(found(lock, base) and not found(lock, base + ".999") for lock in locks)


# Values for false in apt, apt-pkg/contrib/strutl.cc; dnf knows four of them.
OFF = ("no", "false", "without", "off", "disable", "0")
DNF_SETTINGS, DNF_REPOSITORIES = "/etc/dnf/dnf.conf", "/etc/yum.repos.d"


def dnf_sections(text):
    """Parse dnf settings into (name, {key: value}) per section; indented lines continue a value."""
    sections = []
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if line[:1] == "[":
            sections.append((line[1:].partition("]")[0], {}))
        elif sections and line[:1] in (" ", "\t") and sections[-1][1]:
            sections[-1][1][list(sections[-1][1])[-1]] += " " + line.strip()
        elif sections and equals and line[:1] not in "#;":
            sections[-1][1][key.strip()] = value.strip()
    return sections


def texts_of(paths, folder, ends):
    """Return (path, text) of the readable ones of `paths` and of files in the folder with these endings."""
    names = [name for name in names_in(folder) if os.path.splitext(name)[1] in ends]
    texts = [(path, text_if_readable(path)) for path in [*paths, *[folder + "/" + name for name in names]]]
    return [(path, text) for path, text in texts if text]


def text_if_readable(path):
    try:
        return read_text(path)
    except ReadError:  # a folder, which apt ignores, or a file only for root, which apt reports itself
        return None


def dnf_repositories(files):
    """Return (path, name, settings) of each enabled repository, with overrides and defaults applied."""
    import fnmatch

    folders = ("/usr/share/dnf5/libdnf.conf.d", "/etc/dnf/libdnf5.conf.d")
    settings = [each for folder in folders for each in texts_of([], folder, (".conf",))]
    main = {"skip_if_unavailable": "0"}
    for _, text in settings + texts_of([DNF_SETTINGS], "", ()):
        main.update(dict(dnf_sections(text)).get("main", {}))
    texts = texts_of([], "/etc/dnf/repos.override.d", (".repo",))
    overrides = [override for _, text in texts for override in dnf_sections(text)]
    repositories = []
    for path, text in files:
        for name, own in dnf_sections(text):
            values = {"skip_if_unavailable": main["skip_if_unavailable"], **own}
            for pattern, others in overrides:
                values.update(others if fnmatch.fnmatchcase(name, pattern) else {})
            if name != "main" and values.get("enabled", "1").lower() not in OFF:
                repositories.append((path, name, values))
    return repositories


def address_problem(values):
    """Return an error message about a repository's address, as far as this machine's files show one."""
    addresses = [values.get(key, "") for key in ("baseurl", "mirrorlist", "metalink")]
    skipped = values["skip_if_unavailable"].lower() not in OFF
    # dnf 5 never skips a repository without an address.
    if not any(addresses):
        dnf5 = os.path.exists(at("/usr/bin/dnf5"))
        return "" if skipped and not dnf5 else "has no address: no baseurl, no mirrorlist and no metalink"
    urls = addresses[0].replace(",", " ").split()
    if skipped or any(addresses[1:]) or any(url[:8] != "file:///" or "$" in url for url in urls):
        return ""
    there = any(os.path.exists(at(url[7:] + "/repodata/repomd.xml")) for url in urls)
    return "" if there else "is at %s, where there is no repodata/repomd.xml" % " and ".join(urls)


def rpm_rows(output):
    """Yield (name, version with epoch, version without) of each line that rpm prints in RPM_FORM."""
    for line in output.splitlines():
        fields = line.split("|")
        if len(fields) == 3:
            version = fields[2].strip()
            epoch = "" if fields[1] in ("(none)", "0") else fields[1] + ":"
            yield fields[0], epoch + version, version


def parse_rpm(names, output):
    locks = dnf_locks()
    entries = {}
    for package, version, plain in rpm_rows(output):
        entry = {"status": "installed", "version": version, "held": is_locked(locks, package, version)}
        # A package may be requested with its version appended: kernel-devel-5.14.0-503.el9.x86_64
        whole = package + "-" + plain
        for name in (package, whole, whole.rpartition("-")[0], whole + "." + os.uname().machine):
            entries[name] = entry
    if not entries and "is not installed" not in output:
        raise answered("rpm", output)
    return package_facts(names, entries)


def package_probes(names):
    if has_rpm():
        packages = sorted({item_of(name) for name in names})
        return [Probe(names, command=["rpm", "-q", "--qf", RPM_FORM, "--", *packages], parse=parse_rpm)]
    items = [item_of(name) for name in names]
    return [Probe(names, read=lambda: package_facts(names, dpkg_packages(items)))]


FAMILIES["package"] = Family(("version", "status", "held"), package_probes)
