"""Installed packages by shell pattern (packages.libnvidia-*.versions), and obstacles to changing them.

Obstacles are settings of others that keep apt or dnf from the declared versions (sources, pins, excludes,
holds, locks). The roles' own holds do not count, since the roles release packages before they move them."""

import os

from provision.node.observe.files import at, names_in, read_text
from provision.node.observe.package import (
    DNF_REPOSITORIES,
    DNF_SETTINGS,
    OFF,
    RPM_FORM,
    VERSION_LOCKS,
    address_problem,
    dnf5_locks,
    dnf_lines,
    dnf_repositories,
    dnf_sections,
    dpkg_database,
    dpkg_entry,
    dpkg_packages,
    has_rpm,
    is_locked,
    rpm_rows,
    texts_of,
)
from provision.node.observe.probe import FAMILIES, Family, Probe, answered, attribute_of, item_of, single

APT_SOURCES = "/etc/apt/sources.list"
APT_PREFERENCES = "/etc/apt/preferences"
OURS = "# Written by gpuprov"
FORCED = 1000  # above this priority, apt installs a pinned version even if that is a downgrade
KINDS = ("versions", "stream", "overruled_by", "source_problems")
# A pattern that matches one of these affects the driver.
DRIVER_PACKAGES = ("nvidia-open", "nvidia-driver-cuda", "libnvidia-compute", "libcuda1", "cuda-drivers")
DNF_PACKAGES = (*DRIVER_PACKAGES, "kmod-nvidia-open-dkms", "nvidia-driver-cuda-libs", "cuda-toolkit-13-0")
# The role nvidia_driver releases packages with these names if they have the driver's version.
RELEASED = ("*nvidia*", "libcuda*", "cuda-drivers*")
# Similar names of other products, which have their own versions or are moved by another role.
APART = ("*container*", "*fabricmanager*", "*imex*", "*nscq*", "*nvsdm*", "nvidia-fs*", "nvidia-gds*")
# Each of these has the driver's version.
MAIN = ("nvidia-driver-cuda", "libcuda1", "libnvidia-ml1", "libnvidia-compute*", "nvidia-utils-*")
NEED = r"\s*([a-z0-9][a-z0-9+.-]*)(?::\w+)? \(= ([^)]*)\)\s*"


def matching(facts, versions):
    """Return a dictionary (package name -> version) for each requested fact."""
    import fnmatch

    matches = {}
    for fact in facts:
        names = fnmatch.filter(versions, item_of(fact))
        matches[fact] = {name: versions[name] for name in sorted(names)}
    return matches


def dpkg_versions():
    """Return {package: version} of everything that dpkg has installed and configured."""
    packages = dpkg_packages(dpkg_database())
    return {name: each["version"] for name, each in packages.items() if each["status"] == "installed"}


def parse_rpm_all(facts, output):
    versions = {}
    for package, version, _ in rpm_rows(output):
        if package != "gpg-pubkey":
            # Several installed versions of one package (kernels) cannot be compared.
            versions[package] = None if package in versions else version
    if not versions:
        raise answered("rpm", output)
    return matching(facts, {name: version for name, version in versions.items() if version})


def apt_files(main, ends):
    """Return (path, text) of apt's main file and the files in its folder, in apt's order of reading."""
    return texts_of([main], main + ".d", ends)


def deb822_fields(paragraph):
    """Parse a deb822 paragraph into fields, with names in lower case and values on one line."""
    fields = {}
    key = ""
    for line in paragraph.splitlines():
        if line[:1] in ("#", ""):
            continue
        if line[:1] in " \t":
            fields[key] = fields.get(key, "") + " " + line.strip()
        else:
            key, _, value = line.partition(":")
            key = key.strip().lower()
            fields[key] = value.strip()
    return fields


def deb822_paragraphs(text):
    parts = text.replace("\r", "").split("\n\n")
    return [fields for fields in [deb822_fields(part) for part in parts] if fields]


