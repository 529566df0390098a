#!/usr/bin/python
"""Holds installed packages back from upgrades, or lets them go, in one step."""

DOCUMENTATION = r"""
module: gpuprov_hold
short_description: Hold packages at their installed version
description:
  - Marks packages as held (C(apt-mark hold)) or takes the mark away; one call for any number of packages.
  - On the RHEL family the mark is a line of C(dnf versionlock) that names the installed version. The plugin
    that heeds it is installed when it is missing. A line that names another version of the package is
    replaced; lines that are patterns over several packages are somebody else's, and left alone.
options:
  packages:
    description: Packages that must be installed and marked.
    type: list
    elements: str
    default: []
  patterns:
    description: Shell patterns; every installed package whose name matches one is marked as well.
    type: list
    elements: str
    default: []
  version:
    description: Narrows O(patterns) to packages of this version, with or without distribution revision.
    type: str
    default: ""
  held:
    description: Hold them, or let them go.
    type: bool
    default: true
  lock_timeout:
    description: Seconds to wait while another program holds the package manager's lock.
    type: int
    default: 300
author: gpuprov
"""

EXAMPLES = r"""
- name: Hold the driver
  gpuprov_hold:
    packages: [nvidia-driver-cuda]
    patterns: ["libnvidia-*"]
    version: "580.126.09"
"""

RETURN = r"""
marked:
  description: Packages whose mark was changed (or would be, in check mode).
  returned: always
  type: list
"""

import fnmatch  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402
import time  # noqa: E402

from ansible.module_utils.basic import AnsibleModule  # noqa: E402

DPKG = "${Package} ${Architecture} ${db:Status-Want} ${db:Status-Status} ${Version}\n"
RPM = "%{NAME}|%{EPOCH}|%{VERSION}|%{RELEASE}|%{ARCH}\n"
DNF = ("dnf", "--quiet", "--assumeyes", "--setopt=exit_on_lock=True")
DNF_LOCKED = 200  # its exit status when another program has the lock
PLUGIN = "python3-dnf-plugin-versionlock"
PLUGIN_SETTINGS = "/etc/dnf/plugins/versionlock.conf"
LOCKS = "/etc/dnf/plugins/versionlock.list"


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


def select(status, packages, patterns, version):
    """The installed packages that are named, or match a pattern and are of `version`."""
    chosen = {name for name in packages if name in status}
    for name, (_held, found) in status.items():
        if version and version not in (found, upstream(found)):
            continue
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            chosen.add(name)
    return chosen


class Manager:
    def __init__(self, module):
        self.module = module

    def run(self, *command):
        """A program's output; waits while another holds the lock, and ends the task on any other failure."""
        deadline = time.time() + self.module.params["lock_timeout"]
        while True:
            code, out, error = self.module.run_command(list(command), environ_update={"LC_ALL": "C"})
            if code == 0:
                return out
            if not self.locked(code, error) or time.time() > deadline:
                words = [word for word in command[:3] if not word.startswith("-")]
                said = (error.strip() or out.strip()) or "exit status {0}".format(code)
                self.module.fail_json(msg="{0} failed: {1}".format(" ".join(words), said))
            time.sleep(3)


class Apt(Manager):
    def locked(self, _code, error):
        return "lock" in error

    def status(self):
        """{package: (held, version)}. One that is there for two architectures is held only when both are."""
        found = {}
        for line in self.run("dpkg-query", "-W", "-f", DPKG).splitlines():
            fields = line.split()
            if len(fields) == 5 and fields[3] != "not-installed" and fields[3] != "config-files":
                held = fields[2] == "hold" and found.get(fields[0], (True, ""))[0]
                found[fields[0]] = (held, fields[4])
        return found

    def mark(self, held, names):
        self.run("apt-mark", "hold" if held else "unhold", *names)


class Dnf(Manager):
    def locked(self, code, _error):
        return code == DNF_LOCKED

    def status(self):
        """{package: (held, version)}. Of several side by side (kernels) all must be held."""
        self.locks = read_locks()
        self.versions = {}
        found = {}
        for line in self.run("rpm", "-qa", "--qf", RPM).splitlines():
            fields = line.split("|")
            if len(fields) != 5 or fields[0] == "gpg-pubkey":
                continue
            name, epoch = fields[0], "0" if fields[1] == "(none)" else fields[1]
            version = "{0}:{1}-{2}".format(epoch, fields[2], fields[3])
            self.versions.setdefault(name, []).append(version)
            held = is_locked(self.locks, name, version) and found.get(name, (True, ""))[0]
            found[name] = (held, version[2:] if version.startswith("0:") else version)
        return found

    def mark(self, held, names):
        """Lock `names` at the versions that are installed, or take every lock of theirs away."""
        if held and not os.path.exists(PLUGIN_SETTINGS):
            self.run(*DNF, "install", PLUGIN)
        # Neither needs a repository, which may be out of reach.
        command = [*DNF, "--disablerepo=*", "versionlock"]
        wanted = [
            "{0}-{1}.*".format(name, version) for name in names for version in self.versions.get(name, [])
        ]
        old = [lock for lock in self.locks if any(is_lock_of(lock, name) for name in names)]
        stale = [lock for lock in old if not held or lock not in wanted]
        if stale:
            self.run(*command, "delete", *stale)
        missing = [lock for lock in wanted if lock not in self.locks]
        if held and missing:
            self.run(*command, "add", "--raw", *missing)


def read_locks():
    """The lines of versionlock's list that lock something."""
    try:
        with open(LOCKS, encoding="utf-8") as text:
            lines = [line.partition("#")[0].strip() for line in text]
    except FileNotFoundError:
        return []
    return [line for line in lines if line]


def is_lock_of(lock, name):
    """Whether a line is about this package alone, and not a pattern over several."""
    return re.match(r"!?(\d+:)?{0}-(\d+:)?\d".format(re.escape(name)), lock) is not None


def is_locked(locks, name, version):
    """Whether a line keeps the package at exactly this version (0:580.126.09-1.el9)."""
    ends = ("", ".noarch", "." + os.uname().machine)
    epoch, _, rest = version.partition(":")
    base, _, release = rest.rpartition("-")

    def found(lock, base):
        forms = ["{0}-{1}:{2}-{3}", "{0}-{2}-{3}", "{1}:{0}-{2}-{3}"]
        texts = [form.format(name, epoch, base, release) for form in forms]
        return any(fnmatch.fnmatchcase(text + end, lock) for text in texts for end in ends)

    return any(found(lock, base) and not found(lock, base + ".999") for lock in locks if lock[0] != "!")


def main():
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "list", "elements": "str", "default": []},
            "patterns": {"type": "list", "elements": "str", "default": []},
            "version": {"type": "str", "default": ""},
            "held": {"type": "bool", "default": True},
            "lock_timeout": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    manager = Dnf(module) if family() == "redhat" else Apt(module)
    wanted, held = module.params["packages"], module.params["held"]
    status = manager.status()
    absent = sorted(set(wanted) - set(status))
    if absent and held and not module.check_mode:
        module.fail_json(msg="Not installed, so they cannot be held: {0}.".format(", ".join(absent)))
    chosen = select(status, wanted, module.params["patterns"], module.params["version"])
    # In check mode an absent package would have been installed by an earlier task, and held by this one.
    names = sorted([name for name in chosen if status[name][0] != held] + (absent if held else []))
    if names and not module.check_mode:
        manager.mark(held, names)
    module.exit_json(changed=bool(names), marked=names)


if __name__ == "__main__":
    main()
