#!/usr/bin/python
"""Says which package versions are installed, which the repositories offer, and what is missing."""

DOCUMENTATION = r"""
module: gpuprov_offered
short_description: Ask which package versions are installed, and which the repositories offer
description:
  - Compares the wanted versions of packages with what is installed and, unless that is all that is wanted,
    with what the package manager's own lists offer.
  - Changes nothing but those lists, which it refreshes once when something is missing (not in check mode).
  - Asks apt on Debian and Ubuntu, dnf (its command, whatever Python it is made for) on the RHEL family. What
    modular filtering hides is not offered; what versionlock hides is.
  - Of several versions that would do, the one that the role package_lock has pinned, else the newest.
options:
  packages:
    description:
      - Package name to wanted version. A version without distribution revision (C(580.126.09)) matches any
        revision of it; one that ends in C(.*) (C(580.*)) any that begins so; an empty one matches all.
    type: dict
    required: true
  origin:
    description:
      - Only versions from repositories that this regular expression finds in count, in the words of
        C(apt-cache madison) (C(http://deb.debian.org/debian trixie/non-free amd64 Packages)), or by dnf's
        repository id.
    type: str
    default: ""
  lock_timeout:
    description: Seconds to wait while another program refreshes the package lists.
    type: int
    default: 300
author: gpuprov
"""

EXAMPLES = r"""
- name: Ask which drivers are offered
  gpuprov_offered:
    packages: {nvidia-driver-cuda: "580.126.09"}
  register: offered
"""

RETURN = r"""
satisfied:
  description: Whether every package is installed, whole, in its wanted version.
  returned: always
  type: bool
installed:
  description: The full version of each package that is installed.
  returned: always
  type: dict
versions:
  description: For each package the full version to install; the installed one when it is the wanted one.
  returned: always
  type: dict
specs:
  description: The same in the package manager's words (C(name=version); C(name-epoch:version-release.arch)).
  returned: always
  type: list
missing:
  description: One sentence for each package whose wanted version is not offered.
  returned: always
  type: list
known:
  description: Whether any version of any of the packages is offered or installed.
  returned: always
  type: bool
"""

import functools  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402
import time  # noqa: E402

from ansible.module_utils.basic import AnsibleModule  # noqa: E402

DNF = ("dnf", "--quiet", "--assumeyes", "--setopt=exit_on_lock=True")
# apt's pins are for what apt chooses itself; who names a version, as we do, has to look.
LOCKS = ("/etc/apt/preferences.d/gpuprov-lock", "/etc/dnf/gpuprov-lock.list")
DNF_LOCKED = 200  # its exit status when another program has the lock


def family():
    """`redhat` or `debian`: a machine may have the other's package manager, too."""
    found = {}
    with open("/etc/os-release", encoding="utf-8") as text:
        for line in text:
            key, _, value = line.strip().partition("=")
            found[key] = value.strip("\"'")
    kin = [found.get("ID"), *found.get("ID_LIKE", "").split()]
    return "redhat" if {"rhel", "fedora", "centos"} & set(kin) else "debian"


def upstream(version):
    """A version without epoch and distribution revision: 1:580.126.09-1 → 580.126.09."""
    return version.split(":", 1)[-1].rsplit("-", 1)[0]


def choose(offered, wanted):
    """The first of `offered` that is `wanted` (any revision; 580.*: of the branch; empty: any), or None."""
    for version in offered:
        if not wanted or wanted in (version, upstream(version)):
            return version
        if wanted.endswith(".*") and upstream(version).startswith(wanted[:-1]):
            return version
    return None


class Manager:
    """What both package managers are asked, and how one waits for them."""

    def __init__(self, module):
        self.module = module

    def run(self, *command):
        return self.module.run_command(list(command), environ_update={"LC_ALL": "C"})

    def patiently(self, locked, *command):
        """Run a program again until `locked` does not find it waiting for another; its last answer."""
        deadline = time.time() + self.module.params["lock_timeout"]
        while True:
            code, out, error = self.run(*command)
            if code == 0 or not locked(code, error) or time.time() > deadline:
                return code, out, error
            time.sleep(3)


class Apt(Manager):
    def installed(self, packages):
        """{package: version} of what is installed and configured."""
        # Its exit status says that one of them is unknown, which is an answer.
        form = "${Package} ${db:Status-Status} ${Version}\n"
        _code, out, _error = self.run("dpkg-query", "-W", "-f", form, *sorted(packages))
        lines = [line.split() for line in out.splitlines()]
        return {fields[0]: fields[2] for fields in lines if len(fields) == 3 and fields[1] == "installed"}

    def look_up(self, packages):
        """{package: [version, newest first]} of what the wanted origin offers."""
        code, out, error = self.run("apt-cache", "madison", *sorted(packages))
        if code:
            self.module.fail_json(msg="apt-cache madison failed ({0}): {1}".format(code, error.strip()))
        found = {}
        for line in out.splitlines():
            fields = [field.strip() for field in line.split("|")]
            if len(fields) == 3 and fields[2].endswith("Packages"):
                versions = found.setdefault(fields[0], [])
                if fields[1] not in versions and re.search(self.module.params["origin"], fields[2]):
                    versions.append(fields[1])
        return {name: versions for name, versions in found.items() if versions}

    def refresh(self):
        """Download the package lists again."""
        code, _out, error = self.patiently(
            lambda _code, error: "Could not get lock" in error, "apt-get", "-q", "update"
        )
        if code:
            self.module.fail_json(
                msg="apt-get update could not refresh the package lists: {0}".format(error.strip())
            )

    def spec(self, name, version):
        return "{0}={1}".format(name, version)


