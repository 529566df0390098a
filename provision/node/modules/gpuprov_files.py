#!/usr/bin/python
"""Ansible module that writes and removes all files of one role step in a single task."""

DOCUMENTATION = r"""
module: gpuprov_files
short_description: Write and remove several files in one task
description:
  - Each file is owned by root (and by a group, if one is given) and is replaced atomically, so that nobody
    reads half of it. Missing parent folders are created with mode 0755.
  - Supports check mode and C(--diff).
options:
  files:
    description: Files to write, in this order.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Absolute path.
        type: path
        required: true
      content:
        description: The complete text. A file with neither this nor C(secret) is removed.
        type: str
      secret:
        description: Like C(content), for text that must be neither logged nor shown.
        type: str
      mode:
        description: Permissions as an octal number in quotes.
        type: str
        default: "0644"
      group:
        description: Group that owns the file. In check mode it need not exist yet.
        type: str
        default: root
      validate:
        description:
          - A program and its arguments, as a list. It checks the new file, whose path replaces C(%s), before
            the old file is replaced; if its exit status is not 0, the task fails and the old file stays.
            Not run in check mode.
        type: list
        elements: str
        default: []
  absent:
    description: Paths of files to remove before any file is written.
    type: list
    elements: path
    default: []
author:
  - The gpuprov authors (@gpuprov)
"""

EXAMPLES = r"""
- name: Write the settings and remove the file of an older release
  gpuprov_files:
    files:
      - path: /etc/nccl.conf
        content: "{{ lookup('ansible.builtin.template', 'nccl.conf.j2') }}"
    absent: [/etc/nccl.conf.old]
"""

RETURN = r"""
paths:
  description: Paths that were written, removed, or given a new owner or mode (or would be, in check mode).
  returned: success
  type: list
"""

import io  # noqa: E402
import os  # noqa: E402
import tempfile  # noqa: E402

from ansible.module_utils.basic import AnsibleModule  # noqa: E402

HIDDEN = "(a secret)"  # shown in a diff instead of secret text


class InvalidError(Exception):
    """A new file rejected by the program that will read it."""


def found(path):
    """Return the text of a file, or None if it does not exist. Links are followed."""
    try:
        with io.open(path, encoding="utf-8", errors="surrogateescape", newline="") as text:
            return text.read()
    except FileNotFoundError:
        return None


def write(module, path, content, mode, program):
    folder = os.path.dirname(path)
    os.makedirs(folder, 0o755, exist_ok=True)
    number, temporary = tempfile.mkstemp(dir=module.tmpdir)
    with io.open(number, "w", encoding="utf-8", newline="") as text:
        text.write(content)
    if program:
        argv = [temporary if word == "%s" else word for word in program]
        code, output, trouble = module.run_command(argv, expand_user_and_vars=False)
        if code:
            reason = (trouble.strip() or output.strip() or "no word why")[-1000:]
            raise InvalidError("{0} refuses it: {1}".format(program[0], reason.replace(temporary, path)))
    if not int(mode, 8) & 0o004 and os.path.exists(path):
        os.chmod(path, 0o600)  # the move keeps the mode of an existing file
    before = os.umask(0o077)  # keeps a new file private until its mode is set
    try:
        module.atomic_move(temporary, path)
    finally:
        os.umask(before)


def make(module, entry):
    """Bring one file to its desired state. Returns the difference for --diff, or None if unchanged."""
    path, secret = entry["path"], entry.get("secret")
    content = entry["content"] if secret is None else secret
    before = found(path)
    if content is None:
        if not os.path.lexists(path):
            return None
        if not module.check_mode:
            os.unlink(path)
        return difference(path, before, None)
    if before != content:
        if not module.check_mode:
            write(module, path, content, entry["mode"], entry["validate"])
            give(module, path, entry)
        return difference(path, before, content) if secret is None else difference(path, HIDDEN, HIDDEN)
    attributes = {}
    changed = give(module, path, entry, attributes)
    return difference(path, attributes["before"], attributes["after"]) if changed else None


def give(module, path, entry, attributes=None):
    """Set owner root, the group and the mode of a file, and return whether anything changed.
    `attributes` receives the differences."""
    changed = module.set_mode_if_different(path, entry["mode"], False, attributes)
    changed = module.set_owner_if_different(path, "root", changed, attributes)
    return module.set_group_if_different(path, entry["group"], changed, attributes)


def difference(path, before, after):
    return {
        "before": before or "",
        "after": after or "",
        "before_header": path,
        "after_header": path if after is not None else path + " (removed)",
    }


def main():
    module = AnsibleModule(
        argument_spec={
            "files": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "path": {"type": "path", "required": True},
                    "content": {"type": "str"},
                    "secret": {"type": "str", "no_log": True},
                    "mode": {"type": "str", "default": "0644"},
                    "group": {"type": "str", "default": "root"},
                    "validate": {"type": "list", "elements": "str", "default": []},
                },
            },
            "absent": {"type": "list", "elements": "path", "default": []},
        },
        supports_check_mode=True,
    )
    paths, differences = [], []
    absent = [{"path": path, "content": None} for path in module.params["absent"]]
    for entry in absent + module.params["files"]:
        try:
            changed = make(module, entry)
        except InvalidError as error:
            module.fail_json(msg="{0}: {1}".format(entry["path"], error), paths=paths)
        except (IOError, OSError) as error:
            module.fail_json(msg="{0}: {1}".format(entry["path"], error.strerror or error), paths=paths)
        if changed:
            paths.append(entry["path"])
            differences.append(changed)
    module.exit_json(changed=bool(paths), paths=paths, diff=differences)


if __name__ == "__main__":
    main()
