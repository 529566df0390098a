"""Builds the Ansible collection gpuprov.gpu from the roles and modules of this repository.

python scripts/collection.py                 # gpuprov-gpu-VERSION.tar.gz in dist/
python scripts/collection.py --tree FOLDER   # FOLDER/ansible_collections/gpuprov/gpu instead of an archive
"""

from __future__ import annotations

import argparse
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tokenize
from pathlib import Path
from typing import Any

try:
    import yaml

    from provision import __version__, paths
    from provision.checks.on_node import packed_program
    from provision.desired import skus
except ModuleNotFoundError as missing:
    sys.exit(
        f"scripts/collection.py: this Python has no module {missing.name}\n"
        "  → bash -c '. scripts/setup && setup', then .venv/bin/python scripts/collection.py"
    )

ROOT = Path(__file__).resolve().parent.parent
PLUGINS = "ansible_collections.gpuprov.gpu.plugins"
MODULE = re.compile(r"^ +(?:gpuprov\.gpu\.)?(\w+):$", re.MULTILINE)
OUR_MODULES = "|".join(sorted(file.stem for file in paths.MODULES.glob("gpuprov_*.py")))
OURS_SHORT = re.compile(rf"^( +)({OUR_MODULES}):(?=$| [*{{])", re.MULTILINE)
CORES = ("2.17", "2.18", "2.19", "2.20", "2.21")  # of ansible-core
PLAYBOOKS = ("up.yml", "reboot.yml", "remove.yml")
# Heading of CHANGELOG.md → heading of antsibull-changelog.
SECTIONS = {
    "Added": "minor_changes",
    "Changed": "minor_changes",
    "Deprecated": "deprecated_features",
    "Removed": "removed_features",
    "Fixed": "bugfixes",
    "Security": "security_fixes",
}
OURS = re.compile(r"^from provision\.node\.", re.MULTILINE)
# The first line that Galaxy requires in each Python file, and the license.
HEADER = "# Copyright: The gpuprov authors\n# SPDX-License-Identifier: Apache-2.0\n"

GALAXY: dict[str, Any] = {
    "namespace": "gpuprov",
    "name": "gpu",
    "version": "",
    "readme": "README.md",
    "authors": ["The gpuprov authors"],
    "description": "NVIDIA GPU nodes from bare Linux to ready: driver, CUDA, fabric, RDMA, containers, NCCL",
    "license": ["Apache-2.0"],
    "tags": ["nvidia", "gpu", "cuda", "infrastructure", "linux", "hpc"],
    "dependencies": {},
}
# The settings that `antsibull-changelog lint` requires for a collection's changes.
CHANGELOG: dict[str, Any] = {
    "title": "gpuprov.gpu",
    "changes_file": "changelog.yaml",
    "changes_format": "combined",
    "keep_fragments": False,
    "output": [{"file": "CHANGELOG.md", "format": "md"}],
    "mention_ancestor": True,
    "notesdir": "fragments",
    "prelude_section_name": "release_summary",
    "sections": [[name, title] for title, name in SECTIONS.items() if title != "Changed"],
}


def lay_out(place: Path, repository: str = "") -> Path:
    """Write the collection's files below `place`; returns the folder that ansible-galaxy builds.
    `repository`: the address that Galaxy requires of a published collection."""
    top = place / "ansible_collections" / "gpuprov" / "gpu"
    roles = sorted(folder for folder in paths.ROLES.iterdir() if folder.is_dir())
    for role in roles:
        shutil.copytree(role, top / "roles" / role.name, ignore=shutil.ignore_patterns("expect.yml"))
        if role.name == "node_health":
            (top / "roles" / role.name / "files").mkdir()
            (top / "roles" / role.name / "files" / "gpuprov-node-health").write_bytes(packed_program.build())
        for tasks in (top / "roles" / role.name).glob("tasks/*.yml"):
            _write(tasks, _in_full(tasks))
        _write(top / "docs" / f"{role.name}.md", _page(role))
    for name in PLAYBOOKS:
        _write(top / "playbooks" / name, _in_full(paths.PLAYBOOKS / name))
    for name in _modules(roles):
        _python(paths.MODULES / f"{name}.py", top / "plugins" / "modules" / f"{name}.py")
    utilities = top / "plugins" / "module_utils"
    for file in (paths.NODE / "observe").glob("*.py"):
        _python(file, utilities / "observe" / file.name)
    _python(paths.NODE / "description.py", utilities / "description.py")
    table = json.dumps(dict(skus.by_pci_id()), indent=4)  # texts and lists of them: Python as well
    products = f'"""The products by PCI id."""\n\nPRODUCTS = {table}\n'
    _write(utilities / "products.py", HEADER + products)
    for core in CORES:
        _write(top / "tests" / "sanity" / f"ignore-{core}.txt", _ignored(top / "plugins" / "modules"))
    metadata = GALAXY | {"version": __version__} | ({"repository": repository} if repository else {})
    _write(top / "galaxy.yml", yaml.safe_dump(metadata, sort_keys=False))
    _write(top / "meta" / "runtime.yml", 'requires_ansible: ">=2.17.0"\n')
    _write(top / "README.md", (ROOT / "docs" / "ansible.md").read_text(encoding="utf-8"))
    for name in ("CHANGELOG.md", "LICENSE"):
        _write(top / name, (ROOT / name).read_text(encoding="utf-8"))
    _write(top / "changelogs" / "changelog.yaml", yaml.safe_dump(_changes(), sort_keys=False, width=120))
    _write(top / "changelogs" / "config.yaml", yaml.safe_dump(CHANGELOG, sort_keys=False))
    return top


