#!/usr/bin/python
"""Ansible module that queries, installs, removes and holds packages with apt or dnf."""

DOCUMENTATION = r"""
module: gpuprov_packages
short_description: Install packages in exactly the requested versions and hold them, with apt or dnf
description:
  - Compares the requested versions with the installed ones and, unless they all match, with the versions in
    the package manager's lists. The lists are refreshed once if a version is missing (not in check mode).
  - Fails before any change if a version is not offered.
  - Upgrades or downgrades all differing packages in one transaction. Held packages are released before it
    and held again after it.
  - Uses apt on Debian and Ubuntu, and the dnf command on the RHEL family (whatever Python dnf is built for).
    Versions hidden by modular filtering count as not offered; versions hidden by versionlock as offered.
  - If several versions match, takes the one pinned by the role package_lock, else the newest.
  - In check mode a repository that an earlier task would configure offers nothing yet. If only the
    distribution offers the packages, in other versions, or no repository does, a change is reported.
options:
  packages:
    description:
      - Package names, and mappings of a name to the requested version; or one such mapping.
      - A version without distribution revision (C(580.126.09)) matches any of its revisions. One that ends
        in C(.*) (C(580.*)) matches the branch, one that begins with C(*.) (C(*.70203)) matches any version
        with that ending, and an empty or missing one matches all.
      - Of several names separated by C(|), the first that is installed or offered in that version is used.
    type: raw
    default: []
  state:
    description:
      - V(present) installs and V(absent) removes the packages; V(asked) only fails if V(present) would;
        V(held) only holds or releases them.
      - V(gone) removes all packages whose names match O(packages), here regular expressions, and their
        dependencies that nothing else needs; it fails before any change if a manually installed one would go.
    type: str
    choices: [present, absent, asked, held, gone]
    default: present
  held:
    description:
      - Whether the packages are held afterwards. If unset, packages that were held stay held (V(present)).
      - A hold is C(apt-mark hold), or a line of C(dnf versionlock) that names the installed version. The dnf
        plugin for it is installed if missing. A line with another version of the package is replaced; lines
        with patterns over several packages are left unchanged.
    type: bool
  patterns:
    description: Shell patterns; every installed package whose name matches is held or released as well.
    type: list
    elements: str
    default: []
  version:
    description:
      - Narrows O(patterns) to packages of this version, with or without distribution revision; before a
        transaction, to packages of the version that it replaces.
    type: str
    default: ""
  origin:
    description:
      - Regular expression of the repositories whose versions count. It is matched against the source as
        C(apt-cache madison) prints it (C(http://deb.debian.org/debian trixie/non-free amd64 Packages)), or
        against dnf's repository id.
    type: str
    default: ""
  title:
    description: Name of the packages in error messages.
    type: str
    default: This
  advice:
    description: Advice appended to error messages, for example what to do if a version is not offered.
    type: str
    default: ""
  brings:
    description:
      - Files that the packages contain, with the required mode of each; an empty mode stands for any. If one
        is missing, the packages are reinstalled; one with another mode or owner gets its mode and owner root
        back (V(present)).
    type: dict
    default: {}
  recommended:
    description: Whether recommended packages are installed, too.
    type: bool
    default: false
  replaces:
    description:
      - Shell patterns of packages that contain the same files, such as those of another branch, except for
        O(packages). apt removes them after it has downloaded the others; for dnf see O(erase).
    type: list
    elements: str
    default: []
  erase:
    description: Whether dnf removes conflicting packages in the same transaction.
    type: bool
    default: false
  optional:
    description: Whether packages that are not offered are skipped instead of refused. O(replaces) still go.
    type: bool
    default: false
  untouched:
    description: Shell patterns of packages that must not change; if they would, the task fails beforehand.
    type: list
    elements: str
    default: []
  purge:
    description:
      - Whether apt also purges configuration files, including those that an earlier removal left behind.
    type: bool
    default: false
  autoremove:
    description: Whether dnf also removes dependencies of the packages that nothing else needs (V(absent)).
    type: bool
    default: false
  keep:
    description: Packages that are needed for other purposes and stay (V(gone)).
    type: list
    elements: str
    default: []
  units:
    description: Units to stop and disable, if they exist, before the packages are removed (V(gone)).
    type: list
    elements: str
    default: []
  refresh:
    description:
      - Whether the lists are refreshed before anything else (not in check mode), which counts as a change. A
        failed download of a list is then an error.
    type: bool
    default: false
  lock_timeout:
    description: Seconds to wait while another program holds the package manager's lock.
    type: int
    default: 600
author:
  - The gpuprov authors (@gpuprov)
"""

EXAMPLES = r"""
- name: Install one version of the driver and hold it
  gpuprov_packages:
    packages: {nvidia-driver-cuda: "580.126.09"}
    patterns: ["libnvidia-*"]
    version: "580.126.09"
    held: true
    title: Driver 580.126.09
"""

