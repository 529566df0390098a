#!/usr/bin/python
"""Ansible module that reads in one task everything that a role step bases its decisions on."""

DOCUMENTATION = r"""
module: gpuprov_look
short_description: Read several files, folders and program outputs in one task
description:
  - A missing file is null and no error; a program that cannot be run has exit status 127, and one that
    exceeds its timeout 124.
  - Changes nothing, in check mode or otherwise.
options:
  files:
    description: Absolute paths of the files to read, by name.
    type: dict
    default: {}
  paths:
    description: Absolute paths, by name, to check for existence and resolve.
    type: dict
    default: {}
  programs:
    description:
      - Programs to run, by name, each as a list of the program and its arguments. They get no shell and no
        input, and run in the C locale.
    type: dict
    default: {}
  needed:
    description: Names of the programs whose exit status must be 0; otherwise the task fails.
    type: list
    elements: str
    default: []
  folders:
    description:
      - Searches for files, by name. C(path) is the folder, C(names) are shell patterns of file names (all
        files by default), C(depth) is the number of folder levels (1 is the folder itself), C(contains) is a
        regular expression that must match the beginning of a line in the file.
    type: dict
    default: {}
  timeout:
    description: Timeout of each program in seconds.
    type: int
    default: 60
author:
  - The gpuprov authors (@gpuprov)
"""

EXAMPLES = r"""
- name: Read which driver is loaded and which one the next boot would load
  gpuprov_look:
    files:
      loaded: /proc/driver/nvidia/version
    paths:
      library: /usr/lib/x86_64-linux-gnu/libcuda.so.1
    programs:
      on_disk: [modinfo, -F, version, nvidia]
    folders:
      build_logs: {path: /var/lib/dkms, names: [make.log], depth: 4}
  register: look
"""

RETURN = r"""
files:
  description:
    - Text of each file by name (at most 1 MiB); null if the file does not exist, empty if it is a folder or
      cannot be read.
  returned: success
  type: dict
paths:
  description: The real path behind each path; null if it does not exist.
  returned: success
  type: dict
programs:
  description: C(rc), C(stdout) and C(stderr) of each program.
  returned: success
  type: dict
folders:
  description: Sorted paths of the files found in each folder.
  returned: success
  type: dict
"""

import fnmatch  # noqa: E402
import io  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402

from ansible.module_utils.basic import AnsibleModule  # noqa: E402

MOST = 1024 * 1024  # characters of one file
NO_ANSWER = 124  # exit status of timeout(1)
ENGLISH = {"LC_ALL": "C", "LANGUAGE": "C"}


def text_of(path):
    if not os.path.lexists(path):
        return None
    try:
        with io.open(path, encoding="utf-8", errors="replace") as file:
            return file.read(MOST)
    except (IOError, OSError):
        return ""


def end_of(path):
    return os.path.realpath(path) if os.path.exists(path) else None


def answer_of(module, argv, timeout):
    """Run a program and return its exit status and output."""
    # timeout(1) also ends the children of the program.
    words = ["timeout", "--kill-after=5", str(timeout)] + [str(word) for word in argv]
    code, output, trouble = module.run_command(
        words, environ_update=ENGLISH, data="", errors="replace", expand_user_and_vars=False
    )
    if code == NO_ANSWER and not trouble:
        trouble = "no answer within {0} s".format(timeout)
    return {"rc": code, "stdout": output.rstrip("\r\n"), "stderr": trouble.rstrip("\r\n")}


def found_in(path, names, depth, contains):
    """Return paths of matching files below a folder, without following links to folders."""
    regex = re.compile(contains) if contains else None
    top, paths = path.rstrip("/"), []
    for folder, folders, files in os.walk(top):
        if folder[len(top) :].count("/") >= depth - 1:
            del folders[:]
        for name in files:
            file = os.path.join(folder, name)
            fits = any(fnmatch.fnmatch(name, pattern) for pattern in names)
            if fits and (regex is None or any(map(regex.match, (text_of(file) or "").splitlines()))):
                paths.append(file)
    return sorted(paths)


def mistake(name, value, check):
    """Return an error message for an invalid value of a dictionary option, or None."""
    try:
        check(value)
    except (KeyError, TypeError, ValueError, re.error) as error:
        return "{0}: {1!r} cannot be used: {2}".format(name, value, error)
    return None


def a_path(value):
    if not os.path.isabs(value):
        raise ValueError("an absolute path is needed")


def a_program(value):
    if not value or not isinstance(value, list):
        raise ValueError("a list is needed, the program first")


def a_folder(value):
    strange = sorted(set(value) - {"path", "names", "depth", "contains"})
    if strange:
        raise ValueError("there is no " + ", ".join(strange))
    a_path(value["path"])
    re.compile(value.get("contains") or "")
    int(value.get("depth", 1))


def main():
    module = AnsibleModule(
        argument_spec={
            "files": {"type": "dict", "default": {}},
            "paths": {"type": "dict", "default": {}},
            "programs": {"type": "dict", "default": {}},
            "needed": {"type": "list", "elements": "str", "default": []},
            "folders": {"type": "dict", "default": {}},
            "timeout": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    asked = module.params
    for option, check in (
        ("files", a_path),
        ("paths", a_path),
        ("programs", a_program),
        ("folders", a_folder),
    ):
        for name, value in asked[option].items():
            wrong = mistake("{0}: {1}".format(option, name), value, check)
            if wrong:
                module.fail_json(msg=wrong)
    answers = {name: answer_of(module, argv, asked["timeout"]) for name, argv in asked["programs"].items()}
    for name in asked["needed"]:
        answer = answers[name]
        if answer["rc"]:
            reason = answer["stderr"] or "no word why"
            module.fail_json(
                msg="{0} ended with {1}: {2}".format(asked["programs"][name][0], answer["rc"], reason)
            )
    module.exit_json(
        changed=False,
        files={name: text_of(path) for name, path in asked["files"].items()},
        paths={name: end_of(path) for name, path in asked["paths"].items()},
        programs=answers,
        folders={
            name: found_in(
                folder["path"],
                folder.get("names") or ["*"],
                int(folder.get("depth", 1)),
                folder.get("contains"),
            )
            for name, folder in asked["folders"].items()
        },
    )


if __name__ == "__main__":
    main()
