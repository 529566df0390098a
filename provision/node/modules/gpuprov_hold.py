#!/usr/bin/python
"""Holds installed packages back from upgrades, or lets them go, in one step."""

from __future__ import absolute_import, division, print_function

DOCUMENTATION = r"""
module: gpuprov_hold
short_description: Hold packages at their installed version
description:
  - Marks packages as held (C(apt-mark hold)) or takes the mark away; one call for any number of packages.
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
import time  # noqa: E402

from ansible.module_utils.basic import AnsibleModule  # noqa: E402

FORMAT = "${Package} ${Architecture} ${db:Status-Want} ${db:Status-Status} ${Version}\n"


def upstream(version):
    """A Debian version without epoch and distribution revision: 1:580.126.09-1 → 580.126.09."""
    return version.split(":", 1)[-1].rsplit("-", 1)[0]


def parse_status(text):
    """dpkg-query output → {package: (held, version)} of what is installed.

    A package installed for two architectures is held only when both are."""
    found = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) == 5 and fields[3] != "not-installed" and fields[3] != "config-files":
            held = fields[2] == "hold" and found.get(fields[0], (True, ""))[0]
            found[fields[0]] = (held, fields[4])
    return found


def select(status, packages, patterns, version):
    """The installed packages that are named, or match a pattern and are of `version`."""
    chosen = {name for name in packages if name in status}
    for name, (_held, found) in status.items():
        if version and version not in (found, upstream(found)):
            continue
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            chosen.add(name)
    return chosen


def mark(module, verb, names):
    """Run apt-mark; waits while another program holds dpkg's lock."""
    deadline = time.time() + module.params["lock_timeout"]
    while True:
        code, _out, error = module.run_command(["apt-mark", verb, *names], environ_update={"LC_ALL": "C"})
        if code == 0:
            return
        if "lock" not in error or time.time() > deadline:
            module.fail_json(msg="apt-mark {0} failed: {1}".format(verb, error.strip()))
        time.sleep(3)


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
    wanted, held = module.params["packages"], module.params["held"]
    code, out, error = module.run_command(["dpkg-query", "-W", "-f", FORMAT], environ_update={"LC_ALL": "C"})
    if code:
        module.fail_json(msg="dpkg-query failed: {0}".format(error.strip()))
    status = parse_status(out)
    absent = sorted(set(wanted) - set(status))
    if absent and held and not module.check_mode:
        module.fail_json(msg="Not installed, so they cannot be held: {0}.".format(", ".join(absent)))
    chosen = select(status, wanted, module.params["patterns"], module.params["version"])
    # In check mode an absent package would have been installed by an earlier task, and held by this one.
    names = sorted([name for name in chosen if status[name][0] != held] + (absent if held else []))
    if names and not module.check_mode:
        mark(module, "hold" if held else "unhold", names)
    module.exit_json(changed=bool(names), marked=names)


if __name__ == "__main__":
    main()