RETURN = r"""
satisfied:
  description: Whether every package was installed, whole, in its requested version (V(present), V(asked)).
  returned: success
  type: bool
installed:
  description: The full version of each package that was already installed (V(present), V(asked)).
  returned: success
  type: dict
versions:
  description: The full version selected for each package, installed or offered (V(present), V(asked)).
  returned: success
  type: dict
missing:
  description: One sentence for each package whose requested version is not offered (V(present), V(asked)).
  returned: success
  type: list
known:
  description:
    - Whether a repository other than the distribution's, or one that matches O(origin), offers any version
      of any of the packages (V(present), V(asked)).
  returned: success
  type: bool
moved:
  description: Whether packages were installed or removed (or would be, in check mode).
  returned: success
  type: bool
restored:
  description: Files of O(brings) that were missing, or had another mode or owner.
  returned: success
  type: list
removed:
  description: Packages that dnf removed, with version (C(name-version-release.arch)).
  returned: success
  type: list
gone:
  description: Names of the matching packages that were removed (or would be, in check mode; V(gone)).
  returned: success
  type: list
marked:
  description: Packages that were held or released (or would be, in check mode).
  returned: success
  type: list
"""

import fnmatch  # noqa: E402
import functools  # noqa: E402
import glob  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402
import time  # noqa: E402

from ansible.module_utils.basic import AnsibleModule  # noqa: E402

# apt applies pins only when it selects a version itself; this module names versions, so it reads the pins.
LOCKS = ("/etc/apt/preferences.d/gpuprov-lock", "/etc/dnf/gpuprov-lock.list")
DPKG = "${Package} ${Architecture} ${db:Status-Want} ${db:Status-Status} ${Version}\n"
# In the output of apt-cache policy (apt 2.6): a distribution archive, as "URL suite/component".
DISTRIBUTION = re.compile(
    r"^ *-?\d+ (\S+ \S+) .*Packages\n +release .*\bo=(?:Debian|Ubuntu)(?:,|$)", re.MULTILINE
)
RPM = "%{NAME}|%{EPOCH}|%{VERSION}|%{RELEASE}|%{ARCH}\n"
DNF = ("dnf", "--quiet", "--setopt=exit_on_lock=True")
DNF_LOCKED = 200  # its exit status when another program holds the lock
DNF_ABORTED = "Operation aborted"  # printed with --assumeno if there is something to do
# Failed to download metadata for repo 'a': … (dnf 5: (baseurl: "…") for repository "a": …)
# Cache-only enabled but no cache for 'a' (dnf 5: for repository "a")
DNF_UNAVAILABLE = (
    r"""(?:Failed to download metadata .{0,300}?for repo\w*|but no cache for(?: repository)?) ['"]([^'"]+)"""
)
VERSIONLOCK = "python3-dnf-plugin-versionlock"
VERSIONLOCK_SETTINGS = "/etc/dnf/plugins/versionlock.conf"
VERSIONLOCK_LIST = "/etc/dnf/plugins/versionlock.list"
LANGUAGE = {"LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive", "APT_LISTCHANGES_FRONTEND": "none"}


def family():
    """Return `redhat` or `debian` from os-release, since a machine may have both package managers."""
    settings = {}
    with open("/etc/os-release", encoding="utf-8") as text:
        for line in text:
            key, _, value = line.strip().partition("=")
            settings[key] = value.strip("\"'")
    kin = [settings.get("ID"), *settings.get("ID_LIKE", "").split()]
    return "redhat" if {"rhel", "fedora", "centos"} & set(kin) else "debian"


def upstream(version):
    """Strip epoch and distribution revision from a version: 1:580.126.09-1 → 580.126.09."""
    return version.split(":", 1)[-1].rsplit("-", 1)[0]


def choose(offered, wanted):
    """Return the first of `offered` that matches `wanted` (or any, if that is empty), or None.
    A version matches any of its revisions, 580.* all of the branch, *.70203 all with that ending."""
    for version in offered:
        if not wanted or wanted in (version, upstream(version)):
            return version
        if wanted.endswith(".*") and (upstream(version) + ".").startswith(wanted[:-1]):
            return version
        if wanted.startswith("*.") and upstream(version).endswith(wanted[1:]):
            return version
    return None


