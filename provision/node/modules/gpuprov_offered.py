#!/usr/bin/python
"""Says which package versions are installed, which the repositories offer, and what is missing."""

from __future__ import absolute_import, division, print_function

DOCUMENTATION = r"""
module: gpuprov_offered
short_description: Ask which package versions are installed, and which the repositories offer
description:
  - Compares the wanted versions of packages with what is installed and, unless that is all that is wanted,
    with what the package manager's own lists offer.
  - Changes nothing but those lists, which it refreshes once when something is missing (not in check mode).
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
        C(apt-cache madison) (C(http://deb.debian.org/debian trixie/non-free amd64 Packages)). apt only.
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
  description: The same as the package manager wants it said (C(name=version); for dnf C(name-epoch:version)).
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

import re  # noqa: E402
import time  # noqa: E402

from ansible.module_utils.basic import AnsibleModule  # noqa: E402


def upstream(version):
    """A Debian version without epoch and distribution revision: 1:580.126.09-1 → 580.126.09."""
    return version.split(":", 1)[-1].rsplit("-", 1)[0]


def parse_madison(text, origin=""):
    """`apt-cache madison` output → {package: [version, newest first]} of what `origin` is found in."""
    found = {}
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) == 3 and fields[2].endswith("Packages") and re.search(origin, fields[2]):
            versions = found.setdefault(fields[0], [])
            if fields[1] not in versions:
                versions.append(fields[1])
    return found


def choose(offered, wanted):
    """The first of `offered` that is `wanted` (any revision; 580.*: any of the branch; empty: any), or None."""
    for version in offered:
        if not wanted or wanted in (version, upstream(version)):
            return version
        if wanted.endswith(".*") and upstream(version).startswith(wanted[:-1]):
            return version
    return None


def parse_status(text):
    """dpkg-query output → {package: version} of what is installed and configured."""
    lines = [line.split() for line in text.splitlines()]
    return {fields[0]: fields[2] for fields in lines if len(fields) == 3 and fields[1] == "installed"}


def installed(module, packages):
    # Its exit status says that one of them is unknown, which is an answer.
    command = ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status} ${Version}\n", *sorted(packages)]
    _code, out, _error = module.run_command(command, environ_update={"LC_ALL": "C"})
    return parse_status(out)


def look_up(module, packages):
    command = ["apt-cache", "madison", *sorted(packages)]
    code, out, error = module.run_command(command, environ_update={"LC_ALL": "C"})
    if code:
        module.fail_json(msg="apt-cache madison failed ({0}): {1}".format(code, error.strip()))
    return parse_madison(out, module.params["origin"])


def refresh(module):
    """Download the package lists again; waits while another program holds their lock."""
    deadline = time.time() + module.params["lock_timeout"]
    while True:
        code, _out, error = module.run_command(["apt-get", "-q", "update"], environ_update={"LC_ALL": "C"})
        if code == 0:
            return
        if "Could not get lock" not in error or time.time() > deadline:
            module.fail_json(
                msg="apt-get update could not refresh the package lists: {0}".format(error.strip())
            )
        time.sleep(3)


def specs(versions):
    return ["{0}={1}".format(name, versions[name]) for name in sorted(versions)]


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
    wanted = {name: str(version or "") for name, version in module.params["packages"].items()}
    there = installed(module, wanted)
    chosen = {name: there[name] for name in wanted if name in there and choose([there[name]], wanted[name])}
    if len(chosen) == len(wanted):
        module.exit_json(
            changed=False,
            satisfied=True,
            installed=there,
            versions=chosen,
            specs=specs(chosen),
            missing=[],
            known=True,
        )
    offered = look_up(module, wanted)
    absent = sorted(set(wanted) - set(chosen))
    if not module.check_mode and any(not choose(offered.get(name, []), wanted[name]) for name in absent):
        refresh(module)
        offered = look_up(module, wanted)
    for name in absent:
        version = choose(offered.get(name, []), wanted[name])
        if version:
            chosen[name] = version
    missing = sorted(set(wanted) - set(chosen))
    module.exit_json(
        changed=False,
        satisfied=False,
        installed=there,
        versions=chosen,
        specs=specs(chosen),
        missing=[sentence(name, wanted[name], offered.get(name)) for name in missing],
        known=bool(offered or there),
    )


if __name__ == "__main__":
    main()
