#!/usr/bin/python
"""Says which package versions the configured repositories offer, and what is missing."""

from __future__ import absolute_import, division, print_function

DOCUMENTATION = r"""
module: gpuprov_offered
short_description: Ask which package versions the repositories offer
description:
  - Looks up the versions of packages in the package manager's own lists, compares them with the wanted ones.
  - Changes nothing but those lists, which it refreshes once when something is missing (not in check mode).
options:
  packages:
    description:
      - Package name to wanted version. A version without distribution revision (C(580.126.09)) matches any
        revision of it; an empty one matches all.
    type: dict
    required: true
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
versions:
  description: For each package that is offered, the full version to install (the first choice of apt).
  returned: always
  type: dict
missing:
  description: One sentence for each package whose wanted version is not offered.
  returned: always
  type: list
known:
  description: Whether the repositories offer any version of any of the packages.
  returned: always
  type: bool
"""

import time  # noqa: E402

from ansible.module_utils.basic import AnsibleModule  # noqa: E402


def upstream(version):
    """A Debian version without epoch and distribution revision: 1:580.126.09-1 → 580.126.09."""
    return version.split(":", 1)[-1].rsplit("-", 1)[0]


def parse_madison(text):
    """`apt-cache madison` output → {package: [version, newest first]}."""
    found = {}
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) == 3 and fields[2].endswith("Packages"):
            versions = found.setdefault(fields[0], [])
            if fields[1] not in versions:
                versions.append(fields[1])
    return found


def choose(offered, wanted):
    """The first of `offered` that is `wanted` (with or without revision; empty: any), or None."""
    for version in offered:
        if not wanted or wanted in (version, upstream(version)):
            return version
    return None


def look_up(module, packages):
    command = ["apt-cache", "madison", *sorted(packages)]
    code, out, error = module.run_command(command, environ_update={"LC_ALL": "C"})
    if code:
        module.fail_json(msg="apt-cache madison failed ({0}): {1}".format(code, error.strip()))
    return parse_madison(out)


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


def sentence(name, wanted, offered):
    if not offered:
        return "No repository offers the package {0}.".format(name)
    return "{0} {1} is not offered; offered are: {2}.".format(name, wanted, ", ".join(offered))


def main():
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "dict", "required": True},
            "lock_timeout": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    wanted = {name: str(version or "") for name, version in module.params["packages"].items()}
    offered = look_up(module, wanted)
    if not module.check_mode and any(not choose(offered.get(name, []), wanted[name]) for name in wanted):
        refresh(module)
        offered = look_up(module, wanted)
    choices = {name: choose(offered.get(name, []), wanted[name]) for name in wanted}
    chosen = {name: version for name, version in choices.items() if version}
    missing = sorted(set(wanted) - set(chosen))
    module.exit_json(
        changed=False,
        versions=chosen,
        missing=[sentence(name, wanted[name], offered.get(name)) for name in missing],
        known=bool(offered),
    )


if __name__ == "__main__":
    main()