def read(path):
    """Return the text of a file; empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as text:
            return text.read()
    except (IOError, OSError):
        return ""


def matches(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


class Manager:
    """Base class of both package managers, with the command runner that waits for their locks."""

    removed = ()

    known = False  # whether a repository with the packages is configured, as far as observed

    def __init__(self, module):
        self.module = module
        self.options = module.params

    @property
    def named(self):
        """Return all package names of the task."""
        keys = versions_of(self.module, self.options["packages"])
        return {name for key in keys for name in key.split("|")}

    def run(self, *command):
        """Run a program once its lock is free, and return its exit status, output and errors."""
        deadline = time.time() + self.options["lock_timeout"]
        while True:
            code, out, error = self.module.run_command(list(command), environ_update=LANGUAGE)
            if code == 0 or not self.waits(code, error):
                return code, out, error
            if time.time() > deadline:
                message = "another program has held its lock for {0} s".format(self.options["lock_timeout"])
                self.fail(command, code, out, ": ".join([message, *error.split("\n")[:1]]).strip(": "))
            time.sleep(3)

    def must(self, *command):
        """Run a program and return its output; fail the task if the program fails."""
        code, out, error = self.run(*command)
        if code:
            self.fail(command, code, out, error)
        return out

    def fail(self, command, code, out, error):
        words = [word for word in command if not word.startswith("-") and "=" not in word][:2]
        why = error.strip() or out.strip() or "no word why"
        self.module.fail_json(
            msg="{0} failed ({1}): {2}".format(" ".join(words), code, why), rc=code, stdout=out, stderr=error
        )


class Apt(Manager):
    hidden = staticmethod(lambda _name: "")  # pins hide no version from apt-cache madison

    def fail(self, command, code, out, error):
        """Add to apt's error the files of a rejected source (apt prints only its URL) and held packages."""
        url = re.search(r" regarding source (\S+?)/? ", error)
        files = (
            sorted(glob.glob("/etc/apt/sources.list") + glob.glob("/etc/apt/sources.list.d/*")) if url else []
        )
        named = ", ".join(path for path in files if url.group(1) in read(path))
        head = "E: Sources that disagree are in: {0}\n".format(named) if named else ""
        unmet = re.search("(?:unmet|Unsatisfied) dependencies:", out + error)
        held = self.in_the_way(out + error) if unmet else []
        super(Apt, self).fail(command, code, out, head + kept(held, "apt-mark unhold") + error)

    def in_the_way(self, text):
        """Return the held packages in a dependency error, except the task's own, which apt moves anyway."""
        words = set(re.findall(r"[a-z0-9][a-z0-9+.-]+", text))
        return sorted(
            name
            for name, (held, _version) in self.status().items()
            if held and name in words and name not in self.named
        )

    def waits(self, _code, error):
        # Errors of apt-get, and of the dpkg that apt-mark starts, which names the other program since 1.22.
        return "Could not get lock" in error or " lock was locked by " in error

    def status(self):
        """Return {package: (held, version)}. A package of two architectures is held only if both are."""
        packages = {}
        for line in self.must("dpkg-query", "-W", "-f", DPKG).splitlines():
            fields = line.split()
            gone = ("not-installed",) if self.options["purge"] else ("not-installed", "config-files")
            if len(fields) == 5 and fields[3] not in gone:
                held = fields[2] == "hold" and packages.get(fields[0], (True, ""))[0]
                packages[fields[0]] = (held, fields[4])
        return packages

    def installed(self, packages):
        """Return {package: version} of the installed and configured packages."""
        # The exit status reports that some package is unknown, which is a valid result.
        form = "${Package} ${db:Status-Status} ${Version}\n"
        _code, out, _error = self.run("dpkg-query", "-W", "-f", form, *sorted(packages))
        lines = [line.split() for line in out.splitlines()]
        return {fields[0]: fields[2] for fields in lines if len(fields) == 3 and fields[1] == "installed"}

    def look_up(self, packages):
        """Return {package: [version, newest first]} offered by the requested origin."""
        offered, origin = {}, self.options["origin"]
        compared = self.module.check_mode and not origin  # nothing else needs `known`
        distribution = tuple(DISTRIBUTION.findall(self.must("apt-cache", "policy"))) if compared else ()
        for line in self.must("apt-cache", "madison", *sorted(packages)).splitlines():
            fields = [field.strip() for field in line.split("|")]
            if len(fields) == 3 and fields[2].endswith("Packages") and re.search(origin, fields[2]):
                versions = offered.setdefault(fields[0], [])
                if fields[1] not in versions:
                    versions.append(fields[1])
                self.known = self.known or not fields[2].startswith(distribution)
        return {name: versions for name, versions in offered.items() if versions}

    def refresh(self, *, strict=False):
        """Update the lists; with `strict`, a failed download is an error instead of a warning."""
        strictly = ["-o", "APT::Update::Error-Mode=any", "-o", "Acquire::Retries=3"] if strict else []
        self.must("apt-get", "-q", *strictly, "update")

    def spec(self, name, version):
        return "{0}={1}".format(name, version)

    def command(self, *words):
        # The same options as in Ansible's apt module, which keep the machine's configuration files.
        settings = ["Dpkg::Options::=--force-confdef", "Dpkg::Options::=--force-confold"]
        settings.append("DPkg::Lock::Timeout={0}".format(self.options["lock_timeout"]))
        options = [word for setting in settings for word in ("-o", setting)]
        return ["apt-get", "-q", "-y", *options, "--allow-change-held-packages", *words]

    def installing(self, specs):
        words = ["--allow-downgrades"] + ([] if self.options["recommended"] else ["--no-install-recommends"])
        return self.command(*words, "install", *specs)

    def install(self, specs):
        command = self.installing(specs)
        if self.module.check_mode or self.options["untouched"]:
            trial = self.must(command[0], "--simulate", *command[1:])
            moves = [line.split() for line in trial.splitlines() if re.match("(Inst|Remv) ", line)]
            touched = sorted({words[1] for words in moves if matches(words[1], self.options["untouched"])})
            if touched:
                message = "{0} cannot be installed: that would also change {1}, which has another owner. {2}"
                title, advice = self.options["title"], self.options["advice"]
                self.module.fail_json(msg=message.format(title, ", ".join(touched), advice).strip())
        if not self.module.check_mode:
            self.must(*command)
        return True

    def install_again(self, names):
        self.must(*self.command("--reinstall", "install", *names))

    def remove(self, names):
        if not self.module.check_mode:
            self.must(*self.command(*(["--purge"] if self.options["purge"] else []), "remove", *names))
        return True

    def brought(self, names):
        """Return the packages that would go along, the subset to name explicitly, and the manual packages."""
        # apt removes everything that depends on a package, and autoremove also unrelated packages (`anyway`).
        # A suggestion by another package must not keep a package.
        trial = ("apt-get", "--simulate", "-o", "APT::AutoRemove::SuggestsImportant=0")
        purge = self.must(*trial, "-o", "APT::Ignore-Hold=1", "--auto-remove", "purge", *names)
        going = set(re.findall("(?m)^(?:Remv|Purg) ([^ :]+)", purge))
        anyway = set(re.findall("(?m)^Remv ([^ :]+)", self.must(*trial, "autoremove")))
        return going, going - anyway, self.must("apt-mark", "showmanual").split()

    def make_room(self, others, specs):
        """Download the new packages, then remove others that share files but declare no conflict."""
        if specs and not self.module.check_mode:
            command = self.installing(specs)
            self.must(command[0], "--download-only", *command[1:])
        return self.remove(others)

    def forget(self, names):
        """Do nothing, because dpkg drops the hold of a package that it removes."""

    def let_go_before(self, names, named):
        """Return the held packages to release; apt moves a held package if it is named."""
        return [name for name in names if name not in named]

    def mark(self, held, names):
        self.must("apt-mark", "hold" if held else "unhold", *names)


