#!/usr/bin/python
"""Writes and removes a role's files: one task for all of a step, instead of one for each."""

DOCUMENTATION = r"""
module: gpuprov_files
short_description: Write and remove several files in one task
description:
  - Each file belongs to root (and to a group, where one is named) and is replaced in one step, so that
    nobody reads half of it. Folders that are missing on the way are made, with mode 0755.
  - Supports check mode and C(--diff).
options:
  files:
    description: The files, in the order in which they are written.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Absolute path.
        type: path
        required: true
      content:
        description: The whole text. A file without it is removed.
        type: str
      secret:
        description: The same for a text that is neither logged nor shown.
        type: str
      mode:
        description: Permissions, octal, in quotes.
        type: str
        default: "0644"
      group:
        description: The group that owns it. In check mode it need not exist yet.
        type: str
        default: root
      validate:
        description:
          - A program with its arguments, as a list. It reads the new file in place of C(%s) before that
            replaces the old one; where it does not end with 0, the task fails, and the old file stays.
            Not run in check mode.
        type: list
        elements: str
        default: []
  absent:
    description: Paths of files to remove before the others are written.
    type: list
    elements: path
    default: []
author:
  - The gpuprov authors (@gpuprov)
"""

EXAMPLES = r"""
- name: Write the settings, and remove those of an older release
  gpuprov_files:
    files:
      - path: /etc/nccl.conf
        content: "{{ lookup('ansible.builtin.template', 'nccl.conf.j2') }}"
    absent: [/etc/nccl.conf.old]
"""

RETURN = r"""
paths:
  description: Paths that were written, removed, or given another owner or mode (or would be, in check mode).
  returned: success
  type: list
"""

import io  # noqa: E402
import os  # noqa: E402
import tempfile  # noqa: E402

from ansible.module_utils.basic import AnsibleModule  # noqa: E402

HIDDEN = "(a secret)"  # in a difference


class InvalidError(Exception):
    """The new file is not what the program that reads it understands."""


def found(path):
    """The text of the file, or None. A link counts as what it leads to."""
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
            said = (trouble.strip() or output.strip() or "no word why")[-1000:]
            raise InvalidError("{0} refuses it: {1}".format(program[0], said.replace(temporary, path)))
    if not int(mode, 8) & 0o004 and os.path.exists(path):
        os.chmod(path, 0o600)  # the move keeps the mode of what is there
    before = os.umask(0o077)  # nobody else reads a new file before it has its mode
    try:
        module.atomic_move(temporary, path)
    finally:
        os.umask(before)


def make(module, entry):
    """Bring one file to its state. Returns the difference for --diff, or None when there is none."""
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
    """Give a file to root and its group, with its mode; `attributes` gets what differed. Returns whether
    anything did."""
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
