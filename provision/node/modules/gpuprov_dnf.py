#!/usr/bin/python
"""Installs and removes packages with dnf, through its command."""

DOCUMENTATION = r"""
module: gpuprov_dnf
short_description: Install or remove packages with dnf's command
description:
  - What C(ansible.builtin.dnf) does with the Python bindings of dnf. Those are made for one Python, on
    RHEL 8 for 3.6, on which ansible-core no longer runs; the command needs none.
  - A package whose version is named is moved to it, up or down.
options:
  name:
    description: Packages, as C(dnf install) takes them (C(name-epoch:version-release.arch)).
    type: list
    elements: str
    required: true
  state:
    description: Whether they are to be there.
    type: str
    choices: [present, absent]
    default: present
  install_weak_deps:
    description: Whether packages that are only recommended come along.
    type: bool
    default: true
  allowerasing:
    description: Whether packages that are in the way are removed.
    type: bool
    default: false
  autoremove:
    description: Whether packages that nobody needs any more go with those that are removed.
    type: bool
    default: true
  exclude:
    description: Shell patterns of packages that must not be touched.
    type: list
    elements: str
    default: []
  lock_timeout:
    description: Seconds to wait while another program holds dnf's lock.
    type: int
    default: 300
author: gpuprov
"""

EXAMPLES = r"""
- name: Install the driver in one version
  gpuprov_dnf:
    name: ["nvidia-driver-cuda-3:580.126.09-1.el9.x86_64"]
    install_weak_deps: false
"""

RETURN = r"""
installed:
  description: Packages, with version, that were not there before (not in check mode).
  returned: always
  type: list
removed:
  description: Packages, with version, that are no longer there (not in check mode).
  returned: always
  type: list
"""

import time  # noqa: E402

from ansible.module_utils.basic import AnsibleModule  # noqa: E402

DNF = ("dnf", "--quiet", "--setopt=exit_on_lock=True")
DNF_LOCKED = 200  # its exit status when another program has the lock
ABORTED = "Operation aborted"  # what it says when there is something to do and it was not told to
LANGUAGE = {"LC_ALL": "C"}


def command(parameters, check_mode):
    """The words for dnf; in check mode it answers from the lists it has, and no to what it would do."""
    words = [*DNF, *(["--assumeno", "--cacheonly"] if check_mode else ["--assumeyes"])]
    if not parameters["install_weak_deps"]:
        words.append("--setopt=install_weak_deps=False")
    if parameters["allowerasing"]:
        words.append("--allowerasing")
    words.extend("--exclude=" + pattern for pattern in parameters["exclude"])
    if parameters["state"] == "present":
        return [*words, "install", *parameters["name"]]
    return [*words, "remove", *([] if parameters["autoremove"] else ["--noautoremove"]), *parameters["name"]]


def packages(module):
    """What is installed, with versions."""
    code, out, error = module.run_command(["rpm", "-qa"], environ_update=LANGUAGE)
    if code:
        module.fail_json(msg="rpm -qa failed ({0}): {1}".format(code, error.strip()))
    return {line for line in out.split() if not line.startswith("gpg-pubkey-")}


def patiently(module, words):
    """dnf's answer, once no other program has its lock."""
    deadline = time.time() + module.params["lock_timeout"]
    while True:
        code, out, error = module.run_command(words, environ_update=LANGUAGE)
        if code != DNF_LOCKED or time.time() > deadline:
            return code, out, error
        time.sleep(3)


def main():
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "list", "elements": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "install_weak_deps": {"type": "bool", "default": True},
            "allowerasing": {"type": "bool", "default": False},
            "autoremove": {"type": "bool", "default": True},
            "exclude": {"type": "list", "elements": "str", "default": []},
            "lock_timeout": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    if not module.params["name"]:
        module.exit_json(changed=False, installed=[], removed=[])
    before = packages(module)
    code, out, error = patiently(module, command(module.params, module.check_mode))
    if module.check_mode and ABORTED in error + out:
        module.exit_json(changed=True, installed=[], removed=[])
    if code == DNF_LOCKED:
        seconds = module.params["lock_timeout"]
        module.fail_json(msg="Another program has held dnf's lock for {0} seconds.".format(seconds))
    if code:
        module.fail_json(msg="dnf failed ({0}): {1}".format(code, error.strip() or out.strip()))
    after = packages(module)
    module.exit_json(
        changed=before != after, installed=sorted(after - before), removed=sorted(before - after)
    )


if __name__ == "__main__":
    main()