class Dnf(Manager):
    def __init__(self, module):
        super(Dnf, self).__init__(module)
        self.architecture = {}
        self.removed = []
        self.locks = []
        self.versions = {}
        self.silent = None

    def waits(self, code, _error):
        return code == DNF_LOCKED

    def fail(self, command, code, out, error):
        """Add locks on the task's packages to the error, because dnf reports locked packages as missing."""
        hidden = "Unable to find a match" in error
        locks = [lock for lock in read_locks() if is_lock_on(lock, self.named)] if hidden else []
        words = [repr(str(lock)) for lock in locks]
        super(Dnf, self).fail(command, code, out, kept(words, "dnf versionlock delete") + error)

    def status(self):
        """Return {package: (held, version)}. Of several installed versions (kernels), all must be held."""
        self.locks = read_locks()
        self.versions = {}
        packages = {}
        for line in self.must("rpm", "-qa", "--qf", RPM).splitlines():
            fields = line.split("|")
            if len(fields) != 5 or fields[0] == "gpg-pubkey":
                continue
            name, epoch = fields[0], "0" if fields[1] == "(none)" else fields[1]
            version = "{0}:{1}-{2}".format(epoch, fields[2], fields[3])
            self.versions.setdefault(name, []).append(version)
            held = is_locked(self.locks, name, version) and packages.get(name, (True, ""))[0]
            packages[name] = (held, version[2:] if version.startswith("0:") else version)
        return packages

    def installed(self, packages):
        """Return {package: version}, the newest one if several are installed (kernels)."""
        # The exit status counts the packages that are not installed, which is a valid result.
        _code, out, _error = self.run("rpm", "-q", "--qf", RPM, *sorted(packages))
        return {name: versions[0] for name, versions in self.parse(out).items()}

    def look_up(self, packages):
        """Return {package: [version, newest first]}, including versions hidden by a versionlock."""
        form = "%{name}|%{epoch}|%{version}|%{release}|%{arch}|%{repoid}\n"
        words = ["--disableplugin=versionlock", *(["--cacheonly"] if self.module.check_mode else [])]
        command = [*DNF, "--assumeyes", *words, "repoquery", "--available", "--qf", form, *sorted(packages)]
        code, out, error = self.run(*command)
        # In check mode there may be no lists yet, so that no repository is known to offer anything.
        if code and not self.module.check_mode:
            self.fail(command, code, out, error)
        offered = self.parse(out)
        self.known = self.known or bool(offered)
        return offered

    def hidden(self, name):
        """Return the end of an error message, about settings that hide a package from dnf."""
        message = ""
        for key, _, value in [line.partition("=") for line in read("/etc/dnf/dnf.conf").splitlines()]:
            excludes = key.strip() in ("exclude", "excludepkgs")
            if excludes and matches(name, value.replace(",", " ").split()):
                message += " /etc/dnf/dnf.conf hides it: {0}={1}.".format(key.strip(), value.strip())
        return message + self.passed_over()

    def passed_over(self):
        """Return a sentence about a repository that dnf skips silently because of skip_if_unavailable."""
        if self.silent is None:
            words = [
                "--setopt=*.skip_if_unavailable=False",
                *(["--cacheonly"] if self.module.check_mode else []),
            ]
            code, _out, error = self.run(*DNF, "--assumeyes", *words, "repoquery", "--available", "gpuprov")
            named = re.search(DNF_UNAVAILABLE, error) if code else None
            message = " dnf has no list of the repository {0}, and passes over it (skip_if_unavailable)."
            self.silent = message.format(named.group(1)) if named else ""
        return self.silent

    def parse(self, text):
        """Parse lines of name|epoch|version|release|arch[|repository] into {package: [version, …]}."""
        packages = {}
        for line in text.splitlines():
            fields = line.strip().split("|")
            if len(fields) not in (5, 6) or fields[4] not in ("noarch", os.uname().machine):
                continue
            if len(fields) == 6 and not re.search(self.options["origin"], fields[5]):
                continue
            epoch = "" if fields[1] in ("0", "(none)") else fields[1] + ":"
            version = "{0}{1}-{2}".format(epoch, fields[2], fields[3])
            versions = packages.setdefault(fields[0], [])
            if version not in versions:
                versions.append(version)
            self.architecture[fields[0], version] = fields[4]
        for versions in packages.values():
            versions.sort(key=functools.cmp_to_key(compare), reverse=True)
        return packages

    def refresh(self, *, strict=False):  # noqa: ARG002 (dnf always is strict)
        self.must(*DNF, "--assumeyes", "--refresh", "makecache")

    def spec(self, name, version):
        return "{0}-{1}.{2}".format(name, version, self.architecture[name, version])

    def change(self, *words):
        """Run a transaction; return whether it changed (or in check mode would change) anything."""
        if self.module.check_mode:  # use only the cached lists and decline the transaction
            command = [*DNF, "--assumeno", "--cacheonly", *words]
            code, out, error = self.run(*command)
            if code and DNF_ABORTED not in error + out:
                self.fail(command, code, out, error)
            return code != 0
        before = set(self.must("rpm", "-qa").split())
        self.must(*DNF, "--assumeyes", *words)
        after = set(self.must("rpm", "-qa").split())
        self.removed = sorted(before - after)
        return before != after

    def install(self, specs):
        words = [] if self.options["recommended"] else ["--setopt=install_weak_deps=False"]
        words += ["--exclude=" + pattern for pattern in self.options["untouched"]]
        # dnf 5 accepts this option only after the command.
        return self.change(*words, "install", *(["--allowerasing"] if self.options["erase"] else []), *specs)

    def install_again(self, names):
        self.must(*DNF, "--assumeyes", "reinstall", *names)

    def remove(self, names):
        return self.change("remove", *([] if self.options["autoremove"] else ["--noautoremove"]), *names)

    def brought(self, names):
        """Return the packages that need these, an empty set, and the user-installed packages."""
        _code, _out, error = self.run("rpm", "--erase", "--test", *names)
        needing = set(re.findall("(?m)is needed by [(]installed[)] (.+)-[^-]+-[^-]+$", error))
        query = ("repoquery", "--userinstalled", "--queryformat", "%{name}\n")
        return needing, set(), self.run("dnf", "--quiet", "--cacheonly", *query)[1].split()

    def make_room(self, _others, _specs):
        return False

    def forget(self, names):
        """Remove the locks of removed packages, which would keep dnf from installing other versions."""
        self.locks = [lock for lock in read_locks() if lock[0] != "!"]
        self.mark(False, {*names, *(re.sub("-[^-]+-[^-]+$", "", spec) for spec in self.removed)})

    def let_go_before(self, names, _named):
        """Return all held packages, because a lock also blocks explicitly named packages."""
        return names

    def mark(self, held, names):
        """Lock `names` at their installed versions, or remove all their locks."""
        if held and not os.path.exists(VERSIONLOCK_SETTINGS):
            self.must(*DNF, "--assumeyes", "install", VERSIONLOCK)
        # Neither command needs a repository, and a repository may be unreachable.
        command = [*DNF, "--assumeyes", "--disablerepo=*", "versionlock"]
        wanted = [
            "{0}-{1}.*".format(name, version) for name in names for version in self.versions.get(name, [])
        ]
        old = [lock for lock in self.locks if any(is_lock_of(lock, name) for name in names)]
        stale = [lock for lock in old if not held or lock not in wanted]
        if stale:
            self.must(*command, "delete", *stale)
        missing = [lock for lock in wanted if lock not in self.locks]
        if held and missing:
            self.must(*command, "add", "--raw", *missing)


