#!/usr/bin/python
"""Ansible module that requests a reboot of the machine and records the reason."""

DOCUMENTATION = r"""
module: gpuprov_reboot
short_description: Request a reboot, as Debian's packages do
description:
  - Writes C(/run/reboot-required) and one line of C(/run/reboot-required.pkgs).
  - Does not reboot anything; C(gpuprov up) does so in waves, and anyone else may.
options:
  why:
    description: Reason for the reboot, in one line that begins with the name of the software.
    type: str
    required: true
author:
  - The gpuprov authors (@gpuprov)
"""

EXAMPLES = r"""
- name: Request a reboot if a different RDMA core is loaded
  gpuprov_reboot:
    why: rdma (the loaded ib_core is not the installed one)
"""

RETURN = r""" # """

import io  # noqa: E402

from ansible.module_utils.basic import AnsibleModule  # noqa: E402

REQUIRED = "/run/reboot-required"


def read(path):
    try:
        with io.open(path, encoding="utf-8", errors="replace") as text:
            return text.read()
    except FileNotFoundError:
        return None


def main():
    module = AnsibleModule(argument_spec={"why": {"type": "str", "required": True}}, supports_check_mode=True)
    why = " ".join(module.params["why"].split())
    required, reasons = read(REQUIRED), read(REQUIRED + ".pkgs") or ""
    requested = required is not None and why in reasons.splitlines()
    if not requested and not module.check_mode:
        if required is None:
            with io.open(REQUIRED, "w", encoding="utf-8") as text:
                text.write("*** System restart required ***\n")
        if why not in reasons.splitlines():
            with io.open(REQUIRED + ".pkgs", "a", encoding="utf-8") as text:
                text.write(("" if reasons.endswith("\n") or not reasons else "\n") + why + "\n")
    module.exit_json(changed=not requested)


if __name__ == "__main__":
    main()
