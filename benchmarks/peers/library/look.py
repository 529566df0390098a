#!/usr/bin/python
"""One custom Ansible module that looks at everything at once, as who wants speed would write it."""

from __future__ import annotations

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule


def main():
    module = AnsibleModule(
        argument_spec={"expected": {"type": "list", "elements": "dict", "required": True}},
        supports_check_mode=True,
    )
    expected = module.params["expected"]
    names = [one["name"] for one in expected if one["kind"] == "package"]
    _, shown, _ = module.run_command(["dpkg-query", "-W", "-f", "${Package} ${Version}\n", *names])
    versions = dict(line.split(" ", 1) for line in shown.splitlines())
    differs = []
    for one in expected:
        kind, name = one["kind"], one["name"]
        if kind == "package":
            found = versions.get(name)
        elif kind == "module":
            found = "yes" if Path(f"/sys/module/{name}/initstate").exists() else "no"
        else:
            path = name if kind == "file" else "/proc/sys/" + name.replace(".", "/")
            try:
                text = Path(path).read_text(encoding="utf-8")
                found = text if kind == "file" else text.strip()
            except OSError:
                found = None
        if found != one["value"]:
            differs.append(name)
    if differs:
        module.fail_json(msg=f"{len(differs)} differ", differs=differs)
    module.exit_json(changed=False)


if __name__ == "__main__":
    main()