def compare(one, other):
    """Compare two versions as rpm does, epoch first; the result is below, at or above zero."""
    order = 0
    for number in range(3):
        order = order or compare_text(parts(one)[number], parts(other)[number])
    return order


def parts(version):
    epoch, colon, rest = version.partition(":")
    return (epoch, *rest.rsplit("-", 1)) if colon else ("0", *version.rsplit("-", 1))


def compare_text(one, other):
    """Compare as rpmvercmp does: numbers by value, above letters; ~ below the end of text, ^ just above."""
    pattern = "[0-9]+|[a-zA-Z]+|[~^]"
    left, right = re.findall(pattern, one), re.findall(pattern, other)
    for number in range(max(len(left), len(right))):
        pair = [words[number] if number < len(words) else "" for words in (left, right)]
        ranks = [(rank(word), int(word) if word.isdigit() else word) for word in pair]
        if ranks[0] != ranks[1]:
            return -1 if ranks[0] < ranks[1] else 1
    return 0


def rank(word):
    if word.isdigit():
        return 4
    return {"~": 0, "": 1, "^": 2}.get(word, 3)


def read_locks():
    """Return the lines of versionlock's list, without comments and empty lines."""
    try:
        with open(VERSIONLOCK_LIST, encoding="utf-8") as text:
            lines = [line.partition("#")[0].strip() for line in text]
    except FileNotFoundError:
        return []
    return [line for line in lines if line]