def _in_full(file: Path) -> str:
    """Return the text of tasks with our modules' fully qualified collection names."""
    return OURS_SHORT.sub(r"\1gpuprov.gpu.\2:", file.read_text(encoding="utf-8"))


def _page(role: Path) -> str:
    """Render the role's description and every option from its argument specification."""
    specs = yaml.safe_load((role / "meta" / "argument_specs.yml").read_text(encoding="utf-8"))[
        "argument_specs"
    ]
    lines = [f"# gpuprov.gpu.{role.name}", ""]
    for entry, spec in specs.items():
        lines += [] if entry == "main" else [f"## `tasks_from: {entry}`", ""]
        lines += [f"{spec['short_description']}.", "", *spec["description"], ""]
        if spec.get("options"):
            lines += ["| option | type | default | meaning |", "|---|---|---|---|"]
        for name, option in spec.get("options", {}).items():
            kind = option["type"] + (f" of {option['elements']}" if "elements" in option else "")
            default = (
                f"`{json.dumps(option['default'])}`"
                if "default" in option
                else "required"
                if option.get("required")
                else ""
            )
            description = option["description"]
            meaning = " ".join([description] if isinstance(description, str) else description)
            if "choices" in option:
                meaning += f" One of {', '.join(f'`{json.dumps(choice)}`' for choice in option['choices'])}."
            lines.append(f"| `{name}` | {kind} | {default} | {meaning.replace('|', chr(92) + '|')} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _changes() -> dict[str, Any]:
    """Convert CHANGELOG.md to antsibull-changelog's format; unreleased changes become the next version's."""
    releases: dict[str, Any] = {}
    version, section = "", ""
    for line in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines():
        if heading := re.match(r"## \[?(\S+?)\]?(?: - (\d{4}-\d{2}-\d{2}))?$", line):
            version = __version__ if heading[1] == "Unreleased" else heading[1]
            releases[version] = {"changes": {}} | ({"release_date": heading[2]} if heading[2] else {})
        elif line.startswith("### "):
            section = SECTIONS[line[4:].strip()]
        elif version and line.startswith("- "):
            releases[version]["changes"].setdefault(section, []).append(line[2:])
        elif version and line.startswith("  "):
            releases[version]["changes"][section][-1] += " " + line.strip()
    return {"ancestor": None, "releases": releases}


def _modules(roles: list[Path]) -> list[str]:
    """Return our modules that the roles' tasks use."""
    ours = {file.stem for file in paths.MODULES.glob("*.py")}
    texts = [file.read_text(encoding="utf-8") for role in roles for file in role.glob("tasks/*.yml")]
    return sorted({name for text in texts for name in MODULE.findall(text)} & ours)


def _python(source: Path, target: Path) -> None:
    text = OURS.sub(f"from {PLUGINS}.module_utils.", source.read_text(encoding="utf-8"))
    shebang, _, rest = text.partition("\n") if text.startswith("#!") else ("", "", text)
    _write(target, (f"{shebang}\n" if shebang else "") + HEADER + _without_underscores(rest))


def _without_underscores(source: str) -> str:
    """Rename `_` to `dummy`, since Ansible's checks reserve `_` for translations."""
    lines = source.splitlines(keepends=True)
    for token in reversed(list(tokenize.generate_tokens(io.StringIO(source).readline))):
        if token.type == tokenize.NAME and token.string == "_":
            (row, begin), (_, end) = token.start, token.end
            lines[row - 1] = f"{lines[row - 1][:begin]}dummy{lines[row - 1][end:]}"
    return "".join(lines)


def _ignored(modules: Path) -> str:
    """Return the exceptions for `ansible-test sanity`: our license."""
    lines = [
        f"plugins/modules/{file.name} validate-modules:missing-gplv3-license" for file in modules.glob("*.py")
    ]
    return "".join(f"{line}\n" for line in sorted(lines))


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def build(output: Path, repository: str) -> Path:
    """Build the archive in `output`."""
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        galaxy = Path(sys.executable).with_name("ansible-galaxy")
        words = [str(galaxy), "collection", "build", str(lay_out(Path(place), repository)), "--force"]
        subprocess.run(
            [*words, "--output-path", str(output)], check=True, stdout=subprocess.DEVNULL, timeout=300
        )
    return output / f"gpuprov-gpu-{__version__}.tar.gz"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="where the archive goes")
    parser.add_argument("--tree", type=Path, help="write the files below this folder, and no archive")
    parser.add_argument("--repository", default="", help="the address of the source, which Galaxy wants")
    options = parser.parse_args()
    repository = options.repository
    print(lay_out(options.tree, repository) if options.tree else build(options.output, repository))


if __name__ == "__main__":
    main()