def source_keys(path, text):
    """Return the key files that are named by the sources in one file."""
    if path.endswith(".sources"):
        found = [one for one in deb822_paragraphs(text) if one.get("enabled", "yes").lower() not in OFF]
        values = [one.get("signed-by", "") for one in found]
        # The value may be a key itself, with base64 lines that may begin like a path.
        return [
            word for text in values if "-----BEGIN" not in text for word in text.split() if word[0] == "/"
        ]
    lines = [line for line in text.splitlines() if line.strip()[:3] == "deb"]
    options = [line.partition("[")[2].partition("]")[0].split() for line in lines]
    values = [word.partition("=")[2] for words in options for word in words if word[:10] == "signed-by="]
    return [key for value in values for key in value.split(",") if key[:1] == "/"]


def without_logins(text):
    import re

    return re.sub(r"://[^\s/@]{1,400}@", "://", text)


def parse_sources(facts, output):
    """Parse the reasons why apt cannot read its sources, with the files concerned and without URL logins."""
    files = apt_files(APT_SOURCES, (".list", ".sources"))
    problems = []
    for line in without_logins(output).splitlines():
        if line[:3] == "E: " or line[:7] == "Error: ":  # apt 2.6 and apt 3.0
            problem = line.partition(": ")[2].strip()
            # Conflicting values set for option Signed-By regarding source http://mirror/x/ /: a.gpg != b.gpg
            url = problem.partition(" regarding source ")[2].split(" ")[0].rstrip("/")
            named = [path for path, text in files if url and url in without_logins(text)]
            problems.append(problem + " (" + " and ".join(named) + ")" if named else problem)
    problems = sorted(set(problems) - {"The list of sources could not be read."}) or problems[:1]
    for path, text in files:
        missing = [key for key in source_keys(path, text) if not os.path.exists(at(key))]
        if text[: len(OURS)] != OURS:  # the key of our own source is a separate fact
            problems += ["its key %s is missing (%s)" % (key, path) for key in missing]
    return dict.fromkeys(facts, problems)


# Messages of dnf about a rejected file or section; dnf 5 prints the reason in the next line.
DNF_REFUSES = (
    r"^(?:Warning: failed loading|Bad id for repo|Config error|Error in configuration file|"
    r"Invalid repository id).*(?:\n .*)?"
)
DNF_NAMED = r'^Bad id for repo: (.+), byte|^Invalid repository id "(.+)": '
DNF_LISTS = r"^repo id |^No repositories available|no repositories are enabled"


def parse_repositories(facts, output):
    """Parse the reasons why dnf cannot read its repositories, with the file and without URL logins.

    As with apt, only dnf's own list is read. Whether an address answers shows when packages are installed;
    observing ten thousand nodes must not make each of them download its lists."""
    import re

    output = without_logins(output)
    files = texts_of([], DNF_REPOSITORIES, (".repo",))
    problems = []
    for message in re.findall(DNF_REFUSES, output, re.MULTILINE):
        name = re.search(DNF_NAMED, message)
        named = [path for path, text in files if name and "[%s]" % (name.group(1) or name.group(2)) in text]
        problems.append(
            message.replace("\n", ":").replace("Warning: ", "") + (" (%s)" % named[0] if named else "")
        )
    if not problems and not re.search(DNF_LISTS, output, re.MULTILINE):
        raise answered("dnf", output)
    for path, name, values in dnf_repositories(files):
        problem = address_problem(values)
        if problem:
            problems.append("the repository %s %s (%s)" % (name, problem, path))
    ours = {name: path for path, text in files if text[: len(OURS)] == OURS for name, _ in dnf_sections(text)}
    for path, name in [
        (path, name) for path, text in files for name, _ in dnf_sections(text) if name in ours
    ]:
        if ours[name] != path:
            words = (name, ours[name], path)
            problems.append("the repository %s is written twice, and one of them counts (%s and %s)" % words)
    return dict.fromkeys(facts, problems)


def is_about_driver(patterns, names=DRIVER_PACKAGES):
    import fnmatch

    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns for name in names)


def is_our_host(kind, pattern):
    """Return whether a pin is on the host of our own sources; a site's mirror may be pinned as a whole."""
    import re

    host = re.escape(pattern.strip(' "')) if kind == "origin" else ""
    ours = [text for _, text in apt_files(APT_SOURCES, (".list", ".sources")) if text[: len(OURS)] == OURS]
    return bool(host) and any(re.search("//%s[/:]" % host, without_logins(text)) for text in ours)