def is_lock_on(lock, names):
    """Return whether a lock (NAME-VERSION, !NAME-VERSION) covers one of the packages, by name or pattern."""
    ends = [match.start() for match in re.finditer(r"-(?=[\d*?\[])", lock)]
    return any(matches(name, [lock[:end].lstrip("!") for end in ends]) for name in names)


def kept(names, command):
    """Return the error line about held or locked packages; empty without any."""
    listed = " ".join(names)
    return "E: Somebody keeps back: {0}. Release: {1} {0}\n".format(listed, command) if names else ""


def is_lock_of(lock, name):
    """Return whether a lock names only this package and is not a pattern over several."""
    rest = r"-(\d+:)?\d[^-]*(-[^-]*)?$"  # cuda-toolkit-13-0-0:13.0.2-1 does not lock cuda-toolkit
    return re.match(r"!?(\d+:)?{0}{1}".format(re.escape(name), rest), lock) is not None


def is_locked(locks, name, version):
    """Return whether a lock keeps the package at exactly this version (0:580.126.09-1.el9)."""
    ends = ("", ".noarch", "." + os.uname().machine)
    epoch, _, rest = version.partition(":")
    base, _, release = rest.rpartition("-")

    def found(lock, base):
        forms = ["{0}-{1}:{2}-{3}", "{0}-{2}-{3}", "{1}:{0}-{2}-{3}"]
        texts = [form.format(name, epoch, base, release) for form in forms]
        return any(fnmatch.fnmatchcase(text + end, lock) for text in texts for end in ends)

    return any(found(lock, base) and not found(lock, base + ".999") for lock in locks if lock[0] != "!")


def pinned(root=""):
    """Return {package: version} pinned by the role package_lock on this machine."""
    pins = {}
    name = ""
    for path in LOCKS:
        try:
            with open(root + path, encoding="utf-8") as text:
                lines = [line.split() for line in text if not line.startswith("#")]
        except (IOError, OSError):
            continue
        for words in lines:
            if words[:1] == ["Package:"] and len(words) == 2:
                name = words[1]
            elif words[:2] == ["Pin:", "version"] and len(words) == 3:
                pins[name] = words[2]
            elif len(words) == 2 and not words[0].endswith(":"):
                pins[words[0]] = words[1]
    return pins


def pinned_first(offered, pins):
    """Sort the offered versions of each package so that the pinned one comes first."""
    return {
        name: sorted(versions, key=lambda version, name=name: version != pins.get(name))
        for name, versions in offered.items()
    }


def sentence(names, wanted, offered):
    name = ([name for name in names if name in offered] + list(names))[0]
    if name not in offered:
        return "No repository offers the package {0}.".format(" or ".join(names))
    return "{0} {1} is not offered; offered are: {2}.".format(name, wanted, ", ".join(offered[name]))


