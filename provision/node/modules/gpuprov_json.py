#!/usr/bin/python
"""Ansible module that merges settings into a shared JSON file and reports the line of invalid JSON."""

DOCUMENTATION = r"""
module: gpuprov_json
short_description: Merge settings into a JSON file
description:
  - Sets the given keys and keeps everything else, including the order of the keys.
  - A file that is not JSON is left unchanged; the task fails with the line and column of the error.
options:
  path:
    description: The file; created if it does not exist.
    type: path
    required: true
  settings:
    description: Settings the file must contain. Mappings are merged, everything else is replaced.
    type: dict
    required: true
  validate:
    description:
      - The program that reads the file, with the options that make it validate the file at C(%s).
      - It runs in check mode, too. A program that is not installed or does not know the option is ignored.
    type: list
    elements: str
    default: []
author:
  - The gpuprov authors (@gpuprov)
"""

EXAMPLES = r"""
- name: Add the NVIDIA runtime to Docker's settings
  gpuprov_json:
    path: /etc/docker/daemon.json
    settings: {runtimes: {nvidia: {path: nvidia-container-runtime}}}
    validate: [dockerd, --validate, --config-file, "%s"]
"""

RETURN = r"""
keys_to_set:
  description: The top-level keys whose value was changed (or would be, in check mode).
  returned: always
  type: list
settings:
  description: The complete content after the change (or as it would be, in check mode).
  returned: always
  type: dict
"""

import json  # noqa: E402
import os  # noqa: E402
import tempfile  # noqa: E402

from ansible.module_utils.basic import AnsibleModule  # noqa: E402

UNKNOWN = "unknown flag: "  # printed by Docker before 23.0, which has no --validate


def merged(old, new):
    """Return `old` updated with `new`; mappings merge key by key, other values are replaced."""
    result = dict(old)
    for key, value in new.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result


def refuse(constant):
    """Reject NaN and Infinity, which Python reads but JSON does not allow."""
    raise ValueError("{0} is no number".format(constant))


def read(module, path):
    """Return the file's settings, {} if it is missing, empty or null. Fails the module if it is not JSON."""
    fix = "Correct it; it was not changed."
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        module.fail_json(msg="{0} cannot be read: {1}. {2}".format(path, error, fix))
    if not text.strip():
        return {}
    try:
        settings = json.loads(text, parse_constant=refuse)
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        shown = "".join(text.splitlines()[line - 1 : line]).strip()[:80]
        module.fail_json(msg="{0} is not JSON: {1}: {2!r}. {3}".format(path, error, shown, fix))
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        module.fail_json(msg="{0} is JSON, but not an object of settings. {1}".format(path, fix))
    return settings


def written(module, settings):
    """Write the settings to a new temporary file and return its path."""
    handle, temporary = tempfile.mkstemp(dir=module.tmpdir)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(json.dumps(settings, indent=4, ensure_ascii=False) + "\n")
    return temporary


def validate(module, path, settings):
    """Fail the module if the program that reads the file would refuse these settings."""
    command = module.params["validate"]
    program = module.get_bin_path(command[0]) if command else None
    if not program:
        return
    temporary = written(module, settings)
    words = [temporary if word == "%s" else word for word in command[1:]]
    code, out, error = module.run_command([program, *words])
    os.unlink(temporary)
    reason = " ".join((error.strip() or out.strip() or "no word why").split()).replace(temporary, path)
    if code and UNKNOWN not in reason:
        text = "{0} refuses what {1} would be: {2}. Correct the file; it was not changed."
        module.fail_json(msg=text.format(command[0], path, reason[-600:].rstrip(".")))


def write(module, path, settings):
    """Write the file atomically; a new one is readable by everyone."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    fresh = not os.path.exists(path)
    temporary = written(module, settings)
    if fresh:
        os.chmod(temporary, 0o644)
    module.atomic_move(temporary, path)


def main():
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "settings": {"type": "dict", "required": True},
            "validate": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    path = module.params["path"]
    old = read(module, path)
    new = merged(old, module.params["settings"])
    changed = [key for key in new if key not in old or old[key] != new[key]]
    validate(module, path, new)
    if changed and not module.check_mode:
        write(module, path, new)
    module.exit_json(changed=bool(changed), keys_to_set=changed, settings=new)


if __name__ == "__main__":
    main()
