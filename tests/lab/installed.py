"""gpuprov installed from its wheel on lab nodes, without any file of this machine."""

from __future__ import annotations

import base64
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.lab.gpuprov_up import ROOT
from tests.lab.lab_nodes import LabNode

PYTHON = "/opt/gpuprov/bin/python"
GPUPROV = f"{PYTHON} -m provision.cli"


def packed(node: LabNode, folder: Path) -> Path:
    """Return an archive of gpuprov's wheel and its dependencies for the node's Python."""
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=300)
    (wheel,) = folder.glob("gpuprov-*.whl")
    version = node.run("python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])'").stdout.strip()
    words = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", str(wheel)]
    words += ["--target", str(folder / "site"), "--python-version", version, "--only-binary=:all:"]
    words += ["--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_28_x86_64"]
    subprocess.run(words, check=True, timeout=600)
    with tarfile.open(folder / "site.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(folder / "site", ".")
    return folder / "site.tar.gz"


def install(node: LabNode, archive: Path) -> None:
    """Create a virtual environment with the archive's contents, as README.md does."""
    node.as_root("python3 -m venv --without-pip /opt/gpuprov")
    where = node.run(f"{PYTHON} -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))'").stdout.strip()
    content = base64.b64encode(archive.read_bytes()).decode()
    node.as_root(f"base64 -d | tar --extract --gzip --directory={where}", timeout=300, said=content)