class Dnf(Manager):
    def __init__(self, module):
        super(Dnf, self).__init__(module)
        self.architecture = {}

    def installed(self, packages):
        """{package: version}. Of several versions side by side (kernels) the newest."""
        form = "%{NAME}|%{EPOCH}|%{VERSION}|%{RELEASE}|%{ARCH}\n"
        # Its exit status counts those that are not installed, which is an answer.
        _code, out, _error = self.run("rpm", "-q", "--qf", form, *sorted(packages))
        return {name: versions[0] for name, versions in self.parse(out).items()}

    def look_up(self, packages):
        """{package: [version, newest first]}; what is locked at another version counts as well."""
        form = "%{name}|%{epoch}|%{version}|%{release}|%{arch}|%{repoid}\n"
        words = ["--disableplugin=versionlock", *(["--cacheonly"] if self.module.check_mode else [])]
        code, out, error = self.patiently(
            lambda code, _error: code == DNF_LOCKED,
            *DNF,
            *words,
            *("repoquery", "--available", "--qf", form),
            *sorted(packages),
        )
        # Without lists yet, in check mode: nobody is known to offer anything.
        if code and not self.module.check_mode:
            self.module.fail_json(msg="dnf repoquery failed ({0}): {1}".format(code, error.strip()))
        return self.parse(out)

    def parse(self, text):
        """Lines of name|epoch|version|release|arch, a repository behind it or not → {package: [version…]}."""
        found = {}
        for line in text.splitlines():
            fields = line.strip().split("|")
            if len(fields) not in (5, 6) or fields[4] not in ("noarch", os.uname().machine):
                continue
            if len(fields) == 6 and not re.search(self.module.params["origin"], fields[5]):
                continue
            epoch = "" if fields[1] in ("0", "(none)") else fields[1] + ":"
            version = "{0}{1}-{2}".format(epoch, fields[2], fields[3])
            versions = found.setdefault(fields[0], [])
            if version not in versions:
                versions.append(version)
            self.architecture[fields[0], version] = fields[4]
        for versions in found.values():
            versions.sort(key=functools.cmp_to_key(compare), reverse=True)
        return found

    def refresh(self):
        """Download the package lists again."""
        code, _out, error = self.patiently(
            lambda code, _error: code == DNF_LOCKED, *DNF, "--refresh", "makecache"
        )
        if code:
            self.module.fail_json(
                msg="dnf makecache could not refresh the package lists: {0}".format(error.strip())
            )

    def spec(self, name, version):
        return "{0}-{1}.{2}".format(name, version, self.architecture[name, version])


def compare(one, other):
    """Two versions as rpm compares them, epoch first: below, at or above zero."""
    found = 0
    for number in range(3):
        found = found or compare_text(parts(one)[number], parts(other)[number])
    return found


def parts(version):
    epoch, colon, rest = version.partition(":")
    return (epoch, *rest.rsplit("-", 1)) if colon else ("0", *version.rsplit("-", 1))


def compare_text(one, other):
    """rpmvercmp: numbers by value, above letters; ~ below the end of the text, ^ just above it."""
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


def locked(root=""):
    """{package: version} of the lock that the role package_lock keeps on this machine."""
    found = {}
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
                found[name] = words[2]
            elif len(words) == 2 and not words[0].endswith(":"):
                found[words[0]] = words[1]
    return found


def locked_first(offered, locks):
    """What is offered, the locked version of each package before its others."""
    return {
        name: sorted(versions, key=lambda version, name=name: version != locks.get(name))
        for name, versions in offered.items()
    }


def sentence(name, wanted, offered):
    if not offered:
        return "No repository offers the package {0}.".format(name)
    return "{0} {1} is not offered; offered are: {2}.".format(name, wanted, ", ".join(offered))


def main():
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "dict", "required": True},
            "origin": {"type": "str", "default": ""},
            "lock_timeout": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    manager = Dnf(module) if family() == "redhat" else Apt(module)
    wanted = {name: str(version or "") for name, version in module.params["packages"].items()}
    there = manager.installed(wanted)
    chosen = {name: there[name] for name in wanted if name in there and choose([there[name]], wanted[name])}
    satisfied = len(chosen) == len(wanted)
    offered = {} if satisfied else locked_first(manager.look_up(wanted), locked())
    absent = sorted(set(wanted) - set(chosen))
    if not module.check_mode and any(not choose(offered.get(name, []), wanted[name]) for name in absent):
        manager.refresh()
        offered = locked_first(manager.look_up(wanted), locked())
    for name in absent:
        version = choose(offered.get(name, []), wanted[name])
        if version:
            chosen[name] = version
    missing = sorted(set(wanted) - set(chosen))
    module.exit_json(
        changed=False,
        satisfied=satisfied,
        installed=there,
        versions=chosen,
        specs=[manager.spec(name, chosen[name]) for name in sorted(chosen)],
        missing=[sentence(name, wanted[name], offered.get(name)) for name in missing],
        known=bool(offered or there),
    )


if __name__ == "__main__":
    main()