def ask(manager, wanted, check_mode):
    """Look up [((name, other name, ...), version)] and return the values described in RETURN."""
    there = manager.installed({name for names, _ in wanted for name in names}) if wanted else {}
    chosen, offered = {}, {}
    right = {name: [version] for name, version in there.items()}
    absent = take([((names[0],), version) for names, version in wanted], right, chosen)
    absent = [(names, version) for names, version in wanted if ((names[0],), version) in absent]
    for again in (False, True) if absent else ():
        if again:
            manager.refresh()
        offered = pinned_first(manager.look_up({name for names, _ in absent for name in names}), pinned())
        both = {name: right.get(name, []) + offered.get(name, []) for name in set(right) | set(offered)}
        absent = take(absent, both, chosen)
        if check_mode or not absent:
            break
    return {
        "satisfied": not absent and all(there.get(name) == version for name, version in chosen.items()),
        "installed": there,
        "versions": chosen,
        "missing": sorted(
            sentence(names, version, offered) + "".join(manager.hidden(name) for name in names)
            for names, version in absent
        ),
        "known": manager.known,
    }


def take(wanted, offered, chosen):
    """Add the versions of {name: [version]} that match `wanted` to `chosen`. Returns the unmatched ones."""
    absent = []
    for names, version in wanted:
        candidates = [(name, choose(offered.get(name, ()), version)) for name in names]
        candidates = [pair for pair in candidates if pair[1]]
        chosen.update(candidates[:1])
        absent.extend([] if candidates else [(names, version)])
    return absent


def select(status, packages, patterns, versions):
    """Return installed packages that are named, or match a pattern and one of `versions` (none: any)."""
    chosen = {name for name in packages if name in status}
    for name, (_held, installed) in status.items():
        if (not versions or {installed, upstream(installed)} & set(versions)) and matches(name, patterns):
            chosen.add(name)
    return chosen


def refuse(module, answer):
    """Fail if a version is not offered, unless check mode knows no repository that could offer it."""
    if answer["missing"] and (answer["known"] or not module.check_mode):
        title, advice = module.params["title"], module.params["advice"]
        message = "{0} cannot be installed: {1} {2}".format(title, " ".join(answer["missing"]), advice)
        module.fail_json(msg=message.strip(), **answer)


def install(module, manager, answer):
    """Move the packages to the versions in `answer`. Returns (moved, names that were held before)."""
    options, versions = module.params, answer["versions"]
    if answer["missing"] and not options["optional"]:
        refuse(module, answer)
        return True, []
    status = manager.status() if options["replaces"] or not answer["satisfied"] else {}
    specs = [manager.spec(name, version) for name, version in sorted(versions.items())]
    others = sorted(select(status, (), options["replaces"], ()) - set(versions))
    removed = manager.make_room(others, specs) if others else False
    if answer["satisfied"] or not specs:
        return removed, []
    replaced = {upstream(version) for version in answer["installed"].values()} if options["version"] else ()
    chosen = select(status, versions, options["patterns"] if answer["installed"] else (), replaced)
    held = sorted(name for name in chosen if status[name][0])
    loose = manager.let_go_before(held, versions)
    if loose and not module.check_mode:
        manager.mark(False, loose)
    return manager.install(specs), held


def remove(module, manager, packages):
    status = manager.status()
    there = sorted(set(packages) & set(status))
    if not there:
        return False
    loose = manager.let_go_before([name for name in there if status[name][0]], there)
    if loose and not module.check_mode:
        manager.mark(False, loose)
    return manager.remove(there)


def take_away(module, manager, patterns):
    """Remove matching packages and those that go along (`brought`). Returns (changed, names that matched)."""
    there = manager.status()
    names = [name for name in there if any(re.match("(?:{0})$".format(each), name) for each in patterns)]
    names = sorted(set(names) - set(module.params["keep"]))
    going, along, manual = manager.brought(names) if names else (set(), set(), [])
    losing = sorted((going - set(names)) & {*manual, *module.params["keep"]})
    if losing:
        text = "Removing {0} would also remove {1}, which did not come with it and cannot be without it. {2}"
        title, advice = module.params["title"], module.params["advice"]
        module.fail_json(msg=text.format(title, ", ".join(losing), advice).strip())
    stopped = stop(module, module.params["units"])
    if names:
        loose = manager.let_go_before([name for name in names if there[name][0]], names)
        if not module.check_mode and loose:
            manager.mark(False, loose)
        manager.remove(sorted(along | set(names)))
        if not module.check_mode:
            manager.forget(names)
    return bool(names) or stopped, names


def stop(module, units):
    """Stop and disable the units that exist. Returns whether any exists."""
    command = ["systemctl", "list-unit-files", "--plain", "--no-legend", *units]
    lines = module.run_command(command)[1].splitlines() if units else []
    existing = [line.split()[0] for line in lines if line.strip()]
    if existing and not module.check_mode:
        # systemd cannot stop a unit that it cannot read; the packages are removed anyway.
        module.run_command(["systemctl", "disable", "--now", *existing])
    return bool(existing)


