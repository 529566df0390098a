"""Builds the Ansible collection gpuprov.gpu from the roles and modules of this repository.

python scripts/collection.py                 # gpuprov-gpu-VERSION.tar.gz in dist/
python scripts/collection.py --tree FOLDER   # FOLDER/ansible_collections/gpuprov/gpu instead of an archive
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from provision import __version__, paths
from provision.desired import skus

ROOT = Path(__file__).resolve().parent.parent
PLUGINS = "ansible_collections.gpuprov.gpu.plugins"
MODULE = re.compile(r"^ +(?:gpuprov\.gpu\.)?(\w+):$", re.MULTILINE)
OURS = re.compile(r"^from provision\.node\.", re.MULTILINE)
# The first line that Galaxy wants of each Python file, and the license.
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


def lay_out(place: Path) -> Path:
    """Write the collection's files below `place`; the folder that ansible-galaxy builds."""
    top = place / "ansible_collections" / "gpuprov" / "gpu"
    roles = sorted(folder for folder in paths.ROLES.iterdir() if folder.is_dir())
    for role in roles:
        shutil.copytree(role, top / "roles" / role.name, ignore=shutil.ignore_patterns("expect.yml"))
    for name in _modules(roles):
        _python(paths.MODULES / f"{name}.py", top / "plugins" / "modules" / f"{name}.py")
    utilities = top / "plugins" / "module_utils"
    for file in (paths.NODE / "observe").glob("*.py"):
        _python(file, utilities / "observe" / file.name)
    _python(paths.NODE / "description.py", utilities / "description.py")
    products = f'"""The products by PCI id."""\n\nPRODUCTS = {dict(skus.by_pci_id())!r}\n'
    _write(utilities / "products.py", HEADER + products)
    _write(top / "galaxy.yml", yaml.safe_dump(GALAXY | {"version": __version__}, sort_keys=False))
    _write(top / "meta" / "runtime.yml", 'requires_ansible: ">=2.17.0"\n')
    _write(top / "README.md", (ROOT / "docs" / "ansible.md").read_text(encoding="utf-8"))
    for name in ("CHANGELOG.md", "LICENSE"):
        _write(top / name, (ROOT / name).read_text(encoding="utf-8"))
    return top


def _modules(roles: list[Path]) -> list[str]:
    """Our modules that a task of the roles names."""
    ours = {file.stem for file in paths.MODULES.glob("*.py")}
    texts = [file.read_text(encoding="utf-8") for role in roles for file in role.glob("*/*.yml")]
    return sorted({name for text in texts for name in MODULE.findall(text)} & ours)


def _python(source: Path, target: Path) -> None:
    text = OURS.sub(f"from {PLUGINS}.module_utils.", source.read_text(encoding="utf-8"))
    shebang, _, rest = text.partition("\n") if text.startswith("#!") else ("", "", text)
    _write(target, (f"{shebang}\n" if shebang else "") + HEADER + rest)


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def build(output: Path) -> Path:
    """The archive, in `output`."""
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        galaxy = Path(sys.executable).with_name("ansible-galaxy")
        words = [str(galaxy), "collection", "build", str(lay_out(Path(place))), "--force"]
        subprocess.run(
            [*words, "--output-path", str(output)], check=True, stdout=subprocess.DEVNULL, timeout=300
        )
    return output / f"gpuprov-gpu-{__version__}.tar.gz"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="where the archive goes")
    parser.add_argument("--tree", type=Path, help="write the files below this folder, and no archive")
    options = parser.parse_args()
    print(lay_out(options.tree) if options.tree else build(options.output))


if __name__ == "__main__":
    main()