def overruling_pins(wanted):
    """Return pins of others that keep apt from the driver `wanted`, a version or a branch."""
    import fnmatch

    pins = []
    for path, text in apt_files(APT_PREFERENCES, ("", ".pref")):
        for pin in deb822_paragraphs(text) if text[: len(OURS)] != OURS else []:
            priority, what = pin.get("pin-priority", "0"), pin.get("pin", "")
            if not priority.lstrip("-").isdigit() or not is_about_driver(pin.get("package", "").split()):
                continue
            forced = int(priority) > FORCED
            kind, _, pattern = what.partition(" ")
            if kind == "version":
                pattern = pattern.strip()
                forms = (wanted, wanted + "-1", wanted + ".0-1")
                fits = pattern.startswith(wanted + ".") or any(
                    fnmatch.fnmatchcase(form, pattern) for form in forms
                )
                bad = fits if int(priority) < 0 else forced and not fits
            else:
                bad = forced and "nvidia" not in what.lower() and not is_our_host(kind, pattern)
            if bad:
                pins.append("%s: Package: %s, Pin: %s, priority %s" % (path, pin["package"], what, priority))
    return pins


def excluding_settings():
    """Return settings of dnf, and of NVIDIA's repositories, that hide driver packages from dnf."""
    folder, settings = DNF_REPOSITORIES, []
    files = [folder + "/" + name for name in names_in(folder) if name.endswith(".repo")]
    for path in [DNF_SETTINGS, *files]:
        for name, values in dnf_sections(read_text(path) or ""):
            # Other repositories may hide their own driver packages, and should.
            theirs = (name + values.get("baseurl", "") + values.get("mirrorlist", "")).lower()
            if (name == "main" or "nvidia" in theirs) and values.get("enabled", "1").lower() not in OFF:
                for key in ("exclude", "excludepkgs"):
                    if is_about_driver(values.get(key, "").replace(",", " ").split(), DNF_PACKAGES):
                        settings.append("%s: %s=%s" % (path, key, values[key]))
    return settings


def is_named(name, patterns):
    import fnmatch

    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def of_driver(name):
    return is_named(name, RELEASED) and not is_named(name, APART)


def upstream(version):
    """Strip epoch and revision (1:580.126.09-1 -> 580.126.09)."""
    rest = version.partition(":")[2] or version
    return rest.rpartition("-")[0] or rest


def is_of(version, wanted):
    """Return whether a package's version is the driver version `wanted`, or belongs to that branch."""
    return (upstream(version) + ".").startswith(wanted + ".")


def overruling_holds(wanted):
    """Return held packages that need another driver version; apt moves none of them for other packages."""
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
    holds = []
    for name, version, paragraph in held:
        if not version or (of_driver(name) and upstream(version) in own):
            continue
        text = paragraph.decode("utf-8", "replace")
        lines = re.findall(r"^(?:Pre-)?Depends: (.*)", text, re.MULTILINE)
        needs = [re.fullmatch(NEED, dependency) for line in lines for dependency in line.split(",")]
        for need in needs:
            if need and of_driver(need.group(1)) and not is_of(need.group(2), wanted):
                words = (name, version, *need.groups(), name)
                holds.append("%s %s, which is held and needs %s %s (release it: apt-mark unhold %s)" % words)
                break
    return holds


def lock_parts(lock):
    """Return the (name, version) splits of a lock in dnf 4, as NAME-VERSION-RELEASE and NAME-VERSION."""
    ways = [lock.rsplit("-", 2)[:2], lock.rsplit("-", 1)]
    pairs = [(split[0], split[1].rpartition(":")[2]) for split in ways if len(split) == 2]
    return [(name, version) for name, version in pairs if version[:1] in set("*?[0123456789")]