def hold_again(manager, names):
    """Renew holds lost in a transaction (apt drops them, dnf's name a version). Returns the names."""
    status = manager.status()
    lost = sorted(name for name in names if name in status and not status[name][0])
    if lost:
        manager.mark(True, lost)
    return lost


def complete(module, manager, names, brings):
    """Restore the files of the packages and their modes. Returns the corrected paths."""
    missing = [path for path in brings if not os.path.exists(path)]
    if missing and not module.check_mode:
        manager.install_again(names)
    wrong = [
        path for path, mode in brings.items() if mode and os.path.exists(path) and give(module, path, mode)
    ]
    return sorted(set(missing + wrong))


def give(module, path, mode):
    """Set owner root and the mode of a file. Returns whether anything changed."""
    changed = module.set_mode_if_different(path, mode, False)
    changed = module.set_owner_if_different(path, "root", changed)
    return module.set_group_if_different(path, "root", changed)


def hold(module, manager, names, held, missing_is_wrong):
    """Hold or release the packages. Returns the packages that changed."""
    status = manager.status()
    absent = sorted(set(names) - set(status))
    if absent and held and missing_is_wrong:
        module.fail_json(msg="Not installed, so they cannot be held: {0}.".format(", ".join(absent)))
    versions = [module.params["version"]] if module.params["version"] else ()
    chosen = select(status, names, module.params["patterns"], versions)
    # In check mode, an absent package would have been installed by now and would be held.
    marked = sorted([name for name in chosen if status[name][0] != held] + (absent if held else []))
    if marked and not module.check_mode:
        manager.mark(held, marked)
    return marked


def versions_of(module, packages):
    """Merge names and mappings into {name: requested version}; later items override earlier ones."""
    versions = {}
    for item in packages if isinstance(packages, list) else [packages]:
        if item == "" or not isinstance(item, (str, dict)):
            message = "packages: {0!r} is neither a package's name nor a mapping of names to versions"
            module.fail_json(msg=message.format(item))
        versions.update(item if isinstance(item, dict) else {item: ""})
    return versions


def main():
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "raw", "default": []},
            "state": {
                "type": "str",
                "choices": ["present", "absent", "asked", "held", "gone"],
                "default": "present",
            },
            "held": {"type": "bool"},
            "patterns": {"type": "list", "elements": "str", "default": []},
            "version": {"type": "str", "default": ""},
            "origin": {"type": "str", "default": ""},
            "title": {"type": "str", "default": "This"},
            "advice": {"type": "str", "default": ""},
            "brings": {"type": "dict", "default": {}},
            "recommended": {"type": "bool", "default": False},
            "replaces": {"type": "list", "elements": "str", "default": []},
            "erase": {"type": "bool", "default": False},
            "optional": {"type": "bool", "default": False},
            "untouched": {"type": "list", "elements": "str", "default": []},
            "purge": {"type": "bool", "default": False},
            "autoremove": {"type": "bool", "default": False},
            "keep": {"type": "list", "elements": "str", "default": []},
            "units": {"type": "list", "elements": "str", "default": []},
            "refresh": {"type": "bool", "default": False},
            "lock_timeout": {"type": "int", "default": 600},
        },
        supports_check_mode=True,
    )
    options, state = module.params, module.params["state"]
    manager = Dnf(module) if family() == "redhat" else Apt(module)
    versions = versions_of(module, options["packages"])
    requested = [(tuple(key.split("|")), str(version or "")) for key, version in versions.items()]
    if options["refresh"] and not module.check_mode:
        manager.refresh(strict=True)
    answer = ask(manager, requested, module.check_mode) if state in ("present", "asked") else {}
    moved, restored, marked, gone = False, [], [], []
    if state == "asked":
        refuse(module, answer)
    if state == "present":
        moved, before = install(module, manager, answer)
        if not moved:
            restored = complete(module, manager, sorted(answer["versions"]), options["brings"])
        if options["held"] is None and before and not module.check_mode:
            marked = hold_again(manager, before)
    elif state == "absent":
        moved = remove(module, manager, [name for names, _ in requested for name in names])
    elif state == "gone":
        moved, gone = take_away(module, manager, versions)
    if options["held"] is not None and state in ("present", "held"):
        right = answer.get("versions", {})
        names = sorted(([name for name in names if name in right] + list(names))[0] for names, _ in requested)
        marked = hold(module, manager, names, options["held"], not module.check_mode)
    module.exit_json(
        changed=bool(moved or restored or marked or options["refresh"]),
        moved=moved,
        restored=restored,
        marked=marked,
        removed=manager.removed,
        gone=gone,
        **answer,
    )


if __name__ == "__main__":
    main()
