#!/usr/bin/python
"""Ansible module that restarts a service with outdated settings, unless that would end containers."""

DOCUMENTATION = r"""
module: gpuprov_service_restart
short_description: Restart a container runtime if that is due and harmless
description:
  - C(due) records, before the settings of a service change, which invocation of it knows only the old ones.
    The record survives a play that fails between the change and the restart; any restart or boot voids it.
  - C(restarted) restarts the service if that invocation still runs and nothing is lost by a restart.
options:
  unit:
    description: Name of the service.
    type: str
    required: true
  state:
    description: C(due) or C(restarted).
    type: str
    choices: [due, restarted]
    required: true
  policy:
    description: C(always) restarts, C(never) does not; C(auto) does unless that would end containers.
    type: str
    choices: [auto, always, never]
    default: auto
  containers:
    description: Shell patterns of paths, of which each running container has one.
    type: list
    elements: str
    default: []
  stops_containers:
    description: Whether the service ends its containers itself when it stops.
    type: bool
    default: false
author:
  - The gpuprov authors (@gpuprov)
"""

EXAMPLES = r"""
- name: Restart Docker if nothing is lost by it
  gpuprov_service_restart:
    unit: docker.service
    state: restarted
    stops_containers: true
    containers: [/run/containerd/io.containerd.runtime.v2.task/moby/*]
"""

RETURN = r"""
waiting:
  description: Why a due restart was not done, and what to do; empty if none is due.
  returned: always
  type: str
"""

import glob  # noqa: E402
import os  # noqa: E402

from ansible.module_utils.basic import AnsibleModule  # noqa: E402

NOTES = os.environ.get("GPUPROV_RESTART_NOTES", "/run/gpuprov/restart-required")
UNITS = os.environ.get("GPUPROV_SYSTEMD_UNITS", "/run/systemd/units")


def invocation(unit):
    """Return systemd's id of the service's current invocation; empty if it is not running."""
    try:
        return os.readlink(os.path.join(UNITS, "invocation:" + unit))
    except OSError:
        return ""


def noted(unit):
    try:
        with open(os.path.join(NOTES, unit)) as file:
            return file.read(256).strip()
    except OSError:
        return ""


def note(module, unit):
    """Record that the service's current invocation needs a restart; return whether that is new."""
    running = invocation(unit)
    if not running or noted(unit) == running:
        return False
    if not module.check_mode:
        os.makedirs(NOTES, exist_ok=True)
        with open(os.path.join(NOTES, unit), "w") as file:
            file.write(running + "\n")
    return True


def outlives(module, unit):
    """Return whether systemd leaves the containers running when it stops the service."""
    command = ["systemctl", "show", "--property=KillMode", "--value", unit]
    _code, out, _error = module.run_command(command)
    return out.strip() in ("process", "none")


def what_holds_it_back(module, unit):
    """Return why the service may not be restarted now; empty if it may."""
    policy = module.params["policy"]
    if policy == "never":
        return "restarts were forbidden"
    running = sum(len(glob.glob(pattern)) for pattern in module.params["containers"])
    if policy == "always" or not running:
        return ""
    if not module.params["stops_containers"] and outlives(module, unit):
        return ""
    return "{0} running container{1} would end".format(running, "s" if running > 1 else "")


def restart(module, unit):
    code, _out, error = module.run_command(["systemctl", "restart", unit])
    if code:
        module.fail_json(
            msg="{0} did not start with its new settings: {1} See journalctl -u {0}.".format(
                unit, error.strip()
            )
        )
    if os.path.exists(os.path.join(NOTES, unit)):
        os.unlink(os.path.join(NOTES, unit))


def main():
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["due", "restarted"], "required": True},
            "policy": {"type": "str", "choices": ["auto", "always", "never"], "default": "auto"},
            "containers": {"type": "list", "elements": "str", "default": []},
            "stops_containers": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    unit = module.params["unit"]
    if module.params["state"] == "due":
        module.exit_json(changed=note(module, unit), waiting="")
    if not invocation(unit) or noted(unit) != invocation(unit):
        module.exit_json(changed=False, waiting="")
    why = what_holds_it_back(module, unit)
    if why:
        text = "{0} runs with the settings from before: {1}. Restart it when it suits: systemctl restart {0}"
        module.exit_json(changed=False, waiting=text.format(unit, why))
    if not module.check_mode:
        restart(module, unit)
    module.exit_json(changed=True, waiting="")


if __name__ == "__main__":
    main()