def locks_out(lock, names, wanted):
    """Return whether a lock of dnf 4 keeps a package from the version, or from the whole branch."""
    versions = [
        version
        for name, version in lock_parts(lock.lstrip("!"))
        if any(is_named(package, [name]) for package in names)
    ]
    whole = any(is_named(wanted, [version]) or is_named(wanted + ".0", [version]) for version in versions)
    if lock[:1] == "!":
        return whole
    return bool(versions) and not whole and not any(is_of(version, wanted) for version in versions)


def numbers(version):
    import re

    return [int(part) for part in re.findall("[0-9]+", version)]


def meets(condition, wanted):
    """Return whether the version `wanted`, or a release of that branch, can meet a condition of dnf 5.
    Epochs are not compared, because the driver's never change."""
    key, comparator, value = condition
    if key != "evr":
        return True
    lowest, bound = numbers(wanted), numbers(upstream(value))
    highest = lowest if len(lowest) > 1 else [*lowest, 10**9]
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
    """Return locks that keep one of `names` from the version `wanted`. `output`: rpm's packages.

    Locks of dnf 4 on one package at its installed version come from the roles, which also release them.
    """
    installed = [(name, version) for name, version, _ in rpm_rows(output)]
    locks = []
    for lock in dnf_lines():
        own = any(
            lock.startswith(name + "-") and is_locked([lock], name, version) for name, version in installed
        )
        if not own and locks_out(lock, names, wanted):
            locks.append("%s: %s (release it: dnf versionlock delete '%s')" % (VERSION_LOCKS, lock, lock))
    for pattern, conditions in dnf5_locks():
        locked = any(is_named(name, [pattern]) for name in names)
        if locked and not all(meets(condition, wanted) for condition in conditions):
            words = (pattern, pattern)
            locks.append("/etc/dnf/versionlock.toml: %s (release it: dnf versionlock delete '%s')" % words)
    return locks


def enabled_stream(module):
    """Return the enabled stream of a dnf module; None if none is enabled."""
    lines = (read_text("/etc/dnf/modules.d/" + module + ".module") or "").splitlines()
    values = {line.partition("=")[0].strip(): line.partition("=")[2].strip() for line in lines}
    return values.get("stream") or None if values.get("state") == "enabled" else None


def rpm_overruled(facts, output):
    """Return the excludes and version locks that keep dnf from the driver in each fact's name."""
    names = [name for name in DNF_PACKAGES if name[:4] != "cuda" or name == "cuda-drivers"]
    excludes = excluding_settings()
    return {fact: excludes + overruling_locks(names, item_of(fact), output) for fact in facts}


def packages_probes(names):
    kinds = {kind: [name for name in names if attribute_of(name) == kind] for kind in KINDS}
    asked, sources, overruled = kinds["versions"], kinds["source_problems"], kinds["overruled_by"]
    probes = [single(name, enabled_stream, item_of(name)) for name in kinds["stream"]]
    if sources and has_rpm():
        # Without plugins, because one of them queries a vendor's server and writes its own repository file.
        command = ["dnf", "--cacheonly", "--setopt=plugins=0", "repolist", "--all"]
        probes.append(Probe(sources, command=command, parse=parse_repositories, patience=2))
    elif sources:
        command = ["apt-get", "indextargets", "--format", "$(IDENTIFIER)", "Identifier: Packages"]
        probes.append(Probe(sources, command=command, parse=parse_sources))
    listing = ["rpm", "-qa", "--qf", RPM_FORM]
    if overruled and not has_rpm():
        probes += [single(name, apt_overruled, item_of(name)) for name in overruled]
    elif overruled and dnf_lines():
        probes.append(Probe(overruled, command=listing + list(RELEASED), parse=rpm_overruled))
    elif overruled:
        probes.append(Probe(overruled, read=lambda: rpm_overruled(overruled, "")))
    if asked and has_rpm():
        probes.append(Probe(asked, command=listing, parse=parse_rpm_all))
    elif asked:
        probes.append(Probe(asked, read=lambda: matching(asked, dpkg_versions())))
    return probes


def apt_overruled(wanted):
    return overruling_pins(wanted) + overruling_holds(wanted)


FAMILIES["packages"] = Family(KINDS[:-1], packages_probes, whole=KINDS[-1:])
